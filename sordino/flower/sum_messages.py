"""Converts the waves of secure sums to Flower's messages and back: calls, and clients' replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, MessageType, RecordDict

from sordino.flower.messages import (
    SUMS,
    attach_signature,
    make_wave_record,
    read_wave_record,
)
from sordino.flower.signing import Signer, sums_statement
from sordino.flower.sum_forms import (
    BYTES,
    CLIENTS,
    FORMS,
    KEY,
    LETTER,
    NAME,
    NUMBER,
    SHARE,
    TEXT,
    Form,
    decode_body,
    encode_body,
    make_body_form,
    make_mapping_form,
    make_optional_form,
    read_number,
)
from sordino.secure_sums.key_roster import SignedKey


@dataclass(frozen=True, kw_only=True)
class Label:
    """Names one try to sum one round. No label is used twice in a training.

    Attributes:
        round: Number of the round, from 0.
        attempt: Grows when a round is tried again and when a run is resumed; never falls.
    """

    round: int
    attempt: int

    def __str__(self) -> str:
        """Returns the label as letters and signatures have it."""
        return f"round {self.round}, attempt {self.attempt}"

    @property
    def order(self) -> tuple[int, int]:
        """Sorts labels by time: a round that is tried again comes after the next one."""
        return self.attempt, self.round


@dataclass(frozen=True, kw_only=True)
class KeyCall:
    """Asks a client for its key for letters, once in a training.

    Attributes:
        training: Name of the training.
        protocol: Its protocol, as TOML.
    """

    training: str
    protocol: str


@dataclass(frozen=True, kw_only=True)
class KeyReply:
    """Holds a client's key for letters.

    Attributes:
        public: The key.
        signature: The signature of the client's identity under it.
        attempt: The last attempt that the client has prepared for; -1 before the first.
    """

    public: bytes
    signature: bytes
    attempt: int


@dataclass(frozen=True, kw_only=True)
class PrepareCall:
    """Asks a client to prepare for a round.

    Attributes:
        training: Name of the training.
        label: The round.
        keys: All clients' keys for letters, as far as they are known; empty once the client has
            them.
    """

    training: str
    label: Label
    keys: Mapping[int, SignedKey] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PrepareReply:
    """Holds what a client sends to prepare for a round.

    Attributes:
        mask_public: Its public key of the round.
        letters: A sealed letter to every neighbour.
    """

    mask_public: bytes
    letters: Mapping[int, bytes]


@dataclass(frozen=True, kw_only=True)
class MaskCall:
    """Goes with the request for an upload, and asks for it under masks.

    Attributes:
        label: The round.
        participants: The clients whose uploads are to be summed.
        letters: The participants' letters to the client that is asked.
    """

    label: Label
    participants: tuple[int, ...]
    letters: Mapping[int, bytes]


@dataclass(frozen=True, kw_only=True)
class ConfirmCall:
    """Asks a client to sign a list of survivors.

    Attributes:
        training: Name of the training.
        label: The round.
        survivors: The clients whose uploads have come, with their signatures over the request.
    """

    training: str
    label: Label
    survivors: Mapping[int, bytes]


@dataclass(frozen=True, kw_only=True)
class ConfirmReply:
    """Holds a client's signature: over the request that it answers, or under a list of survivors.

    Attributes:
        signature: The signature.
    """

    signature: bytes


@dataclass(frozen=True, kw_only=True)
class UnmaskCall:
    """Asks a client for its shares of the masks that are left in a sum.

    Attributes:
        training: Name of the training.
        label: The round.
        survivors: The clients whose uploads have come, with their signatures over the request.
        confirmations: Survivors' signatures under the list, where they are needed.
        following: The round to prepare for in the same reply; None after the last.
    """

    training: str
    label: Label
    survivors: Mapping[int, bytes]
    confirmations: Mapping[int, bytes]
    following: Label | None


@dataclass(frozen=True, kw_only=True)
class UnmaskReply:
    """Holds a client's shares, and its preparation for the next round.

    Attributes:
        own_shares: For each survivor that it holds for, a share of its own mask's seed.
        key_shares: For each absent participant that it holds for, a share of its key's seed.
        following: The preparation; None after the last round.
    """

    own_shares: Mapping[int, bytes]
    key_shares: Mapping[int, bytes]
    following: PrepareReply | None


SumCall = KeyCall | PrepareCall | ConfirmCall | UnmaskCall

# The name of every wave that comes in a separate message. Masking goes with a request.
WAVES: Mapping[str, type[Any]] = {
    "key": KeyCall,
    "prepare": PrepareCall,
    "confirm": ConfirmCall,
    "unmask": UnmaskCall,
}


LABEL = make_body_form(Label)
CALL_FORMS: Mapping[type[Any], Mapping[str, Form]] = {
    Label: {"round": NUMBER, "attempt": NUMBER},
    SignedKey: {"client": NUMBER, "identity": BYTES, "public": KEY, "signature": BYTES},
    KeyCall: {"training": NAME, "protocol": TEXT},
    KeyReply: {
        "public": KEY,
        "signature": BYTES,
        # -1 says that the client has prepared for nothing yet.
        "attempt": Form(int, lambda raw: read_number(raw, least=-1)),
    },
    PrepareCall: {
        "training": NAME,
        "label": LABEL,
        "keys": make_mapping_form(make_body_form(SignedKey)),
    },
    PrepareReply: {"mask_public": KEY, "letters": make_mapping_form(LETTER)},
    MaskCall: {
        "label": LABEL,
        "participants": CLIENTS,
        "letters": make_mapping_form(LETTER),
    },
    ConfirmCall: {"training": NAME, "label": LABEL, "survivors": make_mapping_form(BYTES)},
    ConfirmReply: {"signature": BYTES},
    UnmaskCall: {
        "training": NAME,
        "label": LABEL,
        "survivors": make_mapping_form(BYTES),
        "confirmations": make_mapping_form(BYTES),
        "following": make_optional_form(LABEL),
    },
    UnmaskReply: {
        "own_shares": make_mapping_form(SHARE),
        "key_shares": make_mapping_form(SHARE),
        "following": make_optional_form(make_body_form(PrepareReply)),
    },
}
# Forms are registered next to their values, so `sum_forms` has to know none of them.
FORMS.update(CALL_FORMS)


def sum_message(
    call: SumCall, *, node: int, ttl: float, signer: Signer | None = None, run: str = ""
) -> Message:
    """Returns the message that asks a node for its part in a wave.

    Args:
        call: The request.
        node: Flower's id of the node.
        ttl: Seconds after which Flower forgets the message.
        signer: The coordinator's key; None in tests without TLS.
        run: The run on Flower, which is signed too.
    """
    wave = next(name for name, kind in WAVES.items() if kind is type(call))
    body = encode_body(call)
    content = RecordDict({SUMS: make_wave_record(wave, body)})
    # Wave and run are signed with the body, so that no message can be replayed in another place.
    attach_signature(content, sums_statement(wave, body, run), signer)
    return Message(content, node, MessageType.QUERY, ttl=ttl)


def sum_reply(request: Message, reply: Any) -> Message:
    """Returns a client's reply to a wave.

    Args:
        request: The message to reply to.
        reply: The reply.
    """
    wave, _ = read_wave_record(request, {SUMS})
    return Message(RecordDict({SUMS: make_wave_record(wave, encode_body(reply))}), reply_to=request)


def read_sum_reply(message: Message, kind: type[Any], expected: set[str] | None = None) -> Any:
    """Returns the reply in a message.

    Args:
        message: The message.
        kind: The type of the reply.
        expected: Names of all records of the message; by default only that of sums.

    Raises:
        MalformedMessage: It holds no such reply.
    """
    _, body = read_wave_record(message, expected or {SUMS})
    return decode_body(kind, body)

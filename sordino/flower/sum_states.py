"""Reads and writes what a client keeps of secure sums between messages: one file of its folder.

Every message may find the client restarted, so nothing is remembered elsewhere. The file is
replaced whole, and always before what it speaks of leaves the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sordino.federation.store.files import write_whole, writing
from sordino.flower.messages import MalformedMessage
from sordino.flower.sum_forms import (
    BYTES,
    CLIENTS,
    FORMS,
    KEY,
    SHARE,
    TEXT,
    decode_body,
    encode_body,
    make_body_form,
    make_mapping_form,
    make_optional_form,
)
from sordino.flower.sum_messages import LABEL, Label, PrepareReply, UnmaskReply
from sordino.protocol import UserError
from sordino.secure_sums.key_roster import SignedKey
from sordino.secure_sums.members import Masked, MaskRequest, Prepared

FILE = "secure_sums.json"


@dataclass(frozen=True, kw_only=True)
class MaskedRound:
    """Holds what a client keeps of a round whose vector is masked. It is secret.

    Attributes:
        label: The round.
        masked: The request, and the shares that the client holds of others' seeds.
        signature: The client's signature over the request.
        survivors: The survivors that it has given shares for; None as long as it has given none.
        given: The shares that it has given, with what it prepared in the same reply.
    """

    label: Label
    masked: Masked
    signature: bytes
    survivors: tuple[int, ...] | None = None
    given: UnmaskReply | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class SumState:
    """Holds a client's state in the secure sums of a training. It is secret.

    Attributes:
        training: Name of the training.
        protocol: Its protocol, as TOML.
        letter_key: The private key for letters of this training.
        keys: The clients' keys for letters; empty until they were shown.
        label: The last round that the client has prepared for.
        prepared: Its seeds of that round; None once a vector was masked with them.
        preparation: What it has sent of them.
        masked: The last round whose vector was masked.
    """

    training: str
    protocol: str
    # Secrets stay out of the representation, which ends up in logs and tracebacks.
    letter_key: bytes = field(repr=False)
    keys: Mapping[int, SignedKey] = field(default_factory=dict)
    label: Label | None = None
    prepared: Prepared | None = field(default=None, repr=False)
    preparation: PrepareReply | None = field(default=None, repr=False)
    masked: MaskedRound | None = field(default=None, repr=False)

    def is_prepared(self, label: Label) -> bool:
        """Returns whether the client has seeds for a round that have masked no vector yet.

        Args:
            label: The round.
        """
        return self.prepared is not None and self.label == label

    def forget_seeds(self) -> SumState:
        """Returns the state without the seeds of the last preparation, which then mask no more."""
        # The label stays, so that it cannot be prepared for a second time.
        return replace(self, prepared=None, preparation=None)


STATE_FORMS = {
    MaskRequest: {"label": TEXT, "participants": CLIENTS, "request": BYTES},
    Prepared: {
        "label": TEXT,
        "own_seed": SHARE,
        "key_seed": SHARE,
        "own_share": SHARE,
        "key_share": SHARE,
    },
    Masked: {
        "asked": make_body_form(MaskRequest),
        "own_shares": make_mapping_form(SHARE),
        "key_shares": make_mapping_form(SHARE),
    },
    MaskedRound: {
        "label": LABEL,
        "masked": make_body_form(Masked),
        "signature": BYTES,
        "survivors": make_optional_form(CLIENTS),
        "given": make_optional_form(make_body_form(UnmaskReply)),
    },
    SumState: {
        "training": TEXT,
        "protocol": TEXT,
        "letter_key": KEY,
        "keys": make_mapping_form(make_body_form(SignedKey)),
        "label": make_optional_form(LABEL),
        "prepared": make_optional_form(make_body_form(Prepared)),
        "preparation": make_optional_form(make_body_form(PrepareReply)),
        "masked": make_optional_form(make_body_form(MaskedRound)),
    },
}
FORMS.update(STATE_FORMS)


def read_sum_state(folder: Path) -> SumState | None:
    """Returns a client's state.

    Args:
        folder: The client's folder.

    Returns:
        The state; None before the first message of a secure sum.

    Raises:
        UserError: The file is damaged.
    """
    path = folder / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        state: SumState = decode_body(SumState, content)
    except MalformedMessage:
        # Beginning again would lose the key that letters are sealed for. What an older copy does
        # not know of is in the ledger, and is refused by it.
        raise UserError(
            f"{path} is damaged. Put back a copy of it, also an older one; without it this client "
            "answers nothing."
        ) from None
    return state


def write_sum_state(folder: Path, state: SumState) -> None:
    """Writes a client's state: on return it is on disk.

    Args:
        folder: The client's folder, which nobody else can read.
        state: The state.
    """
    path = folder / FILE
    with writing(path):
        write_whole(path, encode_body(state))

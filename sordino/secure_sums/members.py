"""Masks, confirms and unmasks for one client, and refuses what would open more than one sum.

A client's state in a round is a value, so that it can be kept on disk before anything leaves the
client: `Prepared` before its letters, `Masked` before its vector, and the fact that it has answered
before its confirmation or its shares. A state is used once: a client never masks two vectors with
one key, and never answers two lists of survivors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from sordino.secure_sums.key_roster import (
    SIGNATURE,
    Roster,
    SecureSumRefused,
    SignedKey,
    draw_graph,
    refuse_weak_key,
    sign_key,
    verify_keys,
    verify_statement,
)
from sordino.secure_sums.letters import (
    Letter,
    LetterAddress,
    open_letter,
    seal_letter,
    split_seed,
)
from sordino.secure_sums.masks import (
    SEED_BYTES,
    derive_round_key,
    expand_own_mask,
    expand_pair_mask,
)


@dataclass(frozen=True, kw_only=True)
class MaskRequest:
    """Holds what the server asks for in the first wave of a round.

    Attributes:
        label: The round and the attempt.
        participants: The clients whose vectors are to be summed.
        request: A digest of everything else that the server asks, the model and protocol included.
    """

    label: str
    participants: tuple[int, ...]
    request: bytes

    def make_statement(self, roster: Roster) -> bytes:
        """Returns what a participant signs about the request that it has answered.

        Args:
            roster: The training's roster.
        """
        # With the participants: clients that were shown different lists share no context, and
        # cannot be made to unmask each other (docs/theory.md#a19).
        text = f"sordino request {self.label!r} {list(self.participants)} "
        return roster.digest + text.encode() + self.request

    def make_pair_context(self, roster: Roster, pair: tuple[int, int]) -> bytes:
        """Returns what both clients of a pair must have been shown for their masks to cancel.

        Args:
            roster: The training's roster.
            pair: The two clients.
        """
        # Both clients must write the pair in the same way.
        low, high = sorted(pair)
        return f"sordino pair {low} {high} ".encode() + self.make_statement(roster)


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Holds what a client sends to prepare for a round.

    Attributes:
        client: The sender.
        mask_public: Its public key of the round.
        letters: A sealed letter for every neighbour.
    """

    client: int
    mask_public: bytes
    letters: Mapping[int, bytes]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Holds what a client keeps of its preparation. It is secret.

    Attributes:
        label: The round and the attempt.
        own_seed: The seed of its own mask.
        key_seed: The seed of its key of the round.
        own_share: The share of its own mask's seed that it keeps.
        key_share: The share of its key's seed that it keeps.
    """

    label: str
    own_seed: bytes = field(repr=False)
    key_seed: bytes = field(repr=False)
    own_share: bytes = field(repr=False)
    key_share: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Masked:
    """Holds what a client keeps once its masked vector has left. It is secret.

    Attributes:
        asked: The request that it has answered.
        own_shares: Its shares of the own masks of the participants that it holds for.
        key_shares: Its shares of those participants' keys of the round.
    """

    asked: MaskRequest
    own_shares: Mapping[int, bytes] = field(repr=False)
    key_shares: Mapping[int, bytes] = field(repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedVector:
    """Holds what a client sends in the first wave.

    Attributes:
        client: The sender.
        residues: Its vector under masks.
        signature: Its identity's signature over the request that it has answered.
    """

    client: int
    residues: np.ndarray
    signature: bytes


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Holds what a client answers in the second wave: for each participant one share, never two.

    Attributes:
        client: The sender.
        survivors: For each survivor, a share of its own mask's seed.
        absent: For each participant that is absent, a share of its key's seed.
    """

    client: int
    survivors: Mapping[int, bytes]
    absent: Mapping[int, bytes]


class Member:
    """Acts for one client in the secure sums of a training. It holds the client's key for letters.

    What a round needs to remember is returned and passed in again, for the caller to keep.
    """

    def __init__(
        self,
        *,
        roster: Roster,
        client: int,
        identity: EllipticCurvePrivateKey,
        letter_key: X25519PrivateKey | None = None,
    ) -> None:
        """Creates the member, with a fresh key for letters unless one is given.

        Args:
            roster: The training's roster, from the client's agreement.
            client: The client's number.
            identity: Its registered key.
            letter_key: The key for letters of this training, where the client was restarted.
        """
        self.roster = roster
        self.client = client
        self._identity = identity
        self.letter_key = letter_key or X25519PrivateKey.generate()
        self.keys: dict[int, SignedKey] = {}
        self.graph = draw_graph(roster, self.keys)

    @cached_property
    def signed_key(self) -> SignedKey:
        """The client's key for letters under the signature of its identity."""
        return sign_key(self.roster, self.client, self.letter_key, self._identity)

    def meet(self, keys: Iterable[SignedKey]) -> None:
        """Verifies and takes all clients' keys for letters, first ones and newcomers'.

        Args:
            keys: All keys that there are, as the server hands them on.

        Raises:
            SecureSumRefused: A key is not signed by its client's registered identity, or the
                server shows another key for a client than before, or for this client than its own.
        """
        found = verify_keys(self.roster, keys)
        own = self.letter_key.public_key().public_bytes_raw()
        if self.client not in found or found[self.client].public != own:
            raise SecureSumRefused("the server shows another key for this client than its own")
        for client, known in self.keys.items():
            # Letters are sealed for the key that was met first, and the graph is picked by it.
            if client in found and found[client].public != known.public:
                raise SecureSumRefused(f"another key was shown for client {client} before")
        self.remember({**self.keys, **found}.values())

    def remember(self, keys: Iterable[SignedKey]) -> None:
        """Takes keys for letters that were verified before, and kept since.

        Args:
            keys: The keys that `meet` has verified, from the client's own disk.
        """
        self.keys = {key.client: key for key in keys}
        # Who holds shares for whom, among the clients whose keys are known.
        self.graph = draw_graph(self.roster, self.keys)

    def prepare(self, label: str) -> tuple[Prepared, Preparation]:
        """Draws the seeds of a round and shares them out among the client's holders.

        Args:
            label: The round and the attempt.

        Returns:
            What the client keeps, and what it sends.

        Raises:
            SecureSumRefused: Too few of its holders have shown keys.
        """
        if self.client in self.graph.find_thin(self.keys):
            raise SecureSumRefused("too few of the clients that would hold its shares are there")
        holders = list(self.graph.holders[self.client])
        needed = self.graph.needed
        # From the operating system even where a protocol is seeded: masks must never repeat. There
        # are two seeds, since of a survivor the first is opened and of an absent client the second,
        # and the two together would show its vector (docs/theory.md#a19).
        own_seed = os.urandom(SEED_BYTES)
        key_seed = os.urandom(SEED_BYTES)
        own_shares = split_seed(own_seed, needed, holders)
        key_shares = split_seed(key_seed, needed, holders)
        public = derive_round_key(key_seed).public_key().public_bytes_raw()
        letters = {}
        for other in self.graph.find_neighbours(self.client):
            letter = Letter(
                mask_public=public,
                own_share=own_shares.get(other, b""),
                key_share=key_shares.get(other, b""),
            )
            address = self._address(label, sender=self.client, receiver=other)
            letters[other] = seal_letter(letter, address, self.letter_key, self._key_of(other))
        kept = Prepared(
            label=label,
            own_seed=own_seed,
            key_seed=key_seed,
            own_share=own_shares[self.client],
            key_share=key_shares[self.client],
        )
        return kept, Preparation(client=self.client, mask_public=public, letters=letters)

    def mask(
        self,
        vector: np.ndarray,
        prepared: Prepared,
        asked: MaskRequest,
        letters: Mapping[int, bytes],
    ) -> tuple[Masked, MaskedVector]:
        """Hides a vector under the client's own mask and one for each neighbour that takes part.

        Args:
            vector: Residues, uint32 or uint64.
            prepared: What the client kept of its preparation; it must not be used again.
            asked: What the server asks for.
            letters: The letters of its neighbours among the participants.

        Returns:
            What the client keeps, and what it sends.

        Raises:
            SecureSumRefused: The request does not fit the preparation, or a letter does not open.
        """
        if asked.label != prepared.label:
            raise SecureSumRefused(f"prepared for {prepared.label!r}, not for {asked.label!r}")
        participants = self._check_clients("participants", asked.participants, self.keys)
        if vector.dtype not in (np.uint32, np.uint64):
            raise TypeError(f"residues are uint32 or uint64, not {vector.dtype}")
        # The others' keys of the round come out of sealed letters: with keys of its choice the
        # server would know the masks.
        received = self._open_letters(asked.label, participants, letters)
        mine = derive_round_key(prepared.key_seed)
        total = vector + expand_own_mask(prepared.own_seed, len(vector), vector.dtype)
        for other, letter in received.items():
            total += expand_pair_mask(
                mine,
                X25519PublicKey.from_public_bytes(letter.mask_public),
                context=asked.make_pair_context(self.roster, (self.client, other)),
                adds=self.client < other,
                count=len(vector),
                kind=vector.dtype,
            )
        held = {other: one for other, one in received.items() if self._holds_for(other)}
        own_shares = {other: letter.own_share for other, letter in held.items()}
        key_shares = {other: letter.key_share for other, letter in held.items()}
        kept = Masked(
            asked=asked,
            own_shares={**own_shares, self.client: prepared.own_share},
            key_shares={**key_shares, self.client: prepared.key_share},
        )
        # It shows the other participants that this vector was masked for the very same request.
        signature = self._identity.sign(asked.make_statement(self.roster), SIGNATURE)
        return kept, MaskedVector(client=self.client, residues=total, signature=signature)

    def confirm(self, masked: Masked, survivors: Mapping[int, bytes]) -> bytes:
        """Returns the client's signature under a list of survivors. It signs one list a round.

        Args:
            masked: What the client kept when its vector left.
            survivors: The clients whose vectors the server has received, each with its signature
                over the request.

        Raises:
            SecureSumRefused: The list cannot be, or a survivor has answered another request.
        """
        alive = self._check_survivors(masked, survivors)
        statement = _make_list_statement(self.roster, masked.asked, alive)
        return self._identity.sign(statement, SIGNATURE)

    def unmask(
        self,
        masked: Masked,
        survivors: Mapping[int, bytes],
        confirmations: Mapping[int, bytes] | None = None,
    ) -> Shares:
        """Returns the shares that open the sum of the survivors' vectors, and no other sum.

        Args:
            masked: What the client kept when its vector left; it must not be used again.
            survivors: The clients whose vectors the server has received, each with its signature
                over the request.
            confirmations: Survivors' signatures under this very list, where the roster needs them.

        Raises:
            SecureSumRefused: The list cannot be, a survivor has answered another request, or
                too few survivors have confirmed the list.
        """
        alive = self._check_survivors(masked, survivors)
        if self.roster.needs_confirmation:
            self._check_confirmations(masked, alive, confirmations or {})
        held = [client for client in masked.asked.participants if client in masked.own_shares]
        # For each client one kind of share or the other, never both.
        return Shares(
            client=self.client,
            survivors={client: masked.own_shares[client] for client in held if client in alive},
            absent={client: masked.key_shares[client] for client in held if client not in alive},
        )

    def _check_survivors(self, masked: Masked, survivors: Mapping[int, bytes]) -> list[int]:
        """Returns the survivors, all of which have answered the request that this client has."""
        alive = self._check_clients("survivors", survivors, masked.asked.participants)
        statement = masked.asked.make_statement(self.roster)
        # A vector that was masked for another request would leave masks in the sum.
        for client in alive:
            verify_statement(self.keys[client], statement, survivors[client], "request")
        return alive

    def _check_confirmations(
        self, masked: Masked, alive: list[int], confirmations: Mapping[int, bytes]
    ) -> None:
        """Refuses a list of survivors that fewer than the threshold of them have signed."""
        statement = _make_list_statement(self.roster, masked.asked, alive)
        # Signatures of clients that are not on the list do not count towards the threshold.
        signed = sorted(set(confirmations) & set(alive))
        if len(signed) < self.roster.threshold:
            raise SecureSumRefused(
                f"{len(signed)} survivors have confirmed the list of survivors, fewer than the "
                f"threshold, {self.roster.threshold}"
            )
        for client in signed:
            signature = confirmations[client]
            verify_statement(self.keys[client], statement, signature, "list of survivors")

    def _check_clients(self, what: str, clients: Iterable[int], known: Iterable[int]) -> list[int]:
        """Returns clients in ascending order, or refuses them."""
        named = list(clients)
        found = sorted(set(named))
        if len(found) < len(named):
            raise SecureSumRefused(f"the {what} name a client twice")
        strangers = sorted(set(found) - set(known))
        if strangers:
            raise SecureSumRefused(f"the {what} name clients that cannot be there: {strangers}")
        # Otherwise a client would help to open a sum that it has no part in.
        if self.client not in found:
            raise SecureSumRefused(f"client {self.client} is not among the {what}")
        # The price counts on this many contributions in every sum (docs/theory.md#a12).
        if len(found) < self.roster.threshold:
            raise SecureSumRefused(
                f"{len(found)} {what} are fewer than the threshold, {self.roster.threshold}"
            )
        # A client that is cut off from the others could be opened alone (docs/theory.md#a19).
        thin = self.graph.find_thin(found)
        if thin:
            raise SecureSumRefused(
                f"too few of those that hold shares of client {thin[0]} are among the {what}"
            )
        return found

    def _open_letters(
        self, label: str, participants: list[int], letters: Mapping[int, bytes]
    ) -> dict[int, Letter]:
        """Opens the letters of the neighbours that take part; refuses if one is missing."""
        found = {}
        for other in sorted(set(participants) & set(self.graph.find_neighbours(self.client))):
            if other not in letters:
                raise SecureSumRefused(f"there is no letter of client {other}")
            address = self._address(label, sender=other, receiver=self.client)
            letter = open_letter(letters[other], address, self.letter_key, self._key_of(other))
            if self._holds_for(other) != bool(letter.own_share):
                raise SecureSumRefused(f"the letter of client {other} has a share too few or many")
            refuse_weak_key(letter.mask_public, other, "key of the round")
            found[other] = letter
        return found

    def _holds_for(self, other: int) -> bool:
        return self.graph.holds(self.client, other)

    def _key_of(self, other: int) -> X25519PublicKey:
        return X25519PublicKey.from_public_bytes(self.keys[other].public)

    def _address(self, label: str, *, sender: int, receiver: int) -> LetterAddress:
        return LetterAddress(roster=self.roster, label=label, sender=sender, receiver=receiver)


def _make_list_statement(roster: Roster, asked: MaskRequest, survivors: list[int]) -> bytes:
    """Returns what a client signs when it confirms a list of survivors."""
    return f"sordino survivors {survivors} ".encode() + asked.make_statement(roster)

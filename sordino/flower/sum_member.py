"""Plays a client's part in secure sums: it prepares, masks, confirms and unmasks, or refuses.

What a client gives for a round cannot be taken back, so it is decided, written down and only then
sent. Asked again it sends the same; asked for anything else it refuses. Why that is enough is
proved in docs/theory.md#a19.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.flower.client_store import ClientStore
from sordino.flower.sum_ledger import (
    list_answered_sums,
    note_confirmation,
    note_shares,
    refuse_second_list,
    refuse_second_upload,
)
from sordino.flower.sum_messages import (
    ConfirmCall,
    ConfirmReply,
    Label,
    MaskCall,
    PrepareReply,
    UnmaskCall,
    UnmaskReply,
)
from sordino.flower.sum_parties import read_identity
from sordino.flower.sum_states import MaskedRound, SumState, read_sum_state, write_sum_state
from sordino.flower.upload_requests import Request
from sordino.protocol import Protocol, UserError, loads_kept
from sordino.secure_sums.key_roster import Roster, SecureSumRefused
from sordino.secure_sums.members import Masked, MaskRequest, Member

Result = TypeVar("Result")


class SumMember:
    """Acts for a client in the secure sums of a training, from its folder, which must be held."""

    def __init__(self, store: ClientStore, state: SumState, protocol: Protocol) -> None:
        """Restores the state in the client's folder.

        Args:
            store: The client's folder.
            state: The client's state.
            protocol: The protocol of the training.

        Raises:
            UserError: The agreement names no key, or not those of the other clients.
        """
        secure = protocol.release.secure_sum
        agreement = store.agreement
        if secure is None or agreement.key is None or agreement.clients is None:
            raise UserError("the agreement is not one for secure sums.")
        self.store = store
        self.state = state
        self.secure = secure
        roster = Roster(
            training=state.training,
            fingerprints=tuple(agreement.clients),
            threshold=secure.threshold,
            colluders=secure.colluders,
        )
        self.member = Member(
            roster=roster,
            client=agreement.client,
            identity=read_identity(Path(agreement.key)),
            letter_key=X25519PrivateKey.from_private_bytes(state.letter_key),
        )
        # They were checked before they were written.
        self.member.remember(state.keys.values())

    def keep(self, state: SumState) -> None:
        """Writes a new state to the folder.

        Args:
            state: The state.
        """
        write_sum_state(self.store.folder, state)
        self.state = state

    def prepare(self, label: Label) -> PrepareReply:
        """Draws seeds for a round, or finds those that were drawn for it.

        Args:
            label: The round.

        Returns:
            The part of them that is sent. The seeds are on disk by then.

        Raises:
            SecureSumRefused: The round is an earlier one, or its seeds have been used.
        """
        if not self.state.keys:
            raise SecureSumRefused("the other clients' keys for letters were not shown yet")
        # The reply was lost: the same letters again, so that a label has one pair of seeds.
        if label == self.state.label and self.state.preparation is not None:
            return self.state.preparation
        # Signatures name labels: none may be used for two requests.
        last = self._find_last_label()
        if last is not None and label.order <= last.order:
            raise SecureSumRefused(f"{label} does not come after {last}, which was prepared for")
        # Who will take part in the round is not known yet, so all that hold for it get shares.
        kept, sent = self.member.prepare(str(label))
        reply = PrepareReply(mask_public=sent.mask_public, letters=sent.letters)
        # Seeds are on disk before their shares leave: masks of other seeds could not be removed.
        self.keep(replace(self.state, label=label, prepared=kept, preparation=reply))
        return reply

    def _find_last_label(self) -> Label | None:
        """Returns the last round that the client has prepared for, by its state and its ledger."""
        # An old copy of the state's file would not know of the last rounds; the ledger does.
        known = list_answered_sums(self.store)
        if self.state.label is not None:
            known.append(self.state.label)
        return max(known, key=lambda label: label.order, default=None)

    def mask(
        self, vector: np.ndarray, call: MaskCall, request: Request
    ) -> tuple[np.ndarray, MaskedRound]:
        """Hides a vector for a request. Nothing is written.

        Args:
            vector: Integers, or residues.
            call: How it is to be masked.
            request: The request.

        Returns:
            The masked residues, and what the client must keep before they leave.

        Raises:
            SecureSumRefused: The client has not prepared for this, or an upload has left in it, or
                a letter does not open.
        """
        refuse_second_upload(self.store, call.label)
        prepared = self.state.prepared
        if prepared is None or self.state.label != call.label:
            raise SecureSumRefused(f"this client has not prepared for {call.label}")
        asked = MaskRequest(
            label=str(call.label),
            participants=call.participants,
            # In the context of every mask: clients that were asked different things do not cancel.
            request=request.common_digest,
        )
        residues = to_residues(vector, self.secure.bits)
        masked, sent = self.member.mask(residues, prepared, asked, call.letters)
        kept = MaskedRound(label=call.label, masked=masked, signature=sent.signature)
        return sent.residues, kept

    def find_masked(self, label: Label) -> MaskedRound:
        """Returns what the client keeps of a round whose vector has left.

        Args:
            label: The round.

        Raises:
            SecureSumRefused: It is not the last such round.
        """
        masked = self.state.masked
        if masked is None or masked.label != label or self.state.is_prepared(label):
            raise SecureSumRefused(f"this client has no upload in {label} to be unmasked")
        return masked

    def confirm(self, call: ConfirmCall) -> ConfirmReply:
        """Signs a list of survivors: one list in a round, in the ledger before it is signed.

        Args:
            call: The list.

        Raises:
            SecureSumRefused: Another list was signed, or the list cannot be.
        """
        masked = self.find_masked(call.label)
        alive = tuple(sorted(call.survivors))
        signature = self.member.confirm(masked.masked, call.survivors)
        # Nothing has left so far: a second list is refused here.
        note_confirmation(self.store, call.label, alive)
        return ConfirmReply(signature=signature)

    def unmask(self, call: UnmaskCall) -> UnmaskReply:
        """Gives shares for one list of survivors: noted in the ledger and kept, then given.

        Args:
            call: The list, and the round to prepare for.

        Raises:
            SecureSumRefused: Shares were given for another list, or the list cannot be.
        """
        masked = self.find_masked(call.label)
        alive = tuple(sorted(call.survivors))
        refuse_second_list(self.store, call.label, alive)
        # The reply was lost: the same shares again tell nothing new.
        if masked.given is not None:
            return masked.given
        shares = self.member.unmask(masked.masked, call.survivors, call.confirmations)
        # Noted before anything else changes: from here on no other list gets a share.
        note_shares(self.store, call.label, self.secure.threshold, alive)
        # Preparing in the same reply saves a wave of messages in every round.
        following = None
        if call.following is not None:
            following = self.prepare(call.following)
        given = UnmaskReply(
            own_shares=shares.survivors, key_shares=shares.absent, following=following
        )
        # The shares that are not given are forgotten: nobody can ever ask for them.
        emptied = Masked(asked=masked.masked.asked, own_shares={}, key_shares={})
        done = replace(masked, masked=emptied, survivors=alive, given=given)
        self.keep(replace(self.state, masked=done))
        return given


def to_residues(vector: np.ndarray, bits: int) -> np.ndarray:
    """Returns integers modulo the range of the residues that are summed.

    Args:
        vector: Integers of any sign.
        bits: The residues are modulo 2^bits.

    Raises:
        UserError: They are not integers.

    Example:
        >>> to_residues(np.array([-1, 2]), 32).tolist()
        [4294967295, 2]
    """
    if vector.dtype.kind not in "iu":
        raise UserError(f"secure sums are of integers, and the upload has {vector.dtype} numbers.")
    # Both conversions are modulo the range of the type, as C has it.
    return vector.astype(np.int64).astype(np.dtype(f"uint{bits}"))


def act_as_member(
    store: ClientStore, training: str, label: Label, act: Callable[[SumMember], Result]
) -> Result:
    """Calls a function with the client as a member of a training's secure sums.

    Args:
        store: The client's folder, which must be held.
        training: Name of the training that is asked about.
        label: The round, for the ledger.
        act: The function.

    Returns:
        The result of the function.

    Raises:
        RequestRefused: The client has no key in that training, or refuses the request.
    """
    member = find_member(store, training, label)
    try:
        return act(member)
    except SecureSumRefused as refusal:
        raise store.refuse(label.round, str(refusal)) from None


def find_member(store: ClientStore, training: str, label: Label) -> SumMember:
    """Returns the client as a member of a training's secure sums.

    Args:
        store: The client's folder, which must be held.
        training: Name of the training that is asked about.
        label: The round, for the ledger.

    Raises:
        RequestRefused: The client has no key in that training.
    """
    state = read_sum_state(store.folder)
    if state is None or state.training != training:
        raise store.refuse(
            label.round, "this client has no key for letters in the training that is asked about"
        )
    return SumMember(store, state, loads_kept(state.protocol))

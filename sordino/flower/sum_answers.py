"""Answers the coordinator's waves of secure sums, each by the client's own folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.flower.admission import judge_training
from sordino.flower.client_store import ClientStore
from sordino.flower.messages import MalformedMessage
from sordino.flower.sum_forms import decode_body
from sordino.flower.sum_ledger import note_key, refuse_second_key
from sordino.flower.sum_member import SumMember, act_as_member
from sordino.flower.sum_messages import (
    WAVES,
    ConfirmCall,
    ConfirmReply,
    KeyCall,
    KeyReply,
    PrepareCall,
    PrepareReply,
    UnmaskCall,
    UnmaskReply,
)
from sordino.flower.sum_states import SumState, read_sum_state, write_sum_state
from sordino.flower.upload_requests import OTHER_TRAINING
from sordino.protocol import loads_kept
from sordino.secure_sums.key_roster import SecureSumRefused


def answer_sum_call(store: ClientStore, wave: str, body: bytes) -> Any:
    """Answers a wave of a secure sum.

    Args:
        store: The client's folder, which must be held.
        wave: Name of the wave.
        body: What the coordinator asks.

    Returns:
        The reply.

    Raises:
        RequestRefused: The reason is in the ledger by then, and nothing else has changed.
    """
    # The name came over the network: only names in the table lead to code.
    kind = WAVES.get(wave)
    if kind is None:
        # Cut short: refusals go to the ledger, and a long name would fill the disk.
        raise store.refuse(0, f"a wave {wave[:20]!r} of a secure sum is none that it answers")
    try:
        call = decode_body(kind, body)
    except MalformedMessage as error:
        raise store.refuse(0, f"a request was not understood: {error}") from None
    return ANSWERS[kind](store, call)


def give_key(store: ClientStore, call: KeyCall) -> KeyReply:
    """Answers with the client's key for letters, which is fresh for every training.

    Args:
        store: The client's folder, which must be held.
        call: The training, with its protocol.

    Raises:
        RequestRefused: The training is not the agreed one, or another key was given in it.
    """
    accepted = judge_training(store, call.training, call.protocol)
    if accepted.training != call.training:
        raise store.refuse(0, OTHER_TRAINING)
    protocol = loads_kept(accepted.protocol)
    if accepted.protocol != call.protocol:
        raise store.refuse(0, "the protocol is not the one that this training began with")
    if protocol.release.secure_sum is None:
        raise store.refuse(0, "the agreed protocol has no secure aggregation")
    state = read_sum_state(store.folder)
    if state is None and store.rounds_paid:
        # What was given before could be asked for again.
        raise store.refuse(0, "what it kept of the secure sums of this training is gone")
    # A fresh key for another training: letters of an earlier one must not open in it.
    if state is None or (state.training, state.protocol) != (call.training, call.protocol):
        try:
            refuse_second_key(store, call.training)
        except SecureSumRefused as refusal:
            raise store.refuse(0, str(refusal)) from None
        key = X25519PrivateKey.generate().private_bytes_raw()
        state = SumState(training=call.training, protocol=call.protocol, letter_key=key)
        # On disk before its public half leaves: a client that restarts must open the same letters.
        write_sum_state(store.folder, state)
    note_key(store, call.training)
    signed = SumMember(store, state, protocol).member.signed_key
    # A coordinator that restarted learns here which labels are used up.
    attempt = -1
    if state.label is not None:
        attempt = state.label.attempt
    return KeyReply(public=signed.public, signature=signed.signature, attempt=attempt)


def prepare_round(store: ClientStore, call: PrepareCall) -> PrepareReply:
    """Answers with what the client prepares for a round.

    Args:
        store: The client's folder, which must be held.
        call: The round, and the others' keys where the client has not seen them.

    Raises:
        RequestRefused: A key is not genuine, or the round is an earlier one.
    """

    def prepare(member: SumMember) -> PrepareReply:
        if call.keys:
            # Checked first and written second: keys on disk count as checked from then on.
            member.member.meet(call.keys.values())
            member.keep(replace(member.state, keys=member.member.keys))
        return member.prepare(call.label)

    return act_as_member(store, call.training, call.label, prepare)


def confirm_survivors(store: ClientStore, call: ConfirmCall) -> ConfirmReply:
    """Answers with the client's signature under a list of survivors.

    Args:
        store: The client's folder, which must be held.
        call: The list.

    Raises:
        RequestRefused: The list cannot be, or another one was signed.
    """
    return act_as_member(store, call.training, call.label, lambda member: member.confirm(call))


def unmask_round(store: ClientStore, call: UnmaskCall) -> UnmaskReply:
    """Answers with the client's shares, for one list of survivors.

    Args:
        store: The client's folder, which must be held.
        call: The list, and the round to prepare for.

    Raises:
        RequestRefused: The list cannot be, or shares were given for another one.
    """
    return act_as_member(store, call.training, call.label, lambda member: member.unmask(call))


ANSWERS: Mapping[type[Any], Callable[[ClientStore, Any], Any]] = {
    KeyCall: give_key,
    PrepareCall: prepare_round,
    ConfirmCall: confirm_survivors,
    UnmaskCall: unmask_round,
}

"""Masks uploads: which requests for one are answered, and what is kept before it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sordino.flower.client_store import ClientStore
from sordino.flower.kept_answers import Answer
from sordino.flower.messages import MalformedMessage
from sordino.flower.sum_forms import decode_body
from sordino.flower.sum_member import SumMember, act_as_member
from sordino.flower.sum_messages import ConfirmReply, MaskCall
from sordino.flower.sum_states import read_sum_state
from sordino.flower.upload_requests import Request
from sordino.protocol import Protocol
from sordino.secure_sums.key_roster import SecureSumRefused

# A vector without coordinates, to try whether a request can be answered before it is charged.
NO_COORDINATES = np.zeros(0, np.int64)


def read_mask_call(store: ClientStore, request: Request, protocol: Protocol) -> MaskCall | None:
    """Returns how an upload is to be masked; None where it is agreed to be sent open.

    Args:
        store: The client's folder, which must be held.
        request: The request.
        protocol: The protocol of the training.

    Raises:
        RequestRefused: It is to be sent open and must not be, or the other way around.
    """
    secure = protocol.release.secure_sum is not None
    # A server that leaves the masks out would see an upload under its own client's noise only, and
    # what was agreed to is the price of a sum (docs/theory.md#a12).
    if secure != bool(request.sums):
        wanted = "under masks" if secure else "open"
        raise store.refuse(
            request.round, f"uploads are sent {wanted}, as agreed, and it was asked otherwise"
        )
    if not secure:
        return None
    try:
        call: MaskCall = decode_body(MaskCall, request.sums)
    except MalformedMessage as error:
        raise store.refuse(request.round, f"a request was not understood: {error}") from None
    # The ledger charges the round of the request, so the masks must be of that round.
    if call.label.round != request.round:
        raise store.refuse(
            request.round, f"masks of {call.label} were requested in round {request.round}"
        )
    return call


def refuse_unmaskable(store: ClientStore, request: Request, call: MaskCall) -> None:
    """Refuses a request whose upload could not be masked, before anything is charged.

    Args:
        store: The client's folder, which must be held.
        request: The request.
        call: How its upload is to be masked.

    Raises:
        RequestRefused: The client has not prepared, or a letter or the participants are wrong.
    """

    def try_mask(member: SumMember) -> None:
        # The threshold is the protocol's, and the roster of the keys was made with it.
        if request.protocol != member.state.protocol:
            raise SecureSumRefused("the protocol is not the one that keys were exchanged for")
        # Everything but the vector: participants, letters, keys and the request are as they will
        # be.
        member.mask(NO_COORDINATES, call, request)

    act_as_member(store, request.training, call.label, try_mask)


def is_fresh_attempt(store: ClientStore, request: Request, call: MaskCall) -> bool:
    """Returns whether a request is for a try at a round's sum in which nothing was sent yet.

    Args:
        store: The client's folder, which must be held.
        request: The request.
        call: How its upload is to be masked.
    """
    state = read_sum_state(store.folder)
    if state is None or state.training != request.training:
        return False
    # Seeds mask one vector: without unused ones there is nothing new to send.
    if not state.is_prepared(call.label):
        return False
    # A crash may have come after the masked vector was kept and before its seeds were forgotten.
    masked = state.masked
    kept = request.round in store.answers.rounds
    return not (masked is not None and masked.label == call.label and kept)


def keep_masked_upload(
    store: ClientStore,
    request: Request,
    run: str,
    vector: np.ndarray,
    kept: Mapping[str, np.ndarray],
) -> Answer:
    """Masks an upload and keeps it, before it is sent.

    Args:
        store: The client's folder, which must be held.
        request: The request, which was admitted.
        run: The run on Flower.
        vector: The upload.
        kept: What the client keeps after it.

    Returns:
        The answer that is kept, under masks: the open upload is written nowhere.

    Raises:
        RequestRefused: The reason is in the ledger by then.
    """
    call: MaskCall = decode_body(MaskCall, request.sums)

    def mask(member: SumMember) -> Answer:
        residues, masked = member.mask(vector, call, request)
        # The shares first: a vector without them could never be unmasked. Until the answer is kept
        # as well nothing counts, and the same seeds mask the next upload that is computed.
        member.keep(replace(member.state, masked=masked))
        return store.keep_answer(request, run, residues, kept, call.label.attempt)

    return act_as_member(store, request.training, call.label, mask)


def find_mask_signature(store: ClientStore, request: Request) -> ConfirmReply:
    """Returns the client's signature over a request whose masked upload is about to be sent.

    From here on its seeds can mask nothing else.

    Args:
        store: The client's folder, which must be held.
        request: The request.

    Raises:
        RequestRefused: A later round was masked since.
    """
    call: MaskCall = decode_body(MaskCall, request.sums)

    def find_signature(member: SumMember) -> ConfirmReply:
        if member.state.is_prepared(call.label):
            # The masked vector is on disk by now. A second vector under the same masks would show
            # the difference of the two.
            member.keep(member.state.forget_seeds())
        return ConfirmReply(signature=member.find_masked(call.label).signature)

    return act_as_member(store, request.training, call.label, find_signature)

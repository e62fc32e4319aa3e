"""Decides which requests a client answers: whole, before anything is bound or charged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sordino.flower.agreement import describe_weakening, list_budgets, state_model_size
from sordino.flower.client_store import Accepted, ClientStore
from sordino.flower.kept_answers import Answer
from sordino.flower.masked_uploads import is_fresh_attempt, read_mask_call, refuse_unmaskable
from sordino.flower.upload_requests import HELPER, MODEL_TYPE, OTHER_TRAINING, Request
from sordino.privacy.guarantee import format_delta
from sordino.protocol import (
    Attention,
    Identity,
    Interpolate,
    LocalRule,
    NoPersonalization,
    Personalization,
    Protocol,
    Scaffold,
    UserError,
    loads_kept,
)
from sordino.protocol.registry import Registry
from sordino.protocol.version import own_version

# Leading shapes of the models that a server sends: () for a vector, (2,) for a table of two rows.
LeadingShapes = tuple[tuple[int, ...], ...]

MODEL_SHAPES: Registry[Callable[[Protocol], LeadingShapes]] = Registry(
    "leading shape of a model that is sent", "local rule", LocalRule
)
HELPER_SHAPES: Registry[LeadingShapes] = Registry(
    "leading shape of a helper that is sent", "personalization", Personalization
)
HELPER_SHAPES.register(NoPersonalization, Identity, Interpolate)(())
HELPER_SHAPES.register(Attention)(((),))


@MODEL_SHAPES.register_others
def _model_alone(protocol: Protocol) -> LeadingShapes:
    if protocol.penalty:
        # A leader's model may come in a second row.
        return ((), (2,))
    return ((),)


@MODEL_SHAPES.register(Scaffold)
def _model_and_correction(protocol: Protocol) -> LeadingShapes:
    return ((2,),)


def admit_request(store: ClientStore, request: Request, run: str) -> Answer | None:
    """Decides on a request: charges it, finds the upload that was sent before, or refuses.

    Args:
        store: The client's folder, which must be held.
        request: What the server asks of this client in a round.
        run: The run on Flower in which it is made.

    Returns:
        The upload that was computed before; None if the upload is to be computed now.

    Raises:
        RequestRefused: The reason is in the ledger by then.
    """
    accepted = _accept_request(store, request)
    protocol = loads_kept(accepted.protocol)
    call = read_mask_call(store, request, protocol)
    # A sum that could not be opened may be tried again: with fresh noise, and charged again.
    if call is None or not is_fresh_attempt(store, request, call):
        earlier = _find_earlier_answer(store, request, run)
        if earlier is not None:
            return earlier
    _refuse_unfit_models(store, request, protocol)
    if call is not None:
        refuse_unmaskable(store, request, call)
    # A crash may have come between the charge and the upload: it is not charged again.
    if not store.has_open_charge(request.round):
        charge_training(store, request.round, accepted)
    return None


def charge_training(store: ClientStore, round_index: int, accepted: Accepted) -> None:
    """Binds the agreement to a training and charges a round of it.

    Args:
        store: The client's folder, which must be held.
        round_index: Number of the round, from 0.
        accepted: The training, with the number of rounds that the client's budget allows.

    Raises:
        RequestRefused: The budget is spent. Nothing is bound then.
    """
    # Counted from the ledger and not from memory: a restart forgets nothing.
    paid = store.rounds_paid
    cap = accepted.cap
    repeated = _list_repeated([*paid, round_index])
    if repeated:
        # The cap is for different rounds, and the same one again may cost more than a later one.
        cap = count_affordable_rounds(store, loads_kept(accepted.protocol), repeated)
    if len(paid) >= cap:
        raise store.refuse(round_index, _describe_spent_budget(store, cap))
    # Bound before it is charged: a charge that belongs to no training could not be explained.
    store.write_accepted(accepted)
    store.charge_round(round_index)


def _describe_spent_budget(store: ClientStore, cap: int) -> str:
    limit = "agreement"
    if store.agreement.epsilon is not None:
        epsilon = store.agreement.epsilon
        limit = f"budget (epsilon = {epsilon} at delta = {format_delta(store.agreement.delta)})"
    if cap == 0:
        return f"its {limit} allows 0 rounds of this"
    return f"its {limit} allows {cap} rounds, and they are spent"


def judge_training(
    store: ClientStore, training: str, protocol: str, round_index: int = 0
) -> Accepted:
    """Decides whether a training is one that was agreed to. Nothing is written but refusals.

    Args:
        store: The client's folder, which must be held.
        training: Name of the training.
        protocol: Its protocol, as TOML.
        round_index: The round that is requested, for the ledger.

    Returns:
        The training that the agreement is bound to already, unless its terms have changed since;
        otherwise this one.

    Raises:
        RequestRefused: The protocol protects less than was agreed.
    """
    known = store.read_accepted()
    # Judged once: a server cannot change the protocol from round to round.
    if known is not None and known.terms == store.terms:
        return known
    if known is not None:
        # The client has changed its terms: the training continues under the new ones, or not at
        # all.
        training = known.training
        protocol = known.protocol
    try:
        requested = loads_kept(protocol)
    except UserError as error:
        raise store.refuse(round_index, f"its protocol cannot be read: {error}") from None
    # The request's protocol is held against the agreed one, whatever the server says about it.
    weakening = describe_weakening(store.agreed, requested, store.agreement)
    if weakening is not None:
        raise store.refuse(round_index, weakening)
    if not requested.noise.secure and not store.agreement.seeded:
        raise store.refuse(
            round_index,
            "noise.secure = False was requested: anyone who knows the seed could subtract the "
            "noise",
        )
    cap = count_affordable_rounds(store, requested)
    return Accepted(training=training, protocol=protocol, terms=store.terms, cap=cap)


def _list_repeated(rounds: Sequence[int]) -> tuple[int, ...]:
    """Returns rounds once for each time they are repeated in a list."""
    return tuple(one for place, one in enumerate(rounds) if one in rounds[:place])


def count_affordable_rounds(
    store: ClientStore, protocol: Protocol, repeated: tuple[int, ...] = ()
) -> int:
    """Returns how many rounds of a protocol the client's budgets allow, against the server.

    Args:
        store: The client's folder.
        protocol: The federation that the machines train.
        repeated: Rounds that are charged more than once, which count among them.
    """
    protocol = state_model_size(protocol, store.agreement)
    budgets = list_budgets(store.agreement, protocol)
    if not budgets:
        # Without a limit, what was agreed to is as many uploads as there are rounds.
        return protocol.rounds
    # It takes a while to load, and is asked once in a training.
    from sordino.privacy.participation_caps import find_capped_rounds

    records = store.agreement.records
    return min(find_capped_rounds(protocol, budget, records, repeated) for budget in budgets)


def _accept_request(store: ClientStore, request: Request) -> Accepted:
    """Returns the training that is paid for, if the request belongs to it."""
    agreement = store.agreement
    if request.client != agreement.client:
        raise store.refuse(
            request.round,
            f"client {request.client} was requested, and this is client {agreement.client}",
        )
    # Another version may price or draw differently from the one that was looked at.
    if agreement.version not in (None, own_version()):
        raise store.refuse(
            request.round,
            f"this machine runs Sordino {own_version()}, and the agreement was made with "
            f"{agreement.version}: its operator must look at the protocol again",
        )
    known = judge_training(store, request.training, request.protocol, request.round)
    if request.training != known.training:
        raise store.refuse(request.round, OTHER_TRAINING)
    # Compared as text: an equal meaning in other words is not worth the risk of a mistake.
    if request.protocol != known.protocol:
        change = _describe_change(store, request.protocol, known.protocol)
        raise store.refuse(request.round, f"the protocol was changed: {change}")
    if request.round >= loads_kept(known.protocol).rounds:
        raise store.refuse(request.round, f"round {request.round} is past the last one")
    return known


def _describe_change(store: ClientStore, requested: str, accepted: str) -> str:
    """Returns how a protocol differs from the one that its training began with."""
    try:
        weakening = describe_weakening(loads_kept(accepted), loads_kept(requested), store.agreement)
    except UserError:
        weakening = None
    return weakening or "it is not the one that this training began with"


def _find_earlier_answer(store: ClientStore, request: Request, run: str) -> Answer | None:
    """Returns the upload that was computed for this very request, if there is one.

    A server that lost an upload gets the same bytes again. Within one run on Flower it must raise
    the number of attempts; every other second request for a round is refused.
    """
    if request.round in store.answers.rounds:
        return _repeat_answer(store, request, run)
    digests = store.upload_digests
    paid = store.rounds_paid
    last = max(paid, default=-1)
    # Rounds only go forward: an earlier round without an upload was skipped and stays so.
    if request.round >= last and request.round not in digests:
        return None
    reason = f"is over: round {last} was answered already"
    if request.round in paid:
        reason = "was answered already, and what was sent is no longer kept"
    raise store.refuse(request.round, f"round {request.round} {reason}")


def _repeat_answer(store: ClientStore, request: Request, run: str) -> Answer:
    """Returns a kept upload if the request may have it again; refuses otherwise."""
    answer = store.answers.read(request.round)
    noted = store.upload_digests.get(request.round)
    if noted is None:
        # A crash came between keeping the upload and noting its digest.
        store.note_answer(answer)
    elif noted != answer.digest:
        raise store.refuse(
            request.round, f"what is kept of round {request.round} is not what was sent"
        )
    # A repetition is for a resumed run or a lost reply, never for a second answer in the same
    # attempt.
    again = answer.run != run or request.attempt > answer.attempt
    if answer.request == request.digest and again:
        return store.renew_answer(answer, run, request.attempt)
    raise store.refuse(request.round, f"round {request.round} was answered already")


def _refuse_unfit_models(store: ClientStore, request: Request, protocol: Protocol) -> None:
    """Refuses models that cannot be trained on, before anything is bound or charged."""
    size = store.agreement.parameters
    for name, array in request.arrays.items():
        if not _fits_agreement(array, size, list_leading_shapes(protocol, name)):
            wanted = ""
            if size is not None:
                wanted = f"{size} "
            raise store.refuse(
                request.round,
                f"a {name} of {array.dtype} numbers of shape {array.shape} was sent; expected "
                f"are {wanted}finite {MODEL_TYPE} numbers",
            )
    # It brings torch, as the work will.
    from sordino.flower.local_work import refuse_coarse_models

    received = list(request.arrays.values())
    records = store.agreement.records or 1
    # Too large a model would hide clipped steps in its rounding, and the noise is priced for
    # clipped ones.
    try:
        refuse_coarse_models(protocol, request.round, records, received)
    except UserError as error:
        raise store.refuse(request.round, str(error)) from None


def _fits_agreement(array: np.ndarray[Any, Any], size: int | None, leading: LeadingShapes) -> bool:
    """Returns whether a model has the agreed size, one of the leading shapes, and is finite."""
    if array.ndim == 0 or array.size == 0 or size not in (None, array.shape[-1]):
        return False
    if array.dtype != MODEL_TYPE or array.shape[:-1] not in leading:
        return False
    return bool(np.isfinite(array).all())


def list_leading_shapes(protocol: Protocol, name: str) -> LeadingShapes:
    """Returns the shapes, without the last axis of weights, of an array that a server may send.

    Args:
        protocol: The federation that the machines train.
        name: Name of the array in a request.
    """
    if name == HELPER:
        return HELPER_SHAPES.of(protocol.personalization)
    if protocol.release.adaptive is not None:
        # The clip stands in every place of a second entry.
        return ((2,),)
    return MODEL_SHAPES.of(protocol.local)(protocol)

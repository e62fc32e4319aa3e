"""What one upload can reveal, round by round.

It says how far an upload moves when the unit is replaced, and how a round moves two models apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.privacy import sensitivity
from sordino.privacy.amplification import contraction
from sordino.privacy.amplification.personal_state import carries_noiseless_state, find_upload_shifts
from sordino.privacy.integer_noise import PricedNoise, price_noise
from sordino.protocol import (
    Bezier,
    ClippedGlm,
    DpSgd,
    FedAvg,
    FedProx,
    Protocol,
    Registry,
    Scaffold,
    UploadRule,
)
from sordino.protocol.rule_kinds import BEZIER_REACH


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """How a round moves two neighbouring global models apart: d <- stretch d + shift.

    Attributes:
        stretch: The factor by which each round stretches the distance at most.
        shift: How far one upload moves in each round, from equal models; the caller multiplies it
            by the client's share in the mean.
        shared: Whether only the attacked client's upload shifts; otherwise every client's may.
        reason: Where stretch and shift come from, for the derivation.
        vouched: What the user vouches for and the two rest on; empty where they hold
            unconditionally.
    """

    stretch: np.ndarray
    shift: np.ndarray
    shared: bool
    reason: str
    vouched: str = ""


@dataclass(frozen=True, kw_only=True)
class UploadPrices:
    """Prices of the uploads of some rounds, one row per round.

    Attributes:
        shifts: How far one upload moves at most in each round, from the same start.
        first_used: How far it moves if the record is first used at step k, a column for every k;
            None where minibatches hide nothing.
        dynamics: The ways to bound how the global model evolves, for the view of the last model.
        reason: Where the shifts come from, for the derivation.
    """

    shifts: np.ndarray
    first_used: np.ndarray | None
    dynamics: tuple[Dynamics, ...]
    reason: str


UPLOAD_PRICES: Registry[Callable[[Protocol, Any, np.ndarray, str, int | None], UploadPrices]] = (
    Registry("price of an upload", "local rule", UploadRule)
)


def distinct_rounds(protocol: Protocol, rounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rounds that differ in price, and how often each occurs.

    With a rate that repeats every round there is only one.

    Args:
        protocol: The federation that is priced.
        rounds: Rounds that are run, with repetitions.
    """
    if len(rounds) == 0:
        return rounds, rounds
    # A clipped update moves by 2V whatever its rates are.
    alike = protocol.local.schedule.repeats or protocol.release.clips_update
    if alike and not carries_noiseless_state(protocol):
        return np.zeros(1, dtype=np.int64), np.array([len(rounds)])
    found, counts = np.unique(rounds, return_counts=True)
    return found, counts


def rates_of_rounds(protocol: Protocol, rounds: np.ndarray) -> np.ndarray:
    """Returns the learning rates of the steps, one row per round.

    Args:
        protocol: The federation that is priced.
        rounds: The numbers of the rounds.
    """
    steps: Any = np.arange(protocol.local.steps)
    at: Any = rounds
    grid = protocol.local.schedule.at(
        round=at[:, None], step=steps[None, :], steps=protocol.local.steps
    )
    return np.broadcast_to(np.asarray(grid, dtype=float), (len(rounds), protocol.local.steps))


def price_uploads(
    protocol: Protocol,
    rounds: np.ndarray,
    unit: str,
    records: int | None,
    weight: float = 1.0,
) -> UploadPrices:
    """Returns the prices of the uploads of some rounds.

    Args:
        protocol: The federation that is priced.
        rounds: The rounds to price.
        unit: The hidden unit, "record" or "client".
        records: The number of records of the smallest client, where known.
        weight: The factor by which the client multiplies its update before rounding it. Prices are
            without it, and the caller multiplies them by it.

    Raises:
        UnknownKind: A local rule whose uploads have no price.
    """
    # By exact type: FedProx is a FedAvg in Python, and another rule to the price.
    prices = UPLOAD_PRICES.of(protocol.local)(protocol, protocol.local, rounds, unit, records)
    if not protocol.release.integers:
        return prices
    return round_prices(prices, price_noise(protocol), weight)


def round_prices(prices: UploadPrices, noise: PricedNoise, weight: float = 1.0) -> UploadPrices:
    """Returns the prices of uploads that are rounded on a grid.

    What rounding does to the evolution of models is not known, so there are no dynamics.

    Args:
        prices: The prices without rounding.
        noise: The noise on an upload, which says how far rounding moves uploads apart.
        weight: The factor by which the client multiplies its update before rounding it.
    """
    # Callers weigh the whole move, and rounding comes after the weight.
    rounding = noise.rounding / weight
    first_used = prices.first_used
    if first_used is not None:
        first_used = first_used + rounding
    return UploadPrices(
        shifts=prices.shifts + rounding,
        first_used=first_used,
        dynamics=(),
        reason=prices.reason + noise.reason,
    )


@UPLOAD_PRICES.register(FedAvg, FedProx, Scaffold, Bezier)
def price_clipped_steps(
    protocol: Protocol, rule: FedAvg, rounds: np.ndarray, unit: str, records: int | None
) -> UploadPrices:
    """Returns prices of clipped steps (docs/theory.md#a8).

    An upload moves by at most 2V sum_k eta_k, less where steps are pulled back.

    Args:
        protocol: The federation that is priced.
        rule: The local rule of the protocol.
        rounds: The rounds to price.
        unit: The hidden unit, "record" or "client".
        records: The number of records of the smallest client, where known.
    """
    # Such clients never forget a record, whatever is clipped: they come first.
    if carries_noiseless_state(protocol):
        return price_kept_models(protocol, rounds)
    if protocol.release.clips_update:
        return price_clipped_updates(protocol, rule, rounds, unit, records)
    # The farthest point of the curve is as if all steps were that much longer (docs/theory.md#b9).
    rates = rates_of_rounds(protocol, rounds) * find_reach(protocol)
    # Until the record is first drawn, both trainings agree (docs/theory.md#a11).
    first = sensitivity.first_used(rates, rule.clip, proximal=rule.pull)
    worst = np.asarray(first[:, 0])
    formula = (
        "2V sum_k eta_k"
        + (f" prod_{{j>k}} |1 - eta_j {describe_pulls(rule)}|" if rule.pull > 0 else "")
        + describe_reach(protocol)
    )
    hidden = unit == "record" and records is not None and rule.batch < records
    return UploadPrices(
        shifts=worst,
        first_used=first if hidden else None,
        dynamics=()
        if gives_single_uploads(protocol)
        else tuple(smooth_dynamics(protocol, rule, rates, worst)),
        reason=f"An upload moves by at most s_t = {formula} (docs/theory.md#a8)",
    )


def describe_pulls(rule: FedAvg) -> str:
    """Returns what pulls the steps of a rule, as a formula.

    Args:
        rule: The local rule.
    """
    if rule.weight_decay == 0:
        return "alpha"
    return "lambda" if rule.pull == rule.weight_decay else "(alpha + lambda)"


def step_move(protocol: Protocol) -> float:
    """Returns how far one example moves the sum of a noisy step's clipped gradients.

    Args:
        protocol: A protocol whose noise is in its steps.
    """
    # A replaced record takes away one clipped gradient and brings another.
    gradients = 2 if protocol.adjacency == "replace-one" else 1
    return gradients * protocol.release.clip


def largest_move(protocol: Protocol) -> float:
    """Returns how far an upload can move at most, in any round; of noisy steps, one step's sum.

    Args:
        protocol: The federation that is priced.
    """
    if protocol.release.in_steps:
        return step_move(protocol)
    # All records of a client, in batches that hide nothing: no unit moves an upload further.
    return float(price_uploads(protocol, np.arange(protocol.rounds), "client", None).shifts.max())


def find_reach(protocol: Protocol) -> float:
    """Returns how many times further than its steps an update may go.

    A round's stretch is bounded by steps that are all that much longer:
    1 + c (prod_k (1 + x_k) - 1) <= prod_k (1 + c x_k) for c >= 1.

    Args:
        protocol: The federation that is priced.
    """
    return BEZIER_REACH if protocol.release.on_curve else 1.0


def describe_reach(protocol: Protocol) -> str:
    """Returns the factor of `find_reach` as the end of a formula; empty where it is 1.

    Args:
        protocol: The federation that is priced.
    """
    if not protocol.release.on_curve:
        return ""
    return " x 121/120, the farthest point of the Bezier curve (udp-fl Eq. 6)"


def gives_single_uploads(protocol: Protocol) -> bool:
    """Returns whether clients are given more than the global model.

    Then there are no dynamics of it alone. SCAFFOLD's corrections are public and are outside the
    clip, so shifts are FedAvg's, but they carry the past; attention's helpers are made of single
    uploads.

    Args:
        protocol: The federation that is priced.
    """
    return protocol.local.corrected or protocol.personalization.of_uploads


def price_clipped_updates(
    protocol: Protocol, rule: FedAvg, rounds: np.ndarray, unit: str, records: int | None
) -> UploadPrices:
    """Returns prices of clipped updates, which move by at most 2V, whatever their steps are.

    From the same start an upload moves as its update does.

    Args:
        protocol: The federation that is priced.
        rule: The local rule of the protocol.
        rounds: The rounds to price.
        unit: The hidden unit, "record" or "client".
        records: The number of records of the smallest client, where known.
    """
    worst = np.full(len(rounds), 2 * rule.clip * find_reach(protocol))
    counted = ""
    if rule.adaptive is not None:
        # Update and count are one vector, of norm V sqrt(1 + w^2) (docs/theory.md#a22).
        worst = worst * rule.adaptive.price_factor
        counted = (
            f", and with its count of 1/2 or -1/2 {rule.adaptive.price_factor:.6g} times as far "
            "(docs/theory.md#a22)"
        )
    hidden = unit == "record" and records is not None and rule.batch < records
    reason = (
        f"clipped updates of two models differ by at most 2V{describe_reach(protocol)}, "
        "whatever the loss"
    )
    return UploadPrices(
        shifts=worst,
        first_used=np.full((len(rounds), rule.steps), worst[0]) if hidden else None,
        # Control variates, or a clip that follows, carry the past beside the model.
        dynamics=()
        if rule.corrected or rule.adaptive is not None
        else (Dynamics(stretch=np.ones(len(rounds)), shift=worst, shared=False, reason=reason),),
        reason=(
            "An upload moves by at most s_t = 2V, the clipped update's "
            f"diameter{describe_reach(protocol)}{counted}"
        ),
    )


def price_kept_models(protocol: Protocol, rounds: np.ndarray) -> UploadPrices:
    """Returns prices of clients that go on from models that no noise has touched.

    What a round changed is still there in later ones.

    Args:
        protocol: The federation that is priced.
        rounds: The rounds to price.
    """
    # A kept model carries all earlier rounds, so those have to be priced too (docs/theory.md#c4).
    every = np.arange(max(protocol.rounds, int(rounds.max()) + 1))
    return price_carried_rounds(protocol, rounds, every)


def price_history(
    protocol: Protocol,
    rounds: np.ndarray,
    unit: str,
    records: int | None,
    weight: float = 1.0,
) -> UploadPrices:
    """Returns the prices of the rounds that a client took part in, where they are all of them.

    A round that it did not take part in has left the model that it keeps as it was.

    Args:
        protocol: The federation that is priced.
        rounds: The rounds, in any order.
        unit: The hidden unit.
        records: Records of the client, where known.
        weight: See `price_uploads`.
    """
    if carries_noiseless_state(protocol):
        return price_carried_rounds(protocol, rounds, np.unique(rounds))
    return price_uploads(protocol, rounds, unit, records, weight)


def price_carried_rounds(
    protocol: Protocol, rounds: np.ndarray, carried: np.ndarray
) -> UploadPrices:
    """Returns prices of some rounds of a client that keeps its model (docs/theory.md#c8).

    Args:
        protocol: The federation that is priced.
        rounds: The rounds to price.
        carried: All rounds that the client may have taken part in, ascending; those are among them.
    """
    shifts = find_upload_shifts(protocol, rates_of_rounds(protocol, carried))
    reason = (
        "An upload moves by at most U_t = a E_t + s_t, where E_(t+1) = max(E_t, U_t): personal "
        "models without noise carry over a share a"
    )
    at = np.searchsorted(carried, rounds)
    return UploadPrices(shifts=shifts[at], first_used=None, dynamics=(), reason=reason)


def smooth_dynamics(
    protocol: Protocol, rule: FedAvg, rates: np.ndarray, worst: np.ndarray
) -> list[Dynamics]:
    """Returns how FedAvg and FedProx move two global models apart.

    There is one way without a vouched smoothness, and one with it.

    Args:
        protocol: The federation that is priced.
        rule: The local rule of the protocol.
        rates: The learning rates of the steps, one row per round.
        worst: How far an upload moves at most in every round.
    """
    pulled = np.abs(1 - rates * rule.pull)
    found = [
        Dynamics(
            stretch=_sum_pulls(rates, pulled, rule.proximal_pull),
            shift=worst,
            shared=False,
            reason="clipped steps of two models differ by at most 2V each, whatever the loss",
        )
    ]
    smoothness = protocol.assumptions.smoothness
    # Scaling onto the l1 ball is not a projection: it may stretch l2 distances by about sqrt(d)
    # (docs/theory.md#a7).
    projects = protocol.release.clip_norm == "l2"
    if smoothness is not None and projects:
        factor = "1 + eta L"
        if rule.pull > rule.proximal_pull:
            factor = f"|1 - eta {describe_pulls(rule)}| + eta L"
        found.append(
            Dynamics(
                stretch=_sum_pulls(rates, pulled + rates * smoothness, rule.proximal_pull),
                shift=worst,
                shared=True,
                reason=(
                    f"minibatch losses are {smoothness:g}-smooth and clipping is a projection: "
                    f"steps stretch by {factor} (docs/theory.md#a7)"
                ),
                vouched=f"every minibatch loss is {smoothness:g}-smooth",
            )
        )
    return found


def _sum_pulls(rates: np.ndarray, factors: np.ndarray, proximal: float) -> np.ndarray:
    """Returns e_K of e <- factor_k e + eta_k alpha, e_0 = 1, for every round (docs/theory.md#a3).

    The pull alpha is to where the round began, in which the two models differ; a pull to a model
    that both have adds nothing (docs/theory.md#a32).
    """
    distance = np.ones(len(rates))
    for step in range(rates.shape[1]):
        distance = factors[:, step] * distance + rates[:, step] * proximal
    return distance


# What clipped-glm trains, by its loss, and the statement that its price rests on.
GLM_NAMES = {
    "logistic": "clipped logistic regression",
    "one-against-rest": "logistic regression of each class against the rest, clipped each",
    "softmax": "softmax regression on bounded features",
}
GLM_STATEMENTS = {"logistic": "a9", "one-against-rest": "a31", "softmax": "a31"}


@UPLOAD_PRICES.register(ClippedGlm)
def price_glm_uploads(
    protocol: Protocol, rule: ClippedGlm, rounds: np.ndarray, unit: str, records: int | None
) -> UploadPrices:
    """Returns prices of clipped logistic regression (docs/theory.md#a9, #a31).

    Each step is c-Lipschitz, c = max(|1 - eta lambda|, |1 - eta (lambda + beta X^2)|), where beta
    is 1/4, or 1/2 for softmax. V is the clip, or sqrt(2) X for softmax, which has none. A
    full-batch step moves by 2 eta V / n when one record is replaced, a batch of B by 2 eta V / B in
    its turn, and by 2 eta V when all records are. Batches are fixed and public, so there is nothing
    random in a round but the noise.

    Args:
        protocol: The federation that is priced.
        rule: The local rule of the protocol.
        rounds: The rounds to price.
        unit: The hidden unit, "record" or "client".
        records: The number of records of the smallest client, where known.
    """
    rates = rates_of_rounds(protocol, rounds)
    curvature = contraction.CURVATURES[rule.loss]
    factors = contraction.step_factors(
        rates,
        decay=rule.weight_decay,
        curvature=curvature,
        feature_norm=rule.feature_norm,
    )
    # Later steps shrink what an earlier one moved (docs/theory.md#a9).
    left = contraction.find_moves(rates, factors, rule.gradient_norm)
    # Without their number, one record may be all that a client has.
    if unit == "client" or records is None:
        shifts = left.sum(axis=1)
        share = "1"
    elif rule.batch is None:
        shifts = contraction.move_full_batch(left, records)
        share = "1/n"
    else:
        shifts = contraction.move_cyclic_batches(left, records // rule.batch, rule.batch)
        share = "1/B in its turn"
    dynamics = Dynamics(
        stretch=np.prod(factors, axis=1),
        shift=shifts,
        shared=True,
        reason=(
            f"a step of {GLM_NAMES[rule.loss]} stretches by c = max(|1 - eta lambda|, "
            f"|1 - eta (lambda + X^2/{1 / curvature:g})|) "
            f"(docs/theory.md#{GLM_STATEMENTS[rule.loss]}, enforced)"
        ),
    )
    bound = "2 sqrt(2) X" if rule.clip is None else "2V"
    reason = (
        f"An upload moves by at most s_t = {bound} sum_k eta_k prod_(j>k) c_j, times {share} "
        f"(docs/theory.md#{GLM_STATEMENTS[rule.loss]}, enforced)"
    )
    return UploadPrices(shifts=shifts, first_used=None, dynamics=(dynamics,), reason=reason)


@UPLOAD_PRICES.register(DpSgd)
def price_lot_uploads(
    protocol: Protocol, rule: DpSgd, rounds: np.ndarray, unit: str, records: int | None
) -> UploadPrices:
    """Returns how far a client's share of a lot moves (docs/theory.md#a13).

    What it costs is in `bounds.lots`: it depends on how the lot is drawn.

    Args:
        protocol: The federation that is priced.
        rule: The local rule of the protocol.
        rounds: The rounds to price.
        unit: The hidden unit, "record" or "client".
        records: The number of records of the smallest client, where known.
    """
    move = move_of_lot(protocol, unit, records)
    return UploadPrices(
        shifts=np.full(len(rounds), move / rule.batch),
        first_used=None,
        # The server steps by itself, with a rate of its schedule.
        dynamics=(),
        reason="A clipped gradient has a norm of at most V, and a lot is divided by B "
        "(docs/theory.md#a13)",
    )


def move_of_lot(protocol: Protocol, unit: str, records: int | None) -> float:
    """Returns how far the sum over a lot moves at most, when the unit changes.

    Args:
        protocol: A protocol with the rule dp-sgd.
        unit: The hidden unit, "record" or "client".
        records: The number of records of the largest client, where known.
    """
    lot = protocol.release.lot
    if lot is None:
        raise TypeError(f"{protocol.local.tag} draws no lots")
    # A record that is replaced takes away one clipped gradient and brings another.
    move = lot.clip * (2.0 if protocol.adjacency == "replace-one" else 1.0)
    if unit == "record":
        return move
    if not lot.varying:
        return lot.batch * move
    # A Poisson lot may hold all records of a client.
    return np.inf if records is None else records * move

"""What one upload can reveal, round by round: how far it moves when the unit is replaced, and how a round moves two models apart."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.privacy import contraction, sensitivity
from sordino.privacy.carried import carried_shifts, carries
from sordino.protocol import (
    Attention,
    Bezier,
    ClippedGlm,
    Constant,
    Cyclic,
    FedAvg,
    FedProx,
    Protocol,
    Scaffold,
)


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """Two neighbouring global models move apart by d <- stretch d + shift in each round; `vouched` says what that rests on.

    The shift is that of one upload; the caller weighs it by the client's share in the mean.
    """

    stretch: np.ndarray
    shift: np.ndarray
    shared: bool  # whether only the attacked client's upload shifts (True), or every client's may (False)
    reason: str
    vouched: str = ""


@dataclass(frozen=True, kw_only=True)
class UploadPrices:
    """Prices of the uploads of some rounds, one row per round.

    Attributes:
        shifts: largest move of one upload from the same start.
        first_used: the same if the record is first used at step k, for every k; None where minibatches hide nothing.
        dynamics: ways to bound how the global model evolves, for who sees the last one only.
        reason: where the shifts come from.
    """

    shifts: np.ndarray
    first_used: np.ndarray | None
    dynamics: tuple[Dynamics, ...]
    reason: str


def distinct_rounds(protocol: Protocol, rounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rounds that differ in price, and how often each occurs: with a rate that repeats every round there is only one."""
    if len(rounds) == 0:
        return rounds, rounds
    alike = isinstance(protocol.local.schedule, (Constant, Cyclic)) or clips_update(protocol)
    if alike and not carries(protocol):
        return np.zeros(1, dtype=np.int64), np.array([len(rounds)])
    found, counts = np.unique(rounds, return_counts=True)
    return found, counts


def nearly_equal(
    shifts: np.ndarray, counts: np.ndarray, *, slack: float = 1e-7
) -> tuple[np.ndarray, np.ndarray]:
    """Thousands of rounds as hundreds: rounds of nearly the same size are all priced as the largest of them, entry by entry.

    Every group raises the sum of the squared shifts by at most `slack` of it, so that only rounds that hardly matter are joined.

    Example:
        >>> rows, counts = nearly_equal(1 / np.arange(1, 10001)[:, None], np.ones(10000, dtype=int))
        >>> len(rows) < 1000, int(counts.sum()), bool(np.dot(counts, rows[:, 0] ** 2) < 1.0001 * np.pi**2 / 6)
        (True, 10000, True)
    """
    order = np.argsort(-shifts.max(axis=1), kind="stable")
    rows, often = shifts[order], counts[order]
    largest = rows.max(axis=1) ** 2
    upto, summed = np.append(0, np.cumsum(often)), np.append(0.0, np.cumsum(often * largest))
    allowed, starts = slack * float(summed[-1]), [0]
    while starts[-1] < len(rows):
        start = starts[-1]

        def raised(end: int, start: int = start) -> float:
            return largest[start] * (upto[end] - upto[start]) - (summed[end] - summed[start])

        starts.append(bisect_right(range(len(rows) + 1), allowed, lo=start + 1, key=raised) - 1)
    return np.maximum.reduceat(rows, starts[:-1], axis=0), np.add.reduceat(often, starts[:-1])


def rates_of(protocol: Protocol, rounds: np.ndarray) -> np.ndarray:
    """The learning rates, one round a row."""
    steps: Any = np.arange(protocol.local.steps)
    at: Any = rounds
    grid = protocol.local.schedule.at(
        round=at[:, None], step=steps[None, :], steps=protocol.local.steps
    )
    return np.broadcast_to(np.asarray(grid, dtype=float), (len(rounds), protocol.local.steps))


def upload_prices(
    protocol: Protocol, rounds: np.ndarray, unit: str, records: int | None
) -> UploadPrices:
    """Prices of the given rounds; `records` is the size of the smallest client, where it is known."""
    if isinstance(protocol.local, ClippedGlm):
        return glm_prices(protocol, protocol.local, rounds, unit, records)
    if not isinstance(protocol.local, FedAvg):
        raise TypeError(f"uploads of {protocol.local.tag} have no noise of their own")
    if carries(protocol):
        return kept_prices(protocol, rounds)
    rule, rates = protocol.local, rates_of(protocol, rounds) * reach(protocol.local)
    if clips_update(protocol):
        return update_prices(rule, rounds, unit, records)
    proximal = rule.proximal if isinstance(rule, FedProx) else 0.0
    first = sensitivity.first_used(rates, rule.clip, proximal=proximal)
    worst = np.asarray(first[:, 0])
    formula = (
        "2V sum_k eta_k" + (" prod_{j>k} |1 - eta_j alpha|" if proximal > 0 else "") + reached(rule)
    )
    hidden = unit == "record" and records is not None and rule.batch < records
    return UploadPrices(
        shifts=worst,
        first_used=first if hidden else None,
        dynamics=()
        if single_uploads(protocol)
        else tuple(smooth_dynamics(protocol, rates, worst, proximal)),
        reason=f"an upload moves by at most s_t = {formula} (THEORY A8)",
    )


def largest_move(protocol: Protocol) -> float:
    """How far an upload can move at most, in any round."""
    return float(upload_prices(protocol, np.arange(protocol.rounds), "client", None).shifts.max())


def reach(rule: FedAvg) -> float:
    """How many times further than its steps an update may go.

    A round's stretch is bounded by steps that are all so much longer: 1 + c (prod_k (1 + x_k) - 1) <= prod_k (1 + c x_k) for c >= 1.
    """
    return sensitivity.BEZIER_REACH if isinstance(rule, Bezier) else 1.0


def reached(rule: FedAvg) -> str:
    """The same, for a formula."""
    return (
        " x 121/120, the farthest point of the Bezier curve (udp-fl Eq. 6)"
        if isinstance(rule, Bezier)
        else ""
    )


def single_uploads(protocol: Protocol) -> bool:
    """Whether clients are given more than the global model: then there are no dynamics of it alone.

    SCAFFOLD's corrections are public and stand outside the clip, so shifts are FedAvg's, but they carry the past; attention's helpers
    are made of single uploads.
    """
    return isinstance(protocol.local, Scaffold) or isinstance(protocol.personalization, Attention)


def clips_update(protocol: Protocol) -> bool:
    """Whether the whole update of a round is clipped, and not its steps."""
    return isinstance(protocol.local, FedAvg) and protocol.local.clip_target == "update"


def update_prices(rule: FedAvg, rounds: np.ndarray, unit: str, records: int | None) -> UploadPrices:
    """A clipped update moves by at most 2V, whatever its steps are; from the same start an upload moves as its update does."""
    worst = np.full(len(rounds), 2 * rule.clip * reach(rule))
    hidden = unit == "record" and records is not None and rule.batch < records
    reason = f"clipped updates of two models differ by at most 2V{reached(rule)}, whatever the loss"
    return UploadPrices(
        shifts=worst,
        first_used=np.full((len(rounds), rule.steps), worst[0]) if hidden else None,
        dynamics=()
        if isinstance(rule, Scaffold)
        else (Dynamics(stretch=np.ones(len(rounds)), shift=worst, shared=False, reason=reason),),
        reason=f"an upload moves by at most s_t = 2V, the clipped update's diameter{reached(rule)}",
    )


def kept_prices(protocol: Protocol, rounds: np.ndarray) -> UploadPrices:
    """Clients that go on from models of their own, on which no noise ever was: what a round changed is still there in later ones."""
    every = np.arange(max(protocol.rounds, int(rounds.max()) + 1))
    shifts = carried_shifts(protocol, rates_of(protocol, every))
    reason = "an upload moves by at most U_t = a E_t + s_t, E_(t+1) = max(E_t, U_t): own models without noise carry over a share a"
    return UploadPrices(shifts=shifts[rounds], first_used=None, dynamics=(), reason=reason)


def smooth_dynamics(
    protocol: Protocol, rates: np.ndarray, worst: np.ndarray, proximal: float
) -> list[Dynamics]:
    """How FedAvg and FedProx move two global models apart, with and without a vouched smoothness."""
    found = [
        Dynamics(
            stretch=_pulled(rates, np.abs(1 - rates * proximal), proximal),
            shift=worst,
            shared=False,
            reason="clipped steps of two models differ by at most 2V each, whatever the loss",
        )
    ]
    smoothness = protocol.assumptions.smoothness
    # Scaling onto the l1 ball is no projection: it may stretch l2 distances by about sqrt(d) (THEORY A9).
    projects = getattr(protocol.local, "clip_norm", "l2") == "l2"
    if smoothness is not None and projects:
        found.append(
            Dynamics(
                stretch=_pulled(rates, np.abs(1 - rates * proximal) + rates * smoothness, proximal),
                shift=worst,
                shared=True,
                reason=f"minibatch losses are {smoothness:g}-smooth and clipping is a projection: steps stretch by 1 + eta L (THEORY A7)",
                vouched=f"every minibatch loss is {smoothness:g}-smooth",
            )
        )
    return found


def _pulled(rates: np.ndarray, factors: np.ndarray, proximal: float) -> np.ndarray:
    """e_K of e <- factor_k e + eta_k alpha, e_0 = 1, for every round at once (THEORY A3)."""
    distance = np.ones(len(rates))
    for step in range(rates.shape[1]):
        distance = factors[:, step] * distance + rates[:, step] * proximal
    return distance


def glm_prices(
    protocol: Protocol, rule: ClippedGlm, rounds: np.ndarray, unit: str, records: int | None
) -> UploadPrices:
    """Clipped logistic regression: each step is c-Lipschitz, c = max(|1 - eta lambda|, |1 - eta (lambda + X^2/4)|) (THEORY A9).

    A full-batch step moves by 2 eta V / n when one record is replaced, a batch of B by 2 eta V / B in its turn, and by 2 eta V when
    all records are. Batches are fixed and public, so there is nothing random in a round but the noise.
    """
    rates = rates_of(protocol, rounds)
    factors = contraction.step_factors(
        rates,
        decay=rule.weight_decay,
        curvature=contraction.LOGISTIC_CURVATURE,
        feature_norm=rule.feature_norm,
    )
    left = contraction.moves(rates, factors, rule.clip)
    if unit == "client" or records is None:
        shifts, share = left.sum(axis=1), "1"
    elif rule.batch is None:
        shifts, share = contraction.full_batch(left, records), "1/n"
    else:
        shifts, share = (
            contraction.cyclic_batches(left, records // rule.batch, rule.batch),
            "1/B in its turn",
        )
    dynamics = Dynamics(
        stretch=np.prod(factors, axis=1),
        shift=shifts,
        shared=True,
        reason="a step of clipped logistic regression stretches by c = max(|1 - eta lambda|, |1 - eta (lambda + X^2/4)|) (A9, enforced)",
    )
    reason = f"an upload moves by at most s_t = 2V sum_k eta_k prod_(j>k) c_j, times {share} (THEORY A9, enforced)"
    return UploadPrices(shifts=shifts, first_used=None, dynamics=(dynamics,), reason=reason)

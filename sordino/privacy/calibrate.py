"""Finds the smallest noise whose certified bound does not pass a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sordino.mechanisms import mechanism_of
from sordino.privacy.bounds.best_bound import choose_guarantee
from sordino.privacy.bounds.providers import find_bounds
from sordino.privacy.bounds.question import has_own_noise, pose_question
from sordino.privacy.guarantee import Guarantee, format_delta
from sordino.privacy.noise_search import make_target, search_noise
from sordino.protocol import Protocol, ProtocolSource, UserError, View, accept_protocol


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The noise that meets a target.

    Attributes:
        parameter: The entry of [noise] that was searched: sigma, scale, step for a staircase,
            multiplier for the rule noisy-sgd.
        value: The value of that entry.
        protocol: The protocol with that noise.
        guarantee: The guarantee with that noise.
        target: The target, such as {"epsilon": 4.0, "delta": 1e-5}.
        achieved: The same quantity as certified with the noise found; never past the target.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=5, batch=32, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(clients=50, rounds=600, local=local, noise=Gaussian(sigma=1.0))
        >>> found = calibrate(protocol, "rounds", epsilon=4.0)
        >>> 3.98 < found.achieved <= 4.0
        True
    """

    parameter: str
    value: float
    protocol: Protocol
    guarantee: Guarantee
    target: dict[str, float]
    achieved: float

    @property
    def sigma(self) -> float:
        """The standard deviation, of Gaussian noise on uploads."""
        # A scale or a step read as a standard deviation would be a wrong amount of noise.
        if self.parameter != "sigma":
            raise UserError(f"this noise has no sigma: its size is noise.{self.parameter}.")
        return self.value

    def __str__(self) -> str:
        wanted = ", ".join(f"{name} = {format_delta(value)}" for name, value in self.target.items())
        # More digits than anybody reads, so that the number can be copied into a file.
        return (
            f"noise.{self.parameter} = {self.value:.6g} meets the target ({wanted}). "
            f"{self.guarantee}"
        )

    def as_document(self) -> dict[str, Any]:
        """Returns the calibration as `calibrate --json` prints it."""
        delta = self.target.get("delta", 1e-5)
        return {
            self.parameter: self.value,
            "achieved": self.achieved,
            "target": self.target,
            **self.guarantee.as_document(delta),
        }


def calibrate(
    protocol: ProtocolSource,
    view: str | View = View.SERVER,
    unit: str = "record",
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    beta: float | None = None,
    at_alpha: float | None = None,
    advantage: float | None = None,
    sizes: Sequence[int] | None = None,
) -> Calibration:
    """Returns the smallest noise that meets one target.

    A target is (epsilon, delta), a trade-off point (beta at alpha), or an advantage. The noise
    meets it over all rounds, also where budgets in [[client]] would end some clients' part in them
    earlier.

    Args:
        protocol: The protocol, the path of its file, or a dictionary of its tables; how much
            noise it has does not matter.
        view: The adversary.
        unit: The hidden unit, "record" or "client".
        epsilon: The largest epsilon allowed, at `delta`.
        delta: The delta that belongs to `epsilon`.
        beta: The least false negative rate that any test may have whose false positive rate is
            `at_alpha`.
        at_alpha: The false positive rate at which `beta` is demanded.
        advantage: The largest advantage over guessing allowed, 1 - FPR - FNR, of any test.
        sizes: The number of records of every client, where known; without it the noise suffices for
            any.

    Raises:
        UserError: Not exactly one target, a target outside its range, or one that no noise meets.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> protocol = Protocol(clients=2, rounds=1, local=local, noise=Gaussian(sigma=1.0))
        >>> found = calibrate(protocol, advantage=0.1)
        >>> round(found.sigma, 2)
        3.98
    """
    target = make_target(epsilon, delta, beta, at_alpha, advantage)
    protocol = accept_protocol(protocol)
    # There is no one size to search: every client's noise follows from its budget.
    if has_own_noise(protocol):
        raise UserError(
            "clients of this protocol have their own noise, found from their budgets in "
            "[[client]]: change those."
        )
    # The search compares bounds by their distance from the target; the guarantee is certified
    # again, so that the number reported is one that `certify` would give.
    found = search_noise(protocol, view, unit, target, sizes)
    question = pose_question(found, view, unit, sizes=sizes)
    guarantee = choose_guarantee(
        question,
        find_bounds(question),
        lambda bound: target.worse(target.value(bound.curve)),
    )
    mechanism = mechanism_of(found.noise)
    return Calibration(
        parameter=mechanism.size_entry,
        # The file's entry, which for a staircase is not the size that was searched.
        value=mechanism.parameter,
        protocol=found,
        guarantee=guarantee,
        target=target.named,
        achieved=target.value(guarantee.curve),
    )

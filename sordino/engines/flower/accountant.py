"""Sordino's accountant in the form that Flower's own strategies with differential privacy take."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

from sordino.privacy import checks, subsampled
from sordino.privacy.curves import PERFECT, Curve, GaussianCurve
from sordino.protocol import InvalidValue, UserError

METHOD = "f-DP"
VERSION = 1


class SordinoAccountant:
    """Prices Gaussian releases by their trade-off curves: exact without sampling, by privacy-loss distributions with it.

    It implements Flower's `PrivacyAccountant`, never promises more than Flower's own `RdpAccountant`, and needs no `flwr[dp]`. It holds the
    releases that were composed.

    Example:
        >>> config = PrivacyConfig(
        ...     target_delta=1e-5, population_size=100, neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        ...     sampling_method=SamplingMethod.NO_AMPLIFICATION,
        ... )
        >>> accountant = SordinoAccountant(config)
        >>> accountant.compose(GaussianPrivacyEvent(noise_multiplier=1.0, sample_size=100, population_size=100), count=3)
        >>> round(accountant.get_epsilon(1e-5), 2)
        8.39
    """

    def __init__(self, config: PrivacyConfig) -> None:
        self._config = config
        self._releases: list[tuple[GaussianPrivacyEvent, int]] = []

    @property
    def config(self) -> PrivacyConfig:
        """See `PrivacyAccountant`."""
        return self._config

    @property
    def num_releases(self) -> int:
        """See `PrivacyAccountant`."""
        return sum(count for _, count in self._releases)

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """See `PrivacyAccountant`."""
        self._releases.append(self._checked(event, count))

    def get_epsilon(self, delta: float) -> float:
        """See `PrivacyAccountant`."""
        checks.proper_delta(delta)
        return self._curve(self._releases).epsilon(delta)

    def get_delta(self, epsilon: float) -> float:
        """See `PrivacyAccountant`."""
        if not math.isfinite(epsilon) or epsilon < 0:
            raise InvalidValue("epsilon", epsilon, "a finite number of at least 0")
        return self._curve(self._releases).delta(epsilon)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """See `PrivacyAccountant`."""
        at = self._config.target_delta if delta is None else delta
        return PrivacySpent(
            epsilon=self.get_epsilon(at),
            delta=at,
            num_releases=self.num_releases,
            accounting_method=METHOD,
        )

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """See `PrivacyAccountant`; nothing is composed."""
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise UserError(
                "max_epsilon is given neither here nor in the PrivacyConfig: there is nothing to exceed."
            )
        after = [*self._releases, self._checked(event, count)]
        return self._curve(after).epsilon(self._config.target_delta) > limit

    def state_dict(self) -> dict[str, object]:
        """See `PrivacyAccountant`."""
        releases = [{"event": asdict(event), "count": count} for event, count in self._releases]
        return {
            "version": VERSION,
            "method": METHOD,
            "config": plain_config(self._config),
            "releases": releases,
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """See `PrivacyAccountant`; a state of other releases, or that cannot be read, leaves this one as it was."""
        if state.get("version") != VERSION or state.get("method") != METHOD:
            raise UserError("this state is not one of SordinoAccountant's.")
        if state.get("config") != plain_config(self._config):
            raise UserError("this state was kept under another PrivacyConfig.")
        found: Any = state.get("releases")
        try:
            self._releases = [
                self._checked(GaussianPrivacyEvent(**entry["event"]), entry["count"])
                for entry in found
            ]
        except (TypeError, KeyError, ValueError) as error:
            raise UserError(f"this state is damaged: {error}.") from None

    def _checked(self, event: GaussianPrivacyEvent, count: int) -> tuple[GaussianPrivacyEvent, int]:
        checks.whole(at_least=1, count=count)
        if event.population_size != self._config.population_size:
            raise InvalidValue(
                "population_size",
                event.population_size,
                f"{self._config.population_size}, as in the PrivacyConfig",
            )
        return event, count

    def _curve(self, releases: list[tuple[GaussianPrivacyEvent, int]]) -> Curve:
        spent: Curve = PERFECT
        for event, count in merged(releases):
            spent = spent.compose(self._priced(event, count))
        return spent

    def _priced(self, event: GaussianPrivacyEvent, count: int) -> Curve:
        multiplier, rate = event.noise_multiplier, event.sample_size / event.population_size
        if self._config.sampling_method is SamplingMethod.POISSON:
            return subsampled.poisson(multiplier=multiplier, rate=rate, steps=count)
        if self._config.sampling_method is SamplingMethod.WITHOUT_REPLACEMENT:
            return subsampled.fixed_size(mu=1 / multiplier, rate=rate, steps=count)
        return GaussianCurve(mu=1 / multiplier).repeat(count)


def merged(
    releases: list[tuple[GaussianPrivacyEvent, int]],
) -> list[tuple[GaussianPrivacyEvent, int]]:
    """Equal releases counted together: each kind is priced once."""
    counts: dict[GaussianPrivacyEvent, int] = {}
    for event, count in releases:
        counts[event] = counts.get(event, 0) + count
    return list(counts.items())


def plain_config(config: PrivacyConfig) -> dict[str, object]:
    """A configuration as JSON holds it."""
    kinds = (NeighboringRelation, SamplingMethod)
    return {
        name: value.value if isinstance(value, kinds) else value
        for name, value in asdict(config).items()
    }

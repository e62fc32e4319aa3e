"""Sordino's accountant, for Flower's own strategies with differential privacy."""

from __future__ import annotations

import math
from dataclasses import asdict
from enum import Enum
from typing import Any

from flwr.serverapp import (
    GaussianPrivacyEvent,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

from sordino.privacy.amplification import subsampling
from sordino.privacy.curves import checks
from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.gaussian_curve import PERFECT, GaussianCurve
from sordino.protocol import InvalidValue, UserError

# The name of the accounting method, and the version of its saved state.
METHOD = "f-DP"
VERSION = 1


class SordinoAccountant:
    """Prices Gaussian releases by their trade-off curves.

    Prices are exact without sampling, and by privacy-loss distributions with it. It implements
    Flower's `PrivacyAccountant`, never promises more than Flower's own `RdpAccountant`, and does
    not need `flwr[dp]`. It holds the releases that were composed.

    Example:
        >>> from flwr.serverapp import NeighboringRelation
        >>> config = PrivacyConfig(
        ...     target_delta=1e-5,
        ...     population_size=100,
        ...     neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        ...     sampling_method=SamplingMethod.NO_AMPLIFICATION,
        ... )
        >>> accountant = SordinoAccountant(config)
        >>> release = GaussianPrivacyEvent(
        ...     noise_multiplier=1.0, sample_size=100, population_size=100
        ... )
        >>> accountant.compose(release, count=3)
        >>> round(accountant.get_epsilon(1e-5), 2)
        8.39
    """

    def __init__(self, config: PrivacyConfig) -> None:
        """Creates an accountant without releases.

        Args:
            config: Flower's description of the mechanism.
        """
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
        """Adds releases. See `PrivacyAccountant`.

        Args:
            event: The release.
            count: How often it is made.
        """
        # Checked before it is added: an error leaves the accountant as it was.
        self._releases.append(self._check_release(event, count))

    def get_epsilon(self, delta: float) -> float:
        """Returns epsilon of all releases. See `PrivacyAccountant`.

        Args:
            delta: At this delta.
        """
        checks.require_delta(delta)
        return self._compose_curve(self._releases).epsilon(delta)

    def get_delta(self, epsilon: float) -> float:
        """Returns delta of all releases. See `PrivacyAccountant`.

        Args:
            epsilon: At this epsilon.
        """
        if not math.isfinite(epsilon) or epsilon < 0:
            raise InvalidValue("epsilon", epsilon, "a finite number of at least 0")
        return self._compose_curve(self._releases).delta(epsilon)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """Returns what all releases spend. See `PrivacyAccountant`.

        Args:
            delta: At this delta; by default the target of the configuration.
        """
        if delta is None:
            delta = self._config.target_delta
        return PrivacySpent(
            epsilon=self.get_epsilon(delta),
            delta=delta,
            num_releases=self.num_releases,
            accounting_method=METHOD,
        )

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Returns whether further releases would exceed a limit; nothing is composed.

        Args:
            event: The release.
            max_epsilon: The limit; by default that of the configuration.
            count: How often it would be made.
        """
        limit = max_epsilon
        if limit is None:
            limit = self._config.max_epsilon
        if limit is None:
            raise UserError(
                "max_epsilon is given neither here nor in the PrivacyConfig: there is nothing to "
                "exceed."
            )
        # Composed on a copy: asking must not spend.
        after = [*self._releases, self._check_release(event, count)]
        return self._compose_curve(after).epsilon(self._config.target_delta) > limit

    def state_dict(self) -> dict[str, object]:
        """See `PrivacyAccountant`."""
        releases = [{"event": asdict(event), "count": count} for event, count in self._releases]
        return {
            "version": VERSION,
            "method": METHOD,
            "config": encode_config(self._config),
            "releases": releases,
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Replaces the releases by those of a saved state.

        Args:
            state: What `state_dict` returned.

        Raises:
            UserError: It is of another configuration, or damaged; the releases stay as they were.
        """
        if state.get("version") != VERSION or state.get("method") != METHOD:
            raise UserError("this state is not one of SordinoAccountant's.")
        # Under another sampling method the same releases have another price.
        if state.get("config") != encode_config(self._config):
            raise UserError("this state was kept under another PrivacyConfig.")
        found: Any = state.get("releases")
        try:
            # Checked and built whole before it replaces anything: a damaged state leaves the old
            # one.
            self._releases = [
                self._check_release(GaussianPrivacyEvent(**entry["event"]), entry["count"])
                for entry in found
            ]
        except (TypeError, KeyError, ValueError) as error:
            raise UserError(f"this state is damaged: {error}.") from None

    def _check_release(
        self, event: GaussianPrivacyEvent, count: int
    ) -> tuple[GaussianPrivacyEvent, int]:
        checks.require_whole(at_least=1, count=count)
        # Another population has another sampling rate, and the price would be of no federation.
        if event.population_size != self._config.population_size:
            raise InvalidValue(
                "population_size",
                event.population_size,
                f"{self._config.population_size}, as in the PrivacyConfig",
            )
        return event, count

    def _compose_curve(self, releases: list[tuple[GaussianPrivacyEvent, int]]) -> Curve:
        spent: Curve = PERFECT
        for event, count in merge_releases(releases):
            spent = spent.compose(self._price_release(event, count))
        return spent

    def _price_release(self, event: GaussianPrivacyEvent, count: int) -> Curve:
        multiplier = event.noise_multiplier
        rate = event.sample_size / event.population_size
        if self._config.sampling_method is SamplingMethod.POISSON:
            return subsampling.compose_poisson_batches(
                multiplier=multiplier, rate=rate, steps=count
            )
        if self._config.sampling_method is SamplingMethod.WITHOUT_REPLACEMENT:
            return subsampling.compose_fixed_batches(mu=1 / multiplier, rate=rate, steps=count)
        # Without sampling nothing is amplified: the releases compose as they are.
        return GaussianCurve(mu=1 / multiplier).repeat(count)


def merge_releases(
    releases: list[tuple[GaussianPrivacyEvent, int]],
) -> list[tuple[GaussianPrivacyEvent, int]]:
    """Returns equal releases counted together, so that each kind is priced once.

    Args:
        releases: Releases and how often each was made.
    """
    # Pricing is slow, and Flower composes one release for each round.
    counts: dict[GaussianPrivacyEvent, int] = {}
    for event, count in releases:
        counts[event] = counts.get(event, 0) + count
    return list(counts.items())


def encode_config(config: PrivacyConfig) -> dict[str, object]:
    """Returns a configuration in the types of JSON.

    Args:
        config: The configuration.
    """
    document = {}
    for name, value in asdict(config).items():
        if isinstance(value, Enum):
            value = value.value
        document[name] = value
    return document

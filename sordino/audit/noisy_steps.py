"""The game of noisy-sgd: the two data sets on which noisy steps reveal the most, and the likelihood ratio of who sees every step.

A step's noisy sum lies along one line; what hides the record is the noise and that nobody knows whether the batch holds it. So the sum
has one of two laws, each a mixture of normal laws over how many of the differing records are in the batch, and the ratio of the two
is exact. Steps add up; that a client took part is seen, as in the mixture of THEORY C4, which is attained when it is (C3).

Where batches have a fixed size, all other records of the client pull the way that the record pulls in the first data set. Then the sum
is certain there, and in the neighbour it moves by 2C with probability B/n: that is C_q(G_mu) of one step, in one direction. Where batches
are drawn by Poisson, the others pull nowhere: added to a sum of noise, or absent from it, is the sampled Gaussian itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special, stats

from sordino.audit.given_losses import GivenLosses
from sordino.audit.worst_case import STEEP, Pair, consecutive, most_exposed, removes, setup_of
from sordino.federation.many import ManyRound
from sordino.federation.randomness import Key
from sordino.privacy.noisy_steps import attendance
from sordino.protocol import FixedSize, NoisySgd, Poisson, Protocol

COMPANY = 3  # clients of the game: what more of them would do is not looked at, and nothing that is looked at depends on it
NEGLIGIBLE = 1e-14  # probability of a number of records in a batch that the ratio leaves out


@dataclass(frozen=True, kw_only=True, eq=False)
class SumLaw:
    """What a step's sum is along the line on which two data sets differ, without noise: places, and how probable each is."""

    places: np.ndarray
    masses: np.ndarray

    def log_density(self, values: np.ndarray, deviation: float | np.ndarray) -> np.ndarray:
        """Of sums under noise, up to a constant.

        Example:
            >>> law = SumLaw(places=np.array([0.0, 1.0]), masses=np.array([0.5, 0.5]))
            >>> law.log_density(np.array([0.5]), 1.0)
            array([-0.125])
        """
        return special.logsumexp(
            -np.square((values[..., None] - self.places) / deviation) / 2, b=self.masses, axis=-1
        )


@dataclass(frozen=True, kw_only=True)
class StepPair(Pair):
    """Two federations of noisy-sgd; `direction` is the line of all gradients, `laws` are those of a step's sum on either data set."""

    direction: np.ndarray
    laws: tuple[SumLaw, SumLaw]
    joined: bool = (
        False  # whether the adversary sees the sum over all clients, and not one client's steps
    )


class StepAdversary:
    """Scores trainings by every noisy step of the attacked client, or by the sum over all clients. It holds the scores so far."""

    def __init__(self, pair: StepPair, trainings: range, colluders: int = 0) -> None:
        rule, multiplier = (
            pair.zero.protocol.local,
            getattr(pair.zero.protocol.noise, "multiplier", None),
        )
        if not isinstance(rule, NoisySgd) or multiplier is None:
            raise TypeError(f"{rule.tag} has no noisy steps")
        self._pair, self._batch = pair, rule.batch
        self._deviation = multiplier * rule.noise_unit if multiplier > 0 else 1.0
        self._colluders = colluders
        self.scores = np.zeros(len(trainings))

    def see(self, seen: ManyRound) -> None:
        """Take in one round."""
        sums = self._sums(seen, self._pair.attacked)
        if self._pair.joined:
            self._see_mean(seen, sums[:, 0])
            return
        zero, one = self._pair.laws
        for step in sums.T:
            ratio = one.log_density(step, self._deviation) - zero.log_density(step, self._deviation)
            self.scores += seen.present[:, self._pair.attacked] * ratio

    def _sums(self, seen: ManyRound, client: int) -> np.ndarray:
        """Returns a client's noisy sums along the line, (trainings, steps)."""
        return np.asarray(
            (seen.means[client].astype(np.float64) @ self._pair.direction) * self._batch
        )

    def _see_mean(self, seen: ManyRound, own: np.ndarray) -> None:
        """Takes in the sum over all honest clients who took part; the records of all but the attacked one pull nowhere."""
        present = seen.present.astype(bool)
        total, honest = own.copy(), np.ones(len(own))
        spared = np.full(len(own), self._colluders)
        for client in range(present.shape[1]):
            if client == self._pair.attacked:
                continue
            colludes = present[:, client] & (spared > 0)
            spared -= colludes
            hides = present[:, client] & ~colludes
            if hides.any():
                total += np.where(hides, self._sums(seen, client)[:, 0], 0.0)
                honest += hides
        zero, one = self._pair.laws
        scaled = self._deviation * np.sqrt(honest)
        ratio = one.log_density(total, scaled[:, None]) - zero.log_density(total, scaled[:, None])
        self.scores += present[:, self._pair.attacked] * ratio


def noisy_pair(
    protocol: Protocol,
    unit: str,
    sizes: Sequence[int],
    key: Key,
    caps: Mapping[int, int],
    *,
    joined: bool = False,
) -> StepPair:
    """The pair that comes closest to the bound of noisy-sgd, in every view.

    Example:
        >>> from sordino.protocol import Constant, Gaussian
        >>> rule = NoisySgd(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(clients=5, rounds=2, local=rule, noise=Gaussian(multiplier=1.0))
        >>> pair = noisy_pair(protocol, "record", (16,) * 5, Key.from_seed(1), {})
        >>> [law.places.tolist() for law in pair.laws], pair.laws[1].masses.tolist(), pair.zero.protocol.clients
        ([[-4.0, -4.0], [-4.0, -2.0]], [0.75, 0.25], 3)
    """
    rule = protocol.local
    if not isinstance(rule, NoisySgd):
        raise TypeError(f"{rule.tag} has no noisy steps")
    attacked = most_exposed(protocol, sizes, caps, unit)
    chosen = [attacked, *(client for client in range(protocol.clients) if client != attacked)][
        : protocol.clients if joined else COMPANY
    ]
    company, held = in_company(protocol, len(chosen)), tuple(sizes[client] for client in chosen)
    width = 1 if rule.clip_norm == "l1" else 2  # an l1 norm is worth the most in one coordinate
    parts, direction = consecutive(held), np.full(width, width**-0.5)
    flipped = parts[0] if unit == "client" else parts[0][:1]
    before, after, others = pulls(protocol, unit)
    sides = []
    for pull in (before, after):
        records = np.zeros((sum(held), width + 1), dtype=np.float32)
        records[parts[0], :width] = others * STEEP * rule.clip * direction
        # Steeper than all others together: a clip of the whole batch in place of each example must not pass.
        records[flipped, :width] = pull * 2 * rule.batch * STEEP * rule.clip * direction
        sides.append(
            setup_of(
                company,
                records,
                np.zeros(len(records), dtype=np.float32),
                parts,
                GivenLosses(width),
                key,
            )
        )
    return StepPair(
        zero=sides[0],
        one=sides[1],
        attacked=0,
        caps={place: caps[client] for place, client in enumerate(chosen) if client in caps},
        description=in_words(protocol, unit, held[0], company),
        direction=direction,
        joined=joined,
        laws=(
            sum_law(rule, held[0], len(flipped), before, others),
            sum_law(rule, held[0], len(flipped), after, others),
        ),
    )


def pulls(protocol: Protocol, unit: str) -> tuple[float, float, float]:
    """Where the differing records pull in either data set, and where the client's others do, in units of the clip.

    Added or removed is one that pulls nowhere against one that does.
    """
    if removes(protocol, unit):
        return 0.0, 1.0, 0.0
    fixed = getattr(protocol.local, "sampling", "fixed") == "fixed"
    return -1.0, 1.0, -1.0 if fixed and unit == "record" else 0.0


def sum_law(rule: NoisySgd, records: int, differing: int, pull: float, others: float) -> SumLaw:
    """The law of a step's sum where so many of the client's records differ."""
    numbers = np.arange(min(differing, records if rule.sampling == "poisson" else rule.batch) + 1)
    if rule.sampling == "poisson":
        masses = stats.binom.pmf(numbers, differing, min(1.0, rule.batch / records))
        places = rule.clip * pull * numbers
    else:
        masses = stats.hypergeom.pmf(numbers, records, differing, rule.batch)
        places = rule.clip * (pull * numbers + others * (rule.batch - numbers))
    likely = masses > NEGLIGIBLE
    return SumLaw(places=places[likely], masses=masses[likely])


def in_company(protocol: Protocol, clients: int) -> Protocol:
    """The protocol with fewer clients, each of which takes part as often as before; budgets of clients are given as caps instead."""
    rule = protocol.participation
    if isinstance(rule, FixedSize) and clients < protocol.clients:
        rule = Poisson(rate=attendance(protocol))
    privacy = replace(protocol.privacy, budget=None)  # its view may count more clients
    return replace(protocol, clients=clients, participation=rule, client=(), privacy=privacy)


def in_words(protocol: Protocol, unit: str, records: int, company: Protocol) -> str:
    """The two data sets."""
    rule, before = protocol.local, pulls(protocol, unit)[0]
    whose = "a record" if unit == "record" else "all records of a client"
    how = "present or absent" if before == 0 else "flipped"
    words = f"linear losses with {whose} {how}, at {2 * (rule.batch or 1) * STEEP:g} times the clip"
    if unit == "record" and (rule.batch or 1) < records:
        words += f", drawn into a step with probability {rule.batch}/{records}, unseen"
    fewer = company.clients < protocol.clients
    return words + (
        f"; {company.clients} clients of {protocol.clients}: the others are not looked at"
        if fewer
        else ""
    )

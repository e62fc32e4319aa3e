"""The worst case of noisy steps: a record that a step's minibatch may hold, unseen.

All sums of a step lie along one line. The record is hidden by the noise and by the draw of the
minibatch, which nobody sees. So the noisy sum has one of two laws, each a mixture of the noise's
law over the number of differing records in the minibatch.

If minibatches have a fixed size, all other records of the client pull as the record does in the
first data set. Then the sum without noise is certain there, and in the neighbour it moves by 2C
with probability B/n: that is C_q(G_mu) of one step, in one direction. If minibatches are drawn by
Poisson sampling, the others pull nowhere: a record added to a sum of noise, or absent from it, is
the sampled Gaussian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import special, stats

from sordino.audit.observation import find_given_observation
from sordino.audit.worst_cases.linear_pair import count_parameters
from sordino.audit.worst_cases.neighbours import (
    STEEPNESS,
    WORST_PAIRS,
    Pair,
    PairRequest,
    assign_records,
    find_client_noise,
    make_setup,
    removes_unit,
)
from sordino.audit.worst_cases.synthetic_losses import SyntheticLosses
from sordino.mechanisms import mechanism_of
from sordino.privacy.bounds.question import Observation
from sordino.privacy.own_noise import forget_clients
from sordino.protocol import DpSgd, Noise, NoisySgd, Poisson, Protocol
from sordino.protocol.release import noisy_steps_of

# The number of clients that are trained: nothing that the adversary uses depends on more of them.
COMPANY = 3
NORMS = {"l1": 1, "l2": 2}
# Numbers of records in a minibatch with a smaller probability are left out of the ratio.
NEGLIGIBLE = 1e-14


@dataclass(frozen=True, kw_only=True, eq=False)
class StepSumLaw:
    """Describes a step's sum along the line on which two data sets differ, without noise.

    Attributes:
        places: The values that the sum may have.
        masses: The probability of each value.
    """

    places: np.ndarray
    masses: np.ndarray

    def log_density(self, vectors: np.ndarray, direction: np.ndarray, noise: Noise) -> np.ndarray:
        """Returns the logarithm of the density of noisy sums.

        Args:
            vectors: Noisy sums, one a row.
            direction: The line on which the sums without noise lie.
            noise: The noise on every coordinate.

        Example:
            >>> from sordino.protocol import Laplace
            >>> law = StepSumLaw(places=np.array([0.0, 1.0]), masses=np.array([0.5, 0.5]))
            >>> law.log_density(np.array([[0.5]]), np.ones(1), Laplace(scale=0.5))
            array([-1.])
        """
        mechanism = mechanism_of(noise)
        logs = [
            mechanism.log_density(vectors - place * direction).sum(axis=-1) for place in self.places
        ]
        return np.asarray(special.logsumexp(np.stack(logs), b=self.masses[:, None], axis=0))

    def log_density_on_line(self, values: np.ndarray, deviation: float | np.ndarray) -> np.ndarray:
        """Returns the logarithm of the density under normal noise along the line, up to a constant.

        Args:
            values: Noisy sums along the line.
            deviation: The standard deviation of the noise.

        Example:
            >>> law = StepSumLaw(places=np.array([0.0, 1.0]), masses=np.array([0.5, 0.5]))
            >>> law.log_density_on_line(np.array([0.5]), 1.0)
            array([-0.125])
        """
        exponents = -np.square((values[..., None] - self.places) / deviation) / 2
        return np.asarray(special.logsumexp(exponents, b=self.masses, axis=-1))


@dataclass(frozen=True, kw_only=True)
class StepPair(Pair):
    """Holds two federations with noisy steps.

    Attributes:
        direction: The line of all gradients.
        laws: The law of a step's sum on either data set.
        joined: Whether the adversary sees the sum over all clients, instead of one client's steps.
    """

    direction: np.ndarray
    laws: tuple[StepSumLaw, StepSumLaw]
    joined: bool = False


@dataclass(frozen=True, kw_only=True)
class Pulls:
    """Says how far records pull along the line, in units of the clip.

    Attributes:
        before: The pull of the differing records on the data set.
        after: The pull of the differing records on its neighbour.
        others: The pull of the client's other records.
    """

    before: float
    after: float
    others: float


@dataclass(frozen=True, kw_only=True)
class SumDraw:
    """Says how the records of a sum are drawn and clipped.

    Attributes:
        clip: The largest norm of an example's gradient.
        batch: The number of records that are drawn, exactly or on average.
        varying: Whether each record is drawn by a separate coin.
        rate: The probability that a record is drawn.
    """

    clip: float
    batch: int
    varying: bool
    rate: float


@WORST_PAIRS.register(NoisySgd)
def make_noisy_step_pair(request: PairRequest) -> StepPair:
    """Returns the pair that comes closest to the bound of noisy steps, in every view.

    Args:
        request: The protocol and the adversary.

    Example:
        >>> from sordino.audit.worst_cases.worst_pair import make_worst_pair
        >>> from sordino.protocol import Constant, Gaussian, View
        >>> from sordino.randomness import Key
        >>> rule = NoisySgd(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(clients=5, rounds=2, local=rule, noise=Gaussian(multiplier=1.0))
        >>> key = Key.from_seed(1)
        >>> pair = make_worst_pair(
        ...     protocol, View.SERVER, "record", key=key, rounds=2, sizes=(16,) * 5
        ... )
        >>> [law.places.tolist() for law in pair.laws], pair.laws[1].masses.tolist()
        ([[-4.0, -4.0], [-4.0, -2.0]], [0.75, 0.25])
        >>> pair.zero.protocol.clients
        3
    """
    release = noisy_steps_of(request.protocol)
    draw = SumDraw(
        clip=release.clip,
        batch=release.batch,
        varying=release.varying_batches,
        rate=min(1.0, release.batch / request.sizes[request.attacked]),
    )
    return make_sum_pair(request, draw)


@WORST_PAIRS.register(DpSgd)
def make_lot_pair(request: PairRequest) -> StepPair:
    """Returns the pair that comes closest to the bound of lots, in every view.

    Args:
        request: The protocol and the adversary.
    """
    lot = request.protocol.release.lot
    if lot is None:
        raise TypeError(f"{request.protocol.local.tag} draws no lots")
    sizes = request.sizes
    draw = SumDraw(
        clip=lot.clip,
        batch=lot.batch,
        varying=lot.varying,
        rate=lot.find_rate(sizes[request.attacked], sum(sizes) / len(sizes)),
    )
    return make_sum_pair(request, draw)


def make_sum_pair(request: PairRequest, draw: SumDraw) -> StepPair:
    """Returns two federations whose noisy sums lie along one line.

    Args:
        request: The protocol and the adversary.
        draw: How the records of a sum are drawn and clipped.
    """
    protocol = request.protocol
    joined = find_given_observation(protocol, request.view) == Observation.MODELS
    clients = [request.attacked]
    clients += [client for client in range(protocol.clients) if client != request.attacked]
    if not joined:
        clients = clients[:COMPANY]
    sizes = tuple(request.sizes[client] for client in clients)
    noise = find_client_noise(protocol, request.attacked, sizes[0])
    company = reduce_company(protocol, len(clients))
    if protocol.client:
        # The attacked client may have its own noise; the noise of the others is then not used.
        company = replace(company, noise=noise)
    width = count_parameters(protocol, noise)
    direction = np.ones(width)
    direction /= np.linalg.norm(direction, ord=NORMS[protocol.release.clip_norm])
    parts = assign_records(sizes)
    differing = parts[0] if request.unit == "client" else parts[0][:1]
    pulls = choose_pulls(protocol, request.unit)
    steep = STEEPNESS * draw.clip * direction
    sides = []
    for pull in (pulls.before, pulls.after):
        records = np.zeros((sum(sizes), width + 1), dtype=np.float32)
        records[parts[0], :width] = pulls.others * steep
        # Steeper than all others together, so that a clip of the whole batch is not mistaken for a
        # clip of each example.
        records[differing, :width] = pull * 2 * draw.batch * steep
        targets = np.zeros(len(records), dtype=np.float32)
        module = SyntheticLosses(width)
        sides.append(
            make_setup(company, records, targets, parts=parts, module=module, key=request.key)
        )
    caps = {}
    for place, client in enumerate(clients):
        if client in request.caps:
            caps[place] = request.caps[client]
    laws = tuple(
        find_sum_law(draw, sizes[0], len(differing), pull, pulls.others)
        for pull in (pulls.before, pulls.after)
    )
    return StepPair(
        zero=sides[0],
        one=sides[1],
        attacked=0,
        caps=caps,
        description=describe_step_pair(protocol, request.unit, sizes[0], company),
        direction=direction,
        joined=joined,
        laws=(laws[0], laws[1]),
    )


def choose_pulls(protocol: Protocol, unit: str) -> Pulls:
    """Returns the directions in which records pull.

    A unit that is added or removed pulls nowhere in one data set.

    Args:
        protocol: The protocol that is audited.
        unit: "record" or "client".
    """
    if removes_unit(protocol, unit):
        return Pulls(before=0.0, after=1.0, others=0.0)
    if unit == "record" and not protocol.release.varying_batches:
        return Pulls(before=-1.0, after=1.0, others=-1.0)
    return Pulls(before=-1.0, after=1.0, others=0.0)


def find_sum_law(
    draw: SumDraw, records: int, differing: int, pull: float, others: float
) -> StepSumLaw:
    """Returns the law of a step's sum.

    Args:
        draw: How the records of a sum are drawn and clipped.
        records: The number of records of the attacked client.
        differing: How many of them differ between the data sets.
        pull: The pull of the differing records.
        others: The pull of the client's other records.
    """
    if draw.varying:
        numbers = np.arange(min(differing, records) + 1)
        masses = stats.binom.pmf(numbers, differing, draw.rate)
        places = draw.clip * pull * numbers
    else:
        numbers = np.arange(min(differing, draw.batch) + 1)
        masses = stats.hypergeom.pmf(numbers, records, differing, draw.batch)
        places = draw.clip * (pull * numbers + others * (draw.batch - numbers))
    likely = masses > NEGLIGIBLE
    return StepSumLaw(places=places[likely], masses=masses[likely])


def reduce_company(protocol: Protocol, clients: int) -> Protocol:
    """Returns the protocol with fewer clients, each of which takes part as often as before.

    Budgets of clients are left out, since the pair has caps instead.

    Args:
        protocol: The protocol that is audited.
        clients: The number of clients that are kept.
    """
    participation = protocol.participation
    if participation.draws and not participation.varies and clients < protocol.clients:
        participation = Poisson(rate=participation.find_chance(clients=protocol.clients))
    # The view of the budget may name more clients than are left.
    privacy = replace(protocol.privacy, budget=None)
    data = protocol.data
    if data is not None and data.sizes is not None:
        # The list would need an entry for every client.
        data = replace(data, sizes=None)
    noise = protocol.noise
    lot = protocol.release.lot
    if lot is not None and clients < protocol.clients:
        # Fewer clients with the same share each have less noise on their sum.
        noise = noise.set_multiplier(lot.multiplier * math.sqrt(clients / protocol.clients))
    return replace(
        forget_clients(protocol),
        clients=clients,
        participation=participation,
        noise=noise,
        privacy=privacy,
        data=data,
    )


def describe_step_pair(protocol: Protocol, unit: str, records: int, company: Protocol) -> str:
    """Returns the two data sets in words.

    Args:
        protocol: The protocol that is audited.
        unit: "record" or "client".
        records: The number of records of the attacked client.
        company: The protocol that is trained.
    """
    batch = protocol.local.batch or 1
    subject = "a record" if unit == "record" else "all records of a client"
    change = "present or absent" if removes_unit(protocol, unit) else "flipped"
    words = f"linear losses with {subject} {change}, at {2 * batch * STEEPNESS:g} times the clip"
    if unit == "record" and batch < records:
        words += f", drawn into a step with probability {batch}/{records}, unseen"
    if company.clients < protocol.clients:
        number = f"{company.clients} clients of {protocol.clients}"
        words += f"; {number}: the others are not looked at"
    return words

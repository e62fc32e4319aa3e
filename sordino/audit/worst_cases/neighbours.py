"""Describes two neighbouring federations, and chooses the client in which they differ.

What a local rule's worst case is, is registered in `WORST_PAIRS` for exactly that rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn

from sordino.federation.aggregation.joining import upload_weights
from sordino.federation.record_tensors import Tensors
from sordino.federation.setup import Setup
from sordino.models.bounded import BoundedLinear, BoundedLogistic
from sordino.privacy.bounds.harmonizer import own_guarantees
from sordino.privacy.bounds.question import has_own_noise, pose_question
from sordino.privacy.own_noise import own_protocol
from sordino.protocol import Gaussian, Noise, Protocol, View
from sordino.protocol.registry import Registry
from sordino.protocol.rule_kinds import LocalRule
from sordino.randomness import Key

# How much longer than the clip a differing record's gradient is, so that the clip is exercised.
STEEPNESS = 10.0
# Clients of a Harmonizer count as equally exposed if their epsilons agree within this share.
NEARLY_EQUAL = 0.95


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Holds two federations that differ in the unit of one client.

    Attributes:
        zero: The federation with the data set.
        one: The federation with its neighbour.
        attacked: The client whose unit differs.
        description: Both data sets, in words.
        caps: How often clients may take part.
        turned: If the adversary does not know the minibatches, the federation in which every
            minibatch of the client acts as one that holds the neighbour's record.
    """

    zero: Setup
    one: Setup
    attacked: int
    description: str
    caps: Mapping[int, int] = field(default_factory=dict)
    turned: Setup | None = None

    def side(self, number: int) -> Setup:
        """Returns one of the two federations.

        Args:
            number: 0 for the data set, 1 for its neighbour.
        """
        if number == 1:
            return self.one
        return self.zero


@dataclass(frozen=True, kw_only=True)
class PairRequest:
    """Says for which protocol and adversary a worst case is needed.

    Attributes:
        protocol: The protocol that is audited.
        view: The adversary.
        unit: What differs, "record" or "client".
        sizes: Records of every client.
        stated_sizes: The same if they are known; None if `sizes` are assumed.
        caps: How often clients may take part.
        key: The key of all draws.
        rounds: How many rounds are trained.
        attacked: The client with most to lose.
    """

    protocol: Protocol
    view: View
    unit: str
    sizes: tuple[int, ...]
    stated_sizes: tuple[int, ...] | None
    caps: Mapping[int, int]
    key: Key
    rounds: int
    attacked: int


WORST_PAIRS: Registry[Callable[[PairRequest], Pair]] = Registry(
    "worst case", "local rule", LocalRule
)


def find_most_exposed(
    protocol: Protocol, sizes: Sequence[int], caps: Mapping[int, int], unit: str
) -> int:
    """Returns the client that may take part most often and has the largest share in the mean.

    Among equals it is the largest. If minibatches hide a record it is the smallest, which has the
    fewest records to hide one among. If clients have budgets with noise found for them, it is the
    one that is promised the least.

    Args:
        protocol: The protocol that is audited.
        sizes: Records of every client.
        caps: How often clients may take part.
        unit: "record" or "client".

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> rule = FedAvg(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(clients=3, rounds=2, local=rule, noise=Gaussian(sigma=1.0))
        >>> find_most_exposed(protocol, (9, 5, 7), {}, "client")
        0
        >>> find_most_exposed(protocol, (9, 5, 7), {}, "record")
        1
        >>> find_most_exposed(protocol, (9, 5, 7), {0: 1, 1: 1}, "record")
        2
    """
    if has_own_noise(protocol):
        return find_least_protected(protocol, sizes, unit)
    shares = np.ones(len(sizes))
    # Noise in the steps has one bound for all views: what becomes of an upload does not matter.
    if not protocol.release.in_steps:
        shares = upload_weights(protocol.aggregation, np.asarray(sizes))
    batch = protocol.local.batch
    hidden = unit == "record" and batch is not None and batch < max(sizes)

    def rank_exposure(client: int) -> tuple[int, float, int, int]:
        """Returns what clients are sorted by: the most exposed one has the largest.

        Args:
            client: The number of a client.
        """
        rounds = min(caps.get(client, protocol.rounds), protocol.rounds)
        size = -sizes[client] if hidden else sizes[client]
        return rounds, float(shares[client]), size, -client

    return max(range(len(sizes)), key=rank_exposure)


def find_least_protected(protocol: Protocol, sizes: Sequence[int], unit: str) -> int:
    """Returns the client of a Harmonizer whose guarantee is the weakest.

    Among nearly equal ones it is a client with Gaussian noise, which needs few parameters to show.

    Args:
        protocol: The protocol that is audited.
        sizes: Records of every client.
        unit: "record" or "client".
    """
    guarantees = own_guarantees(pose_question(protocol, View.SERVER, unit, None, sizes))
    epsilons = {client: guarantee.epsilon(1e-5) for client, guarantee in guarantees.items()}
    weakest = max(epsilons.values())

    def rank_exposure(client: int) -> tuple[bool, float]:
        """Returns what clients are sorted by: the most exposed one has the largest.

        Args:
            client: The number of a client.
        """
        return find_client_noise(protocol, client, sizes[client]).normal, epsilons[client]

    candidates = [client for client in epsilons if epsilons[client] >= NEARLY_EQUAL * weakest]
    return max(candidates, key=rank_exposure)


def find_client_noise(protocol: Protocol, client: int, records: int) -> Noise:
    """Returns the noise of one client.

    Args:
        protocol: The protocol that is audited.
        client: Number of the client, from 0.
        records: How many records it has.
    """
    for budget in protocol.client:
        if budget.id == client:
            return own_protocol(protocol, budget, records).noise
    return protocol.release.noise


def find_client_sizes(protocol: Protocol, sizes: Sequence[int] | None) -> tuple[int, ...]:
    """Returns the records of every client.

    Args:
        protocol: The protocol that is audited.
        sizes: The sizes of a run or of real data, if they are known.

    Returns:
        Those sizes, or the ones that the protocol states, or one batch each, so that the record is
        in every step.
    """
    if sizes is not None:
        return tuple(sizes)
    if protocol.stated_sizes is not None:
        return protocol.stated_sizes
    return (protocol.local.batch or 1,) * protocol.clients


def removes_unit(protocol: Protocol, unit: str) -> bool:
    """Returns whether the unit is absent from one of the data sets, instead of replaced.

    With noise on uploads, adding or removing is priced for whole clients, and a record is replaced.

    Args:
        protocol: The protocol that is audited.
        unit: "record" or "client".
    """
    if protocol.adjacency != "add-or-remove":
        return False
    release = protocol.release
    return unit == "client" or release.in_steps or release.lot is not None


def remove_noise(setup: Setup) -> Setup:
    """Returns the same federation without noise on its uploads.

    Noisy steps keep their noise: an adversary that repeats them puts its own values in its place.

    Args:
        setup: The federation.
    """
    protocol = setup.protocol
    if protocol.release.in_steps:
        return setup
    where = "client" if protocol.release.at_client else "server"
    silent = Gaussian(sigma=0.0, where=where)
    if protocol.release.lot is not None:
        silent = Gaussian(multiplier=0.0, where=where)
    return replace(setup, protocol=replace(protocol, noise=silent))


def assign_records(sizes: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Returns the row numbers of every client's records, assigned in order.

    Args:
        sizes: Records of every client.

    Example:
        >>> [rows.tolist() for rows in assign_records([2, 1])]
        [[0, 1], [2]]
    """
    return tuple(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))


def make_setup(
    protocol: Protocol,
    x: np.ndarray,
    y: np.ndarray,
    *,
    parts: tuple[np.ndarray, ...],
    module: nn.Module,
    key: Key,
) -> Setup:
    """Returns a federation on given records.

    Args:
        protocol: The federation that is audited.
        x: Inputs, one record per row.
        y: Targets.
        parts: Row numbers of every client's records.
        module: The model.
        key: The key of all draws.
    """
    records = Tensors(
        x=torch.from_numpy(x), y=torch.from_numpy(y), scale=torch.ones(()), shift=torch.zeros(())
    )
    classes = count_classes(module)
    return Setup(
        protocol=protocol,
        train=records,
        test=replace(records, x=records.x[:1], y=records.y[:1]),
        parts=parts,
        classification=classes > 1,
        outputs=classes,
        input_shape=x.shape[1:],
        module=module,
        key=key,
        noise_key=key,
        draw_key=key,
        data_digest="",
    )


def count_classes(module: nn.Module) -> int:
    """Returns how many classes the model of a worst case tells apart, or 1 for a synthetic loss.

    Args:
        module: The model.
    """
    if type(module) is BoundedLogistic:
        return 2
    if type(module) is BoundedLinear:
        return len(module.weight)
    return 1

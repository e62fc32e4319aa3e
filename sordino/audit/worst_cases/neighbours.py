"""Two neighbouring federations, and the choice of the client in which they differ.

The worst case of a local rule is registered in `WORST_PAIRS` for exactly that rule.
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

# The gradient of a differing record in units of the clip: so long that it is surely clipped.
STEEPNESS = 10.0
# Clients of a Harmonizer count as equally exposed if their epsilons are within this factor.
NEARLY_EQUAL = 0.95


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Holds two federations that differ in the unit of one client.

    Attributes:
        zero: The federation with the data set.
        one: The federation with its neighbour.
        attacked: The client whose unit differs.
        description: Both data sets, in words.
        caps: The most rounds in which each client with a personal budget may take part.
        turned: The federation in which every minibatch of the client acts like one that holds the
            neighbour's record; None if the adversary knows the minibatches.
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
        unit: The unit that differs, "record" or "client".
        sizes: The number of records of every client.
        stated_sizes: The same; None if they are not known, and `sizes` are assumed.
        caps: The most rounds in which each client with a personal budget may take part.
        key: The key of all draws.
        rounds: The number of rounds that are trained.
        attacked: The client that is exposed most.
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
    """Returns the client that may take part most often and has the largest weight in the mean.

    Among equals it is the one with the most records; or, if minibatches hide a record, the one with
    the fewest, among which a record is drawn most often. If clients have budgets from which their
    noise follows, it is the client with the weakest guarantee.

    Args:
        protocol: The protocol that is audited.
        sizes: The number of records of every client.
        caps: The most rounds in which each client with a personal budget may take part.
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
    # Noise in the steps has one bound for all views, whatever weight the upload gets later.
    if not protocol.release.in_steps:
        shares = upload_weights(protocol.aggregation, np.asarray(sizes))
    batch = protocol.local.batch
    hidden = unit == "record" and batch is not None and batch < max(sizes)

    def rank_exposure(client: int) -> tuple[int, float, int, int]:
        """Returns the key by which clients are sorted; the most exposed one has the largest.

        Args:
            client: The number of a client.
        """
        rounds = min(caps.get(client, protocol.rounds), protocol.rounds)
        size = -sizes[client] if hidden else sizes[client]
        return rounds, float(shares[client]), size, -client

    return max(range(len(sizes)), key=rank_exposure)


def find_least_protected(protocol: Protocol, sizes: Sequence[int], unit: str) -> int:
    """Returns the client of a Harmonizer whose guarantee is the weakest.

    Among nearly equal ones, clients with Gaussian noise come first, whose worst case needs few
    parameters.

    Args:
        protocol: The protocol that is audited.
        sizes: The number of records of every client.
        unit: "record" or "client".
    """
    guarantees = own_guarantees(pose_question(protocol, View.SERVER, unit, None, sizes))
    epsilons = {client: guarantee.epsilon(1e-5) for client, guarantee in guarantees.items()}
    weakest = max(epsilons.values())

    def rank_exposure(client: int) -> tuple[bool, float]:
        """Returns the key by which clients are sorted; the most exposed one has the largest.

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
        client: The number of the client, from 0.
        records: The number of its records.
    """
    for budget in protocol.client:
        if budget.id == client:
            return own_protocol(protocol, budget, records).noise
    return protocol.release.noise


def find_client_sizes(protocol: Protocol, sizes: Sequence[int] | None) -> tuple[int, ...]:
    """Returns the number of records of every client.

    Args:
        protocol: The protocol that is audited.
        sizes: The sizes of a run or of real data; None if unknown.

    Returns:
        The given sizes, else those that the protocol states, else one batch each, so that every
        record is in every step.
    """
    if sizes is not None:
        return tuple(sizes)
    if protocol.stated_sizes is not None:
        return protocol.stated_sizes
    return (protocol.local.batch or 1,) * protocol.clients


def removes_unit(protocol: Protocol, unit: str) -> bool:
    """Returns whether the unit is absent from one of the data sets, instead of replaced.

    With noise on uploads only whole clients are added or removed; a record is always replaced.

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

    Noisy steps keep their noise, since repeated steps get other sums in place of the noisy ones.

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

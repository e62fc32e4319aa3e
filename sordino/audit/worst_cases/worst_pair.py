"""Finds the two neighbouring data sets on which a protocol reveals as much as its bound allows.

Records of a worst case are losses (`synthetic_losses`), trained by the same steps, clip, noise and
mean as any other records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Imported because each registers the worst cases of some local rules.
from sordino.audit.worst_cases import clipped_glm_pair, linear_pair, noisy_step_pair  # noqa: F401
from sordino.audit.worst_cases.neighbours import (
    WORST_PAIRS,
    Pair,
    PairRequest,
    find_client_sizes,
    find_most_exposed,
)
from sordino.protocol import Protocol, View
from sordino.randomness import Key


def make_worst_pair(
    protocol: Protocol,
    view: View,
    unit: str,
    *,
    key: Key,
    rounds: int,
    sizes: Sequence[int] | None = None,
    caps: Mapping[int, int] | None = None,
) -> Pair:
    """Returns the pair of neighbouring federations that comes closest to the bound of a view.

    Args:
        protocol: The protocol that is audited.
        view: The adversary.
        unit: The unit that differs, "record" or "client".
        key: The key of all draws.
        rounds: The number of rounds that are trained.
        sizes: The number of records of every client; None if unknown.
        caps: The most rounds in which each client with a personal budget may take part.

    Raises:
        UnknownKind: No worst case is known for the local rule.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> rule = FedAvg(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(clients=3, rounds=2, local=rule, noise=Gaussian(sigma=1.0))
        >>> pair = make_worst_pair(protocol, View.SERVER, "record", key=Key.from_seed(1), rounds=2)
        >>> round(pair.zero.train.x[pair.zero.parts[pair.attacked][0]].norm().item(), 3)
        40.0
    """
    caps = caps or {}
    assumed = find_client_sizes(protocol, sizes)
    request = PairRequest(
        protocol=protocol,
        view=view,
        unit=unit,
        sizes=assumed,
        stated_sizes=None if sizes is None else tuple(sizes),
        caps=caps,
        key=key,
        rounds=rounds,
        attacked=find_most_exposed(protocol, assumed, caps, unit),
    )
    return WORST_PAIRS.of(protocol.local)(request)

"""The smallest federation that a guarantee about secure sums covers.

A guarantee before a run counts on no more contributions than the threshold of a sum, so it is
audited with exactly that many clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sordino.protocol import Model, Protocol, View

# Parameters of a worst case if the protocol does not state how many its model has.
FEW_PARAMETERS = 2


def leave_fewest(
    protocol: Protocol, view: View, sizes: Sequence[int] | None
) -> tuple[Protocol, tuple[int, ...] | None]:
    """Returns the federation with no more clients than the guarantee for a view counts on.

    Args:
        protocol: The protocol that is audited.
        view: The adversary.
        sizes: The number of records of every client; None if unknown.

    Returns:
        The protocol with the clients that are left, and their sizes; both unchanged where no
        client can be left out.
    """
    known = None if sizes is None else tuple(sizes)
    secure_sum = protocol.release.secure_sum
    if secure_sum is None or not view.is_server or protocol.participation.draws:
        return protocol, known
    left = secure_sum.threshold
    if left == protocol.clients:
        return protocol, known
    if known is not None:
        # The largest client weighs most; the smallest has the fewest records to hide one among.
        ordered = sorted(known, reverse=True)
        known = (*ordered[: left - 1], ordered[-1])
    data = protocol.data
    if data is not None and data.sizes is not None:
        data = replace(data, sizes=known)
    return replace(protocol, clients=left, data=data), known


def with_known_grid(protocol: Protocol) -> Protocol:
    """Returns the protocol with a number of parameters, if its grid depends on one.

    Args:
        protocol: The protocol that is audited.
    """
    known = protocol.model is not None and protocol.model.parameters is not None
    if known or not protocol.release.integers:
        return protocol
    name = "worst-case" if protocol.model is None else protocol.model.name
    return replace(protocol, model=Model(name=name, parameters=FEW_PARAMETERS))

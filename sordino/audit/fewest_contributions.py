"""The federation that a server of secure sums may be left with: the fewest who open a sum.

A guarantee before a run counts on no more contributions than the threshold, so it is audited with
exactly as many clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sordino.protocol import Model, Protocol, View

# Parameters of a worst case, where the protocol does not say how many its model has.
FEW_PARAMETERS = 2


def leave_fewest(
    protocol: Protocol, view: View, sizes: Sequence[int] | None
) -> tuple[Protocol, tuple[int, ...] | None]:
    """Returns the federation with as few clients as the guarantee for a view counts on.

    Args:
        protocol: The protocol that is audited.
        view: The adversary.
        sizes: Records of every client, where they are known.

    Returns:
        The protocol and the sizes of those who are left; both unchanged where nobody can be left
        out.
    """
    known = None if sizes is None else tuple(sizes)
    secure_sum = protocol.release.secure_sum
    if secure_sum is None or not view.is_server or protocol.participation.draws:
        return protocol, known
    left = secure_sum.threshold
    if left == protocol.clients:
        return protocol, known
    if known is not None:
        # The largest weighs most, and the smallest has the fewest records to hide one among.
        ordered = sorted(known, reverse=True)
        known = (*ordered[: left - 1], ordered[-1])
    data = protocol.data
    if data is not None and data.sizes is not None:
        data = replace(data, sizes=known)
    return replace(protocol, clients=left, data=data), known


def with_known_grid(protocol: Protocol) -> Protocol:
    """Returns the protocol with a number of parameters, where its grid depends on one.

    Args:
        protocol: The protocol that is audited.
    """
    known = protocol.model is not None and protocol.model.parameters is not None
    if known or not protocol.release.integers:
        return protocol
    name = "worst-case" if protocol.model is None else protocol.model.name
    return replace(protocol, model=Model(name=name, parameters=FEW_PARAMETERS))

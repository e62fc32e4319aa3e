"""What a protocol promises: the smallest of all bounds that hold for a view."""

from __future__ import annotations

from collections.abc import Sequence

from sordino.privacy.bounds.best_bound import choose_guarantee, epsilon_at
from sordino.privacy.bounds.providers import find_bounds
from sordino.privacy.bounds.question import pose_question
from sordino.privacy.curves.checks import require_delta
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import ProtocolSource, View, accept_protocol


def certify(
    protocol: ProtocolSource,
    view: str | View = View.SERVER,
    unit: str = "record",
    *,
    delta: float = 1e-5,
    rounds: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
) -> Guarantee:
    """Returns the smallest valid bound on what an adversary learns from a run of the protocol.

    Args:
        protocol: The protocol, the path of its file, or a dictionary of its tables.
        view: The adversary: server, rounds, coalition:k, final, weak, strong.
        unit: The hidden unit, "record" or "client".
        delta: The delta at which bounds are compared by their epsilon to find the smallest.
        rounds: The rounds that are run, with repetitions; by default all of the protocol.
        sizes: The number of records of every client, where they differ.

    Returns:
        The bound, with everything that gives it meaning.

    Raises:
        UserError: A view that the protocol does not have, or a delta outside (0, 1).

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian, Protocol
        >>> local = FedAvg(steps=5, batch=32, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(clients=50, rounds=600, local=local, noise=Gaussian(sigma=1.0))
        >>> guarantee = certify(protocol, "rounds")
        >>> round(guarantee.mu, 4), round(guarantee.epsilon(1e-5), 2)
        (3.4641, 20.13)
    """
    question = pose_question(accept_protocol(protocol), view, unit, rounds, sizes)
    # At a delta of 0 most curves are infinite and cannot be compared.
    require_delta(delta)
    return choose_guarantee(question, find_bounds(question), epsilon_at(delta))

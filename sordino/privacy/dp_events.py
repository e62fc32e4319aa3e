"""A protocol as an event of dp_accounting, for its accountants, where it has one that fits."""

from __future__ import annotations

from typing import Any

from sordino.privacy.bounds.providers import find_provider
from sordino.privacy.bounds.question import pose_question
from sordino.protocol import Protocol, UserError, View


def dp_event(protocol: Protocol, view: View = View.SERVER, unit: str = "record") -> Any:
    """Returns the rounds of a protocol as composed events of dp_accounting.

    A Gaussian event's noise multiplier is that of one round, in units of its replace-one
    sensitivity. For noise on integers it is the event of the law; drawn noise differs from that by
    the `total_variation` of the guarantee.

    Args:
        protocol: The federation that is priced.
        view: The adversary.
        unit: The hidden unit, "record" or "client".

    Raises:
        UserError: dp_accounting has no event for the protocol, such as for participation that is
            random and seen; `certify` prices it.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=5, batch=32, clip=1.0, schedule=Constant(rate=0.1))
        >>> dp_event(Protocol(clients=50, rounds=600, local=local, noise=Gaussian(sigma=2.0)))
        SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=600)
    """
    question = pose_question(protocol, view, unit)
    export = find_provider(question).event
    # An event that is nearly right would be taken for the protocol by every accountant.
    if protocol.release.shuffled or export is None:
        raise UserError(
            "dp_accounting has no event for a shuffler or for clients with their own noise; "
            "`certify` prices it."
        )
    return export(question)

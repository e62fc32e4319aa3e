"""The guarantee of each client with its own noise: mechanism, noise, bound and cap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sordino.mechanisms import mechanism_of
from sordino.privacy.bounds.harmonizer import find_cap, own_guarantees
from sordino.privacy.bounds.question import has_own_noise, pose_question
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.own_noise import own_protocol
from sordino.protocol import ClientBudget, Noise, Protocol, View


@dataclass(frozen=True, kw_only=True)
class ClientPrice:
    """A client's own noise, and the guarantee that it gives.

    Attributes:
        budget: The budget of the client, as in the file.
        noise: The noise that was found for the budget.
        cap: The largest number of rounds in which the client takes part.
        guarantee: The guarantee of the client against the server.
    """

    budget: ClientBudget
    noise: Noise
    cap: int
    guarantee: Guarantee

    @property
    def bound(self) -> float:
        """The guarantee's epsilon at the budget's delta."""
        return self.guarantee.epsilon(self.budget.delta)

    def as_document(self) -> dict[str, Any]:
        """Returns the client's entry in the output of `certify --json`."""
        mechanism = mechanism_of(self.noise)
        return {
            "client": self.budget.id,
            "mechanism": self.noise.tag,
            mechanism.size_entry: mechanism.parameter,
            "budget_epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "epsilon": self.bound,
            "rounds_at_most": self.cap,
        }


def price_own_clients(protocol: Protocol, sizes: Sequence[int] | None) -> list[ClientPrice]:
    """Returns every client's noise, bound and cap; none where all clients have the same noise.

    Args:
        protocol: The federation that is priced.
        sizes: The number of records of every client, where they are known.
    """
    if not has_own_noise(protocol):
        return []
    if sizes is None:
        sizes = protocol.stated_sizes
    prices = []
    for unit in dict.fromkeys(budget.unit for budget in protocol.client):
        question = pose_question(protocol, View.SERVER, unit, sizes=sizes)
        guarantees = own_guarantees(question)
        for budget in protocol.client:
            if budget.unit != unit:
                continue
            records = question.records if sizes is None else sizes[budget.id]
            prices.append(
                ClientPrice(
                    budget=budget,
                    noise=own_protocol(protocol, budget, records).noise,
                    cap=find_cap(question, budget, records),
                    guarantee=guarantees[budget.id],
                )
            )
    return sorted(prices, key=lambda price: price.budget.id)

"""Prices a protocol or a run in one view or in all, for `sordino certify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sordino.privacy.certify import certify
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.own_prices import ClientPrice, price_own_clients
from sordino.privacy.published import find_withheld
from sordino.protocol import Protocol, UserError, View, all_views
from sordino.report.run_prices import choose_headline, list_views, price_clients_by_view

if TYPE_CHECKING:
    from sordino.federation.store.run import Run

ALL_VIEWS = "all"
# Realised bounds are given who took part, and some guarantees rest on hiding that.
HIDDEN_DRAW = (
    "The guarantee relies on hiding who took part. The realised bounds, which are given "
    "who did, reveal it: do not publish them."
)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The upper bounds of a protocol, or of a run.

    Attributes:
        protocol: The protocol.
        guarantees: One for each view.
        realised: By view and client, the bounds given who took part; empty without a run.
        clients: The price of every client; empty where all clients have the same noise.
        delta: Where epsilon is shown.
        sizes: The number of records of every client, where it is known.
    """

    protocol: Protocol
    guarantees: Sequence[Guarantee]
    realised: Mapping[View, dict[int, Guarantee]] = field(default_factory=dict)
    clients: Sequence[ClientPrice]
    delta: float
    sizes: tuple[int, ...] | None

    @property
    def warning(self) -> str | None:
        """Why the realised bounds must not be published, if they must not."""
        if self.realised and find_withheld(self.protocol).draw:
            return HIDDEN_DRAW
        return None

    def as_document(
        self, *, alphas: Sequence[float] | None = None, orders: Sequence[float] | None = None
    ) -> dict[str, Any]:
        """Returns what `sordino certify --json` prints.

        Args:
            alphas: False positive rates at which the trade-off functions are stated.
            orders: The orders of Rényi divergences that are stated.
        """
        rows = []
        for guarantee in self.guarantees:
            row = guarantee.as_document(self.delta)
            rows.append({**row, **_describe_curve(guarantee, alphas, orders)})
        document: dict[str, Any] = {"guarantees": rows}
        if self.realised:
            document["realised"] = [
                {"client": client, **guarantee.as_document(self.delta)}
                for per_client in self.realised.values()
                for client, guarantee in per_client.items()
            ]
        if self.clients:
            document["clients"] = [price.as_document() for price in self.clients]
        if self.warning is not None:
            document["realised_note"] = self.warning
        return document


def certify_protocol_views(
    protocol: Protocol,
    view: str,
    unit: str,
    delta: float | None,
    sizes: tuple[int, ...] | None,
) -> Certificate:
    """Prices a protocol.

    Args:
        protocol: The protocol.
        view: The spelling of a view, or "all".
        unit: "record" or "client".
        delta: Where epsilon is shown; None for the budget's, or 1e-5.
        sizes: The number of records of every client, where it is known.
    """
    if delta is None:
        delta = choose_headline(protocol).delta
    # With as many colluders as the channel provides for, so that no adversary is left out.
    views = all_views(protocol.clients, protocol.channel.colluders)
    if view != ALL_VIEWS:
        views = (View.parse(view),)
    return Certificate(
        protocol=protocol,
        guarantees=[certify(protocol, one, unit, delta=delta, sizes=sizes) for one in views],
        clients=price_own_clients(protocol, sizes),
        delta=delta,
        sizes=sizes,
    )


def certify_run_views(run: Run, view: str, unit: str, delta: float | None) -> Certificate:
    """Prices a run by its ledger, before the draw of clients and given who took part.

    Args:
        run: The run.
        view: The spelling of a view, or "all".
        unit: "record" or "client".
        delta: Where epsilon is shown; None for the budget's, or 1e-5.

    Raises:
        UserError: The last model alone of a run that diverged: no bound holds for it.
    """
    if delta is None:
        delta = choose_headline(run.protocol).delta
    views = list_views(run)
    if view != ALL_VIEWS:
        views = (View.parse(view),)
    # A run that diverged stopped at a moment that depends on the data.
    if run.status == "diverged" and View.FINAL in views:
        raise UserError(
            f"{run.folder} diverged: when it stopped depends on the data, so no bound holds "
            "for its last model alone. Use --view rounds."
        )
    guarantees = [run.guarantee(one, unit, delta=delta) for one in views]
    priced = [guarantee.view for guarantee in guarantees]
    return Certificate(
        protocol=run.protocol,
        guarantees=guarantees,
        realised=price_clients_by_view(run, priced, unit, delta),
        clients=price_own_clients(run.protocol, run.sizes),
        delta=delta,
        sizes=run.sizes,
    )


def _describe_curve(
    guarantee: Guarantee, alphas: Sequence[float] | None, orders: Sequence[float] | None
) -> dict[str, Any]:
    """Returns points of the trade-off function and Rényi divergences, where some are wanted."""
    found: dict[str, Any] = {}
    if alphas is not None:
        found["tradeoff"] = [{"alpha": alpha, "beta": guarantee.beta(alpha)} for alpha in alphas]
    if orders is not None:
        found["renyi"] = [{"order": order, "divergence": guarantee.rdp(order)} for order in orders]
    return found

"""How guarantees are shown: a table per protocol, and for a run what was planned beside what was realised."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from sordino.privacy.caps import capped_rounds
from sordino.privacy.certify import harmonized
from sordino.privacy.guarantee import MEANINGFUL, Guarantee, rounded_down, rounded_up
from sordino.privacy.harmonizer import Needed, client_lines
from sordino.protocol import Protocol
from sordino.report.formats import at_most
from sordino.report.promises import headline, headline_of, promised, running_price, views_of

if TYPE_CHECKING:
    from sordino.federation.run import Run
    from sordino.federation.setup import Begun


def guarantees_table(guarantees: Sequence[Guarantee], delta: float, title: str) -> Table:
    """One row per view."""
    table = Table(title=title, title_justify="left")
    for column, justify in (
        ("view", "left"),
        ("sees", "left"),
        ("mu", "right"),
        ("rho", "right"),
        ("epsilon", "right"),
        ("method", "left"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for guarantee in guarantees:
        mu = rounded_up(guarantee.mu) if guarantee.mu is not None else "-"
        rho = rounded_up(guarantee.rho) if guarantee.rho is not None else "-"
        vouched = " (vouched)" if guarantee.assumptions else ""
        table.add_row(
            str(guarantee.view),
            guarantee.view.sees,
            mu,
            rho,
            at_most(guarantee.epsilon(delta)),
            guarantee.method + vouched,
        )
    return table


def notes(
    protocol: Protocol,
    guarantees: Sequence[Guarantee],
    delta: float,
    sizes: Sequence[int] | None = None,
) -> list[str]:
    """What must be read with the numbers: vouched assumptions, a delta that is too large, no noise. A run knows its clients' sizes."""
    said = list(dict.fromkeys(note for guarantee in guarantees for note in guarantee.notes))
    for guarantee in guarantees:
        if guarantee.unconditional is not None:
            free = at_most(guarantee.unconditional.epsilon(delta))
            said.append(
                f"{guarantee.view}: holds if, as vouched, {' and '.join(guarantee.assumptions)}; without that, epsilon = {free}."
            )
    for guarantee in guarantees:
        if math.isinf(guarantee.epsilon(delta)) and guarantee.derivation:
            said.append(
                f"{guarantee.view}: there is no limit to what is learned. {guarantee.derivation[-1]}"
            )
    each = protocol.data.records if protocol.data is not None else None
    records = (
        sum(sizes) if sizes is not None else each * protocol.clients if each is not None else None
    )
    total = {"record": records, "client": protocol.clients}[guarantees[0].unit]
    if total is not None and delta >= 1 / total:
        unit = guarantees[0].unit
        said.append(
            f"Warning: delta = {delta:g} is not below 1/{total}, one over the number of {unit}s: it would allow revealing one outright."
        )
    return said


def realised_table(planned: Guarantee, realised: dict[int, Guarantee], delta: float) -> Table:
    """The plan's bound beside the bounds of clients given who took part: the worst, the middle, the best."""
    table = Table(
        title=f"view {planned.view}, unit {planned.unit}, delta {delta:g}", title_justify="left"
    )
    table.add_column("bound")
    table.add_column("epsilon", justify="right")
    table.add_row("planned: before the draw of clients", at_most(planned.epsilon(delta)))
    ordered = sorted((guarantee.epsilon(delta), client) for client, guarantee in realised.items())
    for word, (epsilon, client) in (
        ("worst", ordered[-1]),
        ("middle", ordered[len(ordered) // 2]),
        ("best", ordered[0]),
    ):
        table.add_row(f"realised: {word} client, number {client}", at_most(epsilon))
    return table


def privacy_lines(run: Run) -> list[str]:
    """What a run promises, by what its ledger says was paid for: the headline in full, the other views in a line."""
    view, unit, delta = headline_of(run)
    main = promised(run, (view, unit, delta))
    others = [
        in_brief(promised(run, (other, unit, delta)), delta)
        for other in views_of(run)
        if other != view
    ]
    return [main.sentence(delta), "Epsilon in the other views: " + ", ".join(others) + "."]


def in_brief(guarantee: Guarantee, delta: float) -> str:
    """Returns a view with its epsilon, and what that rests on where something was vouched for."""
    condition = f" ({guarantee.condition})" if guarantee.condition else ""
    return f"{guarantee.view} {at_most(guarantee.epsilon(delta))}{condition}"


def cap_lines(protocol: Protocol, sizes: Sequence[int]) -> list[str]:
    """How often clients with budgets of their own may take part."""
    lines = client_lines(protocol, sizes) if harmonized(protocol) else []
    for budget in protocol.client:
        cap = capped_rounds(protocol, budget, sizes[budget.id])
        often = (
            f"takes part in at most {cap} of {protocol.rounds} rounds"
            if cap > 0
            else "never takes part: one round would pass it"
        )
        lines.append(
            f"Client {budget.id} {often}, by its own budget of epsilon = {budget.epsilon:g}."
        )
    return lines


def needed_table(rows: Sequence[Needed], protocol: Protocol, epsilon: float, delta: float) -> Table:
    """The noise that each mechanism needs for one guarantee; the least is marked, and the others are measured by it."""
    dimension = protocol.model.parameters if protocol.model is not None else None
    title = f"Noise for epsilon = {epsilon:g}, delta = {delta:g}, server: {protocol.rounds} rounds, {dimension:,} parameters"
    table = Table(title=title, title_justify="left")
    for column, justify in (
        ("mechanism", "left"),
        ("parameter", "left"),
        ("E|noise|", "right"),
        ("std", "right"),
        ("", "right"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    least = min(row.deviation for row in rows)
    for row in rows:
        rounded = rounded_down if row.parameter == "step" else rounded_up  # towards more noise
        beside = "least" if row.best else f"{row.deviation / least:.3g} x"
        wide = "" if row.width is None else f", width = {rounded_up(row.width, 4)}"
        sizes = (
            f"{row.parameter} = {rounded(row.value, 4)}{wide}",
            f"{row.amplitude:.4g}",
            f"{row.deviation:.4g}",
        )
        table.add_row(row.mechanism, *sizes, beside, style="bold" if row.best else "")
    return table


def spent_in(begun: Begun, folder: Path) -> Callable[[int], str]:
    """What so many rounds of a run cost that begins or goes on now, in a few words."""
    price, view = running_price(begun, folder), headline(begun.protocol)[0]

    def words(rounds: int) -> str:
        epsilon = price(rounds)
        least = "" if epsilon > MEANINGFUL else "<= "
        return f"epsilon {least}{at_most(epsilon)} ({view})"

    return words

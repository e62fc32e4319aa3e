"""Shows the guarantees of a protocol and of a run in words and in a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from sordino.mechanisms import mechanism_of
from sordino.privacy.bounds.question import has_own_noise
from sordino.privacy.guarantee import MEANINGFUL, Guarantee, format_delta, round_down, round_up
from sordino.privacy.own_noise import depends_on_records, describe_client_noise
from sordino.privacy.participation_caps import find_capped_rounds
from sordino.protocol import Protocol
from sordino.report.number_formats import format_upper_bound
from sordino.report.phrasing import explain_missing_limit, find_known_grid
from sordino.report.run_prices import choose_headline, choose_run_headline, list_views, price_run
from sordino.report.terminal_tables import Justify, make_table

if TYPE_CHECKING:
    from sordino.federation.setup import Begun
    from sordino.federation.store.run import Run
    from sordino.privacy.mechanism_comparison import Needed
    from sordino.privacy.own_prices import ClientPrice


def guarantees_table(guarantees: Sequence[Guarantee], delta: float, title: str) -> Table:
    """Builds a table of guarantees, one row per view.

    Args:
        guarantees: The guarantee of each view.
        delta: Where epsilon is shown.
        title: Printed above the table.

    Returns:
        The table for a terminal.
    """
    # Only Gaussian curves have a mu and a rho; without one, these columns would be empty.
    gaussian = any(guarantee.mu is not None for guarantee in guarantees)
    columns: dict[str, Justify] = {"view": "left", "sees": "left"}
    if gaussian:
        columns |= {"mu": "right", "rho": "right"}
    columns |= {"epsilon": "right", "method": "left"}
    table = make_table(columns, title)
    for guarantee in guarantees:
        cells = [str(guarantee.view), guarantee.sees]
        if gaussian:
            cells += [_round_up_or_dash(guarantee.mu), _round_up_or_dash(guarantee.rho)]
        method = guarantee.method
        if guarantee.assumptions:
            method += " (vouched)"
        table.add_row(*cells, format_upper_bound(guarantee.epsilon(delta)), method)
    return table


def _round_up_or_dash(value: float | None) -> str:
    """Returns a parameter rounded up, or a dash where the curve has none."""
    if value is None:
        return "-"
    return round_up(value)


def notes(
    protocol: Protocol,
    guarantees: Sequence[Guarantee],
    delta: float,
    sizes: Sequence[int] | None = None,
) -> list[str]:
    """Lists what must be read with the numbers.

    Args:
        protocol: The protocol to price.
        guarantees: Its guarantees, all about the same unit.
        delta: Where epsilon is shown.
        sizes: The number of records of every client, where it is known, as in a run.

    Returns:
        Sentences about assignments of records, vouched assumptions, missing limits and a delta that
        is too large.
    """
    # Views share most of their notes.
    lines = list(dict.fromkeys(note for guarantee in guarantees for note in guarantee.notes))
    lines += describe_closeness(guarantees)
    grid = find_known_grid(protocol)
    if grid is not None:
        lines.append(f"Uploads are {grid.in_words}.")
    for guarantee in guarantees:
        if guarantee.unconditional is not None:
            free = format_upper_bound(guarantee.unconditional.epsilon(delta))
            vouched = " and ".join(guarantee.assumptions)
            lines.append(
                f"{guarantee.view}: holds if, as vouched, {vouched}; "
                f"without that, epsilon = {free}."
            )
    for guarantee in guarantees:
        reason = explain_missing_limit(guarantee)
        if math.isinf(guarantee.epsilon(delta)) and reason:
            lines.append(f"{guarantee.view}: there is no limit to what is learned. {reason}")
    unit = guarantees[0].unit
    total = count_units(protocol, unit, sizes)
    # A mechanism that publishes one unit's data at random satisfies delta = 1/n.
    if total is not None and delta >= 1 / total:
        lines.append(
            f"Warning: delta = {format_delta(delta)} is not below 1/{total}, one over the number "
            f"of {unit}s: it would allow revealing one outright."
        )
    return lines


def describe_closeness(guarantees: Sequence[Guarantee]) -> list[str]:
    """Says how far drawn noise may be from the law that mu and rho describe.

    Args:
        guarantees: Guarantees of the views.

    Returns:
        One sentence; none where noise has exactly its law, or no mu is shown.
    """
    distances = [one.total_variation for one in guarantees if one.mu is not None]
    if max(distances, default=0.0) == 0:
        return []
    return [
        f"mu and rho hold up to a total variation of {round_up(max(distances))}, by which drawn "
        "noise may differ from its law; epsilon counts that."
    ]


def count_units(protocol: Protocol, unit: str, sizes: Sequence[int] | None) -> int | None:
    """Counts the records or the clients of a federation.

    Args:
        protocol: The federation.
        unit: "record" or "client".
        sizes: The number of records of every client, where it is known.

    Returns:
        The number; None where it follows neither from the sizes nor from the protocol.
    """
    if unit == "client":
        return protocol.clients
    if sizes is not None:
        return sum(sizes)
    if protocol.data is None or not protocol.data.distinct_sizes:
        return None
    if protocol.data.sizes is not None:
        return sum(protocol.data.sizes)
    return protocol.data.distinct_sizes[0] * protocol.clients


def depends_on_unstated_sizes(protocol: Protocol, unit: str) -> bool:
    """Returns whether a bound could be smaller if the clients' numbers of records were known.

    Args:
        protocol: The protocol to price.
        unit: "record" or "client".
    """
    # Stated sizes are in the price already.
    if protocol.data is not None and protocol.data.distinct_sizes:
        return False
    return protocol.aggregation.weighs_records or depends_on_records(protocol, unit)


def realised_table(planned: Guarantee, realised: dict[int, Guarantee], delta: float) -> Table:
    """Builds a table of the planned bound and of those given who took part.

    Args:
        planned: The bound before the draw of clients.
        realised: The bound of every client.
        delta: Where epsilon is shown.

    Returns:
        The table, with the worst, the middle and the best client.
    """
    title = f"view {planned.view}, unit {planned.unit}, delta {format_delta(delta)}"
    table = make_table({"bound": "left", "epsilon": "right"}, title)
    # The planned bound comes first: the others hold only for a reader who may know the draw.
    table.add_row("planned: before the draw of clients", format_upper_bound(planned.epsilon(delta)))
    ordered = sorted((guarantee.epsilon(delta), client) for client, guarantee in realised.items())
    shown = {
        "worst": ordered[-1],
        "middle": ordered[len(ordered) // 2],
        "best": ordered[0],
    }
    for word, (epsilon, client) in shown.items():
        table.add_row(f"realised: {word} client, number {client}", format_upper_bound(epsilon))
    return table


def privacy_lines(run: Run) -> list[str]:
    """Says what a run guarantees, by what its ledger charged.

    Args:
        run: A run, finished or not.

    Returns:
        The headline's guarantee as a sentence, and a line with the other views.
    """
    headline = choose_run_headline(run)
    main = price_run(run, headline)
    others = []
    for view in list_views(run):
        if view != headline.view:
            guarantee = price_run(run, headline._replace(view=view))
            others.append(in_brief(guarantee, headline.delta))
    return [main.sentence(headline.delta), "Epsilon in the other views: " + ", ".join(others) + "."]


def in_brief(guarantee: Guarantee, delta: float) -> str:
    """Returns a view with its epsilon, and with the assumption that was vouched for, if any.

    Args:
        guarantee: The guarantee of the view.
        delta: Where epsilon is shown.
    """
    text = f"{guarantee.view} {format_upper_bound(guarantee.epsilon(delta))}"
    if guarantee.condition:
        text += f" ({guarantee.condition})"
    return text


def cap_lines(protocol: Protocol, sizes: Sequence[int]) -> list[str]:
    """Says how often clients with personal budgets may take part.

    Args:
        protocol: The federation.
        sizes: The number of records of every client.

    Returns:
        A sentence for every such client; none where no client has a budget.
    """
    lines: list[str] = []
    if has_own_noise(protocol):
        lines += describe_client_noise(protocol, sizes)
    for budget in protocol.client:
        cap = find_capped_rounds(protocol, budget, sizes[budget.id])
        if cap > 0:
            often = f"takes part in at most {cap} of {protocol.rounds} rounds"
        else:
            often = "never takes part: one round would exceed it"
        lines.append(
            f"Client {budget.id} {often}, by its own budget of epsilon = {budget.epsilon:g}."
        )
    return lines


def clients_table(prices: Sequence[ClientPrice]) -> Table:
    """Builds a table of clients that have their own noise.

    Args:
        prices: The noise and the bound of every such client.
    """
    table = Table(title="Each client's own noise, and its bound against the server")
    for column in ("client", "mechanism", "noise", "budget", "delta", "epsilon, at most", "rounds"):
        table.add_column(column, justify="left" if column in ("mechanism", "noise") else "right")
    for price in prices:
        mechanism = mechanism_of(price.noise)
        table.add_row(
            str(price.budget.id),
            price.noise.tag,
            f"{mechanism.size_entry} = {round_up(mechanism.parameter, 4)}",
            f"{price.budget.epsilon:g}",
            format_delta(price.budget.delta),
            format_upper_bound(price.bound),
            f"{price.cap:,}",
        )
    return table


def needed_table(rows: Sequence[Needed], protocol: Protocol, epsilon: float, delta: float) -> Table:
    """Builds a table of the noise that each mechanism needs for the same guarantee.

    Args:
        rows: The mechanisms with their noise.
        protocol: The federation that they are compared for.
        epsilon: The epsilon of the guarantee, against the server.
        delta: The delta of the guarantee.

    Returns:
        The table; the least noise is marked, and the others are given as multiples of it.
    """
    title = (
        f"Noise for epsilon = {epsilon:g}, delta = {format_delta(delta)}, "
        f"server: {protocol.rounds} rounds"
    )
    if protocol.model is not None and protocol.model.parameters is not None:
        title += f", {protocol.model.parameters:,} parameters"
    table = make_table(
        {
            "mechanism": "left",
            "parameter": "left",
            "E|noise|": "right",
            "std": "right",
            "": "right",
        },
        title,
    )
    least = min(row.deviation for row in rows)
    for row in rows:
        # Rounded towards more noise: a staircase with a smaller step adds more.
        value = round_up(row.value, 4)
        if row.parameter == "step":
            value = round_down(row.value, 4)
        parameter = f"{row.parameter} = {value}"
        if row.width is not None:
            parameter += f", width = {round_up(row.width, 4)}"
        compared = f"{row.deviation / least:.3g} x"
        style = ""
        if row.best:
            compared = "least"
            style = "bold"
        table.add_row(
            row.mechanism,
            parameter,
            f"{row.amplitude:.4g}",
            f"{row.deviation:.4g}",
            compared,
            style=style,
        )
    return table


def make_round_pricer(begun: Begun, folder: Path) -> Callable[[int], str]:
    """Returns a function that says what a number of rounds of a run costs.

    Args:
        begun: A run that begins or continues now.
        folder: Where it is written.

    Returns:
        A function from a number of rounds to a few words.
    """
    # What is printed about a protocol needs no ledger.
    from sordino.report.spending_trace import price_while_running

    price = price_while_running(begun, folder)
    view = choose_headline(begun.protocol)[0]

    def say_price(rounds: int) -> str:
        epsilon = price(rounds)
        if epsilon > MEANINGFUL:
            return f"epsilon {format_upper_bound(epsilon)} ({view})"
        return f"epsilon <= {format_upper_bound(epsilon)} ({view})"

    return say_price

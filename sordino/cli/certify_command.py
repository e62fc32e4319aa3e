"""The command `sordino certify`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.arguments import Json, Sets, Unit, read_numbers
from sordino.cli.console import messages, print_json, print_message, results
from sordino.cli.option_checks import refuse_with, refuse_without
from sordino.cli.protocol_sources import count_priced_parameters, protocol_from
from sordino.cli.record_sizes import LooksAtData, print_unstated_sizes, read_sizes
from sordino.protocol import UserError
from sordino.protocol.views import UNIT_IN_WORDS

if TYPE_CHECKING:
    from sordino.federation.store.run import Run
    from sordino.report.view_prices import Certificate

# Delta of an event, which states none.
EVENT_DELTA = 1e-5


def certify(
    source: Annotated[
        Path | None,
        typer.Argument(metavar="[PROTOCOL.toml|RUN]", help="Protocol file or run folder."),
    ] = None,
    sets: Sets = None,
    view: Annotated[
        str,
        typer.Option(help="server, server:k, rounds, coalition:k, final, weak, strong, or all."),
    ] = "all",
    unit: Unit = "record",
    delta: Annotated[
        float | None, typer.Option(help="Where epsilon is shown; by default the budget's, or 1e-5.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw trade-offs, epsilon against rounds and noise."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the derivation of every bound.")
    ] = False,
    data: LooksAtData = False,
    tradeoff: Annotated[
        str | None,
        typer.Option(
            metavar="ALPHA,...",
            help="With --json: the least false negative rates at these false positive rates.",
        ),
    ] = None,
    orders: Annotated[
        str | None,
        typer.Option(metavar="ORDER,...", help="With --json: Rényi divergences of these orders."),
    ] = None,
    event: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Price an event of dp_accounting instead."),
    ] = None,
    json: Json = False,
) -> None:
    """Bound what each adversary learns, at most."""
    # Options without effect are refused at once.
    if event is not None:
        if source is not None or sets:
            raise UserError("--event prices the event of a file: leave the protocol out.")
        refuse_with(
            "--event", plot=plot, explain=explain, data=data, tradeoff=tradeoff, orders=orders
        )
        show_event(event, EVENT_DELTA if delta is None else delta, json)
        return
    if not json:
        refuse_without("--json", tradeoff=tradeoff, orders=orders)
    alphas = read_numbers("--tradeoff", tradeoff)
    renyi_orders = read_numbers("--orders", orders)
    # A name that cannot be drawn to is refused before minutes of pricing.
    if plot is not None:
        from sordino.report.certificate_plots import check_plot_path

        check_plot_path(plot)
    certificate = price_source(source, sets, view, unit, delta, data)
    if plot is not None:
        from sordino.report.certificate_plots import draw_certificate

        with messages.status("drawing"):
            draw_certificate(certificate.protocol, certificate.guarantees, certificate.delta, plot)
    if json:
        print_json(certificate.as_document(alphas=alphas, orders=renyi_orders))
        return
    show_certificate(certificate, explain)
    if plot is not None:
        print_message(f"Plot: {plot}")


def price_source(
    source: Path | None,
    sets: list[str] | None,
    view: str,
    unit: str,
    delta: float | None,
    read_data: bool,
) -> Certificate:
    """Prices a protocol file, a run, or the built-in example.

    Args:
        source: The protocol file or the run's folder; None for the built-in example.
        sets: Overrides of a protocol.
        view: The spelling of a view, or "all".
        unit: "record" or "client".
        delta: Where epsilon is shown; None for the budget's, or 1e-5.
        read_data: Whether the data of a protocol may be read, for the sizes of its clients.
    """
    from sordino.report.view_prices import certify_protocol_views, certify_run_views

    if source is not None and source.is_dir():
        # A run is priced by its ledger, whatever the file says now.
        return certify_run_views(load_run(source, sets), view, unit, delta)
    protocol = count_priced_parameters(protocol_from(source, sets))
    sizes = read_sizes(protocol, read_data)
    return certify_protocol_views(protocol, view, unit, delta, sizes)


def show_event(path: Path, delta: float, json: bool) -> None:
    """Prices an event of dp_accounting and prints the bounds.

    Args:
        path: The path of a JSON file.
        delta: Where epsilon is shown.
        json: Print one JSON document and nothing else.
    """
    from sordino.privacy.curves.checks import require_delta
    from sordino.privacy.foreign_events import price_event, read_event
    from sordino.privacy.guarantee import format_delta, round_up

    require_delta(delta)
    event = read_event(path)
    with messages.status("computing"):
        prices = price_event(event, delta)
    if json:
        print_json({"event": str(event), "prices": [asdict(price) for price in prices]})
        return
    results.print(f"{event}", soft_wrap=True, highlight=False)
    for price in prices:
        if price.epsilon is None:
            line = f"{price.adjacency}: no accountant prices it ({price.accountant})"
        else:
            line = (
                f"{price.adjacency}: epsilon of at most {round_up(price.epsilon)} at delta = "
                f"{format_delta(delta)} ({price.accountant})"
            )
        results.print(line, soft_wrap=True, highlight=False)
    print_message(
        "An event does not say who sees what: the bound is for an adversary who sees its outputs. "
        "Noise multipliers are taken in units of the norm of one contribution."
    )


def load_run(folder: Path, sets: list[str] | None) -> Run:
    """Loads a run.

    Args:
        folder: The run's folder.
        sets: Overrides, of which a run takes none.

    Raises:
        UserError: There are overrides, or the run is damaged.
    """
    from sordino.federation.store.run import Run

    if sets:
        raise UserError(
            f"--set changes a protocol, and {folder} is a run, which cannot be changed."
        )
    run = Run.load(folder)
    # Runs of earlier versions have no seal, and are priced all the same.
    if not run.sealed:
        print_message(
            f"{folder} has no seal: it was written before there were seals, "
            "and a change of it leaves no trace."
        )
    return run


def show_certificate(certificate: Certificate, explain: bool) -> None:
    """Prints the table, the notes, and for a run the bounds given who took part.

    Args:
        certificate: The bounds.
        explain: Whether derivations are printed.
    """
    from sordino.privacy.guarantee import format_delta
    from sordino.report.price_tables import clients_table, guarantees_table, notes, realised_table

    guarantees = certificate.guarantees
    delta = certificate.delta
    first = guarantees[0]
    results.print(
        guarantees_table(
            guarantees,
            delta,
            f"Upper bounds about {UNIT_IN_WORDS[first.unit]} ({first.adjacency}) "
            f"at delta = {format_delta(delta)}",
        )
    )
    for note in notes(certificate.protocol, guarantees, delta, certificate.sizes):
        results.print(note, soft_wrap=True)
    print_unstated_sizes(certificate.protocol, first.unit, certificate.sizes)
    if certificate.warning is not None:
        results.print(certificate.warning, soft_wrap=True)
    for guarantee in guarantees:
        if guarantee.view in certificate.realised:
            realised = certificate.realised[guarantee.view]
            results.print(realised_table(guarantee, realised, delta))
        if explain:
            results.print(f"View {guarantee.view}:", style="bold")
            results.print(guarantee.explain(), soft_wrap=True)
    if certificate.clients:
        results.print(clients_table(certificate.clients))

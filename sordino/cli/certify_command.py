"""The commands `sordino certify` and `sordino calibrate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.arguments import VIEWS_HELP, File, Json, Sets, Unit
from sordino.cli.console import messages, print_json, print_message, results
from sordino.cli.protocol_sources import count_priced_parameters, protocol_from
from sordino.protocol import Protocol, UserError
from sordino.protocol.views import UNIT_IN_WORDS
from sordino.report.terminal_tables import facts_table

if TYPE_CHECKING:
    from sordino.federation.store.run import Run
    from sordino.privacy.guarantee import Guarantee
    from sordino.protocol import View


# Realised bounds are given who took part, and some guarantees rest on hiding that.
HIDDEN_DRAW = (
    "The guarantee relies on hiding who took part. The realised bounds, which are given "
    "who did, reveal it: do not publish them."
)
UNSTATED_SIZES = (
    "The file does not say how many records clients have, so the worst case counts. A run knows, "
    "and its bound may be smaller; --data reads the data beforehand, and data.records (one size) "
    "or data.sizes (a list) states it in the file."
)
LooksAtData = Annotated[
    bool,
    typer.Option("--data", help="Read the data to learn how many records every client has."),
]


def read_sizes(protocol: Protocol, read_data: bool) -> tuple[int, ...] | None:
    """Returns the number of records of every client, from the data.

    Args:
        protocol: The federation.
        read_data: Whether the data may be read.

    Returns:
        None if they may not.
    """
    if not read_data:
        return None
    from sordino.federation.setup import prepare

    # Pricing needs no torch, and most calls do not read data.
    with messages.status("reading the data"):
        return tuple(prepare(protocol).sizes.tolist())


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
    if event is not None:
        if source is not None or sets:
            raise UserError("--event prices the event of a file: leave the protocol out.")
        show_event(event, delta or 1e-5, json)
        return
    from sordino.privacy.own_prices import price_own_clients
    from sordino.privacy.published import find_withheld
    from sordino.report.price_tables import clients_table
    from sordino.report.run_prices import choose_headline, price_clients_by_view

    # A name that cannot be drawn to is refused before minutes of pricing.
    if plot is not None:
        from sordino.report.certificate_plots import check_plot_path, draw_certificate

        check_plot_path(plot)
    # Options without effect are refused at once.
    alphas = read_numbers("--tradeoff", tradeoff, json)
    renyi_orders = read_numbers("--orders", orders, json)
    run = None
    if source is not None and source.is_dir():
        # A run is priced by its ledger, whatever the file says now.
        run = load_run(source, sets)
        protocol = run.protocol
        sizes: tuple[int, ...] | None = run.sizes
    else:
        protocol = count_priced_parameters(protocol_from(source, sets))
        sizes = read_sizes(protocol, data)
    # The delta that the protocol's owner chose; another one would answer another question.
    if delta is None:
        delta = choose_headline(protocol).delta
    guarantees = price_views(run or protocol, view, unit, delta, sizes)
    realised: dict[View, dict[int, Guarantee]] = {}
    if run is not None:
        views = [guarantee.view for guarantee in guarantees]
        realised = price_clients_by_view(run, views, unit, delta)
    if plot is not None:
        with messages.status("drawing"):
            draw_certificate(protocol, guarantees, delta, plot)
    clients = price_own_clients(protocol, sizes)
    if json:
        document = certificate_document(guarantees, realised, delta, alphas, renyi_orders)
        if clients:
            document["clients"] = [price.as_document() for price in clients]
        if realised and find_withheld(protocol).draw:
            document["realised_note"] = HIDDEN_DRAW
        print_json(document)
        return
    show_guarantees(protocol, guarantees, realised, delta, explain, sizes=sizes)
    if clients:
        results.print(clients_table(clients))
    if plot is not None:
        print_message(f"Plot: {plot}")


def show_event(path: Path, delta: float, json: bool) -> None:
    """Prices an event of dp_accounting and prints what it amounts to.

    Args:
        path: Path of a JSON file.
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


def price_views(
    source: Run | Protocol, view: str, unit: str, delta: float, sizes: tuple[int, ...] | None
) -> list[Guarantee]:
    """Prices a run or a protocol in one view or in all.

    Args:
        source: The run or protocol to price.
        view: The spelling of a view, or "all".
        unit: "record" or "client".
        delta: Where epsilon is shown.
        sizes: The number of records of every client, where it is known.

    Raises:
        UserError: A diverged run's last model alone, of which no bound holds.
    """
    from sordino.privacy.certify import certify
    from sordino.protocol import View, all_views
    from sordino.report.run_prices import list_views

    if isinstance(source, Protocol):
        # With as many colluders as the channel provides for, so that no adversary is left out.
        views: tuple[View, ...] = all_views(source.clients, source.channel.colluders)
        if view != "all":
            views = (View.parse(view),)
        return [certify(source, one, unit, delta=delta, sizes=sizes) for one in views]
    views = list_views(source)
    if view != "all":
        views = (View.parse(view),)
    # A run that diverged stopped at a moment that depends on the data.
    if source.status == "diverged" and View.FINAL in views:
        raise UserError(
            f"{source.folder} diverged: when it stopped depends on the data, so no bound holds "
            "for its last model alone. Use --view rounds."
        )
    return [source.guarantee(one, unit, delta=delta) for one in views]


def certificate_document(
    guarantees: list[Guarantee],
    realised: dict[View, dict[int, Guarantee]],
    delta: float,
    alphas: list[float] | None,
    orders: list[float] | None,
) -> dict[str, object]:
    """Returns what `sordino certify --json` prints.

    Args:
        guarantees: One for each view.
        realised: By view and client, the bounds given who took part; empty without a run.
        delta: Where epsilon is shown.
        alphas: Where the trade-off functions are asked for.
        orders: The orders of Rényi divergences that are asked for.
    """
    rows = []
    for guarantee in guarantees:
        rows.append({**guarantee.as_document(delta), **curve_document(guarantee, alphas, orders)})
    document: dict[str, object] = {"guarantees": rows}
    if realised:
        document["realised"] = [
            {"client": client, **guarantee.as_document(delta)}
            for per_client in realised.values()
            for client, guarantee in per_client.items()
        ]
    return document


def read_numbers(option: str, text: str | None, json: bool) -> list[float] | None:
    """Reads the numbers of an option that goes with --json.

    Args:
        option: Its name.
        text: What was typed; None where it was not given.
        json: Whether --json was given.

    Returns:
        The numbers; None where the option was not given.

    Raises:
        UserError: There is no --json, or something is not a number.
    """
    if text is None:
        return None
    if not json:
        raise UserError(f"{option}: expected together with --json, which prints the result.")
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text!r}: expected numbers separated by commas.") from None


def curve_document(
    guarantee: Guarantee, alphas: list[float] | None, orders: list[float] | None
) -> dict[str, object]:
    """Returns points of the trade-off function and Rényi divergences, where they were asked for.

    Args:
        guarantee: The bound.
        alphas: False positive rates, or None.
        orders: Orders of Rényi divergences, or None.
    """
    found: dict[str, object] = {}
    if alphas is not None:
        found["tradeoff"] = [{"alpha": one, "beta": guarantee.beta(one)} for one in alphas]
    if orders is not None:
        found["renyi"] = [{"order": one, "divergence": guarantee.rdp(one)} for one in orders]
    return found


def load_run(folder: Path, sets: list[str] | None) -> Run:
    """Loads a run, which is priced as it was run.

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


def show_guarantees(
    protocol: Protocol,
    guarantees: list[Guarantee],
    realised: dict[View, dict[int, Guarantee]],
    delta: float,
    explain: bool,
    sizes: tuple[int, ...] | None,
) -> None:
    """Prints the table, the notes, and for a run the bounds given who took part.

    Args:
        protocol: The federation.
        guarantees: One for each view.
        realised: By view and client, the bounds given who took part; empty without a run.
        delta: Where epsilon is shown.
        explain: Whether derivations are printed.
        sizes: The number of records of every client, where it is known.
    """
    from sordino.privacy.guarantee import format_delta
    from sordino.privacy.published import find_withheld
    from sordino.report.price_tables import (
        depends_on_unstated_sizes,
        guarantees_table,
        notes,
        realised_table,
    )

    unit = UNIT_IN_WORDS[guarantees[0].unit]
    adjacency = guarantees[0].adjacency
    title = f"Upper bounds about {unit} ({adjacency}) at delta = {format_delta(delta)}"
    results.print(guarantees_table(guarantees, delta, title))
    for note in notes(protocol, guarantees, delta, sizes):
        results.print(note, soft_wrap=True)
    if sizes is None and depends_on_unstated_sizes(protocol, guarantees[0].unit):
        results.print(UNSTATED_SIZES, soft_wrap=True)
    # Readers of realised bounds learn the draw.
    if realised and find_withheld(protocol).draw:
        results.print(HIDDEN_DRAW, soft_wrap=True)
    for guarantee in guarantees:
        if guarantee.view in realised:
            results.print(realised_table(guarantee, realised[guarantee.view], delta))
        if explain:
            results.print(f"View {guarantee.view}:", style="bold")
            results.print(guarantee.explain(), soft_wrap=True)


def calibrate(
    protocol: File = None,
    sets: Sets = None,
    view: Annotated[str, typer.Option(help=VIEWS_HELP)] = "server",
    unit: Unit = "record",
    epsilon: Annotated[float | None, typer.Option(help="Largest epsilon, with --delta.")] = None,
    delta: Annotated[float, typer.Option(help="For --epsilon.")] = 1e-5,
    beta: Annotated[
        float | None, typer.Option(help="Least false negative rate, with --at-alpha.")
    ] = None,
    at_alpha: Annotated[float | None, typer.Option(help="False positive rate for --beta.")] = None,
    advantage: Annotated[
        float | None, typer.Option(help="Largest advantage of any test over guessing.")
    ] = None,
    mechanisms: Annotated[
        bool,
        typer.Option(
            "--mechanisms", help="Compare the noise that each mechanism needs, for --epsilon."
        ),
    ] = False,
    data: LooksAtData = False,
    json: Json = False,
) -> None:
    """Find the smallest noise that meets a target, which is never exceeded."""
    from sordino.privacy.calibrate import calibrate
    from sordino.report.price_tables import depends_on_unstated_sizes

    plan = count_priced_parameters(protocol_from(protocol, sets))
    if mechanisms:
        # The table compares uploads, and other views would mix in amplification.
        if view != "server":
            raise UserError(
                f"--mechanisms compares mechanisms against the server, "
                f"and --view {view} was given: leave it out."
            )
        compare_mechanisms(plan, unit, epsilon, delta, json)
        return
    sizes = read_sizes(plan, data)
    with messages.status("searching for the noise"):
        found = calibrate(
            plan,
            view,
            unit,
            epsilon=epsilon,
            delta=delta,
            beta=beta,
            at_alpha=at_alpha,
            advantage=advantage,
            sizes=sizes,
        )
    if json:
        print_json(found.as_document())
        return
    goal = ", ".join(f"{name} = {value:g}" for name, value in found.target.items())
    facts = [
        ("Noise", f"noise.{found.parameter} = {found.value!r}"),
        ("Target", goal),
        ("Reached", found.guarantee.sentence(delta)),
    ]
    # What was vouched for may be wrong, so the value without it is shown too.
    if found.guarantee.unconditional is not None:
        facts.append(
            ("Vouched for", f"without it: {found.guarantee.unconditional.sentence(delta)}")
        )
    results.print(facts_table(facts))
    if sizes is None and depends_on_unstated_sizes(plan, unit):
        results.print(UNSTATED_SIZES, soft_wrap=True)


def compare_mechanisms(
    plan: Protocol, unit: str, epsilon: float | None, delta: float, json: bool
) -> None:
    """Prints the noise that each mechanism needs for the same guarantee against the server.

    Args:
        plan: The federation.
        unit: "record" or "client".
        epsilon: The target.
        delta: Delta of the target.
        json: Print one JSON document and nothing else.

    Raises:
        UserError: There is no target.
    """
    from sordino.federation.setup import with_parameter_count
    from sordino.privacy.mechanism_comparison import mechanism_table
    from sordino.report.price_tables import needed_table

    if epsilon is None:
        raise UserError(
            "--mechanisms compares the noise for one guarantee: "
            "add --epsilon, and --delta if it is not 1e-5."
        )
    with messages.status("searching for the noise"):
        # The price of l1 noise depends on the number of parameters, which the file may leave open.
        plan = with_parameter_count(plan)
        rows = mechanism_table(plan, unit, epsilon=epsilon, delta=delta)
    if json:
        print_json(
            {
                "epsilon": epsilon,
                "delta": delta,
                "view": "server",
                "unit": unit,
                "mechanisms": [asdict(row) for row in rows],
            }
        )
    else:
        results.print(needed_table(rows, plan, epsilon, delta))

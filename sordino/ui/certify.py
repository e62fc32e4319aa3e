"""`sordino certify` and `sordino calibrate`: what a protocol promises, and the noise for a promise."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.protocol import Mean, NoisySgd, Protocol, UserError
from sordino.ui.arguments import File, Json, Sets, Unit
from sordino.ui.console import facts_table, messages, print_json, results
from sordino.ui.sources import protocol_from

if TYPE_CHECKING:
    from sordino.federation.run import Run
    from sordino.privacy.guarantee import Guarantee
    from sordino.protocol import View


HIDDEN_DRAW = "The promise counts on who took part being hidden. What is realised, given who did, tells it: do not publish it."
UNSAID_SIZES = (
    "How many records clients have is not said, so the worst case counts. A run knows, and may promise less; --data looks "
    "at the data beforehand, and where clients are of one size, data.records says it."
)
LooksAtData = Annotated[
    bool,
    typer.Option("--data", help="Look at the data for the number of records of every client."),
]


def sizes_of(protocol: Protocol, look: bool) -> tuple[int, ...] | None:
    """Returns the number of records of every client, if they are to be looked at."""
    if not look:
        return None
    from sordino.federation.setup import prepare

    with messages.status("looking at the data"):
        return tuple(prepare(protocol).sizes.tolist())


def sizes_matter(protocol: Protocol, unit: str) -> bool:
    """Returns whether a promise could be smaller if the clients' sizes, which are not said, were known."""
    from sordino.privacy.caps import depends_on_records

    if protocol.data is not None and protocol.data.records is not None:
        return False
    weighed = isinstance(protocol.aggregation, Mean) and protocol.aggregation.weights == "records"
    return weighed or depends_on_records(protocol, unit)


def certify(
    source: Annotated[
        Path | None,
        typer.Argument(metavar="[PROTOCOL.toml|RUN]", help="Protocol file or run folder."),
    ] = None,
    sets: Sets = None,
    view: Annotated[
        str, typer.Option(help="server, rounds, coalition:k, final, weak, strong, or all.")
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
        bool, typer.Option("--explain", help="Print how every bound comes about.")
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
    json: Json = False,
) -> None:
    """Say what each adversary learns, at most."""
    from sordino.privacy.certify import certify
    from sordino.protocol import View, all_views
    from sordino.report.promises import headline, views_of

    if plot is not None:
        from sordino.ui.plots import checked_target, draw_certificate

        checked_target(plot)
    alphas = listed("--tradeoff", tradeoff, json)
    wanted = listed("--orders", orders, json)
    run = loaded_run(source, sets) if source is not None and source.is_dir() else None
    protocol = run.protocol if run is not None else protocol_from(source, sets)
    delta = headline(protocol)[2] if delta is None else delta
    offered = views_of(run) if run is not None else all_views(protocol.clients)
    views = offered if view == "all" else (View.parse(view),)
    if run is not None and run.status == "diverged" and View.FINAL in views:
        raise UserError(
            f"{source} diverged: when it stopped depends on the data, so no bound for its last model alone holds. Ask for rounds."
        )
    if run is None:
        sizes = sizes_of(protocol, data)
        guarantees = [certify(protocol, one, unit, delta=delta, sizes=sizes) for one in views]
    else:
        sizes = run.sizes
        guarantees = [run.guarantee(one, unit, delta=delta) for one in views]
    document: dict[str, object] = {
        "guarantees": [
            {**guarantee.as_document(delta), **curve_document(guarantee, alphas, wanted)}
            for guarantee in guarantees
        ]
    }
    realised = {} if run is None else realised_in(run, views, unit, delta)
    if plot is not None:
        with messages.status("drawing"):
            draw_certificate(protocol, guarantees, delta, plot)
    if json:
        if realised:
            document["realised"] = [
                {"client": client, **guarantee.as_document(delta)}
                for per_client in realised.values()
                for client, guarantee in per_client.items()
            ]
        print_json(document)
        return
    show_guarantees(protocol, guarantees, realised, delta, explain, sizes=sizes)
    if plot is not None:
        messages.print(f"Plot: {plot}")


def listed(option: str, text: str | None, json: bool) -> list[float] | None:
    """Returns the numbers of an option that goes with --json.

    Raises:
        UserError: there is no --json, or something is not a number.
    """
    if text is None:
        return None
    if not json:
        raise UserError(f"{option}: expected together with --json, which prints what it asks for.")
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text!r}: expected numbers with commas between them.") from None


def curve_document(
    guarantee: Guarantee, alphas: list[float] | None, orders: list[float] | None
) -> dict[str, object]:
    """Returns points of the trade-off function and Rényi divergences, where they were asked for."""
    found: dict[str, object] = {}
    if alphas is not None:
        found["tradeoff"] = [{"alpha": one, "beta": guarantee.beta(one)} for one in alphas]
    if orders is not None:
        found["renyi"] = [{"order": one, "divergence": guarantee.rdp(one)} for one in orders]
    return found


def loaded_run(folder: Path, sets: list[str] | None) -> Run:
    """A run that is to be priced as it was run."""
    from sordino.federation.run import Run

    if sets:
        raise UserError(
            f"--set changes a protocol, and {folder} is a run: what was run cannot be changed."
        )
    run = Run.load(folder)
    if not run.sealed:
        messages.print(
            f"{folder} has no seal: it was written before there were seals, and a change of it leaves no trace.",
            soft_wrap=True,
        )
    return run


def realised_in(
    run: Run, views: tuple[View, ...], unit: str, delta: float
) -> dict[View, dict[int, Guarantee]]:
    """Per view and client, the bound given who took part."""
    from sordino.privacy.joined_steps import adds_up
    from sordino.privacy.spending import realised

    if isinstance(run.protocol.local, NoisySgd) and not adds_up(run.protocol):
        # One bound for all views: found once.
        found = realised(run.protocol, run.ledger, views[0], unit, delta=delta, sizes=run.sizes)
        return {
            view: {
                client: run.noted(replace(guarantee, view=view))
                for client, guarantee in found.items()
            }
            for view in views
        }
    return {
        view: {
            client: run.noted(guarantee)
            for client, guarantee in realised(
                run.protocol, run.ledger, view, unit, delta=delta, sizes=run.sizes
            ).items()
        }
        for view in views
    }


def show_guarantees(
    protocol: Protocol,
    guarantees: list[Guarantee],
    realised: dict[View, dict[int, Guarantee]],
    delta: float,
    explain: bool,
    sizes: tuple[int, ...] | None,
) -> None:
    """The table, the notes, and for a run what was realised."""
    from sordino.privacy.published import find_withheld
    from sordino.ui.prices import guarantees_table, notes, realised_table

    unit = {"record": "one record", "client": "all records of one client"}[guarantees[0].unit]
    title = f"At most, about {unit} ({guarantees[0].adjacency}), at delta = {delta:g}"
    results.print(guarantees_table(guarantees, delta, title))
    for note in notes(protocol, guarantees, delta, sizes):
        results.print(note, soft_wrap=True)
    if sizes is None and sizes_matter(protocol, guarantees[0].unit):
        results.print(UNSAID_SIZES, soft_wrap=True)
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
    view: Annotated[
        str, typer.Option(help="server, rounds, coalition:k, final, weak or strong.")
    ] = "server",
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
    """Find the smallest noise that meets a target; it is never past the target."""
    from sordino.privacy.calibrate import calibrate

    plan = protocol_from(protocol, sets)
    if mechanisms:
        if view != "server":
            raise UserError(
                f"--mechanisms compares mechanisms against the server, and --view {view} was given: leave it out."
            )
        compare_mechanisms(plan, unit, epsilon, delta, json)
        return
    sizes = sizes_of(plan, data)
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
    if found.guarantee.unconditional is not None:
        facts.append(
            ("Vouched for", f"without it: {found.guarantee.unconditional.sentence(delta)}")
        )
    results.print(facts_table(facts))
    if sizes is None and sizes_matter(plan, unit):
        results.print(UNSAID_SIZES, soft_wrap=True)


def compare_mechanisms(
    plan: Protocol, unit: str, epsilon: float | None, delta: float, json: bool
) -> None:
    """The table of the noise that each mechanism needs for the same guarantee against the server."""
    from sordino.privacy.harmonizer import mechanism_table
    from sordino.ui.prices import needed_table

    if epsilon is None:
        raise UserError(
            "--mechanisms compares the noise for one guarantee: add --epsilon, and --delta if it is not 1e-5."
        )
    with messages.status("searching for the noise"):
        plan = with_parameters(plan)
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


def with_parameters(plan: Protocol) -> Protocol:
    """The protocol with the number of its parameters; where it does not say, the model is built to count them."""
    if plan.model is None or plan.data is None or plan.model.parameters is not None:
        return plan
    from sordino.federation.models import parameter_count
    from sordino.federation.setup import prepare

    return replace(
        plan, model=replace(plan.model, parameters=parameter_count(prepare(plan).module))
    )

"""The command line. Each command reads its input, calls one function of the rooms below, and shows the result.

Rooms that need torch are imported inside the commands, so that `sordino --version` and `sordino check` answer at once.
"""

from __future__ import annotations

import functools
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from sordino.protocol import NoisySgd, Protocol, SordinoError, UserError, dumps, schema
from sordino.ui.audit import audit, resume_audit
from sordino.ui.console import INTERRUPTED, Stopped, facts_table, messages, percent, print_json, results
from sordino.ui.papers import app as papers
from sordino.ui.sources import EXAMPLE, example_text, protocol_from

if TYPE_CHECKING:
    from sordino.federation.run import Run
    from sordino.privacy.guarantee import Guarantee
    from sordino.protocol import View

app = typer.Typer(
    help="Differentially private federated learning whose promises are checked.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

app.add_typer(papers, name="papers")
app.command()(audit)

File = Annotated[Path | None, typer.Argument(metavar="[PROTOCOL.toml]", help="Protocol file; without it, the built-in example.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, such as noise.sigma=0.5.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Unit = Annotated[str, typer.Option(help="What is hidden: record or client.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes; by default one per core.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or mps.")]


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from importlib.metadata import version as installed

        print(installed("sordino"))
        raise typer.Exit


@app.command()
def train(
    protocol: File = None,
    sets: Sets = None,
    out: Annotated[Path | None, typer.Option(metavar="RUN", help="Run folder; by default runs/<name>-<n>.")] = None,
    engine: Annotated[str, typer.Option(help="auto, torch or native.")] = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="Train with this many seeds; shows mean and spread.")] = 1,
    workers: Workers = None,
    device: Device = "cpu",
    evaluate_every: Annotated[int | None, typer.Option(help="Rounds between two scorings; 0 for none.")] = None,
    json: Json = False,
) -> None:
    """Train a federation and keep the run in a folder."""
    from sordino.ui.summary import as_document, mean_and_spread, repeats_table, summary

    plan = protocol_from(protocol, sets)
    runs = []
    for repeat in range(repeats):
        seeded = plan if repeats == 1 else replace(plan, seed=(plan.seed or 0) + repeat)
        place = out if out is None or repeats == 1 else out / f"seed-{seeded.seed}"
        runs.append(trained(seeded, place, engine, workers, device, evaluate_every))
        if not json and repeats == 1:
            results.print(summary(runs[-1]))
    if repeats > 1 and not json:
        results.print(repeats_table(runs))
    if json:
        print_json(as_document(runs[0]) if repeats == 1 else {"runs": [as_document(run) for run in runs], **mean_and_spread(runs)})
    raise_if_out_of_budget(runs)


def trained(protocol: Protocol, out: Path | None, engine: str, workers: int | None, device: str, every: int | None) -> Run:
    """Train with the live display; after Ctrl-C say how to go on."""
    from sordino.engines import train
    from sordino.federation.folder import RunFolder
    from sordino.federation.setup import Setup
    from sordino.ui.prices import cap_lines, spent_after
    from sordino.ui.progress import TrainingProgress
    from sordino.ui.summary import described

    where: list[Path] = []
    with TrainingProgress() as progress:

        def start(setup: Setup, folder: Path) -> None:
            where.append(folder)
            messages.print(f"Training {described(setup.protocol)}. Run folder: {folder}", soft_wrap=True)
            facts = RunFolder(folder).facts()
            if engine == "auto" and facts["engine"] != "native":
                say_once(f"Engine: {facts['engine']}; {facts['engine_reason']}.")
            for line in cap_lines(setup.protocol, setup.sizes.tolist()):
                messages.print(line, soft_wrap=True)
            plan, sizes = setup.protocol, setup.sizes.tolist()
            progress.start(rounds=plan.rounds, done=0, spent=lambda rounds: spent_after(plan, range(rounds), sizes))

        try:
            return train(
                protocol,
                folder=out,
                engine=engine,
                workers=workers,
                device=device,
                evaluate_every=every,
                on_start=start,
                on_round=progress.advance,
            )
        except KeyboardInterrupt:
            raise Stopped(where[0] if where and where[0].exists() else None) from None


@functools.cache
def say_once(text: str) -> None:
    """Say something that would be the same in every run of a command."""
    messages.print(text, soft_wrap=True)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run or an audit that was interrupted.")],
    workers: Workers = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Go on with a run or an audit that was interrupted; with seeded noise it ends as if it had never been."""
    if (run / "audit.json").exists():
        resume_audit(run, workers, json)
        return
    from sordino.engines import resume
    from sordino.federation.folder import RunFolder
    from sordino.federation.setup import Setup
    from sordino.privacy.ledger import read as read_ledger
    from sordino.privacy.spending import repeated_rounds
    from sordino.ui.prices import spent_after
    from sordino.ui.progress import TrainingProgress
    from sordino.ui.summary import as_document, summary

    with TrainingProgress() as progress:

        def start(setup: Setup, folder: Path) -> None:
            done = len(RunFolder(folder).metrics())
            messages.print(f"Going on with {folder} at round {done + 1} of {setup.protocol.rounds}.")
            plan, sizes = setup.protocol, setup.sizes.tolist()
            again = repeated_rounds(read_ledger(folder / "ledger.jsonl").events, done)
            spent = lambda rounds: spent_after(plan, [*range(rounds), *again], sizes)  # noqa: E731
            progress.start(rounds=plan.rounds, done=done, spent=spent)

        try:
            finished = resume(
                run, workers=workers, device=device, on_start=start, on_round=progress.advance, on_message=lambda text: messages.print(text)
            )
        except KeyboardInterrupt:
            raise Stopped(run) from None
    if json:
        print_json(as_document(finished))
    else:
        results.print(summary(finished))
    raise_if_out_of_budget([finished])


def raise_if_out_of_budget(runs: list[Run]) -> None:
    """A run that its budget ended early is told so, with exit code 3."""
    from sordino.privacy.spending import BudgetExceeded, afforded, repeated_rounds

    for run in runs:
        budget = run.protocol.privacy.budget
        if run.status == "budget" and budget is not None:
            again = repeated_rounds(run.ledger, run.protocol.rounds)
            raise BudgetExceeded(afforded(run.protocol, budget, repeated=again, sizes=run.sizes).message)


@app.command()
def certify(
    source: Annotated[Path | None, typer.Argument(metavar="[PROTOCOL.toml|RUN]", help="Protocol file or run folder.")] = None,
    sets: Sets = None,
    view: Annotated[str, typer.Option(help="server, rounds, coalition:k, final, weak, strong, or all.")] = "all",
    unit: Unit = "record",
    delta: Annotated[float, typer.Option(help="Where epsilon is shown.")] = 1e-5,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw trade-offs, epsilon against rounds and noise.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print how every bound comes about.")] = False,
    json: Json = False,
) -> None:
    """Say what each adversary learns, at most."""
    from sordino.privacy.certify import certify
    from sordino.protocol import View, all_views
    from sordino.ui.prices import views_of

    if plot is not None:
        from sordino.ui.plots import checked_target, draw_certificate

        checked_target(plot)
    run = loaded_run(source, sets) if source is not None and source.is_dir() else None
    protocol = run.protocol if run is not None else protocol_from(source, sets)
    offered = views_of(run) if run is not None else all_views(protocol.clients)
    views = offered if view == "all" else (View.parse(view),)
    if run is not None and run.status == "diverged" and View.FINAL in views:
        raise UserError(
            f"{source} diverged: when it stopped depends on the data, so no bound for its last model alone holds. Ask for rounds."
        )
    known = {} if run is None else {"rounds": run.rounds_paid, "sizes": run.sizes}
    guarantees = [certify(protocol, one, unit, delta=delta, **known) for one in views]
    document: dict[str, object] = {"guarantees": [guarantee.as_document(delta) for guarantee in guarantees]}
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
    show_guarantees(protocol, guarantees, realised, delta, explain)
    if plot is not None:
        messages.print(f"Plot: {plot}")


def loaded_run(folder: Path, sets: list[str] | None) -> Run:
    """A run that is to be priced as it was run."""
    from sordino.federation.run import Run

    if sets:
        raise UserError(f"--set changes a protocol, and {folder} is a run: what was run cannot be changed.")
    return Run.load(folder)


def realised_in(run: Run, views: tuple[View, ...], unit: str, delta: float) -> dict[View, dict[int, Guarantee]]:
    """Per view and client, the bound given who took part."""
    from sordino.privacy.spending import realised

    if isinstance(run.protocol.local, NoisySgd):  # one bound for all views: found once
        found = realised(run.protocol, run.ledger, views[0], unit, delta=delta, sizes=run.sizes)
        return {view: {client: replace(guarantee, view=view) for client, guarantee in found.items()} for view in views}
    return {view: realised(run.protocol, run.ledger, view, unit, delta=delta, sizes=run.sizes) for view in views}


def show_guarantees(
    protocol: Protocol, guarantees: list[Guarantee], realised: dict[View, dict[int, Guarantee]], delta: float, explain: bool
) -> None:
    """The table, the notes, and for a run what was realised."""
    from sordino.ui.prices import guarantees_table, notes, realised_table

    unit = {"record": "one record", "client": "all records of one client"}[guarantees[0].unit]
    title = f"At most, about {unit} ({guarantees[0].adjacency}), at delta = {delta:g}"
    results.print(guarantees_table(guarantees, delta, title))
    for note in notes(protocol, guarantees, delta):
        results.print(note, soft_wrap=True)
    for guarantee in guarantees:
        if guarantee.view in realised:
            results.print(realised_table(guarantee, realised[guarantee.view], delta))
        if explain:
            results.print(f"View {guarantee.view}:", style="bold")
            results.print(guarantee.explain(), soft_wrap=True)


@app.command()
def calibrate(
    protocol: File = None,
    sets: Sets = None,
    view: Annotated[str, typer.Option(help="server, rounds, coalition:k, final, weak or strong.")] = "server",
    unit: Unit = "record",
    epsilon: Annotated[float | None, typer.Option(help="Largest epsilon, with --delta.")] = None,
    delta: Annotated[float, typer.Option(help="For --epsilon.")] = 1e-5,
    beta: Annotated[float | None, typer.Option(help="Least false negative rate, with --at-alpha.")] = None,
    at_alpha: Annotated[float | None, typer.Option(help="False positive rate for --beta.")] = None,
    advantage: Annotated[float | None, typer.Option(help="Largest advantage of any test over guessing.")] = None,
    mechanisms: Annotated[bool, typer.Option("--mechanisms", help="Compare the noise that each mechanism needs, for --epsilon.")] = False,
    json: Json = False,
) -> None:
    """Find the smallest noise that meets a target; it is never past the target."""
    from sordino.privacy.calibrate import calibrate

    plan = protocol_from(protocol, sets)
    if mechanisms:
        compare_mechanisms(plan, unit, epsilon, delta, json)
        return
    with messages.status("searching for the noise"):
        found = calibrate(plan, view, unit, epsilon=epsilon, delta=delta, beta=beta, at_alpha=at_alpha, advantage=advantage)
    if json:
        print_json(found.as_document())
        return
    goal = ", ".join(f"{name} = {value:g}" for name, value in found.target.items())
    results.print(
        facts_table([("Noise", f"noise.{found.parameter} = {found.value!r}"), ("Target", goal), ("Reached", str(found.guarantee))])
    )


def compare_mechanisms(plan: Protocol, unit: str, epsilon: float | None, delta: float, json: bool) -> None:
    """The table of the noise that each mechanism needs for the same guarantee against the server."""
    from dataclasses import asdict

    from sordino.privacy.harmonizer import mechanism_table
    from sordino.ui.prices import needed_table

    if epsilon is None:
        raise UserError("--mechanisms compares the noise for one guarantee: add --epsilon, and --delta if it is not 1e-5.")
    with messages.status("searching for the noise"):
        rows = mechanism_table(plan, unit, epsilon=epsilon, delta=delta)
    if json:
        print_json({"epsilon": epsilon, "delta": delta, "view": "server", "unit": unit, "mechanisms": [asdict(row) for row in rows]})
    else:
        results.print(needed_table(rows, plan, epsilon, delta))


@app.command()
def new(
    name: Annotated[Path, typer.Argument(metavar="[NAME]", help="File to write; .toml is added.")] = Path("federation"),
    example: Annotated[str, typer.Option("--from", help="Built-in example to start from.")] = EXAMPLE,
) -> None:
    """Write a commented protocol file to start from."""
    target = name if name.suffix == ".toml" else name.with_name(name.name + ".toml")
    text = example_text(example)
    try:
        with open(target, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{target} exists already: choose another name, as in `sordino new mine`.") from None
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}.") from None
    results.print(f"Wrote {target}. Next: sordino check {target}, then sordino train {target}", soft_wrap=True)


@app.command()
def check(
    file: File = None,
    sets: Sets = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw clients and labels (.png, .svg or .pdf).")] = None,
    show_schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of the file, for editors.")] = False,
    json: Json = False,
) -> None:
    """Read a protocol file, say what is wrong with it, or print it complete."""
    if show_schema:
        print_json(schema())
        return
    protocol = protocol_from(file, sets)
    if picture is not None:
        draw(protocol, picture)
    if json:
        from sordino.protocol.file import parse

        print_json(parse(dumps(protocol)))
    else:
        print(dumps(protocol), end="")
        looked = f"Picture: {picture}" if picture is not None else "Its data and model were not looked at."
        messages.print(f"This protocol is valid. {looked}")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    data: Annotated[str | None, typer.Argument(metavar="[DATA]", help="Data to score on; by default the run's own.")] = None,
    clients: Annotated[bool, typer.Option("--clients", help="Also score every client on its own label distribution.")] = False,
    json: Json = False,
) -> None:
    """Score the model of a run on the test records of some data."""
    from sordino.federation.evaluation import evaluate_clients, evaluate_run
    from sordino.federation.run import Run

    loaded = Run.load(run)
    scores = evaluate_run(loaded, data)
    if clients:
        scores["clients"] = evaluate_clients(loaded, data).tolist()
        if loaded.personal:
            scores["personal"] = evaluate_clients(loaded, data, personal=True).tolist()
    if json:
        print_json(scores)
        return
    rows = [("Records", f"{scores['records']:,} test records of {scores['data']}"), ("Loss", f"{scores['loss']:.4f}")]
    if scores["accuracy"] is not None:
        rows.append(("Accuracy", percent(scores["accuracy"])))
        rows += [(f"  {name}", percent(share)) for name, share in scores["classes"].items()]
    for key, whose in (("clients", "Global model"), ("personal", "Own models")):
        if key in scores:
            shares = sorted(scores[key])
            middle = f"mean {percent(sum(shares) / len(shares))}, worst {percent(shares[0])}, best {percent(shares[-1])}"
            rows.append((whose, f"{len(shares)} clients, each on its own label distribution: {middle}"))
    results.print(facts_table(rows))


def draw(protocol: Protocol, picture: Path) -> None:
    """The picture of the partition."""
    from sordino.federation.data import draw_partition, label_counts, load_dataset, partition
    from sordino.federation.randomness import Key

    if protocol.data is None:
        raise UserError("data.name is missing: there are no clients to draw.")
    dataset = load_dataset(protocol.data.name)
    parts = partition(dataset, protocol.data, protocol.clients, Key.from_seed(protocol.seed or 0))
    draw_partition(label_counts(dataset, parts), dataset.classes, picture)


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code: 0 done, 1 unexpected, 2 bad input, 130 stopped by Ctrl-C."""
    try:
        code = app(args=arguments, standalone_mode=False, prog_name="sordino")
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        messages.print("sordino: stopped. Nothing was written.")
        return INTERRUPTED
    except SordinoError as error:
        messages.print(f"sordino: {error}", style="red" if messages.is_terminal else None, markup=False, soft_wrap=True)
        return error.exit_code


def main() -> None:
    """The `sordino` command. A request to end (SIGTERM) is treated as Ctrl-C is: the run can be resumed."""
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    sys.exit(run(sys.argv[1:]))

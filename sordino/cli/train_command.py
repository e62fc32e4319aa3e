"""The commands `sordino train`, `sordino resume` and `sordino evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.arguments import (
    Certificate,
    Deadline,
    Device,
    File,
    Insecure,
    Json,
    Link,
    Log,
    Patience,
    Sets,
    Sign,
    WithoutNoise,
    Workers,
)
from sordino.cli.audit_command import resume_audit
from sordino.cli.console import print_json, results
from sordino.cli.option_checks import refuse_without
from sordino.cli.protocol_sources import protocol_from
from sordino.cli.report_command import write_comparison_with_twin
from sordino.cli.sweep_command import continue_sweep
from sordino.cli.training_display import (
    TrainingRequest,
    resume_with_display,
    train_with_display,
    write_report_of,
)
from sordino.protocol import Protocol, UserError
from sordino.report.terminal_tables import facts_table

if TYPE_CHECKING:
    from sordino.engines.choice import SuperLink
    from sordino.federation.store.run import Run

Engine = Annotated[str, typer.Option(help="auto, torch, native, or flower across machines.")]
Repeats = Annotated[
    int, typer.Option(min=1, help="Train with this many seeds, and show mean and spread.")
]
EvaluateEvery = Annotated[
    int | None, typer.Option(metavar="N", help="Score the model every N rounds; 0 for never.")
]
KeepUploads = Annotated[
    bool,
    typer.Option("--keep-uploads", help="Keep what the server receives, for `sordino attack`."),
]
KeepEvery = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="With --keep-uploads: keep those of every N-th round only, and of the last.",
    ),
]


def train(
    protocol: File = None,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run folder; by default runs/<name>-<n>.")
    ] = None,
    engine: Engine = "auto",
    repeats: Repeats = 1,
    workers: Workers = None,
    device: Device = "cpu",
    evaluate_every: EvaluateEvery = None,
    keep_uploads: KeepUploads = False,
    keep_every: KeepEvery = None,
    log: Log = None,
    superlink: Link = None,
    certificate: Certificate = None,
    insecure: Insecure = False,
    patience: Patience = 120.0,
    deadline: Deadline = 600.0,
    sign: Sign = None,
    without_noise: WithoutNoise = False,
    json: Json = False,
) -> None:
    """Train a federation and keep the run in a folder."""
    # An option that would be ignored is refused.
    if keep_every is not None and not keep_uploads:
        raise UserError("--keep-every without --keep-uploads: nothing is kept. Add --keep-uploads.")
    refuse_twins(without_noise, repeats, engine)
    plan = protocol_from(protocol, sets)
    keep = 0
    if keep_uploads:
        keep = keep_every or 1
    request = TrainingRequest(
        engine=engine,
        workers=workers,
        device=device,
        evaluate_every=evaluate_every,
        keep_uploads=keep,
        log=tuple(log or ()),
        superlink=superlink_from(superlink, certificate, insecure, patience, deadline),
        sign=sign,
    )
    if repeats > 1:
        train_repeats(plan, out, request, repeats, json)
        return
    run = train_with_display(plan, out, request)
    write_report_of(run)
    show_run(run, json, compared=without_noise, workers=workers)


def show_run(run: Run, json: bool, *, compared: bool = False, workers: int | None = None) -> None:
    """Prints the summary of a run, and of its comparison with a twin without noise.

    Args:
        run: The run, with its report.
        json: Print one JSON document and nothing else.
        compared: Whether the twin is trained and compared.
        workers: Worker processes for the twin; None for one per core.

    Raises:
        BudgetExceeded: The run was ended early by its budget.
    """
    from sordino.report.closing_panel import summary
    from sordino.report.run_summary import run_document

    document = run_document(run)
    if not json:
        results.print(summary(run, results.encoding))
    if compared:
        page, cost = write_comparison_with_twin(run.folder, workers)
        document["without_noise"] = {"page": str(page), **cost.as_document()}
        if not json:
            results.print(cost.sentence, soft_wrap=True)
    if json:
        print_json(document)
    # Last, so that the result is printed before the exit code says that it is partial.
    raise_if_out_of_budget([run])


def train_repeats(
    plan: Protocol, out: Path | None, request: TrainingRequest, repeats: int, json: bool
) -> None:
    """Trains a protocol with several seeds, and prints mean and spread.

    Args:
        plan: The federation.
        out: The folder of the runs' folders; None for new ones below runs/.
        request: How each is trained.
        repeats: The number of seeds.
        json: Print one JSON document and nothing else.

    Raises:
        BudgetExceeded: A run was ended early by its budget.
    """
    from sordino.report.closing_panel import repeats_document, repeats_table

    runs = []
    for repeat in range(repeats):
        # Repeats must differ, and seeds that follow one another can be repeated singly.
        seeded = replace(plan, seed=(plan.seed or 0) + repeat)
        folder = None
        if out is not None:
            folder = out / f"seed-{seeded.seed}"
        runs.append(train_with_display(seeded, folder, request))
        # Written after each run: a later failure must not cost the reports of earlier ones.
        write_report_of(runs[-1])
    if json:
        print_json(repeats_document(runs))
    else:
        results.print(repeats_table(runs))
    raise_if_out_of_budget(runs)


def refuse_twins(without_noise: bool, repeats: int, engine: str) -> None:
    """Refuses --without-noise where no twin can be trained.

    Args:
        without_noise: Whether a twin is to be trained.
        repeats: The number of seeds.
        engine: The name of the engine.

    Raises:
        UserError: Several seeds, or machines whose clients send nothing without noise.
    """
    if without_noise and (repeats > 1 or engine == "flower"):
        raise UserError(
            "--without-noise trains the twin of one run on this machine: leave out --repeats and "
            "--engine flower. `sordino report RUN --without-noise` compares a run later."
        )


def superlink_from(
    address: str | None, certificate: Path | None, insecure: bool, patience: float, deadline: float
) -> SuperLink | None:
    """Returns where the machines of a federation meet, from the options.

    Args:
        address: The address of the SuperLink; None in one process.
        certificate: The certificate of the authority that signed the SuperLink's certificate.
        insecure: Whether the connection is meant to be without TLS.
        patience: Seconds that clients are given to connect.
        deadline: Seconds that clients are given to answer.

    Raises:
        UserError: Neither a certificate nor --insecure, or both; no such file; or one of them
            without an address.
    """
    if address is None:
        refuse_without("--superlink", certificate=certificate, insecure=insecure)
        return None
    from sordino.engines.choice import SuperLink

    # An unencrypted connection is never a default: it has to be asked for.
    if (certificate is None) != insecure:
        raise UserError(
            "--superlink needs --certificate FILE, of the authority that signed the SuperLink's "
            "certificate; or --insecure, for tests on one machine, where everyone on the way can "
            "read and change everything."
        )
    if certificate is None:
        return SuperLink(address=address, certificate=None, patience=patience, deadline=deadline)
    if not certificate.is_file():
        raise UserError(f"--certificate {certificate}: there is no such file.")
    return SuperLink(
        address=address, certificate=str(certificate), patience=patience, deadline=deadline
    )


def resume(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder of a run, an audit or a sweep."),
    ],
    workers: Workers = None,
    device: Device = "cpu",
    log: Log = None,
    superlink: Link = None,
    certificate: Certificate = None,
    insecure: Insecure = False,
    patience: Patience = 120.0,
    deadline: Deadline = 600.0,
    sign: Sign = None,
    json: Json = False,
) -> None:
    """Resume a run, audit or sweep that was interrupted; seeded noise gives the same result."""
    # Folders of audits and sweeps are known by a file of theirs.
    if (run / "audit.json").exists():
        resume_audit(run, workers, json)
        return
    if (run / "sweep.json").exists():
        continue_sweep(run, workers, device, json)
        return
    request = TrainingRequest(
        workers=workers,
        device=device,
        log=tuple(log or ()),
        superlink=superlink_from(superlink, certificate, insecure, patience, deadline),
        sign=sign,
    )
    finished = resume_with_display(run, request)
    write_report_of(finished)
    show_run(finished, json)


def raise_if_out_of_budget(runs: Sequence[Run]) -> None:
    """Raises an error, with exit code 3, if a run was ended early by its budget.

    Args:
        runs: The runs.

    Raises:
        BudgetExceeded: The message says how many rounds the budget allows.
    """
    from sordino.privacy.spending import (
        BudgetExceeded,
        find_affordable_rounds,
        find_repeated_rounds,
    )

    for run in runs:
        budget = run.protocol.privacy.budget
        if run.status != "budget" or budget is None:
            continue
        # Some runs note why they ended; others are priced again.
        if "reason" in run.facts:
            raise BudgetExceeded(run.facts["reason"])
        again = find_repeated_rounds(run.ledger, run.protocol.rounds)
        allowed = find_affordable_rounds(run.protocol, budget, repeated=again, sizes=run.sizes)
        raise BudgetExceeded(allowed.message)


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    data: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="Data to score on; by default the run's own."),
    ] = None,
    clients: Annotated[
        bool,
        typer.Option("--clients", help="Also score every client on its own label distribution."),
    ] = False,
    json: Json = False,
) -> None:
    """Score the model of a run on the test records of some data."""
    from sordino.federation.evaluation import evaluate_clients, evaluate_run
    from sordino.federation.store.run import Run
    from sordino.report.closing_panel import score_rows

    loaded = Run.load(run)
    scores = evaluate_run(loaded, data)
    if clients:
        scores["clients"] = evaluate_clients(loaded, data).tolist()
        if loaded.personal:
            scores["personal"] = evaluate_clients(loaded, data, personal=True).tolist()
    if json:
        print_json(scores)
        return
    results.print(facts_table(score_rows(scores)))

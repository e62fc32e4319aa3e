"""Runs audits: from a protocol or a run to a finding on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sordino.audit.audit_folder import AuditFolder
from sordino.audit.audit_plan import (
    choose_engines,
    choose_trainings,
    make_game,
    refuse_minutes,
    refuse_too_few,
)
from sordino.audit.audit_subject import (
    Subject,
    add_real_data,
    certify_subject,
    choose_seed,
    knows_batches,
    load_subject,
    refuse_empty_release,
)
from sordino.audit.engine_check import check_engines
from sordino.audit.game import Game, play_all
from sordino.audit.judging import is_clear, judge_scores
from sordino.audit.kept_uploads import replay_kept_uploads
from sordino.audit.noise_report import report_noise
from sordino.audit.observation import BATCHES, describe_beyond_view
from sordino.audit.timed_play import PlayedChunks, TimedPlay, TimePlan
from sordino.audit.verdict import Claim, Finding
from sordino.federation.complete_protocol import DataSource, ModelSource
from sordino.federation.processors import single_threaded, worker_count
from sordino.federation.store.files import hold_lock, write_whole, writing
from sordino.federation.store.run_folder import as_json, claimed_path, now
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import ProtocolSource, UserError, View, dumps
from sordino.randomness import AUDIT_GENERATOR

OnStart = Callable[[Game, Guarantee, Path], None]
OnProgress = Callable[[int, int], None]  # trainings done, of how many
OnPlan = Callable[[TimePlan, Guarantee], None]


@dataclass(frozen=True, kw_only=True)
class AuditWatch:
    """Callbacks for the progress of an audit, and the number of its processes.

    Attributes:
        workers: How many processes play; None for one per core.
        on_start: Called once, before the first training.
        on_plan: Called once in an audit with a time limit, when it is known how many trainings fit.
        on_progress: Called whenever trainings have ended.
    """

    workers: int | None
    on_start: OnStart
    on_plan: OnPlan
    on_progress: OnProgress


def audit(  # noqa: PLR0913  (the public call: every option has a name and a default)
    source: ProtocolSource,
    view: str | View = View.SERVER,
    unit: str = "record",
    *,
    trainings: int | None = None,
    minutes: float | None = None,
    delta: float = 1e-5,
    claims: tuple[Claim, ...] = (),
    canary: str | None = None,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    folder: str | Path | None = None,
    workers: int | None = None,
    on_start: OnStart = lambda game, certified, path: None,
    on_plan: OnPlan = lambda plan, certified: None,
    on_progress: OnProgress = lambda done, of: None,
) -> Finding:
    """Plays the distinguishing game and compares its outcome with the certified bound.

    Without a canary the game is played on the worst case of the protocol; with one, on its own data
    and model.

    Args:
        source: A protocol, its file or its tables; or the folder of a finished run.
        view: The adversary.
        unit: What differs between the two data sets, "record" or "client".
        trainings: Trainings per side by which the test is judged; as many again choose it. By
            default 5,000, or as many as take about a minute; 500 with a canary.
        minutes: In place of a number of trainings, how long they may take. The audit ends early
            when the verdict is clear; its limits hold whenever it ends.
        delta: The delta at which epsilon is measured.
        claims: Further claims to compare with.
        canary: "random", "mislabelled", "crafted", or the path of a .npz file with the arrays x and
            y of one record.
        data: With a canary, data in place of the protocol's.
        model: With a canary, a model in place of the protocol's.
        folder: Where the audit is kept; by default `audits/<name>-<n>`.
        workers: How many processes play; by default one per core. The result does not depend on it.
        on_start: Called once, before the first training.
        on_plan: Called once, if `minutes` are given, when it is known how many trainings fit.
        on_progress: Called whenever trainings have ended.

    Returns:
        The finding, which is also written to the folder.

    Raises:
        UserError: A view that the protocol does not have, a run that is not finished, or too few
            trainings to conclude anything.

    Example:
        >>> audit(protocol, "final").mu_lower  # doctest: +SKIP
        2.87
    """
    subject = load_subject(source)
    if canary is not None:
        subject = add_real_data(subject, canary, data, model)
    certified = certify_subject(subject, view, unit, delta, canary=canary)
    worker_count(workers, "cpu")
    if minutes is not None:
        refuse_minutes(minutes, trainings)
    if trainings is None:
        trainings = choose_trainings(subject, canary)
    if minutes is None:
        refuse_too_few(trainings, certified)
    refuse_empty_release(certified)
    facts = {
        "canary": canary,
        "view": str(certified.view),
        "unit": unit,
        "trainings": trainings,
        "minutes": minutes,
        "delta": delta,
        "seed": choose_seed(subject.protocol),
        "rounds": list(subject.rounds),
        "sizes": None if subject.sizes is None else list(subject.sizes),
        "run": None if subject.run is None else str(subject.run.resolve()),
        "engine": subject.engine,
        "claims": [asdict(claim) for claim in claims],
        "digest": digest_inputs(subject, canary),
        "generator": AUDIT_GENERATOR,
        "started": now(),
    }
    watch = AuditWatch(workers=workers, on_start=on_start, on_plan=on_plan, on_progress=on_progress)
    path = make_audit_folder(folder, subject)
    with hold_lock(path):
        place = AuditFolder.create(path, subject.protocol, facts)
        return finish_game(place, make_game(subject, facts, data, model), subject, certified, watch)


def resume_audit(
    folder: str | Path,
    *,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    workers: int | None = None,
    on_start: OnStart = lambda game, certified, path: None,
    on_plan: OnPlan = lambda plan, certified: None,
    on_progress: OnProgress = lambda done, of: None,
) -> Finding:
    """Continues an interrupted audit, which ends as if it had not been interrupted.

    Args:
        folder: The folder of the audit.
        data: The data that were passed at the start, if any.
        model: The model that was passed at the start, if any.
        workers: How many processes play; by default one per core.
        on_start: Called once, before the first training.
        on_plan: Called once, if the time is limited, when it is known how many trainings fit.
        on_progress: Called whenever trainings have ended.

    Returns:
        The finding.

    Raises:
        UserError: The inputs are no longer those of the start.

    Example:
        >>> resume_audit("audits/digits-1")  # doctest: +SKIP
    """
    place = AuditFolder(Path(folder))
    watch = AuditWatch(workers=workers, on_start=on_start, on_plan=on_plan, on_progress=on_progress)
    with hold_lock(place.path):
        facts = place.facts()
        canary = facts["canary"]
        subject = read_subject(place)
        if canary is not None:
            subject = add_real_data(subject, canary, data, model)
        same_inputs = facts["digest"] == digest_inputs(subject, canary)
        if not same_inputs or facts["generator"] != AUDIT_GENERATOR:
            raise UserError(
                f"{place.path} was started with another protocol, data, canary or generator: "
                "its scores cannot be continued. Start again."
            )
        certified = certify_subject(
            subject, facts["view"], facts["unit"], facts["delta"], canary=canary
        )
        return finish_game(place, make_game(subject, facts, data, model), subject, certified, watch)


def read_subject(place: AuditFolder) -> Subject:
    """Returns the subject that is written down in the folder of an audit.

    Args:
        place: The folder.
    """
    facts = place.facts()
    return Subject(
        protocol=place.protocol(),
        rounds=tuple(facts["rounds"]),
        sizes=None if facts["sizes"] is None else tuple(facts["sizes"]),
        run=None if facts["run"] is None else Path(facts["run"]),
        engine=facts.get("engine"),
    )


def finish_game(
    place: AuditFolder,
    game: Game,
    subject: Subject,
    certified: Guarantee,
    watch: AuditWatch,
) -> Finding:
    """Plays the rest of a game, judges it, and writes the finding.

    Args:
        place: The folder of the audit.
        game: The game.
        subject: The plan or the run.
        certified: The certified bound.
        watch: The callbacks for progress, and the number of processes.

    Returns:
        The finding.
    """
    facts = place.facts()
    claims = tuple(Claim(**claim) for claim in facts["claims"])
    given = describe_extra_knowledge(subject, certified, facts["canary"])
    timed = None
    if facts.get("minutes") is not None:
        timed = TimedPlay(
            game,
            place,
            facts["minutes"],
            workers=watch.workers,
            on_plan=lambda plan: watch.on_plan(plan, certified),
            on_progress=watch.on_progress,
            is_clear=lambda scores: is_clear(scores, certified, claims, facts["delta"], given),
        )
    game.prepare()
    watch.on_start(game, certified, place.path)
    # The engine is compared first: if it trains something else, no game says anything about it.
    engine = check_engines(game, choose_engines(subject, game), watch.workers)
    if subject.run is not None and subject.run.is_dir():
        with single_threaded():
            kept = replay_kept_uploads(subject.run)
        engine = replace(engine, kept=kept.report, kept_reason=kept.reason)
    played = play_chunks(game, place, watch) if timed is None else timed.play()
    scores, noise, strays = place.read_scores(played.chunks)
    finding = judge_scores(
        scores,
        certified,
        claims,
        facts["delta"],
        game.description,
        report_noise(game.pair.zero.protocol, game.noises, noise, strays),
        given,
        played.test,
    )
    finding = replace(finding, engine=engine)
    keep_finding(place, finding.as_document(), subject.run)
    return finding


def play_chunks(game: Game, place: AuditFolder, watch: AuditWatch) -> PlayedChunks:
    """Plays the trainings of a game that are not in the folder yet.

    Args:
        game: The game.
        place: The folder that keeps its scores.
        watch: The callbacks for progress, and the number of processes.
    """
    chunks = game.chunks()
    left = place.list_missing(chunks)
    total = sum(len(chunk.trainings) for chunk in chunks)
    done = total - sum(len(chunk.trainings) for chunk in left)
    watch.on_progress(done, total)
    for played in play_all(game, left, watch.workers):
        place.keep_scores(played)
        done += len(played.chunk.trainings)
        watch.on_progress(done, total)
    return PlayedChunks(chunks=chunks)


def describe_extra_knowledge(subject: Subject, certified: Guarantee, canary: str | None) -> str:
    """Returns in words what the adversary was given beyond its view; empty if nothing.

    Args:
        subject: The plan or the run.
        certified: The certified bound.
        canary: The kind of canary; None for the worst case.
    """
    given = describe_beyond_view(
        subject.protocol, certified.view, certified.unit, subject.known_sizes
    )
    if not knows_batches(subject, certified.unit, canary) or BATCHES in given:
        return given
    if given:
        return f"{given} and {BATCHES}"
    return BATCHES


def digest_inputs(subject: Subject, canary: str | None) -> str:
    """Returns a digest of everything on disk that scores depend on and that could change.

    A resumed audit must not join the scores of two different games.

    Args:
        subject: The plan or the run.
        canary: The kind of canary, or a path.
    """
    digest = hashlib.sha256(dumps(subject.protocol).encode() + subject.data_digest.encode())
    if canary is not None and Path(canary).is_file():
        digest.update(Path(canary).read_bytes())
    return digest.hexdigest()


def make_audit_folder(folder: str | Path | None, subject: Subject) -> Path:
    """Returns the folder of a new audit, made if necessary.

    Args:
        folder: The folder that the caller named; None for a new one under audits/.
        subject: The plan or the run.

    Raises:
        UserError: The folder is in use.
    """
    if folder is None:
        return claimed_path(subject.name, Path("audits"))
    path = Path(folder)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    AuditFolder.refuse_used(path)
    return path


def keep_finding(place: AuditFolder, finding: Mapping[str, Any], run: Path | None) -> None:
    """Writes a finding or an estimate to the audit's folder and, for a run, to the run's.

    Args:
        place: The folder of the audit.
        finding: The finding as a JSON document.
        run: The folder of the run; None if a plan was audited.
    """
    document = {**finding, "folder": str(place.path), "ended": now()}
    place.write_result(document)
    if run is None or not run.is_dir():
        return
    view = document["view"].replace(":", "-")
    target = run / "audits" / f"{view}-{document['unit']}-{place.path.name}.json"
    with writing(target):
        target.parent.mkdir(exist_ok=True)
        write_whole(target, as_json(document))

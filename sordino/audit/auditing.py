"""`audit` and `resume_audit`: from a protocol or a run to a finding on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sordino.audit.bounds import expected_bound, gaussian_like, trainings_needed
from sordino.audit.canary import refuse_unknown
from sordino.audit.engine_check import checked_engines
from sordino.audit.folder import AuditFolder
from sordino.audit.game import Game, WorstCaseGame, play_all
from sordino.audit.noisy_steps import COMPANY
from sordino.audit.observation import (
    BATCHES,
    Given,
    draws_batches,
    given_batches,
    given_to,
    more_than_seen,
)
from sordino.audit.real_game import CanaryGame
from sordino.audit.replay import noise_report
from sordino.audit.verdict import Claim, Finding, judged
from sordino.audit.worst_case import held_sizes
from sordino.engines.native.library import chosen
from sordino.engines.torch_engine import worker_count
from sordino.federation.folder import as_json, claimed_path, now
from sordino.federation.randomness import AUDIT_GENERATOR, Key
from sordino.federation.run import Run
from sordino.federation.setup import DataSource, ModelSource, prepare
from sordino.federation.storage import held, write_whole, writing
from sordino.privacy.caps import all_caps
from sordino.privacy.certify import certify
from sordino.privacy.checks import proper_delta
from sordino.privacy.guarantee import Guarantee, rounded_up
from sordino.privacy.spending import BudgetExceeded, afforded
from sordino.protocol import (
    ClippedGlm,
    FedAvg,
    InvalidValue,
    NoisySgd,
    Protocol,
    UserError,
    View,
    dumps,
)
from sordino.protocol.errors import typed

TRAININGS, FEWER = (
    5000,
    500,
)  # on each side, by default: of the worst case, and of real models or of large federations
MOST = 10_000_000  # far more than tell anything new
EFFORT = 500_000_000  # numbers that an audit draws without being asked for more
Progress = Callable[[int, int], None]  # trainings done, of how many


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is audited: a plan, or a run as it went; which rounds, with how many records each client has."""

    protocol: Protocol
    rounds: tuple[int, ...]
    sizes: tuple[int, ...] | None = None
    run: Path | None = None
    engine: str | None = None  # who trained the run; None for a plan, which either engine can train
    data_digest: str = ""  # of real data, where a canary is put among them
    notes: tuple[str, ...] = ()  # what must be said with every promise about the run


def subject_of(source: Protocol | str | Path) -> Subject:
    """A protocol as far as its budget lets it go, or a finished run.

    Raises:
        UserError: the run is not finished.
        BudgetExceeded: the budget affords no round.
    """
    if not isinstance(source, Protocol):
        run = Run.load(source)
        if run.status == "unfinished":
            raise UserError(
                f"{run.folder} is not finished: finish it with `{typed('resume', run.folder)}`, or audit its protocol.toml."
            )
        return Subject(
            protocol=run.protocol,
            rounds=tuple(run.rounds_paid),
            sizes=run.sizes,
            run=run.folder,
            engine=run.engine,
            notes=run.notes,
        )
    rounds, budget = source.rounds, source.privacy.budget
    if budget is not None:
        reach = afforded(source, budget)
        if reach.rounds == 0:
            raise BudgetExceeded(reach.message)
        rounds = reach.rounds
    return Subject(protocol=source, rounds=tuple(range(rounds)))


def audit(
    source: Protocol | str | Path,
    view: str | View = View.SERVER,
    unit: str = "record",
    *,
    trainings: int | None = None,
    delta: float = 1e-5,
    claims: tuple[Claim, ...] = (),
    canary: str | None = None,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    folder: str | Path | None = None,
    workers: int | None = None,
    on_start: Callable[[Game, Guarantee, Path], None] = lambda game, certified, path: None,
    on_progress: Progress = lambda done, of: None,
) -> Finding:
    """Play the distinguishing game and hold the result against what is promised.

    Without a canary it is played on the worst case of the protocol; with one, on its own data and model.

    Args:
        source: a protocol, or the folder of a finished run.
        view: who the adversary is.
        unit: what differs between the two data sets: "record" or "client".
        trainings: on each side, by which the test is judged; as many again choose it. By default 5,000, or as many as take about a
            minute; 500 with a canary.
        delta: where epsilon is measured.
        claims: further promises to hold it against.
        canary: "random", "mislabelled", "crafted", or the path of a .npz file with the arrays x and y of one record.
        data: with a canary: in place of the protocol's.
        model: with a canary: in place of the protocol's.
        folder: where the audit is kept; by default `audits/<name>-<n>`.
        workers: processes; by default one per core. The result does not depend on it.
        on_start: called once, before the first training.
        on_progress: called whenever trainings have ended.

    Raises:
        UserError: a view that the protocol does not have, a run that is not finished, too few trainings to conclude anything.

    Example:
        >>> audit(protocol, "final").mu_lower  # doctest: +SKIP
        2.87
    """
    subject = subject_of(source)
    if canary is not None:
        subject = with_data(subject, canary, data, model)
    certified = promised(subject, view, unit, delta, canary=canary)
    worker_count(workers, "cpu")
    trainings = trainings if trainings is not None else default_trainings(subject, canary)
    refuse_too_few(trainings, certified)
    facts = {
        "canary": canary,
        "view": str(certified.view),
        "unit": unit,
        "trainings": trainings,
        "delta": delta,
        "seed": game_seed(subject.protocol),
        "rounds": list(subject.rounds),
        "sizes": list(subject.sizes) if subject.sizes is not None else None,
        "run": str(subject.run.resolve()) if subject.run is not None else None,
        "engine": subject.engine,
        "claims": [
            {
                "name": claim.name,
                "mu": claim.mu,
                "epsilon": claim.epsilon,
                "delta": claim.delta,
                "view": claim.view,
                "unit": claim.unit,
                "ours": claim.ours,
            }
            for claim in claims
        ],
        "digest": inputs_digest(subject, canary),
        "generator": AUDIT_GENERATOR,
        "started": now(),
    }
    path = made_folder(folder, subject)
    with held(path):
        place = AuditFolder.create(path, subject.protocol, facts)
        return carry_on(
            place,
            game_of(subject, facts, data, model),
            subject,
            certified,
            workers,
            on_start,
            on_progress,
        )


def default_trainings(subject: Subject, canary: str | None) -> int:
    """How many trainings on each side are run unless it is said."""
    if canary is not None:
        return FEWER
    return max(
        FEWER,
        min(TRAININGS, EFFORT // (4 * round_effort(subject.protocol) * len(set(subject.rounds)))),
    )


def round_effort(protocol: Protocol) -> int:
    """Numbers that a round draws, more or less: noisy vectors, and the records of the attacked client's batches where they are drawn."""
    rule, records = protocol.local, protocol_sizes(protocol)
    noisy = isinstance(rule, NoisySgd)
    drawn = (
        rule.batch is not None
        and records is not None
        and rule.batch < records[0]
        and not isinstance(rule, ClippedGlm)
    )
    each = (
        records[0]
        if records is not None and noisy and getattr(rule, "sampling", "") == "poisson"
        else rule.batch or 0
    )
    return (COMPANY * rule.steps if noisy else protocol.clients) + (
        rule.steps * each if drawn else 0
    )


def with_data(
    subject: Subject, canary: str, data: DataSource | None, model: ModelSource | None
) -> Subject:
    """The subject with its data and model looked at: the protocol complete, the sizes known, the canary found."""
    refuse_unknown(canary)
    setup = prepare(subject.protocol, data=data, model=model)
    sizes = tuple(int(size) for size in setup.sizes)
    return replace(subject, protocol=setup.protocol, sizes=sizes, data_digest=setup.data_digest)


def inputs_digest(subject: Subject, canary: str | None) -> str:
    """Of all that scores depend on and that could change on disk: scores of two different games must not be joined."""
    joined = hashlib.sha256(dumps(subject.protocol).encode() + subject.data_digest.encode())
    if canary is not None and Path(canary).is_file():
        joined.update(Path(canary).read_bytes())
    return joined.hexdigest()


def resume_audit(
    folder: str | Path,
    *,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    workers: int | None = None,
    on_start: Callable[[Game, Guarantee, Path], None] = lambda game, certified, path: None,
    on_progress: Progress = lambda done, of: None,
) -> Finding:
    """Go on with an audit that was interrupted; it ends as if it had never been.

    Example:
        >>> resume_audit("audits/digits-1")  # doctest: +SKIP
    """
    place = AuditFolder(Path(folder))
    with held(place.path):
        facts, subject = place.facts(), recorded(place)
        if facts["canary"] is not None:
            subject = with_data(subject, facts["canary"], data, model)
        if (facts["generator"], facts["digest"]) != (
            AUDIT_GENERATOR,
            inputs_digest(subject, facts["canary"]),
        ):
            raise UserError(
                f"{place.path} was started with another protocol, data, canary or generator: its scores cannot be continued. Start anew."
            )
        certified = promised(
            subject, facts["view"], facts["unit"], facts["delta"], canary=facts["canary"]
        )
        return carry_on(
            place,
            game_of(subject, facts, data, model),
            subject,
            certified,
            workers,
            on_start,
            on_progress,
        )


def recorded(place: AuditFolder) -> Subject:
    """What the folder of an audit says is audited."""
    facts = place.facts()
    return Subject(
        protocol=place.protocol(),
        rounds=tuple(facts["rounds"]),
        sizes=tuple(facts["sizes"]) if facts["sizes"] is not None else None,
        run=Path(facts["run"]) if facts["run"] is not None else None,
        engine=facts.get("engine"),
    )


def carry_on(
    place: AuditFolder,
    game: Game,
    subject: Subject,
    certified: Guarantee,
    workers: int | None,
    on_start: Callable[[Game, Guarantee, Path], None],
    on_progress: Progress,
) -> Finding:
    """Play what is left of a game and judge it."""
    facts = place.facts()
    game.prepare()
    chunks = game.chunks()
    on_start(game, certified, place.path)
    engine = checked_engines(game, engines_of(subject, game), workers)
    left = place.missing(chunks)
    total = sum(len(chunk.trainings) for chunk in chunks)
    done = total - sum(len(chunk.trainings) for chunk in left)
    on_progress(done, total)
    for played in play_all(game, left, workers):
        place.keep(played)
        done += len(played.chunk.trainings)
        on_progress(done, total)
    scores, noise, strays = place.scores(chunks)
    claims = tuple(Claim(**claim) for claim in facts["claims"])
    report = noise_report(subject.protocol, game.noises, noise, strays)
    sizes = subject.sizes if subject.sizes is not None else protocol_sizes(subject.protocol)
    given = more_than_seen(subject.protocol, certified.view, certified.unit, sizes)
    told = batches_told(subject, certified.view, certified.unit, facts["canary"])
    if told and BATCHES not in given:
        given = f"{given} and {BATCHES}" if given else BATCHES
    finding = replace(
        judged(scores, certified, claims, facts["delta"], game.description, report, given),
        engine=engine,
    )
    finish(place, finding.as_document(), subject.run)
    return finding


def engines_of(subject: Subject, game: Game) -> tuple[str, ...]:
    """Returns the engines that the game is held against: the run's, or those that can train a plan.

    Across machines every client trains by torch.
    """
    if subject.engine is not None:
        return ({"flower": "torch"}.get(subject.engine, subject.engine),)
    if isinstance(game, CanaryGame):
        return ("torch" if game.kernel is None else "native",)
    native = chosen() is not None and not isinstance(subject.protocol.local, ClippedGlm)
    return ("native", "torch") if native else ("torch",)


def refuse_joined(protocol: Protocol, view: View) -> None:
    """Refuses a canary whose adversary would be given steps where the promise is for who sees means, and is smaller."""
    if isinstance(protocol.local, NoisySgd) and given_to(protocol, view) == Given.MODELS:
        raise UserError(
            f"--canary with noisy-sgd reads the client's every step, and the promise in the view {view} is for who sees "
            "means alone: ask for --view server, or leave the canary out."
        )


def game_of(
    subject: Subject,
    facts: Mapping[str, Any],
    data: DataSource | None = None,
    model: ModelSource | None = None,
) -> Game:
    """The game that the facts of an audit describe."""
    protocol = subject.protocol
    sizes, caps = (
        subject.sizes if subject.sizes is not None else protocol_sizes(protocol),
        caps_of(subject),
    )
    shared: dict[str, Any] = {
        "protocol": protocol,
        "view": View.parse(facts["view"]),
        "unit": facts["unit"],
        "trainings": facts["trainings"],
        "seed": facts["seed"],
        "rounds": len(set(subject.rounds)),
        "caps": caps,
    }
    if facts["canary"] is not None:
        refuse_joined(protocol, shared["view"])
        return CanaryGame(**shared, canary=facts["canary"], data=data, model=model)
    return WorstCaseGame(**shared, sizes=sizes)


def game_seed(protocol: Protocol) -> int:
    """The seed of all draws of an audit: the protocol's, or a fresh one."""
    return (
        protocol.seed
        if protocol.seed is not None
        else int.from_bytes(Key.from_system().secret[:6], "little")
    )


def caps_of(subject: Subject) -> dict[int, int]:
    """How often clients with budgets of their own may take part."""
    return all_caps(subject.protocol, held_sizes(subject.protocol, subject.sizes))


def protocol_sizes(protocol: Protocol) -> tuple[int, ...] | None:
    """Records of every client, where the protocol says it."""
    records = protocol.data.records if protocol.data is not None else None
    return (records,) * protocol.clients if records is not None else None


def promised(
    subject: Subject, view: str | View, unit: str, delta: float, *, canary: str | None = None
) -> Guarantee:
    """The certified bound that the audit is held against: where the adversary is told the batches, the one for who knows them."""
    proper_delta(delta)
    protocol = subject.protocol
    if batches_told(subject, View.parse(view), unit, canary) and isinstance(protocol.local, FedAvg):
        protocol = replace(protocol, local=replace(protocol.local, minibatches="public"))
    found = certify(protocol, view, unit, delta=delta, rounds=subject.rounds, sizes=subject.sizes)
    return replace(found, notes=(*found.notes, *subject.notes))


def batches_told(subject: Subject, view: View, unit: str, canary: str | None) -> bool:
    """Whether the adversary knows the records of every batch; among real data it always does, to repeat a client's steps."""
    sizes = subject.sizes if subject.sizes is not None else protocol_sizes(subject.protocol)
    if canary is not None:
        return draws_batches(subject.protocol, unit, sizes)
    return given_batches(subject.protocol, view, unit, sizes)


def refuse_too_few(trainings: int, certified: Guarantee) -> None:
    """Trainings that could show nothing even if the bound were attained are not worth their time."""
    if isinstance(trainings, bool) or not isinstance(trainings, int) or not 1 <= trainings <= MOST:
        raise InvalidValue(
            "trainings", trainings, f"a whole number of at least 1 and at most {MOST:,}"
        )
    refuse_nothing(certified)
    mu = gaussian_like(certified.curve)
    if expected_bound(mu, trainings) <= 0:
        needed, good = trainings_needed(mu), trainings_needed(mu, 0.9)
        raise UserError(
            f"trainings = {trainings}: too few to conclude anything. Even if the certified mu = {rounded_up(mu)} were attained, they would "
            f"be expected to show nothing. At least {needed:,} on each side are needed, {good:,} to show 90 % of it."
        )


def refuse_nothing(certified: Guarantee) -> None:
    """Where nothing is released there is nothing to attack."""
    if certified.mu == 0:
        raise UserError(
            f"view {certified.view}: nothing is released that depends on the data, so there is nothing to audit."
        )


def made_folder(folder: str | Path | None, subject: Subject) -> Path:
    """The folder of a new audit."""
    if folder is None:
        name = (
            subject.run.name
            if subject.run is not None
            else subject.protocol.data.name
            if subject.protocol.data is not None
            else "audit"
        )
        return claimed_path(Path(name).stem, Path("audits"))
    with writing(Path(folder)):
        Path(folder).mkdir(parents=True, exist_ok=True)
    AuditFolder.refuse_used(Path(folder))
    return Path(folder)


def finish(place: AuditFolder, finding: Mapping[str, Any], run: Path | None) -> None:
    """Keep a finding, or an estimate, as JSON says it: in the audit's folder and, for a run, in the run's."""
    document = {**finding, "folder": str(place.path), "ended": now()}
    place.close(document)
    if run is not None and run.is_dir():
        target = (
            run
            / "audits"
            / f"{document['view'].replace(':', '-')}-{document['unit']}-{place.path.name}.json"
        )
        with writing(target):
            target.parent.mkdir(exist_ok=True)
            write_whole(target, as_json(document))

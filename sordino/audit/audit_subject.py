"""The subject of an audit, a plan or a finished run, and the guarantee about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sordino.audit.canaries.canary_records import refuse_unknown_canary
from sordino.audit.observation import may_miss_record, shows_batches
from sordino.audit.worst_cases.neighbours import find_client_sizes
from sordino.federation.complete_protocol import DataSource, ModelSource
from sordino.federation.setup import prepare
from sordino.federation.store.run import Run
from sordino.privacy.bounds.best_bound import choose_guarantee, epsilon_at
from sordino.privacy.bounds.joined_steps import HIDDEN_DRAW
from sordino.privacy.bounds.question import pose_question
from sordino.privacy.bounds.shared_noise import find_shared_bounds
from sordino.privacy.certify import certify
from sordino.privacy.curves.checks import require_delta
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.participation_caps import all_caps
from sordino.privacy.spending import BudgetExceeded, find_affordable_rounds
from sordino.protocol import (
    ClippedGlm,
    DpSgd,
    NoisySgd,
    Protocol,
    ProtocolSource,
    UserError,
    View,
    accept_protocol,
)
from sordino.protocol.errors import format_command
from sordino.protocol.registry import Registry
from sordino.protocol.rule_kinds import LocalRule
from sordino.randomness import Key

PUBLIC_BATCHES: Registry[Callable[[Any], LocalRule]] = Registry(
    "rule with public minibatches", "local rule", LocalRule
)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Describes a protocol that may be trained, or a run that was.

    Attributes:
        protocol: The protocol that is audited, or that the run was trained by.
        rounds: The numbers of the rounds that are priced and played.
        sizes: Records of every client; None if they are not known.
        run: The folder of the run; None for a plan.
        engine: The engine that trained the run; None for a plan, which either engine may train.
        data_digest: A digest of the real data among which a canary is put; empty without a canary.
        notes: Caveats that go with every guarantee about the run.
    """

    protocol: Protocol
    rounds: tuple[int, ...]
    sizes: tuple[int, ...] | None = None
    run: Path | None = None
    engine: str | None = None
    data_digest: str = ""
    notes: tuple[str, ...] = ()

    @property
    def known_sizes(self) -> tuple[int, ...] | None:
        """Records of every client, as measured or as the protocol states them."""
        if self.sizes is not None:
            return self.sizes
        return self.protocol.stated_sizes

    @property
    def caps(self) -> dict[int, int]:
        """How often clients with budgets may take part."""
        return all_caps(self.protocol, find_client_sizes(self.protocol, self.sizes))

    @property
    def name(self) -> str:
        """The name from which an audit's default folder is made."""
        if self.run is not None:
            return self.run.stem
        if self.protocol.data is not None:
            return Path(self.protocol.data.name).stem
        return "audit"


def choose_seed(protocol: Protocol) -> int:
    """Returns the seed of all draws of an audit: the protocol's, or a fresh one.

    Args:
        protocol: The protocol that is audited.
    """
    # With the protocol's seed an audit can be repeated, bit for bit.
    if protocol.seed is not None:
        return protocol.seed
    # Six bytes are exact as a number in JSON, where a seed is kept.
    return int.from_bytes(Key.from_system().secret[:6], "little")


def load_subject(source: ProtocolSource) -> Subject:
    """Returns the subject: a protocol with the rounds that its budget affords, or a finished run.

    Args:
        source: A protocol, its file or its tables; or the folder of a run.

    Raises:
        UserError: The run is not finished.
        BudgetExceeded: The budget affords no round.
    """
    if not isinstance(source, (str, Path)) or names_file(source):
        return _plan_subject(accept_protocol(source))
    run = Run.load(source)
    # The rounds that were paid for are only known at the end.
    if run.status == "unfinished":
        raise UserError(
            f"{run.folder} is not finished: finish it with "
            f"`{format_command('resume', run.folder)}`, or audit its protocol.toml."
        )
    return Subject(
        protocol=run.protocol,
        rounds=tuple(run.rounds_paid),
        sizes=run.sizes,
        run=run.folder,
        engine=run.engine,
        notes=run.notes,
    )


def names_file(source: str | Path) -> bool:
    """Returns whether a path is that of a protocol's file, and not of a run's folder.

    Args:
        source: The path, which need not exist.
    """
    path = Path(source)
    return path.is_file() or path.suffix == ".toml"


def _plan_subject(protocol: Protocol) -> Subject:
    rounds = protocol.rounds
    budget = protocol.privacy.budget
    # A training stops where its budget does, and later rounds are never played.
    if budget is not None:
        reach = find_affordable_rounds(protocol, budget)
        if reach.rounds == 0:
            raise BudgetExceeded(reach.message)
        rounds = reach.rounds
    return Subject(protocol=protocol, rounds=tuple(range(rounds)))


def add_real_data(
    subject: Subject, canary: str, data: DataSource | None, model: ModelSource | None
) -> Subject:
    """Returns the subject with its data and model read: the protocol complete, the sizes known.

    Args:
        subject: The plan or the run.
        canary: The kind of canary, or a path.
        data: Data in place of the protocol's.
        model: A model in place of the protocol's.

    Raises:
        UserError: An unknown canary, or data and model that cannot be trained.
    """
    refuse_unknown_canary(canary)
    setup = prepare(subject.protocol, data=data, model=model)
    sizes = tuple(int(size) for size in setup.sizes)
    return replace(subject, protocol=setup.protocol, sizes=sizes, data_digest=setup.data_digest)


def certify_subject(
    subject: Subject, view: str | View, unit: str, delta: float, *, canary: str | None = None
) -> Guarantee:
    """Returns the certified bound that an audit is compared with.

    If the adversary of the game knows the minibatches, it is the bound against such an adversary.

    Args:
        subject: The plan or the run.
        view: The adversary.
        unit: "record" or "client".
        delta: The delta at which epsilon is measured.
        canary: The kind of canary; None for the worst case.
    """
    require_delta(delta)
    protocol = subject.protocol
    # An adversary that is told the batches may rightly exceed a bound that counts on their secrecy.
    told = knows_batches(subject, unit, canary)
    if told:
        protocol = replace(protocol, local=PUBLIC_BATCHES.of(protocol.local)(protocol.local))
    if told and protocol.release.lot is not None:
        guarantee = certify_seen_lots(subject, view, unit, delta)
    else:
        guarantee = certify(
            protocol, view, unit, delta=delta, rounds=subject.rounds, sizes=subject.sizes
        )
    return replace(guarantee, notes=(*guarantee.notes, *subject.notes))


def certify_seen_lots(subject: Subject, view: str | View, unit: str, delta: float) -> Guarantee:
    """Returns the smallest bound that holds even if the adversary knows the records of every lot.

    Args:
        subject: The plan or the run, with the rule dp-sgd.
        view: The adversary.
        unit: "record" or "client".
        delta: The delta at which bounds are compared.
    """
    question = pose_question(subject.protocol, view, unit, subject.rounds, subject.sizes)
    # Bounds of client budgets are left out too, since they may be made of hidden draws.
    bounds = [bound for bound in find_shared_bounds(question) if bound.method != HIDDEN_DRAW]
    return choose_guarantee(question, bounds, epsilon_at(delta))


@PUBLIC_BATCHES.register_others
def _publish_batches(rule: Any) -> LocalRule:
    published: LocalRule = replace(rule, minibatches="public")
    return published


@PUBLIC_BATCHES.register(ClippedGlm, DpSgd, NoisySgd)
def _keep_batches(rule: LocalRule) -> LocalRule:
    # clipped-glm draws no batches and noisy-sgd hides them in every game. Lots have no key that
    # makes them public: bounds that count on their draw are left out instead.
    return rule


def knows_batches(subject: Subject, unit: str, canary: str | None) -> bool:
    """Returns whether the adversary of the game knows the records of every minibatch.

    With real data it does, since it repeats the client's steps; only in the noisy steps of
    noisy-sgd, which it sees one by one, the record's presence is hidden from it.

    Args:
        subject: The plan or the run.
        unit: "record" or "client".
        canary: The kind of canary; None for the worst case.
    """
    if canary is not None and subject.protocol.release.in_steps:
        return False
    if canary is not None:
        return may_miss_record(subject.protocol, unit, subject.known_sizes)
    return shows_batches(subject.protocol, unit, subject.known_sizes)


def refuse_empty_release(certified: Guarantee) -> None:
    """Refuses to attack a view in which nothing is released.

    Args:
        certified: The bound.

    Raises:
        UserError: Nothing that depends on the data is released.
    """
    # No number of trainings tells two equal laws apart.
    if certified.mu == 0:
        raise UserError(
            f"view {certified.view}: nothing is released that depends on the data, "
            "so there is nothing to audit."
        )

"""Plans an audit: which game, repeated by which engines, with how many trainings; and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sordino.audit.audit_subject import Subject, refuse_empty_release
from sordino.audit.effort import count_round_draws
from sordino.audit.expected_bounds import (
    count_needed_trainings,
    find_equivalent_mu,
    predict_mu_bound,
)
from sordino.audit.fewest_contributions import leave_fewest, with_known_grid
from sordino.audit.game import Game, WorstCaseGame
from sordino.audit.observation import find_given_observation
from sordino.audit.real_game import CanaryGame
from sordino.audit.timed_play import MOST_MINUTES
from sordino.audit.worst_cases.synthetic_losses import SyntheticLosses
from sordino.engines.compiled import is_in_kernel
from sordino.federation.complete_protocol import DataSource, ModelSource
from sordino.privacy.bounds.question import Observation
from sordino.privacy.guarantee import Guarantee, round_up
from sordino.protocol import InvalidValue, Protocol, UserError, View

# Trainings per side by default: of a worst case, and of real models or large federations.
TRAININGS = 5000
FEW_TRAININGS = 500
# The most trainings per side, far more than show anything new.
MOST_TRAININGS = 10_000_000
# How many random numbers an audit draws by default, which takes about a minute.
EFFORT = 500_000_000


def choose_engines(subject: Subject, game: Game) -> tuple[str, ...]:
    """Returns the engines that the game is compared with.

    Args:
        subject: The plan or the run.
        game: The game, with its pair made.

    Returns:
        The engine of the run, or those that can train a plan.
    """
    if subject.engine == "flower":
        # Across machines every client trains by torch.
        return ("torch",)
    if subject.engine is not None:
        return (subject.engine,)
    if isinstance(game, CanaryGame):
        return ("torch" if game.kernel is None else "native",)
    linear = type(game.pair.zero.module) is SyntheticLosses
    if linear and is_in_kernel(subject.protocol.local):
        return ("native", "torch")
    return ("torch",)


def make_game(
    subject: Subject,
    facts: Mapping[str, Any],
    data: DataSource | None = None,
    model: ModelSource | None = None,
) -> Game:
    """Returns the game that the facts of an audit describe.

    Args:
        subject: The plan or the run.
        facts: The contents of audit.json.
        data: With a canary, data in place of the protocol's.
        model: With a canary, a model in place of the protocol's.
    """
    view = View.parse(facts["view"])
    protocol = with_known_grid(subject.protocol)
    shared: dict[str, Any] = {
        "protocol": protocol,
        "view": view,
        "unit": facts["unit"],
        "trainings": facts["trainings"],
        "seed": facts["seed"],
        "rounds": len(set(subject.rounds)),
        "caps": subject.caps,
    }
    if facts["canary"] is None:
        played, sizes = leave_fewest(protocol, view, subject.known_sizes)
        return WorstCaseGame(**{**shared, "protocol": played}, sizes=sizes)
    refuse_seen_means(subject.protocol, view)
    return CanaryGame(
        **shared,
        canary=facts["canary"],
        data=data,
        model=model,
    )


def choose_trainings(subject: Subject, canary: str | None) -> int:
    """Returns the default number of trainings per side.

    Args:
        subject: The plan or the run.
        canary: The kind of canary; None for the worst case.
    """
    if canary is not None:
        return FEW_TRAININGS
    effort = 4 * count_round_draws(subject.protocol) * len(set(subject.rounds))
    return max(FEW_TRAININGS, min(TRAININGS, EFFORT // effort))


def refuse_seen_means(protocol: Protocol, view: View) -> None:
    """Refuses a canary whose adversary would see more than the bound is about.

    Args:
        protocol: The protocol that is audited.
        view: The adversary.

    Raises:
        UserError: The bound is against an adversary that sees only means, and is smaller.
    """
    if protocol.release.in_steps and find_given_observation(protocol, view) == Observation.MODELS:
        raise UserError(
            "--canary with noisy-sgd reads every step of the client, and the bound in the view "
            f"{view} is against an adversary that sees only means: use --view server, or "
            "leave the canary out."
        )


def refuse_minutes(minutes: float, trainings: int | None) -> None:
    """Refuses a time limit that is out of range, or given together with a number of trainings.

    Args:
        minutes: How long the audit may take.
        trainings: The number of trainings that was given; None if none was.

    Raises:
        InvalidValue: The time is not positive, or longer than a week.
        UserError: A number of trainings was given too.
    """
    number = type(minutes) in (int, float)
    if not number or not 0 < minutes <= MOST_MINUTES:
        allowed = f"a number above 0 and at most {MOST_MINUTES:,}"
        raise InvalidValue("minutes", minutes, allowed)
    if trainings is not None:
        raise UserError(
            "trainings and minutes: each of the two says how long the audit is. Give one of them."
        )


def refuse_too_few(trainings: int, certified: Guarantee) -> None:
    """Refuses a number of trainings that could show nothing even if the bound were attained.

    Args:
        trainings: Trainings per side.
        certified: The certified bound.

    Raises:
        InvalidValue: It is not a whole number, or out of range.
        UserError: It is too small, or nothing is released.
    """
    whole = type(trainings) is int
    if not whole or not 1 <= trainings <= MOST_TRAININGS:
        allowed = f"a whole number of at least 1 and at most {MOST_TRAININGS:,}"
        raise InvalidValue("trainings", trainings, allowed)
    refuse_empty_release(certified)
    mu = find_equivalent_mu(certified.curve)
    if predict_mu_bound(mu, trainings) > 0:
        return
    raise UserError(
        f"trainings = {trainings}: too few to conclude anything. Even if the certified "
        f"mu = {round_up(mu)} were attained, they would be expected to show nothing. "
        f"{advise_trainings(mu)}"
    )


def advise_trainings(mu: float) -> str:
    """Returns a sentence that says how many trainings would show a bound.

    Args:
        mu: The certified Gaussian parameter.
    """
    needed = count_needed_trainings(mu)
    if needed is None:
        return "It is too small to be measured by any number of trainings."
    good = count_needed_trainings(mu, 0.9)
    if good is None:
        return f"At least {needed:,} on each side are needed."
    return f"At least {needed:,} on each side are needed, {good:,} to show 90 % of it."

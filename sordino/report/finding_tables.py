"""Shows the finding of an audit in a terminal: its table, its remarks, its contradictions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from sordino.audit.anytime_limits import AnytimeLimit
from sordino.audit.expected_bounds import (
    count_needed_trainings,
    find_equivalent_mu,
    find_largest_mu,
    limit_faultless_test,
    predict_mu_bound,
)
from sordino.audit.lower_bounds import CONFIDENCE, FIRM
from sordino.privacy.guarantee import format_delta, round_down
from sordino.protocol.views import UNIT_IN_WORDS
from sordino.report.number_formats import format_upper_bound
from sordino.report.terminal_tables import facts_table, make_table

if TYPE_CHECKING:
    from sordino.audit.canaries.canary_clients import CanaryEstimate
    from sordino.audit.timed_play import TimePlan
    from sordino.audit.verdict import Claim, Finding, TimedTest
    from sordino.privacy.guarantee import Guarantee

VERDICT_COLOURS = {"holds": "green", "refuted": "red", "not tested": "yellow"}
# Above this mu, an audit needs more trainings than anybody runs, and more noise is better advice.
FEASIBLE_MU = 7
# How an audit that is planned by time ended.
ENDINGS = {
    "clear": "It stopped early: the verdict is clear.",
    "time": "It stopped when the time was over.",
}


def describe_plan(plan: TimePlan, certified: Guarantee) -> str:
    """Says what an audit that is planned by time can show, before its test is judged.

    Args:
        plan: The numbers of trainings.
        certified: The bound that is tested.
    """
    limit = AnytimeLimit(batch=plan.choosing)
    promised = find_equivalent_mu(certified.curve)
    shown = predict_mu_bound(promised, plan.judging, CONFIDENCE, limit)
    largest = find_largest_mu(plan.judging, FIRM, limit)
    return (
        f"The test is chosen by {plan.choosing:,} trainings on each side. Time for about "
        f"{plan.judging:,} more, which judge it: they refute a mu below {round_down(largest)} at "
        f"most, and show about {round_down(shown)} if the bound is attained."
    )


def finding_head(finding: Finding) -> str:
    """Returns the line above the table of a finding: view, unit, adjacency and delta.

    Args:
        finding: What an audit found.
    """
    certified = finding.certified
    return (
        f"View {certified.view}, about {UNIT_IN_WORDS[certified.unit]} ({certified.adjacency}), "
        f"epsilon at delta = {format_delta(finding.delta)}"
    )


def finding_table(finding: Finding) -> Table:
    """Builds a table of measured, certified and claimed bounds.

    Args:
        finding: What an audit found.

    Returns:
        The table for a terminal.
    """
    certified = finding.certified
    delta = finding.delta
    certified_mu = "-"
    if certified.mu is not None:
        certified_mu = format_upper_bound(certified.mu)
    table = make_table({"": "left", "mu": "right", "epsilon": "right", "verdict": "left"})
    if shows_nothing(finding):
        confidence = "nothing was shown"
    else:
        confidence = f"{100 * finding.confidence:.0f} % sure each"
    measured = "measured: at least"
    if finding.given:
        measured = "measured, given more: at least"
    table.add_row(
        measured,
        round_down(finding.mu_lower),
        round_down(finding.epsilon_lower),
        confidence,
    )
    table.add_row(
        "certified: at most",
        certified_mu,
        format_upper_bound(certified.epsilon(delta)),
        colour_verdict(finding.verdict),
    )
    for judged in finding.claims:
        mu, epsilon = claimed_numbers(judged.claim, delta)
        table.add_row(judged.claim.name, mu, epsilon, colour_verdict(judged.verdict))
    return table


def shows_nothing(finding: Finding) -> bool:
    """Returns whether both measured lower bounds are zero.

    Args:
        finding: What an audit found.
    """
    return finding.mu_lower == 0 and finding.epsilon_lower == 0


def claimed_numbers(claim: Claim, delta: float) -> tuple[str, str]:
    """Returns what is printed under mu and epsilon in the row of a claim.

    Args:
        claim: A published or given bound.
        delta: That of the table; an epsilon at another delta says at which.
    """
    if claim.epsilon is None or claim.delta is None:
        return format_upper_bound(claim.mu or 0.0), ""
    epsilon = format_upper_bound(claim.epsilon)
    if claim.delta != delta:
        epsilon += f" at delta = {format_delta(claim.delta)}"
    return "", epsilon


def colour_verdict(verdict: str) -> Text:
    """Returns a verdict in its colour.

    Args:
        verdict: "holds", "refuted" or "not tested".
    """
    return Text(verdict, VERDICT_COLOURS[verdict])


def remarks(finding: Finding) -> list[str]:
    """Lists what must be read with the numbers of a finding.

    Args:
        finding: What an audit found.

    Returns:
        Sentences about the game, its tightness and limits, the noise and the engine.
    """
    lines = [_say_game(finding)]
    if finding.certified.rho is not None:
        rho = format_upper_bound(finding.certified.rho)
        lines.append(f"Certified in zCDP: rho = {rho}{finding.certified.closeness}.")
    if finding.given:
        lines.append(
            f"Given to the adversary: {finding.given}, for which the bound is proved; "
            f"that is more than the view {finding.certified.view} shows."
        )
    if finding.tightness is not None:
        lines.append(_say_tightness(finding, finding.tightness))
    limit = find_largest_epsilon(finding)
    if finding.certified.epsilon(finding.delta) > limit:
        lines.append(
            "Epsilon is tested separately; this number of trainings can show "
            f"{round_down(limit)} at most."
        )
    promised = finding.certified.mu
    if promised is not None and promised > finding.most:
        lines.append(
            f"This could have shown mu = {round_down(finding.most)} at most, "
            f"and more is certified.{advice(finding, promised)}"
        )
    elif shows_nothing(finding):
        line = "Nothing was shown."
        if promised is not None:
            line += advice(finding, promised)
        lines.append(line)
    if finding.residuals is not None:
        lines.append(f"Noise: {finding.residuals}")
    elif finding.trainings > 1:
        lines.append(
            "Noise: not tested: there is none or too little of it, its law is not known, "
            "or uploads are so large that float32 does not show it."
        )
    if finding.engine is not None:
        lines.append(f"Engine: {finding.engine}")
    return lines


def _say_game(finding: Finding) -> str:
    """Says which game was played, and how often."""
    # A single training is judged by its canaries and not by repetition.
    if finding.trainings <= 1:
        return f"Game: {finding.description}."
    judged = f"{finding.trainings:,} trainings on each side judged it"
    ending = "as many chose the test."
    if finding.timed is not None:
        ending = _say_ending(finding.timed)
    return f"Game: {finding.description}; {judged}, {ending}"


def _say_ending(timed: TimedTest) -> str:
    """Says how an audit that was planned by time ended."""
    return (
        f"after {timed.choosing:,} that chose the test. "
        f"{ENDINGS[timed.ended]} Its limits hold whenever it stops."
    )


def _say_tightness(finding: Finding, tightness: float) -> str:
    """Says which share of the certified bound was measured."""
    # Where the curve is Gaussian, mu says everything; otherwise epsilon at one delta is compared.
    if finding.certified.mu is not None:
        return f"Tightness: {tightness:.3f} of the certified mu was measured."
    attained = ""
    if finding.attained is not None:
        attained = (
            f"; {finding.attained:.3f} of the mu that the certified curve allows "
            "at the same error rate"
        )
    return f"Tightness: {tightness:.3f} of the certified epsilon was measured{attained}."


def find_largest_epsilon(finding: Finding) -> float:
    """Computes the largest epsilon that the trainings of an audit could have shown.

    Args:
        finding: What an audit found.

    Returns:
        The epsilon of a test that never errs; infinity for an audit by one training.
    """
    # An audit by one training with canaries has no such limit.
    if finding.trainings <= 1:
        return math.inf
    # A test that never errs in that many trainings shows the most.
    faultless = limit_faultless_test(finding.trainings, CONFIDENCE, finding.limit)
    return faultless.epsilon(finding.delta)


def advice(finding: Finding, promised: float) -> str:
    """Says what would show more.

    Args:
        finding: What an audit found.
        promised: The certified mu.

    Returns:
        A sentence after a space, or nothing where nothing helps.
    """
    # One training has too few canaries to show more, whatever the bound.
    if finding.trainings == 1:
        return " More canaries, or many trainings instead of one, show more."
    if promised <= FEASIBLE_MU:
        needed = count_needed_trainings(promised, 0.9)
        # A bound this small is beyond any number of trainings.
        if needed is None:
            return ""
        return f" About {needed:,} trainings on each side show 90 % of it, if it is attained."
    if math.isinf(promised):
        return ""
    return (
        f" To see how tight the bound is, audit with {promised / 3:.3g} times the noise, "
        "where it is about 3."
    )


def contradiction(finding: Finding) -> str:
    """Says which guarantees a finding contradicts.

    Args:
        finding: What an audit found.

    Returns:
        One sentence; its parts are separated by semicolons.
    """
    broken = []
    if finding.verdict == "refuted":
        broken.append(
            f"the certified bound of the view {finding.certified.view} is exceeded, 99.99 % sure"
        )
    for judged in finding.claims:
        # A refuted claim of a paper contradicts the paper, and not Sordino.
        if judged.claim.ours and judged.verdict == "refuted":
            broken.append(f"{judged.claim.name} is exceeded, 99.99 % sure")
    if finding.residuals is not None and finding.residuals.failed:
        broken.append("the noise does not follow the claimed distribution")
    engine = finding.engine
    if engine is not None and engine.verdict == "differs":
        noise = f"the noise of the engine {engine.name} does not follow the claimed distribution"
        broken.append(engine.place or noise)
    return "; ".join(broken) + "."


def estimate_table(estimate: CanaryEstimate, certified: Guarantee) -> Table:
    """Builds a table of what canary clients suggest, with the certified bound.

    Args:
        estimate: The estimate from one training with canary clients.
        certified: The guarantee about one client.

    Returns:
        The table for a terminal.
    """
    delta = estimate.delta
    promised = f"epsilon = {format_upper_bound(certified.epsilon(delta))}"
    if certified.mu is not None and certified.rho is not None:
        promised = (
            f"mu = {format_upper_bound(certified.mu)}, rho = {format_upper_bound(certified.rho)}"
            f"{certified.closeness}, {promised}"
        )
    return facts_table(
        [
            (
                "Estimate",
                f"mu = {estimate.mu:.3g}, epsilon = {estimate.epsilon_of_mu:.3g} "
                f"at delta = {format_delta(delta)} ({estimate.adjacency})",
            ),
            (
                "From",
                f"one training with {estimate.canaries} canary clients; an estimate, not a bound",
            ),
            (
                "Certified",
                f"{promised} ({certified.adjacency}: a client is replaced, which is twice as far)",
            ),
        ]
    )

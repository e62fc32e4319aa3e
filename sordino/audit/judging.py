"""Judges promises by the scores of an audit's trainings."""

from __future__ import annotations

import math

from sordino.audit.anytime_limits import AnytimeLimit
from sordino.audit.expected_bounds import (
    find_equivalent_mu,
    find_largest_mu,
    limit_faultless_test,
    predict_epsilon_bound,
    predict_mu_bound,
)
from sordino.audit.lower_bounds import (
    CONFIDENCE,
    FIRM,
    ErrorLimits,
    RateLimit,
    Scores,
    choose_threshold,
    limit_errors,
    limit_once,
    measure_error_rates,
)
from sordino.audit.noise.residual_tests import ResidualReport
from sordino.audit.verdict import Claim, Finding, JudgedClaim, Judgement, TimedTest
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.guarantee import Guarantee

# A test is chosen for each: one shows most of mu, the other most of epsilon.
GOALS = ("mu", "epsilon")


def judge_scores(
    scores: Scores,
    certified: Guarantee,
    claims: tuple[Claim, ...],
    delta: float,
    description: str,
    residuals: ResidualReport | None = None,
    given: str = "",
    timed: TimedTest | None = None,
) -> Finding:
    """Turns scores into bounds and verdicts.

    "Refuted" needs a confidence of 99.99 %, by the test chosen for mu or the one chosen for
    epsilon.

    Args:
        scores: Scores of all trainings.
        certified: The certified bound.
        claims: Further claims.
        delta: The delta at which epsilon is measured.
        description: The two data sets, in words.
        residuals: The outcome of the noise tests; None if there were none.
        given: What the adversary was given beyond its view.
        timed: The course of an audit with a time limit, whose error limits hold whenever it ends.

    Returns:
        The finding, without the comparison with the engine.
    """
    limit: RateLimit = limit_once if timed is None else timed.limit
    # Bounds are stated at 95 %; a verdict that ends with exit code 4 needs far more.
    firm = [measure_error_rates(scores, goal, FIRM, delta, limit) for goal in GOALS]
    for_mu, for_epsilon = (
        measure_error_rates(scores, goal, CONFIDENCE, delta, limit) for goal in GOALS
    )
    judged = []
    for claim in claims:
        verdict: Judgement = "not tested"
        if is_about(claim, certified, given):
            verdict = judge_claim(claim, firm, certified, scores.trainings, limit)
        judged.append(JudgedClaim(claim=claim, verdict=verdict))
    return Finding(
        certified=certified,
        mu_lower=for_mu.mu,
        epsilon_lower=for_epsilon.epsilon(delta),
        delta=delta,
        trainings=scores.trainings,
        most=find_largest_mu(scores.trainings, CONFIDENCE, limit),
        verdict=judge_bound(firm, certified, scores.trainings, limit),
        claims=tuple(judged),
        tests=(for_mu, for_epsilon),
        residuals=residuals,
        description=description,
        given=given,
        timed=timed,
    )


def is_clear(
    scores: Scores,
    certified: Guarantee,
    claims: tuple[Claim, ...],
    delta: float,
    given: str,
) -> bool:
    """Returns whether more trainings would hardly change any verdict.

    A promise is settled if it is refuted, or if it holds and the test's error rates are, by their
    lower limits at 95 %, too large for any number of trainings to refute it.

    Args:
        scores: Scores of all trainings so far.
        certified: The certified bound.
        claims: Further claims.
        delta: The delta at which epsilon is measured.
        given: What the adversary was given beyond its view.
    """
    limit = AnytimeLimit(batch=min(len(side) for side in scores.choosing))
    firm = []
    hopeful = []
    for goal in GOALS:
        threshold = choose_threshold(scores.choosing, goal, FIRM, delta)
        firm.append(limit_errors(scores, threshold, FIRM, limit))
        hopeful.append(limit_errors(scores, threshold, CONFIDENCE, limit.low))
    verdict = judge_bound(firm, certified, scores.trainings, limit)
    if not is_settled(verdict, any(one.contradicts(certified.curve) for one in hopeful)):
        return False
    for claim in claims:
        if not is_about(claim, certified, given):
            continue
        verdict = judge_claim(claim, firm, certified, scores.trainings, limit)
        if not is_settled(verdict, any(refutes(one, claim) for one in hopeful)):
            return False
    return True


def is_settled(verdict: Judgement, refutable: bool) -> bool:
    """Returns whether more trainings would hardly change a verdict.

    Args:
        verdict: The verdict so far.
        refutable: Whether the test may yet refute the promise.
    """
    return verdict == "refuted" or (verdict == "holds" and not refutable)


def is_about(claim: Claim, certified: Guarantee, given: str) -> bool:
    """Returns whether a game says anything about a claim.

    Args:
        claim: The claim.
        certified: The bound of the game's view and unit.
        given: What the adversary was given beyond the view.
    """
    # What one adversary measures says nothing about another's view, and what an adversary measures
    # that was given more than its view says nothing about that view.
    return not given and (claim.view, claim.unit) == (str(certified.view), certified.unit)


def judge_bound(
    firm: list[ErrorLimits],
    certified: Guarantee,
    trainings: int,
    limit: RateLimit = limit_once,
) -> Judgement:
    """Returns the verdict on the certified bound.

    Args:
        firm: Error limits at the confidence that a refutation needs.
        certified: The certified bound.
        trainings: Trainings per side.
        limit: The function that limits error rates.

    Returns:
        "not tested" if not even a test that never errs would have contradicted the bound.
    """
    if any(limits.contradicts(certified.curve) for limits in firm):
        return "refuted"
    # Too few trainings cannot contradict the bound, whatever their scores: "holds" would mislead.
    if limit_faultless_test(trainings, FIRM, limit).contradicts(certified.curve):
        return "holds"
    return "not tested"


def refutes(limits: ErrorLimits, claim: Claim) -> bool:
    """Returns whether no mechanism with a claim's promise could have such error rates.

    Args:
        limits: Limits of the error rates of one test.
        claim: The claim.
    """
    if claim.epsilon is not None and claim.delta is not None:
        return limits.epsilon(claim.delta) > claim.epsilon
    return limits.contradicts(GaussianCurve(mu=math.inf if claim.mu is None else claim.mu))


def judge_claim(
    claim: Claim,
    firm: list[ErrorLimits],
    certified: Guarantee,
    trainings: int,
    limit: RateLimit = limit_once,
) -> Judgement:
    """Returns the verdict on a claim about the view and the unit of the game.

    Args:
        claim: The claim.
        firm: Error limits at the confidence that a refutation needs.
        certified: The certified bound.
        trainings: Trainings per side.
        limit: The function that limits error rates.

    Returns:
        "holds" if the certified bound implies the claim, or if this number of trainings could be
        expected to contradict it, should the certified bound be attained.
    """
    if any(refutes(limits, claim) for limits in firm):
        return "refuted"
    attained = find_equivalent_mu(certified.curve)
    if claim.epsilon is not None and claim.delta is not None:
        promised = claim.epsilon
        implied = certified.epsilon(claim.delta) <= promised
        expected = predict_epsilon_bound(attained, claim.delta, trainings, FIRM, limit)
    else:
        promised = math.inf if claim.mu is None else claim.mu
        # The law's mu implies no claim about noise that is only near to its law.
        implied = certified.curve.mu is not None and promised >= certified.curve.mu
        expected = predict_mu_bound(attained, trainings, FIRM, limit)
    return "holds" if implied or expected > promised else "not tested"

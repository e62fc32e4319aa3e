"""Judges promises by what an audit measured."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from sordino.audit.anytime_limits import AnytimeLimit
from sordino.audit.engine_check import EngineCheck
from sordino.audit.lower_bounds import (
    CONFIDENCE,
    FIRM,
    ErrorLimits,
    RateLimit,
    Scores,
    choose_threshold,
    find_equivalent_mu,
    find_largest_mu,
    limit_errors,
    limit_faultless_test,
    limit_once,
    measure_error_rates,
    predict_epsilon_bound,
    predict_mu_bound,
)
from sordino.audit.noise.residual_tests import ResidualReport
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import InvalidValue

Judgement = Literal["holds", "refuted", "not tested"]
# Why an audit that was planned by time ended.
Ending = Literal["clear", "time"]

GOALS = ("mu", "epsilon")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Holds somebody's promise, mu-GDP or epsilon at a delta, that an audit is compared with.

    Attributes:
        name: What the claim is called in the findings.
        mu: The claimed Gaussian parameter; None for a claim about epsilon.
        epsilon: The claimed epsilon; None for a claim about mu.
        delta: The delta that goes with epsilon.
        view: The adversary that the claim is about.
        unit: "record" or "client".
        ours: Whether a contradiction changes the exit code. It does for claims the user asks about,
            and not for published ones.

    Example:
        >>> Claim(name="theirs", epsilon=2.0, delta=1e-5).mu is None
        True
    """

    name: str
    mu: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    view: str = "final"
    unit: str = "record"
    ours: bool = False

    def __post_init__(self) -> None:
        if (self.mu is None) == (self.epsilon is None):
            raise InvalidValue("claim", self.name, "either mu, or epsilon with delta")
        if (self.epsilon is None) != (self.delta is None):
            raise InvalidValue("claim", self.name, "epsilon together with delta")

    def as_document(self) -> dict[str, Any]:
        """Returns the claim for JSON."""
        return {
            "claim": self.name,
            "mu": self.mu,
            "epsilon": self.epsilon,
            "delta": self.delta,
        }


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """Holds a claim and the verdict on it."""

    claim: Claim
    verdict: Judgement

    def as_document(self) -> dict[str, Any]:
        """Returns the claim and its verdict for JSON."""
        return {**self.claim.as_document(), "verdict": self.verdict}


@dataclass(frozen=True, kw_only=True)
class TimedTest:
    """Says how an audit went that was planned by time.

    Attributes:
        minutes: The time it was given.
        choosing: Trainings per side that chose the test.
        planned: Trainings per side for which there seemed to be time.
        looks: How often the verdict was asked for.
        ended: Why it ended: the verdict was "clear", or the "time" was over.
    """

    minutes: float
    choosing: int
    planned: int
    looks: int
    ended: Ending

    @property
    def limit(self) -> AnytimeLimit:
        """How its error rates are limited, whenever it ends."""
        return AnytimeLimit(batch=self.choosing)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Holds the result of an audit.

    Attributes:
        certified: The bound that is promised.
        mu_lower: Measured lower bound on mu, through the Gaussian curve; 0 if nothing was shown.
        epsilon_lower: Measured lower bound on epsilon at `delta`, for any mechanism.
        delta: Where epsilon is measured.
        confidence: Confidence of each of the two numbers.
        trainings: Trainings per side by which the test was judged.
        most: The largest mu that this number of trainings could have shown.
        verdict: Verdict on the certified bound.
        claims: Verdicts on published or stated claims.
        tests: Upper limits of the error rates of the tests that gave mu and epsilon, if error rates
            were counted.
        residuals: The outcome of the noise tests, if there were any.
        description: The two data sets, in words.
        given: What the adversary was given beyond the view, because the bound is proved for that;
            empty if it was given the view itself. The measured bounds then hold for an adversary
            that is given as much.
        engine: Whether the engine that trains does what the game plays, if that was compared.
        timed: How it went, if it was planned by time.

    Example:
        >>> from sordino import FedAvg, Constant, Gaussian, Protocol, audit
        >>> rule = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.1))
        >>> plan = Protocol(seed=1, clients=2, rounds=3, local=rule, noise=Gaussian(sigma=0.1))
        >>> found = audit(plan, "server", trainings=500)
        >>> found.verdict, found.mu_lower < found.certified.mu
        ('holds', True)
    """

    certified: Guarantee
    mu_lower: float
    epsilon_lower: float
    delta: float
    trainings: int
    most: float
    verdict: Judgement
    description: str
    confidence: float = CONFIDENCE
    claims: tuple[JudgedClaim, ...] = ()
    tests: tuple[ErrorLimits, ...] = ()
    residuals: ResidualReport | None = field(default=None, repr=False)
    given: str = ""
    engine: EngineCheck | None = None
    timed: TimedTest | None = None

    @property
    def limit(self) -> RateLimit:
        """How its error rates are limited."""
        return limit_once if self.timed is None else self.timed.limit

    @property
    def tightness(self) -> float | None:
        """Measured over certified: of mu if the certificate is Gaussian, else of epsilon.

        None without a finite certificate.
        """
        # Where one number is the whole curve, it is compared: epsilon at one delta says less.
        if self.certified.mu is not None:
            return divide_by_promise(self.mu_lower, self.certified.mu)
        return divide_by_promise(self.epsilon_lower, self.certified.epsilon(self.delta))

    @cached_property
    def attained(self) -> float | None:
        """Measured mu over the mu that the certified curve allows at one of the test's error rates.

        The nearer of the two rates counts. This is the tightness if the certificate is Gaussian.
        If it is not, epsilon at a small delta is a matter of rare events that no number of
        trainings shows, and this says how near the curve the test came.
        """
        if not self.tests:
            return None
        # A curve need not be symmetric, so it is asked at both error rates of the test.
        rates = (self.tests[0].false_positive, self.tests[0].false_negative)
        allowed = min(
            ErrorLimits(false_positive=rate, false_negative=self.certified.beta(rate)).mu
            for rate in rates
        )
        return divide_by_promise(self.mu_lower, allowed)

    @property
    def contradicted(self) -> bool:
        """Whether something promised to the user is false.

        That is the certified bound, a claim the user asked about, the noise or the engine.
        """
        # A published claim that is false contradicts its paper, not what the user was promised.
        asked = any(judged.claim.ours and judged.verdict == "refuted" for judged in self.claims)
        noise = self.residuals is not None and len(self.residuals.failed) > 0
        engine = self.engine is not None and self.engine.verdict == "differs"
        return self.verdict == "refuted" or asked or noise or engine

    def as_document(self) -> dict[str, Any]:
        """Returns the finding for JSON."""
        return {
            "view": str(self.certified.view),
            "unit": self.certified.unit,
            "mu_lower": self.mu_lower,
            "epsilon_lower": self.epsilon_lower,
            "delta": self.delta,
            "confidence": self.confidence,
            "trainings": self.trainings,
            "certified": self.certified.as_document(self.delta),
            "verdict": self.verdict,
            "claims": [judged.as_document() for judged in self.claims],
            "tightness": self.tightness,
            "attained": self.attained,
            "most": self.most,
            "pair": self.description,
            "tests": [asdict(limits) for limits in self.tests],
            "given": self.given,
            "residuals": None if self.residuals is None else residuals_document(self.residuals),
            "engine": None if self.engine is None else self.engine.as_document(),
            "timed": None if self.timed is None else asdict(self.timed),
        }


def divide_by_promise(measured: float, promised: float) -> float | None:
    """Returns a measured number over the promised one; None if that is 0 or infinite.

    Args:
        measured: A lower bound.
        promised: The upper bound it is compared with.
    """
    # A promise without a limit is neither tight nor loose, and one of 0 leaves nothing to measure.
    if not math.isfinite(promised) or promised <= 0:
        return None
    return measured / promised


def residuals_document(report: ResidualReport) -> dict[str, Any]:
    """Returns the outcome of the noise tests for JSON.

    Args:
        report: All tests of the noise.
    """
    failed = [
        {"test": test.name, "place": test.place, "found": test.found, "p": test.p}
        for test in report.failed
    ]
    return {
        "law": report.law,
        "values": report.values,
        "tests": len(report.tests),
        "failed": failed,
    }


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

    "Refuted" needs 99.99 % confidence, by the test that is best for mu or the one best for epsilon.

    Args:
        scores: Scores of all trainings.
        certified: The bound that is promised.
        claims: Further claims.
        delta: Where epsilon is measured.
        description: The two data sets, in words.
        residuals: The outcome of the noise tests.
        given: What the adversary was given beyond its view.
        timed: How an audit went that was planned by time; its limits hold whenever it ends.

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
        certified: The bound that is promised.
        claims: Further claims.
        delta: Where epsilon is measured.
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
    # Another adversary sees other things, and what was measured says nothing about it. An adversary
    # that was given more says nothing about the view.
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
        certified: The bound.
        trainings: Trainings per side.
        limit: How error rates are limited.

    Returns:
        "not tested" if not even a test that never errs would have contradicted the bound.
    """
    if any(limits.contradicts(certified.curve) for limits in firm):
        return "refuted"
    # Too few trainings contradict nothing, whatever they show: to say "holds" would mislead.
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
        certified: The bound.
        trainings: Trainings per side.
        limit: How error rates are limited.

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

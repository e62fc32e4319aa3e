"""The claims of convergent-dp that are not theorems: remarks, quoted lemmas, equations, tables.

The theorems and the lemmas of its proofs are in `convergent_claims`.
"""

from __future__ import annotations

from dataclasses import replace

from sordino.papers import (
    certified,
    convergent_lemmas,
    convergent_remarks,
    counterexamples,
    quadrature,
    wavy_counterexamples,
)
from sordino.papers.claims import Formula, PublishedClaim
from sordino.papers.convergent_claims import (
    FEDERATION,
    FLIPPED,
    THEOREM_3A,
    THEOREM_3B,
    THEOREM_4,
)

_WAVY = (
    "On a loss that is L-smooth and not convex, slope +-(V - A) and a wave of height A, the sign "
    "of the last model alone shows at least"
)


def _read_for_nonconvex(
    claim: PublishedClaim, *, statement: str, condition: str, reason: str, exact: Formula
) -> PublishedClaim:
    """Returns a theorem's claim, read for losses that are really not convex."""
    return replace(
        claim,
        name=f"{claim.name}-nonconvex",
        where=f"{claim.where}, read for non-convex losses only",
        statement=statement,
        condition=condition,
        exact=exact,
        evidence=_WAVY,
        reason=reason,
        defaults={**claim.defaults, "wave": 0.1},
    )


LEMMA_2 = PublishedClaim(
    name="convergent/lemma-2",
    where="convergent-dp, Lemma 2",
    statement=(
        "Releases of which each may depend on the outputs before it are together as private as"
        " the product of the worst of each."
    ),
    quantity="delta",
    verdict="sound",
    published=convergent_remarks.lemma_2,
    exact=quadrature.adaptive_delta,
    evidence="A Gaussian release whose size depends on the output of one before it has",
    reason="Dong, Roth and Su 2022, Thm 3.2.",
    defaults={"first": 0.6, "second": 0.8, "epsilon": 1.0},
)

CLAIMS: tuple[PublishedClaim, ...] = (
    _read_for_nonconvex(
        THEOREM_3A,
        statement=(
            "At a constant learning rate and for a non-convex loss the privacy of the last model "
            "converges as the rounds grow."
        ),
        condition="one round only; false for every L > 0 once the rounds are many",
        reason=(
            "docs/theory.md#a2: a wave moves a step by at most A whatever the noise, so the drift "
            "of a linear loss of slope V - 2A remains."
        ),
        exact=wavy_counterexamples.wavy_constant_fedavg,
    ),
    _read_for_nonconvex(
        THEOREM_3B,
        statement=(
            "At a cyclically decaying learning rate and for a non-convex loss the privacy of the "
            "last model converges as the rounds grow."
        ),
        condition=THEOREM_3B.condition,
        reason="docs/theory.md#a2: as 3(a).",
        exact=wavy_counterexamples.wavy_cyclic_fedavg,
    ),
    _read_for_nonconvex(
        THEOREM_4,
        statement=(
            "With a proximal term alpha > L and for a non-convex loss the privacy of the last "
            "model converges as the rounds and the local steps grow."
        ),
        condition=THEOREM_4.condition,
        reason="docs/theory.md#a3: as 3(a); the pull goes to the model of the round, which drifts.",
        exact=wavy_counterexamples.wavy_constant_fedprox,
    ),
    PublishedClaim(
        name="convergent/lemma-1",
        where="convergent-dp, Lemma 1",
        statement="What is computed from a release tells the data sets apart no better than it.",
        quantity="delta",
        verdict="sound",
        published=convergent_lemmas.lemma_3,
        exact=quadrature.rounded_delta,
        evidence="A Gaussian release rounded to whole numbers, summed over them, has",
        reason="Dong, Roth and Su 2022, Lemma 2.9: every test of the result is one of the release.",
        defaults={"mu": 1.0, "epsilon": 0.5},
    ),
    LEMMA_2,
    PublishedClaim(
        name="convergent/remark-2.1",
        where="convergent-dp, Remark 2.1",
        statement=(
            "rho is above 1 and sensitivity diverges, but the best lambda in [0, 1] makes privacy "
            "converge."
        ),
        quantity="H",
        verdict="unsound",
        condition="rho < 1, or a gamma that falls fast enough",
        published=convergent_remarks.remark_2_1,
        exact=certified.best_interpolation,
        evidence="The smallest H over all lambda in [0, 1] is",
        reason=(
            "docs/theory.md#a7: with rho >= 1 and a constant gamma the best lambda is 1 in every "
            "round, which is composition."
        ),
        sound_replacement="sordino.privacy.amplification.last_iterate, which finds the best lambda",
        defaults={"rho": 1.1, "gamma": 0.2, "rounds": 1000},
    ),
    PublishedClaim(
        name="convergent/remark-3.1",
        where="convergent-dp, Remark 3.1",
        statement="Constant noise can still achieve convergent privacy.",
        quantity="mu",
        verdict="unsound",
        condition=(
            "learning rates whose squared sums converge, as those of 3(c) and 3(d); false for "
            "constant and cyclic rates"
        ),
        published=convergent_remarks.remark_3_1,
        exact=counterexamples.constant_fedavg,
        evidence=FLIPPED,
        reason="docs/theory.md#a2: at a constant rate mu grows like the root of the rounds.",
        sound_replacement="falling rates (docs/theory.md#a4), clipped-glm (docs/theory.md#a9)",
        defaults={**FEDERATION, "smoothness": 1.0},
    ),
    PublishedClaim(
        name="convergent/remark-3.2-delta",
        where="convergent-dp, Remark 3.2, read of delta",
        statement=(
            "When n of m clients take part, delta at a fixed epsilon, and with it the advantage of"
            " the best test, is n/m of what it is with everyone."
        ),
        quantity="delta",
        relation="equal to",
        verdict="conditional",
        condition=(
            "one round, and who took part is seen; in delta at a fixed epsilon and in the "
            "advantage, not in mu or epsilon"
        ),
        published=convergent_remarks.remark_3_2_delta,
        exact=certified.visible_rounds_delta,
        evidence="Summed over the rounds in which the client took part, each integrated, it is",
        reason=(
            "docs/theory.md#a10: a visible round is (1 - q) Id + q G_mu, whose delta is q "
            "delta_mu; over several rounds a client takes part more often than in a share q of "
            "the trainings."
        ),
        sound_replacement="mixtures over who takes part, sordino.privacy.amplification.cohorts",
        defaults={"mu": 1.0, "epsilon": 0.1, "clients": 100, "participants": 1, "rounds": 1},
        outside={"rounds": 2},
    ),
    PublishedClaim(
        name="convergent/remark-4.1",
        where="convergent-dp, Remark 4.1",
        statement=(
            "With a proximal term privacy no longer depends on the local steps K, even at a "
            "constant learning rate."
        ),
        quantity="mu",
        verdict="conditional",
        condition="of one round, at a learning rate of at most 1/alpha; rounds still compose",
        published=convergent_remarks.remark_4_1,
        exact=counterexamples.constant_fedprox,
        evidence=FLIPPED,
        reason=(
            "docs/theory.md#a3: an upload moves by 2V (1 - (1 - eta alpha)^K)/alpha, at most "
            "2V/alpha."
        ),
        sound_replacement="sordino.privacy.sensitivity.bound_upload, summed over the rounds",
        defaults={**FEDERATION, "rounds": 1, "steps": 100, "rate": 0.5, "proximal": 1.0},
        outside={"rounds": 100},
    ),
    PublishedClaim(
        name="convergent/equation-28",
        where="convergent-dp, Eq. (28), upper half",
        statement="At the rates mu/(k + 1), eta(K, t) is at most ((1 + K)^(c mu L) - 1)/(c L).",
        quantity="eta",
        verdict="unsound",
        condition="mu L near 1; false for small mu L",
        published=convergent_remarks.equation_28,
        exact=certified.summed_stretch,
        evidence="Lemma 8's sum, step by step, is",
        reason=(
            "As mu L falls, the right side tends to mu ln(K + 1), below mu H_K. Without "
            "consequence: Table 2 leaves out the 1/c."
        ),
        sound_replacement="the product of Lemma 8, which is (prod (1 + eta_k L) - 1)/L",
        defaults={"steps": 5, "rate": 0.1, "smoothness": 1.0, "c": 1.5},
    ),
    PublishedClaim(
        name="convergent/equation-29",
        where="convergent-dp, Eq. (29), upper half",
        statement=(
            "At the rates mu/(tK + k + 1), eta(K, t) is at most (((tK + K + 1)/(tK + 1))^(z mu L) "
            "- 1)/(z L)."
        ),
        quantity="eta",
        verdict="unsound",
        condition="mu L near 1; false for small mu L",
        published=convergent_remarks.equation_29,
        exact=certified.summed_stretch,
        evidence="Lemma 8's sum, step by step, is",
        reason=(
            "As Eq. (28): for small mu L the right side tends to mu ln((tK + K + 1)/(tK + 1)), "
            "which is below the sum of the rates. Without consequence: Table 2 leaves out the 1/z."
        ),
        sound_replacement="the product of Lemma 8, which is (prod (1 + eta_k L) - 1)/L",
        defaults={"steps": 5, "rate": 0.1, "smoothness": 1.0, "round_number": 1, "z": 1.1},
    ),
    PublishedClaim(
        name="convergent/table-3",
        where="convergent-dp, Table 3, last row",
        statement=(
            "For (epsilon, delta) Noisy-FedAvg needs at most sigma = V sqrt(Phi^-1(delta)^2 + 4 "
            "epsilon)/(epsilon sqrt(m)) sqrt(2 - 1/T)."
        ),
        quantity="sigma",
        verdict="unsound",
        condition="2 mu K <= 1; the factor 2 mu K is missing, and with it sigma grows with K",
        published=convergent_remarks.table_3,
        exact=certified.needed_sigma,
        evidence="The sigma that stage-wise rates need by composition is",
        reason=(
            "docs/theory.md#a4: Theorem 3(c) has the factor 2 mu V K, and the table, which is "
            "about T and K, kept V alone."
        ),
        sound_replacement="Theorem 3(c) solved for sigma, as `sordino calibrate` does",
        defaults={
            "rounds": 600,
            "steps": 50,
            "rate": 0.1,
            "clip": 1.0,
            "clients": 50,
            "epsilon": 1.0,
            "delta": 1e-5,
        },
    ),
    PublishedClaim(
        name="convergent/appendix-f-factor",
        where="convergent-dp, Appendix F, last two sentences",
        statement=(
            "Starting at t_0 = 0 costs a constant factor only, which shrinks as the rounds grow."
        ),
        quantity="factor",
        verdict="unsound",
        condition="rho above 1 by a constant, where both sides compose",
        published=convergent_remarks.appendix_f_factor,
        exact=certified.relaxation_factor,
        evidence="After all the rounds, ten times as many, H_0/H_* is exactly",
        reason=(
            "docs/theory.md#a7: at rho = 1, H_0 = T gamma^2 and H_* stays at about 4 D gamma; the "
            "factor grows with T."
        ),
        sound_replacement="sordino.privacy.amplification.bounded_domain.last_iterate_bounded",
        defaults={"rho": 1.0, "gamma": 0.2, "rounds": 1000, "diameter": 2.0},
    ),
    PublishedClaim(
        name="convergent/appendix-f-np-hard",
        where="convergent-dp, Appendix F, second sentence",
        statement="Minimising jointly over lambda and t_0 is NP-hard.",
        quantity="operations",
        relation="at least",
        verdict="unsound",
        condition="a handful of rounds, where every count is small",
        published=convergent_remarks.appendix_f_work,
        exact=certified.pooling_work,
        evidence="Every start solved separately, by pooling, takes no more than",
        reason=(
            "docs/theory.md#a7: for each of the T starts the best lambda is an isotonic "
            "regression, in O(T); all starts together take O(T log T)."
        ),
        sound_replacement="sordino.privacy.amplification.bounded_domain.last_iterate_bounded",
        defaults={"rounds": 100},
    ),
)

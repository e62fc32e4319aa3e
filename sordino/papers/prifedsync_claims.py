"""The claims of prifedsync (federated f-differential privacy).

Each has its verdict and the numbers that support it.
"""

from __future__ import annotations

from dataclasses import replace

from sordino.papers import certified, prifedsync, quadrature
from sordino.papers.claims import PublishedClaim
from sordino.papers.convergent_claims import LEMMA_5
from sordino.papers.convergent_remark_claims import LEMMA_2

_MIXTURE = (
    "((1 - p) Id + p f)^R for weak and strong alike, "
    "sordino.privacy.amplification.subsampling.compose_fixed_rounds"
)

CLAIMS: tuple[PublishedClaim, ...] = (
    replace(
        LEMMA_2,
        name="prifedsync/lemma-3.3",
        where="prifedsync, Lemma 3.3 (Dong, Roth and Su 2022)",
        statement=(
            "Algorithms of which each sees the outputs before it are together as private as the "
            "product of their trade-off functions."
        ),
    ),
    replace(
        LEMMA_5,
        name="prifedsync/lemma-3.4",
        where="prifedsync, Lemma 3.4 (Dong, Roth and Su 2022)",
        reason="Dong, Roth and Su 2022, Cor. 3.3.",
    ),
    PublishedClaim(
        name="prifedsync/lemma-3.7",
        where="prifedsync, Lemma 3.7",
        statement=(
            "In a round with all clients, what client i receives is no less private than client "
            "j's upload."
        ),
        quantity="mu",
        verdict="sound",
        assumes="the maps F_i do not use client j's model without its noise",
        published=prifedsync.lemma_3_7,
        exact=prifedsync.helper_model,
        evidence="The mean of Gaussian uploads, as client i sees it, has exactly",
        reason=(
            "Post-processing of j's upload; the equality of the proof holds only if i knows all "
            "other uploads."
        ),
        defaults={"shift": 1.0, "sigma": 1.0, "clients": 5, "mixing": 0.5},
    ),
    PublishedClaim(
        name="prifedsync/lemma-3.8",
        where="prifedsync, Lemma 3.8",
        statement=(
            "One round with clients sampled with probability p has a trade-off function of at "
            "least max(f, 1 - alpha - p^2)."
        ),
        quantity="total variation",
        verdict="sound",
        assumes="one round, from a state that does not depend on client j",
        published=prifedsync.lemma_3_8,
        exact=prifedsync.sampled_pair,
        evidence="When i sees whether both were sampled, f being Gaussian, it is exactly",
        reason=(
            "docs/theory.md#c3: joint convexity gives even p^2 delta_f(epsilon) at every epsilon."
        ),
        sound_replacement="none needed; the mixture (1 - p^2) Id + p^2 f is smaller",
        # The total variation of f is 0.383, above p^2 = 0.25, so that the sampling term decides.
        defaults={"mu": 1.0, "probability": 0.5},
    ),
    PublishedClaim(
        name="prifedsync/lemma-b.1",
        where="prifedsync, Lemma B.1",
        statement=(
            "Two mixtures that differ with probability p_E only have a trade-off function of at "
            "least max(f, 1 - alpha - p_E)."
        ),
        quantity="total variation",
        verdict="sound",
        published=prifedsync.lemma_b_1,
        exact=quadrature.mixed_variation,
        evidence="Two mixtures of Gaussians with a part in common, integrated, have",
        reason=(
            "docs/theory.md#c3: joint convexity; the mixture p_E f + (1 - p_E) Id is even smaller. "
            "The lemma is about one round, and Theorem 1 uses it for many."
        ),
        defaults={"mu": 1.0, "probability": 0.25},
    ),
    PublishedClaim(
        name="prifedsync/theorem-1",
        where="prifedsync, Theorem 1, weak",
        statement=(
            "R rounds are at least as private as R copies of max(f, 1 - alpha - p^2); here f = 0, "
            "uploads without noise."
        ),
        quantity="total variation",
        verdict="unsound",
        condition=(
            "p = 1, or one round, or a state that is reset between rounds, or two clients and an "
            "aggregation parameter eta = 1"
        ),
        published=prifedsync.theorem_1_total_variation,
        exact=prifedsync.weak_reach_probability,
        evidence="What client j knows reaches client i with exactly this probability",
        reason=(
            "docs/theory.md#c4: i need not be sampled with j in the same round. With an "
            "aggregation parameter eta (`mixing`) below 1 the global model keeps j's upload, which "
            "i receives later; at eta = 1, which the paper's experiments fix, it goes through a "
            "third client that was sampled with j first and with i later, so three clients are "
            "needed."
        ),
        sound_replacement=_MIXTURE,
        # Two rounds and three clients are enough: one to reach the third client, one to reach i.
        defaults={"probability": 0.5, "rounds": 2, "clients": 3, "mixing": 1.0},
    ),
    PublishedClaim(
        name="prifedsync/theorem-1-strong",
        where="prifedsync, Theorem 1, strong",
        statement=(
            "Against all others together, R rounds are as private as (m - 1) R copies of max(f, 1 "
            "- alpha - p^2); here f = 0."
        ),
        quantity="total variation",
        verdict="unsound",
        condition="p = 1, or one round",
        published=prifedsync.theorem_1_strong_total_variation,
        exact=prifedsync.coalition_reach_probability,
        evidence="Some upload of j reaches some other client with exactly this probability",
        reason=(
            "docs/theory.md#c4, #c6: as the weak notion; moreover, the others' models share noise, "
            "so their trade-off functions do not multiply, and the factor m - 1 is not needed, as "
            "all of them are a function of j's uploads. At eta = 1, which the paper's experiments "
            "fix, this example does not refute it; what is proved there is the mixture."
        ),
        sound_replacement=_MIXTURE,
        # A small p, at which p^2 is far below p; with many rounds both probabilities would tend to
        # 1.
        defaults={"probability": 0.05, "rounds": 5, "clients": 10},
    ),
    PublishedClaim(
        name="prifedsync/definition-3.6",
        where="prifedsync, Definition 3.6; used in the proof of Theorem 1, strong",
        statement=(
            "All other clients' models together are as private as the product of their single "
            "laws; here each is the same Gaussian global model."
        ),
        quantity="total variation",
        relation="equal to",
        verdict="unsound",
        condition="models of the other clients that are independent of one another",
        published=prifedsync.product_total_variation,
        exact=prifedsync.total_variation,
        evidence="All others receive one model, which together is as private as once, with exactly",
        reason=(
            "docs/theory.md#c6: the others' models share their noise. Equal ones tell less than "
            "independent ones, as here; and of two that are a number plus noise, and the noise "
            "alone, each tells nothing by itself and both together tell all."
        ),
        sound_replacement=_MIXTURE,
        defaults={"mu": 1.0, "clients": 5},
    ),
    PublishedClaim(
        name="prifedsync/lemma-d.1",
        where="prifedsync, Lemma D.1 (Dong, Roth and Su 2022)",
        statement=(
            "A step of noisy SGD on B of n records is C_{B/n}(G_{1/sigma})-DP, and K steps are K "
            "copies of it; here for one step."
        ),
        quantity="delta",
        verdict="sound",
        published=prifedsync.lemma_d_1,
        exact=quadrature.drawn_delta,
        evidence="A step on a linear loss, one record exchanged for its negative, integrated, has",
        reason=(
            "Dong, Roth and Su 2022, Thm 4.2: the sum moves by at most 2C, and the noise has the "
            "deviation 2 C sigma. Where the momentum or Adam follows, nothing is added."
        ),
        defaults={"batch": 16, "records": 600, "sigma": 1.0, "epsilon": 0.01},
    ),
    PublishedClaim(
        name="prifedsync/theorem-2",
        where="prifedsync, Theorem 2, finite statement, Eq. (D.3)",
        statement=(
            "With noisy SGD, R rounds of K steps are at least as private as KR copies of "
            "C_{B/n}(G_{1/sigma})."
        ),
        quantity="epsilon",
        verdict="sound",
        assumes="the helper maps F_i do not use client j's model without its noise",
        published=certified.subsampled_epsilon,
        exact=certified.participating_epsilon,
        evidence="With the participation of client j taken into account, the certified value is",
        reason=(
            "docs/theory.md#c5: the proof drops the unsound p^2 term; what is left is "
            "composition. The factor p improves it, for weak and strong."
        ),
        sound_replacement=f"none needed; {_MIXTURE}, is smaller",
        # A row of Table 1, so that the check speaks about a federation of the paper.
        defaults={
            "batch": 16,
            "records": 600,
            "steps": 38,
            "rounds": 194,
            "sigma": 1.0,
            "delta": 1e-5,
            "probability": 0.5,
        },
    ),
    PublishedClaim(
        name="prifedsync/theorem-2-limit",
        where="prifedsync, Theorem 2, limit; Tables 1 to 3",
        statement=(
            "As KR grows with B/n sqrt(KR) fixed, the KR copies tend to a Gaussian of the printed "
            "mu."
        ),
        quantity="epsilon",
        verdict="asymptotic",
        condition="the limit; at finite KR it is an approximation that errs to either side",
        published=prifedsync.theorem_2_limit_epsilon,
        exact=certified.subsampled_epsilon,
        evidence="The certified value of that many copies is",
        reason=(
            "docs/theory.md#c2, #c5: it over-reports 3 to 66 % in the rows of Tables 1 to 3 and "
            "under-reports with few steps, as here. The factor sqrt(m - 1) of the strong notion "
            "is not needed."
        ),
        sound_replacement=(
            "the privacy-loss distribution, "
            "sordino.privacy.amplification.subsampling.compose_fixed_batches;"
            f" {_MIXTURE}"
        ),
        # One round only: with few steps the limit is below the certified value.
        defaults={
            "batch": 16,
            "records": 600,
            "steps": 38,
            "rounds": 1,
            "sigma": 0.75,
            "delta": 1e-5,
        },
    ),
)

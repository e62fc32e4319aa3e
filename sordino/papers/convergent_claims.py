"""The claims of convergent-dp (Noisy-FedAvg and Noisy-FedProx).

Each has its verdict and the numbers that support it.
"""

from __future__ import annotations

from sordino.papers import certified, convergent, convergent_lemmas, counterexamples, quadrature
from sordino.papers.claims import PublishedClaim
from sordino.papers.parameters import Number

# V = 1 and sigma = 1 fix the units; K, mu and m are of the size that the paper trains with.
ROUND: dict[str, Number] = {"steps": 5, "rate": 0.1, "clip": 1.0, "clients": 50}
FEDERATION: dict[str, Number] = {"rounds": 1000, **ROUND, "sigma": 1.0}
FLIPPED = "Two runs on linear losses, one record's gradient turned from -V to V, give exactly"
_QUADRATIC = "Local training on a quadratic loss, of curvature -L or L, gives exactly"
_LAST_ITERATE = (
    "sordino.privacy.amplification.last_iterate: the greatest convex minorant, exactly tight "
    "(docs/theory.md#a7); here it equals composition"
)
_SLOW_ENOUGH = "a learning rate of at most 1/alpha; the paper asks for less, rate < 1/(alpha - L)"
# With L = 0.9 the paper allows rates up to 10.
_TOO_FAST: dict[str, Number] = {"rate": 5.0, "steps": 3, "proximal": 1.0}

# These four claims are made a second time: of non-convex losses, and by prifedsync.
THEOREM_3A = PublishedClaim(
    name="convergent/theorem-3a",
    where="convergent-dp, Theorem 3(a), Eq. (15)",
    statement=(
        "At a constant learning rate the privacy of the last model converges as the rounds grow."
    ),
    quantity="mu",
    verdict="unsound",
    condition="one round only; false for every T >= 2 and L > 0",
    published=convergent.theorem_3a,
    exact=counterexamples.constant_fedavg,
    evidence=FLIPPED,
    reason=(
        "docs/theory.md#a1, #a2: G.3 minimises under one equality and lets a distance become "
        "negative; the value falls as L grows, and linear losses are L-smooth for every L."
    ),
    sound_replacement=_LAST_ITERATE,
    # After 1,000 rounds the printed value has long reached its limit, and the true one still
    # grows like the root of T.
    defaults={**FEDERATION, "smoothness": 1.0},
)
THEOREM_3B = PublishedClaim(
    name="convergent/theorem-3b",
    where="convergent-dp, Theorem 3(b), Eq. (16)",
    statement=(
        "At a cyclically decaying learning rate the privacy of the last model converges as the"
        " rounds grow."
    ),
    quantity="mu",
    verdict="unsound",
    condition="one round only, with the missing learning rate restored",
    published=convergent.theorem_3b,
    exact=counterexamples.cyclic_fedavg,
    evidence=FLIPPED,
    reason=(
        "docs/theory.md#a2: as 3(a); moreover, (16) lacks the learning rate mu, so for mu < 1 "
        "it is exceeded once T > (rho + 1)/((rho - 1) mu^2)."
    ),
    sound_replacement=_LAST_ITERATE,
    # A rate below 1 and many rounds, since the missing factor mu lets the printed value start
    # too high.
    defaults={
        "rounds": 1000,
        "steps": 20,
        "rate": 0.5,
        "clip": 2.0,
        "smoothness": 1.0,
        "clients": 10,
        "sigma": 1.0,
        "c": 1.5,
    },
)
THEOREM_4 = PublishedClaim(
    name="convergent/theorem-4",
    where="convergent-dp, Theorem 4, Eq. (19)",
    statement=(
        "With a proximal term alpha > L the privacy of the last model converges as the rounds "
        "and the local steps grow."
    ),
    quantity="mu",
    verdict="unsound",
    condition="one round only, with a learning rate of at most 1/alpha",
    published=convergent.theorem_4,
    exact=counterexamples.constant_fedprox,
    evidence=FLIPPED,
    reason=(
        "docs/theory.md#a3: as 3(a), for rho = alpha/(alpha - L) > 1; moreover, rate < "
        "1/(alpha - L) does not make the local steps contract."
    ),
    sound_replacement=_LAST_ITERATE,
    defaults={**FEDERATION, "steps": 20, "rate": 0.5, "smoothness": 0.5, "proximal": 1.0},
)
LEMMA_5 = PublishedClaim(
    name="convergent/lemma-5",
    where="convergent-dp, Lemma 5",
    statement=("Gaussian releases compose to the root of the summed squares of their parameters."),
    quantity="mu",
    relation="equal to",
    verdict="sound",
    published=convergent_lemmas.lemma_5,
    exact=quadrature.composed_mu,
    evidence="The overlap of the two joint laws, integrated, is that of",
    reason=(
        "A rotation of the joint Gaussian; also for releases that depend on earlier ones "
        "(Dong, Roth and Su 2022, Thm 3.2)."
    ),
    defaults={"first": 3.0, "second": 4.0},
)

CLAIMS: tuple[PublishedClaim, ...] = (
    PublishedClaim(
        name="convergent/theorem-1",
        where="convergent-dp, Theorem 1, Eq. (10)",
        statement=(
            "The last model is GDP with sqrt(m)/sigma times the root of the summed squares "
            "lambda^2 |phi(w_t) - phi'(w~_t)|^2."
        ),
        quantity="mu",
        verdict="conditional",
        condition=(
            "the norms are replaced by bounds that hold almost surely along the coupled runs; only"
            " the last model is seen"
        ),
        published=convergent.theorem_1,
        exact=counterexamples.constant_fedavg,
        evidence="On linear losses the norms are constants, and the last model has exactly",
        reason=(
            "docs/theory.md#a6: shifted interpolation is right for every lambda, but the norm in "
            "(10) is random, and T_G of it has no meaning."
        ),
        sound_replacement=(
            "docs/theory.md#a6 with deterministic bounds rho d + gamma; the best lambda is the "
            "convex minorant of docs/theory.md#a7"
        ),
        # Any lambda shows the same: the bound is true, and larger than the exact value.
        defaults={**FEDERATION, "rounds": 100, "interpolation": 0.5},
    ),
    PublishedClaim(
        name="convergent/theorem-2",
        where="convergent-dp, Theorem 2, Eq. (11)",
        statement=(
            "One round on neighbouring data sets takes two models no further apart than rho times "
            "their distance plus gamma."
        ),
        quantity="distance",
        verdict="conditional",
        condition=(
            "rho and gamma are the sums of Lemmas 7 and 8, not Table 2's shortcuts; for FedProx, "
            f"{_SLOW_ENOUGH}"
        ),
        published=convergent.theorem_2,
        exact=counterexamples.apart_after_round,
        evidence=(
            "One client with a linear loss that turns, all others with quadratic ones, end exactly"
            " this far apart"
        ),
        reason=(
            "docs/theory.md#a3, #a5: the splitting is right; Table 2 drops the learning rate in "
            "two rows, and Lemmas 9 and 10 need 1 - rate alpha >= 0."
        ),
        sound_replacement=(
            "sordino.privacy.sensitivity.bound_upload, "
            "sordino.privacy.upload_sensitivity.smooth_dynamics"
        ),
        defaults={**ROUND, "smoothness": 0.9, "proximal": 0.0, "distance": 0.1},
        outside=_TOO_FAST,
    ),
    THEOREM_3A,
    THEOREM_3B,
    PublishedClaim(
        name="convergent/theorem-3c",
        where="convergent-dp, Theorem 3(c), Eq. (17)",
        statement=(
            "At a stage-wise decaying learning rate the last model is GDP with 2 mu V K/(sqrt(m) "
            "sigma) sqrt(2 - 1/T)."
        ),
        quantity="mu",
        verdict="sound",
        published=convergent.theorem_3c,
        exact=certified.stage_wise,
        evidence="The worst L-smooth dynamics, by the greatest convex minorant, attain",
        reason=(
            "docs/theory.md#a4: it is plain composition with sum 1/t^2 <= 2 - 1/T, so true even "
            "if every round is public; '>' should be '>=' at T = 1."
        ),
        sound_replacement=(
            "none needed; composition with the exact sum 1 + 1/4 + ... + 1/T^2 is smaller"
        ),
        defaults={**FEDERATION, "smoothness": 1.0},
    ),
    PublishedClaim(
        name="convergent/theorem-3d",
        where="convergent-dp, Theorem 3(d), Eq. (18)",
        statement=(
            "At a continuously decaying learning rate the last model is GDP with 2 z V/(sqrt(m) "
            "sigma) sqrt(2 - 1/T), z a constant."
        ),
        quantity="mu",
        verdict="conditional",
        condition="z >= mu H_K, which grows with the local steps K: z is not a constant",
        published=convergent.theorem_3d,
        exact=certified.continuous,
        evidence="The worst L-smooth dynamics, by the greatest convex minorant, attain",
        reason=(
            "docs/theory.md#a5: the first round's rates sum to mu H_K, which z must cover; the "
            "learning rate mu is missing in (18) and in Table 2, whose gamma_0 needs z >= mu H_K "
            "/ ln 2."
        ),
        sound_replacement=(
            "composition with the exact sums of the learning rates, as `sordino certify` prices "
            "the protocol"
        ),
        defaults={
            "rounds": 100,
            "steps": 5,
            "rate": 1.0,
            "clip": 1.0,
            "smoothness": 1.0,
            "clients": 50,
            "sigma": 1.0,
            # Just above mu H_5 / ln 2 = 3.294, the least z that Table 2 needs.
            "z": 3.3,
        },
        # H_500 = 6.79 exceeds the same z.
        outside={"steps": 500},
    ),
    THEOREM_4,
    PublishedClaim(
        name="convergent/lemma-3",
        where="convergent-dp, Lemma 3, Eq. (20)",
        statement=(
            "A mu-GDP release is (epsilon, delta(epsilon))-DP with Phi(-epsilon/mu + mu/2) - "
            "e^epsilon Phi(-epsilon/mu - mu/2)."
        ),
        quantity="delta",
        relation="equal to",
        verdict="sound",
        published=convergent_lemmas.lemma_3,
        exact=quadrature.gaussian_delta,
        evidence="The hockey-stick divergence of N(mu, 1) from N(0, 1), integrated, is",
        reason="Dong, Roth and Su 2022, Cor. 2.13; the smallest such delta.",
        defaults={"mu": 1.0, "epsilon": 1.0},
    ),
    PublishedClaim(
        name="convergent/lemma-4",
        where="convergent-dp, Lemma 4",
        statement=(
            "A mu-GDP release has a Rényi divergence of at most mu^2 zeta / 2 at every order zeta "
            "> 1."
        ),
        quantity="rdp",
        verdict="sound",
        published=convergent_lemmas.lemma_4,
        exact=lambda mu, order: quadrature.gaussian_divergence(
            order=order, sensitivity=mu, sigma=1.0
        ),
        evidence="The divergence of N(mu, 1) from N(0, 1), integrated, is",
        reason=(
            "Any mu-GDP pair is a post-processing of the Gaussian pair, whose divergence this is "
            "(Mironov 2017, Prop. 7)."
        ),
        defaults={"mu": 0.5, "order": 4.0},
    ),
    LEMMA_5,
    PublishedClaim(
        name="convergent/lemma-6",
        where="convergent-dp, Lemma 6, Eq. (23)",
        statement=(
            "One round adds a Gaussian factor of parameter sqrt(m)/sigma lambda |phi(w_t) - "
            "phi'(w~_t)|."
        ),
        quantity="mu",
        verdict="conditional",
        condition=(
            "the norm is replaced by a bound that holds almost surely under the coupling that "
            "shares the noise"
        ),
        published=convergent_lemmas.lemma_6,
        # Noise on the mean of m clients has the standard deviation sigma/sqrt(m).
        exact=lambda shift, clients, sigma: clients**0.5 * shift / sigma,
        evidence=(
            "The smallest mu of a shift that happens with some probability is that of the whole "
            "shift"
        ),
        reason=(
            "docs/theory.md#a6: a mixture of N(v, 1), |v| <= s, reveals no more than |v| = s, but "
            "its tail no less: the mean norm is not enough."
        ),
        sound_replacement=(
            "docs/theory.md#a6 with the almost sure bound; or a mixture of Gaussian curves, "
            "sordino.privacy.curves.mixtures"
        ),
        # A shift that always happens has a constant norm; one that happens once in a hundred times
        # does not.
        defaults={"shift": 0.2, "touched": 1.0, "clients": 50, "sigma": 1.0},
        outside={"touched": 0.01},
    ),
    PublishedClaim(
        name="convergent/lemma-7",
        where="convergent-dp, Lemma 7, Eq. (25)",
        statement=(
            "On neighbouring data sets one round of FedAvg takes equal models at most 2V/m sum "
            "eta_k apart."
        ),
        quantity="distance",
        verdict="sound",
        published=convergent_lemmas.lemma_7,
        exact=counterexamples.constant_gap,
        evidence=FLIPPED,
        reason=(
            "Each of the K clipped steps differs by at most 2 V eta_k, in one client of m; "
            "attained by linear losses."
        ),
        defaults=ROUND,
    ),
    PublishedClaim(
        name="convergent/lemma-8",
        where="convergent-dp, Lemma 8, Eq. (26)",
        statement=(
            "One round of FedAvg on an L-smooth loss stretches a distance by at most 1 + eta(K, t)"
            " L."
        ),
        quantity="factor",
        verdict="sound",
        published=convergent_lemmas.lemma_8,
        exact=counterexamples.stretch_factor,
        evidence=_QUADRATIC,
        reason=(
            "The printed sum is the product of 1 + eta_k L; clipping is a projection and keeps the"
            " gradient L-Lipschitz. Attained."
        ),
        defaults={"steps": 5, "rate": 0.1, "smoothness": 1.0},
    ),
    PublishedClaim(
        name="convergent/lemma-9",
        where="convergent-dp, Lemma 9, Eq. (32)",
        statement=(
            "On neighbouring data sets one round of FedProx takes equal models at most 2V/(m "
            "alpha) apart."
        ),
        quantity="distance",
        verdict="conditional",
        condition=_SLOW_ENOUGH,
        published=convergent_lemmas.lemma_9,
        exact=counterexamples.constant_gap,
        evidence=FLIPPED,
        reason=(
            "docs/theory.md#a3: the proof uses 1 - rate alpha as a norm; above 1/alpha it is "
            "negative, and the steps overshoot and grow."
        ),
        sound_replacement=(
            "sordino.privacy.sensitivity.bound_upload, with |1 - rate alpha|, for every rate"
        ),
        defaults={**ROUND, "steps": 20, "rate": 0.5, "proximal": 1.0},
        outside=_TOO_FAST,
    ),
    PublishedClaim(
        name="convergent/lemma-10",
        where="convergent-dp, Lemma 10, Eq. (33)",
        statement=(
            "One round of FedProx on an L-smooth loss, alpha > L, stretches a distance by at most "
            "alpha/(alpha - L)."
        ),
        quantity="factor",
        verdict="conditional",
        condition=_SLOW_ENOUGH,
        published=convergent_lemmas.lemma_10,
        exact=counterexamples.stretch_factor,
        evidence=_QUADRATIC,
        reason=(
            "docs/theory.md#a3: as Lemma 9. It never says that FedProx contracts: alpha/(alpha - "
            "L) > 1."
        ),
        sound_replacement="sordino.privacy.upload_sensitivity.smooth_dynamics, for every rate",
        defaults={"steps": 20, "rate": 0.5, "smoothness": 0.9, "proximal": 1.0},
        outside=_TOO_FAST,
    ),
    PublishedClaim(
        name="convergent/table-2",
        where="convergent-dp, Table 2, rate mu/(k + 1)",
        statement=(
            "At the rates mu/(k + 1) one round takes equal models at most gamma = 2cV/m ln(K + 1) "
            "apart, c a constant below 1.543."
        ),
        quantity="distance",
        verdict="conditional",
        condition=(
            "mu <= 1 in the rows mu/(k + 1) and mu/(tK + k + 1), z growing with K in the latter, "
            "rate <= 1/alpha for FedProx"
        ),
        published=convergent_lemmas.table_2,
        exact=counterexamples.cyclic_gap,
        evidence=FLIPPED,
        reason=(
            "docs/theory.md#a5: Lemma 7 gives 2V/m mu H_K; the learning rate mu is missing here "
            "and in the row mu/(tK + k + 1), where the appendix has it, and c cannot hide it "
            "above 1."
        ),
        sound_replacement=(
            "Lemma 7 with the exact sum of the rates, sordino.privacy.sensitivity.bound_upload"
        ),
        defaults={**ROUND, "rate": 0.5, "c": 1.5},
        # Below 1 the missing factor mu errs to the safe side.
        outside={"rate": 2.0},
    ),
    PublishedClaim(
        name="convergent/remark-3.2",
        where="convergent-dp, Remark 3.2",
        statement=(
            "When n of m clients take part, a round is more private by the factor m/n (in mu and "
            "so in epsilon), and m may be replaced by n in the theorems."
        ),
        quantity="epsilon",
        verdict="unsound",
        condition=(
            "'replace m by n' holds for bounds by composition, such as 3(c); the factor m/n only "
            "in delta (convergent/remark-3.2-delta)"
        ),
        published=convergent_lemmas.remark_3_2,
        exact=certified.sampled_round,
        evidence="One sampled Gaussian round of which nobody sees who took part has exactly",
        reason=(
            "docs/theory.md#a8, #a10: a sampled Gaussian is not mu n/m-GDP, its tail stays that "
            "of mu; where participation is seen it is worse."
        ),
        sound_replacement=(
            "mixtures over who takes part, sordino.privacy.amplification.cohorts; "
            "sordino.privacy.amplification.subsampling.compose_poisson_batches if it is hidden"
        ),
        # One of a hundred clients: here the claimed factor m/n is largest.
        defaults={"mu": 1.0, "clients": 100, "participants": 1, "delta": 1e-5},
    ),
    PublishedClaim(
        name="convergent/appendix-f",
        where="convergent-dp, Appendix F, with Eq. (14) and G.3",
        statement="Starting at t_0 = 0 relaxes the problem: G.3's closed form H_0 is above H_*.",
        quantity="H",
        verdict="unsound",
        condition=(
            "rho <= 1 with constant gamma, where the path of G.3 keeps its distances positive"
        ),
        published=convergent_lemmas.appendix_f,
        exact=certified.best_start,
        evidence=(
            "The optimum H_* over all t_0 and lambda, with models no further apart than the "
            "diameter, is"
        ),
        reason=(
            "docs/theory.md#a1, #a7: H_0 is the value of an infeasible path, below the optimum it "
            "should bound; the optimum is found in O(T log T)."
        ),
        sound_replacement="sordino.privacy.amplification.bounded_domain.last_iterate_bounded",
        defaults={"rho": 1.1, "gamma": 0.2, "rounds": 1000, "diameter": 2.0},
    ),
)

"""The claims of udp-fl (staircase, Laplace and Gaussian noise, shuffling, mode connectivity).

Each has its verdict and the numbers that support it.
"""

from __future__ import annotations

from sordino.papers import quadrature, udp_fl, udp_fl_utility
from sordino.papers.claims import PublishedClaim

_PRINTED = (
    "it has neither the logarithm nor the 1/(alpha - 1) of a Rényi divergence, "
    "1 - e^-1 for 1 - e^-lambda, 1 - nu for min(nu, 1 - nu), and the branches of sgn exchanged"
)


def _shuffle_randomized_response(*, order: float, gamma: float, clients: int) -> float:
    """Returns the divergence of shuffled randomised response whose pure epsilon is gamma."""
    return udp_fl.shuffled_randomized_response(order=order, local=gamma, clients=clients)


CLAIMS: tuple[PublishedClaim, ...] = (
    PublishedClaim(
        name="udp-fl/composition",
        where="udp-fl, Section 4.1, adaptive composition (Mironov 2017)",
        statement="The Rényi divergences of releases add up, although one may look at another.",
        quantity="rdp",
        verdict="sound",
        published=udp_fl.composition,
        exact=quadrature.adaptive_divergence,
        evidence="A Gaussian release whose size depends on the output of one before it has",
        reason="Mironov 2017, Prop. 1, at every order separately.",
        defaults={"order": 2.0, "first": 0.6, "second": 0.8},
    ),
    PublishedClaim(
        name="udp-fl/conversion",
        where="udp-fl, Section 4.1, RDP to DP conversion (Mironov 2017)",
        statement=(
            "A release of Rényi divergence epsilon_alpha is (epsilon_alpha + "
            "log(1/delta)/(alpha - 1), delta)-DP."
        ),
        quantity="epsilon",
        verdict="sound",
        published=udp_fl.conversion,
        exact=udp_fl.gaussian_epsilon,
        evidence="A Gaussian release of that divergence has exactly",
        reason=(
            "docs/theory.md#b5: true and loose; a conversion that subtracts log(alpha)/(alpha - 1) "
            "as well holds too, and what is known of a Gaussian needs none."
        ),
        defaults={"order": 6.0, "mu": 1.0, "delta": 1e-5},
    ),
    PublishedClaim(
        name="udp-fl/table-3",
        where="udp-fl, Table 3, Gaussian row",
        statement=(
            "The Gaussian mechanism of sensitivity Delta has the Rényi divergence alpha Delta/(2 "
            "sigma^2)."
        ),
        quantity="rdp",
        relation="equal to",
        verdict="unsound",
        condition=(
            "Delta = 1 for the Gaussian row; the Laplace row's divergence is right; the rest of "
            "the table is wrong"
        ),
        published=udp_fl.table_3_gaussian,
        exact=quadrature.gaussian_divergence,
        evidence="The divergence of N(Delta, sigma^2) from N(0, sigma^2), integrated, is",
        reason=(
            "docs/theory.md#b4: Delta must be squared. The parameter column does not calibrate: "
            "Laplace lambda = Delta (alpha - 1)/epsilon has D_1.2 = 4.23 for a claimed 1, and the "
            "staircase's nu has a negative radicand."
        ),
        sound_replacement=(
            "alpha Delta^2/(2 sigma^2), sordino.privacy.curves.gaussian.rdp; sordino.mechanisms"
        ),
        # Delta = 2, since with Delta = 1 the missing square cannot be seen.
        defaults={"order": 2.0, "sensitivity": 2.0, "sigma": 1.0},
    ),
    PublishedClaim(
        name="udp-fl/theorem-1",
        where="udp-fl, Theorem 1 (used by the Harmonizer for model updates)",
        statement=(
            "Staircase noise makes an update of clipped l2 norm (alpha, epsilon_alpha)-RDP, by one"
            " formula for the whole vector."
        ),
        quantity="rdp",
        verdict="unsound",
        condition="one coordinate, and even there only orders of 2 and above",
        published=udp_fl.theorem_2,
        exact=udp_fl.staircase_divergence,
        evidence=(
            "An update spread evenly over its coordinates, its l2 norm at the clip, has exactly"
        ),
        reason=(
            "docs/theory.md#b1, #b2: noise falls on every coordinate, and the divergence grows "
            "like sqrt(d). Nor "
            f"is the formula one: {_PRINTED}. Judged is independent noise on every coordinate; the "
            "printed density, in the l1 norm of the whole vector, is another mechanism: under an "
            "l1 clip of Delta its privacy loss is at most lambda in any dimension, since norms "
            "differ by no more than vectors do, so there the formula holds at orders of 2 and "
            "above."
        ),
        sound_replacement=(
            "sordino.mechanisms.staircase_density.StaircaseDensity.divergence_l2; Gaussian noise "
            "for anything but scalars (docs/theory.md#b3)"
        ),
        # The size of a small network: the divergence grows like the root of the dimension.
        defaults={"order": 2.0, "step": 1.0, "nu": 0.3, "dimension": 100_000},
    ),
    PublishedClaim(
        name="udp-fl/theorem-2",
        where="udp-fl, Theorem 2, Eq. (4), proof in A.1",
        statement=(
            "The staircase mechanism satisfies (alpha, gamma)-RDP with the printed gamma, on one "
            "coordinate."
        ),
        quantity="rdp",
        verdict="unsound",
        condition=(
            "orders of 2 and above, where it exceeds e^lambda/2 and so lambda, the largest privacy"
            " loss"
        ),
        published=udp_fl.theorem_2,
        exact=udp_fl.staircase_divergence,
        evidence="The divergence of a shift by Delta, exactly, is",
        reason=(
            f"docs/theory.md#b1: {_PRINTED}. At orders near 1 it stays near 1 while the divergence "
            "tends to lambda."
        ),
        sound_replacement=(
            "sordino.mechanisms.staircase_density.StaircaseDensity.divergence, the exact "
            "three-valued loss"
        ),
        # An order near 1, where the printed formula stays near 1 and the true value tends to
        # lambda.
        defaults={"order": 1.1, "step": 5.0, "nu": 0.5},
    ),
    PublishedClaim(
        name="udp-fl/theorem-3",
        where="udp-fl, Theorem 3, proof in A.5",
        statement=(
            "The expected l1 distance of m parameters under staircase noise is the printed sum; "
            "here for one round."
        ),
        quantity="expected l1 distance",
        relation="equal to",
        verdict="unsound",
        condition="none; its units do not agree, Delta^2 + Delta",
        published=udp_fl_utility.theorem_3,
        exact=udp_fl_utility.staircase_distance,
        evidence="The staircase's first absolute moment, times m, is",
        reason=(
            "docs/theory.md#b4: the height y of the density is missing in front of the Delta^2 "
            "terms."
        ),
        sound_replacement="sordino.mechanisms.staircase_density.StaircaseDensity.moments",
        # Delta = 10, since the terms Delta^2 and Delta agree at 1.
        defaults={"step": 1.0, "width": 10.0, "nu": 0.3, "dimension": 1},
    ),
    PublishedClaim(
        name="udp-fl/theorem-4",
        where="udp-fl, Theorem 4, proof in A.6",
        statement=(
            "Staircase noise delays reaching the minimum by less than O(Delta^2 "
            "e^epsilon/(e^epsilon - 1)^2) rounds."
        ),
        quantity="additional rounds",
        verdict="unsound",
        condition=(
            "a tolerance well above the noise floor of the learning rate, and then with a constant"
            " that depends on both"
        ),
        published=udp_fl_utility.theorem_4,
        exact=udp_fl_utility.additional_rounds,
        evidence=(
            "Noisy descent on a quadratic loss, at a constant rate, needs this many more rounds to"
            " come within the tolerance"
        ),
        reason=(
            "Noise of constant size keeps descent at a distance: no number of rounds is enough, "
            "whatever the constant in O. Moreover, Delta e^(epsilon/2)/(e^epsilon - 1) is the mean"
            " amplitude, not the standard deviation."
        ),
        sound_replacement="the noise floor rate^2 Var/(1 - (1 - rate mu)^2), or decaying rates",
        # A tolerance below the noise floor, which no number of rounds reaches.
        defaults={
            "width": 1.0,
            "epsilon": 1.0,
            "rate": 0.1,
            "curvature": 1.0,
            "start": 1.0,
            "tolerance": 0.1,
        },
    ),
    PublishedClaim(
        name="udp-fl/theorem-5",
        where="udp-fl, Theorem 5, Eq. (5)",
        statement=(
            "The control point that minimises the mean loss on a quadratic Bezier curve is 1.2/L +"
            " 1.1 w - 0.1 v."
        ),
        quantity="control point",
        relation="equal to",
        verdict="unsound",
        condition="none; it knows nothing of where the minimum is",
        published=udp_fl_utility.theorem_5,
        exact=quadrature.bezier_control,
        evidence="On the loss L/2 (w - w*)^2 the minimising control point is",
        reason=(
            "The proof takes E r^2 for 1/12, the variance of r, where it is 1/3, and minimises "
            "the length of a step, a scalar 1/L added to weights."
        ),
        sound_replacement="minimise the loss along the curve, as Algorithm 2 of the paper does",
        # The minimum is at 0, so that the added 1/L can be seen.
        defaults={"start": 1.0, "optimum": 0.0, "rate": 0.1, "curvature": 1.0},
    ),
    PublishedClaim(
        name="udp-fl/appendix-a.4",
        where="udp-fl, proof of Theorem 1 in A.4",
        statement=(
            "The staircase of nu = 1/2 with lambda = log(gamma - 1)/(alpha - 1) satisfies (alpha, "
            "gamma)-RDP."
        ),
        quantity="rdp",
        verdict="conditional",
        condition=(
            "one coordinate, gamma above 2 (else lambda is not positive, and there is no such "
            "noise), and orders of 2 and above"
        ),
        published=lambda gamma: gamma,
        exact=udp_fl.appendix_a_4_divergence,
        evidence="The divergence of a shift by Delta, exactly, is",
        reason=(
            "docs/theory.md#b1: what is bounded by e^((alpha - 1) lambda) + 1 is no divergence; "
            "its logarithm over alpha - 1 would be. At orders of 2 and above the largest privacy "
            "loss, lambda, is below gamma anyway; at orders near 1 lambda is not, and the "
            "divergence tends to it."
        ),
        sound_replacement=(
            "sordino.mechanisms.staircase_density.StaircaseDensity.divergence, solved for lambda"
        ),
        defaults={"order": 2.0, "gamma": 3.0},
        outside={"order": 1.1, "gamma": 3.0},
    ),
    PublishedClaim(
        name="udp-fl/saving",
        where="udp-fl, Section 4.2, after Lemma 1, with Geng et al.",
        statement=(
            "For small epsilon the staircase saves at least Delta^2 (1/12 - epsilon^2/720) of the "
            "variance that Gaussian and Laplace noise have."
        ),
        quantity="saved variance",
        relation="at least",
        verdict="unsound",
        condition=(
            "Laplace noise on one coordinate, pure epsilon, and the nu of least variance, which is "
            "not Lemma 1's; then it is an expansion for small epsilon, of 2 Delta^2/epsilon^2"
        ),
        published=udp_fl_utility.least_saving,
        exact=udp_fl_utility.saved_variance,
        evidence="The better of the two has this much more variance than the best staircase",
        reason=(
            "Geng et al. compare with Laplace noise alone. A Gaussian at a delta needs less than "
            "either once epsilon is small, which is where the paper says that its rounds are; and "
            "of many coordinates the staircase needs far more (docs/theory.md#b3)."
        ),
        sound_replacement="sordino calibrate --mechanisms, in the model's dimension",
        defaults={"epsilon": 1e-4, "width": 1.0, "delta": 1e-5},
    ),
    PublishedClaim(
        name="udp-fl/appendix-c",
        where="udp-fl, Appendix C",
        statement=(
            "With the cross-entropy the loss of a neural network is convex in its weights, since "
            "the Kullback-Leibler divergence is convex."
        ),
        quantity="loss",
        verdict="unsound",
        condition="linear models",
        published=udp_fl_utility.mean_of_ends,
        exact=udp_fl_utility.loss_of_midpoint,
        evidence="Halfway between two equally good networks of two weights the loss is",
        reason=(
            "The divergence is convex in the probabilities, and the cross-entropy in the logits, "
            "but logits are not linear in the weights of more than one layer. Theorem 4 and "
            "Algorithm 1's convergence rest on it."
        ),
        sound_replacement="a clipped linear model, or no statement about a minimum",
        defaults={"start": 2.0},
    ),
    PublishedClaim(
        name="udp-fl/theorem-6",
        where="udp-fl, Theorem 6",
        statement=(
            "For sigma^2 >= alpha Delta^2/(2 epsilon) the Gaussian mechanism satisfies (alpha, "
            "gamma)-RDP."
        ),
        quantity="rdp",
        verdict="conditional",
        condition="gamma is read as epsilon, and Delta is the l2 sensitivity of the whole vector",
        published=udp_fl.theorem_6,
        exact=quadrature.gaussian_divergence,
        evidence="The divergence of N(Delta, sigma^2) from N(0, sigma^2), integrated, is",
        reason=(
            "With gamma = epsilon it is the Gaussian's divergence (Mironov 2017, Prop. 7); as "
            "printed gamma is free and delta unused."
        ),
        sound_replacement="sordino.privacy.curves.gaussian.rdp",
        defaults={"order": 2.0, "sensitivity": 2.0, "sigma": 1.0},
    ),
    PublishedClaim(
        name="udp-fl/theorem-7",
        where="udp-fl, Theorem 7, at Delta = 1",
        statement=(
            "Laplace noise of scale (alpha - 1)/log(((2 alpha - 1) e^(gamma (alpha - 1)) + alpha -"
            " 1)/alpha) is (alpha, gamma)-RDP."
        ),
        quantity="rdp",
        verdict="unsound",
        condition="none; with - (alpha - 1) for + alpha - 1 it is true",
        published=lambda gamma: gamma,
        exact=udp_fl.theorem_7_divergence,
        evidence="At that scale the divergence of Laplace noise is exactly",
        reason=(
            "Solving the divergence of Eq. (13), which is right, for the scale gives - (alpha - "
            "1): the sign is wrong, and the noise is too small for every alpha and gamma."
        ),
        sound_replacement=(
            "sordino.mechanisms.laplace_noise.laplace_divergence, solved for the scale"
        ),
        # The sign is wrong at every order; 2 is the usual one.
        defaults={"order": 2.0, "gamma": 1.0},
    ),
    PublishedClaim(
        name="udp-fl/theorem-8",
        where="udp-fl, Theorem 8, proof in A.2",
        statement=(
            "The expected l1 distance of m parameters after T rounds of Gaussian noise is sqrt(2 "
            "m^2 sigma^2/pi)."
        ),
        quantity="expected l1 distance",
        relation="equal to",
        verdict="unsound",
        condition="one round",
        published=udp_fl_utility.theorem_8,
        exact=udp_fl_utility.gaussian_distance,
        evidence="When the noises of T rounds add up, it is exactly",
        reason=(
            "docs/theory.md#b4: T is missing; noises that add up give sqrt(T), and the T of the "
            "proof is the sum of the distances of single rounds."
        ),
        sound_replacement="m sigma sqrt(2 T/pi) where noises add up",
        # T = 100, since with one round the missing T cannot be seen.
        defaults={"dimension": 1, "sigma": 1.0, "rounds": 100},
    ),
    PublishedClaim(
        name="udp-fl/theorem-9",
        where="udp-fl, Theorem 9, proof in A.3",
        statement=(
            "The expected l1 distance of m parameters after T rounds of Laplace noise is T m b."
        ),
        quantity="expected l1 distance",
        relation="equal to",
        verdict="conditional",
        condition=(
            "one round, or T rounds whose single distances are summed; for noises that add up it "
            "is only an upper bound"
        ),
        published=udp_fl_utility.theorem_9,
        exact=udp_fl_utility.laplace_distance,
        evidence="When the noises of T rounds add up, it is exactly",
        reason=(
            "E|X| = b in each round, but |X_1 + ... + X_T| grows like sqrt(T): 2 m b Gamma(T + "
            "1/2)/(sqrt(pi) Gamma(T))."
        ),
        sound_replacement="2 m b Gamma(T + 1/2)/(sqrt(pi) Gamma(T)) where noises add up",
        # One round, where the sum of distances and the distance of the sum are the same.
        defaults={"dimension": 1, "scale": 1.0, "rounds": 1},
        outside={"rounds": 100},
    ),
    PublishedClaim(
        name="udp-fl/lemma-1",
        where="udp-fl, Lemma 1",
        statement=(
            "The staircase's least expected amplitude, at nu = 1/(1 + e^(lambda/2)), is Delta "
            "e^(lambda/2)/(e^lambda - 1)."
        ),
        quantity="expected amplitude",
        relation="equal to",
        verdict="sound",
        published=udp_fl_utility.lemma_1,
        exact=udp_fl_utility.usual_amplitude,
        evidence="The staircase's first absolute moment there is",
        reason=(
            "Geng and Viswanath 2015, on one coordinate; it says nothing of vectors, where the "
            "staircase loses (docs/theory.md#b3)."
        ),
        defaults={"step": 1.0, "width": 1.0},
    ),
    PublishedClaim(
        name="udp-fl/lemma-2",
        where="udp-fl, Lemma 2",
        statement=(
            "After shuffling N clients the divergence is at most log(1 + C(alpha, 2) 4 (e^gamma - "
            "1)^2/N)/(alpha - 1)."
        ),
        quantity="rdp",
        verdict="unsound",
        condition=(
            "small orders and a pure epsilon for gamma, as in Girgis et al. 2021, which it quotes "
            "without either"
        ),
        published=udp_fl.lemma_2,
        exact=_shuffle_randomized_response,
        evidence="Randomised response, gamma-LDP, has after shuffling exactly",
        reason=(
            "docs/theory.md#b7: it tends to 0 as alpha grows, while a Rényi divergence does not "
            "decrease; and udp-fl feeds it a Rényi value for gamma."
        ),
        sound_replacement=(
            "amplification by clones, sordino.privacy.amplification.shuffling; secure aggregation "
            "is better"
        ),
        # A large order: the printed bound falls with the order, which no Rényi divergence does.
        defaults={"order": 64, "gamma": 2.0, "clients": 1000},
    ),
    PublishedClaim(
        name="udp-fl/lemma-3",
        where="udp-fl, Lemma 3",
        statement=(
            "After shuffling N clients the divergence is at least log(1 + C(alpha, 2) (e^gamma - "
            "1)^2/(N e^gamma))/(alpha - 1)."
        ),
        quantity="rdp",
        relation="at least",
        verdict="conditional",
        condition=(
            "gamma is the pure epsilon of the randomiser, and the bound is for the worst such "
            "randomiser"
        ),
        published=udp_fl.lemma_3,
        exact=_shuffle_randomized_response,
        evidence="Randomised response, gamma-LDP, has after shuffling exactly",
        reason=(
            "docs/theory.md#b8: with equality for randomised response at alpha = 2; a lower bound "
            "promises nothing."
        ),
        sound_replacement="amplification by clones, sordino.privacy.amplification.shuffling",
        # At order 2, randomised response attains the bound.
        defaults={"order": 2, "gamma": 1.0, "clients": 100},
    ),
    PublishedClaim(
        name="udp-fl/lemma-4",
        where="udp-fl, Lemma 4",
        statement=(
            "The expected amplitude of the Gaussian noise is 2 sigma/sqrt(2 pi), sigma = "
            "sqrt(alpha Delta^2/(2 epsilon))."
        ),
        quantity="expected amplitude",
        relation="equal to",
        verdict="sound",
        published=udp_fl_utility.lemma_4,
        exact=lambda order, sensitivity, epsilon: quadrature.gaussian_amplitude(
            sigma=udp_fl_utility.calibrated_sigma(
                order=order, sensitivity=sensitivity, epsilon=epsilon
            )
        ),
        evidence="E|X|, integrated, is",
        reason="The first absolute moment of N(0, sigma^2), on one coordinate.",
        defaults={"order": 2.0, "sensitivity": 1.0, "epsilon": 1.0},
    ),
    PublishedClaim(
        name="udp-fl/lemma-5",
        where="udp-fl, Lemma 5",
        statement="The expected amplitude of the Laplace mechanism f(Delta, b) is Delta/b.",
        quantity="expected amplitude",
        relation="equal to",
        verdict="unsound",
        condition=(
            "true only if b is not the scale but the epsilon of Lap(Delta/b), against Theorem 9 "
            "and the density of A.3"
        ),
        published=udp_fl_utility.lemma_5,
        exact=udp_fl_utility.laplace_amplitude,
        evidence="The density e^(-|x|/b)/(2b) of the proofs has exactly",
        reason="docs/theory.md#b4: E|X| is the scale b, as Theorem 9 of the same paper has it.",
        sound_replacement="b",
        # A scale other than 1, at which Delta/b and b agree.
        defaults={"sensitivity": 1.0, "scale": 2.0},
    ),
    PublishedClaim(
        name="udp-fl/algorithm-3",
        where="udp-fl, Algorithm 3 (the Harmonizer), for the staircase",
        statement=(
            "Noise for which the divergences of all rounds, one formula for the whole vector, stay"
            " in epsilon keeps that epsilon."
        ),
        quantity="epsilon",
        verdict="unsound",
        condition="a model of one parameter",
        published=lambda epsilon: epsilon,
        exact=udp_fl.harmonized_epsilon,
        evidence=(
            "An update spread evenly over the model's parameters, its l2 norm at the clip, costs "
            "at least"
        ),
        reason=(
            "docs/theory.md#b2: even with the divergence that is right for one coordinate, the "
            "noise is on every coordinate, and so is the loss."
        ),
        sound_replacement=(
            "the worst spread of the shift, as `sordino certify` and `sordino calibrate` have it"
        ),
        defaults={"epsilon": 1.0, "rounds": 1, "dimension": 100_000},
    ),
)

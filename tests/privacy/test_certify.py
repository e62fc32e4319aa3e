"""What a protocol promises: against exact values of worst cases, simulation, and the other bounds; never below the truth."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from sordino.privacy.bounds.composition import UNKNOWN_SIZES
from sordino.privacy.bounds.providers import find_bounds
from sordino.privacy.bounds.question import pose_question
from sordino.privacy.certify import certify
from sordino.privacy.participation_caps import find_capped_rounds
from sordino.protocol import (
    Assumptions,
    ByColumn,
    ClientBudget,
    ClippedGlm,
    Constant,
    Continuous,
    Cyclic,
    Data,
    Everyone,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    InvalidValue,
    Mean,
    Median,
    Poisson,
    Protocol,
    StageWise,
    UserError,
    View,
    all_views,
)

LOCAL = FedAvg(steps=5, batch=32, clip=1.0, schedule=Constant(rate=0.1))
BASE = Protocol(clients=50, rounds=600, local=LOCAL, noise=Gaussian(sigma=1.0))
MNIST = replace(BASE, data=Data(name="mnist", records=600))
KNOWN = replace(MNIST, local=replace(LOCAL, minibatches="public"))  # adversaries know the batches


def linear_mu(protocol: Protocol, view: str) -> float:
    """The exact Gaussian parameter of linear losses with one flipped record in every step (docs/theory.md#a2, #a3): mean shift over noise,
    from the dynamics themselves: two runs without noise, the difference of what the view sees, whitened by its covariance."""
    m, sigma, rule = protocol.clients, protocol.noise.sigma, protocol.local
    alpha = getattr(rule, "proximal", 0.0)
    sums = []
    for t in range(protocol.rounds):
        models = []
        rates = rule.schedule.rates(round=t, steps=rule.steps)
        for gradient in (rule.clip, -rule.clip):
            w = 0.0
            for k, rate in enumerate(rates):
                # Where a pull overshoots (eta > 1/alpha) the worst gradients change sign from step to step.
                sign = math.prod(math.copysign(1.0, 1 - later * alpha) for later in rates[k + 1 :])
                w -= rate * (sign * gradient + alpha * w)
            models.append(w)
        sums.append(models[1] - models[0])
    shifts = np.array(sums)
    if view == "server":
        return float(np.linalg.norm(shifts)) / sigma
    honest = {"rounds": m, "final": m}.get(view) or m - int(view.split(":")[1])
    if view == "final":  # only the sum of all moves is seen, under the sum of all noises
        return float(abs(shifts.sum()) / m / (sigma * math.sqrt(protocol.rounds / m)))
    return float(np.linalg.norm(shifts / m) / (sigma * math.sqrt(honest) / m))


RULES = [
    LOCAL,
    replace(LOCAL, schedule=StageWise(rate=0.3)),
    replace(LOCAL, schedule=Cyclic(rate=0.2)),
    replace(LOCAL, schedule=Continuous(rate=0.7)),
    FedProx(steps=20, batch=32, clip=1.0, schedule=Constant(rate=0.5), proximal=1.0),
    FedProx(
        steps=3, batch=32, clip=2.0, schedule=Constant(rate=5.0), proximal=1.0
    ),  # eta > 1/alpha
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("view", ["server", "rounds", "coalition:1", "coalition:49"])
def test_bounds_are_attained_by_linear_losses_with_everyone(rule, view) -> None:
    protocol = replace(BASE, local=rule, rounds=40)
    assert certify(protocol, view).mu == pytest.approx(linear_mu(protocol, view), rel=1e-9)


@pytest.mark.parametrize("rule", RULES[:1] + RULES[4:])
def test_no_bound_on_the_final_model_is_below_what_linear_losses_reveal(rule) -> None:
    for smoothness in (None, 0.1, 10.0):
        for diameter in (None, 1e9):
            protocol = replace(
                BASE,
                local=rule,
                rounds=40,
                assumptions=Assumptions(smoothness=smoothness, diameter=diameter),
            )
            assert certify(protocol, "final").mu >= linear_mu(protocol, "final") * (1 - 1e-9)


def test_the_published_theorem_3a_is_never_promised() -> None:
    protocol = replace(BASE, rounds=1000, assumptions=Assumptions(smoothness=1.0))
    assert certify(protocol, "final").mu == pytest.approx(4.47213595, rel=1e-8)  # published: 0.292
    grown = [
        certify(replace(protocol, assumptions=Assumptions(smoothness=s)), "final").mu
        for s in (0.01, 1.0, 100.0)
    ]
    assert grown == sorted(grown)  # more smoothness vouched for is never more privacy


def test_first_hit_reference_value() -> None:
    guarantee = certify(KNOWN, "rounds")
    assert guarantee.method == "first-hit mixture"
    assert guarantee.epsilon(1e-5) == pytest.approx(5.317, abs=0.012)
    secret = certify(MNIST, "rounds")
    assert secret.method == "secret batches"
    assert secret.epsilon(1e-5) == pytest.approx(2.396, rel=5e-3)
    assert certify(BASE, "rounds").epsilon(1e-5) == pytest.approx(20.13, abs=0.01)
    assert certify(MNIST, "rounds", "client").epsilon(1e-5) == pytest.approx(20.13, abs=0.01)


def gaussian_delta(mu: np.ndarray, epsilon: float) -> np.ndarray:
    return norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)


@pytest.mark.parametrize("view", ["server", "rounds", "coalition:7"])
@pytest.mark.parametrize("participation", [Poisson(rate=0.2), FixedSize(size=9)])
def test_participation_and_first_use_against_simulated_draws(participation, view) -> None:
    protocol = replace(
        MNIST,
        rounds=30,
        participation=participation,
        local=replace(KNOWN.local, schedule=StageWise(rate=0.5)),
    )
    generator = np.random.default_rng(1)
    squares = np.zeros(40_000)
    rate, q = 32 / 600, 0.2 if isinstance(participation, Poisson) else 9 / 50
    colluding = 7 if view == "coalition:7" else 0
    for t in range(30):
        hit = generator.geometric(rate, size=squares.size) - 1
        shift = np.where(hit < 5, 2 * 0.5 / (t + 1) * np.maximum(5 - hit, 0), 0.0)
        if isinstance(participation, Poisson):
            honest = 1 + generator.binomial(49 - colluding, 0.2, size=squares.size)
        else:
            honest = (
                1 + generator.hypergeometric(49 - colluding, colluding, 8, size=squares.size)
                if colluding
                else np.full(squares.size, 9)
            )
        n = 1 if view == "server" else honest
        squares += (generator.random(squares.size) < q) * shift**2 / n
    mu = np.sqrt(np.maximum(squares, 1e-30))
    guarantee = certify(protocol, view)
    for epsilon in (0.3, 1.0, 2.0):
        sample = gaussian_delta(mu, epsilon)
        low, high = sample.mean() - 5 * sample.std() / 200, sample.mean() + 5 * sample.std() / 200
        assert guarantee.delta(epsilon) >= low
        assert guarantee.delta(epsilon) <= high * 1.03 + 1e-7


@pytest.mark.slow
@given(
    st.integers(1, 40),
    st.floats(0.05, 5.0),
    st.sampled_from(RULES),
    st.integers(2, 30),
    st.sampled_from(["record", "client"]),
)
@settings(max_examples=40, deadline=None)
def test_more_noise_fewer_rounds_and_weaker_views_never_cost_more(
    rounds, sigma, rule, clients, unit
) -> None:
    protocol = Protocol(clients=clients, rounds=rounds, local=rule, noise=Gaussian(sigma=sigma))
    by_view = [
        certify(protocol, view, unit).epsilon(1e-5)
        for view in (View.FINAL, View.ROUNDS, View.coalition(1), View.SERVER)
    ]
    assert by_view == sorted(by_view)
    louder = replace(protocol, noise=Gaussian(sigma=2 * sigma))
    longer = replace(protocol, rounds=rounds + 1)
    for view in all_views(clients):
        here = certify(protocol, view, unit).epsilon(1e-5)
        assert certify(louder, view, unit).epsilon(1e-5) <= here
        assert certify(longer, view, unit).epsilon(1e-5) >= here * (1 - 1e-9)


def test_client_unit_is_never_cheaper_than_record_unit() -> None:
    for protocol in (
        MNIST,
        replace(MNIST, participation=Poisson(rate=0.3)),
        replace(MNIST, aggregation=Median()),
    ):
        for view in ("server", "rounds", "final"):
            assert certify(protocol, view, "client").epsilon(1e-5) >= certify(
                protocol, view, "record"
            ).epsilon(1e-5)


def test_a_median_hides_nothing_beyond_the_uploads() -> None:
    protocol = replace(BASE, aggregation=Median())
    assert {certify(protocol, view).mu for view in all_views(50)} == {
        certify(protocol, "server").mu
    }


def test_unequal_shares_count_for_the_largest_client() -> None:
    sizes = [100] * 49 + [5100]
    protocol = replace(
        BASE,
        aggregation=Mean(weights="records"),
        data=Data(name="x", partition=ByColumn(column="c")),
    )
    unknown = certify(protocol, "rounds", "client").mu
    known = certify(protocol, "rounds", "client", sizes=sizes).mu
    alone = certify(BASE, "server").mu
    assert unknown == alone
    assert certify(BASE, "rounds").mu < known < unknown
    shares = np.array(sizes) / sum(sizes)
    assert known == pytest.approx(alone * shares.max() / np.linalg.norm(shares))
    colluding = np.sort(shares)[:-11:-1][1:]  # the ten largest others know their own noise
    honest = math.sqrt(np.square(shares).sum() - np.square(colluding).sum() - shares.min() ** 2)
    assert certify(protocol, "coalition:10", "client", sizes=sizes).mu == pytest.approx(
        alone * shares.max() / honest
    )


def test_no_noise_is_said_in_words_not_crashed_on() -> None:
    silent = certify(replace(BASE, noise=Gaussian(sigma=0.0)), "rounds")
    assert math.isinf(silent.epsilon(1e-5))
    assert silent.beta(0.1) == 0.0
    assert "everything" in str(silent)


def test_vouched_smoothness_is_listed_with_the_unconditional_bound_beside_it() -> None:
    rule = replace(LOCAL, schedule=StageWise(rate=0.1))
    protocol = replace(BASE, local=rule, assumptions=Assumptions(smoothness=0.2))
    guarantee = certify(protocol, "final")
    assert guarantee.assumptions == ("every minibatch loss is 0.2-smooth",)
    assert guarantee.unconditional is not None
    assert guarantee.epsilon(1e-5) < guarantee.unconditional.epsilon(1e-5)
    assert "vouched" in str(guarantee)
    assert guarantee.unconditional.assumptions == ()
    for view in ("server", "rounds", "coalition:1"):
        assert certify(protocol, view).assumptions == ()


def test_an_enforced_diameter_needs_no_assumption_and_converges() -> None:
    bounded = replace(BASE, clients=2, assumptions=Assumptions(diameter=0.05))
    mus = [certify(replace(bounded, rounds=rounds), "final").mu for rounds in (10, 1000, 100_000)]
    assert certify(bounded, "final").assumptions == ()
    assert mus[2] == pytest.approx(mus[1], rel=1e-6)
    assert mus[2] < certify(replace(bounded, rounds=100_000), "rounds").mu / 10


GLM = ClippedGlm(steps=5, clip=1.0, schedule=Constant(rate=0.5), weight_decay=0.1)


def simulated_final_mu(protocol: Protocol, rho: float, shift: float, shares: np.ndarray) -> float:
    """Exact Gaussian parameter of linear dynamics w <- (1-b) w + b (rho w + share shift + noise), seen at the end only."""
    mixing = protocol.aggregation.mixing
    stretch, mean, variance = (1 - mixing) + mixing * rho, 0.0, 0.0
    for _ in range(protocol.rounds):
        mean = stretch * mean + mixing * shares.max() * shift
        variance = stretch**2 * variance + (mixing * protocol.noise.sigma) ** 2 * float(
            np.square(shares).sum()
        )
    return mean / math.sqrt(variance)


@pytest.mark.parametrize("mixing", [1.0, 0.3])
@pytest.mark.parametrize("sizes", [None, [600] * 9 + [3000]])
@pytest.mark.parametrize("participation", [None, FixedSize(size=4)])
def test_the_final_model_of_linear_dynamics_never_reveals_more_than_priced(
    mixing, sizes, participation
) -> None:
    weights = "equal" if sizes is None else "records"
    protocol = Protocol(
        clients=10, rounds=40, local=GLM, noise=Gaussian(sigma=0.1), aggregation=Mean(mixing=mixing, weights=weights),
        data=Data(name="x", records=600),
    )  # fmt: skip
    if participation is not None:
        protocol = replace(protocol, participation=participation)
    guarantee = certify(protocol, "final", "client", sizes=sizes)
    shift = 2 * sum(0.5 * 0.95**k for k in range(5))
    shares = np.full(10, 0.1) if sizes is None else np.array(sizes) / sum(sizes)
    if participation is not None:
        shares = np.full(4, 0.25) if sizes is None else np.array([3000, 600, 600, 600]) / 4800
    # The dynamics of every round with the attacked client in it are one of the cases that the promise covers.
    certain = replace(protocol, participation=Everyone())
    bound = guarantee.mu if guarantee.mu is not None else math.inf
    if participation is None:
        assert simulated_final_mu(certain, 0.95**5, shift, shares) <= bound * (1 + 1e-9)
        assert bound <= certify(certain, "rounds", "client", sizes=sizes).mu
    elif sizes is None:
        direct = [
            one
            for one in find_bounds(pose_question(protocol, "final", "client", None, sizes))
            if one.method == "last iterate"
        ]
        assert simulated_final_mu(certain, 0.95**5, shift, shares) <= direct[0].curve.mu * (
            1 + 1e-9
        )


def test_last_iterate_bounds_are_not_used_where_they_do_not_hold() -> None:
    protocol = Protocol(
        clients=10,
        rounds=40,
        local=GLM,
        noise=Gaussian(sigma=0.1),
        data=Data(name="x", records=600),
    )
    assert certify(protocol, "final").method == "last iterate"
    budgets = tuple(ClientBudget(id=i, epsilon=1e6) for i in range(10))
    cases = [
        (replace(protocol, participation=Poisson(rate=0.5)), {}),
        (replace(protocol, aggregation=Median()), {}),
        (replace(protocol, client=budgets[:1]), {}),
        (protocol, {"rounds": [0, 1, 1, 2]}),
        (protocol, {"rounds": [0, 2]}),
    ]
    for other, options in cases:
        methods = [
            bound.method
            for bound in find_bounds(
                pose_question(other, "final", "record", options.get("rounds"), None)
            )
        ]
        assert "last iterate" not in methods
    for view in ("rounds", "coalition:1"):  # a client that leaves takes its noise with it
        assert (
            certify(replace(protocol, client=budgets[:1]), view).mu
            == certify(protocol, "server").mu
        )
    mixed = replace(protocol, aggregation=Mean(weights="records"), participation=Poisson(rate=0.5))
    sizes = [600] * 9 + [6000]
    assert certify(mixed, "rounds", sizes=sizes).epsilon(1e-5) == certify(
        mixed, "server", sizes=sizes
    ).epsilon(1e-5)


def test_the_smallest_client_counts_for_minibatches() -> None:
    sizes = [60] + [6000] * 49
    assert certify(BASE, "server", sizes=sizes).epsilon(1e-5) == certify(
        replace(BASE, data=Data(name="x", records=60)), "server"
    ).epsilon(1e-5)


def test_clipped_logistic_regression_converges_and_matches_theory() -> None:
    rule = ClippedGlm(steps=5, clip=1.0, schedule=Constant(rate=0.5), weight_decay=0.1)
    protocol = Protocol(
        clients=100,
        rounds=10,
        local=rule,
        noise=Gaussian(sigma=0.1),
        data=Data(name="adult", records=600),
    )
    for rounds, share in (
        (10, 0.6720551),
        (100, 0.07840988),
        (1000, 0.007840988),
    ):  # docs/theory.md#a9: H over composition
        plan = replace(protocol, rounds=rounds)
        final, composed = certify(plan, "final").mu, certify(plan, "rounds").mu
        assert (final / composed) ** 2 == pytest.approx(share, rel=1e-6)
    assert certify(protocol, "server").mu == pytest.approx(certify(protocol, "rounds").mu * 10)
    assert certify(protocol, "final", "client").mu > certify(protocol, "final").mu * 100


def glm_difference(
    rule: ClippedGlm,
    features: np.ndarray,
    labels: np.ndarray,
    other: tuple[np.ndarray, int],
    row: int,
) -> float:
    """Distance of two local trainings in float64 that differ in one record."""
    ends = []
    for swap in (False, True):
        x, y = features.copy(), labels.astype(float)
        if swap:
            x[row], y[row] = other
        w = np.zeros(x.shape[1])
        size = rule.batch or len(x)
        for k, rate in enumerate(rule.schedule.rates(round=0, steps=rule.steps)):
            turn = slice((k % (len(x) // size)) * size, (k % (len(x) // size) + 1) * size)
            residual = 1 / (1 + np.exp(-x[turn] @ w)) - y[turn]
            limit = rule.clip / np.linalg.norm(x[turn], axis=1)
            w = w - rate * (
                (np.clip(residual, -limit, limit) @ x[turn]) / size + rule.weight_decay * w
            )
        ends.append(w)
    return float(np.linalg.norm(ends[0] - ends[1]))


@given(
    st.integers(0, 10**6),
    st.sampled_from(["full", "cyclic"]),
    st.sampled_from([0.5, 3.0]),
    st.sampled_from([0.02, 0.3, 5.0]),
)
@settings(max_examples=60, deadline=None)
def test_no_replaced_record_moves_a_clipped_linear_upload_further_than_priced(
    seed, batches, rate, clip
) -> None:
    generator = np.random.default_rng(seed)
    rule = ClippedGlm(
        steps=8,
        clip=clip,
        schedule=Cyclic(rate=rate),
        weight_decay=0.05,
        batches=batches,
        batch=3 if batches == "cyclic" else None,
    )
    x = generator.normal(size=(12, 4))
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    other = generator.normal(size=4)
    moved = glm_difference(
        rule,
        x,
        generator.integers(0, 2, 12),
        (other / max(1.0, np.linalg.norm(other)), 1),
        int(generator.integers(12)),
    )
    protocol = Protocol(
        clients=1, rounds=1, local=rule, noise=Gaussian(sigma=1.0), data=Data(name="x", records=12)
    )
    assert moved <= certify(protocol, "server").mu * (1 + 1e-12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"view": "sever"}, "server"),
        ({"view": "coalition:50"}, "49"),
        ({"view": "coalition:x"}, "coalition:3"),
        ({"unit": "row"}, "record"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": math.nan}, "delta"),
    ],
)
def test_questions_that_make_no_sense_are_refused(arguments, words) -> None:
    with pytest.raises(UserError, match=words):
        certify(BASE, **arguments)


def test_the_smallest_valid_bound_is_the_one_promised() -> None:
    for protocol in (MNIST, replace(MNIST, assumptions=Assumptions(smoothness=0.01), rounds=5)):
        for view in all_views(50):
            bounds = [
                bound.curve.epsilon(1e-5)
                for bound in find_bounds(pose_question(protocol, view, "record", None, None))
            ]
            assert certify(protocol, view).epsilon(1e-5) == min(bounds)


def test_every_guarantee_is_labelled_and_explained() -> None:
    guarantee = certify(MNIST, "coalition:3")
    document = guarantee.as_document(1e-5)
    assert set(document) == {
        "view",
        "unit",
        "adjacency",
        "kind",
        "mu",
        "rho",
        "epsilon",
        "delta",
        "method",
        "assumptions",
        "notes",
        "total_variation",
    }
    assert document["total_variation"] == 0
    assert document["view"] == "coalition:3"
    assert document["mu"] is None
    assert document["rho"] is None
    assert certify(BASE).rho == pytest.approx(certify(BASE).rdp(5.0) / 5)
    assert "theory.md#a14" in guarantee.explain()
    assert "theory.md#a11" in certify(KNOWN, "coalition:3").explain()
    assert "theory.md#a8)" in guarantee.explain()


@pytest.mark.slow
def test_budgets_of_all_clients_bound_what_the_server_learns() -> None:
    budgets = tuple(ClientBudget(id=i, epsilon=5.0) for i in range(50))
    capped = certify(replace(MNIST, client=budgets), "server")
    assert capped.method == "client budgets"
    assert capped.epsilon(1e-5) <= 5.0
    assert certify(replace(BASE, client=budgets[:49]), "server").mu == certify(BASE, "server").mu
    # Not knowing the records, certify cannot know how often training will let a client take part: it promises nothing from caps.
    assert certify(replace(BASE, client=budgets), "server").mu == certify(BASE, "server").mu
    # A record's budget says little about a whole client: as many rounds as the record's budget allows, each at the client's price.
    rounds = max(
        find_capped_rounds(replace(MNIST, client=budgets), budget, 600) for budget in budgets
    )
    assert certify(replace(MNIST, client=budgets), "server", "client").mu == pytest.approx(
        certify(MNIST, "server", "client").mu * (rounds / 600) ** 0.5
    )


def test_a_run_of_a_million_rounds_is_priced_in_time() -> None:
    assert certify(
        replace(BASE, rounds=1_000_000, local=replace(LOCAL, schedule=StageWise(rate=0.1))),
        "rounds",
    ).mu == pytest.approx(0.1 * 2 * 5 / math.sqrt(50) * math.sqrt(math.pi**2 / 6), rel=1e-5)


@pytest.mark.parametrize(
    "sizes",
    [
        [5] * 9,
        [5] * 1000,
        [0] * 10,
        [-3] * 10,
        [2.5] * 10,
        [math.nan] * 10,
        [10**30] * 10,
        [True] * 10,
    ],
)
def test_sizes_that_are_not_the_clients_are_refused(sizes) -> None:
    protocol = replace(BASE, clients=10)
    certify(protocol, sizes=[50] * 10)
    with pytest.raises(InvalidValue, match="numbers of records of 10 clients"):
        certify(protocol, sizes=sizes)


@pytest.mark.parametrize("rounds", [5, [0.9] * 3, [[0, 1]], [-1], ["0"], [True]])
def test_rounds_that_are_none_are_refused(rounds) -> None:
    with pytest.raises(InvalidValue, match="numbers of rounds"):
        certify(replace(BASE, clients=10), rounds=rounds)


def test_who_does_not_know_how_many_records_there_are_is_told_what_that_costs() -> None:
    known = certify(replace(BASE, clients=10), "rounds", sizes=[500] * 10)
    unknown = certify(replace(BASE, clients=10), "rounds")
    assert UNKNOWN_SIZES in unknown.derivation
    assert UNKNOWN_SIZES not in known.derivation
    assert known.epsilon(1e-5) < unknown.epsilon(1e-5)

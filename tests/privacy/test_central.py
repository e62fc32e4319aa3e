"""Noise at the server: against enumeration over who takes part, quadrature, dp_accounting and the values of docs/theory.md#a10."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from scipy import integrate, stats

from sordino import (
    ClientBudget,
    ClippedGlm,
    Constant,
    Data,
    Decay,
    Everyone,
    FedAvg,
    FixedSize,
    Gaussian,
    Laplace,
    Mean,
    Median,
    Poisson,
    Privacy,
    Protocol,
    StageWise,
    UserError,
)
from sordino.privacy.bounds.central import central_known_rounds
from sordino.privacy.bounds.question import pose_question
from sordino.privacy.calibrate import calibrate
from sordino.privacy.certify import certify
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.ledger_lines import Opened, RoundCharged
from sordino.privacy.spending import certify_clients
from sordino.protocol import InvalidValue, dumps, loads

CLIPPED = FedAvg(
    steps=3, batch=4, clip=0.5, schedule=StageWise(rate=0.1), clip_target="update"
)  # moves by 1

LINEAR = ClippedGlm(steps=1, clip=1, schedule=Constant(rate=0.1), weight_decay=0.1)


def plan(
    noise: object, *, clients: int = 20, rounds: int = 1, fixed: bool = False, **changes: object
) -> Protocol:
    mean = Mean(denominator="fixed") if fixed else Mean()
    settings = {
        "clients": clients,
        "rounds": rounds,
        "local": CLIPPED,
        "noise": noise,
        "aggregation": mean,
    }
    return Protocol(**{**settings, **changes})  # type: ignore[arg-type]


def test_the_server_itself_is_not_covered_and_that_is_said() -> None:
    guarantee = certify(plan(Gaussian(sigma=1.0, where="server")))
    assert math.isinf(guarantee.epsilon(1e-5))
    assert "not private" in guarantee.explain()
    assert math.isinf(certify(plan(Laplace(scale=1.0, where="server"))).epsilon(1e-5))


def test_everyone_is_covered_by_the_servers_noise_on_the_mean() -> None:
    protocol = plan(Gaussian(sigma=0.1, where="server"), rounds=9)
    for view in ("rounds", "coalition:1", "coalition:19", "final"):
        assert certify(protocol, view).mu == pytest.approx(3 / 20 / 0.1)
    assert certify(replace(protocol, aggregation=Mean(mixing=0.3)), "rounds").mu == pytest.approx(
        3 / 20 / 0.1
    )


def test_both_noises_add_up_and_colluders_take_theirs_away() -> None:
    protocol = plan(Gaussian(sigma=0.5, server_sigma=0.1, where="both"), rounds=4)
    assert certify(protocol).mu == pytest.approx(2 / 0.5)
    for colluders, view in ((0, "rounds"), (1, "coalition:1"), (19, "coalition:19")):
        noise = math.sqrt((20 - colluders) * 0.5**2 / 20**2 + 0.1**2)
        assert certify(protocol, view).mu == pytest.approx(2 / 20 / noise)


def test_a_visible_draw_averages_over_how_many_take_part() -> None:
    protocol = plan(Gaussian(sigma=0.2, where="server"), clients=6, participation=Poisson(rate=0.3))
    for epsilon in (0.1, 1.0):
        exact = sum(
            0.3 * stats.binom.pmf(n - 1, 5, 0.3) * GaussianCurve(mu=1 / n / 0.2).delta(epsilon)
            for n in range(1, 7)
        )
        assert certify(protocol, "rounds").delta(epsilon) == pytest.approx(exact, rel=1e-3)
    fixed = replace(protocol, participation=FixedSize(size=2))
    assert certify(fixed, "rounds").delta(1.0) == pytest.approx(
        GaussianCurve(mu=1 / 2 / 0.2).delta(1.0) / 3, rel=1e-3
    )


def hidden(
    sigma: float = 1.0, rounds: int = 1, adjacency: str = "add-or-remove", rate: float = 0.01
) -> Protocol:
    """100 clients; an update moves the sum by 0.5, which is divided by 100 rate."""
    noise = Gaussian(sigma=sigma * 0.5 / (100 * rate), where="server")
    return plan(
        noise,
        clients=100,
        rounds=rounds,
        fixed=True,
        participation=Poisson(rate=rate),
        privacy=Privacy(adjacency=adjacency),
    )


@pytest.mark.parametrize(("rounds", "printed"), [(1, 0.1995), (1000, 1.828)])
def test_a_hidden_draw_amplifies_as_theory_says(rounds: int, printed: float) -> None:
    guarantee = certify(hidden(rounds=rounds), "rounds", "client")
    assert guarantee.method == "hidden Poisson sampling"
    assert guarantee.adjacency == "add-or-remove"
    assert guarantee.epsilon(1e-5) == pytest.approx(printed, rel=2e-3)
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0)), rounds
    )
    assert guarantee.epsilon(1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.05, 0.4])
def test_replacing_under_a_hidden_draw_is_never_underpriced(rate: float) -> None:
    """Two opposite updates, exactly: (1 - q) N(0, 1) + q N(+-1/2, 1) in units of the noise."""
    for unit in ("client", "record"):
        guarantee = certify(hidden(rounds=1, adjacency="replace-one", rate=rate), "rounds", unit)
        for epsilon in (0.01, 0.1, 0.5):

            def excess(x: float, epsilon: float = epsilon) -> float:
                first, second = (
                    (1 - rate) * stats.norm.pdf(x) + rate * stats.norm.pdf(x, centre)
                    for centre in (1.0, -1.0)
                )
                return max(0.0, float(first - math.exp(epsilon) * second))

            exact, error = integrate.quad(excess, -9, 9, limit=400)
            assert exact - error <= guarantee.delta(epsilon)  # the bound is exact, up to its grid
        assert guarantee.delta(0.1) < 0.9 * GaussianCurve(mu=2.0).delta(0.1)


def test_a_record_added_is_priced_as_any_change_of_its_client() -> None:
    by_record = certify(hidden(rate=0.1), "rounds", "record").epsilon(1e-5)
    replaced = certify(hidden(rate=0.1, adjacency="replace-one"), "rounds", "client").epsilon(1e-5)
    assert by_record == pytest.approx(replaced)


@pytest.mark.slow
def test_rounds_that_differ_are_rounded_up_together() -> None:
    steps = FedAvg(steps=2, batch=4, clip=0.5, schedule=StageWise(rate=0.5))
    protocol = replace(hidden(rounds=40, rate=0.1), local=steps)
    priced = certify(protocol, "rounds", "client").epsilon(1e-5)
    accountant = dp_accounting.pld.PLDAccountant()
    for t in range(40):
        multiplier = protocol.noise.sigma * 10 / (0.5 / (t + 1))  # type: ignore[union-attr]
        accountant.compose(
            dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(multiplier))
        )
    exact = accountant.get_epsilon(1e-5)
    assert exact <= priced * (1 + 1e-3)
    assert priced <= 1.05 * exact


def test_laplace_noise_at_the_server_by_quadrature() -> None:
    local = replace(CLIPPED, clip_norm="l1")
    protocol = plan(
        Laplace(scale=0.05, where="server"), clients=50, fixed=True, participation=Poisson(rate=0.2), local=local,
        privacy=Privacy(adjacency="add-or-remove"),
    )  # fmt: skip
    shift = 0.5 / 10 / 0.05

    def power(x: float, order: float) -> float:
        p = 0.8 * stats.laplace.pdf(x) + 0.2 * stats.laplace.pdf(x, shift)
        return float(p**order * stats.laplace.pdf(x) ** (1 - order))

    promised = certify(protocol, "rounds", "client", delta=1e-5)
    assert promised.method == "hidden Poisson sampling"
    for order in (2, 8):
        exact = math.log(
            sum(
                integrate.quad(power, a, b, args=(order,))[0]
                for a, b in ((-40, 0), (0, shift), (shift, 40))
            )
        ) / (order - 1)
        assert promised.rdp(order) == pytest.approx(exact, rel=1e-5)
    seen = certify(replace(protocol, privacy=Privacy()), "rounds", "client")
    assert seen.method == "Rényi composition"
    assert certify(replace(protocol, participation=Everyone()), "rounds", "client").rdp(4.0) > 0


def test_records_and_shares() -> None:
    protocol = plan(
        Gaussian(sigma=0.1, where="server"), clients=3, aggregation=Mean(weights="records")
    )
    assert certify(protocol, "rounds", "client", sizes=(10, 20, 70)).mu == pytest.approx(0.7 / 0.1)
    unknown = certify(
        replace(protocol, participation=Poisson(rate=0.5)), "rounds", "client", sizes=(10, 20, 70)
    )
    assert unknown.delta(1.0) == pytest.approx(0.5 * GaussianCurve(mu=10.0).delta(1.0), rel=1e-3)
    data = Data(name="digits", records=40)
    secret = plan(Gaussian(sigma=0.1, where="server"), data=data)
    known = replace(secret, local=replace(secret.local, minibatches="public"))
    drawn = 1 - 0.9**3
    first = certify(known, "rounds")
    assert first.method == "first-hit mixture"
    assert first.delta(0.5) == pytest.approx(drawn * GaussianCurve(mu=0.5).delta(0.5), rel=1e-3)
    hidden_draw = certify(secret, "rounds")
    assert hidden_draw.method == "secret batches"
    apart = math.log1p(math.expm1(0.5) / drawn)
    expected = drawn * GaussianCurve(mu=0.5).delta(apart)
    assert hidden_draw.delta(0.5) == pytest.approx(expected, rel=1e-2)
    assert hidden_draw.delta(0.5) >= expected


def test_what_was_realised_counts_who_took_part() -> None:
    protocol = plan(Gaussian(sigma=0.1, where="server"), rounds=3, participation=Poisson(rate=0.5))
    opened = Opened(protocol="x", generator="y", noise="seeded")
    events = [
        opened,
        RoundCharged(round=0, clients=(0, 1)),
        RoundCharged(round=1, clients=(0, 1, 2, 3)),
        RoundCharged(round=2, clients=(1,)),
    ]
    found = certify_clients(protocol, events, "rounds")
    assert found[0].mu == pytest.approx(math.hypot(1 / 2, 1 / 4) / 0.1)
    assert found[1].mu == pytest.approx(math.sqrt(1 / 4 + 1 / 16 + 1) / 0.1)
    assert math.isinf(certify_clients(protocol, events, "server")[0].epsilon(1e-5))
    both = replace(protocol, noise=Gaussian(sigma=0.5, server_sigma=0.1, where="both"))
    assert certify_clients(both, events, "server")[0].mu == pytest.approx(math.sqrt(2) / 0.5)
    assert certify_clients(both, events, "rounds")[0].mu == pytest.approx(
        math.sqrt(1 / (2 * 0.5**2 + 4 * 0.1**2) + 1 / (4 * 0.5**2 + 16 * 0.1**2))
    )


def test_noise_at_the_server_is_calibrated() -> None:
    found = calibrate(hidden(rounds=100, rate=0.1), "rounds", "client", epsilon=2.0)
    assert 1.99 < found.achieved <= 2.0
    with pytest.raises(UserError, match="no noise is enough"):
        calibrate(hidden(), "server", epsilon=2.0)


@pytest.mark.parametrize(("changes", "said"), [
    ({"noise": Gaussian(sigma=1.0, where="server"), "aggregation": Median()}, "noise.where"),
    ({"noise": Gaussian(sigma=1.0, where="server"), "client": (ClientBudget(id=0, epsilon=1.0),)}, "noise.where"),
    ({"privacy": Privacy(adjacency="add-or-remove")}, "privacy.adjacency"),
    ({"noise": Gaussian(sigma=1.0, where="server"), "privacy": Privacy(adjacency="add-or-remove")}, "privacy.adjacency"),
    ({"aggregation": Mean(denominator="fixed"), "local": LINEAR}, "denominator"),
])  # fmt: skip
def test_combinations_without_a_proof_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        plan(**{"noise": Gaussian(sigma=1.0), **changes})


def test_values_that_make_no_sense_together_are_refused_and_the_rest_is_spelled() -> None:
    for bad in ({"where": "both"}, {"server_sigma": 1.0}, {"where": "server", "server_sigma": 1.0}):
        with pytest.raises(InvalidValue, match="where"):
            Gaussian(sigma=1.0, **bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="denominator"):
        Mean(denominator="fixed", weights="records")
    protocol = plan(Gaussian(sigma=0.5, server_sigma=0.1, where="both"), fixed=True)
    assert loads(dumps(protocol)) == protocol
    assert np.isfinite(certify(protocol, "rounds").epsilon(1e-5))


@pytest.mark.parametrize("participation", [Everyone(), Poisson(rate=0.4), FixedSize(size=6)])
@pytest.mark.parametrize("channel", ["direct", "shuffler"])
def test_one_other_client_and_all_others_take_their_noise_away(
    participation: object, channel: str
) -> None:
    protocol = plan(
        Gaussian(sigma=0.5, server_sigma=0.1, where="both"),
        participation=participation,
        channel=channel,
    )
    events = [
        Opened(protocol="", generator="", noise="fresh"),
        RoundCharged(round=0, clients=(0, 1, 2, 3)),
    ]
    for view, same in (("weak", "coalition:1"), ("strong", "coalition:19")):
        assert certify(protocol, view).epsilon(1e-5) == certify(protocol, same).epsilon(1e-5)
        assert certify_clients(protocol, events, view)[0].epsilon(1e-5) == certify_clients(
            protocol, events, same
        )[0].epsilon(1e-5)
    assert certify(protocol, "strong").epsilon(1e-5) > certify(protocol, "rounds").epsilon(1e-5)


@pytest.mark.parametrize("denominator", ["participants", "fixed"])
def test_colluders_hide_nobody_only_in_rounds_that_they_are_in(denominator: str) -> None:
    protocol = Protocol(
        clients=6,
        rounds=1,
        participation=Poisson(rate=0.4),
        aggregation=Mean(denominator=denominator),
        local=FedAvg(steps=1, batch=1, clip=0.5, schedule=Constant(rate=1.0)),  # moves by 1
        noise=Gaussian(sigma=0.7, where="both", server_sigma=0.3),
    )
    for epsilon in (0.1, 1.0, 3.0):
        exact = 0.0
        for honest in range(4):  # of three others; two collude
            for colluding in range(3):
                mass = stats.binom.pmf(honest, 3, 0.4) * stats.binom.pmf(colluding, 2, 0.4)
                by = 2.4 if denominator == "fixed" else 1 + honest + colluding
                noise = math.hypot(0.3 * by, 0.7 * math.sqrt(1 + honest))
                exact += 0.4 * mass * GaussianCurve(mu=1 / noise).delta(epsilon)
        found = certify(protocol, "coalition:2", "client").delta(epsilon)
        assert found == pytest.approx(exact, rel=1e-6)
    size = replace(protocol, participation=FixedSize(size=3))
    for plan in (protocol, size):
        epsilons = [
            certify(replace(plan, rounds=20), view, "client").epsilon(1e-5)
            for view in ("rounds", "coalition:1", "coalition:2", "coalition:5")
        ]
        assert epsilons == sorted(epsilons)


def test_an_absent_update_is_half_as_far_as_an_opposite_one() -> None:
    protocol = Protocol(
        clients=10,
        rounds=9,
        aggregation=Mean(denominator="fixed"),
        local=FedAvg(steps=1, batch=1, clip=0.5, schedule=Constant(rate=1.0)),  # moves by 1
        noise=Gaussian(sigma=0.1, where="server"),
        privacy=Privacy(adjacency="add-or-remove"),
    )
    replaced = replace(protocol, privacy=Privacy(adjacency="replace-one"))
    assert certify(protocol, "rounds", "client").mu == pytest.approx(3 * 0.5 / (0.1 * 10))
    assert certify(replaced, "rounds", "client").mu == pytest.approx(3 * 1.0 / (0.1 * 10))
    assert certify(protocol, "rounds", "record").mu == certify(replaced, "rounds", "record").mu
    question = pose_question(protocol, "rounds", "client", (0, 1), present=(10, 10))
    (visible,) = central_known_rounds(question)
    assert visible.curve.mu == pytest.approx(math.sqrt(2) * 0.5 / (0.1 * 10))


def test_rounds_that_hardly_move_a_mean_have_a_price() -> None:
    """A rate that is halved 100 times; the rounds after the first dozens add nothing."""
    rule = FedAvg(steps=1, batch=8, clip=1.0, schedule=Decay(rate=1.0, factor=0.5, every="round"))
    plan = Protocol(
        clients=20,
        rounds=100,
        local=rule,
        noise=Gaussian(sigma=1.0, where="server"),
        participation=Poisson(rate=0.3),
        aggregation=Mean(denominator="fixed"),
        privacy=Privacy(adjacency="add-or-remove"),
    )
    found = certify(plan, "rounds", "client").epsilon(1e-5)
    short = certify(replace(plan, rounds=20), "rounds", "client").epsilon(1e-5)
    assert short <= found * (1 + 1e-6)
    assert found <= 1.01 * short

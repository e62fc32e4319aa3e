"""What certify promises for noise that is not Gaussian: against brute force over shifts, quadrature, other libraries."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from sordino import (
    Constant,
    Custom,
    Data,
    FedAvg,
    FixedSize,
    Gaussian,
    Laplace,
    Model,
    Poisson,
    Protocol,
    StageWise,
    Staircase,
    UserError,
)
from sordino.mechanisms import custom_noise
from sordino.mechanisms.custom_noise import find_worst_divergence
from sordino.mechanisms.histogram import find_bin_limits
from sordino.privacy.calibrate import calibrate
from sordino.privacy.certify import certify
from sordino.privacy.curves.renyi import ORDERS, convert_to_epsilon
from sordino.privacy.dp_events import dp_event
from sordino.privacy.ledger_lines import Opened, RoundCharged
from sordino.privacy.spending import certify_clients, find_affordable_rounds
from sordino.protocol import Budget, ClientBudget, View, dumps, loads
from tests.support import toy_dataset, toy_protocol

DELTA = 1e-5


def plan(noise: object, *, clip_norm: str = "l2", rounds: int = 7, **changes: object) -> Protocol:
    local = FedAvg(
        steps=2, batch=4, clip=0.5, schedule=Constant(rate=0.5), clip_norm=clip_norm
    )  # moves by 1
    settings: dict[str, object] = {
        "clients": 20, "rounds": rounds, "local": local, "noise": noise, "model": Model(name="mlp", parameters=1000),
    }  # fmt: skip
    return Protocol(**{**settings, **changes})  # type: ignore[arg-type]


def laplace_moment(order: float, shift: float, scale: float) -> float:
    """E_q (p/q)^order by quadrature."""
    p, q = stats.laplace(shift, scale), stats.laplace(0, scale)
    cuts = [-40 * scale, 0.0, shift, shift + 40 * scale]
    parts = [
        integrate.quad(lambda x: math.exp(order * p.logpdf(x) + (1 - order) * q.logpdf(x)), a, b)[0]
        for a, b in itertools.pairwise(cuts)
    ]
    return sum(parts)


@pytest.mark.parametrize(
    ("norm", "shift", "times"), [("l1", 1.0, 1), ("l2", 1 / math.sqrt(1000), 1000)]
)
def test_laplace_rounds_add_up_the_worst_shift(norm: str, shift: float, times: int) -> None:
    promised = certify(plan(Laplace(scale=3.0), clip_norm=norm))
    for order in (1.5, 4.0, 20.0):
        exact = 7 * times * math.log(laplace_moment(order, shift, 3.0)) / (order - 1)
        assert promised.rdp(order) == pytest.approx(exact, rel=1e-5)
    direct = min(convert_to_epsilon(order, promised.rdp(order), DELTA) for order in ORDERS)
    if norm == "l2":
        assert promised.epsilon(DELTA) == pytest.approx(direct)
    else:  # losses are added up where the worst shift is known for every delta
        assert direct * 0.9 < promised.epsilon(DELTA) < direct


def test_every_other_view_has_the_servers_bound_and_says_why() -> None:
    protocol = plan(Laplace(scale=3.0))
    server = certify(protocol)
    for view in ("rounds", "coalition:3", "final"):
        guarantee = certify(protocol, view)
        assert guarantee.epsilon(DELTA) == server.epsilon(DELTA)
        assert "computed from the uploads" in guarantee.explain()


def test_a_draw_of_clients_averages_moments() -> None:
    for part, rate in ((Poisson(rate=0.3), 0.3), (FixedSize(size=5), 0.25)):
        promised = certify(plan(Laplace(scale=2.0), clip_norm="l1", rounds=1, participation=part))
        moment = 1 - rate + rate * laplace_moment(3.0, 1.0, 2.0)
        assert promised.rdp(3.0) == pytest.approx(math.log(moment) / 2, rel=1e-6)


def test_the_first_use_of_a_record_averages_moments_over_the_steps() -> None:
    data = Data(name="digits", records=10)
    guarantee = certify(plan(Laplace(scale=2.0), clip_norm="l1", rounds=1, data=data))
    moment = 0.4 * laplace_moment(5.0, 1.0, 2.0) + 0.24 * laplace_moment(5.0, 0.5, 2.0) + 0.36
    assert guarantee.method == "secret batches"
    assert guarantee.rdp(5.0) == pytest.approx(math.log(moment) / 4, rel=1e-6)
    whole = certify(plan(Laplace(scale=2.0), clip_norm="l1", rounds=1, data=data), unit="client")
    assert whole.rdp(5.0) == pytest.approx(math.log(laplace_moment(5.0, 1.0, 2.0)) / 4, rel=1e-6)


def test_no_admissible_shift_of_a_small_model_passes_the_staircase_bound() -> None:
    """Exact epsilon of many shift vectors, by enumerating all combinations of the three-valued losses."""
    from sordino.mechanisms.staircase_density import StaircaseDensity as Density

    noise = Staircase(step=1.0, width=1.0)
    density, generator = Density(step=1.0, width=1.0, nu=noise.falls_at), np.random.default_rng(1)
    for norm, order in (("l1", 1), ("l2", 2)):
        promised = certify(
            plan(noise, clip_norm=norm, rounds=1, model=Model(name="mlp", parameters=3))
        ).epsilon(0.01)
        largest = 0.0
        for _ in range(60):
            shift = np.abs(generator.normal(size=3)) ** generator.uniform(0.2, 3)
            shift /= np.linalg.norm(shift, ord=order)
            losses, masses = np.zeros(1), np.ones(1)
            for one in shift.tolist():
                up = density.jump_probability(one)
                losses = np.add.outer(losses, [1.0, -1.0, 0.0]).ravel()
                masses = np.multiply.outer(
                    masses, [up, up * math.exp(-1), 1 - up - up * math.exp(-1)]
                ).ravel()
            largest = max(
                largest, float(np.dot(masses, np.maximum(0, -np.expm1(promised - losses))))
            )
        assert 1e-4 < largest <= 0.01


def test_dimension_and_width_are_asked_for_where_the_price_needs_them() -> None:
    blind = plan(Laplace(scale=3.0), model=None)
    with pytest.raises(UserError, match=r"model.parameters is missing"):
        certify(blind)
    assert (
        certify(replace(blind, local=replace(blind.local, clip_norm="l1"))).epsilon(DELTA)
        < math.inf
    )
    assert certify(replace(blind, noise=Gaussian(sigma=1.0))).epsilon(DELTA) < math.inf
    with pytest.raises(UserError, match=r"noise.width = 0.99: expected at least 1"):
        certify(plan(Staircase(step=1.0, width=0.99)))
    assert math.isinf(certify(plan(Laplace(scale=0.0))).epsilon(DELTA))


def test_the_paper_s_ranking_turns_in_many_dimensions() -> None:
    """Standard deviations for the same guarantee (docs/theory.md#b3: 1.415 and 1.387 at d = 1, 5.705 and 32.8 at d = 1000)."""
    for dimension, expected in ((1, (1.415, 1.387)), (1000, (5.705, 32.8))):
        for noise, printed in zip(
            (Laplace(scale=1.0), Staircase(step=1.0, width=1.0)), expected, strict=True
        ):
            protocol = plan(noise, rounds=1, model=Model(name="mlp", parameters=dimension))
            found = calibrate(protocol, epsilon=1.0)
            from sordino.mechanisms import mechanism_of

            assert mechanism_of(found.protocol.noise).deviation == pytest.approx(printed, rel=6e-3)
            assert found.achieved <= 1.0
            assert found.as_document()[found.parameter] == found.value


def test_budgets_ledgers_and_events_price_other_noise() -> None:
    protocol = plan(Laplace(scale=3.0), clip_norm="l1", rounds=50, participation=FixedSize(size=5))
    reach = find_affordable_rounds(protocol, Budget(epsilon=1.0))
    priced = [
        certify(protocol, rounds=range(count)).epsilon(DELTA)
        for count in (reach.rounds, reach.rounds + 1)
    ]
    assert priced[0] <= 1.0 < priced[1]
    events = [
        Opened(protocol="x", generator="y", noise="seeded"),
        RoundCharged(round=0, clients=(1, 2)),
        RoundCharged(round=1, clients=(1,)),
    ]
    found = certify_clients(protocol, events)
    everyone = replace(protocol, participation=plan(Laplace(scale=1.0)).participation)
    assert found[1].epsilon(DELTA) == certify(everyone, rounds=[0, 1]).epsilon(DELTA)
    assert found[2].epsilon(DELTA) == certify(everyone, rounds=[0]).epsilon(DELTA)
    assert found[3].epsilon(DELTA) == 0
    import dp_accounting

    accountant = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_event(everyone))
    exact = accountant.get_epsilon(DELTA)
    assert exact <= certify(everyone).epsilon(DELTA) <= 1.3 * exact
    with pytest.raises(UserError, match="no event"):
        dp_event(plan(Laplace(scale=3.0)))


def test_clients_with_budgets_are_capped_by_the_price_of_their_noise() -> None:
    from sordino.privacy.participation_caps import find_capped_rounds

    protocol = plan(Laplace(scale=3.0), clip_norm="l1", rounds=50)
    cap = find_capped_rounds(protocol, ClientBudget(id=0, epsilon=2.0))
    assert (
        certify(protocol, rounds=range(cap)).epsilon(DELTA)
        <= 2.0
        < certify(protocol, rounds=range(cap + 1)).epsilon(DELTA)
    )


def test_a_clipped_update_moves_by_twice_the_clip_whatever_the_schedule() -> None:
    local = FedAvg(steps=9, batch=4, clip=0.5, schedule=StageWise(rate=3.0), clip_target="update")
    assert certify(plan(Gaussian(sigma=2.0), local=local)).mu == pytest.approx(
        math.sqrt(7) * 1.0 / 2.0
    )
    assert certify(plan(Gaussian(sigma=2.0), local=local), "final").mu == pytest.approx(
        math.sqrt(7) * 1.0 / 2.0 / math.sqrt(20)
    )


class Claimed:
    """Laplace noise of scale 1 that claims to be of scale `claimed`."""

    uniforms = 1

    def __init__(self, claimed: float) -> None:
        self.claimed = claimed

    def sample(self, uniforms: np.ndarray) -> np.ndarray:
        return stats.laplace.ppf(uniforms[..., 0])

    def divergence(self, order: float, shifts: np.ndarray) -> np.ndarray:
        from sordino.mechanisms.laplace_noise import laplace_divergence

        return np.array([laplace_divergence(order, float(shift), self.claimed) for shift in shifts])


def honest(scale: float) -> Claimed:
    return Claimed(1.0)


def boasting(scale: float) -> Claimed:
    return Claimed(1.5)


def constant(scale: float) -> Claimed:
    made = Claimed(1.0)
    made.sample = lambda uniforms: np.zeros(uniforms.shape[:-1])  # type: ignore[method-assign]
    return made


@pytest.mark.slow
def test_noise_that_is_smaller_than_its_claim_is_refused() -> None:
    custom_noise.hold_claim_against_samples(Claimed(1.0), "honest")
    custom_noise.hold_claim_against_samples(Claimed(2 / 3), "modest")
    for claimed in (1.1, 1.5):
        with pytest.raises(UserError, match="smaller than it claims"):
            custom_noise.hold_claim_against_samples(Claimed(claimed), "boasting")
    name = f"{__name__}:boasting"
    with pytest.raises(UserError, match="smaller than it claims"):
        certify(plan(Custom(factory=name)))
    with pytest.raises(UserError, match="exactly 0"):
        certify(plan(Custom(factory=f"{__name__}:constant")))
    for missing in ("no.such.module:f", f"{__name__}:nothing", "math:sqrt"):
        with pytest.raises(UserError, match=r"noise.mechanism"):
            certify(plan(Custom(factory=missing)))


def test_the_histogram_shows_no_more_than_there_is() -> None:
    values = stats.laplace.ppf((np.arange(400_000) + 0.5) / 400_000)
    np.random.default_rng(0).shuffle(values)
    for order in (2.0, 8.0):
        exact = math.log(laplace_moment(order, 1.0, 1.0)) / (order - 1)
        assert 0.6 * exact < find_bin_limits(values, 1.0, 1e-6).divergence(order) < exact
    apart = 1 - math.exp(-0.5)  # total variation of Laplace noise and itself moved by its scale
    assert 0.75 * apart < find_bin_limits(values, 1.0, 1e-6).total_variation < apart


class Small(Claimed):
    """Says that small shifts cost nothing, which a histogram of moved values cannot see."""

    def divergence(self, order: float, shifts: np.ndarray) -> np.ndarray:
        return np.where(shifts < 0.05, 0.0, super().divergence(order, shifts))


class Capped(Claimed):
    """Says that large shifts cost no more than small ones."""

    def divergence(self, order: float, shifts: np.ndarray) -> np.ndarray:
        return np.minimum(super().divergence(order, shifts), 3.0)


class Mirrored(Claimed):
    """Values come in pairs that cancel; each of them alone is as claimed."""

    def sample(self, uniforms: np.ndarray) -> np.ndarray:
        values = super().sample(uniforms)
        flat = values.reshape(-1)
        flat[1::2] = -flat[: len(flat) // 2 * 2 : 2]
        return values


class Stateful(Claimed):
    """Noise from a generator of its own: a resumed run would draw other noise over the same upload."""

    def sample(self, uniforms: np.ndarray) -> np.ndarray:
        self.generator = getattr(self, "generator", np.random.default_rng(1))
        return self.generator.laplace(size=uniforms.shape[:-1])


class Broken(Claimed):
    def divergence(self, order: float, shifts: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError("no idea")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Small, "smaller than it claims"),
        (Capped, "smaller than it claims"),
        (Mirrored, "only on its own uniforms"),
        (Stateful, "only on its own uniforms"),
        (Broken, "ZeroDivisionError: no idea"),
    ],
)
def test_no_other_lie_passes_either(kind: type[Claimed], said: str) -> None:
    with pytest.raises(UserError, match=said):
        custom_noise.hold_claim_against_samples(kind(1.0), "liar")


def test_a_factory_that_fails_is_the_user_s_mistake() -> None:
    with pytest.raises(UserError, match=r"noise.mechanism = .* failed: TypeError"):
        certify(plan(Custom(factory="collections:OrderedDict")))


def test_nothing_is_trained_under_noise_that_cannot_be_priced(tmp_path: Path) -> None:
    from sordino import train

    for noise, said in (
        (Staircase(step=1.0, width=0.1), r"noise\.width"),
        (Custom(factory=f"{__name__}:boasting"), "smaller than it claims"),
    ):
        with pytest.raises(UserError, match=said):
            train(
                toy_protocol(noise=noise),
                data=toy_dataset(),
                model="logistic",
                folder=tmp_path / "run",
            )
        assert not (tmp_path / "run").exists()


@pytest.mark.soak
def test_custom_noise_is_priced_by_the_worst_spread_and_listed_as_vouched() -> None:
    guarantee = certify(plan(Custom(factory=f"{__name__}:honest", scale=1.0), rounds=1))
    known = certify(plan(Laplace(scale=1.0), rounds=1))
    assert known.rdp(4.0) <= guarantee.rdp(4.0) <= 1.03 * known.rdp(4.0)
    assert "honest" in " and ".join(guarantee.assumptions)
    in_l1 = certify(plan(Custom(factory=f"{__name__}:honest", scale=1.0), rounds=1, clip_norm="l1"))
    assert certify(plan(Laplace(scale=1.0), rounds=1, clip_norm="l1")).rdp(4.0) <= in_l1.rdp(4.0)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_concave_majorant_is_above_every_spread(norm: str) -> None:
    noise = custom_noise.hold_claim_against_samples(custom_noise.logistic(1.0), "logistic")
    bumpy = replace(
        noise, divergences=lambda order, shifts: np.minimum(shifts**3, 0.2 + 0.1 * shifts)
    )
    generator = np.random.default_rng(3)
    bound = find_worst_divergence(bumpy, 2.0, 1.5, norm, 5)
    largest = 0.0
    for _ in range(4000):
        shift = np.abs(generator.normal(size=5)) ** generator.uniform(0.1, 6)
        shift *= 1.5 / np.linalg.norm(shift, ord=int(norm[1]))
        largest = max(largest, float(bumpy.divergences(2.0, shift).sum()))
    assert 0.8 * bound < largest <= bound


@pytest.mark.parametrize(
    "claim",
    [
        lambda order, shifts: shifts * np.nan,
        lambda order, shifts: 1 - 2 * shifts,
        lambda order, shifts: np.minimum(shifts, np.abs(2 - shifts)),
    ],
)
@pytest.mark.parametrize("dimension", [1, 5])
def test_a_claim_that_is_no_rising_function_is_no_price(claim, dimension: int) -> None:
    noise = custom_noise.hold_claim_against_samples(custom_noise.logistic(1.0), "logistic")
    with pytest.raises(UserError, match="nothing can be promised"):
        find_worst_divergence(replace(noise, divergences=claim), 2.0, 1.9, "l2", dimension)


class FailsLater(custom_noise.logistic):
    """A noise whose code fails where its test does not look."""

    def divergence(self, order: float, shifts: np.ndarray) -> np.ndarray:
        if order > 40:
            raise ArithmeticError("too large an order")
        return super().divergence(order, shifts)


def fails_later(scale: float) -> FailsLater:
    return FailsLater(scale)


def test_an_error_of_a_users_noise_after_its_test_is_one_sentence() -> None:
    noise = Custom(factory=f"{__name__}:fails_later", scale=1.0)
    with pytest.raises(
        UserError, match=r"fails_later' failed: ArithmeticError: too large an order"
    ):
        certify(plan(noise, rounds=1)).rdp(64.0)


def test_an_error_while_a_users_module_is_read_is_one_sentence(tmp_path, monkeypatch) -> None:
    (tmp_path / "unfinished_noise.py").write_text("maker = undefined_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"failed: NameError.*unfinished_noise.py, line 1"):
        custom_noise.build_noise("unfinished_noise:maker", 1.0)


class ByLosses(Claimed):
    """The same noise, priced by a privacy-loss distribution."""

    divergence = None  # type: ignore[assignment]

    def losses(self, shift: float) -> object:
        from dp_accounting.pld import privacy_loss_distribution

        return privacy_loss_distribution.from_laplace_mechanism(
            self.claimed, sensitivity=shift, value_discretization_interval=1e-3
        )


def by_losses(scale: float) -> ByLosses:
    return ByLosses(1.0)


def test_a_privacy_loss_distribution_prices_one_parameter_and_no_more() -> None:
    noise = Custom(factory=f"{__name__}:by_losses")
    one = certify(plan(noise, rounds=1, model=Model(name="mlp", parameters=1)))
    assert one.rdp(4.0) == pytest.approx(
        certify(plan(Laplace(scale=1.0), clip_norm="l1", rounds=1)).rdp(4.0), rel=5e-3
    )
    with pytest.raises(UserError, match="worst case in many is not known"):
        certify(plan(noise, rounds=1))


def test_the_file_spells_every_mechanism() -> None:
    for noise in (
        Laplace(scale=0.5),
        Staircase(step=1.0, width=2.0, nu=0.25),
        Custom(factory="mine.noise:f", scale=2.0),
    ):
        protocol = plan(noise, clip_norm="l1")
        assert loads(dumps(protocol)) == protocol
    assert 'mechanism = "mine.noise:f"' in dumps(protocol)
    text = dumps(plan(Gaussian(sigma=1.0)))
    for wrong, said in (
        ('"laplce"', "laplace"), ('"no colon.here"', "expected"), ('"a b:c"', "package.module:factory"), ("3", "expected"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said):
            loads(text.replace('"gaussian"', wrong))
    with pytest.raises(UserError, match=r"no such key|unknown key"):
        loads(
            text.replace(
                'mechanism = "gaussian"', 'mechanism = "mine:f"\nfactory = "other:g"'
            ).replace("sigma = 1.0\n", "")
        )


def test_view_names_are_kept() -> None:
    assert certify(plan(Laplace(scale=3.0)), "rounds").view == View.ROUNDS

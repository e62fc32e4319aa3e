"""What noisy-sgd promises: against the theory's values, a peer, exact integrals, and in the units that the rule uses."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from sordino.privacy.calibrate import calibrate
from sordino.privacy.certify import certify
from sordino.privacy.ledger_lines import Opened, RoundCharged
from sordino.privacy.mechanism_comparison import mechanism_table
from sordino.privacy.spending import certify_clients, find_affordable_rounds
from sordino.protocol import (
    Budget,
    ClientBudget,
    Constant,
    Data,
    Everyone,
    FixedSize,
    Gaussian,
    Iid,
    NoisySgd,
    Poisson,
    Privacy,
    Protocol,
    UserError,
    View,
)
from tests.privacy.reference import reference_vectors

VECTORS = [vector for vector in reference_vectors() if vector["formula"] == "eps_Cq"]
VIEWS = ["server", "rounds", "coalition:1", "coalition:9", "final", "weak", "strong"]


def plan(
    *,
    multiplier=1.0,
    p=1.0,
    steps=38,
    rounds=10,
    batch=16,
    records=600,
    clients=10,
    clip=0.7,
    sampling="fixed",
    **changes,
) -> Protocol:
    local = NoisySgd(
        steps=steps, batch=batch, clip=clip, schedule=Constant(rate=0.1), sampling=sampling
    )
    return Protocol(
        **{
            "clients": clients,
            "rounds": rounds,
            "local": local,
            "noise": Gaussian(multiplier=multiplier),
            "participation": Everyone() if p == 1 else Poisson(rate=p),
            "data": Data(name="toy", partition=Iid(), records=records),
            **changes,
        }
    )


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["args"]))
def test_protocols_cost_what_the_theory_says(vector) -> None:
    args = vector["args"]
    rate = Fraction(args["B"] / args["n"]).limit_denominator(1000)
    batch, records = rate.numerator, rate.denominator
    p, steps = args.get("p", 1.0), args.get("K", args["steps"])
    protocol = plan(
        multiplier=args["sigma"],
        p=p,
        rounds=args["steps"] // steps,
        batch=batch,
        steps=steps,
        records=records,
    )
    found = certify(protocol, "strong", delta=args["delta"]).epsilon(args["delta"])
    assert found == pytest.approx(vector["value"], rel=vector["rtol"])
    assert found >= vector.get("extrapolated", vector["value"] * (1 - vector["rtol"])) * (1 - 1e-5)


def test_one_bound_holds_for_every_view() -> None:
    protocol = plan(p=0.5)
    found = {view: certify(protocol, view) for view in VIEWS}
    assert len({guarantee.epsilon(1e-5) for guarantee in found.values()}) == 1
    assert found["weak"].view == View.WEAK
    assert found["strong"].method == "subsampled steps"
    assert "coalition" not in found["rounds"].explain()


def peer_deltas(q: float, z: float, steps: int, epsilons: list[float]) -> np.ndarray:
    """dp_accounting's own composition of the sampled Gaussian."""
    from dp_accounting.pld import privacy_loss_distribution

    one = privacy_loss_distribution.from_gaussian_mechanism(
        z, value_discretization_interval=1e-3, sampling_prob=q
    )
    return (
        np.array(one.self_compose(steps).get_delta_for_epsilon(epsilons))
        if steps
        else np.zeros(len(epsilons))
    )


@pytest.mark.parametrize(("p", "rounds"), [(1.0, 4), (0.3, 1), (0.3, 4)])
def test_poisson_batches_with_random_participation_against_a_peer(p, rounds) -> None:
    """Rounds without the client lose nothing, so delta is the mean of a peer's over the binomial number of rounds with it."""
    protocol, epsilons = (
        plan(sampling="poisson", multiplier=0.9, p=p, rounds=rounds, steps=5),
        [0.1, 0.5, 1.5],
    )
    chances = stats.binom.pmf(np.arange(rounds + 1), rounds, p)
    expected = sum(
        chance * peer_deltas(16 / 600, 0.9, 5 * n, epsilons) for n, chance in enumerate(chances)
    )
    guarantee = certify(protocol)
    assert guarantee.adjacency == "add-or-remove"
    found = [guarantee.delta(epsilon) for epsilon in epsilons]
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-12)


def exact_delta(q: float, here: float, there: float, std: float, epsilon: float) -> float:
    """The hockey stick between (1-q) N(0) + q N(here) and (1-q) N(0) + q N(there), by integration."""
    x = np.linspace(-12 * std - 4, 12 * std + 4, 400_001)
    p, p2 = (
        (1 - q) * stats.norm.pdf(x, 0, std) + q * stats.norm.pdf(x, at, std) for at in (here, there)
    )
    return float(np.trapezoid(np.maximum(p - math.exp(epsilon) * p2, 0), x))


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0])
@pytest.mark.parametrize(
    ("sampling", "adjacency", "pair"),
    [
        ("fixed", "replace-one", (1, -1)),
        ("poisson", "replace-one", (1, -1)),
        ("poisson", "add-or-remove", (1, 0)),
    ],
)
def test_one_step_covers_the_exact_loss_of_opposite_gradients(
    sampling, adjacency, pair, epsilon
) -> None:
    """With C = 0.7: the sum is moved by these multiples of C when the record is in the batch; noise as the rule adds it."""
    clip, z, q = 0.7, 0.8, 0.25
    std = z * (2 * clip if sampling == "fixed" else clip)
    exact = max(exact_delta(q, clip * a, clip * b, std, epsilon) for a, b in (pair, pair[::-1]))
    protocol = plan(
        steps=1,
        rounds=1,
        batch=4,
        records=16,
        multiplier=z,
        clip=clip,
        sampling=sampling,
        privacy=Privacy(adjacency=adjacency),
    )
    found = certify(protocol).delta(epsilon)
    assert exact * (1 - 1e-6) <= found
    if 0 in pair:
        assert found <= exact * 1.001 + 1e-9


def test_a_batch_of_all_records_hides_nothing_and_is_gaussian() -> None:
    guarantee = certify(plan(batch=20, records=20, steps=4, rounds=9, multiplier=2.0))
    assert guarantee.mu == pytest.approx(math.sqrt(36) / 2)
    assert certify(
        plan(batch=20, records=None, steps=4, rounds=9, multiplier=2.0)
    ).mu == pytest.approx(3.0)


def test_more_records_hide_more_and_the_smallest_client_counts() -> None:
    epsilons = [
        certify(plan(records=None), sizes=sizes).epsilon(1e-5)
        for sizes in ([600] * 10, [600] * 9 + [60], [60] * 10)
    ]
    assert epsilons[0] < epsilons[1] == epsilons[2]


def test_a_whole_client_is_hidden_by_all_the_noise_there_is() -> None:
    fixed = certify(plan(batch=3, records=20, steps=4, rounds=9, multiplier=2.0), unit="client")
    assert fixed.mu == pytest.approx(3 / 2 * 6)  # B examples move by 2C each, under noise 2C z
    poisson = certify(
        plan(batch=3, records=20, steps=4, rounds=9, multiplier=2.0, sampling="poisson"),
        unit="client",
        sizes=[20] * 9 + [30],
    )
    assert poisson.mu == pytest.approx(30 / 2 * 6)
    assert math.isinf(
        certify(plan(records=None, sampling="poisson", data=None), unit="client").epsilon(1e-5)
    )


def test_no_noise_promises_nothing_and_no_round_reveals_nothing() -> None:
    assert math.isinf(certify(plan(multiplier=0.0)).epsilon(1e-5))
    assert certify(plan(), rounds=()).epsilon(1e-5) == 0


def test_a_fixed_number_of_participants_is_a_chance_like_any_other() -> None:
    fixed = certify(plan(participation=FixedSize(size=3))).epsilon(1e-5)
    assert fixed == pytest.approx(certify(plan(p=0.3)).epsilon(1e-5), rel=1e-9)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize("multiplier", [0.02, 0.15, 1.0, 300.0])
def test_any_multiplier_has_a_price_and_more_noise_a_lower_one(multiplier, sampling) -> None:
    found = certify(plan(multiplier=multiplier, sampling=sampling, p=0.5)).epsilon(1e-5)
    assert (
        0
        <= certify(plan(multiplier=multiplier * 1.3, sampling=sampling, p=0.5)).epsilon(1e-5)
        <= found
        < math.inf
    )


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_calibration_finds_a_multiplier_that_is_never_past_the_target(sampling) -> None:
    found = calibrate(plan(sampling=sampling, rounds=3), "strong", epsilon=3.0)
    assert found.as_document()["multiplier"] == found.protocol.noise.multiplier
    assert 2.99 < certify(found.protocol, "strong").epsilon(1e-5) <= 3.0


def test_a_budget_ends_the_rounds_and_a_clients_own_its_part() -> None:
    protocol = plan(rounds=40)
    spent = [certify(protocol, rounds=range(n)).epsilon(1e-5) for n in (7, 8)]
    budget = Budget(epsilon=(spent[0] + spent[1]) / 2, view="weak")
    assert find_affordable_rounds(protocol, budget).rounds == 7
    own = tuple(ClientBudget(id=client, epsilon=budget.epsilon) for client in range(10))
    assert certify(plan(rounds=40, client=own)).epsilon(1e-5) <= budget.epsilon


def test_what_was_realised_counts_the_rounds_taken_part_in() -> None:
    protocol = plan(p=0.5, rounds=6, clients=3)
    events = [
        Opened(protocol="", generator="", noise="seeded"),
        *(RoundCharged(round=t, clients=(0, 2) if t < 4 else (2,)) for t in range(6)),
    ]
    found = certify_clients(protocol, events)
    everyone = plan(rounds=6, clients=3)
    assert found[0].epsilon(1e-5) == pytest.approx(certify(everyone, rounds=range(4)).epsilon(1e-5))
    assert found[2].epsilon(1e-5) == pytest.approx(certify(everyone).epsilon(1e-5))
    assert found[1].epsilon(1e-5) == 0


def test_as_an_event_of_a_peer_it_costs_the_same() -> None:
    from dp_accounting.pld import PLDAccountant

    protocol = plan(sampling="poisson")
    theirs = PLDAccountant().compose(protocol.to_dp_event()).get_epsilon(1e-5)
    assert certify(protocol).epsilon(1e-5) == pytest.approx(theirs, rel=2e-3)
    with pytest.raises(UserError):
        plan(p=0.5).to_dp_event()


def test_what_was_calibrated_is_a_multiplier_and_is_called_so() -> None:
    found = calibrate(plan(rounds=3), "strong", epsilon=3.0)
    assert found.parameter == "multiplier"
    assert found.as_document()["multiplier"] == found.value == found.protocol.noise.multiplier
    with pytest.raises(UserError, match="multiplier"):
        _ = found.sigma
    with pytest.raises(UserError, match=r"model\.parameters"):
        mechanism_table(plan(), epsilon=1.0)

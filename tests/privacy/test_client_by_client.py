"""Unequal clients: the bound is that of the worst client, each with its own share and its own records."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.privacy.amplification.cohorts import Cohort, first_use, rounds_curve
from sordino.privacy.bounds.question import AttackedClients, pose_question
from sordino.privacy.bounds.shared_noise import find_shared_bounds
from sordino.privacy.bounds.unequal_clients import KINDS, find_kinds_of_clients, sum_honest_squares
from sordino.privacy.calibrate import calibrate
from sordino.privacy.certify import certify
from sordino.privacy.ledger_lines import Missed, RoundCharged
from sordino.privacy.participation_caps import find_capped_rounds
from sordino.privacy.spending import certify_clients
from sordino.protocol import (
    ClientBudget,
    ClippedGlm,
    Constant,
    Data,
    FedAvg,
    Gaussian,
    Mean,
    NoisySgd,
    Protocol,
)
from tests.oracles.exact_laws import COARSE, Release, composed_epsilon, normal_mixture

SIZES = (50, 50, 50, 50, 2000)
WEIGHED = Mean(weights="records")
GLM = ClippedGlm(steps=5, clip=1.0, schedule=Constant(rate=0.5), weight_decay=0.1)
FEDAVG = FedAvg(steps=2, batch=10, clip=1.0, schedule=Constant(rate=0.25))


def plan(**changes: object) -> Protocol:
    found = {
        "clients": 5,
        "rounds": 30,
        "local": GLM,
        "noise": Gaussian(sigma=0.02),
        "aggregation": WEIGHED,
    }
    return Protocol(**{**found, **changes})  # type: ignore[arg-type]


def test_a_large_client_is_not_priced_as_if_it_had_few_records() -> None:
    shares = np.array(SIZES) / sum(SIZES)
    factor = 1 - 0.5 * 0.1
    moves = 2 * 0.5 * sum(factor**k for k in range(5)) / np.array(SIZES)  # 2 eta V / n, contracted
    exact = shares * moves * math.sqrt(30) / (0.02 * math.sqrt(np.square(shares).sum()))
    found = certify(plan(), "rounds", sizes=SIZES)
    assert found.mu == pytest.approx(exact.max(), rel=1e-9)
    careless = (
        shares.max() / shares.min() * exact.min()
    )  # the largest share with the fewest records
    assert found.mu < 0.05 * careless
    unit = certify(plan(), "rounds", "client", sizes=SIZES)
    assert unit.mu == pytest.approx(float(exact.max() * 2000), rel=1e-9)


def test_minibatches_of_unequal_clients_are_priced_client_by_client() -> None:
    shares = np.array(SIZES) / sum(SIZES)
    protocol = plan(local=FEDAVG, noise=Gaussian(sigma=0.5))
    norm = math.sqrt(np.square(shares).sum())
    shifts = np.array([[1.0, 0.5]])
    epsilons = []
    for share, size in ((shares[0], 50), (shares[4], 2000)):
        use = first_use(batch=10, records=size, steps=2)
        curve = rounds_curve(
            shifts * share / norm,
            np.array([30]),
            sigma=0.5,
            cohort=Cohort.everyone(clients=1),
            use=use,
        )
        epsilons.append(curve.epsilon(1e-5))
    found = certify(protocol, "rounds", sizes=SIZES).epsilon(1e-5)
    assert found <= max(epsilons) * (1 + 1e-9)
    assert certify(protocol, "server", sizes=SIZES).epsilon(1e-5) >= found


@given(
    st.lists(st.integers(10, 5000), min_size=2, max_size=30), st.integers(0, 28),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_every_client_is_covered_by_a_kind(sizes: list[int], colluders: int) -> None:
    colluders = min(colluders, len(sizes) - 1)
    shares = np.array(sizes) / sum(sizes)
    kinds = find_kinds_of_clients(sizes, shares, colluders)
    assert len(kinds) <= KINDS
    squares = sum_honest_squares(shares, colluders)
    for client, size in enumerate(sizes):
        others = np.sort(np.delete(shares, client))[::-1][colluders:]
        honest = shares[client] ** 2 + np.square(others).sum()
        assert squares[client] == pytest.approx(honest, rel=1e-9)
        visible = shares[client] / math.sqrt(honest)
        assert any(
            kind.records <= size
            and kind.visible >= visible * (1 - 1e-9)
            and kind.share >= shares[client]
            for kind in kinds
        )


@given(
    st.lists(st.sampled_from([20, 40, 200, 1000]), min_size=3, max_size=3),
    st.sampled_from([GLM, FEDAVG]),
    st.sampled_from(["rounds", "coalition:1", "final", "server"]),
    st.sampled_from(["client", "server", "both"]),
)
@settings(max_examples=40, deadline=None)
def test_client_by_client_is_never_above_the_worst_of_everything(sizes, rule, view, where) -> None:
    noise = Gaussian(sigma=0.5, where=where, server_sigma=0.1 if where == "both" else None)
    protocol = plan(clients=3, rounds=5, local=rule, noise=noise)
    found = certify(protocol, view, sizes=sizes).epsilon(1e-5)
    question = pose_question(protocol, view, "record", None, sizes)
    kinds = find_kinds_of_clients(sizes, np.array(sizes) / sum(sizes), question.colluders)
    careless = AttackedClients(
        share=max(kind.share for kind in kinds),
        visible=max(kind.visible for kind in kinds),
        records=min(sizes),
        most_records=max(sizes),
    )
    before = find_shared_bounds(replace(question, attacked=careless))
    assert found <= min(bound.curve.epsilon(1e-5) for bound in before) * (1 + 1e-9)
    assert found <= certify(protocol, view).epsilon(1e-5) * (1 + 1e-9)


def test_noise_for_unequal_clients_is_found_from_their_sizes() -> None:
    protocol = plan()
    blind = calibrate(protocol, "rounds", epsilon=2.0)
    known = calibrate(protocol, "rounds", epsilon=2.0, sizes=SIZES)
    assert known.sigma < 0.05 * blind.sigma
    assert 1.98 <= certify(known.protocol, "rounds", sizes=SIZES).epsilon(1e-5) <= 2.0


CAME = [RoundCharged(round=t, clients=tuple(range(5))) for t in range(30)]


def realised_mus(view: str, *, missed: int = 0, **changes: object) -> list[float | None]:
    """Returns what every client has spent, where client 3 fell silent in the first rounds."""
    events = [*CAME, *(Missed(round=t, clients=(3,), reasons=("gone",)) for t in range(missed))]
    found = certify_clients(plan(**changes), events, view, sizes=SIZES)
    return [found[client].mu for client in range(5)]


@pytest.mark.parametrize("colluders", [0, 2])
@pytest.mark.parametrize("missed", [0, 4])
@pytest.mark.parametrize(("client_sigma", "server_sigma"), [(0.02, 0.0), (0.0, 0.01), (0.02, 0.01)])
def test_what_a_client_has_spent_is_by_its_own_share_and_records(
    colluders, missed, client_sigma, server_sigma
) -> None:
    """Linear losses of a model whose records are all used: a sum of who came, under the noise of those who do not collude."""
    step = 2 * 0.5 * sum((1 - 0.5 * 0.1) ** k for k in range(5))
    noise = Gaussian(sigma=client_sigma)
    if client_sigma == 0:
        noise = Gaussian(sigma=server_sigma, where="server")
    elif server_sigma > 0:
        noise = Gaussian(sigma=client_sigma, where="both", server_sigma=server_sigma)
    view = f"coalition:{colluders}" if colluders else "rounds"
    found = realised_mus(view, missed=missed, noise=noise)
    for client in (0, 1, 4):
        energy = 0.0
        for t in range(30):
            came = [SIZES[one] for one in range(5) if one != 3 or t >= missed]
            # A client's move is its number of records times what one of them moves it by.
            others = sorted(came)
            others.remove(SIZES[client])
            honest = [SIZES[client], *others[: len(others) - colluders]]
            spread = client_sigma**2 * sum(size**2 for size in honest)
            energy += step**2 / (spread + server_sigma**2 * sum(came) ** 2)
        assert found[client] == pytest.approx(math.sqrt(energy), rel=1e-9)


def test_nobody_has_spent_more_than_the_plan_says() -> None:
    for weights in ("records", "equal"):
        for rule in (GLM, FEDAVG):
            protocol = plan(
                local=rule, aggregation=Mean(weights=weights), noise=Gaussian(sigma=0.3)
            )
            for view in ("server", "rounds", "coalition:1", "final"):
                spent = certify_clients(protocol, CAME, view, sizes=SIZES)
                epsilons = [spent[client].epsilon(1e-5) for client in range(5)]
                planned = certify(protocol, view, sizes=SIZES).epsilon(1e-5)
                assert max(epsilons) == pytest.approx(planned, rel=1e-9)
                # Where all records are used, and each counts as much as any, all spend the same.
                if rule is FEDAVG or weights == "equal":
                    assert min(epsilons) < 0.6 * planned


def test_a_poisson_batch_of_a_large_client_may_hold_all_that_it_has() -> None:
    rule = NoisySgd(steps=1, batch=10, clip=1.0, schedule=Constant(rate=0.1), sampling="poisson")
    sizes = (10, 11, 12, 13, 14, 15, 16, 17, 18, 40)  # more sizes than kinds
    protocol = plan(
        clients=10, local=rule, noise=Gaussian(multiplier=40.0), aggregation=Mean(), rounds=4
    )
    events = [RoundCharged(round=t, clients=tuple(range(10))) for t in range(4)]
    found = certify_clients(protocol, events, "server", "client", sizes=sizes)
    for client, size in enumerate(sizes):
        assert found[client].mu >= 2 * size / 40 * (1 - 1e-12)
    assert found[9].mu == pytest.approx(2 * 40 / 40)
    assert found[0].mu < 0.5 * found[9].mu


def test_budgets_end_every_client_by_its_own_records() -> None:
    """The client whose cap is the largest is not the one whose records are the fewest."""
    sizes = (300, 20, 5, 60, 1000)
    protocol = plan(
        rounds=300,
        local=FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.5)),
        noise=Gaussian(sigma=0.6),
        aggregation=Mean(),
        client=tuple(ClientBudget(id=client, epsilon=6.0) for client in range(5)),
        data=Data(name="digits", sizes=sizes),
    )
    found = certify(protocol)
    assert found.method == "client budgets"
    assert found.epsilon(1e-5) <= 6.0
    # As often as its cap lets it, the largest client's record pulls or does not.
    cap = find_capped_rounds(protocol, protocol.client[4], 1000)
    assert cap == 300
    drawn = normal_mixture([0.0, 1 / 0.6], [1 - 4 / 1000, 4 / 1000], COARSE)
    still = normal_mixture([0.0], [1.0], COARSE)
    release = Release(first=drawn, second=still, times=cap)
    assert composed_epsilon([release], 1e-5, points=5000) <= found.epsilon(1e-5)


def test_clients_that_have_left_with_their_budgets_hide_nobody() -> None:
    budgets = tuple(ClientBudget(id=client, epsilon=100.0) for client in (2, 3, 4))
    protocol = plan(client=budgets)
    left = [RoundCharged(round=t, clients=(0, 1)) for t in range(10, 30)]
    found = certify_clients(protocol, [*CAME[:10], *left], "rounds", sizes=SIZES)
    step = 2 * 0.5 * sum((1 - 0.5 * 0.1) ** k for k in range(5)) / 0.02
    energy = 10 * step**2 / sum(size**2 for size in SIZES) + 20 * step**2 / (50**2 + 50**2)
    assert found[0].mu == pytest.approx(math.sqrt(energy), rel=1e-9)

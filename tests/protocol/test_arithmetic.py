"""Whether uploads are integers where a file leaves it open, and what files of earlier versions mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino import Run, certify, resume, train
from sordino.flower.agreement import Agreement, describe_weakening
from sordino.flower.client_store import ClientStore
from sordino.privacy.own_noise import own_protocol
from sordino.privacy.participation_caps import all_caps
from sordino.protocol import (
    ClientBudget,
    Constant,
    Direct,
    DpSgd,
    FedAvg,
    Gaussian,
    Identity,
    InvalidValue,
    Laplace,
    Mean,
    Model,
    NoisySgd,
    Protocol,
    SecureAggregation,
    arithmetic,
    dumps,
    loads,
    loads_kept,
)
from sordino.protocol.arithmetic import state_integers
from sordino.protocol.combinations import INCOMPATIBLE
from sordino.protocol.protocol_features import INTEGERS
from tests.support import toy_dataset, toy_protocol

RULE = FedAvg(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1))
STEPS = NoisySgd(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1))
FRESH = Gaussian(sigma=0.5, secure=True)
# What cannot be integers, by the feature that refuses them.
CANNOT: dict[str, dict[str, Any]] = {
    '`where = "server"` or `"both"`': {"noise": replace(FRESH, where="server")},
    "`personalization`": {"personalization": Identity(pull=0.5)},
    "`[[client]]`": {"client": (ClientBudget(id=0, epsilon=8.0),)},
    "`noisy-sgd`": {"local": STEPS, "noise": Gaussian(multiplier=2.0, secure=True)},
}


def plan(**given: Any) -> Protocol:
    return Protocol(**{"clients": 4, "rounds": 3, "local": RULE, "noise": FRESH, **given})


def test_fresh_noise_is_of_integers_and_seeded_noise_of_floats() -> None:
    assert plan().release.integers
    assert plan(model=Model(name="mlp", parameters=9)).grid is not None
    assert plan(local=DpSgd(batch=4, clip=1.0), noise=Gaussian(multiplier=2.0, secure=True),
                aggregation=Mean(denominator="fixed")).release.integers  # fmt: skip
    assert not plan(noise=Gaussian(sigma=0.5)).release.integers
    assert not plan(noise=replace(FRESH, arithmetic="floats")).release.integers
    assert not plan(noise=replace(FRESH, sigma=0.0)).release.integers
    assert not plan(noise=Laplace(scale=0.5, secure=True)).release.integers


def test_what_cannot_be_integers_is_what_the_table_refuses() -> None:
    refused = {
        other.words
        for row in INCOMPATIBLE
        if INTEGERS in row.pair
        for other in row.pair
        if other is not INTEGERS
    }
    assert refused == set(CANNOT)


@pytest.mark.parametrize("feature", CANNOT)
def test_what_cannot_be_integers_keeps_floats(feature: str) -> None:
    given = CANNOT[feature]
    protocol = plan(**given)
    assert not protocol.release.integers
    assert protocol.grid is None
    assert loads_kept(dumps(state_integers(protocol))) == protocol
    with pytest.raises(InvalidValue, match=r"noise\.arithmetic"):
        replace(protocol, noise=replace(protocol.noise, arithmetic="integers"))


def test_a_file_round_trips_and_what_is_kept_says_how_noise_is_drawn() -> None:
    protocol = plan()
    assert loads(dumps(protocol)) == protocol
    assert "arithmetic" not in dumps(protocol)
    kept = dumps(state_integers(protocol))
    assert 'arithmetic = "integers"' in kept
    assert loads_kept(kept).release.integers
    # A file of an earlier version.
    assert not loads_kept(dumps(protocol)).release.integers
    sums = plan(channel=SecureAggregation(threshold=3), model=Model(name="mlp", parameters=9))
    assert loads_kept(dumps(sums)) == state_integers(sums) == sums


def test_the_price_of_fresh_noise_needs_no_number_of_parameters() -> None:
    lots = plan(
        local=DpSgd(batch=4, clip=1.0),
        noise=Gaussian(multiplier=2.0, secure=True),
        aggregation=Mean(denominator="fixed"),
    )
    for protocol in (plan(), lots):
        seeded = replace(protocol, noise=replace(protocol.noise, secure=False))
        sized = replace(protocol, model=Model(name="mlp", parameters=650))
        prices = [certify(one, "rounds").epsilon(1e-5) for one in (seeded, sized, protocol)]
        assert prices[0] < prices[1] <= prices[2] < prices[0] * (1 + 1e-3)


@pytest.mark.parametrize("own", [{}, {"mechanism": "gaussian", "noise": 2.0}])
def test_clients_with_budgets_are_priced_for_the_floats_that_they_draw(own) -> None:
    budget = ClientBudget(id=0, epsilon=8.0, **own)
    given = {"clients": 1, "client": (budget,)}
    fresh = plan(**given)
    seeded = plan(**given, noise=Gaussian(sigma=0.5))
    assert not own_protocol(fresh, budget).release.integers
    assert all_caps(fresh) == all_caps(seeded)
    found = [certify(one, "server").epsilon(1e-5) for one in (fresh, seeded)]
    assert found[0] == found[1]


def stop_at_once(*_: object) -> None:
    raise KeyboardInterrupt


def train_as_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains as a version did that knew no integers but those that a file asked for."""
    with monkeypatch.context() as before:
        before.setattr(arithmetic, "has_integer_form", lambda protocol: False)
        protocol = toy_protocol(rounds=2, noise=Gaussian(sigma=0.05, secure=True))
        with pytest.raises(KeyboardInterrupt):
            train(
                protocol, data=toy_dataset(), model="mlp", folder=folder, workers=1,
                on_round=stop_at_once,
            )  # fmt: skip


def test_runs_of_earlier_versions_keep_their_floats(tmp_path, monkeypatch) -> None:
    train_as_before(tmp_path / "old", monkeypatch)
    assert "arithmetic" not in (tmp_path / "old" / "protocol.toml").read_text()
    old = Run.load(tmp_path / "old")
    assert not old.protocol.release.integers
    assert old.guarantee("rounds").total_variation == 0
    again = resume(tmp_path / "old", data=toy_dataset(), workers=1)
    assert again.status == "finished"
    assert not again.protocol.release.integers
    protocol = toy_protocol(rounds=2, noise=Gaussian(sigma=0.05, secure=True))
    new = train(protocol, data=toy_dataset(), model="mlp", folder=tmp_path / "new", workers=1)
    assert 'arithmetic = "integers"' in (tmp_path / "new" / "protocol.toml").read_text()
    assert Run.load(new.folder).protocol.release.integers
    assert new.guarantee("rounds").total_variation > 0


def test_uploads_of_a_fresh_run_lie_on_its_grid(tmp_path) -> None:
    from sordino.federation.store.upload_archive import read_round

    protocol = toy_protocol(rounds=1, noise=Gaussian(sigma=0.05, secure=True))
    run = train(
        protocol, data=toy_dataset(), model="mlp", folder=tmp_path / "run", workers=1,
        keep_uploads=1,
    )  # fmt: skip
    grid = run.protocol.grid
    assert grid is not None
    uploads = read_round(run.folder, 0).uploads
    apart = (uploads[0] - uploads[1]) * grid.scale
    assert np.abs(apart - np.rint(apart)).max() < 1e-3


def test_a_client_agrees_to_integers_and_earlier_agreements_to_floats(tmp_path) -> None:
    mine = Agreement(client=0, records=9)
    protocol = plan(model=Model(name="mlp", parameters=9))
    assert ClientStore.create(tmp_path / "new", mine, protocol).agreed.release.integers
    requested = state_integers(protocol)
    agreed = ClientStore(tmp_path / "new").agreed
    assert describe_weakening(agreed, requested, mine) is None
    # As an earlier version wrote it.
    kept = tmp_path / "new" / "protocol.toml"
    kept.write_text(dumps(protocol))
    before = ClientStore(tmp_path / "new").agreed
    assert not before.release.integers
    assert "noise.arithmetic" in (describe_weakening(before, requested, mine) or "")
    assert describe_weakening(before, loads_kept(dumps(protocol)), mine) is None


def test_the_channel_decides_before_the_noise() -> None:
    sums = plan(channel=SecureAggregation(threshold=3), noise=Gaussian(sigma=0.5))
    assert sums.release.integers
    assert not replace(sums, channel=Direct()).release.integers


def test_the_grid_is_shown_where_a_federation_is_priced_agreed_to_and_trained(tmp_path) -> None:
    from sordino.report.agreement_facts import list_agreement_facts
    from sordino.report.phrasing import describe_noise
    from sordino.report.price_tables import notes

    protocol = plan(model=Model(name="mlp", parameters=650))
    grid = protocol.grid
    assert grid is not None
    # To the noise are 64 x 8^digits steps, nearly; rounding of 650 coordinates is 1e-4 of it.
    assert grid.sigma == pytest.approx(0.5)
    assert grid.in_words.startswith(f"integers, {grid.scale:,.6g} steps")
    assert grid.in_words in describe_noise(protocol)
    assert any(grid.in_words in line for line in notes(protocol, [certify(protocol)], 1e-5))
    assert "integers" not in describe_noise(plan())
    own = Agreement(client=0, records=9, parameters=650)
    open_model = plan(model=Model(name="mlp"))
    store = ClientStore.create(tmp_path / "client", own, open_model)
    assert grid.in_words in dict(list_agreement_facts(store))["Noise"]
    run = train(
        toy_protocol(rounds=1, noise=Gaussian(sigma=0.05, secure=True)),
        data=toy_dataset(), model="mlp", folder=tmp_path / "run", workers=1,
    )  # fmt: skip
    made = run.protocol.grid
    assert made is not None
    assert run.facts["grid"] == {
        "scale": made.scale, "digits": made.digits, "bits": 64, "contributions": 1,
    }  # fmt: skip
    assert made.in_words in describe_noise(run.protocol)

"""Training under budgets: it stops before the round that would pass, clients leave when theirs is spent, models stay in their ball."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sordino import (
    Assumptions,
    Budget,
    BudgetExceeded,
    ByColumn,
    ClientBudget,
    ClippedGlm,
    Constant,
    Data,
    Dataset,
    FedAvg,
    Gaussian,
    Mean,
    Poisson,
    Privacy,
    Run,
    StageWise,
    UserError,
    certify,
    realised,
    resume,
    train,
)
from sordino.federation.evaluation import evaluate_run
from sordino.federation.setup import prepare
from sordino.federation.store.run_folder import RunFolder
from sordino.privacy.guarantee import round_up
from sordino.privacy.ledger_lines import RoundCharged
from sordino.privacy.participation_caps import find_capped_rounds
from sordino.report.price_tables import privacy_lines
from tests.engines.test_resume import Interrupt, interrupted
from tests.support import toy_dataset, toy_protocol

LOCAL = FedAvg(steps=1, batch=24, clip=1.0, schedule=Constant(rate=0.1))


def budgeted(epsilon: float, **changes):
    return toy_protocol(
        rounds=40,
        local=LOCAL,
        noise=Gaussian(sigma=0.5),
        privacy=Privacy(budget=Budget(epsilon=epsilon)),
        **changes,
    )


def rounds_charged(run: Run) -> list[RoundCharged]:
    return [event for event in run.ledger if isinstance(event, RoundCharged)]


def test_training_stops_before_the_round_that_would_pass_the_budget(tmp_path) -> None:
    run = train(budgeted(5.0), data=toy_dataset(), model="logistic", folder=tmp_path / "a")
    done = len(rounds_charged(run))
    assert run.status == "budget"
    assert certify(run.protocol, rounds=range(done)).epsilon(1e-5) <= 5.0
    assert certify(run.protocol, rounds=range(done + 1)).epsilon(1e-5) > 5.0
    assert len(run.metrics["round"]) == done
    assert run.state is not None
    with pytest.raises(UserError, match="nothing left"):
        resume(tmp_path / "a", data=toy_dataset())


def test_a_budget_that_affords_nothing_is_refused_and_nothing_is_written(tmp_path) -> None:
    with pytest.raises(BudgetExceeded, match="after 0 rounds"):
        train(budgeted(0.01), data=toy_dataset(), model="logistic", folder=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_budget_that_affords_everything_changes_nothing(tmp_path) -> None:
    run = train(budgeted(1e4), data=toy_dataset(), model="logistic", folder=tmp_path / "a")
    assert run.status == "finished"


def test_fresh_noise_drawn_again_uses_the_budget_up_earlier(tmp_path) -> None:
    protocol = replace(budgeted(5.0), noise=Gaussian(sigma=0.5, secure=True))
    whole = train(protocol, data=toy_dataset(), model="mlp", folder=tmp_path / "whole")
    interrupted(tmp_path / "a", after=3, protocol=protocol)
    run = resume(tmp_path / "a", data=toy_dataset())
    assert run.status == "budget"
    assert len(rounds_charged(run)) == len(rounds_charged(whole))
    assert len({event.round for event in rounds_charged(run)}) == len(rounds_charged(whole)) - 1


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("moment", ["publish_last_scores", "sync_metrics", "note"])
def test_killed_when_its_budget_has_ended_it_a_run_still_ends(
    tmp_path, monkeypatch, secure, moment
) -> None:
    protocol = replace(budgeted(5.0), noise=Gaussian(sigma=0.5, secure=secure))
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, moment, stop_here)
        with pytest.raises(Interrupt):
            train(protocol, data=toy_dataset(), model="mlp", folder=tmp_path / "a")
    assert RunFolder(tmp_path / "a").facts()["status"] == "unfinished"
    run = resume(tmp_path / "a", data=toy_dataset())
    assert run.status == "budget"
    assert run.state is not None
    assert certify(protocol, rounds=run.rounds_paid).epsilon(1e-5) <= 5.0
    assert not [event for event in rounds_charged(run) if event.attempt > 0]


def test_a_seal_that_was_cut_short_when_the_budget_was_spent_is_no_charge(tmp_path) -> None:
    protocol = replace(budgeted(5.0), noise=Gaussian(sigma=0.5, secure=True))
    whole = train(protocol, data=toy_dataset(), model="mlp", folder=tmp_path / "a")
    ledger = tmp_path / "a" / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-9])
    RunFolder(tmp_path / "a").note(status="unfinished")
    run = resume(tmp_path / "a", data=toy_dataset())
    assert run.status == "budget"
    assert rounds_charged(run) == rounds_charged(whole)


def test_killed_before_the_checkpoint_of_the_last_round_it_affords_a_run_ends_without_it(
    tmp_path,
) -> None:
    protocol = replace(budgeted(5.0), noise=Gaussian(sigma=0.5, secure=True))
    whole = train(protocol, data=toy_dataset(), model="mlp", folder=tmp_path / "whole")
    rounds = len(rounds_charged(whole))
    interrupted(tmp_path / "a", after=rounds, protocol=protocol)
    run = resume(tmp_path / "a", data=toy_dataset())
    assert run.status == "budget"
    assert len(run.metrics["round"]) == rounds - 1
    assert len(rounds_charged(run)) == rounds


def stop_here(*_: object, **__: object) -> None:
    raise Interrupt


def test_a_client_whose_own_budget_is_spent_takes_part_no_more(tmp_path) -> None:
    protocol = toy_protocol(
        rounds=30, local=LOCAL, noise=Gaussian(sigma=0.5), participation=Poisson(rate=0.7),
        client=(ClientBudget(id=1, epsilon=3.0), ClientBudget(id=3, epsilon=6.0)),
    )  # fmt: skip
    run = train(
        protocol, data=toy_dataset(), model="mlp", folder=tmp_path / "a", engine="torch", workers=1
    )
    taken = {
        client: sum(client in event.clients for event in rounds_charged(run)) for client in range(5)
    }
    caps = {budget.id: find_capped_rounds(run.protocol, budget, 24) for budget in protocol.client}
    assert 0 < caps[1] < caps[3] < 30
    assert taken[1] == caps[1]
    assert taken[3] == caps[3]
    assert min(taken[client] for client in (0, 2, 4)) > taken[3]
    spent = realised(run.protocol, run.ledger)
    assert spent[1].epsilon(1e-5) <= 3.0
    assert spent[3].epsilon(1e-5) <= 6.0
    interrupted(tmp_path / "b", after=11, protocol=protocol)
    resume(tmp_path / "b", data=toy_dataset())
    assert (tmp_path / "b" / "ledger.jsonl").read_bytes() == (
        tmp_path / "a" / "ledger.jsonl"
    ).read_bytes()


def test_fresh_noise_drawn_again_counts_towards_a_clients_cap(tmp_path) -> None:
    protocol = toy_protocol(
        rounds=30,
        local=LOCAL,
        noise=Gaussian(sigma=0.5, secure=True),
        client=(ClientBudget(id=1, epsilon=5.0),),
    )
    interrupted(tmp_path / "a", after=3, protocol=protocol)
    run = resume(tmp_path / "a", data=toy_dataset())
    taken = [event for event in rounds_charged(run) if 1 in event.clients]
    assert len(taken) == find_capped_rounds(run.protocol, protocol.client[0], 24)
    assert [event.round for event in taken].count(2) == 2
    assert realised(run.protocol, run.ledger)[1].epsilon(1e-5) <= 5.0


def test_rounds_run_again_cannot_pass_a_clients_budget_under_falling_rates(tmp_path) -> None:
    local = FedAvg(steps=2, batch=24, clip=1.0, schedule=StageWise(rate=0.25))
    protocol = toy_protocol(
        rounds=30,
        local=local,
        noise=Gaussian(sigma=1.0, secure=True),
        client=(ClientBudget(id=1, epsilon=6.0),),
    )
    interrupted(tmp_path / "a", after=1, protocol=protocol)
    run = resume(tmp_path / "a", data=toy_dataset())
    assert [event.round for event in rounds_charged(run)].count(0) == 2
    assert realised(run.protocol, run.ledger)[1].epsilon(1e-5) <= 6.0


def test_budgets_count_for_clients_of_unequal_sizes(tmp_path) -> None:
    data = toy_dataset(records=120)
    ward = np.array(["a"] * 60 + ["b"] * 40 + ["c"] * 20)
    wards = replace(data, columns={"ward": ward})
    protocol = toy_protocol(
        clients=3, rounds=20, local=LOCAL, noise=Gaussian(sigma=0.1), data=Data(name="w", partition=ByColumn(column="ward")),
        privacy=Privacy(budget=Budget(epsilon=8.0, view="rounds")), aggregation=Mean(weights="records"),
    )  # fmt: skip
    protocol = replace(protocol, local=replace(LOCAL, batch=10))
    run = train(protocol, data=wards, model="logistic", folder=tmp_path / "a")
    assert run.status == "budget"
    assert run.state is not None
    assert run.sizes == (60, 40, 20)
    shown = certify(run.protocol, "rounds", rounds=run.rounds_paid, sizes=run.sizes).epsilon(1e-5)
    assert shown <= 8.0
    assert f"epsilon = {round_up(shown)}" in privacy_lines(run)[0]
    # The client of half of all records has half of the mean, in which the noise of all three is.
    shares = np.array([60, 40, 20]) / 120
    alone = certify(run.protocol, "server", "client", rounds=run.rounds_paid).mu
    found = realised(run.protocol, run.ledger, "rounds", "client", sizes=run.sizes)
    assert found[0].mu == pytest.approx(alone * shares[0] / np.linalg.norm(shares), rel=1e-9)


def test_every_released_model_stays_in_the_ball(tmp_path) -> None:
    protocol = toy_protocol(
        rounds=6, noise=Gaussian(sigma=5.0), assumptions=Assumptions(diameter=0.5)
    )
    run = train(protocol, data=toy_dataset(), model="mlp", folder=tmp_path / "a")
    setup = prepare(protocol, data=toy_dataset(), model="mlp")
    assert run.state is not None
    final = np.concatenate(
        [
            run.state[name].numpy().ravel().astype(np.float64)
            for name, _ in setup.module.named_parameters()
        ]
    )
    assert np.linalg.norm(final - setup.initial_weights()) <= 0.25
    free = train(
        replace(protocol, assumptions=Assumptions()),
        data=toy_dataset(),
        model="mlp",
        folder=tmp_path / "b",
    )
    assert free.state is not None
    assert any(not torch.equal(free.state[name], run.state[name]) for name in run.state)


def binary_dataset() -> Dataset:
    data = toy_dataset(classes=2, records=200)
    x = data.x_train * 50  # far outside the ball of the features
    return Dataset(
        name="two",
        x_train=x,
        y_train=data.y_train,
        x_test=x[:40],
        y_test=data.y_train[:40],
        classes=("no", "yes"),
    )


GLM = ClippedGlm(steps=4, clip=0.3, schedule=Constant(rate=1.0), weight_decay=0.1)


@pytest.mark.parametrize("rule", [GLM, replace(GLM, batches="cyclic", batch=50, clip=5.0)])
def test_clipped_logistic_regression_is_the_one_that_was_priced(tmp_path, rule) -> None:
    protocol = toy_protocol(rounds=1, clients=1, local=rule, noise=Gaussian(sigma=0.0))
    data = binary_dataset()
    run = train(protocol, data=data, model="logistic", folder=tmp_path / "a")
    setup = prepare(protocol, data=data, model="logistic")
    x = np.hstack([data.x_train[setup.parts[0]], np.ones((200, 1))]).astype(np.float64)
    x *= np.minimum(1.0, 1.0 / np.linalg.norm(x, axis=1, keepdims=True))
    y, w, size = data.y_train[setup.parts[0]], np.zeros(7), rule.batch or 200
    for k in range(4):
        rows = slice((k * size) % 200, (k * size) % 200 + size)
        gradients = (1 / (1 + np.exp(-x[rows] @ w)) - y[rows])[:, None] * x[rows]
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        w = w - ((gradients * np.minimum(1.0, rule.clip / norms)).mean(axis=0) + 0.1 * w)
    assert run.state is not None
    assert run.state["weight"].numpy() == pytest.approx(w, abs=2e-5)
    assert (run.metrics["clip_fraction"][0] > 0) == (rule.clip == 0.3)


def test_clipped_logistic_regression_learns_and_refuses_what_breaks_its_conditions(
    tmp_path,
) -> None:
    protocol = toy_protocol(rounds=15, local=GLM, noise=Gaussian(sigma=0.001))
    run = train(protocol, data=binary_dataset(), model="logistic", folder=tmp_path / "a")
    assert run.metrics["accuracy"][-1] > 0.9
    assert run.protocol.data is not None
    assert run.protocol.data.records == 40
    assert certify(run.protocol, "final").method == "last iterate"
    assert evaluate_run(run, binary_dataset())["accuracy"] == pytest.approx(
        run.metrics["accuracy"][-1]
    )
    with pytest.raises(UserError, match="two classes"):
        train(protocol, data=toy_dataset(), model="logistic", folder=tmp_path / "b")
    with pytest.raises(UserError, match="logistic"):
        train(protocol, data=binary_dataset(), model="mlp", folder=tmp_path / "b")
    assert not (tmp_path / "b").exists()

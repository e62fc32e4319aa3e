"""The torch engine: one result whatever the workers, the order or the start method; what is recorded; what ends a run."""

import numpy as np
import pytest
import torch
from torch import nn

from sordino import (
    Constant,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    Mean,
    Median,
    Poisson,
    Run,
    StageWise,
    UserError,
    train,
)
from sordino.engines import run_lifecycle
from sordino.engines.torch_engine import TorchEngine
from sordino.federation.attendance import draw_participants
from sordino.federation.client import ClientWork
from sordino.federation.rules.local_training import Assignment
from sordino.federation.setup import prepare
from sordino.privacy.ledger_lines import RoundCharged
from tests.support import toy_dataset, toy_protocol, uploads_of, without_seconds


class WithDropout(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


def trained(tmp_path, name: str, protocol, *, model="mlp", **options) -> Run:
    return train(protocol, data=toy_dataset(), model=model, folder=tmp_path / name, **options)


def same(a: Run, b: Run) -> bool:
    assert a.state is not None
    assert b.state is not None
    return all(torch.equal(a.state[name], b.state[name]) for name in a.state) and without_seconds(
        a.metrics
    ) == without_seconds(b.metrics)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"participation": Poisson(rate=0.5)},
        {"participation": FixedSize(size=2), "aggregation": Median()},
        {"aggregation": Mean(mixing=0.5, weights="records"), "noise": Gaussian(sigma=0.0)},
        {"local": FedProx(steps=3, batch=6, clip=1.0, schedule=StageWise(rate=0.3), proximal=0.5)},
    ],
)
def test_the_result_does_not_depend_on_the_number_of_workers(tmp_path, changes) -> None:
    runs = [
        trained(tmp_path, f"w{workers}", toy_protocol(**changes), workers=workers)
        for workers in (1, 2, 3)
    ]
    assert same(runs[0], runs[1])
    assert same(runs[0], runs[2])
    assert runs[0].ledger == runs[1].ledger == runs[2].ledger


def test_layers_that_draw_are_repeated_too_and_the_callers_generator_is_left_alone(
    tmp_path,
) -> None:
    torch.manual_seed(99)
    expected = torch.rand(3)
    torch.manual_seed(99)
    threads = torch.get_num_threads()
    runs = [
        trained(tmp_path, f"w{workers}", toy_protocol(), model=WithDropout, workers=workers)
        for workers in (1, 2)
    ]
    assert same(*runs)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


@pytest.mark.slow
def test_forked_and_spawned_workers_give_the_same_uploads() -> None:
    setup = prepare(toy_protocol(), data=toy_dataset(), model="mlp")
    weights = setup.initial_weights()
    answers = []
    for method in ("fork", "spawn"):
        with TorchEngine(setup, workers=2, start_method=method) as engine:
            answers.append(
                [
                    upload.vector
                    for upload in uploads_of(
                        engine, round=1, weights=weights, participants=np.arange(5)
                    )
                ]
            )
            assert engine.score(weights).count == 40
    for a, b in zip(*answers, strict=True):
        assert np.array_equal(a, b)


def test_uploads_come_in_the_order_of_clients_however_they_finish() -> None:
    setup = prepare(toy_protocol(clients=20), data=toy_dataset(records=400), model="mlp")
    with TorchEngine(setup, workers=3) as engine:
        chosen = np.array([19, 3, 7, 0, 12, 5])
        assert [
            u.client
            for u in uploads_of(
                engine, round=0, weights=setup.initial_weights(), participants=chosen
            )
        ] == chosen.tolist()


class Deaf(nn.Module):
    """A model whose loss does not depend on its weights: what it uploads is noise alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :3] + 0 * self.weight.sum()


def test_noise_is_independent_across_clients_and_rounds() -> None:
    setup = prepare(toy_protocol(noise=Gaussian(sigma=2.0)), data=toy_dataset(), model=Deaf)
    weights = setup.initial_weights()
    work = ClientWork(setup)
    noises = np.array(
        [
            work.upload(client=c, round_index=t, weights=weights).vector - weights
            for c in range(5)
            for t in range(4)
        ]
    )
    correlations = np.corrcoef(noises) - np.eye(20)
    assert np.abs(correlations).max() < 6 / np.sqrt(3000)
    assert noises.std() == pytest.approx(2.0, rel=0.03)
    again = work.upload(client=2, round_index=1, weights=weights).vector - weights
    assert np.array_equal(again, noises[9])


def test_minibatches_are_fresh_in_every_step_round_and_client() -> None:
    setup = prepare(
        toy_protocol(local=FedAvg(steps=40, batch=6, clip=1.0, schedule=Constant(rate=0.1))),
        data=toy_dataset(),
        model="mlp",
    )
    work = ClientWork(setup)
    start = setup.initial_weights()
    rows = {
        (c, t): [
            x.numpy().tobytes()
            for x, _ in work.draw_batches(Assignment(client=c, round_index=t, start=start))
        ]
        for c in range(2)
        for t in range(25)
    }
    steps = [batch for batches in rows.values() for batch in batches]
    assert len(set(steps)) > 0.99 * len(steps)
    part = setup.parts[0]
    target = setup.train.x[part[0]].numpy().tobytes()
    hits = sum(target in batch for t in range(25) for batch in rows[0, t])
    assert abs(hits - 1000 * 6 / 24) < 6 * np.sqrt(1000 * 0.25 * 0.75)


def test_draws_are_fresh_where_the_noise_is_and_repeat_where_it_does() -> None:
    for secure in (False, True):
        protocol = toy_protocol(
            noise=Gaussian(sigma=0.1, secure=secure), participation=Poisson(rate=0.5), clients=20
        )
        setups = [prepare(protocol, data=toy_dataset(records=400), model="mlp") for _ in range(2)]
        drawn = [
            [draw_participants(protocol, round_index=t, key=s.draw_key).tolist() for t in range(10)]
            for s in setups
        ]
        assert (drawn[0] == drawn[1]) == (not secure)
        assert setups[0].parts[3].tolist() == setups[1].parts[3].tolist()


def test_seeds_decide_everything_and_secure_noise_never_repeats(tmp_path) -> None:
    assert same(trained(tmp_path, "a", toy_protocol()), trained(tmp_path, "b", toy_protocol()))
    assert not same(
        trained(tmp_path, "c", toy_protocol(seed=4)), trained(tmp_path, "d", toy_protocol())
    )
    secure = [
        trained(tmp_path, name, toy_protocol(noise=Gaussian(sigma=0.05, secure=True)))
        for name in "ef"
    ]
    assert not same(*secure)
    assert "research" in Run.load(tmp_path / "a").facts["noise"]
    assert "operating system" in secure[0].facts["noise"]


def test_a_run_without_a_seed_draws_one_and_keeps_it(tmp_path) -> None:
    runs = [trained(tmp_path, name, toy_protocol(seed=None)) for name in "ab"]
    assert runs[0].protocol.seed != runs[1].protocol.seed
    assert same(runs[0], trained(tmp_path, "c", toy_protocol(seed=runs[0].protocol.seed)))


def test_what_is_recorded_is_what_happened(tmp_path) -> None:
    run = trained(
        tmp_path, "a", toy_protocol(participation=Poisson(rate=0.4), rounds=12), evaluate_every=5
    )
    charged = [event for event in run.ledger if isinstance(event, RoundCharged)]
    assert [event.round for event in charged] == list(range(12))
    assert [len(event.clients) for event in charged] == run.metrics["participants"].tolist()
    assert np.flatnonzero(np.isfinite(run.metrics["accuracy"])).tolist() == [4, 9, 11]
    bytes_each = 4 * run.facts["parameters"]
    assert (run.metrics["bytes_up"] == bytes_each * run.metrics["participants"]).all()
    empty = run.metrics["participants"] == 0
    assert np.isnan(run.metrics["clip_fraction"][empty]).all()
    assert (
        (run.metrics["clip_fraction"][~empty] >= 0) & (run.metrics["clip_fraction"][~empty] <= 1)
    ).all()


def test_the_clip_fraction_counts_clipped_steps(tmp_path) -> None:
    def fraction(clip: float) -> float:
        local = FedAvg(steps=3, batch=6, clip=clip, schedule=Constant(rate=0.01))
        return float(
            trained(tmp_path, f"clip{clip}", toy_protocol(local=local))
            .metrics["clip_fraction"]
            .mean()
        )

    assert fraction(1e-6) == 1.0
    assert fraction(1e6) == 0.0


def test_the_signal_to_noise_ratio_estimates_the_true_one(tmp_path) -> None:
    quiet = trained(tmp_path, "quiet", toy_protocol(rounds=1, noise=Gaussian(sigma=0.0)))
    noisy = trained(tmp_path, "noisy", toy_protocol(rounds=1, noise=Gaussian(sigma=0.01)))
    setup = prepare(toy_protocol(), data=toy_dataset(), model="mlp")
    assert quiet.state is not None
    final = np.concatenate(
        [quiet.state[name].numpy().ravel() for name, _ in setup.module.named_parameters()]
    )
    true = np.linalg.norm(final - setup.initial_weights()) / (0.01 * np.sqrt(final.size / 5))
    assert noisy.metrics["signal_to_noise"][0] == pytest.approx(true, rel=0.25)
    assert np.isinf(quiet.metrics["signal_to_noise"][0])


def test_a_model_that_is_no_longer_finite_ends_the_run_as_diverged(tmp_path) -> None:
    local = FedProx(steps=40, batch=6, clip=1.0, schedule=Constant(rate=30.0), proximal=1e3)
    run = trained(tmp_path, "a", toy_protocol(local=local, rounds=20))
    assert run.status == "diverged"
    assert run.metrics["status"][-1] == "diverged"
    assert len(run.metrics["round"]) < 20
    assert all(torch.isfinite(tensor).all() for tensor in run.model.state_dict().values())


def test_gradients_that_are_not_finite_are_counted_and_do_no_harm(tmp_path) -> None:
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # The gradient of sqrt at 0 is infinite; the first feature of one record in four is set to hit it.
            return self.linear(x) + torch.sqrt(
                torch.relu(self.linear.bias.sum() * 0 + x[:, :1] - x[:, :1].max())
                + 0 * self.linear.weight.sum()
            )

    run = trained(tmp_path, "a", toy_protocol(), model=Fragile)
    assert run.metrics["nonfinite_steps"].sum() > 0
    assert run.status == "finished"


def test_training_learns_something(tmp_path) -> None:
    run = trained(
        tmp_path, "a", toy_protocol(rounds=30, noise=Gaussian(sigma=0.01)), model="logistic"
    )
    assert run.metrics["accuracy"][-1] > 0.85
    assert run.metrics["loss"][-1] < run.metrics["loss"][0]


def test_the_users_module_is_copied_and_its_weights_are_the_start(tmp_path) -> None:
    module = nn.Linear(6, 3)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    local = FedAvg(steps=1, batch=6, clip=1e-12, schedule=Constant(rate=1e-12))
    run = trained(tmp_path, "a", toy_protocol(local=local, noise=Gaussian(sigma=0.0)), model=module)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
        assert torch.allclose(run.model.state_dict()[name], before[name])
    with pytest.raises(UserError, match="handed over in Python"):
        _ = Run.load(run.folder).model
    assert torch.equal(Run.load(run.folder, model=module).model.weight, run.model.weight)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers"),
        ({"device": "tpu"}, "device"),
        ({"device": "cuda"}, "cuda"),
        ({"evaluate_every": -1}, "evaluate-every"),
        ({"model": "lenet6"}, "lenet5"),
        ({"model": nn.Linear(5, 3)}, "shape"),
        ({"model": nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))}, "GroupNorm"),
        (
            {
                "protocol": toy_protocol(
                    local=FedAvg(steps=1, batch=25, clip=1.0, schedule=Constant(rate=1))
                )
            },
            "client 0 has 24 records",
        ),
        ({"data": "no-such-data"}, "no-such-data"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path, options, words) -> None:
    given = {"protocol": toy_protocol(), "data": toy_dataset(), "model": "mlp", **options}
    with pytest.raises(UserError, match=words):
        train(given.pop("protocol"), folder=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_an_interruption_before_a_run_begins_leaves_what_was_in_the_folder(
    tmp_path, monkeypatch
) -> None:
    """What is not the run's own is never discarded, whenever the interruption comes."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("three years")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_lifecycle, "create_folder", interrupted)
    with pytest.raises((UserError, KeyboardInterrupt)):
        trained(tmp_path, "mine", toy_protocol())
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "three years"
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, "new", toy_protocol())
    assert not (tmp_path / "new").exists()


def test_a_finished_run_whose_ledger_was_shortened_is_not_read(tmp_path) -> None:
    run = trained(tmp_path, "a", toy_protocol())
    path = run.folder / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    with pytest.raises(UserError, match="lacks round 2"):
        Run.load(run.folder)

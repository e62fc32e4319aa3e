"""The rule noisy-sgd as a client runs it: noise at the scale that is priced, batches as priced, Algorithm 2 step by step."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional

from sordino import Constant, Data, Decay, Gaussian, Iid, NoisySgd
from sordino.federation.client import ClientWork
from sordino.federation.processors import single_threaded
from sordino.federation.rules.local_training import Assignment
from sordino.federation.rules.optimizers import Optimizer
from sordino.federation.setup import prepare
from sordino.models import build_model
from tests.support import toy_dataset, toy_protocol


@pytest.fixture(autouse=True)
def _one_thread():
    with single_threaded():
        yield


PARAMETERS = 6 * 32 + 32 + 32 * 3 + 3


def work(multiplier=0.0, records=24, rate=0.5, **changes) -> ClientWork:
    rule = NoisySgd(
        **{"steps": 1, "batch": 6, "clip": 0.6, "schedule": Constant(rate=rate), **changes}
    )
    protocol = toy_protocol(
        local=rule,
        noise=Gaussian(multiplier=multiplier),
        data=Data(name="toy", partition=Iid(), records=records),
    )
    return ClientWork(prepare(protocol, data=toy_dataset(), model="mlp"))


def task_of(client: int, round_index: int) -> Assignment:
    """What a client is asked to do, as far as its draws depend on it."""
    return Assignment(client=client, round_index=round_index, start=start())


def start() -> np.ndarray:
    return work()._initial


def noise_of(sampling: str, multiplier: float, clip: float, rounds: int = 12) -> np.ndarray:
    """Noise on the sum of a single step, which is what noise changes in an upload: start - upload = rate (sum + noise) / B."""
    options = {"sampling": sampling, "clip": clip, "rate": 0.5, "batch": 6}
    silent, noisy = work(0.0, **options), work(multiplier, **options)
    calls = [{"client": t % 3, "round_index": t, "weights": start()} for t in range(rounds)]
    pairs = [(silent.upload(**call).vector, noisy.upload(**call).vector) for call in calls]
    return np.concatenate(
        [(without - noised).astype(np.float64) * 6 / 0.5 for without, noised in pairs]
    )


@pytest.mark.parametrize("clip", [0.6, 2.5])
@pytest.mark.parametrize(("sampling", "units"), [("fixed", 2.0), ("poisson", 1.0)])
def test_noise_has_the_scale_that_is_priced_and_no_other(sampling, units, clip) -> None:
    """multiplier x 2C for a fixed size, multiplier x C for Poisson, on the sum; two thirds or three halves of it are noticed."""
    found, std = noise_of(sampling, 1.7, clip), 1.7 * units * clip
    assert stats.kstest(found, "norm", args=(0, std)).pvalue > 0.01
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(found, "norm", args=(0, std * wrong)).pvalue < 1e-9


def test_every_client_round_and_step_has_noise_of_its_own() -> None:
    noisy = work(
        1.0, clip=1e-6, steps=3, rate=1e6, batch=1
    )  # gradients are nothing beside numbers of order 1
    silent = work(0.0, clip=1e-6, steps=3, rate=1e6, batch=1)
    calls = [
        {"client": c, "round_index": t, "weights": start()} for c in range(2) for t in range(2)
    ]
    rows = [noisy.upload(**call).vector - silent.upload(**call).vector for call in calls]
    # Three steps' noises of std 2e-6 x 1e6 add up in squares only if they are independent.
    assert np.std(np.concatenate(rows)) == pytest.approx(2 * np.sqrt(3), rel=0.06)
    correlations = np.corrcoef(rows)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(PARAMETERS)


@pytest.mark.parametrize(("sampling", "batch"), [("fixed", 6), ("poisson", 6)])
def test_batches_hold_each_record_as_often_as_is_priced(sampling, batch) -> None:
    subject = work(sampling=sampling, steps=400, batch=batch)
    part = subject.setup.parts[1]
    records = subject.setup.train.x[part]
    counts, sizes = np.zeros(24), []
    for inputs, _ in subject.draw_examples(task_of(1, 0)):
        matches = (inputs[:, None, :] == records[None]).all(dim=2)
        assert bool((matches.sum(dim=1) == 1).all())  # records of this client
        hits = matches.any(dim=0).numpy()
        assert hits.sum() == len(inputs)  # distinct ones
        counts += hits
        sizes.append(len(inputs))
    assert stats.chisquare(counts).pvalue > 1e-4
    assert np.mean(sizes) == pytest.approx(6, abs=4 * np.sqrt(24 * 0.25 * 0.75 / 400))
    if sampling == "fixed":
        assert set(sizes) == {6}
    else:
        bins = np.bincount(sizes, minlength=25)
        inner = [bins[:4].sum(), *bins[4:9], bins[9:].sum()]
        law = stats.binom.pmf(np.arange(25), 24, 0.25)
        expected = 400 * np.array([law[:4].sum(), *law[4:9], law[9:].sum()])
        assert stats.chisquare(inner, expected * np.sum(inner) / expected.sum()).pvalue > 1e-4


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adagrad"])
def test_without_noise_it_is_algorithm_2_with_torchs_optimizer(optimizer) -> None:
    """Two rounds; moments go on, rates fall, weight decay is on, B divides. Batches are all records, so that no draw is needed."""
    schedule = Decay(rate=0.05, factor=0.5, every=3)
    subject = work(
        steps=4, batch=24, optimizer=optimizer, weight_decay=0.1, clip=0.3, schedule=schedule
    )
    net = build_model("mlp", (6,), 3, seed=0).double()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(start()).double(), net.parameters())
    made = {
        "sgd": lambda p: torch.optim.SGD(p, lr=1.0, weight_decay=0.1),
        "momentum": lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, weight_decay=0.1),
        "adam": lambda p: torch.optim.Adam(p, lr=1.0, weight_decay=0.1),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=1.0, weight_decay=0.1),
    }[optimizer](net.parameters())
    part = subject.setup.parts[2]
    x, y = subject.setup.train.x[part].double(), subject.setup.train.y[part]
    weights, kept = start(), {}
    for t in range(2):
        answer = subject.upload(client=2, round_index=t, weights=weights, kept=kept)
        weights, kept = answer.vector, answer.kept
        for k in range(4):
            made.param_groups[0]["lr"] = 0.05 * 0.5 ** ((4 * t + k) // 3)
            made.zero_grad()
            for i in range(24):
                grads = torch.autograd.grad(
                    functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1]),
                    list(net.parameters()),
                )
                norm = torch.sqrt(sum((g**2).sum() for g in grads))
                for p, g in zip(net.parameters(), grads, strict=True):
                    p.grad = (p.grad if p.grad is not None else 0) + g / max(
                        1.0, float(norm) / 0.3
                    ) / 24
            made.step()
    expected = torch.cat([p.detach().reshape(-1) for p in net.parameters()]).numpy()
    assert np.abs(weights - expected).max() < 1e-5
    assert (
        set(kept)
        == {
            "sgd": set(),
            "momentum": {"first", "steps"},
            "adam": {"first", "second", "steps"},
            "adagrad": {"second", "steps"},
        }[optimizer]
    )


@pytest.mark.parametrize("name", ["momentum", "adam", "adagrad"])
def test_an_optimizer_goes_on_from_its_state_bit_for_bit(name) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(50, generator=generator) for _ in range(6)]
    whole, weights = Optimizer(name, torch.zeros(50)), torch.zeros(50)
    for gradient in gradients:
        whole.step(weights, gradient.clone(), rate=0.1)
    again, state = torch.zeros(50), None
    for gradient in gradients:
        optimizer = Optimizer(name, torch.zeros(50), state)
        optimizer.step(again, gradient.clone(), rate=0.1)
        state = optimizer.state()
    assert torch.equal(weights, again)


def test_an_empty_poisson_batch_is_noise_alone() -> None:
    quiet = work(0.0, sampling="poisson", batch=1, steps=1, records=24)
    loads = [len(next(quiet.draw_examples(task_of(0, t)))[1]) for t in range(40)]
    empty = loads.index(0)
    upload = quiet.upload(client=0, round_index=empty, weights=start())
    assert np.array_equal(upload.vector, start())
    assert upload.steps.clips == 0

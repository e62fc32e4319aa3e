"""Local rules against a plain torch loop written from the paper's equations, and what clip and noise do."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from sordino.federation.rules.clipped_steps import train_locally
from sordino.federation.upload import noisy_upload
from sordino.models import FlatModel, cross_entropy
from sordino.protocol import Constant, Continuous, FedAvg, FedProx, Gaussian, StageWise
from sordino.randomness import Key, Purpose


def small_net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def some_batches(count: int, seed: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(5, 4, generator=generator) * 3, torch.randint(0, 3, (5,), generator=generator))
        for _ in range(count)
    ]


def paper_loop(net: nn.Module, rule, round: int, batches) -> torch.Tensor:
    """Eq. 2 and Eq. 4 in float64, parameter by parameter."""
    net = net.double()
    start = [p.detach().clone() for p in net.parameters()]
    alpha = getattr(rule, "proximal", 0.0)
    for k, (x, y) in enumerate(batches):
        net.zero_grad()
        functional.cross_entropy(net(x.double()), y).backward()
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in net.parameters()))
        rate = rule.schedule.at(round=round, step=k, steps=rule.steps)
        with torch.no_grad():
            for p, origin in zip(net.parameters(), start, strict=True):
                p -= rate * (p.grad / max(1.0, norm / rule.clip) + alpha * (p - origin))
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


@pytest.mark.parametrize("clip", [0.05, 100.0])
@pytest.mark.parametrize("proximal", [None, 0.7, 8.0])
@pytest.mark.parametrize(
    "schedule", [Constant(rate=0.3), StageWise(rate=0.9), Continuous(rate=2.0)]
)
def test_local_steps_are_those_of_the_paper(clip, proximal, schedule) -> None:
    shared = {"steps": 6, "batch": 5, "clip": clip, "schedule": schedule}
    rule = FedAvg(**shared) if proximal is None else FedProx(**shared, proximal=proximal)
    batches = some_batches(6)
    flat = FlatModel(small_net())
    start = flat.weights.clone()
    steps, trained = train_locally(
        flat, start, rule, rule.schedule.rates(round=2, steps=6), batches, cross_entropy
    )
    expected = paper_loop(small_net(), rule, 2, batches)
    assert (trained - expected).abs().max() < 2e-6
    assert (start - expected).abs().max() > 1e-3
    assert steps.clipped == (6 if clip == 0.05 else 0)


def test_fedprox_without_pull_is_fedavg_bit_for_bit() -> None:
    shared = {"steps": 4, "batch": 5, "clip": 1.0, "schedule": Constant(rate=0.3)}
    ends = []
    for rule in (FedAvg(**shared), FedProx(**shared, proximal=0.0)):
        flat = FlatModel(small_net())
        train_locally(
            flat,
            flat.weights.clone(),
            rule,
            rule.schedule.rates(round=0, steps=4),
            some_batches(4),
            cross_entropy,
        )
        ends.append(flat.weights.clone())
    assert torch.equal(ends[0], ends[1])


@pytest.mark.parametrize("clip", [1e-3, 1.0, 7.0])
def test_no_step_leaves_the_ball_of_the_clip_even_by_rounding(clip) -> None:
    rule = FedAvg(steps=1, batch=5, clip=clip, schedule=Constant(rate=1.0))
    for seed in range(30):
        flat = FlatModel(small_net(seed))
        with torch.no_grad():
            flat.weights.zero_()  # a start at zero, so that the move is not rounded against large weights
        x, y = some_batches(1, seed)[0]
        _, trained = train_locally(
            flat, torch.zeros_like(flat.weights), rule, [1.0], [(x * 100, y)], cross_entropy
        )
        assert float(trained.norm()) <= clip


def test_small_steps_from_large_weights_are_not_rounded_past_the_clip() -> None:
    """In float32 a step of 2e-5 on weights near 1.5 would move by up to a quarter more than it may."""
    rate = 2e-5
    rule = FedAvg(steps=1, batch=5, clip=1.0, schedule=Constant(rate=rate))
    flat = FlatModel(nn.Linear(4000, 3))
    start = torch.full_like(flat.weights, 1.5)
    x = torch.randn(5, 4000, generator=torch.Generator().manual_seed(1)) * 100
    _, trained = train_locally(
        flat, start, rule, [rate], [(x, torch.tensor([0, 1, 2, 0, 1]))], cross_entropy
    )
    assert float((trained - start.double()).norm()) <= rate


def test_a_gradient_that_is_not_finite_counts_as_zero_and_is_counted() -> None:
    rule = FedAvg(steps=3, batch=5, clip=1.0, schedule=Constant(rate=0.5))
    good = some_batches(3)
    for poison in (float("nan"), float("inf")):
        batches = [good[0], (torch.full((5, 4), poison), good[1][1]), good[2]]
        flat = FlatModel(small_net())
        steps, _ = train_locally(
            flat, flat.weights.clone(), rule, [0.5] * 3, batches, cross_entropy
        )
        without = FlatModel(small_net())
        train_locally(without, without.weights.clone(), FedAvg(steps=2, batch=5, clip=1.0, schedule=Constant(rate=0.5)), [0.5] * 2,
                      [good[0], good[2]], cross_entropy)  # fmt: skip
        assert steps.nonfinite == 1
        assert torch.equal(flat.weights, without.weights)


def test_a_zero_gradient_is_no_division_by_zero() -> None:
    flat = FlatModel(nn.Linear(4, 3))
    rule = FedAvg(steps=1, batch=5, clip=1.0, schedule=Constant(rate=0.5))
    before = flat.weights.clone()
    train_locally(
        flat,
        before,
        rule,
        [0.5],
        [some_batches(1)[0]],
        lambda outputs, targets: outputs.sum() * 0.0,
    )
    assert torch.equal(flat.weights, before)


def noise_of(sigma: float, client: int = 0) -> np.ndarray:
    weights = torch.linspace(-1, 1, 100_000)
    stream = Key.from_seed(5).stream(Purpose.UPLOAD_NOISE, client=client)
    return noisy_upload(weights, Gaussian(sigma=sigma), stream).astype(np.float64) - weights.numpy()


def test_upload_noise_has_its_scale_and_no_other() -> None:
    noise = noise_of(0.3)
    assert stats.kstest(noise / 0.3, "norm").pvalue > 1e-6
    assert stats.kstest(noise / 0.2, "norm").pvalue < 1e-6
    assert stats.kstest(noise / 0.45, "norm").pvalue < 1e-6
    assert abs(np.corrcoef(noise, noise_of(0.3, client=1))[0, 1]) < 0.02


def test_without_noise_the_upload_is_the_model_and_a_copy_of_it() -> None:
    weights = torch.linspace(-1, 1, 10)
    upload = noisy_upload(
        weights, Gaussian(sigma=0.0), Key.from_seed(1).stream(Purpose.UPLOAD_NOISE)
    )
    assert np.array_equal(upload, weights.numpy())
    weights.zero_()
    assert upload[0] == -1.0

"""The compiled kernel, step by step, against plain oracles in float64."""

import copy
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sordino.models import build_model
from sordino.models.clipping import CLIP_FRACTION
from sordino.native.kernel import (
    Kernel,
    KernelRecords,
    PackedRule,
    StepRule,
    count_vectors,
)
from sordino.native.layout import OptimizerKind
from sordino.native.library import list_runnable
from sordino.native.network_builder import KernelRefusal
from sordino.native.program import Kind, Layer, Loss, arrange
from sordino.native.translate import translate
from sordino.protocol import InvalidValue, UserError
from sordino.randomness import Key, Purpose
from tests.engines.native_nets import (
    Residual,
    clipped_mean,
    disagreement,
    kernel_of,
    made_up,
    relative,
    torch_gradient,
    vector_of,
)
from tests.oracles.kernel_jobs import make_jobs

pytestmark = pytest.mark.skipif(not list_runnable(), reason="the native kernel was not built")

each_library = pytest.mark.parametrize("simd", list_runnable())
KEYS = tuple(
    Key.from_seed(5).stream(purpose).subkey
    for purpose in (Purpose.MINIBATCH, Purpose.LOCAL_MODEL, Purpose.UPLOAD_NOISE)
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@each_library
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("logistic", (784,)),
        ("mlp", (1, 8, 8)),
        ("lenet5", (1, 28, 28)),
        ("prifedsync-mnist", (1, 28, 28)),
        ("prifedsync-cifar", (3, 32, 32)),
        ("udp-mnist", (1, 28, 28)),
        ("udp-wind", (7, 48)),
    ],
)
def test_models_of_the_catalogue_have_the_gradients_of_torch(
    simd: str, name: str, shape: tuple[int, ...]
) -> None:
    module = build_model(name, shape, 10, seed=1)
    loss = Loss.SQUARED_ERROR if name == "udp-wind" else Loss.CROSS_ENTROPY
    x, y = made_up(shape, 10, loss, 40, seed=2)
    for batch in (32, 5):
        kernel = kernel_of(module, shape, loss, batch, simd)
        assert (
            disagreement(kernel, module, x, y, np.random.default_rng(batch).permutation(40)[:batch])
            < 1e-5
        )


class Traced(nn.Module):
    """A module with a forward of its own: functions, methods, a view, two paths that meet."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(20, 3)  # registered before what runs before it
        self.first = nn.Conv2d(2, 5, 3, padding=1)
        self.block = Residual(
            nn.Sequential(nn.Conv2d(5, 5, 3, padding=1), nn.GroupNorm(1, 5), nn.Tanh())
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        h = self.block(h) + h.sigmoid()
        h = nn.functional.avg_pool2d(nn.functional.gelu(h), 3)
        return self.out(h.view(h.size(0), -1))


@each_library
def test_a_module_with_a_forward_of_its_own(simd: str) -> None:
    torch.manual_seed(0)
    module = Traced()
    x, y = made_up((2, 6, 6), 3, Loss.CROSS_ENTROPY, 9, seed=0)
    assert (
        disagreement(
            kernel_of(module, (2, 6, 6), Loss.CROSS_ENTROPY, 9, simd), module, x, y, np.arange(9)
        )
        < 1e-5
    )


@each_library
def test_any_batch_size_in_any_block_size(simd: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48, 4)
    )
    x, y = made_up((1, 8, 8), 4, Loss.CROSS_ENTROPY, 150, seed=0)
    for built in (1, 20, 40):
        kernel = kernel_of(module, (1, 8, 8), Loss.CROSS_ENTROPY, built, simd)
        for batch in (1, 2, 15, 16, 17, 33, 64, 65, 150):
            assert disagreement(kernel, module, x, y, np.arange(batch)) < 1e-5


@each_library
@pytest.mark.parametrize("norm", [1, 2])
def test_per_example_gradients_stay_within_the_clip(simd: str, norm: int) -> None:
    module = build_model("lenet5", (1, 28, 28), 10, seed=0)
    x, y = made_up((1, 28, 28), 10, Loss.CROSS_ENTROPY, 20, seed=0)
    kernel = kernel_of(module, (1, 28, 28), Loss.CROSS_ENTROPY, 20, simd)
    for clip in (0.01, 1.0):
        rule = StepRule(rates=(), clip=clip, per_example=True, norm=norm)
        for i in range(20):
            own, _ = kernel.compute_gradient(
                KernelRecords(x, y), rule, vector_of(module), np.array([i])
            )
            assert np.linalg.norm(own.astype(np.float64), norm) <= clip


# ---- whole trainings against a loop in torch


def loop(
    module: nn.Module,
    x: np.ndarray,
    y: np.ndarray,
    part: np.ndarray,
    rule: StepRule,
    *,
    client: int,
    round: int,
    correction=0.0,
    centre=None,
):
    """What the kernel promises, in float64 and one example at a time where examples are clipped."""
    w = vector_of(module).astype(np.float64)
    centre, first, second = w if centre is None else centre, np.zeros_like(w), np.zeros_like(w)
    draws = stream(0, client, round).subsets(rule.steps, rule.batch, len(part))
    net = copy.deepcopy(module).double()
    for step, rate in enumerate(rule.rates):
        torch.nn.utils.vector_to_parameters(
            torch.from_numpy(w.astype(np.float32).astype(np.float64)), net.parameters()
        )
        rows = part[draws[step]]
        if rule.per_example:
            g = clipped_mean(net, x[rows], y[rows], Loss.CROSS_ENTROPY, rule.clip, rule.norm)
            g = g * len(rows) / rule.divisor if rule.divisor > 0 else g
        else:
            g = torch_gradient(net, x[rows], y[rows], Loss.CROSS_ENTROPY)
            g = g * min(1.0, rule.clip * CLIP_FRACTION / np.linalg.norm(g, rule.norm))
        g = g + rule.step_noise * stream(1, client, round, step).normals(len(g)) + correction
        g = g + rule.proximal * (w - centre) + rule.weight_decay * w
        if rule.optimizer is OptimizerKind.MOMENTUM:
            g = first = rule.momentum * first + g
        if rule.optimizer is OptimizerKind.ADAM:
            first = rule.momentum * first + (1 - rule.momentum) * g
            second = rule.second_momentum * second + (1 - rule.second_momentum) * g * g
            grown = 1 - rule.momentum ** (step + 1), 1 - rule.second_momentum ** (step + 1)
            g = (first / grown[0]) / (np.sqrt(second / grown[1]) + rule.epsilon)
        if rule.optimizer is OptimizerKind.ADAGRAD:
            second = second + g * g
            g = g / (np.sqrt(second) + rule.epsilon)
        w = w - rate * g
    return (w + rule.upload_noise * stream(2, client, round).normals(len(w))).astype(np.float32)


def stream(which: int, client: int, round: int, step: int = 0):
    purpose = (Purpose.MINIBATCH, Purpose.LOCAL_MODEL, Purpose.UPLOAD_NOISE)[which]
    return Key.from_seed(5).stream(purpose, client=client, round_index=round, step=step)


with torch.random.fork_rng():
    torch.manual_seed(3)
    SMOOTH = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 7),
        nn.Sigmoid(),
        nn.Linear(7, 3),
    )
RULES = {
    "plain": StepRule(rates=(0.5, 0.3, 0.1), batch=6, clip=0.2),
    "l1": StepRule(rates=(0.5, 0.3, 0.1), batch=6, clip=0.7, norm=1),
    "proximal": StepRule(rates=(0.5,) * 4, batch=6, clip=1.0, proximal=0.3),
    "decay": StepRule(rates=(0.5,) * 4, batch=6, clip=1.0, weight_decay=0.1),
    "momentum": StepRule(
        rates=(0.5,) * 4, batch=6, clip=1.0, optimizer=OptimizerKind.MOMENTUM, momentum=0.8
    ),
    "adam": StepRule(rates=(0.05,) * 4, batch=6, clip=1.0, optimizer=OptimizerKind.ADAM),
    "adagrad": StepRule(
        rates=(0.05,) * 4,
        batch=6,
        clip=1.0,
        optimizer=OptimizerKind.ADAGRAD,
        epsilon=1e-3,
        weight_decay=0.1,
    ),
    "upload noise": StepRule(rates=(0.5,) * 2, batch=6, clip=1.0, upload_noise=0.1),
    "step noise": StepRule(rates=(0.5,) * 3, batch=6, clip=1.0, step_noise=0.2),
    "per example": StepRule(rates=(0.5,) * 3, batch=6, clip=0.2, per_example=True),
    "noisy sgd": StepRule(
        rates=(0.5,) * 3, batch=6, clip=0.5, per_example=True, divisor=8.0, step_noise=0.1
    ),
    "noisy sgd l1": StepRule(
        rates=(0.5,) * 3,
        batch=6,
        clip=0.5,
        per_example=True,
        norm=1,
        step_noise=0.1,
        weight_decay=0.05,
    ),
    "all": StepRule(
        rates=(0.5,) * 3,
        batch=6,
        clip=0.5,
        per_example=True,
        step_noise=0.1,
        upload_noise=0.1,
        proximal=0.1,
        optimizer=OptimizerKind.MOMENTUM,
    ),
}


@each_library
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_training_is_that_of_a_plain_loop(simd: str, rule: StepRule) -> None:
    x, y = made_up((1, 8, 8), 3, Loss.CROSS_ENTROPY, 40, seed=1)
    parts = [np.arange(0, 15), np.arange(15, 40)]
    kernel, packed, start = (
        kernel_of(SMOOTH, (1, 8, 8), Loss.CROSS_ENTROPY, rule.batch, simd),
        PackedRule(rule),
        vector_of(SMOOTH),
    )
    jobs, results = make_jobs(kernel, packed, start, parts, KEYS, round_index=4)
    records = KernelRecords(x, y)
    kernel.train(records, jobs, threads=2)
    for client, part in enumerate(parts):
        wanted = loop(SMOOTH, x, y, part, rule, client=client, round=4)
        # Adam divides by the size of a gradient, and so shows the rounding of float32 where it is near zero.
        assert relative(results[client] - start, wanted - start) < (
            1e-4 if rule.optimizer is OptimizerKind.ADAM else 1e-5
        )


@each_library
def test_control_variates_are_added_after_the_clip(simd: str) -> None:
    x, y = made_up((1, 8, 8), 3, Loss.CROSS_ENTROPY, 15, seed=1)
    rule, start = RULES["plain"], vector_of(SMOOTH)
    correction = np.random.default_rng(0).standard_normal(len(start)).astype(np.float32)
    kernel, packed = kernel_of(SMOOTH, (1, 8, 8), Loss.CROSS_ENTROPY, 6, simd), PackedRule(rule)
    part, records = np.arange(15), KernelRecords(x, y)
    jobs, results = make_jobs(kernel, packed, start, [part], KEYS)
    jobs["correction"] = correction.ctypes.data
    kernel.train(records, jobs, threads=1)
    wanted = loop(SMOOTH, x, y, part, rule, client=0, round=0, correction=correction)
    assert relative(results[0] - start, wanted - start) < 1e-5


@each_library
def test_steps_are_pulled_to_the_centre_of_the_job_and_the_exact_model_has_no_noise(
    simd: str,
) -> None:
    x, y = made_up((1, 8, 8), 3, Loss.CROSS_ENTROPY, 15, seed=1)
    rule, start, part = RULES["all"], vector_of(SMOOTH), np.arange(15)
    centre, exact = (
        np.random.default_rng(0).standard_normal(len(start)).astype(np.float32),
        np.empty(len(start)),
    )
    kernel, packed = kernel_of(SMOOTH, (1, 8, 8), Loss.CROSS_ENTROPY, 6, simd), PackedRule(rule)
    jobs, results = make_jobs(kernel, packed, start, [part], KEYS)
    jobs["centre"], jobs["exact"] = centre.ctypes.data, exact.ctypes.data
    kernel.train(KernelRecords(x, y), jobs, threads=1)
    quiet = loop(
        SMOOTH, x, y, part, replace(rule, upload_noise=0.0), client=0, round=0, centre=centre
    )
    noisy = loop(SMOOTH, x, y, part, rule, client=0, round=0, centre=centre)
    assert relative(exact - start, quiet - start) < 1e-5
    assert relative(results[0] - start, noisy - start) < 1e-5
    assert np.any(exact != exact.astype(np.float32))


@each_library
@pytest.mark.parametrize(
    "optimizer", [OptimizerKind.MOMENTUM, OptimizerKind.ADAM, OptimizerKind.ADAGRAD]
)
def test_moments_that_are_handed_on_make_one_training_of_two(
    simd: str, optimizer: OptimizerKind
) -> None:
    x, y = made_up((1, 8, 8), 3, Loss.CROSS_ENTROPY, 24, seed=1)
    start, rows = vector_of(SMOOTH), np.arange(24)
    kernel, records = kernel_of(SMOOTH, (1, 8, 8), Loss.CROSS_ENTROPY, 6, simd), KernelRecords(x, y)

    def trained(
        begin: np.ndarray, first: int, steps: int, moments: dict[str, np.ndarray]
    ) -> np.ndarray:
        packed = PackedRule(
            StepRule(rates=(0.05,) * steps, clip=1.0, optimizer=optimizer, epsilon=1e-4)
        )
        jobs, results = make_jobs(kernel, packed, begin, [rows], KEYS)
        batches, counts = rows[6 * first :].copy(), np.full(steps, 6)
        jobs["rows"], jobs["counts"], jobs["taken"] = batches.ctypes.data, counts.ctypes.data, first
        for name, values in moments.items():
            jobs[name] = values.ctypes.data
        kernel.train(records, jobs, threads=1)
        return results[0].copy()

    whole, half = trained(start, 0, 4, {}), trained(start, 0, 2, {})
    carried = {name: np.zeros(len(start), np.float32) for name in ("first", "second")}
    assert np.array_equal(trained(start, 0, 2, carried), half)
    assert relative(trained(half, 2, 2, carried) - start, whole - start) < 1e-5
    assert relative(trained(half, 2, 2, {}) - start, whole - start) > 1e-2


def test_independent_trainings_run_in_one_call_and_do_not_touch_each_other() -> None:
    x, y = made_up((1, 8, 8), 3, Loss.CROSS_ENTROPY, 40, seed=1)
    kernel, records = (
        kernel_of(SMOOTH, (1, 8, 8), Loss.CROSS_ENTROPY, 6, list_runnable()[0]),
        KernelRecords(x, y),
    )
    part, start = np.arange(40), vector_of(SMOOTH)
    packed = [PackedRule(rule) for rule in RULES.values()]
    alone = []
    for rule in packed:
        jobs, results = make_jobs(kernel, rule, start, [part], KEYS)
        kernel.train(records, jobs, threads=1)
        alone.append(results[0].copy())
    jobs, results = make_jobs(kernel, packed[0], start, [part] * len(packed), KEYS)
    jobs["rule"], jobs["client"] = [rule.address for rule in packed], 0
    kernel.train(records, jobs, threads=3)
    assert np.array_equal(results, np.array(alone))


def test_batches_of_different_sizes_can_be_given() -> None:
    x, y = made_up((1, 8, 8), 3, Loss.CROSS_ENTROPY, 40, seed=1)
    kernel, records, start = (
        kernel_of(SMOOTH, (1, 8, 8), Loss.CROSS_ENTROPY, 6, list_runnable()[0]),
        KernelRecords(x, y),
        vector_of(SMOOTH),
    )
    batches = [np.arange(9), np.arange(0), np.arange(5, 40)]
    rows, counts = np.concatenate(batches), np.array([len(batch) for batch in batches])
    packed = PackedRule(StepRule(rates=(0.5,) * 3, clip=0.5, per_example=True, divisor=10.0))
    jobs, results = make_jobs(kernel, packed, start, [np.arange(40)], KEYS)
    jobs["rows"], jobs["counts"] = rows.ctypes.data, counts.ctypes.data
    kernel.train(records, jobs, threads=1)
    net, w = copy.deepcopy(SMOOTH).double(), start.astype(np.float64)
    for batch in batches:
        torch.nn.utils.vector_to_parameters(
            torch.from_numpy(w.astype(np.float32).astype(np.float64)), net.parameters()
        )
        g = (
            clipped_mean(net, x[batch], y[batch], Loss.CROSS_ENTROPY, 0.5, 2) * len(batch) / 10
            if len(batch) > 0
            else 0.0
        )
        w = w - 0.5 * g
    assert relative(results[0] - start, w - start) < 1e-5
    assert jobs["clips"][0] == 44


# ---- what is not finite


@each_library
def test_a_gradient_that_is_not_finite_counts_as_zero(simd: str) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    for parameter in module.parameters():
        nn.init.ones_(parameter)
    x, y = made_up((4,), 2, Loss.CROSS_ENTROPY, 8, seed=0)
    x[0] = 3e38
    assert not np.isfinite(
        torch_gradient(module, x[:1], y[:1], Loss.CROSS_ENTROPY, torch.float32)
    ).all()
    kernel, start, part = (
        kernel_of(module, (4,), Loss.CROSS_ENTROPY, 4, simd),
        vector_of(module),
        np.arange(8),
    )
    for per_example in (False, True):
        packed = PackedRule(StepRule(rates=(0.5,), clip=1.0, per_example=per_example))
        rows, counts = np.array([0, 5, 6, 7]), np.array([4])
        jobs, results = make_jobs(kernel, packed, start, [part], KEYS)
        jobs["rows"], jobs["counts"] = rows.ctypes.data, counts.ctypes.data
        kernel.train(KernelRecords(x, y), jobs, threads=1)
        assert jobs["nonfinite"][0] == 1
        kept = (
            clipped_mean(module, x[5:], y[5:], Loss.CROSS_ENTROPY, 1.0, 2) * 3 / 4
            if per_example
            else 0.0
        )
        assert np.allclose(results[0], start - 0.5 * kept, atol=1e-6)


@each_library
def test_large_and_small_gradients_are_clipped_not_lost(simd: str) -> None:
    module = nn.Sequential(nn.Linear(3, 2))
    for size in (1e15, 1e-15):  # squares leave the range of float32
        x, y = made_up((3,), 2, Loss.SQUARED_ERROR, 6, seed=0)
        x *= np.float32(size)
        kernel = kernel_of(module, (3,), Loss.SQUARED_ERROR, 6, simd)
        for per_example in (False, True):
            clip = size * 1e-3
            rule = StepRule(rates=(), clip=clip, per_example=per_example)
            found, _ = kernel.compute_gradient(
                KernelRecords(x, y), rule, vector_of(module), np.arange(6)
            )
            if per_example:
                wanted = clipped_mean(module, x, y, Loss.SQUARED_ERROR, clip, 2)
            else:
                wanted = torch_gradient(module, x, y, Loss.SQUARED_ERROR)
                wanted *= min(1.0, clip / np.linalg.norm(wanted))
            assert relative(found, wanted) < 1e-5


@each_library
def test_a_nan_is_not_lost_in_a_maximum_or_a_relu(simd: str) -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2)
    )
    x, y = made_up((1, 4, 4), 2, Loss.CROSS_ENTROPY, 3, seed=0)
    for place in np.ndindex(4, 4):
        bad = x.copy()
        bad[0, 0][place] = np.nan
        kernel = kernel_of(module, (1, 4, 4), Loss.CROSS_ENTROPY, 3, simd)
        assert np.isnan(
            kernel.compute_outputs(KernelRecords(bad, y), vector_of(module), np.arange(3))[0]
        ).all()


# ---- outputs, records, refusals


@each_library
def test_bytes_are_scaled_as_torch_does(simd: str) -> None:
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (21, 3, 5, 5)).astype(np.uint8)
    scale, shift = (
        generator.random((3, 1, 1), dtype=np.float32) / 100,
        generator.random((3, 1, 1), dtype=np.float32),
    )
    module = nn.Sequential(nn.Flatten(), nn.Linear(75, 75, bias=False))
    with torch.no_grad():
        module[1].weight.copy_(torch.eye(75))
    kernel = kernel_of(module, (3, 5, 5), Loss.SQUARED_ERROR, 16, simd)
    records = KernelRecords(x, np.zeros((21, 75), np.float32), scale=scale, shift=shift)
    wanted = (
        torch.from_numpy(x)
        .float()
        .mul(torch.from_numpy(scale))
        .add_(torch.from_numpy(shift))
        .flatten(1)
        .numpy()
    )
    for threads in (1, 3):
        assert np.array_equal(
            kernel.compute_outputs(records, vector_of(module), np.arange(21), threads=threads),
            wanted,
        )


def test_blocks_are_equal_and_small() -> None:
    for lanes in (4, 8, 16):
        for batch in range(1, 300):
            vectors = count_vectors(batch, lanes)
            blocks = -(-batch // (lanes * vectors))
            assert 1 <= vectors <= 3
            assert blocks * vectors * lanes < batch + lanes * (1 + blocks)


def test_what_does_not_fit_the_kernel_is_refused() -> None:
    module = nn.Sequential(nn.Linear(4, 2))
    kernel = kernel_of(module, (4,), Loss.CROSS_ENTROPY, 4, list_runnable()[0])
    weights, rule, rows = vector_of(module), StepRule(rates=()), np.arange(2)
    x, y = made_up((4,), 2, Loss.CROSS_ENTROPY, 5, seed=0)
    with pytest.raises(UserError, match="3 values"):
        kernel.compute_gradient(KernelRecords(x[:, :3], y), rule, weights, rows)
    with pytest.raises(UserError, match="labels up to 2"):
        kernel.compute_gradient(KernelRecords(x, y + 1), rule, weights, rows)
    with pytest.raises(UserError, match="does not fit"):
        kernel.compute_gradient(KernelRecords(x, x[:, :2]), rule, weights, rows)
    with pytest.raises(UserError, match="parameters"):
        kernel.compute_gradient(KernelRecords(x, y), rule, weights[1:], rows)
    for wrong in ([5], [-1], []):
        with pytest.raises(UserError, match="below 5"):
            kernel.compute_gradient(KernelRecords(x, y), rule, weights, np.array(wrong))
    with pytest.raises(UserError, match="as many"):
        KernelRecords(x, y[1:])
    with pytest.raises(InvalidValue, match="uint8 or float32"):
        KernelRecords(x.astype(np.float64), y)
    with pytest.raises(InvalidValue, match="0 or greater"):
        KernelRecords(x, y - 2)
    for name, value in {"clip": 0.0, "norm": 3}.items():
        with pytest.raises(InvalidValue, match=name):
            PackedRule(StepRule(rates=(), **{name: value}))


def test_a_kernel_needs_memory_for_a_block_only() -> None:
    sizes = [
        Kernel(
            translate(SMOOTH, (1, 8, 8)), Loss.CROSS_ENTROPY, batch=b, simd=list_runnable()[0]
        ).memory
        for b in (96, 960, 9600)
    ]
    assert max(sizes) <= 1.5 * min(sizes)


@each_library
def test_a_record_that_overflows_in_a_first_linear_layer_takes_no_other_with_it(simd: str) -> None:
    """Records that are scaled are read as they are by a first layer: 0 times infinity would make all of the sum nothing."""
    module = nn.Sequential(nn.Linear(16, 2))
    x, y = made_up((16,), 2, Loss.CROSS_ENTROPY, 8, seed=3)
    records = KernelRecords(
        np.where(np.arange(8)[:, None] == 2, np.float32(3e38), x / 2), y, scale=np.float32(2.0)
    )
    kernel = kernel_of(module, (16,), Loss.CROSS_ENTROPY, 8, simd)
    found, _ = kernel.compute_gradient(
        records, StepRule(rates=(), clip=0.1, per_example=True), vector_of(module), np.arange(8)
    )
    others = np.flatnonzero(np.arange(8) != 2)
    assert (
        relative(
            found, clipped_mean(module, x[others], y[others], Loss.CROSS_ENTROPY, 0.1, 2) * 7 / 8
        )
        < 1e-5
    )


@each_library
def test_no_gradient_is_so_long_that_more_than_the_clip_gets_through(simd: str) -> None:
    """Beyond 2^100 clips, float32 has no precise number to scale by, and it counts as not finite."""
    module = nn.Sequential(nn.Linear(3, 1))
    kernel, lengths = kernel_of(module, (3,), Loss.SQUARED_ERROR, 1, simd), []
    weights, y = np.array([1, 0, 0, 0], np.float32), np.zeros((1, 1), np.float32)
    for power in np.linspace(5, 23, 400):
        x = np.array([[10**power, 0, 0]], np.float32)
        found, _ = kernel.compute_gradient(
            KernelRecords(x, y),
            StepRule(rates=(), clip=1.0, per_example=True),
            weights,
            np.arange(1),
        )
        lengths.append(float(np.linalg.norm(found.astype(np.float64))))
    assert max(lengths) <= 1.0
    assert lengths[0] > 0.99
    assert lengths[-1] == 0.0


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: functional.avg_pool2d(x, 2, ceil_mode=False).flatten(1),
        lambda x: torch.flatten(input=functional.relu(x), start_dim=1),
        lambda x: torch.reshape(x, shape=(x.size(dim=0), -1)),
        lambda x: torch.add(x, other=x).flatten(1),
    ],
)
def test_calls_with_arguments_that_are_not_known_are_refused_not_raised(forward) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.LazyLinear(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(forward(x))

    module = Own()
    module(torch.zeros(2, 1, 4, 4))
    with suppress(KernelRefusal):
        assert translate(module, (1, 4, 4)).outputs == 2


# ---- how far a sum of clipped examples moves


def clipped_sum(kernel: Kernel, records: KernelRecords, start: np.ndarray, rows, clip: float):
    """What the kernel adds up for these rows, in float64: one step of rate 1 without noise, the sum divided by nothing."""
    rows, counts = np.asarray(rows, dtype=np.int64), np.array([len(rows)])
    rule = PackedRule(StepRule(rates=(1.0,), clip=clip, per_example=True, divisor=1.0))
    jobs, _ = make_jobs(kernel, rule, start, [rows], KEYS)
    exact = np.zeros((1, len(start)))
    jobs["rows"], jobs["counts"] = rows.ctypes.data, counts.ctypes.data
    jobs["exact"] = exact.ctypes.data
    kernel.train(records, jobs, threads=1)
    return start.astype(np.float64) - exact[0]


def one_weight(batch: int, inputs: int, simd: str) -> Kernel:
    layer = Layer(kind=Kind.LINEAR, inputs=(0,), output=1, weight=0)
    program = arrange([layer], [(inputs, 1, 1), (1, 1, 1)], parameters=inputs)
    return Kernel(program, Loss.SQUARED_ERROR, batch=batch, simd=simd)


@each_library
def test_sums_of_clipped_examples_do_not_lose_what_one_of_them_adds(simd: str) -> None:
    batch = 400_000
    kernel = one_weight(batch, 3, simd)
    x = np.random.default_rng(4).random((batch, 3), dtype=np.float32) + np.float32(0.2)
    y = np.full((batch, 1), -1.0, dtype=np.float32)
    turned = y.copy()
    turned[batch // 2] = 1.0
    sums = [
        clipped_sum(
            kernel, KernelRecords(x, targets), np.zeros(3, np.float32), np.arange(batch), 0.1
        )
        for targets in (y, turned)
    ]
    assert np.linalg.norm(sums[0] - sums[1]) <= 2 * 0.1
    assert np.linalg.norm(sums[0] - sums[1]) >= 2 * 0.1 * (1 - 1e-4)


def rounded_apart(length: int) -> np.ndarray:
    """Gradients of at most 1 of which float32 sums, begun at 1 or at -1, end further apart than 2.

    Ones lead the two sums to 2^k + 1 and 2^k - 1, between which the unit in the last place doubles. Each later gradient has a half of the
    larger unit and a little more: one sum is rounded up by that half, the other is exact.
    """
    k = max(1, int(np.log2(length / 2)))
    unit = 2.0 ** (k - 23)
    fine = np.where(np.arange(length - 1 - 2**k) % 2, 0.125, -0.125) + (0.5 + 2.0**-5) * unit
    return np.concatenate([[1.0], np.ones(2**k), fine]).astype(np.float32)


@each_library
def test_a_replaced_example_moves_a_sum_by_no_more_than_is_priced(simd: str) -> None:
    length = 3 * one_weight(1, 1, simd).lanes
    kernel = one_weight(length, 1, simd)
    # The gradient of (w x - y)^2 at w = 0 is -2 x y.
    x = np.full((length, 1), 0.5, dtype=np.float32)
    y = -rounded_apart(length)[:, None]
    turned = y.copy()
    turned[0] *= -1
    sums = [
        clipped_sum(
            kernel, KernelRecords(x, targets), np.zeros(1, np.float32), np.arange(length), 1.0
        )
        for targets in (y, turned)
    ]
    assert 2 - 3e-6 <= abs(sums[0] - sums[1])[0] <= 2


@each_library
@pytest.mark.parametrize("layers", ["linear", "convolution"])
def test_an_example_that_is_not_drawn_changes_a_sum_by_its_own_gradient_alone(
    simd: str, layers: str
) -> None:
    """All later examples move to other places and blocks: their sum must not notice."""
    shape = (1, 8, 8)
    module = SMOOTH if layers == "convolution" else build_model("mlp", shape, 3, seed=0)
    x, y = made_up(shape, 3, Loss.CROSS_ENTROPY, 700, seed=2)
    kernel = kernel_of(module, shape, Loss.CROSS_ENTROPY, 700, simd)
    records, start, clip = KernelRecords(x, y), vector_of(module), 0.05
    rows = np.arange(700)
    whole, rest, own = (
        clipped_sum(kernel, records, start, chosen, clip) for chosen in (rows, rows[1:], rows[:1])
    )
    assert np.linalg.norm(whole - rest) <= clip
    assert np.abs(whole - rest - own).max() <= 1e-12


def rounded_apart_between_blocks(block: int, power: int) -> np.ndarray:
    """Gradients of which plain float64 sums of blocks, begun at 1 or at -1, end further apart than 2.

    As `rounded_apart`, but with what is rounded in the sums of whole blocks: halves lead the two sums to 2^k + 1 and 2^k - 1; each
    later block has an eighth, half of the larger unit and a little more, which one sum rounds up and the other does not.
    """
    unit = 2.0 ** (power - 52)
    blocks = np.zeros((50_000, block), dtype=np.float32)
    blocks[0::2, 0] = 0.125
    blocks[1::2, 0] = -0.125
    blocks[:, 1] = (0.5 + 2.0**-5) * unit
    leading = np.full((2 ** (power + 1) // block + 1) * block, 0.5, dtype=np.float32)
    leading[2 ** (power + 1) + 1 :] = 0.0
    leading[0] = 1.0
    return np.concatenate([leading, blocks.ravel()])


@each_library
def test_a_replaced_example_moves_a_sum_of_millions_by_no_more_than_is_priced(simd: str) -> None:
    block = 3 * one_weight(1, 1, simd).lanes
    gradients = rounded_apart_between_blocks(block, 19)
    kernel = one_weight(len(gradients), 1, simd)
    x = np.full((len(gradients), 1), 0.5, dtype=np.float32)
    y = -gradients[:, None]
    turned = y.copy()
    turned[0] *= -1
    rows = np.arange(len(gradients))
    sums = [
        clipped_sum(kernel, KernelRecords(x, targets), np.zeros(1, np.float32), rows, 1.0)
        for targets in (y, turned)
    ]
    # A plain sum of the blocks' sums does move further: the example is one.
    plain = [
        np.cumsum(
            np.add.reduceat(
                np.clip(-targets[:, 0].astype(np.float64), -1 + 1e-6, 1 - 1e-6), rows[::block]
            )
        )[-1]
        for targets in (y, turned)
    ]
    assert abs(plain[0] - plain[1]) > 2
    assert 2 - 3e-6 <= abs(sums[0] - sums[1])[0] <= 2

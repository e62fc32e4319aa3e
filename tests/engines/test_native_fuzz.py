"""Random stacks of layers, held against torch in float64."""

import os

import numpy as np
import pytest
import torch

from sordino.native.kernel import KernelRecords, StepRule
from sordino.native.library import list_runnable
from sordino.native.program import Loss
from tests.engines.native_nets import (
    MASKS,
    clipped_mean,
    disagreement,
    kernel_of,
    kink_distances,
    made_up,
    random_stack,
    relative,
    torch_gradient,
    vector_of,
)

pytestmark = pytest.mark.skipif(not list_runnable(), reason="the native kernel was not built")

STACKS = int(
    os.environ.get("SORDINO_FUZZ", "1000")
)  # a longer search: SORDINO_FUZZ=100000 pytest tests/engines/test_native_fuzz.py
PARTS = 4


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_random_stacks_have_the_gradients_of_torch(part: int) -> None:
    torch.set_num_threads(1)
    for seed in range(part, STACKS, PARTS):
        generator = np.random.default_rng(seed)
        torch.manual_seed(seed)
        module, shape, outputs = random_stack(generator)
        loss = Loss(int(generator.integers(0, 3)))
        batch = int(generator.integers(1, 40))
        x, y = made_up(shape, outputs, loss, batch, seed)
        simd = list_runnable()[seed % len(list_runnable())]
        kernel = kernel_of(module, shape, loss, int(generator.integers(1, 50)), simd)
        error = disagreement(kernel, module, x, y, np.arange(batch))
        # Where float32 itself cannot do better, torch in float32 shows it.
        if error >= 1e-5:
            rounding = relative(
                torch_gradient(module, x, y, loss, torch.float32),
                torch_gradient(module, x, y, loss),
            )
            assert error < 10 * rounding, (
                f"seed {seed}, {simd}: {error:.1e} against {rounding:.1e} of torch in float32\n{module}"
            )


@pytest.mark.slow
def test_random_stacks_clip_every_example_by_itself() -> None:
    torch.set_num_threads(1)
    for seed in range(60):
        generator = np.random.default_rng(10_000 + seed)
        torch.manual_seed(seed)
        module, shape, outputs = random_stack(generator)
        loss, norm = Loss(seed % 3), 1 + seed % 2
        x, y = made_up(shape, outputs, loss, 7, seed)
        wanted = clipped_mean(module, x, y, loss, np.inf, norm)
        clip = float(np.linalg.norm(wanted, norm)) * float(generator.choice([0.1, 1.0, 10.0]))
        rows = np.flatnonzero(kink_distances(module, x) > 1e-5)
        if clip == 0 or len(rows) == 0:
            continue
        wanted = clipped_mean(module, x[rows], y[rows], loss, clip, norm)
        for simd in list_runnable():
            kernel = kernel_of(module, shape, loss, 7, simd)
            rule = StepRule(rates=(), clip=clip, per_example=True, norm=norm)
            records, weights = KernelRecords(x, y), vector_of(module)
            found, _ = kernel.compute_gradient(records, rule, weights, rows, mask_key=MASKS)
            assert relative(found, wanted) < 2e-5, f"seed {seed}, {simd}\n{module}"

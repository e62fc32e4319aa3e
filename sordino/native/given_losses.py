"""A kernel of one linear layer whose output is the loss itself: models that audits are made of."""

from __future__ import annotations

from sordino.federation.setup import Setup
from sordino.native.kernel import Kernel
from sordino.native.library import ABSENT, choose_instruction_set
from sordino.native.network_builder import KernelRefusal
from sordino.native.program import Kind, Layer, Loss, arrange
from sordino.native.step_rules import refuse_step_noise


def make_given_loss_kernel(setup: Setup, width: int) -> Kernel:
    """Returns the kernel for a federation whose records say their own loss.

    A record's input is the gradient of a linear loss, or, with a target, the direction along which
    the loss curves by it.

    Args:
        setup: The federation.
        width: The number of the model's parameters.

    Raises:
        KernelRefusal: There is no compiled kernel, or it does not draw the noise.
    """
    refuse_step_noise(setup)
    simd = choose_instruction_set()
    if simd is None:
        raise KernelRefusal(ABSENT)
    layer = Layer(
        kind=Kind.LINEAR,
        inputs=(0,),
        output=1,
        weight=0,
    )
    program = arrange([layer], [(width, 1, 1), (1, 1, 1)], parameters=width)
    batch = setup.protocol.local.batch or 1
    if setup.protocol.release.varying_batches:
        batch = 1
    return Kernel(program, Loss.GIVEN, batch=batch, simd=simd)

"""What trainings of one call share: data sets, the rounds that budgets afford, and kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from torch import nn

from sordino.data import Dataset
from sordino.engines.compiled import Kernel, kernel_for, refuse_protocol
from sordino.engines.run_lifecycle import find_limits
from sordino.federation.complete_protocol import ModelSource
from sordino.federation.record_tensors import Loaded, loaded
from sordino.federation.setup import Setup
from sordino.federation.training import TrainingLimits
from sordino.models import KNOWN
from sordino.protocol import Data

# The most data sets that are kept for later trainings.
HELD = 4


class TrainingCache:
    """Holds data sets, limits and kernels that are made once; of data sets, the last ones used.

    Example:
        >>> cache = TrainingCache()
        >>> digits = Data(name="digits")
        >>> cache.load(digits, None) is cache.load(digits, None)
        True
    """

    def __init__(self, model: ModelSource | None = None) -> None:
        self.load: Callable[[Data | Dataset, Data | None], Loaded] = lru_cache(HELD)(loaded)
        self._model = model
        self._kernels: dict[object, Kernel] = {}
        self._limits: dict[object, TrainingLimits] = {}

    def limits(self, setup: Setup) -> TrainingLimits:
        """Returns the rounds that budgets afford in a new training.

        Args:
            setup: The training.

        Raises:
            BudgetExceeded: The budget does not afford one round.
        """
        # Prices do not depend on the seed, so trainings that differ only in it share them.
        priced = (replace(setup.protocol, seed=0), tuple(setup.sizes.tolist()))
        if priced not in self._limits:
            self._limits[priced] = find_limits(setup, ())
        return self._limits[priced]

    def kernel_for(self, setup: Setup) -> Kernel:
        """Returns the kernel for a setup, shared with equal models and equal programs.

        Args:
            setup: The training.

        Raises:
            KernelRefusal: The kernel cannot run the training; the message says why.
        """
        refuse_protocol(setup)
        known = self._structure(setup)
        if known in self._kernels:
            return self._kernels[known]
        made = kernel_for(setup)
        # Only clients of the same kernel are trained together, so equal programs share one.
        tables = (made.program.tensor_table().tobytes(), made.program.layer_table().tobytes())
        kernel = self._kernels.setdefault((*tables, made.loss, made.vectors), made)
        if known is not None:
            self._kernels[known] = kernel
        return kernel

    def _structure(self, setup: Setup) -> object:
        """Returns a key of everything that the kernel's program depends on.

        None for a factory, which need not return the same network twice.
        """
        source: object = None
        net = setup.protocol.model
        if isinstance(self._model, nn.Module):
            source = self._model
        elif net is not None and net.name in KNOWN:
            source = net.name
        if source is None:
            return None
        rule = setup.protocol.local
        # The number of examples that pass through the network together depends on these two.
        drawn = (setup.release.varying_batches, rule.batch)
        return source, setup.input_shape, setup.outputs, setup.classification, type(rule), *drawn

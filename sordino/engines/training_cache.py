"""What trainings of one call share: the records, what budgets afford, and the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from torch import nn

from sordino.data import Dataset
from sordino.engines.compiled import Kernel, kernel_for, refuse_protocol
from sordino.engines.run_lifecycle import limits_of
from sordino.federation.complete_protocol import ModelSource
from sordino.federation.record_tensors import Loaded, loaded
from sordino.federation.setup import Setup
from sordino.federation.training import TrainingLimits
from sordino.models import KNOWN
from sordino.protocol import Data

# Data sets that are kept for the trainings to come.
HELD = 4


class TrainingCache:
    """Holds data sets, prices and kernels that are made once; of the data sets, the last ones used.

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
        """Returns how far budgets let a new training go.

        Args:
            setup: The training.

        Raises:
            BudgetExceeded: Not one round fits.
        """
        # No price depends on the seed, so trainings that differ only in it share one.
        priced = (replace(setup.protocol, seed=0), tuple(setup.sizes.tolist()))
        if priced not in self._limits:
            self._limits[priced] = limits_of(setup, ())
        return self._limits[priced]

    def kernel_for(self, setup: Setup) -> Kernel:
        """Returns the kernel for a setup, shared with equal models and equal programs.

        Args:
            setup: The training.

        Raises:
            KernelRefusal: The kernel cannot run it; with the reason.
        """
        refuse_protocol(setup)
        known = self._structure(setup)
        if known in self._kernels:
            return self._kernels[known]
        made = kernel_for(setup)
        # Only clients of one kernel are pooled, so equal programs must become one kernel.
        tables = (made.program.tensor_table().tobytes(), made.program.layer_table().tobytes())
        kernel = self._kernels.setdefault((*tables, made.loss, made.vectors), made)
        if known is not None:
            self._kernels[known] = kernel
        return kernel

    def _structure(self, setup: Setup) -> object:
        """Returns what the program depends on, where equal sources surely make equal networks.

        None for a factory, which may do what it likes.
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
        # How many examples pass through the network together depends on these two.
        drawn = (setup.release.varying_batches, rule.batch)
        return source, setup.input_shape, setup.outputs, setup.classification, type(rule), *drawn

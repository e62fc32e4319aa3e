"""What trainings that run in one call share: the records they read, what their budgets afford, and the kernel that runs their clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from torch import nn

from sordino.engines.native.kernel import Kernel
from sordino.engines.native_engine import kernel_for, refuse_protocol
from sordino.engines.training import limits_of
from sordino.federation.data import Dataset
from sordino.federation.loop import Limits
from sordino.federation.models import KNOWN
from sordino.federation.setup import Loaded, ModelSource, Setup, loaded
from sordino.protocol import Data

HELD = 4  # data sets that are kept for the trainings to come


class Shared:
    """Data sets, prices and kernels that are made once. It holds them, of the data sets those that were used last.

    Example:
        >>> shared = Shared()
        >>> digits = Data(name="digits")
        >>> shared.load(digits, None) is shared.load(digits, None)
        True
    """

    def __init__(self, model: ModelSource | None = None) -> None:
        self.load: Callable[[Data | Dataset, Data | None], Loaded] = lru_cache(HELD)(loaded)
        self._model = model
        self._kernels: dict[object, Kernel] = {}
        self._limits: dict[object, Limits] = {}

    def limits(self, setup: Setup) -> Limits:
        """How far budgets let a new training go. No price depends on the seed.

        Raises:
            BudgetExceeded: not one round fits.
        """
        priced = replace(setup.protocol, seed=0), tuple(setup.sizes.tolist())
        if priced not in self._limits:
            self._limits[priced] = limits_of(setup, ())
        return self._limits[priced]

    def kernel_for(self, setup: Setup) -> Kernel:
        """The kernel for a setup: that of an equal model, or of an equal program, if there was one. Only one kernel's clients are pooled.

        Raises:
            Refused: the kernel cannot run it; with the reason.
        """
        refuse_protocol(setup)
        known = self._structure(setup)
        if known in self._kernels:
            return self._kernels[known]
        made = kernel_for(setup)
        tables = made.program.tensor_table().tobytes(), made.program.layer_table().tobytes()
        kernel = self._kernels.setdefault((*tables, made.loss, made.vectors), made)
        if known is not None:
            self._kernels[known] = kernel
        return kernel

    def _structure(self, setup: Setup) -> object:
        """What the program depends on, where equal sources surely make equal networks; None for a factory, which may do what it likes."""
        name = setup.protocol.model.name if setup.protocol.model is not None else ""
        source = (
            self._model if isinstance(self._model, nn.Module) else name if name in KNOWN else None
        )
        if source is None:
            return None
        rule = setup.protocol.local
        drawn = (
            getattr(rule, "sampling", None),
            rule.batch,
        )  # how many examples pass through the network together depends on them
        return source, setup.input_shape, setup.outputs, setup.classification, type(rule), *drawn

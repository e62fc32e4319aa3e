"""Which engine runs a training, and why: the native one where it can, torch for everything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sordino.engines.native.kernel import Kernel
from sordino.engines.native.library import fingerprint
from sordino.engines.native.translate import Refused
from sordino.engines.native_engine import NativeEngine, kernel_for
from sordino.engines.torch_engine import TorchEngine
from sordino.federation.setup import Setup
from sordino.protocol import InvalidValue, UserError

ENGINES = ("auto", "torch", "native")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An engine that was chosen, with the reason that a run notes."""

    name: str
    reason: str
    kernel: Kernel | None = None

    @property
    def fingerprint(self) -> str | None:
        """The compiled kernel, as far as results depend on it; None for torch."""
        return fingerprint(self.kernel.simd) if self.kernel is not None else None

    def start(self, setup: Setup, *, workers: int | None, device: str) -> TorchEngine | NativeEngine:
        """The engine itself; use it as a context."""
        if self.kernel is None:
            return TorchEngine(setup, workers=workers, device=device)
        return NativeEngine(setup, workers=workers, kernel=self.kernel)


def choose(setup: Setup, wanted: str, device: str = "cpu", kernel_for: Callable[[Setup], Kernel] = kernel_for) -> Choice:
    """The engine for a setup; `kernel_for` may know kernels that were made for others.

    Raises:
        UserError: "native" was asked for, and cannot run this.

    Example:
        >>> choose(setup, "auto").name  # doctest: +SKIP
        'native'
    """
    if checked_engine(wanted) == "torch":
        return Choice(name="torch", reason="it was asked for")
    try:
        if device != "cpu":
            raise Refused(f"the device is {device}")
        kernel = kernel_for(setup)
    except Refused as refusal:
        if wanted == "native":
            raise UserError(f"engine = 'native': {refusal}. Use engine = 'auto' or 'torch'.") from None
        return Choice(name="torch", reason=str(refusal))
    return Choice(name="native", reason="it was asked for" if wanted == "native" else "it has every layer of the model", kernel=kernel)


def checked_engine(wanted: str) -> str:
    """The name of an engine, if there is such an engine."""
    if wanted not in ENGINES:
        raise InvalidValue("engine", wanted, "auto, torch or native")
    return wanted

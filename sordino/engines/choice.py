"""Which engine runs a training, and why.

The native one where it can, torch for everything else; across machines, Flower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from typing import Protocol as Interface

from sordino.engines.compiled import (
    Kernel,
    KernelRefusal,
    NativeEngine,
    fingerprint_library,
    kernel_for,
)
from sordino.engines.torch_engine import TorchEngine
from sordino.federation.setup import Setup
from sordino.federation.training import ScoringEngine
from sordino.protocol import InvalidValue, UserError
from sordino.protocol.addresses import Address

ENGINES = ("auto", "torch", "native", "flower")


@dataclass(frozen=True, kw_only=True)
class SuperLink:
    """Where the machines of a federation meet, and how long the server waits for them.

    Attributes:
        address: Host and port.
        certificate: File of the authority that signed the SuperLink's certificate; None: no TLS,
            for tests on one machine.
        patience: Seconds that clients are given to connect, before the first round and after they
            were lost.
        deadline: Seconds that clients are given to answer in a round.

    Example:
        >>> SuperLink(address="127.0.0.1:8000", certificate="certificates/ca.crt").deadline
        600.0
    """

    address: str
    certificate: str | None
    patience: float = 120.0
    deadline: float = 600.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", Address().accept_value("superlink", self.address))
        for name, seconds in (("patience", self.patience), ("deadline", self.deadline)):
            if not 0 < seconds < math.inf:
                raise InvalidValue(name, seconds, "a number of seconds above 0")


class Chosen(Interface):
    """An engine that was chosen: what a run notes about it, and how it is started."""

    @property
    def name(self) -> str:
        """Which one."""

    @property
    def reason(self) -> str:
        """Why this one."""

    @property
    def fingerprint(self) -> str | None:
        """What results depend on in it, beyond torch."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What else a run notes."""

    def start(
        self, setup: Setup, *, workers: int | None, device: str
    ) -> AbstractContextManager[ScoringEngine]:
        """Returns the engine itself.

        Args:
            setup: The federation.
            workers: How many processes or threads; None for one per core.
            device: Where they work.
        """


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """Describes an engine that was chosen, with the reason that a run notes.

    Attributes:
        name: "native" or "torch".
        reason: Why this one.
        kernel: The compiled model, for the native engine.
    """

    name: str
    reason: str
    kernel: Kernel | None = None

    @property
    def fingerprint(self) -> str | None:
        """The compiled kernel, as far as results depend on it; None for torch."""
        return fingerprint_library(self.kernel.simd) if self.kernel is not None else None

    @property
    def facts(self) -> dict[str, Any]:
        """Nothing else."""
        return {}

    def start(
        self, setup: Setup, *, workers: int | None, device: str
    ) -> TorchEngine | NativeEngine:
        """Returns the engine itself; use it as a context.

        Args:
            setup: The federation.
            workers: How many processes or threads; None for one per core.
            device: Where they work.
        """
        if self.kernel is None:
            return TorchEngine(setup, workers=workers, device=device)
        return NativeEngine(setup, workers=workers, kernel=self.kernel)


def choose(
    setup: Setup,
    wanted: str,
    device: str = "cpu",
    kernel_for: Callable[[Setup], Kernel] = kernel_for,
) -> EngineChoice:
    """Returns the engine for a setup.

    Args:
        setup: The federation.
        wanted: "auto", "native" or "torch".
        device: Where it is to work.
        kernel_for: How a kernel is made; it may know kernels that were made for others.

    Returns:
        The engine and the reason for it.

    Raises:
        UserError: "native" was asked for, and cannot run this.

    Example:
        >>> choose(setup, "auto").name  # doctest: +SKIP
        'native'
    """
    if check_engine(wanted) == "torch":
        return EngineChoice(name="torch", reason="it was requested")
    try:
        if device != "cpu":
            raise KernelRefusal(f"the device is {device}")
        kernel = kernel_for(setup)
    except KernelRefusal as refusal:
        if wanted == "native":
            raise UserError(
                f"engine = 'native': {refusal}. Use engine = 'auto' or 'torch'."
            ) from None
        return EngineChoice(name="torch", reason=str(refusal))
    return EngineChoice(
        name="native",
        reason="it was requested" if wanted == "native" else "it has every layer of the model",
        kernel=kernel,
    )


def check_engine(wanted: str, superlink: SuperLink | None = None) -> str:
    """Returns the name of an engine, if there is such an engine.

    Args:
        wanted: The name.
        superlink: Where the machines of a federation meet.

    Raises:
        InvalidValue: There is no such engine.
        UserError: The engine across machines without a place to meet, or a place for another one.
    """
    if wanted not in ENGINES:
        raise InvalidValue("engine", wanted, "auto, torch, native or flower")
    if (wanted == "flower") != (superlink is not None):
        raise UserError(
            'engine = "flower" and --superlink HOST:PORT go together: the machines of the '
            "federation meet there."
        )
    return wanted

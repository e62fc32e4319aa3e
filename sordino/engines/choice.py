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
        certificate: The file of the authority that signed the SuperLink's certificate; None for no
            TLS, in tests on one machine.
        patience: The seconds that clients have to connect, before the first round and after they
            were lost.
        deadline: The seconds that clients have to answer in a round.

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
    """An engine that was chosen: the facts that a run notes about it, and how it is started."""

    @property
    def name(self) -> str:
        """The name of the engine."""

    @property
    def reason(self) -> str:
        """Why this engine was chosen."""

    @property
    def fingerprint(self) -> str | None:
        """The version of compiled code on which results depend; None without any."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Further facts that a run notes."""

    def start(
        self, setup: Setup, *, workers: int | None, device: str
    ) -> AbstractContextManager[ScoringEngine]:
        """Returns the engine itself; use it as a context.

        Args:
            setup: The federation.
            workers: How many processes or threads train clients; None for one per core.
            device: "cpu", "cuda" or "mps".
        """


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """Describes an engine that was chosen, with the reason that a run notes.

    Attributes:
        name: "native" or "torch".
        reason: Why this engine was chosen.
        kernel: The compiled model, for the native engine.
    """

    name: str
    reason: str
    kernel: Kernel | None = None

    @property
    def fingerprint(self) -> str | None:
        """The version of the compiled kernel on which results depend; None for torch."""
        return fingerprint_library(self.kernel.simd) if self.kernel is not None else None

    @property
    def facts(self) -> dict[str, Any]:
        """Further facts that a run notes: none."""
        return {}

    def start(
        self, setup: Setup, *, workers: int | None, device: str
    ) -> TorchEngine | NativeEngine:
        """Returns the engine itself; use it as a context.

        Args:
            setup: The federation.
            workers: How many processes or threads train clients; None for one per core.
            device: "cpu", "cuda" or "mps".
        """
        if self.kernel is None:
            return TorchEngine(setup, workers=workers, device=device)
        return NativeEngine(setup, workers=workers, kernel=self.kernel)


def choose_engine(
    setup: Setup,
    wanted: str,
    device: str = "cpu",
    kernel_for: Callable[[Setup], Kernel] = kernel_for,
) -> EngineChoice:
    """Returns the engine for a setup.

    Args:
        setup: The federation.
        wanted: "auto", "native" or "torch".
        device: "cpu", "cuda" or "mps".
        kernel_for: The function that makes a kernel; it may share kernels among trainings.

    Returns:
        The engine and the reason for it.

    Raises:
        UserError: "native" was asked for, and cannot run this.

    Example:
        >>> choose_engine(setup, "auto").name  # doctest: +SKIP
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
    reason = "it has every layer of the model"
    if wanted == "native":
        reason = "it was requested"
    return EngineChoice(name="native", reason=reason, kernel=kernel)


def check_engine(wanted: str, superlink: SuperLink | None = None) -> str:
    """Returns the name of an engine, if there is such an engine.

    Args:
        wanted: The name.
        superlink: Where the machines of a federation meet; None in one process.

    Raises:
        InvalidValue: There is no such engine.
        UserError: A SuperLink is missing for flower, or given for another engine.
    """
    if wanted not in ENGINES:
        raise InvalidValue("engine", wanted, "auto, torch, native or flower")
    if (wanted == "flower") != (superlink is not None):
        raise UserError(
            'engine = "flower" and --superlink HOST:PORT go together: the machines of the '
            "federation meet there."
        )
    return wanted

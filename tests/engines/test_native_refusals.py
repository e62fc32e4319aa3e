"""What the native kernel does not do, it refuses; a silent change of the clip or of the noise would break the promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sordino import ClientBudget, Gaussian, Laplace, Scaffold
from sordino.engines import native_engine
from sordino.federation.setup import prepare
from tests.support import toy_dataset, toy_protocol

LOCAL = toy_protocol().local
BUDGETS = tuple(ClientBudget(id=k, epsilon=50.0, mechanism="gaussian") for k in range(5))


@pytest.mark.parametrize("changes", [
    {"local": replace(LOCAL, clip_norm="l1")},
    {"local": replace(LOCAL, clip_target="update")},
    {"local": Scaffold(steps=3, batch=6, clip=1.0, schedule=LOCAL.schedule)},
    {"noise": Laplace(scale=0.1)},
    {"noise": Gaussian(sigma=0.1, where="server")},
    {"noise": Gaussian(sigma=0.1, server_sigma=0.1, where="both")},
    {"client": BUDGETS},
    {"client": BUDGETS, "penalty": True},
])  # fmt: skip
def test_the_kernel_refuses_what_it_would_do_otherwise(changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_engine, "chosen", lambda: "portable")  # also where the kernel is not built
    setup = prepare(toy_protocol(**changes), data=toy_dataset(), model="logistic")
    with pytest.raises(native_engine.Refused, match=r"adds the same noise|clips the l2 norm|not one that the native kernel has"):
        native_engine.kernel_for(setup)

"""An audit with its default settings notices every fault of the C++ alone."""

from dataclasses import replace

import pytest

from sordino import audit
from sordino.native import library
from sordino.protocol import Constant, Data, Gaussian, Laplace, Model, NoisySgd, Protocol, Scaffold
from tests.kernel_faults import FAULTS, choose_fault, faulty_kernel, needs_compiler

__all__ = ["faulty_kernel"]

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(library.choose_instruction_set() is None, reason="no compiled kernel"),
]
STEPS = {"steps": 2, "batch": 4, "clip": 1.0, "schedule": Constant(rate=0.1)}
PLANS = {
    "noisy uploads": Protocol(
        seed=3, clients=3, rounds=3, local=Scaffold(**STEPS), noise=Gaussian(sigma=0.4)
    ),
}
PLANS["noisy steps"] = replace(
    PLANS["noisy uploads"],
    local=NoisySgd(**STEPS),
    noise=Gaussian(multiplier=1.0),
    data=Data(name="digits", records=8),
)
PLANS["laplace steps"] = replace(
    PLANS["noisy steps"],
    local=NoisySgd(**STEPS, sampling="poisson"),
    noise=Laplace(scale=1.0),
    # The price of Laplace noise depends on the number of parameters.
    model=Model(name="mlp", parameters=10),
)


def attack(protocol, tmp_path):
    return audit(protocol, trainings=300, folder=tmp_path / "audit", workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_the_test_build_without_a_fault_passes(plan, tmp_path, monkeypatch, faulty_kernel) -> None:
    choose_fault(monkeypatch, faulty_kernel, None)
    finding = attack(PLANS[plan], tmp_path)
    assert not finding.contradicted
    assert "native" in finding.as_document()["engine"]["name"]
    assert library.load_library("portable").sordino_has_faults() == 1


# Noisy steps have no control variates, and only what is not normal has a stand-in.
ABSENT = {
    "noisy uploads": {"normal stand-in"},
    "noisy steps": {"normal stand-in", "control variates left out"},
    "laplace steps": set(FAULTS) - {"normal stand-in", "noise drawn twice"},
}
CASES = [(plan, fault) for plan in PLANS for fault in FAULTS if fault not in ABSENT[plan]]


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "fault"), CASES)
def test_a_fault_of_the_compiled_code_is_caught(
    plan, fault, tmp_path, monkeypatch, faulty_kernel
) -> None:
    choose_fault(monkeypatch, faulty_kernel, fault)
    finding = attack(PLANS[plan], tmp_path)
    assert finding.contradicted
    # The game, which does not use the kernel, is as it should be.
    assert finding.verdict != "refuted"
    assert "engine native, " in finding.engine.place


def test_no_shipped_library_has_faults() -> None:
    for name in library.list_runnable():
        assert library.load_library(name).sordino_has_faults() == 0

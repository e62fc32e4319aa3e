"""The examples in the docstrings run, and a Gaussian answer loads nothing heavy."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import sordino.papers
import sordino.privacy

ROOMS = (sordino.privacy, sordino.papers)
MODULES = [
    f"{room.__name__}.{found.name}"
    for room in ROOMS
    for found in pkgutil.iter_modules(room.__path__)
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_a_gaussian_answer_loads_neither_dp_accounting_nor_scipy_stats() -> None:
    code = (
        "import sys; from sordino.privacy.amplification.cohorts import Cohort, round_curve;"
        "round_curve(1.0, sigma=1.0, cohort=Cohort.poisson(clients=5, rate=0.5)).epsilon(1e-5);"
        "print(*(name for name in ('dp_accounting', 'scipy.stats', 'scipy.optimize', 'torch') if name in sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == ""
    )

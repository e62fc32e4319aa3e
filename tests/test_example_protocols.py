"""The protocol files that ship with the package: valid, priced, and within their budgets."""

import math

import pytest

from sordino.cli import example_text
from sordino.privacy.certify import certify
from sordino.protocol import loads

NAMES = ["digits", "dp-fedavg", "nbafl", "shuffler", "harmonizer", "udp-fl-mnist", "wind-scaffold"]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_valid_and_keeps_its_budget(name: str) -> None:
    protocol = loads(example_text(name))
    assert math.isfinite(certify(protocol, "rounds", delta=1e-3).epsilon(1e-3))
    budget = protocol.privacy.budget
    if budget is not None:
        assert certify(protocol, budget.view, budget.unit, delta=budget.delta).epsilon(budget.delta) <= budget.epsilon
    assert math.isinf(certify(protocol).epsilon(1e-5)) == (protocol.noise.where == "server")

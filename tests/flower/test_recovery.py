"""Training goes on without a person after what happens to machines: minutes, so `make test-flower`."""

import os
import time

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")
if not os.environ.get("SORDINO_FLOWER"):
    pytest.skip("deployments take minutes: make test-flower", allow_module_level=True)

from benchmarks.recovery import FAULTS, Trial
from tests.flower.lab import SLOW, Lab


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """Two nodes that train for longer than these tests take."""
    folder = tmp_path_factory.mktemp("recovery")
    with Lab(folder / "lab") as lab:
        made = Trial(lab, folder)
        made.begin()
        yield made


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("client process killed", "The process of a task ended by signal 9"),
        ("SuperNode killed", r"The node ended \(-9\)"),
        ("SuperNode frozen (SIGSTOP)", "The node no longer looks for messages"),
        ("network cut, 90 s", "The SuperLink is out of reach"),
        ("SuperLink killed", ""),
    ],
)
def test_a_round_of_all_clients_ends_again_and_nothing_is_charged_twice(trial, fault, why) -> None:
    FAULTS[fault](trial)
    over = time.monotonic()
    trial.wait_for_whole_round(trial.rounds(), seconds=2 * SLOW)
    assert time.monotonic() - over < 2 * SLOW
    assert not trial.paid_twice()
    if why:
        trial.lab.wait_until("node-1", why, seconds=10.0)

"""Training goes on without a person after what happens to machines, and both sides' ledgers agree afterwards."""

import os
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from benchmarks.recovery import (
    Trial,
    cut,
    freeze_node,
    kill_client,
    kill_link,
    kill_node,
)
from sordino.flower.flower_commands import make_environment
from tests.flower.lab import SLOW, Lab, free_port

pytestmark = pytest.mark.soak

# Seconds without a sign of life after which a node counts as silent here: a tenth of the cuts that
# `python -m benchmarks.recovery` measures is then as long for the supervisor as a whole one.
SILENCE = 10.0
CUT = 20.0
IMPATIENT = f"""
import sys
from sordino.flower import node_supervisor
node_supervisor.SILENCE = {SILENCE}
sys.exit(node_supervisor.main(sys.argv[1:]))
"""


class ImpatientLab(Lab):
    """A deployment whose nodes are supervised with less patience."""

    def start_node(self, client: int):
        self.wait_for_link()
        folder = self.client(client)
        command = [sys.executable, "-c", IMPATIENT, str(folder), str(free_port())]
        environment = {**os.environ, **make_environment(folder / "flower")}
        return self.spawn_any(f"node-{client}", command, environment)


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """Two nodes that train for longer than these tests take."""
    folder = tmp_path_factory.mktemp("recovery")
    with ImpatientLab(folder / "lab") as lab:
        made = Trial(lab, folder)
        made.begin()
        yield made


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        (
            [(kill_client, 0), (kill_node, 1)],
            {0: "The process of a task ended by signal 9", 1: r"The node ended \(-9\)"},
        ),
        (
            [(freeze_node, 0), (cut(CUT), 1)],
            {0: "The node no longer looks for messages", 1: "The SuperLink is out of reach"},
        ),
        ([(kill_link, 1)], {}),
    ],
    ids=["killed", "frozen and cut off", "SuperLink killed"],
)
def test_a_round_of_all_clients_ends_again_with_nothing_charged_twice_and_nothing_lost(
    trial, faults, said
) -> None:
    """Two faults at a time, one on each node."""
    for fault, client in faults:
        fault(trial, client)
    trial.wait_for_whole_round(trial.rounds(), seconds=2 * SLOW)
    for client, words in said.items():
        trial.lab.wait_until(f"node-{client}", words, seconds=10.0)
    assert trial.repeated_charges() == []
    assert trial.losses() == []

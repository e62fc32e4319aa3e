"""A Flower app of someone's own, deployed as Flower's users do it, with our mod in one line: a minute, so `make test-all` runs it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino.cli.main import run as sordino
from sordino.flower.client_store import ClientStore
from tests.flower.lab import Lab

pytestmark = pytest.mark.soak

APP = Path(__file__).parent / "own_app"


def test_an_app_of_someones_own_is_private_by_one_line(tmp_path, capfd) -> None:
    """Flower's own SuperLink, SuperNodes and `flwr run`. The third round would pass the budget: both clients refuse it, and all scores."""
    out = tmp_path / "result.json"
    with Lab(tmp_path / "lab") as lab:
        lab.start_link()
        for client in range(2):
            settings = (
                f"partition-id={client} sordino-folder={json.dumps(str(tmp_path / str(client)))}"
            )
            lab.start_stranger(f"node-{client}", "--insecure", "--node-config", settings)
        number = lab.submit(APP, out=str(out), rounds=3)
        assert lab.ended(number) == "finished:completed"
    told = json.loads(out.read_text())
    assert told["train"] == [1, 2]
    assert told["evaluate"] == []
    assert 2.0 < np.std(told["weight"]) < 6.0  # noise of 4 / sqrt(2) in each of two rounds
    for client in range(2):
        store = ClientStore(tmp_path / str(client))
        assert store.rounds_paid == [0, 1]
        assert len(store.refusals) == 4
        assert sordino(["flower", "spent", str(store.folder)]) == 0
    assert len(re.findall("Answered +2 rounds", capfd.readouterr().out)) == 2

"""One deployment of two nodes, as `make test` runs it: the same model as the embedded engine, bit for bit."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino import train
from sordino.engines.flower.custody import Custodian
from tests.flower.lab import Lab
from tests.flower.local import plan, weights


def test_two_machines_end_with_the_model_of_the_embedded_engine(tmp_path) -> None:
    protocol, seen = plan(clients=2, rounds=2, missing="repeat"), []
    with Lab(tmp_path / "lab") as lab:
        lab.start_link()
        alone = train(protocol, folder=tmp_path / "alone", engine="torch", workers=1, report=False)
        lab.start_nodes(protocol, "--seeded")
        run = train(protocol, folder=tmp_path / "across", engine="flower", superlink=lab.superlink, report=False, on_round=seen.append)
        paid = [Custodian(lab.client(client)).rounds_paid for client in range(2)]
    assert run.status == "finished"
    assert weights(run) == weights(alone)
    assert run.ledger == alone.ledger
    assert [metrics.round for metrics in seen] == [0, 1]
    assert [metrics.loss for metrics in seen] == alone.metrics["loss"].tolist()
    assert paid == [[0, 1], [0, 1]]
    assert run.facts["engine"] == "flower"

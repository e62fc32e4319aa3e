"""One deployment of two nodes, as `make test` runs it: the same model as the embedded engine, bit for bit."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino import Data, train
from sordino.flower.client_store import ClientStore
from tests.flower.lab import Lab
from tests.flower.local import charges, plan, weights


@pytest.mark.soak
def test_two_machines_end_with_the_model_of_the_embedded_engine(tmp_path) -> None:
    generator, seen = np.random.default_rng(0), []
    # A file, since every message starts a process anew, and built-in data would make each wait for what they come with.
    np.savez(
        tmp_path / "records.npz",
        x=generator.normal(size=(120, 20)),
        y=generator.integers(0, 3, size=120),
    )
    protocol = plan(
        clients=2,
        rounds=2,
        missing="repeat",
        data=Data(name=str(tmp_path / "records.npz"), records=40, classes=3),
    )
    with Lab(tmp_path / "lab") as lab:
        lab.start_link()
        alone = train(protocol, folder=tmp_path / "alone", engine="torch", workers=1, report=False)
        lab.start_nodes(protocol, "--seeded")
        run = train(
            protocol,
            folder=tmp_path / "across",
            engine="flower",
            superlink=lab.superlink,
            report=False,
            on_round=seen.append,
        )
        paid = [ClientStore(lab.client(client)).rounds_paid for client in range(2)]
    assert run.status == "finished"
    assert weights(run) == weights(alone)
    assert charges(run) == charges(alone) != []
    assert [metrics.round for metrics in seen] == [0, 1]
    assert [metrics.loss for metrics in seen] == alone.metrics["loss"].tolist()
    assert paid == [[0, 1], [0, 1]]
    assert run.facts["engine"] == "flower"

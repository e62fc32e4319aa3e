"""One deployment of two nodes, as `make test` runs it: the same model as the embedded engine, bit for bit."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino import Constant, Data, FedAvg, Gaussian, Model, Protocol, train
from sordino.engines.flower.custody import Custodian
from tests.flower.lab import Lab


def plan(**changes: object) -> Protocol:
    local = FedAvg(steps=3, batch=6, clip=1.0, schedule=Constant(rate=0.3))
    settings = {"seed": 3, "clients": 2, "rounds": 2, "local": local, "noise": Gaussian(sigma=0.05)}
    data = {"data": Data(name="digits", records=60), "model": Model(name="mlp")}
    return Protocol(**{**settings, **data, **changes})  # type: ignore[arg-type]


def weights(run) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in run.state.items()}


def test_two_machines_end_with_the_model_of_the_embedded_engine(tmp_path) -> None:
    alone = train(plan(), folder=tmp_path / "alone", engine="torch", workers=1)
    seen = []
    with Lab(tmp_path / "lab") as lab:
        lab.start_link()
        lab.start_nodes(plan(), "--seeded")
        run = train(plan(), folder=tmp_path / "across", engine="flower", superlink=lab.superlink, on_round=seen.append)
    assert run.status == "finished"
    assert weights(run) == weights(alone)
    assert run.ledger == alone.ledger
    assert [metrics.round for metrics in seen] == [0, 1]
    assert [metrics.loss for metrics in seen] == alone.metrics["loss"].tolist()
    assert [Custodian(lab.folder / f"client-{client}").rounds_paid for client in (0, 1)] == [[0, 1], [0, 1]]
    assert run.facts["engine"] == "flower"

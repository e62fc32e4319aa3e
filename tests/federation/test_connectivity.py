"""Mode connectivity: points of the paths, bends that lower the loss, the tree over clients, and public records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino import Gaussian, ModeConnectivity, UserError, train
from sordino.federation.aggregation.mode_connectivity import CURVES, Connector
from sordino.federation.record_tensors import Tensors
from sordino.models.flat import FlatModel
from sordino.privacy.certify import certify
from sordino.protocol import dumps, loads
from sordino.randomness import Key, Purpose
from tests.support import toy_dataset, toy_protocol


def streams(seed: int = 1) -> list[object]:
    return [Key.from_seed(seed).stream(Purpose.CONNECTIVITY, step=join) for join in range(64)]


@pytest.mark.parametrize("curve", CURVES)
def test_paths_begin_and_end_at_the_models_and_are_continuous(curve: str) -> None:
    point = CURVES[curve]
    assert point(0.0) == (1.0, 0.0, 0.0)
    assert point(1.0) == (0.0, 0.0, 1.0)
    for p in np.linspace(0, 1, 41).tolist():
        assert sum(point(p)) == pytest.approx(1.0)
        assert np.abs(np.subtract(point(min(1.0, p + 1e-9)), point(p))).max() < 1e-8


class Valley(torch.nn.Module):
    """A loss with a curved valley: (|w|^2 - 1)^2, so two models on the circle are joined by an arc and not by their chord."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (self.weight.square().sum() - 1).expand(len(inputs), 1)


def valley_connector(curve: str, steps: int) -> Connector:
    records = Tensors(
        x=torch.zeros(8, 1), y=torch.zeros(8), scale=torch.ones(()), shift=torch.zeros(())
    )
    rule = ModeConnectivity(public="x", curve=curve, steps=steps, batch=4, rate=0.2)
    return Connector(FlatModel(Valley()), records, lambda out, _: out.square().mean(), rule)


@pytest.mark.parametrize("curve", CURVES)
def test_a_bend_leaves_the_chord_for_the_valley(curve: str) -> None:
    first, second = (torch.tensor(w, dtype=torch.float64) for w in ((1.0, 0.0), (0.0, 1.0)))
    theta = valley_connector(curve, 400).bend(first, second, streams()[0])  # type: ignore[arg-type]
    straight = (first + second) / 2

    def path_loss(bend: torch.Tensor) -> float:
        points = [CURVES[curve](p) for p in np.linspace(0, 1, 51).tolist()]
        return float(
            np.mean(
                [
                    float(((a * first + b * bend + c * second).square().sum() - 1) ** 2)
                    for a, b, c in points
                ]
            )
        )

    assert path_loss(theta) < 0.35 * path_loss(straight)
    assert theta.norm() > straight.norm()
    np.testing.assert_array_equal(
        valley_connector(curve, 0).bend(first, second, streams()[0]), straight
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 16])
def test_a_tree_joins_all_models_in_one_less_than_their_number(count: int) -> None:
    taken = []

    def counted() -> object:
        for stream in streams():
            taken.append(stream)
            yield stream

    models = [np.array([float(n), 0.0]) for n in range(count)]
    joined = valley_connector("chain", 0).joined(models, counted())  # type: ignore[arg-type]
    assert len(taken) == count - 1
    weights = np.zeros(count)
    share = [np.eye(count)[n] for n in range(count)]
    while len(share) > 1:
        share = [(share[at] + share[at + 1]) / 2 for at in range(0, len(share) - 1, 2)] + share[
            len(share) - len(share) % 2 :
        ]
    weights = share[0]
    assert joined[0] == pytest.approx(float(weights @ np.arange(count)))


def records(path: Path, classes: int = 3, features: int = 6) -> str:
    data = toy_dataset(records=120, features=features, classes=classes)
    names = np.array([str(label) for label in range(classes)])
    parts = {name: getattr(data, name) for name in ("x_train", "y_train", "x_test", "y_test")}
    np.savez(path, classes=names, **parts)
    return str(path)


def test_a_federation_learns_with_public_records_of_the_same_kind(tmp_path: Path) -> None:
    private = records(tmp_path / "private.npz")
    rule = ModeConnectivity(public=records(tmp_path / "public.npz"), steps=10, batch=16, rate=0.1)
    protocol = toy_protocol(aggregation=rule, noise=Gaussian(sigma=0.01))
    assert loads(dumps(protocol)) == protocol
    first = train(protocol, data=private, model="logistic", folder=tmp_path / "a", workers=1)
    second = train(protocol, data=private, model="logistic", folder=tmp_path / "b", workers=2)
    assert all(
        torch.equal(value, (second.state or {})[name])
        for name, value in (first.state or {}).items()
    )
    assert first.metrics["loss"][-1] < first.metrics["loss"][0]


def test_public_records_are_needed_and_must_fit(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="public"):
        loads(
            dumps(toy_protocol()).replace(
                'aggregation = "mean"', 'aggregation = "mode-connectivity"'
            )
        )
    private = records(tmp_path / "private.npz")
    for classes, features in ((4, 6), (3, 5)):
        rule = ModeConnectivity(
            public=records(tmp_path / f"{classes}-{features}.npz", classes, features)
        )
        with pytest.raises(
            UserError,
            match=r"cannot be trained on other|has the classes \[\"0\", \"1\", \"2\", \"3\"\]",
        ):
            train(
                toy_protocol(aggregation=rule),
                data=private,
                model="logistic",
                folder=tmp_path / "run",
            )
    data = np.load(private)
    kept = data["y_train"] != 1  # classes 0 and 2 are left, and a name for the one between them
    np.savez(
        tmp_path / "gap.npz",
        **{**data, "x_train": data["x_train"][kept], "y_train": data["y_train"][kept]},
    )
    gap = ModeConnectivity(public=str(tmp_path / "gap.npz"))
    with pytest.raises(UserError, match="no training record of class '1'"):
        train(
            toy_protocol(aggregation=gap), data=private, model="logistic", folder=tmp_path / "run"
        )
    with pytest.raises(UserError, match="not public"):
        train(
            toy_protocol(aggregation=ModeConnectivity(public=private)),
            data=private,
            model="logistic",
            folder=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_joining_models_is_post_processing() -> None:
    protocol = toy_protocol(aggregation=ModeConnectivity(public="x"))
    plain = certify(replace(toy_protocol())).epsilon(1e-5)
    for view in ("server", "rounds", "coalition:1", "final"):
        assert certify(protocol, view).epsilon(1e-5) == plain

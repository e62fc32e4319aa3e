"""A training behind secure sums across machines ends with the model of the same training on one machine, bit for bit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino import Constant, Data, DpSgd, FedAvg, Gaussian, Protocol, train
from sordino.cli.main import run as sordino
from sordino.federation.training import Incomplete
from sordino.flower import connected_clients, reply_collection
from sordino.flower.client_store import ClientStore
from sordino.protocol import AdaptiveClip, Mean, Poisson, SecureAggregation, save_protocol
from tests.flower.local import LocalGrid, across, agreed, charges, gone_on_with, plan, weights
from tests.flower.summing import fingerprints, wave_of, write_identity


@pytest.fixture(autouse=True)
def in_no_hurry(monkeypatch) -> None:
    monkeypatch.setattr(reply_collection, "POLL", 0.0)
    monkeypatch.setattr(connected_clients, "POLL", 0.0)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def summed(clients: int = 3, threshold: int = 2, bits: int = 64, **changes: Any) -> Protocol:
    return plan(
        clients=clients, channel=SecureAggregation(threshold=threshold, bits=bits), **changes
    )


def consortium(folder: Path, protocol: Protocol, **terms: Any) -> LocalGrid:
    for client in range(protocol.clients):
        key = folder / f"{client}.key"
        key.parent.mkdir(parents=True, exist_ok=True)
        write_identity(key, client)
        known = {"key": str(key), "clients": fingerprints(protocol.clients)}
        agreed(folder / f"client-{client}", client, protocol, **known, **terms)
    return LocalGrid(folder)


PLANS = {
    "64 bits": {},
    "32 bits": {"bits": 32},
    "weights by records": {
        "aggregation": Mean(weights="records"),
        "data": Data(name="digits", sizes=(30, 40, 60)),
    },
    "dp-sgd": {
        "local": DpSgd(batch=6, clip=0.5, schedule=Constant(rate=2.0)),
        "noise": Gaussian(multiplier=1.0),
    },
    "a clip that follows": {
        "local": FedAvg(
            steps=3,
            batch=6,
            clip=0.3,
            schedule=Constant(rate=0.3),
            clip_target="update",
            adaptive=AdaptiveClip(quantile=0.6),
        ),
    },
    "a clip of lots that follows": {
        "local": DpSgd(
            batch=6, clip=0.5, schedule=Constant(rate=2.0), adaptive=AdaptiveClip(quantile=0.6)
        ),
        "noise": Gaussian(multiplier=1.0),
        "bits": 32,
    },
    "drawn by chance": {"clients": 4, "threshold": 3, "participation": Poisson(rate=0.8)},
}


@pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS)
def test_the_model_is_that_of_one_machine(tmp_path, changes) -> None:
    protocol = summed(**changes)
    alone = train(protocol, folder=tmp_path / "alone", engine="torch", workers=1, report=False)
    run = across(tmp_path / "across", protocol, consortium(tmp_path / "all", protocol))
    assert run.status == "finished"
    assert weights(run) == weights(alone)
    assert charges(run) == charges(alone) != []


def test_a_client_that_falls_silent_is_left_out_of_the_sum_and_named(tmp_path) -> None:
    protocol = summed(4, 3)
    grid = consortium(tmp_path / "all", protocol)
    grid.troubles[3] = lambda request, reply: None
    run = across(tmp_path / "across", protocol, grid, deadline=0.1)
    assert run.status == "finished"
    assert run.metrics["participants"].tolist() == [3, 3, 3]
    assert weights(run) == train_without(protocol, [{3}] * 3)
    ledger = ClientStore(tmp_path / "all" / "client-0").shares_given
    assert [one.survivors for one in ledger] == [(0, 1, 2)] * 3
    assert [one.threshold for one in ledger] == [3] * 3


def test_below_the_threshold_a_round_is_lost_and_resumed_with_a_new_charge(tmp_path) -> None:
    protocol = summed(3, 3, noise=Gaussian(sigma=0.05, secure=True))
    grid = consortium(tmp_path / "all", protocol)
    grid.troubles[2] = lambda request, reply: None
    with pytest.raises(Incomplete, match="stayed under masks"):
        across(tmp_path / "across", protocol, grid, deadline=0.1)
    paid = len(ClientStore(tmp_path / "all" / "client-0").rounds_paid)
    assert paid >= 1
    grid.troubles.clear()
    grid.begin(2)
    with pytest.raises(Incomplete, match="they are spent"):
        # Rounds that were lost count: three uploads were agreed to, and there are three rounds.
        gone_on_with(tmp_path / "across", grid)


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_and_ends_with_the_same_model(tmp_path, monkeypatch) -> None:
    from sordino.flower.sum_rounds import SecureRounds

    protocol = summed(3, 2)
    alone = train(protocol, folder=tmp_path / "alone", engine="torch", workers=1, report=False)
    grid = consortium(tmp_path / "all", protocol)
    genuine = SecureRounds._unmask

    def die(self: Any, under_way: Any, confirmations: Any) -> Any:
        if under_way.label.round == 1:
            raise KeyboardInterrupt
        return genuine(self, under_way, confirmations)

    with monkeypatch.context() as patch:
        patch.setattr(SecureRounds, "_unmask", die)
        with pytest.raises(KeyboardInterrupt):
            across(tmp_path / "across", protocol, grid)
    grid.begin(2)
    run = gone_on_with(tmp_path / "across", grid)
    assert run.status == "finished"
    assert weights(run) == weights(alone)


def test_the_server_sees_masked_vectors_only(tmp_path) -> None:
    """What a client sends has nothing in common with its upload, which only sums reveal."""
    protocol = summed(3, 2, rounds=1)
    grid = consortium(tmp_path / "all", protocol)
    arrived: dict[int, np.ndarray] = {}

    def look(client: int) -> Any:
        def note(request: Any, reply: Any) -> Any:
            arrived[client] = reply.content["upload"]["vector"].numpy()
            return reply

        return note

    for client in range(3):
        grid.troubles[client] = look(client)
    across(tmp_path / "across", protocol, grid)
    waves = [wave_of(message) for _, message in grid.asked]
    assert waves == [""] * 3 + ["key"] * 3 + ["prepare"] * 3 + ["mask"] * 3 + ["unmask"] * 3
    for vector in arrived.values():
        # Uniform residues use the whole range; an update with its noise uses a quarter at most.
        share = np.mean((vector > 2**62) & (vector < 3 * 2**62))
        assert 0.45 < share < 0.55


def test_a_client_agrees_by_the_coordinators_list_of_keys(tmp_path, capsys) -> None:
    protocol = summed(3, 2, noise=Gaussian(sigma=0.05, secure=True))
    save_protocol(protocol, tmp_path / "protocol.toml")
    write_identity(tmp_path / "node.key", 0)
    counter = tmp_path / "counter"

    def agree(folder: str, *more: str) -> int:
        fixed = ["--client", "0", "--key", str(tmp_path / "node.key"), "--counter", str(counter)]
        where = [str(tmp_path / "protocol.toml"), str(tmp_path / folder)]
        return sordino(["flower", "agree", *where, *fixed, *more])

    listed = tmp_path / "clients.json"
    assert agree("a") == 2
    assert "must know its own key" in capsys.readouterr().err.replace("\n", " ")
    assert agree("b", "--clients", str(listed)) == 2
    assert "Give your public key to the coordinator" in capsys.readouterr().err.replace("\n", " ")
    keys = dict(enumerate(fingerprints(3)))
    listed.write_text(json.dumps({**keys, 0: keys[1], 1: keys[0]}))
    assert agree("c", "--clients", str(listed)) == 2
    assert "another key in the list" in capsys.readouterr().err.replace("\n", " ")
    # Who compares the list line by line must not overlook the line that counts.
    for hidden in ("1", "01", " 1", "1_0"):
        lines = [*keys.items(), (hidden, "the key of nobody")]
        fields = ", ".join(f'"{client}": "{key}"' for client, key in lines)
        listed.write_text(f"{{{fields}}}")
        assert agree("c", "--clients", str(listed)) == 2
        assert "missing or damaged" in capsys.readouterr().err.replace("\n", " ")
    listed.write_text(json.dumps(list(keys.items())))
    assert agree("c", "--clients", str(listed)) == 2
    assert "missing or damaged" in capsys.readouterr().err.replace("\n", " ")
    listed.write_text(json.dumps(keys))
    assert agree("d", "--clients", str(listed)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "by the noise of at least 2 honest clients" in said
    assert ClientStore(tmp_path / "d").agreement.clients == fingerprints(3)


def train_without(protocol: Protocol, silent: list[set[int]]) -> dict[str, bytes]:
    """The model of one machine in whose rounds some clients do not contribute."""
    from sordino.engines.torch_engine import TorchEngine
    from sordino.federation.attendance import Attendance
    from sordino.federation.round import Round, play_round
    from sordino.federation.setup import prepare
    from sordino.federation.state import first_state

    setup = prepare(protocol)
    state = first_state(setup)

    class Without:
        def __init__(self, gone: set[int]) -> None:
            self.gone = gone
            self.absent = dict.fromkeys(gone, "")

        def charge(self, round_index: int, participants: np.ndarray) -> None:
            pass

        def confirm(self, task: Any) -> np.ndarray:
            return np.array([one for one in task.participants if one not in self.gone])

        def train(self, task: Any) -> Any:
            return (one for one in engine.train(task) if one.client not in self.gone)

    with TorchEngine(setup, workers=1) as engine:
        for gone in silent:
            without = Without(gone)
            one = Round(setup, state, Attendance({}, (), state.round), control=without)
            state = play_round(one, without).after
    return {name: one.numpy().tobytes() for name, one in setup.state(state.weights).items()}

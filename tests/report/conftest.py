"""Runs to report on: a small one with an audit, trained once; one of 10,000 rounds, written by hand."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sordino import Data, Gaussian, Run, train
from sordino.audit.auditing import audit
from sordino.federation.store.run_folder import RunFolder, protocol_digest
from sordino.privacy.ledger_lines import Opened, RoundCharged, encode_line
from sordino.protocol import Budget, Dirichlet, Model, Poisson, Privacy, Protocol, dumps
from tests.support import toy_dataset, toy_protocol

BUDGET = Privacy(budget=Budget(epsilon=200.0, delta=1e-4, view="rounds"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A finished run with an audit; not to be changed."""
    return audited_run(tmp_path_factory.mktemp("runs"))


def audited_run(place: Path) -> Path:
    """Train a small run, and audit it."""
    noise = Gaussian(sigma=0.5)
    protocol = toy_protocol(
        rounds=6,
        noise=noise,
        privacy=BUDGET,
        data=Data(name="toy", partition=Dirichlet(beta=0.5), records=20),
    )
    run = train(
        protocol,
        data=toy_dataset(),
        model="logistic",
        folder=place / "small",
        workers=1,
        report=False,
    )
    audit(run.folder, "rounds", trainings=100, delta=1e-4, folder=place / "audit", workers=1)
    return run.folder


@pytest.fixture
def folder(trained, tmp_path) -> Path:
    """A copy of it that may be changed."""
    return Path(shutil.copytree(trained, tmp_path / "small"))


def written_by_hand(folder: Path, protocol: Protocol, clients_of_round, sizes: list[int]) -> Run:
    """The folder of a run of any length, as a training would have left it."""
    folder.mkdir(parents=True)
    opened = Opened(protocol=protocol_digest(protocol), generator="chacha20", noise="seeded")
    facts = {
        "status": "finished",
        "sizes": sizes,
        "engine": "native",
        "noise": "seeded",
        "parameters": 650,
        "workers": 2,
    }
    RunFolder.create(folder, protocol, facts, opened)
    chain, lines = "", []
    for event in [
        opened,
        *(RoundCharged(round=t, clients=clients_of_round(t)) for t in range(protocol.rounds)),
    ]:
        line, chain = encode_line(event, chain)
        lines.append(line)
    (folder / "ledger.jsonl").write_bytes(b"".join(lines))
    row = {
        "participants": 3,
        "signal_to_noise": 0.1,
        "bytes_up": 10,
        "bytes_down": 10,
        "clip_fraction": 0.2,
        "nonfinite_steps": 0,
    }
    rows = [
        {
            **row,
            "round": t,
            "loss": 1 + 1 / (t + 1),
            "accuracy": 1 - 1 / (t + 2),
            "seconds": 0.01,
            "status": "ok",
        }
        for t in range(protocol.rounds)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return Run.load(folder)


@pytest.fixture(scope="session")
def long_run(tmp_path_factory) -> Path:
    """10,000 rounds in which about a tenth of 300 clients takes part, every round scored."""
    protocol = toy_protocol(clients=300, rounds=10_000, participation=Poisson(rate=0.1))
    protocol = replace(protocol, data=Data(name="digits", records=20), model=Model(name="logistic"))
    assert dumps(protocol)
    run = written_by_hand(
        tmp_path_factory.mktemp("long") / "long",
        protocol,
        lambda t: tuple(range(t % 10, 300, 10)),
        [20] * 300,
    )
    return run.folder

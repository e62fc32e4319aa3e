"""Small federations that train in a moment."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from sordino import Constant, Dataset, FedAvg, Gaussian, Protocol
from sordino.audit.round_table import observe_trainings
from sordino.federation.aggregation.mean import MeanJoining
from sordino.federation.aggregation.median import MedianJoining
from sordino.federation.round import RoundTask
from sordino.federation.store.run_folder import RunFolder
from sordino.federation.store.seals import seal_folder
from sordino.privacy.ledger import Ledger
from sordino.protocol import Median

REPOSITORY = Path(__file__).resolve().parents[1]
BESIDE = REPOSITORY.parent / "shared" / "data"


def real_data_folder() -> Path:
    """Returns the folder of real data sets; without one the test is skipped, and says so."""
    folder = Path(os.environ.get("SORDINO_DATA") or BESIDE)
    if not folder.is_dir():
        pytest.skip(f"no real data: SORDINO_DATA names no folder and {BESIDE} is not there")
    return folder


def real_file(name: str) -> Path:
    """Returns a file of the real data sets; without it the test is skipped, and says so."""
    file = real_data_folder() / name
    if not file.exists():
        pytest.skip(f"no real data: {file} is not there")
    return file


def toy_dataset(records: int = 120, features: int = 6, classes: int = 3, seed: int = 0) -> Dataset:
    """Gaussian blobs, one per class."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes, features)) * 2
    labels = generator.integers(0, classes, size=records)
    x = (centres[labels] + generator.normal(size=(records, features))).astype(np.float32)
    names = tuple(f"class {i}" for i in range(classes))
    return Dataset(
        name="toy", x_train=x, y_train=labels, x_test=x[:40], y_test=labels[:40], classes=names
    )


def toy_protocol(**changes: object) -> Protocol:
    """A federation of 5 clients and 4 rounds."""
    settings: dict[str, object] = {
        "seed": 3,
        "clients": 5,
        "rounds": 4,
        "local": FedAvg(steps=3, batch=6, clip=1.0, schedule=Constant(rate=0.3)),
        "noise": Gaussian(sigma=0.05),
    }
    return Protocol(**{**settings, **changes})  # type: ignore[arg-type]


def without_seconds(metrics: dict[str, np.ndarray]) -> dict[str, list[object]]:
    """Metrics that must repeat bit for bit: all but the wall clock."""
    return {
        name: [repr(value) for value in values.tolist()]
        for name, values in metrics.items()
        if name != "seconds"
    }


def rechain(folder: Path, bodies: list[dict[str, object]]) -> None:
    """Write a ledger with these lines, chained anew as its format says: what somebody who changes one can do."""
    chain, lines = "", []
    for body in bodies:
        text = json.dumps({k: v for k, v in body.items() if k != "chain"}, separators=(",", ":"))
        chain = hashlib.sha256((chain + text).encode()).hexdigest()
        lines.append(text[:-1] + f',"chain":"{chain}"}}\n')
    (folder / "ledger.jsonl").write_text("".join(lines))


def ledger_bodies(folder: Path) -> list[dict[str, object]]:
    """The lines of a ledger, parsed."""
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def unseal_scores(folder: Path) -> None:
    """Make a run what it would be had it been written before seals said whose records are scored."""
    bodies = ledger_bodies(folder)
    rechain(folder, [{k: v for k, v in body.items() if k != "scored"} for body in bodies])


def unseal(folder: Path) -> None:
    """Make a run what it would be had it been written before there were seals."""
    first, *others = ledger_bodies(folder)
    old = {name: first[name] for name in ("v", "event", "protocol", "generator", "noise", "chain")}
    rechain(folder, [old, *(body for body in others if body["event"] != "sealed")])


def reseal(folder: Path) -> None:
    """Seal a run anew as it is now: what somebody does who changes a run and knows how it is sealed."""
    place = RunFolder(folder)
    bodies = [body for body in ledger_bodies(folder) if body["event"] != "sealed"]
    rechain(folder, bodies)
    with Ledger.resume(folder / "ledger.jsonl") as ledger:
        ledger.seal(seal_folder(place, status=place.facts()["status"], rounds=len(place.metrics())))


def aggregate(rule, current, uploads, weights, *, expected=None, noise=None):
    """Joins uploads as the server does, one after another."""
    if isinstance(rule, Median):
        joining = MedianJoining(current, weights)
    else:
        joining = MeanJoining(rule, current, weights, expected=expected, draw_noise=lambda: noise)
    for upload in uploads:
        joining.add(upload)
    return joining.finish()


def uploads_of(engine, *, round, weights, participants, kept=None):
    """The uploads that an engine makes in a round."""
    task = RoundTask(round_index=round, broadcast=weights, participants=participants, kept=kept)
    return engine.train(task)


def play_table(setup, trainings, *, rounds=None, caps=None):
    """The rounds of many trainings side by side."""
    count = setup.protocol.rounds if rounds is None else rounds
    return observe_trainings(setup, trainings, count, caps)

"""data.sizes in the file: priced as the same sizes given by hand, dealt, checked, and refused where they make no sense."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sordino.data import load_dataset
from sordino.data.partition import partition
from sordino.privacy.calibrate import calibrate
from sordino.privacy.certify import certify
from sordino.protocol import (
    ByColumn,
    Constant,
    Data,
    Dirichlet,
    FedAvg,
    Gaussian,
    InvalidValue,
    Mean,
    NoisySgd,
    Protocol,
)
from sordino.protocol.file import dumps, loads
from sordino.randomness import Key

SIZES = (24, 120, 600)
RULE = FedAvg(steps=3, batch=8, clip=1.0, schedule=Constant(rate=0.1))


def unequal(sizes: tuple[int, ...] | None = SIZES, **changes) -> Protocol:
    """Three clients whose uploads weigh as many records as they have."""
    settings = {
        "clients": 3,
        "rounds": 20,
        "local": RULE,
        "noise": Gaussian(sigma=0.2),
        "aggregation": Mean(weights="records"),
        "data": Data(name="digits", sizes=sizes),
        **changes,
    }
    return Protocol(**settings)


@pytest.mark.parametrize("view", ["server", "rounds", "coalition:1", "final"])
def test_sizes_in_the_file_are_priced_as_the_same_sizes_given_by_hand(view) -> None:
    unsaid = unequal(None)
    assert certify(unequal(), view).epsilon(1e-5) == certify(unsaid, view, sizes=SIZES).epsilon(
        1e-5
    )
    assert certify(unequal(), view).epsilon(1e-5) < certify(unsaid, view).epsilon(1e-5)


def test_sizes_given_by_hand_count_for_more_than_those_in_the_file() -> None:
    given = certify(unequal(), "rounds", sizes=(600, 600, 600)).epsilon(1e-5)
    assert given == certify(unequal(None), "rounds", sizes=(600, 600, 600)).epsilon(1e-5)


def test_calibration_takes_the_sizes_of_the_file() -> None:
    by_file = calibrate(unequal(), "rounds", epsilon=2.0).sigma
    by_hand = calibrate(unequal(None), "rounds", epsilon=2.0, sizes=SIZES).sigma
    assert by_file == by_hand
    assert by_file < calibrate(unequal(None), "rounds", epsilon=2.0).sigma / 2


def test_the_file_keeps_the_list() -> None:
    assert loads(dumps(unequal())).data == unequal().data
    assert "sizes = [24, 120, 600]" in dumps(unequal())


def test_records_are_dealt_as_the_list_says_each_once() -> None:
    parts = partition(load_dataset("digits"), Data(name="digits", sizes=SIZES), 3, Key.from_seed(1))
    assert tuple(len(part) for part in parts) == SIZES
    assert len(np.unique(np.concatenate(parts))) == sum(SIZES)


def test_a_list_that_the_data_do_not_have_is_refused() -> None:
    dataset = load_dataset("digits")
    with pytest.raises(InvalidValue, match="at most 1437 in all"):
        partition(dataset, Data(name="digits", sizes=(1000, 1000)), 2, Key.from_seed(1))
    column = np.array(["a", "b"])[np.arange(len(dataset.y_train)) % 2]
    marked = replace(dataset, columns={"ward": column})
    held = (int((column == "a").sum()), int((column == "b").sum()))
    by_ward = Data(name="digits", partition=ByColumn(column="ward"), sizes=held)
    assert tuple(map(len, partition(marked, by_ward, 2, Key.from_seed(1)))) == held
    wrong = replace(by_ward, sizes=(held[0], held[1] - 1))
    with pytest.raises(InvalidValue, match=rf"expected \[{held[0]}, {held[1]}\], as many as"):
        partition(marked, wrong, 2, Key.from_seed(1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": 4}, "one number for each of the 4 clients"),
        ({"local": replace(RULE, batch=25)}, "at most the 24 of data.sizes"),
    ],
)
def test_lists_that_do_not_fit_the_federation_are_refused(changes, message) -> None:
    with pytest.raises(InvalidValue, match=message):
        unequal(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"records": 8}, "no data.records together with it"),
        ({"partition": Dirichlet(beta=0.1)}, "deal equal numbers"),
        ({"sizes": []}, "one or more whole numbers"),
        ({"sizes": [3, 0]}, "at least 1"),
    ],
)
def test_lists_that_make_no_sense_are_refused(changes, message) -> None:
    with pytest.raises(InvalidValue, match=message):
        Data(**{"name": "digits", "sizes": SIZES, **changes})


NOISY = NoisySgd(steps=3, batch=8, clip=1.0, schedule=Constant(rate=0.1))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [unequal, lambda sizes: unequal(
    sizes, local=NOISY, noise=Gaussian(multiplier=1.0), aggregation=Mean()
)])  # fmt: skip
@pytest.mark.parametrize("command", [["certify"], ["calibrate", "--epsilon", "4"]])
def test_only_unsaid_sizes_are_remarked_upon(protocol, command, tmp_path: Path) -> None:
    said: dict[str, str] = {}
    for name, sizes in {"said": SIZES, "unsaid": None}.items():
        file = tmp_path / f"{name}.toml"
        file.write_text(dumps(protocol(sizes)))
        done = subprocess.run(
            [sys.executable, "-m", "sordino", command[0], str(file), *command[1:]],
            capture_output=True,
            text=True,
            check=True,
        )
        said[name] = done.stdout
    assert "does not say how many records clients have" in said["unsaid"]
    assert "data.sizes" in said["unsaid"]
    assert "does not say how many" not in said["said"]


def test_the_schema_knows_the_list() -> None:
    schema = json.loads((Path(__file__).parents[2] / "docs" / "sordino.schema.json").read_text())
    assert schema["properties"]["data"]["properties"]["sizes"]["items"]["minimum"] == 1

"""`sordino check` says before a training whose records will be scored, and whether classes have to be said; it reads no record."""

import gzip

import numpy as np
import pytest

from sordino.cli.main import run
from sordino.data.outline import data_hints, make_outline
from sordino.protocol import Data

HELD_OUT = "a fifth of the clients' own records is held out; scores on them are exact, and no promise covers them"


def written(folder, name: str):
    """One file of every kind."""
    path = folder / name
    labels, targets = np.arange(6) % 2, np.linspace(0, 1, 6)
    x = np.ones((6, 2))
    arrays = {
        "labels.npz": {"x": x, "y": labels},
        "listed.npz": {"x": x, "y": labels, "classes": np.array(["no", "yes"])},
        "targets.npz": {"x": x, "y": targets},
        "brought.npz": {"x_train": x, "y_train": labels, "x_test": x, "y_test": labels},
    }
    tables = {
        "labels.csv": "age,label\n1,a\n",
        "targets.csv": "age,target,split\n1,2,train\n",
        "labels.csv.gz": "age,split,label\n1,train,a\n",
    }
    if name in arrays:
        np.savez(path, **arrays[name])
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(tables[name].encode()))
    elif name in tables:
        path.write_text(tables[name])
    else:
        (path / "cats").mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("name", "asked", "divided"),
    [
        ("labels.npz", True, False),
        ("listed.npz", False, False),
        ("targets.npz", False, False),
        ("brought.npz", True, True),
        ("labels.csv", True, False),
        ("targets.csv", False, True),
        ("labels.csv.gz", True, True),
        ("folder", False, False),
    ],
)
def test_a_header_says_if_classes_are_asked_for_and_what_is_scored(
    tmp_path, name, asked, divided
) -> None:
    path = str(written(tmp_path, name))
    hints = " ".join(data_hints(Data(name=path)))
    assert ("data.classes is missing" in hints) == asked
    assert (HELD_OUT in hints) == (not divided)
    assert ("test records that come with the data" in hints) == divided
    said = " ".join(data_hints(Data(name=path, classes=2, test="none")))
    assert said == 'Nothing is scored: data.test = "none" scores nothing.'


@pytest.mark.parametrize("name", ["nowhere.csv", "nowhere.npz", "strange.txt"])
def test_of_data_that_are_not_there_both_cases_are_said(name) -> None:
    assert make_outline(name) is None
    hints = " ".join(data_hints(Data(name=name)))
    assert "training will ask for it" in hints
    assert HELD_OUT in hints


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut"])
@pytest.mark.parametrize("name", ["damaged.npz", "damaged.csv.gz"])
def test_a_damaged_file_is_left_to_the_training(tmp_path, name, content) -> None:
    (tmp_path / name).write_bytes(content)
    outline = make_outline(str(tmp_path / name))
    assert outline is None or not outline.labelled
    assert data_hints(Data(name=str(tmp_path / name)))


def test_check_prints_the_hints_beside_the_file(tmp_path, capfd) -> None:
    path = written(tmp_path, "labels.csv")
    assert run(["check", "--set", f"data.name={path}"]) == 0
    captured = capfd.readouterr()
    assert "data.classes is missing" in captured.err
    assert HELD_OUT in captured.err
    assert "data.classes is missing" not in captured.out
    assert run(["check"]) == 0
    assert "Scores are on public test records." in capfd.readouterr().err

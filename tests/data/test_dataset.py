"""A data set refuses what makes no sense, and its digest changes with everything that training sees."""

from dataclasses import replace

import numpy as np
import pytest

from sordino.data import digest
from sordino.data.dataset import published_split, split
from sordino.protocol import UserError
from tests.data.making import labelled, regression

FIRST = [1, 6, 12, 19, 23, 29]  # places that are held out of the first thirty
GOOD = labelled(np.arange(12) % 3, 3, {"farm": np.arange(12)})


def spoilt(values: np.ndarray, place: tuple[int, ...], value: float) -> np.ndarray:
    copy = values.copy()
    copy[place] = value
    return copy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": GOOD.y_train[:-1]}, "x_train has 12 records, but y_train has 11"),
        (
            {"y_train": spoilt(GOOD.y_train, (5,), 3)},
            "labels out of range: y_train is 3 at record 5, but 3 classes allow 0 to 2",
        ),
        (
            {"y_test": spoilt(GOOD.y_test, (7,), -1)},
            "labels out of range: y_test is -1 at record 7",
        ),
        ({"y_train": GOOD.y_train.astype(np.int32)}, "labels must be int64"),
        ({"y_train": GOOD.y_train[:, None]}, "one per record"),
        (
            {"x_train": spoilt(GOOD.x_train, (4, 0), np.nan)},
            r"x_train is nan at record 4, position \(0,\)",
        ),
        ({"x_test": spoilt(GOOD.x_test, (2, 0), np.inf)}, "x_test is inf at record 2"),
        ({"x_train": GOOD.x_train.astype(np.float64)}, "x_train is float64"),
        ({"x_train": GOOD.x_train[:, 0]}, "one a row"),
        ({"x_train": GOOD.x_train[:0], "y_train": GOOD.y_train[:0]}, "x_train is empty"),
        ({"x_test": GOOD.x_test[:0], "y_test": GOOD.y_test[:0]}, "x_test is empty"),
        ({"x_test": np.hstack([GOOD.x_test, GOOD.x_test])}, "different kinds"),
        ({"columns": {"farm": np.arange(11)}}, "column 'farm' has shape"),
        ({"scale": np.ones(2, np.float32)}, "scale has shape"),
        ({"shift": np.zeros(1)}, "shift is float64"),
        ({"scale": np.full(1, np.nan, np.float32)}, "finite"),
        ({"classes": None}, "targets must be float32"),
    ],
)
def test_nonsense_is_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        replace(GOOD, **change)
    assert "'made'" in str(caught.value)


def test_outputs_and_input_shape() -> None:
    assert (GOOD.outputs, GOOD.input_shape) == (3, (1,))
    assert regression(5).outputs == 1


def test_digest_sees_every_array_but_not_the_name() -> None:
    changes = {
        "x_train": spoilt(GOOD.x_train, (0, 0), 9), "y_train": spoilt(GOOD.y_train, (0,), 1), "x_test": spoilt(GOOD.x_test, (0, 0), 9),
        "y_test": spoilt(GOOD.y_test, (0,), 1), "scale": np.full(1, 2, np.float32), "shift": np.full(1, 2, np.float32),
        "classes": ("a", "b", "c"), "columns": {"farm": np.arange(12)[::-1]},
    }  # fmt: skip
    seen = {digest(GOOD), digest(replace(GOOD, columns={}))} | {
        digest(replace(GOOD, **{name: value})) for name, value in changes.items()
    }
    assert len(seen) == 2 + len(changes)
    assert digest(replace(GOOD, name="other")) == digest(GOOD)


def test_digest_of_text_depends_on_the_text_alone() -> None:
    words = np.array(["a", "b"] * 6)
    variants = [words, words.astype("<U9"), words.astype(object)]
    assert len({digest(replace(GOOD, columns={"word": values})) for values in variants}) == 1


def test_split_holds_out_one_place_of_every_five_and_never_changes() -> None:
    for records in range(1, 40):
        train, test = split(records)
        assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(records))
        assert (test // 5).tolist() == list(range(-(-records // 5)))
    assert split(30)[1].tolist() == FIRST  # never to change: runs would no longer repeat
    assert split(1000)[1][:6].tolist() == FIRST


def test_a_published_set_has_a_fifth_of_each_label_held_out_and_never_changes() -> None:
    labels = np.array([0] * 100 + [1] * 50 + [2] * 5)
    train, test = published_split(labels)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(155))
    assert np.bincount(labels[test]).tolist() == [20, 10, 1]
    assert test[:6].tolist() == [0, 1, 4, 7, 8, 10]  # never to change: runs would no longer repeat

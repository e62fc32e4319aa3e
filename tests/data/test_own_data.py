"""A user's own .npz and .csv files."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from sordino.data import load_dataset, partition
from sordino.protocol import ByColumn, Data, UserError
from sordino.randomness import Key

X = np.random.default_rng(0).normal(size=(20, 3))
Y = np.arange(20) % 2
IMAGES = np.arange(20 * 4 * 5, dtype=np.uint64).astype(np.uint8).reshape(20, 4, 5)


def save(folder: Path, **arrays: np.ndarray) -> str:
    np.savez(folder / "mine.npz", **arrays)
    return str(folder / "mine.npz")


@pytest.mark.parametrize("names", [("x", "y"), ("x_train", "y_train")])
def test_arrays_in_one_piece_are_split_with_their_columns(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    place = np.arange(20)
    mine = load_dataset(
        save(tmp_path, **{names[0]: X, names[1]: Y, "column_place": place}), classes=2
    )
    assert (mine.name, mine.classes, len(mine.y_train), len(mine.y_test)) == (
        "mine",
        ("0", "1"),
        16,
        4,
    )
    assert np.array_equal(mine.x_train, X.astype(np.float32)[mine.columns["place"]])
    assert np.array_equal(mine.y_train, Y[mine.columns["place"]])


def test_arrays_with_a_test_part(tmp_path: Path) -> None:
    mine = load_dataset(
        save(tmp_path, x_train=X, y_train=Y[:, None], x_test=X[:3], y_test=Y[:3], column_farm=Y),
        classes=2,
    )
    assert np.array_equal(mine.y_train, Y)
    assert len(mine.x_test) == 3
    assert [
        len(part)
        for part in partition(
            mine, Data(name="mine", partition=ByColumn(column="farm")), 2, Key.from_seed(0)
        )
    ] == [10, 10]


def test_images_and_regression(tmp_path: Path) -> None:
    mine = load_dataset(save(tmp_path, x=IMAGES, y=X))
    assert (mine.x_train.dtype, mine.input_shape, mine.outputs, mine.classes) == (
        np.uint8,
        (1, 4, 5),
        3,
        None,
    )
    assert mine.scale * 255 + mine.shift == pytest.approx(1, abs=1e-6)
    single = load_dataset(save(tmp_path, x=X, y=X[:, 0]))
    assert single.y_train.shape == (16, 1)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "holds the arrays x; expected are x, y or"),
        ({"x": X, "y": Y, "z": Y}, "x, y, z"),
        ({"x": X, "y": Y[:-1]}, "x has 20 values, but there are 19 answers"),
        ({"x": X, "y": Y, "column_farm": Y[:-1]}, "column farm has 19 values"),
        (
            {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y, "column_farm": Y[:-1]},
            "column 'farm' has shape",
        ),
        ({"x": X, "y": Y - 1}, "labels out of range: y is -1 at record 0"),
        ({"x": X, "y": Y * 10**9}, "labels out of range: y is 1000000000 at record 1"),
        ({"x": X[:2], "y": Y[:2]}, "2 classes for 2 records: a class needs several"),
        ({"x": X, "y": Y, "classes": np.array(["no", "yes", "?"])}, "data.classes = 2.*has the"),
        ({"x": X, "y": Y, "classes": np.arange(2)}, "expected are names in order"),
        ({"x": X, "y": X}, "regression and no classes. Leave the key out"),
        ({"x": X, "y": Y.astype(str)}, "mine.npz: y is <U"),
        ({"x": X.astype(str), "y": Y}, "mine.npz: x is <U"),
        ({"x": X[:, 0], "y": Y}, "one record a row"),
        ({"x": np.where(X > 1, np.nan, X), "y": Y}, "x_train is nan at record"),
        ({"x": X * 1e300, "y": Y}, "inf at record"),
        ({"x": np.zeros((20, 32, 32, 3), np.uint8), "y": Y}, r"Save x.transpose\(0, 3, 1, 2\)"),
        ({"x_train": X, "y_train": Y, "x_test": X, "y_test": X}, "must both be whole numbers"),
        ({"x": X[:0], "y": Y[:0]}, "is empty"),
    ],
)
def test_arrays_that_make_no_sense(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load_dataset(save(tmp_path, **arrays), classes=2)


def test_arrays_whose_classes_are_not_said_are_refused_with_the_line_to_write(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match=r"must be said beforehand.*\n    classes = 2\n"):
        load_dataset(save(tmp_path, x=X, y=Y))
    listed = load_dataset(save(tmp_path, x=X, y=Y, classes=np.array(["no", "yes", "perhaps"])))
    assert listed.classes == ("no", "yes", "perhaps")
    assert load_dataset(save(tmp_path, x=X, y=Y), classes=["no", "yes"]).classes == ("no", "yes")


def test_nothing_is_held_out_where_nothing_is_scored(tmp_path: Path) -> None:
    whole = load_dataset(save(tmp_path, x=X, y=Y), classes=2, test="none")
    assert np.array_equal(whole.y_train, Y)
    assert (len(whole.y_test), whole.test) == (0, "none")
    brought = save(tmp_path, x_train=X, y_train=Y, x_test=X[:3], y_test=Y[:3])
    assert len(load_dataset(brought, classes=2, test="none").y_test) == 0
    assert load_dataset(brought, classes=2).test == "brought"


def test_arrays_of_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.array([{}], dtype=object), y=Y, allow_pickle=True)
    with pytest.raises(UserError, match=r"mine\.npz cannot be read as a numpy \.npz file"):
        load_dataset(str(tmp_path / "mine.npz"))


TABLE = """age, ward ,dose,label,split
30,north,0.5,sick,train
41,south,1.5,well,train
52,north,2.5,well,test
63,south,3.5,sick,train
"""


@pytest.mark.parametrize("name", ["ward.csv", "ward.csv.gz"])
def test_a_table_with_labels_and_split(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(TABLE.encode()) if name.endswith("gz") else TABLE.encode())
    ward = load_dataset(str(path), classes=["sick", "well"])
    assert (ward.name, ward.classes) == ("ward", ("sick", "well"))
    assert ward.x_train.tolist() == [[30, 0.5], [41, 1.5], [63, 3.5]]
    assert (ward.y_train.tolist(), ward.y_test.tolist()) == ([0, 1, 0], [1])
    assert ward.columns["ward"].tolist() == ["north", "south", "south"]
    assert (ward.scale.tolist(), ward.shift.tolist()) == (1.0, 0.0)


def write(folder: Path, header: str, *lines: str) -> str:
    (folder / "t.csv").write_text("\n".join([header, *lines]))
    return str(folder / "t.csv")


def test_the_order_of_the_classes_is_the_one_that_was_said(tmp_path: Path) -> None:
    lines = [f"{k},{(2, 10, -1)[k % 3]}" for k in range(15)]
    numbers = load_dataset(write(tmp_path, "x,label", *lines), classes=["10", "-1", "2", "7"])
    assert numbers.classes == ("10", "-1", "2", "7")
    assert [numbers.classes[label] for label in numbers.y_train] == [
        ("2", "10", "-1")[int(x) % 3] for x in numbers.x_train[:, 0]
    ]


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (("2", "10", "-1"), r'\["-1", "2", "10"\]'),
        (("--1", "2", "-"), r'\["-", "--1", "2"\]'),
        (("1", "0", "2"), "3"),
        (("yes", "no", "NA"), r'\["no", "yes"\]'),
    ],
)
def test_tables_whose_classes_are_not_said_are_refused_with_the_line_to_write(
    tmp_path: Path, labels: tuple[str, ...], line: str
) -> None:
    path = write(tmp_path, "x,label", *(f"{k},{labels[k % 3]}" for k in range(15)))
    with pytest.raises(UserError, match=rf"must be said beforehand.*\n    classes = {line}\n"):
        load_dataset(path)


def test_a_column_of_numbers_is_no_column_to_go_by_and_the_rule_is_said(tmp_path: Path) -> None:
    by = Data(name="t", partition=ByColumn(column="hospital"))
    numbers = load_dataset(
        write(tmp_path, "x,hospital,label", *(f"{k},{k % 2},{k % 2}" for k in range(20))),
        classes=2,
    )
    with pytest.raises(
        UserError, match="only columns of words are to go by, as numbers are inputs: write 3 as h3"
    ):
        partition(numbers, by, 2, Key.from_seed(0))
    words = load_dataset(
        write(tmp_path, "x,hospital,label", *(f"{k},h{k % 2},{k % 2}" for k in range(20))),
        classes=2,
    )
    assert [len(part) for part in partition(words, by, 2, Key.from_seed(0))] == [8, 8]


def test_a_record_without_an_owner_is_refused_with_its_line(tmp_path: Path) -> None:
    lines = [f"{k},h{k % 2},{k % 2}" for k in range(20)]
    lines[4] = "4, ,0"
    gaps = load_dataset(write(tmp_path, "x,hospital,label", *lines), classes=2)
    by = Data(name="t", partition=ByColumn(column="hospital"))
    with pytest.raises(UserError, match="t: hospital is missing in line 6, so nothing says which"):
        partition(gaps, by, 3, Key.from_seed(0))
    # A partition that does not go by the column needs no value in it.
    assert len(partition(gaps, Data(name="t"), 3, Key.from_seed(0))) == 3


def test_a_table_with_targets(tmp_path: Path) -> None:
    line = load_dataset(write(tmp_path, "x,target", *(f"{k},{2 * k}" for k in range(10))))
    assert (line.classes, line.outputs, len(line.x_test)) == (None, 1, 2)
    assert np.array_equal(line.y_train, 2 * line.x_train)


@pytest.mark.parametrize(
    ("header", "lines", "message"),
    [
        (
            "x,y",
            ["1,2"],
            "has the columns x, y; expected is either a column label or a column target",
        ),
        ("x,label,target", ["1,2,3"], "either a column label or a column target"),
        ("x,label", ["1,a", ",b", "3,a"], "x is missing in line 3"),
        ("x,label", ["1,a", "2,", "3,a"], "label is missing in line 3"),
        ("x,label", ["1,a", "2,NA", "3,a"], r"label is missing \(NA\) in line 3"),
        ("x,label", ["1,a", "2,b", "3,NaN"], r"label is missing \(NaN\) in line 4"),
        (
            "x,label",
            ["1,a", "2,c", "3,a"],
            "label is 'c' in line 3, which is not in data.classes",
        ),
        ("x,label", ["1,a", "2,b"], "2 classes for 2 records"),
        ("x,label", ["1,a", "NA,b", "3,a"], "x is missing in line 3"),
        (
            "x,label",
            ["1,a", "high,b", "3,a"],
            "x is a number in some records, but 'high' in line 3",
        ),
        ("x,label", ["1,a", "nan,b", "3,a", "4,b"], "x is missing in line 3"),
        ("x,target", ["1,2", "2,3"], "regression and no classes"),
        ("x,target", ["1,high", "2,low"], "target must be numbers, but is 'high'"),
        ("x,target", ["1,2", "2,low"], "target must be numbers, but is 'low' in line 3"),
        ("ward,label", ["north,a", "south,b"], "no column of numbers"),
        (
            "x,label,split",
            ["1,a,train", "2,b,dev"],
            "split is 'dev' in line 3; expected is train or test",
        ),
        ("x,label,split", ["1,a,train", "2,b,train", "3,b,train"], "x_test is empty"),
        ("x,label", ["1,a,7"], "line 2 has 3 values for 2 columns"),
        ("x,x", ["1,a"], "its first line must name every column, each once"),
        ("", [], "its first line must name every column"),
        ("x,label", [], "a header and no records"),
    ],
)
def test_tables_that_make_no_sense(
    tmp_path: Path, header: str, lines: list[str], message: str
) -> None:
    classes = None if header == "x,target" and "no classes" not in message else ["a", "b"]
    with pytest.raises(UserError, match=message):
        load_dataset(write(tmp_path, header, *lines), classes=classes)


def test_tables_that_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'x,label\n"1,1\n')
    with pytest.raises(UserError, match=r"t.csv cannot be read as a CSV table"):
        load_dataset(str(path))
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(TABLE.encode())[:-10])
    with pytest.raises(UserError, match=r"t.csv.gz cannot be read as a CSV table"):
        load_dataset(str(packed))
    adult = tmp_path / "adult_train.csv"
    adult.write_text("age,label\n1,2\n")
    (tmp_path / "adult_test.csv").write_text("age,label\n1,2\n")
    with pytest.raises(
        UserError,
        match=r"adult_train.csv cannot be read as the Adult table: it has no column fnlwgt",
    ):
        load_dataset("adult", root=tmp_path)

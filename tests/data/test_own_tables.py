"""Tables as people have them: described columns, dialects, folders of tables, DataFrames."""

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sordino.cli.main import run
from sordino.data import load_data, load_dataset, partition
from sordino.data.own_tables import load_frame
from sordino.data.table_columns import describe_column
from sordino.data.table_files import read_text_table
from sordino.data.table_proposal import propose_description, write_proposal
from sordino.protocol import ByColumn, Data, UserError, loads
from sordino.protocol.column_kinds import (
    CategoryColumn,
    GroupColumn,
    IgnoredColumn,
    LabelColumn,
    NumberColumn,
    TargetColumn,
)
from sordino.protocol.file import dumps
from sordino.randomness import Key

HEADER = "age,smoker,city,notes,sick"
ROWS = ["30,yes,Bern,x y,no", "150,no,Genf,,yes", ",?,Bern,z,no"] * 4
COLUMNS = (
    NumberColumn(name="age", limits=(0, 100), fill=50),
    CategoryColumn(name="smoker", categories=["no", "yes", "unknown"], fill="unknown"),
    GroupColumn(name="city"),
    IgnoredColumn(name="notes"),
    LabelColumn(name="sick"),
)
PROTOCOL = """
[federation]
clients = 2
rounds = 1
[local]
rule = "fedavg"
steps = 1
batch = 1
clip = 1.0
schedule = { kind = "constant", rate = 0.1 }
[noise]
mechanism = "gaussian"
sigma = 1.0
"""


def write(folder: Path, rows: list[str] = ROWS, header: str = HEADER, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def load(path: Path, columns=COLUMNS, **options):
    return load_dataset(str(path), classes=["no", "yes"], columns=columns, test="none", **options)


def test_described_columns_become_the_inputs_that_the_description_says(tmp_path: Path) -> None:
    table = load(write(tmp_path))
    assert table.inputs == ("age", "age missing", "smoker=no", "smoker=yes", "smoker=unknown")
    # By hand: 30 of 0..100 is -0.4, 150 is clipped to 100, a gap is 50 and says so.
    expected = [[-0.4, 0, 0, 1, 0], [1, 0, 1, 0, 0], [0, 1, 0, 0, 1]] * 4
    assert np.allclose(table.x_train, expected)
    assert table.y_train.tolist() == [0, 1, 0] * 4
    assert set(table.columns) == {"city"}


def test_the_inputs_of_a_record_depend_on_that_record_alone(tmp_path: Path) -> None:
    before = load(write(tmp_path)).x_train
    for row in ("-1e9,no,Zug,q,yes", ",unknown,Bern,é,no", "7,?,x,,no"):
        after = load(write(tmp_path, [row, *ROWS[1:]])).x_train
        assert after.shape == before.shape
        assert np.array_equal(after[1:], before[1:])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["x,yes,Bern,,no"], "age is 'x' in line 14, not a number"),
        (["1,maybe,Bern,,no"], r"smoker is 'maybe' in line 14, which is not in the public list"),
        (["1,yes,Bern,,maybe"], "sick is 'maybe' in line 14, which is not in data.classes"),
        (["1,yes,Bern,,"], "sick is missing in line 14"),
        (["1,yes,Bern,no"], "line 14 has 4 values for 5 columns. Correct it"),
        (["1,yes,Bern,,no", '2,"yes,Bern,,no'], "the record that begins in line 15: .*quotation"),
        (["inf,yes,Bern,,no"], "age is 'inf' in line 14, not a number"),
    ],
)
def test_a_wrong_value_is_named_by_its_line_and_column(tmp_path: Path, rows, message) -> None:
    with pytest.raises(UserError, match=message):
        load(write(tmp_path, ROWS + rows))


def test_what_is_no_usable_file_is_said_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        load(tmp_path / "nowhere.csv")
    wide = write(tmp_path, ["1e39,yes,Bern,,no", *ROWS])
    with pytest.raises(UserError, match=r"age is '1e39' in line 2, more than .* limits = "):
        load(wide, (NumberColumn(name="age", fill=0), *COLUMNS[1:]))
    coded = tmp_path / "coded.csv"
    coded.write_bytes(wide.read_text().encode("utf-16-le"))
    with pytest.raises(UserError, match=r"zero bytes.* Save it as CSV in UTF-8"):
        load(coded)
    packed = tmp_path / "t.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("t.csv", "\n".join([HEADER, *ROWS]))
    assert len(load(packed).y_train) == len(ROWS)


def test_two_files_that_would_be_one_client_are_refused(tmp_path: Path) -> None:
    write(tmp_path, name="bern.csv")
    (tmp_path / "bern.csv.gz").write_bytes(gzip.compress((tmp_path / "bern.csv").read_bytes()))
    with pytest.raises(UserError, match=r"bern.csv and bern.csv.gz have the same name"):
        load(tmp_path)


def test_a_gap_without_a_public_value_is_refused_with_the_remedy(tmp_path: Path) -> None:
    columns = (NumberColumn(name="age"), *COLUMNS[1:])
    with pytest.raises(UserError, match=r"age is missing in line 4.*fill = "):
        load(write(tmp_path), columns)


def test_nothing_is_left_out_silently(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has a column 'notes' that .* notes = \"ignored\""):
        load(write(tmp_path), [column for column in COLUMNS if column.name != "notes"])
    with pytest.raises(UserError, match="has no column 'weight'; it has age, smoker"):
        load(write(tmp_path), (*COLUMNS, NumberColumn(name="weight")))
    with pytest.raises(UserError, match="describes the columns of a table, and digits is none"):
        load_dataset("digits", columns=COLUMNS)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_encodings_and_compression_give_the_same_table(tmp_path: Path, encoding: str) -> None:
    text = "größe;label\n1,5;süß\n2;bitter\n"
    plain = tmp_path / "t.csv"
    plain.write_bytes(text.encode(encoding))
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(text.encode(encoding)))
    zipped = tmp_path / "t.csv.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("t.csv", text.encode(encoding))
    for path in (plain, packed, zipped):
        table = read_text_table(path)
        assert table.columns == {"größe": ["1,5", "2"], "label": ["süß", "bitter"]}
        assert all(table.decimal_commas)


def test_a_record_in_latin_1_does_not_change_how_another_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("x,label\n1,süß\n".encode() + "2,süß\n".encode("latin-1"))
    assert read_text_table(path).columns["label"] == ["süß", "süß"]


def test_decimal_commas_are_numbers_where_the_comma_separates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x;target\n" + "".join(f"{k},5;{k}\n" for k in range(10)))
    table = load_dataset(str(path), test="none")
    assert np.allclose(table.x_train[:, 0], np.arange(10) + 0.5)


def test_files_of_a_folder_are_each_read_in_their_own_dialect(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x;target\n1,5;0\n2;1\n")
    # Another order of the columns, and a comma that must not become a decimal point.
    (tmp_path / "b.csv").write_text('target,x\n3,2.5\n4,"1,234"\n')
    with pytest.raises(UserError, match=r"x is .*'1,234' in b.csv, line 3"):
        load_dataset(str(tmp_path), test="none")
    (tmp_path / "b.csv").write_text("target,x\n3,2.5\n4,3.5\n")
    table = load_dataset(str(tmp_path), test="none")
    assert table.x_train[:, 0].tolist() == [1.5, 2, 2.5, 3.5]
    assert table.y_train[:, 0].tolist() == [0, 1, 3, 4]


def test_all_columns_and_words_that_do_not_fit_are_named_at_once(tmp_path: Path) -> None:
    rows = ["x,never,Bern,,no", "1,maybe,Bern,,no", "2,never,Bern,,no"]
    with pytest.raises(UserError) as caught:
        load(write(tmp_path, rows))
    age, smoker = str(caught.value).splitlines()
    assert "age is 'x' in line 2" in age
    assert "smoker is 'never' in line 2" in smoker
    assert "Nor are 'maybe' (line 3)." in smoker


def test_a_folder_of_tables_has_a_client_for_each_file(tmp_path: Path) -> None:
    for hospital, count in (("zug", 2), ("bern", 3)):
        write(tmp_path, ROWS[: 3 * count], name=f"{hospital}.csv")
    data = Data(
        name=str(tmp_path),
        partition=ByColumn(column="file"),
        classes=["no", "yes"],
        columns=COLUMNS,
        test="none",
    )
    table = load_data(data)
    parts = partition(table, data, clients=2, key=Key.from_seed(0))
    assert [len(part) for part in parts] == [9, 6]
    assert table.columns["file"].tolist() == ["bern"] * 9 + ["zug"] * 6
    write(tmp_path, ["1"], header="age", name="other.csv")
    with pytest.raises(UserError, match=r"other.csv has the columns age, but .*bern.csv"):
        load_data(data)


def test_a_wrong_value_in_a_folder_names_the_file_and_its_line(tmp_path: Path) -> None:
    write(tmp_path, name="a.csv")
    write(tmp_path, ["1,yes,Bern,,maybe"], name="b.csv")
    with pytest.raises(UserError, match=r"sick is 'maybe' in b.csv, line 2"):
        load(tmp_path)


def test_parquet_and_data_frames_are_read_by_the_same_rules(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    expected = load(write(tmp_path)).x_train
    frame = pandas.read_csv(io.StringIO("\n".join([HEADER, *ROWS])))
    path = tmp_path / "t.parquet"
    frame.to_parquet(path)
    assert np.array_equal(load(path).x_train, expected)
    loaded = load_frame(frame, ("no", "yes"), hold_out=False, columns=COLUMNS)
    assert np.array_equal(loaded.x_train, expected)
    extra = pandas.DataFrame([["x", "yes", "Bern", "", "no"]], columns=frame.columns)
    longer = pandas.concat([frame, extra])
    with pytest.raises(UserError, match="age is 'x' in row 13, not a number"):
        load_frame(longer, ("no", "yes"), columns=COLUMNS)
    with pytest.raises(UserError, match="expected is a pandas or polars DataFrame"):
        load_frame([1, 2])


def test_descriptions_survive_the_file(tmp_path: Path) -> None:
    listed = tmp_path / "cities.txt"
    listed.write_text("Bern\nGenf\n")
    text = PROTOCOL + (
        f'[data]\nname = "t.csv"\nclasses = ["no", "yes"]\n[data.columns]\n'
        f'"blood pressure" = {{ kind = "number", limits = [0, 300], fill = 120 }}\n'
        f'city = {{ kind = "category", categories = "{listed}" }}\nnotes = "ignored"\n'
        'sick = "label"\n'
    )
    protocol = loads(text)
    assert protocol.data.described_columns[1].categories == ("Bern", "Genf")
    # The list itself is in the complete file, so that all parties agree on it.
    assert str(listed) not in dumps(protocol)
    assert loads(dumps(protocol)) == protocol
    assert hash(protocol) == hash(loads(dumps(protocol)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('age = "numbr"', 'data.columns.age.kind .*Did you mean "number"'),
        ("age = 3", "data.columns.age .*a table with kind"),
        ('age = { kind = "number", limits = [2, 1] }', "the smaller one first"),
        ('age = { kind = "category" }', "categories is missing"),
        ('age = { kind = "category", categories = ["a"], fill = "b" }', 'one of "a"'),
        ('age = { kind = "category", categories = "nowhere.txt" }', "the list cannot be read"),
        ('age = { kind = "number", name = "x" }', "named by its key"),
        ('age = "number"\na = "label"\nb = "label"', "one column of the kind 'label'"),
        ('age = "label"', "a column that is an input"),
    ],
)
def test_descriptions_that_make_no_sense_are_refused(line: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        loads(PROTOCOL + f'[data]\nname = "t.csv"\n[data.columns]\n{line}\n')


def test_a_description_in_words_has_limits_categories_and_what_gaps_become() -> None:
    age, smoker, *_ = map(describe_column, COLUMNS)
    assert "clipped to 0 ... 100" in age
    assert "gaps become 50" in age
    assert "one of 3 categories, an input for each (no, yes, unknown)" in smoker
    many = CategoryColumn(name="code", categories=[f"c{k}" for k in range(100)])
    assert "one of 100 categories, an input for each (c0, c1 ... c99)" in describe_column(many)


def test_a_proposal_fits_the_table_it_was_made_from(tmp_path: Path) -> None:
    path = write(tmp_path)
    text = write_proposal(propose_description(read_text_table(path), group="city"))
    data = loads(PROTOCOL + text).data
    assert data.partition == ByColumn(column="city")
    assert data.classes == ("no", "yes")
    # Exact extremes of records are not proposed, and gaps are filled by what is no record's value.
    assert data.described_columns[0] == NumberColumn(name="age", limits=(30, 150), fill=90)
    assert load_data(data).inputs[:2] == ("age", "age missing")


def test_proposed_limits_hold_every_value(tmp_path: Path) -> None:
    values = np.random.default_rng(3).normal(size=50) * 10.0 ** np.arange(-25, 25)
    path = write(tmp_path, [f"{value},{k % 2}" for k, value in enumerate(values)], "x,label")
    low, high = propose_description(read_text_table(path)).columns[0].limits
    assert low <= values.min()
    assert values.max() <= high


def test_describe_prints_a_description_and_says_that_it_looked(tmp_path: Path, capsys) -> None:
    path = write(tmp_path)
    assert run(["data", "describe", str(path), "--group", "city"]) == 0
    printed = capsys.readouterr()
    assert loads(PROTOCOL + printed.out).data.described_columns is not None
    assert "looked at the records" in printed.err
    assert run(["data", "describe", str(path), "--label", "a", "--target", "b"]) == 2
    assert run(["data", "describe", str(tmp_path / "none.csv")]) == 2
    assert run(["data", "describe", str(path), "--label", "nothing"]) == 2


def test_a_regression_is_described_by_its_target(tmp_path: Path) -> None:
    path = write(tmp_path, [f"{k},{2 * k}" for k in range(10)], "x,days")
    proposal = propose_description(read_text_table(path), target="days")
    assert proposal.columns[1] == TargetColumn(name="days")
    table = load_dataset(str(path), columns=proposal.columns, test="none")
    assert table.y_train[:, 0].tolist() == [2 * k for k in range(10)]

"""A protocol that is written for tables: what it states, that it trains, and what is refused."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from sordino import Run
from sordino.cli.main import run
from sordino.privacy.certify import certify
from sordino.protocol.column_kinds import IgnoredColumn
from sordino.protocol.file import read_protocol
from tests.support import real_file

HEADER = ["age", "smoker", "city", "sick"]


def write(path: Path, records: int, cities: str = "AB") -> Path:
    """A table whose records repeat: their number alone matters."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(HEADER)
        for k in range(records):
            city = cities[k % len(cities)]
            rows.writerow([20 + k % 60, ("no", "yes")[k % 2], city, ("no", "yes")[k % 3 == 0]])
    return path


def said(capfd, *words: str) -> tuple[int, str]:
    code = run(["new", "f", *words])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    return code, out + err


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("sample.csv"), 200)


def test_a_folder_becomes_a_protocol_that_keeps_its_budget_and_trains(capfd) -> None:
    for name, records in (("north", 250), ("south", 100)):
        write(Path("all") / f"{name}.csv", records)
    code, out = said(capfd, "--data", "all", "--sample", "sample.csv", "--epsilon", "2")
    assert code == 0
    assert "looked at the records" not in out
    protocol = read_protocol(Path("f.toml"), [])
    # Of every five records one is held out, whatever file it is in.
    assert sum(protocol.data.sizes) == 280
    assert 195 <= protocol.data.sizes[0] <= 205
    assert protocol.clients == 2
    epsilon = certify(protocol, "server").epsilon(1e-5)
    assert 1.98 < epsilon <= 2
    assert run(["train", "f.toml", "--out", "r", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["status"] == "finished"
    assert Run.load("r").guarantee("server").epsilon(1e-5) <= 2


def test_a_table_goes_by_a_group_or_is_shared_out(capfd) -> None:
    write(Path("one.csv"), 300, cities="ABC")
    code, out = said(capfd, "--data", "one.csv", "--group", "city", "--label", "sick")
    assert code == 0
    assert "This looked at the records." in out
    protocol = read_protocol(Path("f.toml"), [])
    assert protocol.clients == 3
    assert protocol.data.partition.column == "city"
    Path("f.toml").unlink()
    assert said(capfd, "--data", "one.csv", "--target", "age")[0] == 0
    protocol = read_protocol(Path("f.toml"), [])
    assert protocol.data.sizes == (48,) * 5
    assert protocol.data.classes is None
    assert run(["train", "f.toml", "--out", "r"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "nowhere"], "there is no 'nowhere'"),
        (["--data", "one.csv", "--sample", "nowhere"], "there is no 'nowhere'"),
        (["--data", "picture.png"], "picture.png is not a table"),
        (["--data", "other.csv", "--label", "label"], "has 0 records to train on, and 5 clients"),
        (["--data", "one.csv", "--sample", "other.csv"], "A sample needs the columns"),
        (["--data", "one.csv", "--from", "digits"], "--from and --data: give one of them"),
        (["--data", "one.csv", "--label", "sick", "--target", "age"], "give one of them"),
        (["--data", "one.csv", "--label", "ill"], "no column 'ill'; it has age, smoker"),
        (["--data", "one.csv", "--epsilon", "0"], "epsilon"),
        (["--sample", "sample.csv"], "--data PATH names them"),
        (["--label", "sick"], "--data PATH names them"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(capfd, words, message) -> None:
    write(Path("one.csv"), 60)
    Path("other.csv").write_text("age,label\n1,0\n")
    Path("picture.png").write_bytes(b"")
    code, out = said(capfd, *words)
    assert code == 2
    assert message in out
    assert not Path("f.toml").exists()


def test_only_the_named_answer_is_learnt_whatever_other_columns_are_called(capfd) -> None:
    rows = ["label,target,sick"] + [f"{k % 7},{k},{('no', 'yes')[k % 3 == 0]}" for k in range(60)]
    Path("named.csv").write_text("\n".join(rows))
    assert said(capfd, "--data", "named.csv", "--label", "sick")[0] == 0
    columns = read_protocol(Path("f.toml"), []).data.described_columns
    assert [type(column).__name__ for column in columns] == [
        "NumberColumn",
        "NumberColumn",
        "LabelColumn",
    ]
    assert run(["train", "f.toml", "--out", "r"]) == 0


def test_notes_of_several_lines_are_no_categories_and_no_classes(capfd) -> None:
    rows = ["age,note,sick"]
    rows += [
        f'{20 + k},"{("a", "b")[k % 2]}\nand more",{("no", "yes")[k % 3 == 0]}' for k in range(60)
    ]
    Path("notes.csv").write_text("\n".join(rows))
    assert said(capfd, "--data", "notes.csv", "--label", "sick")[0] == 0
    assert type(read_protocol(Path("f.toml"), []).data.described_columns[1]) is IgnoredColumn
    Path("f.toml").unlink()
    code, out = said(capfd, "--data", "notes.csv", "--label", "note")
    assert code == 2
    assert "note is 'a\\nand more' in line 2: the name of a class stands on one line" in out
    assert not Path("f.toml").exists()


def test_five_hospitals_reach_a_report_from_raw_tables(capfd) -> None:
    """Adult, in five files of unequal size with `?` for gaps, and its test part as a public sample."""
    with gzip.open(real_file("adult_train.csv.gz"), "rt", newline="") as file:
        header, *records = csv.reader(file)
    Path("hospitals").mkdir()
    start = 0
    for name, count in (("a", 9000), ("b", 8000), ("c", 7000), ("d", 5000), ("e", 3561)):
        with (Path("hospitals") / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *records[start : start + count]])
        start += count
    public = gzip.decompress(real_file("adult_test.csv.gz").read_bytes())
    Path("public.csv").write_bytes(public)
    words = ["--data", "hospitals", "--sample", "public.csv", "--label", "income"]
    assert said(capfd, *words)[0] == 0
    # The one country that the public part does not have is named, with its place.
    assert run(["train", "f.toml", "--out", "r"]) == 2
    assert "'Holand-Netherlands' in c.csv, line " in capfd.readouterr().err
    text = Path("f.toml").read_text()
    Path("f.toml").write_text(text.replace('"Honduras",', '"Honduras", "Holand-Netherlands",'))
    assert run(["train", "f.toml", "--out", "r", "--json"]) == 0
    # Three of four records have the commoner class.
    assert json.loads(capfd.readouterr().out)["accuracy"] > 0.81
    assert run(["report", "r"]) == 0
    assert "hospitals" in Path("r/report.html").read_text()


def test_a_table_with_a_record_of_no_client_is_refused_with_its_line(capfd) -> None:
    lines = write(Path("all.csv"), 100).read_text().splitlines()
    lines[5] = lines[5].replace(",A,", ",,")
    Path("all.csv").write_text("\n".join(lines))
    asked = ("--data", "all.csv", "--sample", "sample.csv", "--group", "city", "--epsilon", "2")
    code, out = said(capfd, *asked)
    assert code == 2
    assert "city is missing in line 6" in out
    assert not Path("f.toml").exists()

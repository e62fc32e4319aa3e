"""What goes wrong with a report gets exit code 2, or 4 where a run was changed, and one message that names the file; a page is whole or
not there.
"""

import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from sordino.cli.main import run
from sordino.privacy.ledger import read_ledger
from sordino.privacy.ledger_lines import RoundCharged, encode_line
from sordino.protocol import UserError
from sordino.report import pdf, run_summary
from sordino.report.caveats import list_caveats
from sordino.report.evidence import AttackResult, Audit
from sordino.report.figures import draw_learning
from sordino.report.provenance import list_provenance
from sordino.report.run_summary import summarize_run, summary_document
from sordino.report.tiles import list_tiles

ATTACK = {"name": "a", "metric": "AUC", "value": 0.52, "baseline": 0.5}
FILES = (
    "run.json",
    "protocol.toml",
    "ledger.jsonl",
    "metrics.jsonl",
    "partition.json",
    "model.safetensors",
    "audits",
    "attacks",
)
DAMAGE = {
    "empty": lambda content: b"",
    "garbage": lambda content: b"\x00\xff\xfe garbage",
    "an object": lambda content: b"{}\n",
    "a list": lambda content: b"[1]\n",
    "null": lambda content: b"null\n",
    "cut": lambda content: content[: len(content) // 2],
    "numbers turned to text": lambda content: content.replace(b"0.", b'"x"'),
    "other numbers": lambda content: content.replace(b"1", b"-3"),
}


def evidence(folder: Path, name: str) -> Path:
    """The file itself, or the one JSON file of a folder."""
    if name == "attacks":
        (folder / "attacks").mkdir(exist_ok=True)
        (folder / "attacks" / "a.json").write_text(json.dumps(ATTACK))
    return folder / name if "." in name else next((folder / name).glob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_run_gets_a_message_or_a_page(folder, capfd, name, damage) -> None:
    path = evidence(folder, name)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    code = run(["report", str(folder)])
    err = capfd.readouterr().err
    assert code in (0, 2, 4)
    assert "Traceback" not in err
    if code != 0:
        assert str(folder) in err
        assert not (folder / "report.html").exists()


@pytest.mark.parametrize("value", [None, "<b>", -1, 1.5, []])
def test_a_fact_or_a_metric_of_another_kind_is_shown_or_refused(folder, value) -> None:
    facts = json.loads((folder / "run.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for key in facts:
        (folder / "run.json").write_text(json.dumps({**facts, key: value}))
        with suppress(UserError):
            summary = summarize_run(folder)
            assert all(
                (
                    list_provenance(summary),
                    list_caveats(summary),
                    list_tiles(summary),
                    summary_document(summary),
                )
            )
    (folder / "run.json").write_text(json.dumps(facts))
    for key in rows[0]:
        (folder / "metrics.jsonl").write_text(
            "".join(json.dumps({**row, key: value}) + "\n" for row in rows)
        )
        with suppress(UserError):
            summary = summarize_run(folder)
            assert all((list_provenance(summary), list_tiles(summary), summary_document(summary)))
            assert (draw_learning(summary) is None) == (key == "loss" and value is None)


def test_a_ledger_of_another_federation_is_refused(folder, capfd) -> None:
    chain, lines = "", []
    reading = read_ledger(folder / "ledger.jsonl")
    opened, *charges = reading.events
    for event in (
        opened,
        *(
            replace(charge, clients=(0, 17))
            for charge in charges
            if isinstance(charge, RoundCharged)
        ),
        reading.seal,
    ):
        line, chain = encode_line(event, chain)
        lines.append(line)
    (folder / "ledger.jsonl").write_bytes(b"".join(lines))
    assert run(["report", str(folder)]) == 2
    assert "client 17" in capfd.readouterr().err
    (folder / "ledger.jsonl").write_bytes(
        lines[0]
        + encode_line(RoundCharged(round=-1, clients=(0,)), json.loads(lines[0])["chain"])[0]
    )
    assert run(["report", str(folder)]) == 4
    assert "line 2" in capfd.readouterr().err


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_missed_only_where_it_counts(folder, capfd, name) -> None:
    evidence(folder, name).unlink()
    needed = name in ("run.json", "protocol.toml", "ledger.jsonl")
    sealed = name in ("metrics.jsonl", "partition.json", "model.safetensors")
    assert run(["report", str(folder)]) == (2 if needed else 4 if sealed else 0)
    assert "Traceback" not in capfd.readouterr().err


def test_a_run_that_is_not_there_or_is_deleted_meanwhile(
    folder, tmp_path, capfd, monkeypatch
) -> None:
    assert run(["report", str(tmp_path / "nowhere")]) == 2
    assert "there is no run" in capfd.readouterr().err
    assert run(["report"]) == 2

    original = run_summary.read_audits

    def deleted(place: Path) -> tuple:
        shutil.rmtree(place)
        return original(place)

    monkeypatch.setattr(run_summary, "read_audits", deleted)
    assert run(["report", str(folder)]) == 2
    assert str(folder) in capfd.readouterr().err


def test_a_place_that_cannot_be_written_to(folder, tmp_path, capfd) -> None:
    assert run(["report", str(folder), "--out", str(tmp_path / "no" / "where.html")]) == 2
    assert "cannot be written" in capfd.readouterr().err


def test_without_a_browser_there_is_no_pdf_and_nothing_is_written(
    folder, capfd, monkeypatch
) -> None:
    monkeypatch.setattr(pdf.shutil, "which", lambda name: None)
    assert run(["report", str(folder), "--pdf"]) == 2
    assert "Install one" in capfd.readouterr().err
    assert not (folder / "report.html").exists()


def test_a_browser_that_does_not_print_is_named(folder, tmp_path, capfd, monkeypatch) -> None:
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\necho 'cannot open display' >&2\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert run(["report", str(folder), "--pdf"]) == 2
    err = capfd.readouterr().err
    assert "did not print" in err
    assert "cannot open display" in err
    assert not (folder / "report.pdf").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"value": "high"}, "value is not a number"),
        ({"value": True}, "value is not a number"),
        ({"name": 3}, "name is not a text"),
        ({"baseline": None}, "baseline is not a number"),
        ({"plots": {}}, "a list is missing"),
        ({"plots": [{"title": "t"}]}, "no lines"),
        ({"plots": [{"title": "t", "lines": {"a": [[1, 2], [1]]}}]}, "2 x and 1 y"),
    ],
)
def test_a_row_of_an_attack_is_checked(change, words) -> None:
    with pytest.raises(ValueError, match=words):
        AttackResult.of({**ATTACK, **change})


def test_infinity_is_a_string_and_an_estimate_bounds_nothing() -> None:
    assert AttackResult.of({**ATTACK, "value": "inf"}).value == float("inf")
    document = {"view": "final", "unit": "client", "mu_lower": None, "epsilon_lower": None, "delta": 1e-5, "trainings": 1,
                "certified": {"epsilon": "inf"}}  # fmt: skip
    found = Audit.of(document)
    assert (found.epsilon_lower, found.certified, found.tests) == (None, float("inf"), ())

"""What a consortium is told to type, followed word for word: the README of a new one, and docs/flower.md. `make test-flower` runs it."""

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino import Run
from sordino.cli.main import run as sordino
from sordino.flower.client_store import ClientStore
from sordino.report.writing import write_final_report
from tests.flower.lab import SLOW, Lab, free_port
from tests.support import REPOSITORY

pytestmark = pytest.mark.soak

PORTS = r"\b(8000|909[456])\b"


@pytest.fixture(autouse=True)
def _reports_are_written(monkeypatch) -> None:
    """They are what all this is for, and other tests do without."""
    monkeypatch.setattr("sordino.report.writing.write_final_report", write_final_report)


def blocks(text: str, kind: str) -> list[str]:
    """The blocks of code of one kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def lines_of(text: str, ports: dict[str, str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Who types, which is before the dollar, and what; on ports that nobody else uses."""
    if ports is None:
        ports = {old: str(free_port()) for old in ("8000", "9094", "9095", "9096")}
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            who, typed = line.split("$ ", 1)
            yield who, shlex.split(re.sub(PORTS, lambda found: ports[found[0]], typed))


def wait_for_words(path: Path, words: str) -> None:
    end = time.monotonic() + SLOW
    while not path.exists() or words not in path.read_text():
        assert time.monotonic() < end, f"{path} does not say {words}"
        time.sleep(0.2)


def followed(lab: Lab, lines: Iterator[tuple[str, list[str]]], place: Path) -> None:
    """Type every line in the folder of who types it. What keeps running is waited for as a person would: until it says that it runs."""
    for who, command in lines:
        os.chdir(place / who)
        lab.folder = place / who
        name, *arguments = command
        if name == "cp":
            *files, target = arguments
            for file in files:
                wait_for(Path(file))
                shutil.copy(file, target)
            continue
        assert name == "sordino", command
        if arguments[:2] == ["flower", "link"]:
            lab.port = (
                int(arguments[arguments.index("--port") + 1]) if "--port" in arguments else 8000
            )
            lab.certificates = Path(arguments[2]).absolute() / "certificates"
            lab.spawn("link", arguments)
            lab.wait_for_link()
        elif arguments[:2] == ["flower", "node"]:
            lab.spawn(f"node-{len(lab.processes)}", arguments)
        elif arguments[:2] == ["flower", "up"]:
            lab.spawn("up", arguments)
            lab.processes[f"up-{who}"] = lab.processes.pop("up")
            if who == "coordinator":  # it says when the SuperLink answers
                wait_for_words(Path("up.log"), "connected")
        else:
            assert sordino(arguments) == 0, command


def wait_for(path: Path) -> None:
    """Wait for a file that something makes which was just started."""
    end = time.monotonic() + SLOW
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.1)


def test_the_readme_of_a_new_consortium_followed_word_for_word(
    tmp_path, monkeypatch, capfd
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sordino(["flower", "new", "ours"]) == 0
    ours = tmp_path / "ours"
    with Lab(ours) as lab:
        followed(lab, lines_of((ours / "README.md").read_text()), ours)
    run = Run.load(ours / "runs" / "first")
    assert run.status == "finished"
    assert run.facts["noise"].startswith("fresh")
    assert run.metrics["accuracy"][-1] > 0.7
    assert (run.folder / "report.html").exists()
    assert len(re.findall("Answered +4 rounds", capfd.readouterr().out)) == 3
    for client in range(3):
        assert ClientStore(ours / f"client-{client}").rounds_paid == [0, 1, 2, 3]


def test_three_empty_machines_come_to_a_report_by_what_the_documentation_says(
    tmp_path, monkeypatch
) -> None:
    """Three folders stand for the machines. The page's records are made first, and its protocol is put where it says."""
    page = (
        (REPOSITORY / "docs" / "flower.md")
        .read_text()
        .split("## From three empty machines to a report")[1]
        .split("\n## ")[0]
    )
    machines = {name: tmp_path / name for name in ("coordinator", "north", "south")}
    for folder in machines.values():
        folder.mkdir()
    monkeypatch.chdir(tmp_path)
    [records] = blocks(page, "python")
    protocol, mine = blocks(page, "toml")
    exec(compile(records, "docs/flower.md", "exec"), {})
    assert len(re.findall(r"^\w+\$ ", page, re.MULTILINE)) <= 10
    ports = {old: str(free_port()) for old in ("8000", "9094", "9095")}
    lines = lines_of(page, ports)
    theirs = mine.replace("client = 0", "client = 1").replace("north.npz", "south.npz")
    files = {"north": mine, "south": theirs.replace("9094", "9095")}
    for name, text in files.items():
        ported = re.sub(PORTS, lambda found: ports[found[0]], text)
        (machines[name] / "consortium.toml").write_text(ported)
    with Lab(machines["coordinator"]) as lab:
        who, first = next(lines)
        assert first == ["sordino", "flower", "new", "ours"]
        followed(lab, iter([(who, first)]), tmp_path)
        (machines["coordinator"] / "ours" / "protocol.toml").write_text(protocol)
        own = machines["coordinator"] / "ours" / "consortium.toml"
        own.write_text(own.read_text().replace("8000", ports["8000"]))
        followed(lab, lines, tmp_path)
    run = Run.load(machines["coordinator"] / "first")
    assert run.status == "finished"
    assert run.metrics["accuracy"][-1] > 0.85
    assert (run.folder / "report.html").exists()
    assert run.guarantee("server").epsilon(1e-5) <= 4.0
    for name in ("north", "south"):
        assert ClientStore(machines[name] / "mine").rounds_paid == list(range(run.protocol.rounds))
        assert {path.name for path in machines[name].iterdir()} >= {
            "mine",
            "ca.crt",
            "protocol.toml",
            f"{name}.npz",
            "node.key",
        }
    assert not list(machines["coordinator"].rglob("north.npz"))  # records stayed where they were
    said = {name: (folder / "up.log").read_text() for name, folder in machines.items()}
    assert "2 of 2 connected" in said["coordinator"]
    for name in ("north", "south"):
        assert said[name].count("Labels") == 1
        assert re.search(r"connected; 5 rounds answered, epsilon 4 of 4 spent, 0 req", said[name])
        log = (machines[name] / "mine" / "logs" / "node.jsonl").read_text().splitlines()
        assert {"at", "from", "level", "said"} == set(json.loads(log[0]))
    assert '"healthy": true' in (machines["coordinator"] / "ours" / "health.json").read_text()
    metrics = (machines["coordinator"] / "ours" / "metrics.prom").read_text()
    assert "sordino_nodes_connected 2" in metrics

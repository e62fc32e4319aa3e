"""The state of a party as Prometheus and a health check get it, and the documented recovery times."""

import csv
import json
import re
import socket
import urllib.error
import urllib.request
from collections import defaultdict

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino import UserError
from sordino.flower import metrics_endpoint
from sordino.flower.consortium import read_consortium
from sordino.flower.metrics_endpoint import PublishedState, serve_state
from tests.support import REPOSITORY


@pytest.fixture
def served(tmp_path):
    """A state, and what asks for a path of it."""
    state = PublishedState(tmp_path)
    server = serve_state(state, 0)

    def ask(path: str) -> tuple[int, str, str]:
        url = f"http://127.0.0.1:{server.server_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Content-Type"], error.read().decode()

    yield state, ask, server
    server.shutdown()
    server.server_close()


def test_prometheus_gets_what_the_file_has(served, tmp_path) -> None:
    state, ask, _ = served
    state.publish(True, {"sordino_nodes_connected": 2, "sordino_healthy": 1}, "2 of 2 connected")
    status, kind, text = ask("/metrics")
    assert status == 200
    assert kind.startswith("text/plain; version=0.0.4")
    assert text == (tmp_path / "metrics.prom").read_text()
    samples = dict(re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE))
    assert samples == {"sordino_nodes_connected": "2", "sordino_healthy": "1"}
    for name in samples:
        assert f"# TYPE {name} gauge\n{name} " in text


def test_what_was_spent_is_not_rounded_down(served) -> None:
    state, ask, _ = served
    state.publish(True, {"sordino_epsilon_spent": 4.00000049}, "")
    _, _, text = ask("/metrics")
    assert float(text.split()[-1]) == 4.00000049


def test_health_is_503_until_all_is_well_and_again_when_nothing_is_heard(
    served, monkeypatch
) -> None:
    state, ask, _ = served
    assert ask("/health")[0] == 503
    state.publish(False, {}, "The SuperLink starts.")
    assert ask("/health")[0] == 503
    state.publish(True, {}, "1 of 1 connected")
    status, _, text = ask("/health")
    assert status == 200
    assert json.loads(text)["said"] == "1 of 1 connected"
    # The process that looks after everything hangs: nothing new is published.
    monkeypatch.setattr(metrics_endpoint, "FRESH", -1.0)
    assert ask("/health")[0] == 503
    assert ask("/")[0] == 404


def test_other_machines_do_not_reach_it(served) -> None:
    _, _, server = served
    assert server.server_address[0] == "127.0.0.1"
    other = socket.gethostbyname(socket.gethostname())
    if not other.startswith("127."):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, server.server_port), timeout=2)


def test_a_port_that_is_taken_is_said(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"metrics = {port}"):
            serve_state(PublishedState(tmp_path), port)


def test_both_kinds_of_parties_can_name_a_port(tmp_path) -> None:
    path = tmp_path / "consortium.toml"
    path.write_text("[coordinator]\nmetrics = 9100\n")
    assert read_consortium(path)[1].metrics == 9100
    path.write_text('[client]\nclient = 0\nsuperlink = "127.0.0.1:8000"\n')
    assert read_consortium(path)[1].metrics is None


ROWS = {
    "client process killed": "the process that computes is killed",
    "SuperNode killed": "the node's SuperNode is killed",
    "node and keeper killed": "node and supervisor are killed and started, as a service does",
    "SuperNode frozen (SIGSTOP)": "the SuperNode is frozen (SIGSTOP): a busy node is given 40 s",
    "network cut, 20 s": "the network of a node is cut for 20 s",
    "network cut, 90 s": "the network of a node is cut for 90 s",
    "network cut, 300 s": "the network of a node is cut for 300 s",
    "SuperLink killed": "the SuperLink is killed, and started again as `up` does",
}


def test_the_documented_memory_of_idle_nodes_is_what_was_measured() -> None:
    page = (REPOSITORY / "docs" / "benchmarks.md").read_text()
    with open(REPOSITORY / "benchmarks" / "idle_memory.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    # Of several measurements of as many nodes the last counts.
    latest = {row["nodes"]: row["largest_mb"] for row in rows}
    assert all(float(largest) <= 150 for largest in latest.values())
    said = ", ".join(f"{largest} MB of {nodes}" for nodes, largest in latest.items())
    words = "| memory of each idle node, its share of common pages |"
    [line] = [line for line in page.splitlines() if line.startswith(words)]
    assert line.endswith(f"| {said} |")


def test_the_documented_recovery_times_are_those_that_were_measured() -> None:
    measured = defaultdict(list)
    with open(REPOSITORY / "benchmarks" / "recovery.csv", newline="") as file:
        for row in csv.DictReader(file):
            measured[row["fault"]].append(float(row["seconds_after"]))
            assert row["charged_twice"] == "no"
            # Earlier measurements did not look for losses.
            assert row["lost"] in ("", "no")
    page = (REPOSITORY / "docs" / "flower.md").read_text()
    for fault, words in ROWS.items():
        *plain, mutual = measured[fault]
        seconds = sorted({round(min(plain)), round(max(plain))})
        assert len(plain) == 3
        assert f"| {words} | {' to '.join(map(str, seconds))} | {round(mutual)} |" in page

"""A node that looks alive and is not is noticed, started again, and the reason is said."""

import http.server
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import MISSING, fields
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino import Gaussian, UserError
from sordino.cli.flower_command import agree_as_written
from sordino.cli.main import run as sordino
from sordino.federation.store.files import hold_lock
from sordino.flower import (
    doctor,
    logs,
    node_supervisor,
    services,
    superexec,
    superlink_probe,
    supernode,
)
from sordino.flower.agreement import read_agreement
from sordino.flower.certificates import (
    add_own_names,
    find_own_address,
    require_host,
    write_certificates,
    write_key,
)
from sordino.flower.client_folder import holds_agreement
from sordino.flower.consortium import (
    PARTIES,
    Client,
    Coordinator,
    read_consortium,
    refuse_other_terms,
)
from sordino.flower.logs import JsonLog
from sordino.flower.node_supervisor import HEARTBEAT, SILENCE, NodeSupervisor
from sordino.flower.services import CoordinatorService
from sordino.flower.signing import Signer
from sordino.flower.superexec import fork_process
from sordino.flower.superlink_probe import probe_superlink
from sordino.flower.supernode import Heartbeats, PollingPauses
from sordino.flower.supervised_process import SupervisedProcess
from sordino.protocol import save_protocol
from sordino.protocol.addresses import join_address
from tests.flower.lab import free_port
from tests.flower.local import agreed, plan
from tests.support import REPOSITORY


@pytest.fixture
def superlink():
    """A server that is as healthy as a SuperLink, with a clock that can be set."""

    class Health(http.server.BaseHTTPRequestHandler):
        offset = 0.0

        def do_GET(self) -> None:
            self.send_response_only(200)
            self.send_header("Date", formatdate(time.time() + Health.offset, usegmt=True))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Health, f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("offset", "words"), [(-10.0, "10 s ahead of"), (400.0, "400 s behind")])
def test_a_clock_that_is_off_is_named_with_its_remedy(superlink, offset, words) -> None:
    """Flower takes what was signed 5 s in the future or 305 s in the past, and says nothing."""
    health, address = superlink
    assert probe_superlink(address, None).trouble is None
    health.offset = offset
    trouble = probe_superlink(address, None).trouble
    assert words in trouble
    assert "timedatectl" in trouble


def test_what_is_wrong_with_the_way_to_a_superlink_is_told_apart(superlink, tmp_path) -> None:
    _, address = superlink
    write_certificates(tmp_path, ["127.0.0.1"])
    assert "cannot be reached" in probe_superlink(f"127.0.0.1:{free_port()}", None).trouble
    assert "TLS" in probe_superlink(address, str(tmp_path / "ca.crt")).trouble
    assert "is not known" in probe_superlink("nowhere.invalid:8000", None).trouble


def test_another_authoritys_certificate_is_told(tmp_path) -> None:
    write_certificates(tmp_path / "ours", ["127.0.0.1"])
    write_certificates(tmp_path / "theirs", ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ours" / "server.pem", tmp_path / "ours" / "server.key")
    handler = http.server.BaseHTTPRequestHandler
    server = http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_port}"
    trouble = probe_superlink(address, str(tmp_path / "theirs" / "ca.crt")).trouble
    server.shutdown()
    server.server_close()
    assert "not to be trusted" in trouble


@pytest.fixture
def expired(tmp_path):
    """A server whose certificates ended half an hour ago, and the coordinator that runs it."""
    certificates = tmp_path / "certificates"
    write_certificates(certificates, ["127.0.0.1"], days=-1 / 48)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", free_port()), http.server.BaseHTTPRequestHandler
    )
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Coordinator(port=server.server_port)
    server.shutdown()
    server.server_close()


def test_certificates_that_ended_are_named_and_the_superlink_is_left_alone(
    tmp_path, expired
) -> None:
    """It was killed every five minutes, `up` said that it starts, and `doctor` that its port was taken."""
    told: list[str] = []
    service = CoordinatorService(tmp_path, expired, told.append)
    service._address = expired.address
    process = SimpleNamespace(
        starts=1, age=2 * services.STARTING, is_running=True, kill=lambda: pytest.fail("killed")
    )
    for _ in range(2):
        service._answered -= 2 * services.STARTING
        service._counted = 0.0
        service.look(process)
    assert len(told) == 1
    assert "certificate has expired" in told[0]
    found = troubles(tmp_path, expired)
    assert "has expired" in found["SuperLink"]
    assert "renew" in found["Certificate"]
    assert set(found) == {"SuperLink", "Certificate", "Health"}
    with pytest.raises(UserError, match="renew the certificates"):
        Signer.read(tmp_path / "certificates")


def test_beats_of_another_process_are_seen() -> None:
    heartbeats = Heartbeats()
    before = heartbeats.loop

    def live() -> int:
        time.sleep(0.02)
        heartbeats.note_admission(2**63 + 5)
        heartbeats.note_loop()
        return 0

    os.waitpid(fork_process(live), 0)
    assert heartbeats.loop > before
    assert heartbeats.link > before
    assert heartbeats.node == 2**63 + 5


def test_pauses_grow_while_nothing_comes_and_are_short_again_after_a_message(monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(supernode.time, "sleep", slept.append)
    pauses = PollingPauses(Heartbeats())
    for _ in range(30):
        pauses.sleep(3)
    assert slept[0] == supernode.FIRST_PAUSE
    assert slept == sorted(slept)
    assert slept[-1] == supernode.LAST_PAUSE
    pauses.shorten()
    pauses.sleep(3)
    pauses.sleep(0.5)
    assert slept[-2:] == [supernode.FIRST_PAUSE, supernode.ANSWER_PAUSE]


@pytest.fixture
def supervisor(tmp_path, superlink) -> NodeSupervisor:
    _, address = superlink
    store = agreed(tmp_path / "mine", 0, plan(), superlink=address)
    (tmp_path / "mine" / "flower").mkdir()
    return NodeSupervisor(store, 9094, insecure=True)


def age(heartbeats: Heartbeats, *, loop: float, link: float) -> None:
    now = time.monotonic()
    heartbeats._write(now - loop, now - link, 7)


@pytest.mark.parametrize(
    ("loop", "link", "deaf"),
    [
        (1.0, 20.0, False),
        (SILENCE + 1, 20.0, True),  # its main thread hangs or is gone; its heart goes on
        (1.0, HEARTBEAT + 1, True),  # it looks for messages, but counts as gone at the SuperLink
    ],
)
def test_a_node_is_deaf_when_it_is_silent_although_the_superlink_answers(
    supervisor, loop, link, deaf
) -> None:
    age(supervisor._heartbeats, loop=loop, link=link)
    assert supervisor._is_deaf() is deaf


def test_a_silent_node_is_left_alone_while_the_superlink_cannot_be_reached(
    supervisor, monkeypatch
) -> None:
    age(supervisor._heartbeats, loop=SILENCE + 1, link=20.0)
    gone = superlink_probe.Probe(trouble="the cable is out")
    monkeypatch.setattr(node_supervisor, "probe_superlink", lambda *_: gone)
    assert not supervisor._is_deaf()
    status = json.loads((supervisor._home / "status.json").read_bytes())
    assert (status["state"], status["reason"]) == ("disconnected", "the cable is out")


def test_a_node_that_ends_is_started_again_and_the_clock_is_said_to_be_why(
    supervisor, superlink, monkeypatch, caplog
) -> None:
    """With a clock that is off, Flower's SuperNode ends with exit code 0 and no reason."""
    health, _ = superlink
    health.offset = -10.0
    monkeypatch.setattr(node_supervisor, "PROBE", 0.01)
    monkeypatch.setattr(node_supervisor.LOG, "propagate", True)
    supervisor._worker = node_supervisor.WarmWorker(None)
    supervisor._node = fork_process(lambda: 0)
    while not supervisor._has_ended():
        time.sleep(0.01)
    assert "clock is 10 s ahead" in caplog.text
    assert supervisor._node == 0
    assert "clock" in json.loads((supervisor._home / "status.json").read_bytes())["reason"]


def test_a_frozen_node_is_killed(supervisor) -> None:
    supervisor._worker = node_supervisor.WarmWorker(None)
    supervisor._node = node = fork_process(lambda: time.sleep(60) or 0)
    os.kill(node, signal.SIGSTOP)
    supervisor._end_node(signal.SIGKILL)
    with pytest.raises(ProcessLookupError):
        os.kill(node, 0)


def test_a_node_whose_answering_process_fails_is_started_again_and_not_called_connected(
    supervisor, monkeypatch, caplog
) -> None:
    """As when the installation changes under a running node: it would wait for ever."""
    monkeypatch.setattr(superexec, "answer_tasks", lambda *_: 5)
    monkeypatch.setattr(node_supervisor.LOG, "propagate", True)
    supervisor._worker = node_supervisor.WarmWorker(None)
    supervisor._node = fork_process(lambda: time.sleep(60) or 0)
    supervisor._worker.hand_over(superexec.Task(kind="flwr-clientapp", token="t"))
    age(supervisor._heartbeats, loop=0.0, link=1.0)
    supervisor._wake, _ = os.pipe()
    end = time.monotonic() + 60
    while supervisor._node:
        assert time.monotonic() < end
        supervisor._look()
    assert "failed (5)" in caplog.text
    assert json.loads((supervisor._home / "status.json").read_bytes())["state"] == "failing"
    supervisor._note_state()
    assert json.loads((supervisor._home / "status.json").read_bytes())["state"] == "failing"


def test_a_superlink_that_only_starts_slowly_is_not_killed_for_it(tmp_path) -> None:
    """On a busy machine one was killed every 30 s, before it could ever answer."""
    told: list[str] = []
    service = CoordinatorService(tmp_path, Coordinator(), told.append)
    killed: list[int] = []
    process = SimpleNamespace(
        starts=1, age=2 * services.SILENCE, is_running=True, kill=lambda: killed.append(1)
    )
    service._answered -= 2 * services.STARTING
    service._note_trouble(process, "it cannot be reached")
    assert told == ["The SuperLink starts."]
    process.age = services.STARTING + 1
    service._note_trouble(process, "it cannot be reached")
    assert len(killed) == 1
    # One that has answered is known to have started.
    process.age = services.SILENCE + 1
    service._answered_start = 1
    service._note_trouble(process, "it cannot be reached")
    assert len(killed) == 2
    process.is_running = False
    service._note_trouble(process, "it cannot be reached")
    assert len(killed) == 2


def test_one_folder_has_one_node(tmp_path) -> None:
    agreed(tmp_path / "mine", 0, plan(), superlink="127.0.0.1:1")
    home = tmp_path / "mine" / "flower"
    home.mkdir()

    def second() -> int:
        return node_supervisor.main([str(tmp_path / "mine"), "9094", "--insecure"])

    with hold_lock(home):
        status = os.waitpid(fork_process(second), 0)[1]
    assert os.waitstatus_to_exitcode(status) == 2


def test_a_program_that_ends_is_started_again_and_what_it_says_is_kept(tmp_path) -> None:
    said: list[str] = []
    code = "print('\\x1b[92mINFO \\x1b[0m:      here I am'); raise SystemExit(7)"
    log = JsonLog(tmp_path / "logs" / "it.jsonl")
    service = SupervisedProcess(
        "program", [sys.executable, "-c", code], os.environ, log, said.append
    )
    end = time.monotonic() + 60
    while service.starts < 2:
        assert time.monotonic() < end
        service.look()
        time.sleep(0.02)
    service.stop()
    assert "ended (7)" in said[0]
    line = json.loads((tmp_path / "logs" / "it.jsonl").read_text().splitlines()[0])
    assert (line["from"], line["level"], line["said"]) == ("program", "info", "here I am")


def test_a_program_that_was_given_something_wrong_is_not_started_again(tmp_path) -> None:
    code = "raise SystemExit(2)"
    log = JsonLog(tmp_path / "it.jsonl")
    service = SupervisedProcess("program", [sys.executable, "-c", code], os.environ, log, print)
    service.look()
    service._process.wait()
    with pytest.raises(UserError, match="its log says why"):
        service.look()
    assert service.starts == 1


def test_a_log_is_put_aside_when_it_is_large_and_few_are_kept(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(logs, "LARGEST", 2000)
    monkeypatch.setattr(logs, "KEPT", 2)
    log = JsonLog(tmp_path / "it.jsonl")
    for number in range(200):
        log.write("program", f"line {number}: 100 % of %s {{}}")
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    assert all(file.stat().st_size <= 2000 for file in files)
    last = json.loads((tmp_path / "it.jsonl").read_text().splitlines()[-1])
    assert last["said"] == "line 199: 100 % of %s {}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "one table"),
        ("[coordinator]\n[client]\n", "one table"),
        ("[hospital]\n", "one table"),
        ("[client]\nclient = 0\n", "superlink"),
        ("[coordinator]\nport = 70000\n", "port"),
        ("[coordinator]\nprot = 8000\n", "prot"),
        ("[client\n", "cannot be read"),
    ],
)
def test_a_file_of_a_party_that_says_something_wrong_is_refused(tmp_path, text, words) -> None:
    (tmp_path / "consortium.toml").write_text(text)
    with pytest.raises(UserError, match=words):
        read_consortium(tmp_path)


def test_a_folder_without_a_file_of_a_party_is_told_what_to_write(tmp_path, capfd) -> None:
    assert sordino(["flower", "up", str(tmp_path)]) == 2
    assert "[coordinator] or [client]" in capfd.readouterr().err


def test_a_coordinator_listens_to_others_only_under_a_name_that_others_can_reach(tmp_path) -> None:
    assert sordino(["flower", "new", str(tmp_path / "ours")]) == 0
    _, party = read_consortium(tmp_path / "ours")
    assert party == Coordinator()
    assert party.listen == "127.0.0.1"
    assert Coordinator(host="fl.example.org").listen == "0.0.0.0"


@pytest.mark.parametrize(
    ("host", "listen", "own", "address"),
    [
        ("localhost", "127.0.0.1", "127.0.0.1", "localhost:8000"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.1:8000"),
        ("127.0.0.2", "127.0.0.2", "127.0.0.2", "127.0.0.2:8000"),
        ("192.0.2.1", "0.0.0.0", "127.0.0.1", "192.0.2.1:8000"),
        ("[::1]", "::1", "::1", "[::1]:8000"),
        ("2001:db8::1", "::", "::1", "[2001:db8::1]:8000"),
    ],
)
def test_where_a_coordinator_listens_and_reaches_itself(
    tmp_path, host, listen, own, address
) -> None:
    party = Coordinator(host=host)
    assert (party.listen, party.own_host, party.address) == (listen, own, address)
    # Before there is a certificate, the name that others use is the only one known.
    assert find_own_address(tmp_path, party) == address
    write_certificates(tmp_path, add_own_names([host]))
    assert find_own_address(tmp_path, party) == join_address(own, 8000)


def test_a_host_that_its_certificate_does_not_name_is_told_before_anything_is_started(
    tmp_path, capfd
) -> None:
    """As when `up` was run once before the real name was written: every node was told not to trust it."""
    write_certificates(tmp_path / "certificates", add_own_names(["192.0.2.1"]))
    for host in ("fl.example.org", "192.0.2.2", "2001:db8::1"):
        (tmp_path / "consortium.toml").write_text(f'[coordinator]\nhost = "{host}"\n')
        assert sordino(["flower", "up", str(tmp_path)]) == 2
        said = capfd.readouterr().err
        assert host in said
        assert "192.0.2.1, localhost, 127.0.0.1, ::1" in said
    for host in ("192.0.2.1", "localhost", "::1"):
        require_host(tmp_path / "certificates", host)


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_a_port_that_is_taken_on_ipv6_is_named() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        assert "another program has it" in doctor.examine_port("::1", port).trouble
        assert "another program has it" in doctor.examine_port("::", port).trouble
    assert doctor.examine_port("::1", port).trouble is None


def test_the_documentation_lists_every_entry_with_its_default() -> None:
    page = (REPOSITORY / "docs" / "flower.md").read_text()
    lines = page.split("All entries of a `consortium.toml`")[1].split("\n\n")[1].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    found: dict[str, dict[str, str]] = {}
    for table, entry, default, _ in rows:
        if table:
            found[table.strip("`[]")] = listed = {}
        listed[entry.strip("`")] = default
    assert list(found) == list(PARTIES)
    for name, kind in PARTIES.items():
        assert list(found[name]) == [field.name for field in fields(kind)]
        for field in fields(kind):
            said = found[name][field.name]
            if field.default is MISSING:
                assert said == "needed"
            elif field.default is None:
                assert "`" not in said
            else:
                assert said == f"`{json.dumps(field.default)}`"


def hospital(folder: Path, address: str) -> Client:
    write_certificates(folder, ["127.0.0.1"], days=365)
    write_key(folder / "node.key")
    files = {"certificate": str(folder / "ca.crt"), "key": str(folder / "node.key")}
    agreed(folder / "mine", 0, plan(), superlink=address, **files)
    return Client(client=0, superlink=address, port=free_port(), seeded=True)


@pytest.mark.parametrize(
    ("entry", "agreed_to"),
    [
        ("epsilon = 2.0", "has None"),
        ("delta = 1e-6", "has 1e-05"),
        ('unit = "client"', "has 'record'"),
        ('data = "other.npz"', "has None"),
        ('certificate = "other.crt"', "ca.crt"),
        ('key = "other.key"', "node.key"),
        ('counter = "other.json"', "has None"),
        ("client = 1", "has 0"),
        ('superlink = "127.0.0.1:2"', "has '127.0.0.1:1'"),
        ("seeded = false", "has True"),
    ],
)
def test_a_file_that_says_other_things_than_the_agreement_is_not_gone_on_with(
    tmp_path, capfd, entry, agreed_to
) -> None:
    """A smaller epsilon, written after the first start, was passed over without a word."""
    hospital(tmp_path, "127.0.0.1:1")
    lines = ["client = 0", 'superlink = "127.0.0.1:1"', "seeded = true"]
    name = entry.partition(" ")[0]
    kept = [line for line in lines if not line.startswith(name)]
    (tmp_path / "consortium.toml").write_text("\n".join(["[client]", *kept, entry]))
    assert sordino(["flower", "up", str(tmp_path)]) == 2
    said = capfd.readouterr().err
    assert f"has {name} = " in said
    assert agreed_to in said
    assert sordino(["flower", "doctor", str(tmp_path)]) == 1
    assert "TROUBLE" in capfd.readouterr().out
    (tmp_path / "consortium.toml").write_text("\n".join(["[client]", *lines]))
    refuse_other_terms(*read_consortium(tmp_path), read_agreement(tmp_path / "mine"))


def troubles(folder: Path, party: Client | Coordinator) -> dict[str, str]:
    found = doctor.examine_party(folder, party)
    assert {"Flower", "Disk", "Certificate", "Key", "Health"} <= {one.what for one in found}
    return {one.what: one.trouble for one in found if one.trouble is not None}


def test_the_doctor_finds_what_is_wrong_and_nothing_else(tmp_path, superlink, monkeypatch) -> None:
    health, address = superlink
    party = hospital(tmp_path, address)
    well = {"healthy": True, "said": "connected", "at": time.time()}
    (tmp_path / "mine" / "health.json").write_text(json.dumps(well))
    plain = doctor.probe_superlink
    monkeypatch.setattr(doctor, "probe_superlink", lambda where, *_: plain(where, None))
    assert troubles(tmp_path, party) == {}

    (tmp_path / "node.key").chmod(0o644)
    assert "chmod 600" in troubles(tmp_path, party)["Key"]
    (tmp_path / "node.key").chmod(0o600)

    health.offset = -60.0
    assert "clock is 60 s ahead" in troubles(tmp_path, party)["SuperLink"]
    health.offset = 0.0

    monkeypatch.setattr(doctor, "FREE_SPACE", 10**18)
    assert "make space" in troubles(tmp_path, party)["Disk"]
    monkeypatch.setattr(doctor, "FREE_SPACE", 1)

    monkeypatch.setattr(doctor.metadata, "version", lambda _: "1.2.0")
    assert "pip install" in troubles(tmp_path, party)["Flower"]
    monkeypatch.undo()

    (tmp_path / "mine" / "health.json").write_text(json.dumps({**well, "at": time.time() - 100}))
    with socket.create_server(("127.0.0.1", party.port)):
        found = troubles(tmp_path, party)
    assert "sordino flower up" in found["Health"]
    assert "another port" in found["Port"]


def test_the_doctor_says_in_time_that_a_certificate_ends(tmp_path) -> None:
    write_certificates(tmp_path / "certificates", ["127.0.0.1"], days=20)
    found = troubles(tmp_path, Coordinator(port=free_port()))
    assert "renew" in found["Certificate"]
    assert set(found) == {"Certificate", "Health"}


def test_a_party_whose_counter_cannot_be_written_is_never_started(
    tmp_path, monkeypatch, capfd
) -> None:
    """As under a unit that hides the home: the first start left a half made agreement, the second ran it."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    write_certificates(tmp_path, ["127.0.0.1"])
    save_protocol(plan(noise=Gaussian(sigma=0.05, secure=True)), tmp_path / "protocol.toml")
    written = '[client]\nclient = 0\nsuperlink = "127.0.0.1:1"\n'
    (tmp_path / "consortium.toml").write_text(written)
    for _ in range(2):
        assert sordino(["flower", "up", str(tmp_path)]) == 2
        assert "/proc/nowhere" in capfd.readouterr().err
        assert not holds_agreement(tmp_path / "mine")
    # The entry names another place, and the agreement that the next start makes is whole.
    (tmp_path / "consortium.toml").write_text(written + 'counter = "../counter.json"\n')
    _, party = read_consortium(tmp_path)
    agree_as_written(tmp_path, party)
    assert (tmp_path / ".." / "counter.json").exists()
    assert "Counter" not in troubles(tmp_path, party)
    (tmp_path / ".." / "counter.json").unlink()
    assert "cannot be read" in troubles(tmp_path, party)["Counter"]
    assert sordino(["flower", "up", str(tmp_path)]) == 2
    assert "cannot be read" in capfd.readouterr().err


def test_who_has_received_nothing_yet_is_told_whom_to_ask(tmp_path, capfd) -> None:
    written = '[client]\nclient = 0\nsuperlink = "127.0.0.1:1"\n'
    (tmp_path / "consortium.toml").write_text(written)
    _, party = read_consortium(tmp_path)
    assert "ask the coordinator for ca.crt" in troubles(tmp_path, party)["Certificate"]
    assert "sordino flower up" in troubles(tmp_path, party)["Agreement"]
    for missing in ("ca.crt", "protocol.toml"):
        assert sordino(["flower", "up", str(tmp_path)]) == 2
        assert f"{missing}. Ask the coordinator for it." in capfd.readouterr().err
        assert not holds_agreement(tmp_path / "mine")
        (tmp_path / missing).touch()
    assert "flower up` makes it" in troubles(tmp_path, Coordinator(port=free_port()))["Certificate"]


def test_the_doctors_exit_code_says_whether_all_is_well(tmp_path, capfd) -> None:
    (tmp_path / "consortium.toml").write_text("[coordinator]\n")
    assert sordino(["flower", "doctor", str(tmp_path), "--json"]) == 1
    findings = json.loads(capfd.readouterr().out)["findings"]
    assert any(one["what"] == "Certificate" and one["trouble"] for one in findings)


def test_an_idle_node_loads_neither_torch_nor_what_prices_need() -> None:
    """Many nodes may share a machine: what is not needed before the first task is not loaded."""
    code = (
        "import sordino.flower.node_supervisor, sys\n"
        "print({'torch', 'scipy.stats', 'dp_accounting'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

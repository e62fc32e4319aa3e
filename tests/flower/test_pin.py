"""What runs on a client's machine is Sordino's, whatever is sent there and whoever asks there."""

import hashlib
import os
import subprocess
import threading
import time
from importlib.resources import as_file

import httpx
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

import uvicorn
from flwr.app import Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode import start_client_internal
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory

from sordino import UserError
from sordino.flower import app_pinning, client_app, node_supervisor, superexec
from sordino.flower.app_pinning import (
    CLIENT_APP,
    AppPin,
    check_pin,
    compute_app_digest,
    write_foreign_app,
)
from sordino.flower.client_store import ClientStore
from sordino.flower.flower_commands import APP
from sordino.flower.superexec import Task, TaskSource, WarmWorker, acquire_task, fork_process
from sordino.flower.upload_requests import RequestRefused
from tests.flower.lab import free_port, started_at
from tests.flower.local import LocalGrid, agreed, plan


@pytest.fixture
def store(tmp_path) -> ClientStore:
    return agreed(tmp_path / "mine", 0, plan(), app=compute_app_digest())


def bundle_of_foreign_app(folder) -> bytes:
    with as_file(APP) as own:
        write_foreign_app(own, folder / "foreign", folder / "it-ran")
    return build_fab_from_disk(folder / "foreign")


def test_the_agreed_bundle_gives_the_app_of_this_installation_and_unpacks_nothing(
    store, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    with as_file(APP) as own:
        bundle = build_fab_from_disk(own)
    assert AppPin(store, compute_app_digest()).choose_app(CLIENT_APP, bundle) is client_app.app
    assert not (tmp_path / "home").exists()
    assert store.refusals == []


def test_a_foreign_app_is_refused_and_the_ledger_names_its_digest(store, tmp_path) -> None:
    foreign = bundle_of_foreign_app(tmp_path)
    with pytest.raises(RequestRefused):
        AppPin(store, compute_app_digest()).choose_app(CLIENT_APP, foreign)
    assert hashlib.sha256(foreign).hexdigest() in store.refusals[0].reason
    assert not (tmp_path / "it-ran").exists()


def test_an_agreement_that_names_no_app_lets_sordinos_run_and_no_other(tmp_path) -> None:
    open_minded = agreed(tmp_path / "mine", 0, plan())
    with pytest.raises(RequestRefused):
        AppPin(open_minded, compute_app_digest()).choose_app(
            CLIENT_APP, bundle_of_foreign_app(tmp_path)
        )


@pytest.mark.parametrize("kind", ["flwr-agentapp", "flwr-serverapp", "flwr-model"])
def test_no_other_kind_of_task_is_run_even_with_the_agreed_bundle(store, kind) -> None:
    with as_file(APP) as own, pytest.raises(RequestRefused):
        AppPin(store, compute_app_digest()).choose_app(kind, build_fab_from_disk(own))
    assert kind in store.refusals[0].reason


def test_a_node_whose_pin_lets_a_foreign_app_pass_is_not_started(store, monkeypatch) -> None:
    assert node_supervisor.verify_app_pin(store.folder) == compute_app_digest()
    assert store.refusals == []  # nobody has asked yet
    monkeypatch.setattr(AppPin, "choose_app", lambda *_: client_app.app)
    with pytest.raises(UserError, match="would run here"):
        check_pin(store.folder, compute_app_digest())
    with pytest.raises(UserError, match="would run here"):
        node_supervisor.verify_app_pin(store.folder)


def test_a_node_whose_pin_cannot_be_tested_is_not_started(store, monkeypatch) -> None:
    monkeypatch.setattr(node_supervisor, "check_pin", lambda *_: os._exit(0))
    with pytest.raises(UserError, match="could not be tested"):
        node_supervisor.verify_app_pin(store.folder)


def test_another_app_that_was_agreed_to_by_its_digest_is_unpacked(tmp_path, monkeypatch) -> None:
    chosen = bundle_of_foreign_app(tmp_path)
    digest = hashlib.sha256(chosen).hexdigest()
    client = agreed(tmp_path / "mine", 0, plan(), app=digest)
    unpacked = []
    monkeypatch.setattr(app_pinning, "unpack_agreed_app", unpacked.append)
    AppPin(client, compute_app_digest()).choose_app(CLIENT_APP, chosen)
    assert unpacked == [chosen]
    with as_file(APP) as own, pytest.raises(RequestRefused):
        AppPin(client, compute_app_digest()).choose_app(CLIENT_APP, build_fab_from_disk(own))


@pytest.fixture
def supernode():
    """The part of a SuperNode that hands out tasks, as Flower serves it, with a secret."""
    port = free_port()
    factory = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
    app = create_app(state_factory=factory, superexec_auth_secret=b"only its supervisor knows")
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield factory.state(), f"127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


def test_a_task_and_its_token_go_to_nobody_who_does_not_know_the_nodes_secret(
    supernode, tmp_path
) -> None:
    """What another account on a hospital's machine tried: to ask the node's local port."""
    state, address = supernode
    state.set_node_id(7)
    state.create_task(task_type=TaskType.CLIENT_APP, run_id=1, fab_hash="x")
    supervisor = TaskSource(
        folder=tmp_path, address=address, secret=b"only its supervisor knows", own=""
    )
    thief = TaskSource(folder=tmp_path, address=address, secret=b"a guess", own="")
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        acquire_task(thief)
    naked = httpx.post(
        f"http://{address}/v1/runtime/acquire-task",
        headers={"content-type": "application/protobuf"},
    )
    assert naked.status_code == 401
    task = acquire_task(supervisor)
    assert task is not None
    assert task.kind == CLIENT_APP
    assert len(task.token) > 100


def test_the_secret_is_written_for_its_owner_alone(store) -> None:
    (store.folder / "flower").mkdir()
    source = node_supervisor.NodeSupervisor(store, 9094, insecure=True)._prepare()
    path = store.folder / "flower" / "secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == source.secret
    assert len(source.secret) == 32


def test_a_task_whose_process_is_killed_is_begun_once_more_and_then_answered_with_an_error(
    tmp_path, monkeypatch
) -> None:
    """The process kills itself; the count of its starts is kept on disk."""
    LocalGrid(tmp_path)  # Flower makes messages within a run only
    message = Message(RecordDict(), 1, "train")
    message.metadata.__dict__["_message_id"] = "m"
    context = Context(1, 1, {}, RecordDict(), {}, 0)
    starts = tmp_path / "starts"
    sent = []

    def die(*_: object) -> int:
        with open(starts, "a") as file:
            file.write("x")
        os.kill(os.getpid(), 9)
        return 0

    bundle = type("Bundle", (), {"content": b""})
    pulled = (message, context, None, bundle)
    monkeypatch.setattr(
        "flwr.supernode.runtime.run_clientapp.pull_task_input", lambda client: pulled
    )
    monkeypatch.setattr(superexec, "answer_message", die)
    monkeypatch.setattr(superexec, "send_reply", lambda *given: sent.append(given[2]))
    source = TaskSource(folder=tmp_path, address="127.0.0.1:1", secret=b"s", own="")
    superexec.answer_task(source, Task(kind=CLIENT_APP, token="t"))
    assert starts.read_text() == "xx"
    assert [reply.error.reason for reply in sent] == ["its process was killed"]


def test_the_loaded_process_answers_task_after_task_and_is_replaced_when_it_is_gone(
    tmp_path, monkeypatch
) -> None:
    answered = tmp_path / "answered"

    def note(source: TaskSource, task: Task) -> None:
        with open(answered, "a") as file:
            file.write(f"{os.getpid()} {task.token}\n")

    monkeypatch.setattr(superexec, "answer_task", note)
    answering = WarmWorker(TaskSource(folder=tmp_path, address="", secret=b"", own=""))

    def hand_over(token: str) -> str:
        answering.hand_over(Task(kind=CLIENT_APP, token=token))
        end = time.monotonic() + 60
        while not answered.exists() or token not in answered.read_text():
            assert time.monotonic() < end
            time.sleep(0.01)
        return answered.read_text().splitlines()[-1].split()[0]

    first = hand_over("a")
    assert hand_over("b") == first == str(answering.process)
    os.kill(int(first), 9)
    while answering.process:
        time.sleep(0.01)
    assert hand_over("c") != first
    answering.stop()
    assert answering.process == 0


def test_a_forked_process_ends_with_its_parent(tmp_path) -> None:
    """The parent forks a child that sleeps, tells its id and is killed, as by a power cut."""

    def parent() -> int:
        child = fork_process(lambda: time.sleep(60) or 0)
        (tmp_path / "child").write_text(str(child))
        os.kill(os.getpid(), 9)
        return 0

    os.waitpid(fork_process(parent), 0)
    child = int((tmp_path / "child").read_text())
    end = time.monotonic() + 20
    while started_at(child) is not None:
        assert time.monotonic() < end
        time.sleep(0.02)


def give_message(state, store, kind, bundle: bytes, folder) -> None:
    """Puts a message of a run into a SuperNode, as if it had come from a SuperLink."""
    digest = hashlib.sha256(bundle).hexdigest()
    run = Run.create_empty(1)
    run.fab_hash = digest
    state.set_node_id(7)
    state.store_run(run)
    state.store_fab(Fab(hash_str=digest, content=bundle, verifications={}))
    settings = {"sordino-folder": str(folder)}
    context = Context(1, 7, settings, RecordDict(), {}, run.series_id)
    state.set_run_series_context(run.series_id, context)
    message = Message(RecordDict(), 7, "query")
    message.metadata.__dict__["_src_node_id"] = 1
    start_client_internal._insert_message(message, state, store)
    state.create_task(task_type=kind, run_id=1, fab_hash=digest)


@pytest.mark.parametrize(
    ("kind", "foreign", "words"),
    [
        ("flwr-agentapp", False, "flwr-agentapp was to be started"),
        ("flwr-clientapp", True, "an app was sent that was not agreed to"),
    ],
)
def test_a_task_that_nobody_agreed_to_gets_an_error_and_leaves_the_node_free_for_others(
    supernode, store, tmp_path, kind, foreign, words
) -> None:
    """One run of an agent once left nodes waiting for an answer that never came."""
    LocalGrid(tmp_path)
    state, address = supernode
    with as_file(APP) as own:
        bundle = bundle_of_foreign_app(tmp_path) if foreign else build_fab_from_disk(own)
    give_message(state, state.object_store, TaskType(kind), bundle, store.folder)
    secret = b"only its supervisor knows"
    source = TaskSource(
        folder=store.folder, address=address, secret=secret, own=compute_app_digest()
    )
    task = acquire_task(source)
    assert task.kind == kind
    superexec.answer_task(source, task)
    [reply] = state.get_messages_legacy(is_reply=True)
    assert words in reply.error.reason
    assert words in store.refusals[0].reason
    assert not (tmp_path / "it-ran").exists()
    assert acquire_task(source) is None


@pytest.fixture
def noexec(tmp_path):
    """A file system from which nothing may be executed, as hardened machines mount their data."""
    place = tmp_path / "noexec"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "noexec,size=16m", "sordino-test", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("this account cannot mount a file system with noexec")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_where_nothing_may_be_executed_only_the_agreed_app_answers(
    noexec, supernode, tmp_path
) -> None:
    """The program of the pin could not be started there, and Flower's own ran a foreign app."""
    program = noexec / "flwr-clientapp"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with pytest.raises(PermissionError):
        subprocess.run([str(program)], check=False)
    LocalGrid(tmp_path)
    store = agreed(noexec / "mine", 0, plan(), app=compute_app_digest())
    assert node_supervisor.verify_app_pin(store.folder) == compute_app_digest()
    state, address = supernode
    foreign = bundle_of_foreign_app(tmp_path)
    give_message(state, state.object_store, TaskType(CLIENT_APP), foreign, store.folder)
    secret = b"only its supervisor knows"
    source = TaskSource(
        folder=store.folder, address=address, secret=secret, own=compute_app_digest()
    )
    superexec.answer_task(source, acquire_task(source))
    [reply] = state.get_messages_legacy(is_reply=True)
    assert "not agreed to" in reply.error.reason
    assert not (tmp_path / "it-ran").exists()

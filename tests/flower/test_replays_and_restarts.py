"""Recorded requests, a second coordinator, a folder under two names, what is lost from a folder, full disks, words that forge a log."""

import errno
import json
import os
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from flwr.common.config import parse_config_args

from sordino import Gaussian, UserError
from sordino.cli.main import run as sordino
from sordino.flower import metrics_endpoint, services
from sordino.flower.agreement import read_agreement, write_agreement
from sordino.flower.certificates import write_key
from sordino.flower.client_store import ClientStore
from sordino.flower.consortium import Coordinator
from sordino.flower.flower_commands import CommandFailed
from sordino.flower.flower_processes import make_node_arguments
from sordino.flower.guard import FOLDER
from sordino.flower.logs import JsonLog
from sordino.flower.messages import request_message
from sordino.flower.services import CoordinatorService
from sordino.flower.signing import Signer
from sordino.flower.superexec import fork_process
from sordino.flower.superlink_probe import Probe
from sordino.flower.upload_requests import MODEL, Request
from sordino.protocol import dumps
from sordino.protocol.arithmetic import state_integers
from tests.flower.local import agreed, plan
from tests.flower.test_signed import RUN, SECURE, Attacked


@pytest.fixture
def client(tmp_path) -> Attacked:
    return Attacked(tmp_path, plan(noise=SECURE, rounds=10))


# Recorded requests, and a second coordinator


def test_a_recorded_request_gets_one_upload_of_a_new_agreement_too(client, tmp_path) -> None:
    """Who holds the SuperLink numbers its runs: the old request is signed for the run in which it comes again."""
    recorded = client.message(0)
    first = client.send(recorded).content["upload"]["vector"].data
    (tmp_path / "client-0").rename(tmp_path / "old")
    authority = str(client.certificates / "ca.crt")
    store = agreed(
        tmp_path / "client-0", 0, client.protocol, certificate=authority, parameters=2410
    )
    assert "something else" in client.send(client.message(0, run=RUN + 1)).error.reason
    assert store.rounds_paid == []
    replies = [client.send(recorded) for _ in range(3)]
    sent = [reply.content["upload"]["vector"].data for reply in replies if reply.has_content()]
    assert len(sent) == 1
    assert sent[0] != first
    assert store.rounds_paid == [0]
    # Both agreements on the same records were paid for, each from its own budget.
    assert ClientStore(tmp_path / "old").rounds_paid == [0]
    assert "this is another" in client.ask(1, training="two").error.reason


def test_two_coordinators_with_one_key_get_no_more_than_one(client) -> None:
    """A copy of the coordinator's folder on a second machine, which trains at the same time."""
    twin = Signer.read(client.certificates)
    client.upload(0)
    client.signer = twin
    # Another training; the same one with another model; the same one with the same model, again.
    assert "this is another" in client.ask(1, training="twin").error.reason
    assert "answered already" in client.ask(0, model=client.model + 1).error.reason
    assert "answered already" in client.ask(0).error.reason
    assert client.store.rounds_paid == [0]


def test_a_folder_under_two_names_answers_once(client, tmp_path) -> None:
    """A link to it, as where a folder was moved to another disk: two nodes could be started on it."""
    (tmp_path / "client-7").symlink_to(tmp_path / "client-0")
    message = client.message(0)
    message.metadata.__dict__["_message_id"] = "question"

    def ask(number: int) -> int:
        torch.set_num_threads(1)
        reply = client.grid.answer(7 * (number % 2), message)
        if reply.has_content():
            (tmp_path / f"{number}.upload").touch()
        return 0

    for process in [fork_process(lambda number=number: ask(number)) for number in range(8)]:
        os.waitpid(process, 0)
    assert len(list(tmp_path.glob("*.upload"))) == 1
    assert client.store.rounds_paid == [0]


# A node that is started with another agreement, or with less in its folder


def test_what_was_spent_is_not_forgotten_with_the_file_that_says_under_which_protocol(
    tmp_path, capfd
) -> None:
    """Another training, of more noise, was then accepted, and priced all rounds before by its own: 3.58 became .09."""
    protocol = plan(noise=Gaussian(sigma=2.0, secure=True), rounds=6)
    client = Attacked(tmp_path, protocol, epsilon=20.0)
    for round_index in range(3):
        client.upload(round_index)
    spent = client.store.compute_guarantee().epsilon(1e-5)
    accepted = client.store.folder / "accepted.json"
    aside = accepted.rename(tmp_path / "aside")
    client.protocol = replace(protocol, noise=Gaussian(sigma=40.0, secure=True))
    assert client.ask(3, training="two").has_error()
    assert client.store.rounds_paid == [0, 1, 2]
    assert sordino(["flower", "spent", str(client.store.folder)]) == 2
    assert "Put it back" in capfd.readouterr().err
    aside.rename(accepted)
    assert client.store.compute_guarantee().epsilon(1e-5) == spent
    client.protocol = protocol
    client.upload(3)


def test_a_node_with_another_agreement_goes_on_under_it_or_not_at_all(client) -> None:
    """Started again with another client's number, another authority, another app or without a counter."""
    client.upload(0)
    folder = client.store.folder
    kept = (folder / "agreement.toml").read_bytes()
    write_agreement(replace(read_agreement(folder), client=1), folder)
    assert "client 0 was requested" in client.ask(1).error.reason
    (folder / "agreement.toml").write_bytes(kept)
    # A budget that is smaller than what was spent, and none at all: the charge of round 0 stays.
    write_agreement(replace(read_agreement(folder), epsilon=1e-3), folder)
    assert "are spent" in client.ask(1).error.reason or "allows 0" in client.ask(1).error.reason
    (folder / "agreement.toml").write_bytes(kept)
    assert "answered already" in client.ask(0).error.reason
    client.upload(1)
    assert client.store.rounds_paid == [0, 1]


def test_copies_that_a_program_left_beside_kept_uploads_silence_nobody(client) -> None:
    """A file manager's "0 (copy)": the client answered nothing any more, and its log showed a traceback."""
    client.upload(0)
    answers = client.store.folder / "answers"
    for name in ("0 (copy)", "²", "٣", "-1", "0 (conflicted copy 2026-01-01)", "x"):
        (answers / f"{name}.safetensors").write_bytes(b"not an upload")
    assert client.store.answers.rounds == [0]
    client.upload(1)


@pytest.mark.parametrize(
    "name",
    ["it's", "a b", "x = 1 #", "{y}$HOME %20", "ü ñ", "a\\b", "a\nb", "\N{SNOWMAN}\U0001f600"],
)
def test_a_node_is_told_of_the_very_folder_whatever_its_name(tmp_path, name) -> None:
    """With letters beyond 16 bits, Flower's SuperNode ended each time it was started."""
    store = agreed(tmp_path / name, 0, plan(), superlink="127.0.0.1:1")
    arguments = make_node_arguments(store, 1, insecure=True, secret=tmp_path)
    [settings] = [one for one in arguments if one.startswith(FOLDER)]
    assert parse_config_args([settings]) == {FOLDER: str(tmp_path / name)}


def test_a_folder_whose_name_adds_a_setting_is_refused(tmp_path, capfd) -> None:
    place = tmp_path / f'a" {FOLDER}="other'
    agreed(place, 0, plan(), superlink="127.0.0.1:1")
    assert sordino(["flower", "node", str(place), "--insecure"]) == 2
    assert "no quotation mark" in capfd.readouterr().err


# Words of a server that forge lines of a log, or move a terminal's cursor


def test_a_refusal_quotes_nothing_that_a_terminal_obeys(client) -> None:
    """A key of a protocol came with its escape sequences into `spent`, `up` and the ledger."""
    evil = r"\u001b]0;title\u0007\u001b[2J\n12:00:00 2 of 2 connected \u009b2J\u202e"
    good = dumps(state_integers(client.protocol))
    for protocol in (
        f'{good}\n["{evil}"]\nx = 1\n',
        good.replace("[local]", f'[local]\n"{evil}" = 1'),
        good.replace('name = "mlp"', f'name = "{evil}"'),
    ):
        request = Request(
            training="one\x1b[2J", client=0, round=0, attempt=0, protocol=protocol,
            arrays={MODEL: client.model},
        )  # fmt: skip
        message = request_message(request, node=1000, ttl=60, signer=client.signer, run=str(RUN))
        assert client.refusal(client.send(message)).isprintable()
    assert len(client.store.refusals) == 3
    assert all(refusal.reason.isprintable() for refusal in client.store.refusals)
    assert services.sum_spending(client.store.folder).words.isprintable()


def test_a_line_of_a_log_is_one_object_whatever_a_program_prints(tmp_path) -> None:
    log = JsonLog(tmp_path / "it.jsonl")
    forged = (
        '"}\r{"at": "2026", "from": "node", "level": "info", "said": "all is well"}\x1b[2J\u2028'
    )
    log.write("node", f"WARNING : {forged}")
    [line] = (tmp_path / "it.jsonl").read_text().split("\n")[:-1]
    assert line.isprintable()
    facts = json.loads(line)
    assert (facts["from"], facts["level"]) == ("node", "warning")


# Full disks


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a small disk")
def test_a_counter_on_a_disk_that_is_really_full_holds_everything_back(tmp_path) -> None:
    disk = tmp_path / "small"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", disk], check=False)
    if made.returncode:
        pytest.skip("this system makes no small disk")
    try:
        protocol = plan(noise=SECURE, rounds=10)
        client = Attacked(tmp_path, protocol, counter=str(disk / "counter.json"))
        client.upload(0)
        filling = disk / "other"
        with pytest.raises(OSError, match="No space"):
            filling.write_bytes(bytes(2**20))
        for attempt in range(3):
            assert client.ask(1, attempt=attempt).has_error()
        filling.unlink()
        assert client.ask(1, attempt=3).has_content()
        assert client.store.rounds_paid == [0, 1]
        client.store.check_second_place()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_disk_too_full_for_the_state_of_a_party_ends_nothing_that_it_runs(
    tmp_path, monkeypatch
) -> None:
    """`up` ended with a traceback, and with it the SuperLink or the node."""
    state = metrics_endpoint.PublishedState(tmp_path)
    state.publish(True, {"sordino_healthy": 1.0}, "2 of 2 connected")
    before = (tmp_path / "health.json").read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(metrics_endpoint, "write_whole", full)
        state.publish(True, {"sordino_healthy": 1.0}, "2 of 2 connected")
    assert (tmp_path / "health.json").read_bytes() == before
    status, _, body = state.answer("/health")
    assert status == 503
    assert "No space left on device" in json.loads(body)["said"]
    state.publish(True, {"sordino_healthy": 1.0}, "2 of 2 connected")
    assert state.answer("/health")[0] == 200


# Files in the folder of keys, and a SuperLink that ends between two questions


@pytest.fixture
def service(tmp_path, monkeypatch):
    """A coordinator whose SuperLink takes every key, unless it is asked for client 9."""
    told: list[str] = []
    made = CoordinatorService(tmp_path, Coordinator(), told.append)
    (tmp_path / "keys").mkdir()
    (tmp_path / "flower").mkdir()
    taken: list[str] = []

    def take(_: object, given: list[str], address: str) -> None:
        if given[0].startswith("9="):
            raise CommandFailed("it is not taken")
        taken.append(given[0].partition("=")[0])

    monkeypatch.setattr(services, "register_clients", take)
    return SimpleNamespace(service=made, told=told, taken=taken, keys=tmp_path / "keys")


def test_whatever_lies_in_the_folder_of_keys_is_taken_or_named_once(service, tmp_path) -> None:
    """A folder there ended `up`, and a key that was refused was named every three seconds."""
    write_key(tmp_path / "north.key").rename(service.keys / "0.pub")
    (service.keys / "1.pub").mkdir()
    os.mkfifo(service.keys / "2.pub")
    (service.keys / "3.pub").symlink_to(tmp_path / "nowhere")
    for name in ("9.pub", "².pub", "0 (1).pub", "-1.pub", "0=1.pub", "\n.pub"):
        (service.keys / name).write_bytes(b"a key")
    for _ in range(3):
        assert service.service._register_new_clients() == 1
    assert service.taken == ["0"]
    assert len(service.told) == 5
    for name in ("1.pub", "2.pub", "3.pub", "9.pub"):
        assert sum(f"{name} was not registered" in words for words in service.told) == 1


def test_another_key_for_a_client_that_is_registered_is_named_and_not_taken(
    service, tmp_path
) -> None:
    """It was passed over without a word: the hospital with the new key was never let in, and nobody knew why."""
    for name in ("first", "second"):
        write_key(tmp_path / f"{name}.key")
    (service.keys / "0.pub").write_bytes((tmp_path / "first.key.pub").read_bytes())
    service.service._register_new_clients()
    (service.keys / "0.pub").write_bytes((tmp_path / "second.key.pub").read_bytes())
    for _ in range(2):
        service.service._register_new_clients()
    assert service.taken == ["0"]
    assert len(service.told) == 2
    assert "put the first one back" in service.told[1]


def test_a_superlink_that_ends_while_it_is_asked_who_is_there_ends_nobody_else(
    service, monkeypatch
) -> None:
    def end(*_: object) -> int:
        raise ConnectionError("it is gone")

    monkeypatch.setattr(services, "probe_superlink", lambda *_: Probe(trouble=None))
    monkeypatch.setattr(services, "count_online_nodes", end)
    process = SimpleNamespace(starts=1, age=1.0, is_running=True, kill=pytest.fail)
    service.service.look(process)
    assert "it is gone" in service.told[-1]
    assert service.service.state.answer("/health")[0] == 503


def test_an_agreement_cannot_be_made_over_a_counter_of_another_by_a_link(tmp_path) -> None:
    """A link in place of the counter's folder, which leads into the folder that is backed up."""
    (tmp_path / "client-0").mkdir()
    (tmp_path / "elsewhere").symlink_to(tmp_path / "client-0")
    with pytest.raises(UserError, match="is inside"):
        agreed(
            tmp_path / "client-0", 0, plan(noise=SECURE),
            counter=str(tmp_path / "elsewhere" / "counter.json"),
        )  # fmt: skip
    assert list((tmp_path / "client-0").iterdir()) == []

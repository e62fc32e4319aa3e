"""What a coordinator, a hospital or another account of a machine may put where it is read: names, files, clocks."""

import sqlite3
import stat
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino import Data, Gaussian, UserError
from sordino.flower import doctor, metrics_endpoint
from sordino.flower.agreement import Agreement
from sordino.flower.consortium import Coordinator
from sordino.flower.metrics_endpoint import PublishedState
from sordino.flower.services import CoordinatorService
from sordino.flower.sum_messages import KeyCall, sum_message
from sordino.flower.superlink import hide_database
from sordino.protocol import dumps
from tests.flower.local import plan
from tests.flower.summing import SIZE, Summing, fingerprints, summed_plan, write_identity
from tests.flower.test_signed import Attacked

SECURE = Gaussian(sigma=0.05, secure=True)


@pytest.fixture
def client(tmp_path) -> Attacked:
    return Attacked(tmp_path, plan(noise=SECURE, rounds=10))


# What a coordinator with its own key sends


def test_a_name_of_megabytes_is_written_down_nowhere(client) -> None:
    """It stood in the client's folder, and was read again with every request."""
    assert "its training" in client.refusal(client.ask(0, training="x" * 5_000_000))
    assert sum(path.stat().st_size for path in client.store.folder.iterdir()) < 20_000


@pytest.mark.parametrize("name", ["\ud800", "x" * 5_000_000], ids=["half a letter", "megabytes"])
def test_a_name_that_cannot_be_written_is_refused_in_the_ledger(tmp_path, name) -> None:
    """The first ended in an error that left no line, deep inside the work on a key."""
    summing = Summing(tmp_path, summed_plan(threshold=4))
    call = sum_message(KeyCall(training=name, protocol=dumps(summing.protocol)), node=1000, ttl=60)
    call.metadata.__dict__["_message_id"] = "question"
    store = summing.store(0)
    reply = summing.grid.answer(0, call)
    assert "not understood" in reply.error.reason
    assert [one.reason for one in store.refusals] == [
        reply.error.reason.removeprefix("it refused: ")
    ]
    assert not (store.folder / "secure_sums.json").exists()


def test_asking_again_and_again_fills_no_disk(client) -> None:
    """Each time a line of seconds was added, for an upload that was computed once."""
    client.upload(0)
    before = {path.name: path.stat().st_size for path in client.store.folder.iterdir()}
    for attempt in range(1, 40):
        assert client.ask(0, attempt=attempt).has_content()
    assert {path.name: path.stat().st_size for path in client.store.folder.iterdir()} == before
    client.upload(1)
    assert len((client.store.folder / "seconds.jsonl").read_text().splitlines()) == 2


def test_one_key_is_not_two_clients(tmp_path) -> None:
    """A list with a key twice: the threshold would count one machine as two."""
    write_identity(tmp_path / "0.key", 0)
    keys = fingerprints(5)
    for doubled in ((keys[0], keys[0], *keys[2:]), (keys[0], keys[1], keys[1], *keys[3:])):
        with pytest.raises(UserError, match="every name once"):
            Agreement(
                client=0, records=40, parameters=SIZE, key=str(tmp_path / "0.key"), clients=doubled
            )


@pytest.mark.parametrize(
    "name", ["benign\nServer   learns at most epsilon = 0.01", "\x1b[2Jbenign", "\u202ebenign"]
)
def test_names_of_classes_forge_nothing_of_what_a_hospital_reads_before_it_agrees(name) -> None:
    with pytest.raises(UserError, match="on one line"):
        Data(name="public.npz", records=40, classes=("malignant", name))


# What a hospital sends as its key


def test_a_key_of_terabytes_does_not_end_up(tmp_path) -> None:
    """A file with a hole takes no disk, and all the memory of whoever reads it."""
    said: list[str] = []
    service = CoordinatorService(tmp_path, Coordinator(), said.append)
    (tmp_path / "keys").mkdir()
    with open(tmp_path / "keys" / "0.pub", "wb") as file:
        try:
            file.truncate(2**42)
        except OSError:
            pytest.skip("this file system has no holes")
    for _ in range(2):
        assert service._register_new_clients() == 0
    assert len(said) == 1
    assert "a public key has fewer" in said[0]


# Another account of the machine, and its clock


def test_other_accounts_do_not_read_the_superlinks_database(tmp_path) -> None:
    """Uploads wait in it for the training, and it has the tokens of tasks."""
    database = tmp_path / "link.db"
    # As earlier versions left it.
    (tmp_path / "link.db-wal").touch(mode=0o644)
    hide_database(["--port", "1", "--database", str(database)])
    connection = sqlite3.connect(database)
    connection.execute("pragma journal_mode=wal")
    connection.execute("create table uploads (content)")
    connection.commit()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    connection.close()
    assert modes == dict.fromkeys(["link.db", "link.db-wal", "link.db-shm"], 0o600)


def test_a_clock_that_is_put_back_keeps_nobody_healthy(tmp_path, monkeypatch) -> None:
    """A party that hangs said that all is well, until the clock had come to where it was."""
    state = PublishedState(tmp_path)
    state.publish(True, {}, "all is well")
    assert state.answer("/health")[0] == 200
    assert doctor.examine_health(tmp_path / "health.json").trouble is None
    moved = SimpleNamespace(
        time=lambda: time.time() - 7200, monotonic=lambda: time.monotonic() + 60
    )
    monkeypatch.setattr(metrics_endpoint, "time", moved)
    monkeypatch.setattr(doctor, "time", moved)
    assert state.answer("/health")[0] == 503
    assert doctor.examine_health(tmp_path / "health.json").trouble is not None

"""A run whose process was killed is noticed by the lock that the system let go of."""

import os
import time

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino import Gaussian
from sordino.engines.choice import SuperLink
from sordino.engines.run_options import Watch
from sordino.federation.store.files import hold_lock
from sordino.federation.training import Incomplete
from sordino.flower import driver, run_follower
from sordino.flower.client_store import ClientStore
from sordino.flower.run_follower import LostRun, RunFollower
from sordino.flower.server_app import write_outcome
from sordino.flower.superexec import fork_process
from sordino.flower.upload_requests import OTHER_TRAINING
from sordino.privacy.ledger import Ledger
from sordino.privacy.ledger_lines import Opened
from sordino.protocol import SordinoError
from tests.flower.ledgers import find_losses, find_repeated_charges
from tests.flower.local import across, consortium, plan

LINK = SuperLink(address="127.0.0.1:1", certificate=None, patience=1.0, deadline=1.0)


def silent_watch(said: list[str]) -> Watch:
    return Watch(on_start=lambda *_: None, on_round=lambda _: None, on_message=said.append)


@pytest.fixture
def following(tmp_path, monkeypatch) -> RunFollower:
    """A run that has begun and does not go on."""
    monkeypatch.setattr(run_follower, "GONE", 0.3)
    monkeypatch.setattr(run_follower, "LOOK", 0.05)
    monkeypatch.setattr(RunFollower, "_look", lambda self: False)
    made = RunFollower(tmp_path, "1", tmp_path, silent_watch([]))
    made._started = True
    return made


def test_a_run_whose_process_holds_its_folder_is_not_given_up(following, tmp_path) -> None:
    def train() -> int:
        with hold_lock(tmp_path):
            time.sleep(1.5)
        return 0

    trainer = fork_process(train)
    while not (tmp_path / "lock").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    began = time.monotonic()
    with pytest.raises(LostRun, match="sordino resume"):
        following.follow()
    assert time.monotonic() - began > 1.2
    os.waitpid(trainer, 0)


def test_a_run_whose_process_was_killed_is_lost_within_seconds(following, tmp_path) -> None:
    def train() -> int:
        with hold_lock(tmp_path):
            os.kill(os.getpid(), 9)
        return 0

    os.waitpid(fork_process(train), 0)
    began = time.monotonic()
    with pytest.raises(LostRun):
        following.follow()
    assert time.monotonic() - began < 30


def test_a_run_that_is_lost_goes_on_by_itself_when_its_superlink_is_back(
    tmp_path, monkeypatch
) -> None:
    said: list[str] = []
    asked: list[dict[str, object]] = []

    def submit(superlink, settings, folder, watch, *, known):
        asked.append({**settings, "known": known})
        if len(asked) < 3:
            (folder / "protocol.toml").touch()
            raise LostRun("it is gone")
        return "the run"

    monkeypatch.setattr(driver, "submit_once", submit)
    monkeypatch.setattr(driver, "wait_for_superlink", lambda _: None)
    settings = {"protocol": "p", "folder": str(tmp_path)}
    assert driver.submit_run(LINK, settings, tmp_path, silent_watch(said)) == "the run"
    again = {"folder": str(tmp_path), "resume": True, "known": True}
    assert asked == [{**settings, "known": False}, again, again]
    assert len(said) == 2


def test_a_run_is_lost_when_its_superlink_stays_away_or_it_never_began(
    tmp_path, monkeypatch
) -> None:
    asked = []

    def submit(*_: object, **__: object) -> None:
        asked.append(1)
        raise LostRun("it is gone")

    monkeypatch.setattr(driver, "submit_once", submit)
    with pytest.raises(LostRun):
        driver.submit_run(LINK, {}, tmp_path, silent_watch([]))
    (tmp_path / "protocol.toml").touch()
    # Nothing listens at the address, for longer than its patience.
    with pytest.raises(LostRun, match=r"it is gone\nThe SuperLink: .* cannot be reached"):
        driver.submit_run(LINK, {}, tmp_path, silent_watch([]))
    assert len(asked) == 2


def test_only_its_own_outcome_ends_a_run(following, tmp_path, monkeypatch) -> None:
    """Another process that was refused the folder leaves an error there as well."""
    settings = {"folder": str(tmp_path)}
    left = tmp_path / run_follower.OUTCOME
    write_outcome(settings, SordinoError("another process is working on it"), "2")
    following._raise_outcome()
    assert left.exists()
    write_outcome(settings, SordinoError("it is full"), "1")
    with pytest.raises(SordinoError, match="it is full"):
        following._raise_outcome()
    assert not left.exists()


def test_who_trains_where_resume_is_meant_is_told(following, tmp_path) -> None:
    write_outcome({"folder": str(tmp_path)}, Incomplete(0, {0: OTHER_TRAINING}), "1")
    with pytest.raises(SordinoError, match="go on with it: sordino resume RUN"):
        following.follow()
    write_outcome({"folder": str(tmp_path)}, Incomplete(0, {0: "it is not connected"}), "1")
    with pytest.raises(SordinoError, match=r"when they are back\.$"):
        following.follow()


def test_a_comparison_of_both_sides_ledgers_finds_what_is_doubled_or_missing(tmp_path) -> None:
    """What the trials of recovery rely on."""
    protocol = plan(clients=2, rounds=2, noise=Gaussian(sigma=0.05, secure=True))
    run = across(tmp_path / "run", protocol, consortium(tmp_path, protocol)).folder
    stores = [ClientStore(tmp_path / f"client-{client}") for client in range(2)]
    assert find_repeated_charges(run, stores) == find_losses(run, stores) == []
    stores[0].charge_round(7)
    stores[1].charge_round(1)
    assert find_repeated_charges(run, stores) == ["client 1 charged round 1 2 times"]
    [lost] = find_losses(run, stores)
    assert lost == "client 0 paid for round 7, which the coordinator did not charge"
    (tmp_path / "doubled").mkdir()
    opened = Opened(protocol="any", generator="any", noise="fresh")
    with Ledger.create(tmp_path / "doubled" / "ledger.jsonl", opened) as ledger:
        for _ in range(2):
            ledger.charge(round=0, clients=[0, 1])
    doubled = find_repeated_charges(tmp_path / "doubled", stores)
    assert "coordinator charged round 0 2 times" in doubled
    rows = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(rows[1] + "\n")
    assert "a round is missing in the run" in find_losses(run, stores)

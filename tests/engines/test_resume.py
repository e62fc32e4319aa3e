"""A run survives being killed at any moment, a full disk, damage; and one process holds it at a time."""

import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import time
from pathlib import Path

import pytest
import torch

from sordino import (
    Constant,
    Data,
    Dirichlet,
    Gaussian,
    Iid,
    Laplace,
    NoisySgd,
    Poisson,
    Run,
    Shards,
    Staircase,
    UserError,
    resume,
    train,
)
from sordino.federation.round_metrics import RoundMetrics
from sordino.federation.store import files as storage
from sordino.federation.store.run_folder import RunFolder
from sordino.federation.store.upload_archive import kept_rounds, read_round
from sordino.federation.training import CheckpointPolicy
from sordino.privacy.ledger_lines import RoundCharged
from tests.support import toy_dataset, toy_protocol, without_seconds

FORK = multiprocessing.get_context("fork")
LONG = toy_protocol(rounds=60, participation=Poisson(rate=0.6))


def start_or_go_on(folder: Path, workers: int = 2, protocol=LONG) -> None:
    torch.set_num_threads(
        1
    )  # called in forked processes, where OpenMP's threads of the parent no longer exist
    if (folder / "protocol.toml").exists():
        resume(folder, data=toy_dataset(), workers=workers)
    else:
        train(
            protocol,
            data=toy_dataset(),
            model="mlp",
            folder=folder,
            engine="torch",
            workers=workers,
            keep_uploads=3,
        )


def killed_after(seconds: float, folder: Path) -> bool:
    """Train in a process of its own and kill it with signal 9; True if it was still at work."""
    process = FORK.Process(target=start_or_go_on, args=(folder,))
    process.start()
    process.join(seconds)
    at_work = process.exitcode is None
    process.kill()
    process.join()
    return at_work


def files_that_count(folder: Path) -> dict[str, object]:
    run = Run.load(folder)
    return {
        "model": (folder / "model.safetensors").read_bytes()
        if (folder / "model.safetensors").exists()
        else None,
        "state": run.state is not None
        and {name: value.numpy().tobytes() for name, value in run.state.items()},
        "ledger": (folder / "ledger.jsonl").read_bytes(),
        "protocol": (folder / "protocol.toml").read_bytes(),
        "metrics": without_seconds(run.metrics),
        "status": run.status,
    }


def uploads_of(folder: Path) -> dict[str, object]:
    rounds = [read_round(folder, t) for t in kept_rounds(folder)]
    return {
        f"uploads {one.round}": (one.model.tobytes(), one.uploads.tobytes(), one.clients.tolist())
        for one in rounds
    }


@pytest.mark.soak
def test_killed_at_25_random_moments_a_run_ends_as_if_it_had_never_been(tmp_path) -> None:
    start_or_go_on(tmp_path / "whole")
    expected = files_that_count(tmp_path / "whole") | uploads_of(tmp_path / "whole")
    assert len(expected) > 20
    chance = random.Random(1)
    kills = runs = 0
    while kills < 25:
        folder = tmp_path / f"killed-{runs}"
        while killed_after(chance.uniform(0.0, 0.5), folder):
            kills += 1
            if folder.exists() and not (folder / "protocol.toml").exists():
                folder = (
                    tmp_path / f"again-{kills}"
                )  # killed before there was a run: the folder is not one yet
        found = files_that_count(folder) | uploads_of(folder)
        assert {name: found[name] == expected[name] for name in expected} == dict.fromkeys(
            expected, True
        )
        runs += 1


class Interrupt(Exception):
    pass


def interrupted(
    folder: Path, after: int, protocol=LONG, error: type[BaseException] = Interrupt, **options
) -> None:
    def stop(metrics: RoundMetrics) -> None:
        if metrics.round + 1 == after:
            raise error

    with pytest.raises(error):
        train(
            protocol,
            data=toy_dataset(),
            model="mlp",
            folder=folder,
            on_round=stop,
            **{"engine": "torch", "workers": 1, **options},
        )


@pytest.mark.slow
def test_ctrl_c_keeps_the_last_whole_round(tmp_path) -> None:
    interrupted(tmp_path / "a", after=9, error=KeyboardInterrupt, keep_uploads=3)
    state, _ = RunFolder(tmp_path / "a").load_checkpoint()
    assert state is not None
    assert state.round == 8  # the round whose report was interrupted is run again
    start_or_go_on(tmp_path / "a")
    start_or_go_on(tmp_path / "whole")
    assert files_that_count(tmp_path / "a") == files_that_count(tmp_path / "whole")


def test_fresh_noise_that_is_drawn_again_is_charged_again(tmp_path) -> None:
    protocol = toy_protocol(rounds=6, noise=Gaussian(sigma=0.05, secure=True))
    interrupted(tmp_path / "a", after=3, protocol=protocol)
    start_or_go_on(tmp_path / "a")
    charges = [
        (e.round, e.attempt) for e in Run.load(tmp_path / "a").ledger if isinstance(e, RoundCharged)
    ]
    assert charges == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (5, 0)]


def test_the_ledger_line_is_on_disk_before_any_upload_of_its_round(tmp_path, monkeypatch) -> None:
    from sordino.federation.client import ClientWork

    seen = []
    original = ClientWork.upload

    def watched(self, *, client, round_index, weights, kept):
        lines = (tmp_path / "a" / "ledger.jsonl").read_text().splitlines()
        seen.append(
            json.loads(lines[-1])["round"] == round_index
            and client in json.loads(lines[-1])["clients"]
        )
        return original(self, client=client, round_index=round_index, weights=weights, kept=kept)

    monkeypatch.setattr(ClientWork, "upload", watched)
    train(
        toy_protocol(),
        data=toy_dataset(),
        model="mlp",
        folder=tmp_path / "a",
        engine="torch",
        workers=1,
    )
    assert len(seen) == 20
    assert all(seen)


@pytest.mark.slow
def test_a_damaged_checkpoint_falls_back_on_the_one_before_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        CheckpointPolicy, "save", lambda self, state, last: self._store.save_checkpoint(state)
    )  # every round, whatever the clock
    interrupted(tmp_path / "a", after=20, keep_uploads=3)
    checkpoint = tmp_path / "a" / "checkpoint"
    content = bytearray(checkpoint.read_bytes())
    content[-3] ^= 1  # one bit of one weight
    checkpoint.write_bytes(content)
    said: list[str] = []
    resume(tmp_path / "a", data=toy_dataset(), on_message=said.append)
    assert "damaged" in said[0]
    start_or_go_on(tmp_path / "whole")
    assert files_that_count(tmp_path / "a") == files_that_count(tmp_path / "whole")


@pytest.mark.parametrize("damage", [b"", b"\x00" * 50, b'{"weights"'])
def test_when_every_checkpoint_is_damaged_nothing_is_changed(tmp_path, damage) -> None:
    interrupted(tmp_path / "a", after=20)
    for name in ("checkpoint", "checkpoint.previous"):
        (tmp_path / "a" / name).write_bytes(damage)
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    with pytest.raises(UserError, match="damaged"):
        resume(tmp_path / "a", data=toy_dataset())
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


def test_seeded_noise_is_not_drawn_again_over_another_model(tmp_path) -> None:
    def handed(activation):
        return torch.nn.Sequential(torch.nn.Linear(6, 4), activation, torch.nn.Linear(4, 3))

    def stop(metrics: RoundMetrics) -> None:
        raise Interrupt

    torch.manual_seed(1)
    first = handed(torch.nn.Tanh())
    with pytest.raises(Interrupt):
        train(
            LONG, data=toy_dataset(), model=first, folder=tmp_path / "a", workers=1, on_round=stop
        )
    other = handed(torch.nn.ReLU())
    other.load_state_dict(first.state_dict())
    with pytest.raises(UserError, match="another model"):
        resume(tmp_path / "a", data=toy_dataset(), model=other)
    assert resume(tmp_path / "a", data=toy_dataset(), model=first).status == "finished"


def test_a_ledger_that_lost_lines_at_its_end_is_refused(tmp_path) -> None:
    interrupted(tmp_path / "a", after=20, error=KeyboardInterrupt)
    ledger = tmp_path / "a" / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:5]))
    with pytest.raises(UserError, match="lacks round 4"):
        resume(tmp_path / "a", data=toy_dataset())


def test_what_was_changed_since_the_start_is_refused(tmp_path) -> None:
    interrupted(tmp_path / "a", after=5)
    with pytest.raises(UserError, match="data"):
        resume(tmp_path / "a", data=toy_dataset(seed=1))
    text = (tmp_path / "a" / "protocol.toml").read_text()
    (tmp_path / "a" / "protocol.toml").write_text(text.replace("sigma = 0.05", "sigma = 0.04"))
    with pytest.raises(UserError, match="was changed"):
        resume(tmp_path / "a", data=toy_dataset())
    (tmp_path / "a" / "protocol.toml").write_text(text)
    ledger = (tmp_path / "a" / "ledger.jsonl").read_text()
    (tmp_path / "a" / "ledger.jsonl").write_text(ledger.replace('"round":3', '"round":2'))
    with pytest.raises(UserError, match="line 5"):
        resume(tmp_path / "a", data=toy_dataset())


@pytest.mark.parametrize("missing", ["data_digest", "evaluate_every"])
def test_a_run_json_without_an_entry_says_which(tmp_path, missing) -> None:
    interrupted(tmp_path / "a", after=5)
    path = tmp_path / "a" / "run.json"
    whole = path.read_text()
    path.write_text(
        json.dumps({name: value for name, value in json.loads(whole).items() if name != missing})
    )
    with pytest.raises(UserError, match=f"run.json is damaged: it has no entry '{missing}'"):
        resume(tmp_path / "a", data=toy_dataset(), workers=1)
    path.write_text(whole)
    assert resume(tmp_path / "a", data=toy_dataset(), workers=1).status == "finished"


@pytest.mark.parametrize("line", ["{}", '{"round": null}'])
def test_metrics_that_do_not_say_their_round_are_refused(tmp_path, line) -> None:
    interrupted(tmp_path / "a", after=5)
    path = tmp_path / "a" / "metrics.jsonl"
    damaged = path.read_text() + line + "\n"
    path.write_text(damaged)
    with pytest.raises(UserError, match=r"metrics.jsonl is damaged: line \d+ does not say"):
        resume(tmp_path / "a", data=toy_dataset(), workers=1)
    assert path.read_text() == damaged


@pytest.mark.slow
def test_a_ledger_line_cut_short_by_a_crash_is_written_again(tmp_path) -> None:
    interrupted(tmp_path / "a", after=20, keep_uploads=3)
    ledger = tmp_path / "a" / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-20])
    start_or_go_on(tmp_path / "a")
    start_or_go_on(tmp_path / "whole")
    assert files_that_count(tmp_path / "a") == files_that_count(tmp_path / "whole")


def test_with_fresh_noise_a_line_cut_short_counts_as_spent(tmp_path) -> None:
    interrupted(
        tmp_path / "a",
        after=3,
        protocol=toy_protocol(rounds=6, noise=Gaussian(sigma=0.05, secure=True)),
    )
    ledger = tmp_path / "a" / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-20])
    start_or_go_on(tmp_path / "a")
    charges = [
        (e.round, e.attempt) for e in Run.load(tmp_path / "a").ledger if isinstance(e, RoundCharged)
    ]
    assert charges == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (5, 0)]


@pytest.mark.parametrize("partition", [Iid(), Dirichlet(beta=0.5), Shards(per_client=2)])
def test_a_run_with_any_partition_goes_on_with_the_same_shares(tmp_path, partition) -> None:
    protocol = toy_protocol(rounds=8, data=Data(name="toy", partition=partition))
    interrupted(tmp_path / "a", after=4, protocol=protocol, keep_uploads=3)
    start_or_go_on(tmp_path / "a")
    start_or_go_on(tmp_path / "whole", protocol=protocol)
    assert files_that_count(tmp_path / "a") == files_that_count(tmp_path / "whole")


@pytest.mark.parametrize("noise", [Laplace(scale=0.5), Staircase(step=1.0, width=2.0)])
def test_a_run_with_other_noise_in_its_steps_goes_on_with_the_same_draws(tmp_path, noise) -> None:
    steps = NoisySgd(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1), optimizer="adam")
    protocol = toy_protocol(rounds=5, local=steps, noise=noise)
    interrupted(tmp_path / "a", after=3, protocol=protocol, keep_uploads=3)
    start_or_go_on(tmp_path / "a")
    start_or_go_on(tmp_path / "whole", protocol=protocol)
    assert files_that_count(tmp_path / "a") == files_that_count(tmp_path / "whole")


def test_there_is_nothing_to_resume_in_a_finished_run_or_in_no_run(tmp_path) -> None:
    train(toy_protocol(), data=toy_dataset(), model="mlp", folder=tmp_path / "a")
    with pytest.raises(UserError, match="finished"):
        resume(tmp_path / "a", data=toy_dataset())
    with pytest.raises(UserError, match="no run"):
        resume(tmp_path / "nowhere")


def test_a_second_process_on_one_run_is_refused(tmp_path) -> None:
    process = FORK.Process(
        target=start_or_go_on, args=(tmp_path / "a", 1, toy_protocol(rounds=100_000))
    )
    process.start()
    try:
        for _ in range(200):
            if (tmp_path / "a" / "checkpoint").exists():
                break
            time.sleep(0.05)
        with pytest.raises(UserError, match="another process"):
            resume(tmp_path / "a", data=toy_dataset())
        with pytest.raises(UserError, match="another process"):
            train(LONG, data=toy_dataset(), model="mlp", folder=tmp_path / "a")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join()


def test_workers_end_when_their_parent_is_killed(tmp_path) -> None:
    process = FORK.Process(
        target=start_or_go_on, args=(tmp_path / "a", 2, toy_protocol(rounds=100_000))
    )
    process.start()
    for _ in range(200):
        if (tmp_path / "a" / "checkpoint").exists():
            break
        time.sleep(0.05)
    children = [
        int(pid)
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]
    assert len(children) >= 2
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    for _ in range(100):
        if not any(
            Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()
            for pid in children
        ):
            return
        time.sleep(0.1)
    pytest.fail("workers outlived their parent")


def with_file_size_limit(folder: Path, limit: int, answer) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        start_or_go_on(folder, workers=1)
        answer.put("finished")
    except UserError as error:
        answer.put(str(error))


@pytest.mark.slow
def test_a_disk_that_takes_no_more_leaves_the_older_state_intact(tmp_path) -> None:
    answer = FORK.Queue()
    process = FORK.Process(
        target=with_file_size_limit, args=(tmp_path / "a", 3000, answer)
    )  # the ledger grows past it
    process.start()
    said = answer.get(timeout=60)
    process.join()
    assert "cannot be written" in said
    assert str(tmp_path / "a") in said
    start_or_go_on(tmp_path / "a")
    start_or_go_on(tmp_path / "whole")
    assert files_that_count(tmp_path / "a") == files_that_count(tmp_path / "whole")


def test_a_checkpoint_that_cannot_be_written_whole_is_not_written_at_all(
    tmp_path, monkeypatch
) -> None:
    target = tmp_path / "file"
    storage.write_whole(target, b"old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"), storage.writing(target):
        storage.write_whole(target, b"new and longer")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_made_or_is_not_empty_is_refused(tmp_path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="cannot be written"):
        train(toy_protocol(), data=toy_dataset(), model="mlp", folder=tmp_path / "file" / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("do not touch")
    with pytest.raises(UserError, match="not empty"):
        train(toy_protocol(), data=toy_dataset(), model="mlp", folder=tmp_path / "full")
    assert (tmp_path / "full" / "thesis.tex").read_text() == "do not touch"

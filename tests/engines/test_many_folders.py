"""`train_many` in folders: each is the run that `train` leaves, and however it is interrupted, it ends as if it had not been."""

import json
import multiprocessing
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sordino import (
    Gaussian,
    Poisson,
    Protocol,
    Run,
    UserError,
    train_many,
)
from sordino.federation.client import ClientWork
from sordino.federation.store.run_folder import RunFolder
from sordino.native import native_engine
from sordino.native.kernel import Kernel
from sordino.native.library import list_runnable
from tests.engines.many import ELSEWHERE, VARIED, alone, assert_same, needs_kernel
from tests.support import toy_dataset, toy_protocol, without_seconds


def files_that_count(folder: Path) -> dict[str, object]:
    names = ("model.safetensors", "ledger.jsonl", "protocol.toml")
    return {
        **{name: (folder / name).read_bytes() for name in names},
        "metrics": without_seconds(Run.load(folder).metrics),
    }


def test_with_a_folder_every_training_leaves_the_run_that_train_leaves(tmp_path) -> None:
    plans = [*VARIED[:4], toy_protocol(model=ELSEWHERE)]
    runs = train_many(plans, data=toy_dataset(), model="mlp", folder=tmp_path / "many")
    for number, (one, other) in enumerate(
        zip(runs, alone([replace(p, model=None) for p in plans], tmp_path), strict=True)
    ):
        assert isinstance(one, Run)
        assert one.folder == tmp_path / "many" / f"{number:05d}"
        assert files_that_count(one.folder) == files_that_count(other.folder)
        # Only `train` scores the untrained model, to say at the end whether anything was learned.
        own = {key: value for key, value in other.facts.items() if not key.startswith("start_")}
        assert {**one.facts, "started": 0, "ended": 0} == {**own, "started": 0, "ended": 0}


class Interrupt(Exception):
    pass


def stopped(
    folder: Path,
    plans: list[Protocol],
    *,
    at: tuple[int, int],
    error: type[BaseException] = Interrupt,
    **options,
) -> None:
    """Train until the round `at` of a training, and fall over."""

    def stop(number, metrics) -> None:
        if (number, metrics.round) == at:
            raise error

    with pytest.raises(error):
        train_many(plans, data=toy_dataset(), model="mlp", folder=folder, on_round=stop, **options)


@needs_kernel
def test_called_again_it_goes_on_and_runs_nothing_twice(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(native_engine, "AT_ONCE", 10)
    plans = [toy_protocol(seed=seed, rounds=5) for seed in range(6)]
    stopped(tmp_path / "a", plans, at=(3, 2), error=KeyboardInterrupt)
    run: list[tuple[int, int]] = []
    ends: list[int] = []
    again = train_many(
        plans,
        data=toy_dataset(),
        model="mlp",
        folder=tmp_path / "a",
        on_round=lambda number, metrics: run.append((number, metrics.round)),
        on_end=lambda number, trained: ends.append(number),
    )
    assert ends == [0, 1, 2, 3, 4, 5]
    # 0 and 1 had ended; 2 and 3 were beside each other when the report of round 2 of training 3 was interrupted.
    assert sorted(run) == [
        (2, 3),
        (2, 4),
        (3, 2),
        (3, 3),
        (3, 4),
        *((n, t) for n in (4, 5) for t in range(5)),
    ]
    for number, one in enumerate(train_many(plans, data=toy_dataset(), model="mlp")):
        assert_same(again[number], one)


def run_in_pieces(folder: Path) -> None:
    torch.set_num_threads(1)
    train_many(VARIED, data=toy_dataset(), model="mlp", folder=folder, workers=2)


@pytest.mark.soak
@needs_kernel
def test_killed_at_random_moments_all_trainings_end_as_if_they_had_not_been(tmp_path) -> None:
    chance, kills, context = random.Random(1), 0, multiprocessing.get_context("fork")
    while True:
        process = context.Process(target=run_in_pieces, args=(tmp_path / "a",))
        process.start()
        process.join(
            chance.uniform(0.01, 0.03) * 1.2**kills
        )  # however fast or slow the machine is: several kills, and an end
        if process.exitcode is not None:
            break
        process.kill()
        process.join()
        kills += 1
    assert process.exitcode == 0
    assert kills > 1
    for number, one in enumerate(train_many(VARIED, data=toy_dataset(), model="mlp")):
        assert_same(Run.load(tmp_path / "a" / f"{number:05d}"), one)


def test_a_folder_that_was_cut_short_while_it_was_made_is_made_anew(tmp_path) -> None:
    place = tmp_path / "a" / "00000"
    place.mkdir(parents=True)
    for name in ("run.json", "ledger.jsonl", "metrics.jsonl.part", "lock"):
        (place / name).write_text("")
    (run,) = train_many([toy_protocol()], data=toy_dataset(), model="mlp", folder=tmp_path / "a")
    assert run.status == "finished"
    (tmp_path / "b" / "00000").mkdir(parents=True)
    (tmp_path / "b" / "00000" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"training 0: .*not empty"):
        train_many([toy_protocol()], data=toy_dataset(), model="mlp", folder=tmp_path / "b")
    assert (tmp_path / "b" / "00000" / "notes.txt").read_text() == "mine"


def test_a_folder_is_taken_up_only_by_what_it_was_made_for(tmp_path) -> None:
    plans = [toy_protocol(seed=None), toy_protocol(seed=4)]
    first = train_many(plans, data=toy_dataset(), model="mlp", folder=tmp_path / "a")
    assert first[0].protocol.seed is not None
    for one, other in zip(
        train_many(plans, data=toy_dataset(), model="mlp", folder=tmp_path / "a"),
        first,
        strict=True,
    ):
        assert_same(one, other)  # and the seed that had been drawn is found again
    changed = {
        "protocol": {"protocols": [plans[0], toy_protocol(seed=5)]},
        "data": {"data": toy_dataset(seed=8)},
    }
    for what, change in changed.items():
        arguments = {"protocols": plans, "data": toy_dataset(), **change}
        with pytest.raises(UserError, match=rf"training \d: .* another .*{what}"):
            train_many(arguments.pop("protocols"), **arguments, model="mlp", folder=tmp_path / "a")


@needs_kernel
def test_an_interruption_keeps_the_last_whole_round_of_every_training(tmp_path) -> None:
    plans = [toy_protocol(seed=seed, rounds=9) for seed in range(3)]
    stopped(tmp_path / "a", plans, at=(1, 5), error=KeyboardInterrupt)
    rounds = [
        RunFolder(tmp_path / "a" / f"{number:05d}").load_checkpoint()[0].round
        for number in range(3)
    ]  # type: ignore[union-attr]
    assert rounds == [6, 5, 5]


@needs_kernel
def test_every_round_is_charged_before_any_client_trains(tmp_path, monkeypatch) -> None:
    seen, original = [], Kernel.train

    def watched(self, records, jobs, *, threads) -> None:
        lines = [
            path.read_text().splitlines()[-1] for path in sorted(tmp_path.glob("a/*/ledger.jsonl"))
        ]
        seen.append(
            [(json.loads(line)["round"], len(json.loads(line)["clients"])) for line in lines]
        )
        assert [client for line in lines for client in json.loads(line)["clients"]] == jobs[
            "client"
        ].tolist()
        original(self, records, jobs, threads=threads)

    monkeypatch.setattr(Kernel, "train", watched)
    plans = [toy_protocol(seed=seed, participation=Poisson(rate=0.8)) for seed in range(3)]
    train_many(plans, data=toy_dataset(), model="mlp", folder=tmp_path / "a")
    assert [[round for round, _ in call] for call in seen] == [[t] * 3 for t in range(4)]


def test_fresh_noise_is_another_in_every_training_and_is_charged_again_when_drawn_again(
    tmp_path,
) -> None:
    plans = [toy_protocol(rounds=6, noise=Gaussian(sigma=0.05, secure=True))] * 2
    one, other = train_many(plans, data=toy_dataset(), model="mlp")
    assert one.state is not None
    assert other.state is not None
    assert not torch.equal(one.state["1.weight"], other.state["1.weight"])
    stopped(tmp_path / "a", plans, at=(0, 2))
    again = train_many(plans, data=toy_dataset(), model="mlp", folder=tmp_path / "a")
    assert again[0].rounds_paid == [0, 1, 2, 2, 3, 4, 5]
    # Little noise on integers has no finite epsilon, and a mu all the same.
    assert again[0].guarantee().mu > one.guarantee().mu


def test_seeded_noise_is_not_drawn_again_by_another_kernel(tmp_path, monkeypatch) -> None:
    if len(list_runnable()) < 2:
        pytest.skip("one kernel alone was built")
    stopped(tmp_path / "a", [toy_protocol()], at=(0, 2))
    monkeypatch.setenv("SORDINO_SIMD", list_runnable()[1])
    with pytest.raises(UserError, match="another kernel"):
        train_many([toy_protocol()], data=toy_dataset(), model="mlp", folder=tmp_path / "a")


def test_one_process_at_a_time_holds_a_training(tmp_path) -> None:
    def nested(number, metrics) -> None:
        train_many([toy_protocol()], data=toy_dataset(), model="mlp", folder=tmp_path / "a")

    with pytest.raises(UserError, match="another process is working on"):
        train_many(
            [toy_protocol()],
            data=toy_dataset(),
            model="mlp",
            folder=tmp_path / "a",
            on_round=nested,
        )


def test_torch_clients_are_trained_after_their_charge(tmp_path, monkeypatch) -> None:
    seen, original = [], ClientWork.upload

    def watched(self, **options):
        line = json.loads((tmp_path / "a" / "00000" / "ledger.jsonl").read_text().splitlines()[-1])
        seen.append(line["round"] == options["round_index"])
        return original(self, **options)

    monkeypatch.setattr(ClientWork, "upload", watched)
    train_many(
        [toy_protocol()],
        data=toy_dataset(),
        model="mlp",
        folder=tmp_path / "a",
        engine="torch",
        workers=1,
    )
    assert seen == [True] * 20

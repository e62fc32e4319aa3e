"""Whatever is changed in the folder of a run, the run is refused, with a sentence that names what was changed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sordino import Constant, FedProx, Gaussian, Poisson, Run, resume, train, train_many
from sordino.cli.main import run as command
from sordino.federation.store.files import pack, unpack
from sordino.federation.store.run_folder import RunFolder
from sordino.privacy.ledger import read_ledger
from sordino.protocol import Budget, Interpolate, Privacy
from sordino.protocol.errors import Changed
from tests.support import ledger_bodies, rechain, toy_dataset, toy_protocol, unseal, unseal_scores

ROUNDS = 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run with everything that a seal covers."""
    folder = tmp_path_factory.mktemp("sealed") / "run"
    protocol = toy_protocol(
        rounds=ROUNDS,
        participation=Poisson(rate=0.7),
        personalization=Interpolate(alpha=0.5),
    )
    train(
        protocol,
        data=toy_dataset(),
        model="logistic",
        folder=folder,
        workers=1,
        keep_uploads=1,
        report=False,
    )
    return folder


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def change_facts(folder: Path, **changes: object) -> None:
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, **changes}))


def change_metrics(folder: Path, **changes: object) -> None:
    *rows, last = (folder / "metrics.jsonl").read_text().splitlines()
    rows.append(json.dumps({**json.loads(last), **changes}))
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")


def change_tensors(path: Path) -> None:
    tensors = load_file(path)
    first = next(iter(tensors))
    tensors[first] = tensors[first] * np.float32(1.01)
    save_file(tensors, path)


def change_partition(folder: Path) -> None:
    document = json.loads((folder / "partition.json").read_text())
    document["counts"][0] = document["counts"][0][::-1]
    (folder / "partition.json").write_text(json.dumps(document))


def change_upload(folder: Path) -> None:
    """Whoever writes an upload anew notes its digest too."""
    path = folder / "uploads" / "000001.safetensors"
    arrays, facts = unpack(path.read_bytes())
    path.write_bytes(pack({**arrays, "uploads": arrays["uploads"] * np.float32(2)}, facts))


def cut_ledger(folder: Path) -> None:
    ledger = folder / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))


ATTACKS = {
    "sizes": (lambda f: change_facts(f, sizes=[1000] * 5), "its sizes"),
    "data digest": (lambda f: change_facts(f, data_digest="0" * 64), "its data_digest"),
    "kind of noise": (lambda f: change_facts(f, noise="fresh, from the operating system"), "noise"),
    "baseline": (lambda f: change_facts(f, baseline=9.0), "baseline"),
    "status": (lambda f: change_facts(f, status="budget"), "it says 'budget'"),
    "accuracy": (lambda f: change_metrics(f, accuracy=0.99), "the metrics of the rounds"),
    "participants": (lambda f: change_metrics(f, participants=1), "the metrics of the rounds"),
    "partition": (change_partition, "the clients' labels"),
    "model": (lambda f: change_tensors(f / "model.safetensors"), "the model"),
    "no model": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is gone"),
    "a client's model": (
        lambda f: change_tensors(next((f / "clients").glob("*.safetensors"))),
        "a client's model",
    ),
    "upload": (change_upload, "an upload"),
    "whose records were scored": (lambda f: change_facts(f, tested_on="public"), "tested_on"),
    "how many records were scored": (lambda f: change_facts(f, test_records=10**6), "test_records"),
    "last line of the ledger": (cut_ledger, "the line that seals a run at its end is missing"),
}  # fmt: skip


def test_a_run_that_nobody_changed_is_read(folder) -> None:
    assert Run.load(folder).status == "finished"
    assert Run.load(folder).sealed


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_was_changed_in_a_folder_is_refused_and_named(folder, attack) -> None:
    change, words = ATTACKS[attack]
    change(folder)
    with pytest.raises(Changed, match=words):
        Run.load(folder)


@pytest.mark.parametrize("name", ["certify", "report", "evaluate", "audit"])
def test_every_command_that_reads_a_run_refuses_one_that_was_changed(folder, name, capfd) -> None:
    change_facts(folder, sizes=[1000] * 5)
    assert command([name, str(folder)]) == 4
    err = capfd.readouterr().err
    assert "run.json" in err
    assert "sizes" in err
    assert not (folder / "report.html").exists()


def test_fewer_charges_in_a_chain_that_was_made_anew_are_noticed(folder) -> None:
    bodies = ledger_bodies(folder)
    rechain(folder, [body for body in bodies if body.get("round") != ROUNDS - 1])
    with pytest.raises(Changed, match=f"lacks round {ROUNDS - 1}"):
        Run.load(folder)


def test_the_model_of_another_run_of_the_same_protocol_is_refused(folder, tmp_path) -> None:
    protocol = RunFolder(folder).protocol()
    other = train(
        toy_protocol(rounds=ROUNDS, seed=8, personalization=protocol.personalization),
        data=toy_dataset(),
        model="logistic",
        folder=tmp_path / "other",
        workers=1,
        report=False,
    )
    shutil.copy(other.folder / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(Changed, match=r"model\.safetensors was changed"):
        Run.load(folder)


def test_times_may_differ_since_they_are_not_sealed(folder) -> None:
    change_metrics(folder, seconds=12.5)
    change_facts(folder, started="yesterday", workers=7)
    assert Run.load(folder).status == "finished"


def test_a_run_from_before_there_were_seals_is_read_and_said_to_be_unsealed(folder) -> None:
    expected = Run.load(folder).guarantee().epsilon(1e-5)
    unseal(folder)
    old = Run.load(folder)
    assert not old.sealed
    assert old.guarantee().epsilon(1e-5) == expected


def test_a_run_from_before_scores_were_sealed_is_whole(folder) -> None:
    unseal_scores(folder)
    assert Run.load(folder).sealed
    change_facts(folder, sizes=[1000] * 5)
    with pytest.raises(Changed, match="its sizes"):
        Run.load(folder)


class Stop(Exception):
    pass


def stop_after(rounds: int):
    def stop(metrics) -> None:
        if metrics.round + 1 == rounds:
            raise Stop

    return stop


def interrupted(folder: Path, **options) -> None:
    with pytest.raises(Stop):
        train(
            toy_protocol(rounds=6, **options),
            data=toy_dataset(),
            model="logistic",
            folder=folder,
            workers=1,
            on_round=stop_after(3),
        )


def test_an_interrupted_run_is_sealed_by_its_first_line_and_not_resumed_after_a_change(
    tmp_path,
) -> None:
    interrupted(tmp_path / "a")
    before = (tmp_path / "a" / "run.json").read_text()
    change_facts(tmp_path / "a", sizes=[30, 30, 20, 20, 20])
    with pytest.raises(Changed, match="its sizes"):
        resume(tmp_path / "a", data=toy_dataset())
    (tmp_path / "a" / "run.json").write_text(before)
    assert resume(tmp_path / "a", data=toy_dataset()).status == "finished"


def test_an_unfinished_run_of_an_earlier_version_is_resumed_and_sealed_at_its_end(tmp_path) -> None:
    interrupted(tmp_path / "a")
    unseal(tmp_path / "a")
    resume(tmp_path / "a", data=toy_dataset())
    assert Run.load(tmp_path / "a").sealed
    change_facts(tmp_path / "a", sizes=[1000] * 5)
    with pytest.raises(Changed, match="its sizes"):
        Run.load(tmp_path / "a")


@pytest.mark.parametrize("secure", [False, True])
def test_killed_between_its_seal_and_its_end_a_run_ends_with_the_same_seal(
    tmp_path, monkeypatch, secure
) -> None:
    noise = Gaussian(sigma=0.05, secure=secure)
    original = RunFolder.note

    def killed(self, **facts) -> None:
        if "status" in facts:
            raise Stop
        original(self, **facts)

    monkeypatch.setattr(RunFolder, "note", killed)
    with pytest.raises(Stop):
        train(
            toy_protocol(noise=noise), data=toy_dataset(), model="logistic", folder=tmp_path / "a",
            workers=1, report=False,
        )  # fmt: skip
    monkeypatch.setattr(RunFolder, "note", original)
    assert Run.load(tmp_path / "a").status == "unfinished"
    ledger = (tmp_path / "a" / "ledger.jsonl").read_bytes()
    assert b'"event":"sealed"' in ledger
    resume(tmp_path / "a", data=toy_dataset(), report=False)
    assert (tmp_path / "a" / "ledger.jsonl").read_bytes() == ledger
    assert Run.load(tmp_path / "a").status == "finished"


def test_a_seal_that_a_power_cut_left_half_written_costs_nothing(tmp_path) -> None:
    noise = Gaussian(sigma=0.05, secure=True)
    folder = tmp_path / "a"
    train(
        toy_protocol(noise=noise), data=toy_dataset(), model="logistic", folder=folder,
        workers=1, report=False,
    )  # fmt: skip
    charges = read_ledger(folder / "ledger.jsonl").events
    ledger = (folder / "ledger.jsonl").read_bytes()
    (folder / "ledger.jsonl").write_bytes(ledger[:-20])
    change_facts(folder, status="unfinished")
    resume(folder, data=toy_dataset(), report=False)
    assert read_ledger(folder / "ledger.jsonl").events == charges
    assert Run.load(folder).status == "finished"


def test_runs_that_a_budget_or_divergence_ended_are_sealed(tmp_path) -> None:
    budget = Privacy(budget=Budget(epsilon=20.0))
    stopped = train(
        toy_protocol(rounds=300, privacy=budget, noise=Gaussian(sigma=1.0)), data=toy_dataset(), model="logistic",
        folder=tmp_path / "budget", workers=1, report=False,
    )  # fmt: skip
    wild = FedProx(steps=40, batch=6, clip=1.0, schedule=Constant(rate=30.0), proximal=1e3)
    diverged = train(
        toy_protocol(local=wild, rounds=20), data=toy_dataset(),
        model="logistic", folder=tmp_path / "diverged", workers=1, report=False,
    )  # fmt: skip
    assert (stopped.status, diverged.status) == ("budget", "diverged")
    for run in (stopped, diverged):
        seal = read_ledger(run.folder / "ledger.jsonl").seal
        assert seal is not None
        assert seal.status == run.status
        change_facts(run.folder, status="finished")
        with pytest.raises(Changed, match="it says 'finished'"):
            Run.load(run.folder)


def test_the_folders_of_many_trainings_are_sealed(tmp_path) -> None:
    plans = [toy_protocol(seed=seed) for seed in (1, 2)]
    train_many(plans, data=toy_dataset(), model="logistic", folder=tmp_path / "many")
    for number in (0, 1):
        folder = tmp_path / "many" / f"{number:05d}"
        assert read_ledger(folder / "ledger.jsonl").seal is not None
        change_metrics(folder, loss=0.0)
        with pytest.raises(Changed, match="metrics"):
            Run.load(folder)

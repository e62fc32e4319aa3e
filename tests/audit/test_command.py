"""`sordino audit` as a person uses it: the JSON contract, verdicts and exit codes, folders, interruption, mistakes."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sordino
from sordino.audit.audit_folder import AuditFolder
from sordino.audit.auditing import audit
from sordino.audit.expected_bounds import find_largest_mu
from sordino.cli.main import run
from sordino.data import load_dataset
from sordino.federation import client
from sordino.native import library
from sordino.native.kernel import Kernel
from sordino.privacy.guarantee import round_down
from sordino.protocol import Constant, Data, FedAvg, Gaussian, Protocol
from tests.support import toy_dataset

FILE = """
seed = 3
[federation]
clients = 6
rounds = 5
[local]
rule = "fedavg"
steps = 2
batch = 4
clip = 1.0
schedule = { kind = "constant", rate = 0.1 }
[noise]
mechanism = "gaussian"
sigma = 0.2
[data]
name = "digits"
records = 4
[model]
name = "logistic"
"""


@pytest.fixture
def protocol(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "federation.toml").write_text(FILE)
    return tmp_path / "federation.toml"


def audited(capfd, *arguments: str) -> tuple[int, dict]:
    code = run(["audit", *arguments, "--json"])
    out = capfd.readouterr().out
    return code, json.loads(out) if out.strip() else {}


@pytest.mark.slow
def test_the_json_is_the_contract(protocol, capfd) -> None:
    code, found = audited(
        capfd, str(protocol), "--view", "rounds", "--trainings", "800", "--delta", "1e-4"
    )
    assert code == 0
    names = {
        "view",
        "unit",
        "mu_lower",
        "epsilon_lower",
        "delta",
        "confidence",
        "trainings",
        "certified",
        "claims",
        "tightness",
    }
    assert names <= found.keys()
    assert (
        found["view"],
        found["unit"],
        found["delta"],
        found["confidence"],
        found["trainings"],
    ) == ("rounds", "record", 1e-4, 0.95, 800)
    assert set(found["certified"]) == {
        "view",
        "unit",
        "adjacency",
        "kind",
        "mu",
        "rho",
        "total_variation",
        "epsilon",
        "delta",
        "method",
        "assumptions",
        "notes",
    }
    assert 0.8 * found["certified"]["mu"] < found["mu_lower"] < 1.1 * found["certified"]["mu"]
    assert found["tightness"] == pytest.approx(found["mu_lower"] / found["certified"]["mu"])
    assert found["residuals"]["failed"] == []
    kept = json.loads((Path(found["folder"]) / "result.json").read_text())
    assert {name: kept[name] for name in names} == {name: found[name] for name in names}


@pytest.mark.slow
def test_a_claim_is_refuted_with_exit_code_4_and_one_that_holds_is_not(protocol, capfd) -> None:
    code, found = audited(
        capfd,
        str(protocol),
        "--view",
        "final",
        "--trainings",
        "1000",
        "--claim",
        "theirs=0.5",
        "--claim",
        "big=9",
    )
    assert code == 4
    assert {one["claim"]: one["verdict"] for one in found["claims"]} == {
        "theirs": "refuted",
        "big": "holds",
    }
    code, found = audited(
        capfd, str(protocol), "--view", "final", "--trainings", "1000", "--claim", "theirs=2.5"
    )
    assert (code, found["claims"][0]["verdict"]) == (0, "holds")
    # So few trainings cannot be expected to contradict this one, which the certificate does not imply.
    code, found = audited(
        capfd, str(protocol), "--view", "final", "--trainings", "60", "--claim", "theirs=1.7"
    )
    assert (code, found["claims"][0]["verdict"]) == (0, "not tested")


@pytest.mark.slow
def test_published_claims_are_judged_where_they_apply(protocol, capfd) -> None:
    smooth = (
        "--set",
        "assumptions.smoothness=30",
        "--set",
        "federation.rounds=40",
        "--trainings",
        "1000",
    )
    code, found = audited(capfd, str(protocol), "--view", "final", *smooth)
    assert code == 0
    assert [(one["claim"], one["verdict"]) for one in found["claims"]] == [
        ("convergent/theorem-3a", "refuted")
    ]
    _, found = audited(capfd, str(protocol), "--view", "rounds", *smooth)
    assert [(one["claim"], one["verdict"]) for one in found["claims"]] == [
        ("convergent/theorem-3a", "not tested")
    ]


@pytest.mark.slow
def test_the_table_says_what_was_found_and_what_so_many_trainings_could_show(
    protocol, capfd
) -> None:
    assert run(["audit", str(protocol), "--trainings", "50", "--set", "noise.sigma=0.05"]) == 0
    out = capfd.readouterr().out
    assert "measured: at least" in out
    assert "certified: at most" in out
    assert f"could have shown mu = {round_down(find_largest_mu(50))} at most" in out
    assert "times the noise" in out


@pytest.mark.slow
def test_a_seed_repeats_an_audit_and_none_does_not(protocol, capfd) -> None:
    def scores(folder: str) -> bytes:
        audited(capfd, str(protocol), "--view", "server", "--trainings", "300", "--out", folder)
        return (Path(folder) / "scores" / "judging-1-00000000").read_bytes()

    assert scores("a") == scores("b")
    protocol.write_text(FILE.replace("seed = 3", ""))
    assert scores("c") != scores("d")


def test_a_run_is_audited_as_it_went_and_keeps_the_result(protocol, capfd) -> None:
    assert (
        run(["train", str(protocol), "--out", "run", "--workers", "1", "--evaluate-every", "0"])
        == 0
    )
    capfd.readouterr()
    code, found = audited(capfd, "run", "--view", "coalition:2", "--trainings", "500")
    assert code == 0
    kept = json.loads(next(Path("run/audits").glob("coalition-2-record-*.json")).read_text())
    assert kept["mu_lower"] == found["mu_lower"]
    assert run(["audit", "run", "--set", "noise.sigma=9"]) == 2
    assert "cannot be changed" in capfd.readouterr().err


def test_a_budget_limits_the_rounds_that_are_attacked(protocol, capfd) -> None:
    budget = ("--set", "privacy.budget.epsilon=12", "--set", "privacy.budget.view=server")
    _, found = audited(capfd, str(protocol), "--view", "server", "--trainings", "300", *budget)
    assert found["certified"]["epsilon"] <= 12
    assert len(AuditFolder(Path(found["folder"])).facts()["rounds"]) < 5
    assert audited(capfd, str(protocol), "--set", "privacy.budget.epsilon=0.001")[0] == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trainings", "2", "--set", "noise.sigma=20"], "At least"),
        (["--trainings", "0"], "at least 1"),
        (["--trainings", "1000000000000"], "at most"),
        (["--workers", "0"], "at least 1"),
        (["--one-run", "records", "--canary", "crafted"], "too long"),
        (["--view", "coalition:6"], "coalition:5"),
        (["--view", "everything"], "server"),
        (["--unit", "person"], "record"),
        (["--delta", "2"], "delta"),
        (["--claim", "theirs"], "NAME=MU"),
        (["--claim", "theirs=-1"], "NAME=MU"),
        (["--claim", "theirs=inf"], "NAME=MU"),
        (["--seeds", "2"], "Add --sensitivity"),
        (["--canary", "missing.npz"], "npz"),
        (["--one-run", "people"], "records or clients"),
        (["--one-run", "records", "--canaries", "100000"], "at most"),
        (["--one-run", "clients", "--view", "server"], "rounds or final"),
        (["--sweep", "local.clip"], "Add --sensitivity"),
        (["--canaries", "5"], "Add --one-run"),
        (["--sensitivity", "--canary", "random"], "do not go together"),
    ],
)
def test_mistakes_are_told_and_leave_nothing(protocol, capfd, arguments, said) -> None:
    assert run(["audit", str(protocol), *arguments]) == 2
    error = capfd.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not Path("audits").exists()


def test_runs_that_are_not_finished_and_folders_in_use_are_refused(protocol, capfd) -> None:
    assert (
        run(["train", str(protocol), "--out", "run", "--workers", "1", "--evaluate-every", "0"])
        == 0
    )
    facts = json.loads(Path("run/run.json").read_text())
    Path("run/run.json").write_text(json.dumps({**facts, "status": "unfinished"}))
    assert run(["audit", "run"]) == 2
    assert "sordino resume run" in capfd.readouterr().err
    assert run(["audit", str(protocol), "--out", "run"]) == 2
    assert "not empty" in capfd.readouterr().err
    Path("mine").mkdir()
    Path("mine/notes").write_text("kept")
    assert run(["audit", str(protocol), "--out", "mine"]) == 2
    assert [entry.name for entry in Path("mine").iterdir()] == ["notes"]
    assert run(["audit", "nowhere"]) == 2


@pytest.mark.slow
def test_an_audit_that_was_killed_goes_on_and_counts_no_training_twice(protocol, capfd) -> None:
    whole = audited(
        capfd, str(protocol), "--trainings", "6000", "--out", "whole", "--workers", "1"
    )[1]
    command = [
        sys.executable,
        "-m",
        "sordino",
        "audit",
        str(protocol),
        "--trainings",
        "6000",
        "--out",
        "cut",
        "--workers",
        "1",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while (
        len(list(Path("cut/scores").glob("*-0*"))) < 2
        and time.monotonic() < deadline
        and process.poll() is None
    ):
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = len(list(Path("cut/scores").iterdir()))
    assert 2 <= done < 12
    first = sorted(Path("cut/scores").glob("choosing*"))[0]
    first.write_bytes(first.read_bytes()[:-10])  # a damaged file is played again
    assert run(["resume", "cut", "--json", "--workers", "1"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert {**found, "folder": ""} == {**whole, "folder": ""}
    assert len(list(Path("cut/scores").iterdir())) == 12


@pytest.mark.soak
def test_a_real_model_with_each_canary(protocol, capfd, tmp_path) -> None:
    shape = load_dataset("digits").x_train.shape[1:]
    np.savez(tmp_path / "mine.npz", x=np.full(shape, 16.0, dtype=np.float32), y=np.array(3))
    small = (
        "--set",
        "federation.rounds=3",
        "--set",
        "federation.clients=3",
        "--set",
        "noise.sigma=0.05",
        "--trainings",
        "40",
    )
    shown = {}
    for kind in ("random", "mislabelled", "crafted", "mine.npz"):
        code, found = audited(capfd, str(protocol), "--view", "server", "--canary", kind, *small)
        assert code == 0
        assert found["mu_lower"] < found["certified"]["mu"]
        shown[kind] = found["mu_lower"]
    assert shown["crafted"] > 1.0
    for view in ("rounds", "coalition:1", "final"):
        code, found = audited(
            capfd, str(protocol), "--view", view, "--canary", "crafted", "--unit", "client", *small
        )
        assert code == 0
        assert found["mu_lower"] > 0.3, view
    np.savez(tmp_path / "wrong.npz", x=np.zeros(3, dtype=np.float32), y=np.array(3))
    assert audited(capfd, str(protocol), "--canary", "wrong.npz")[0] == 2
    np.savez(tmp_path / "wrong.npz", x=np.zeros(shape, dtype=np.float32), y=np.array(33))
    assert audited(capfd, str(protocol), "--canary", "wrong.npz")[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "native"])
def test_noise_that_the_clients_of_train_use_twice_is_seen_with_a_canary(
    engine, monkeypatch, tmp_path
) -> None:
    """The worst case draws its noise in tables; a canary is trained by the clients that `train` has, and their noise is looked at too."""
    if engine == "native" and not library.list_runnable():
        pytest.skip("the native kernel was not built")
    if engine == "torch":
        monkeypatch.setenv(library.FOLDER, str(tmp_path / "empty"))
    rule = FedAvg(steps=1, batch=10, clip=1.0, schedule=Constant(rate=0.5))
    protocol = Protocol(
        seed=1,
        clients=2,
        rounds=3,
        local=rule,
        noise=Gaussian(sigma=1.0),
        data=Data(name="x", records=10),
    )
    options = {
        "trainings": 30,
        "canary": "mislabelled",
        "data": toy_dataset(),
        "model": "logistic",
        "workers": 1,
    }
    assert not audit(protocol, "server", **options, folder=tmp_path / "whole").contradicted
    whole, train = client.finish_upload, Kernel.train

    def forgetful(setup, task, result, **options):
        return whole(setup, replace(task, round_index=0), result, **options)

    def forgetful_kernel(self, records, jobs, *, threads) -> None:
        jobs["round"] = (
            0  # the rate is constant and a batch is everything, so the noise alone depends on it
        )
        train(self, records, jobs, threads=threads)

    monkeypatch.setattr(client, "finish_upload", forgetful)
    monkeypatch.setattr(Kernel, "train", forgetful_kernel)
    found = audit(protocol, "server", **options, folder=tmp_path / "broken")
    assert found.contradicted
    assert "correlation of rounds" in {test.name for test in found.residuals.failed}


def test_audits_by_one_training(protocol, capfd) -> None:
    loud = ("--set", "noise.sigma=0.01", "--set", "federation.rounds=10")
    code, found = audited(
        capfd,
        str(protocol),
        "--one-run",
        "records",
        "--view",
        "server",
        "--set",
        "data.records=10",
        *loud,
    )
    assert code == 0
    assert found["mu_lower"] > 0
    assert 0 < found["epsilon_lower"] < found["certified"]["epsilon"]
    assert found["trainings"] == 1
    assert found["engine"]["name"] in ("native", "torch")
    assert found["engine"]["verdict"] == "not compared"
    code, found = audited(capfd, str(protocol), "--one-run", "clients", "--view", "final", *loud)
    assert code == 0
    assert (found["engine"]["name"], found["engine"]["trainings_compared"]) == ("torch", 0)
    assert found["estimate"]["kind"] == "estimate"
    assert found["mu_lower"] is None
    assert 0 < 2 * found["estimate"]["mu"] < 1.5 * found["certified"]["mu"]


def test_the_function_is_the_room(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rule = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.1))
    found = sordino.audit(
        Protocol(clients=2, rounds=2, local=rule, noise=Gaussian(sigma=0.1)),
        view="final",
        trainings=400,
    )
    assert found.verdict == "holds"
    assert 0.7 < found.tightness < 1.1


@pytest.mark.slow
def test_without_noise_everything_is_shown_that_can_be(protocol, capfd) -> None:
    code, found = audited(capfd, str(protocol), "--set", "noise.sigma=0", "--trainings", "200")
    assert code == 0
    assert found["certified"]["mu"] == "inf"
    assert found["mu_lower"] == pytest.approx(found["most"])
    assert found["tightness"] is None
    assert found["verdict"] == "not tested"


@pytest.mark.slow
def test_capped_clients_are_capped_in_every_kind_of_audit(protocol, capfd) -> None:
    """Every client may take part once or twice; an audit that let them take part in every round would contradict that."""
    budgets = "".join(f"[[client]]\nid = {client}\nepsilon = 12.0\n" for client in range(6))
    protocol.write_text(FILE.replace("rounds = 5", "rounds = 30") + budgets)
    for kind in (
        ["--trainings", "800"],
        ["--canary", "mislabelled", "--trainings", "40"],
        ["--one-run", "records"],
    ):
        code, found = audited(capfd, str(protocol), "--view", "server", *kind)
        assert code == 0, kind
        assert found["certified"]["method"] == "client budgets"
        assert found["verdict"] != "refuted"


@pytest.mark.slow
def test_the_client_without_a_cap_is_attacked(protocol, capfd) -> None:
    protocol.write_text(FILE + "[[client]]\nid = 0\nepsilon = 5.0\n")
    _, found = audited(capfd, str(protocol), "--view", "server", "--trainings", "800")
    assert found["tightness"] > 0.7


@pytest.mark.slow
def test_noise_too_fine_for_float32_is_not_looked_at(protocol, capfd) -> None:
    code, found = audited(capfd, str(protocol), "--set", "noise.sigma=1e-5", "--trainings", "200")
    assert (code, found["residuals"], found["verdict"]) == (0, None, "not tested")


@pytest.mark.slow
def test_laplace_noise_is_attacked_in_as_many_parameters_as_are_priced(protocol, capfd) -> None:
    """In two parameters the l1 shift is sqrt(2) times that of one, for which one is certified."""
    text = FILE.replace(
        'mechanism = "gaussian"\nsigma = 0.2', 'mechanism = "laplace"\nscale = 1.0'
    ).replace("rounds = 5", "rounds = 1")
    protocol.write_text(
        text.replace('name = "logistic"', 'name = "logistic"\nparameters = 1').replace(
            "rate = 0.1", "rate = 0.5"
        )
    )
    code, found = audited(capfd, str(protocol), "--view", "server", "--trainings", "4000")
    assert code == 0
    assert found["tightness"] > 0.8


@pytest.mark.slow
def test_a_changed_protocol_or_canary_is_not_joined_to_old_scores(protocol, capfd) -> None:
    audited(capfd, str(protocol), "--trainings", "300", "--out", "a")
    (Path("a") / "protocol.toml").write_text(
        (Path("a") / "protocol.toml").read_text().replace("sigma = 0.2", "sigma = 0.4")
    )
    assert run(["resume", "a"]) == 2
    assert "another protocol" in capfd.readouterr().err
    Path("a/audit.json").write_text("{}")
    assert run(["resume", "a"]) == 2
    assert "damaged" in capfd.readouterr().err


@pytest.mark.slow
def test_a_claim_about_records_is_not_judged_by_a_client(protocol, capfd) -> None:
    smooth = (
        "--set",
        "assumptions.smoothness=30",
        "--set",
        "federation.rounds=40",
        "--trainings",
        "500",
        "--unit",
        "client",
    )
    _, found = audited(capfd, str(protocol), "--view", "final", *smooth)
    assert [one["verdict"] for one in found["claims"]] == ["not tested"]

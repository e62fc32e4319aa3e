"""The command line as a person uses it: exit codes, one JSON document, messages that help, nothing half written."""

import html
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sordino.cli.console import Stopped
from sordino.cli.main import run
from sordino.protocol import build_schema, loads, read_protocol

EXAMPLES = Path(__file__).parents[2] / "sordino" / "examples"
QUICK = ["--set", "federation.rounds=3", "--set", "federation.clients=10"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def answer(capfd, *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    out, err = capfd.readouterr()
    return code, out, err


def test_train_without_a_file_trains_the_digits_and_says_what_comes_next(capfd, tmp_path) -> None:
    code, out, err = answer(capfd, "train", *QUICK)
    assert code == 0
    assert "runs/digits-1" in out
    assert "sordino evaluate" in out
    assert "round 3/3" in err
    assert {p.name for p in (tmp_path / "runs" / "digits-1").iterdir()} >= {
        "protocol.toml", "run.json", "ledger.jsonl", "metrics.jsonl", "checkpoint", "model.safetensors",
    }  # fmt: skip
    assert answer(capfd, "train", *QUICK)[0] == 0
    assert (tmp_path / "runs" / "digits-2").is_dir()


def test_json_is_one_document_on_standard_output(capfd) -> None:
    _, out, _ = answer(capfd, "train", *QUICK, "--json")
    document = json.loads(out)
    assert document["status"] == "finished"
    assert 0 <= document["accuracy"] <= 1
    _, out, _ = answer(capfd, "evaluate", document["folder"], "--json")
    assert json.loads(out)["accuracy"] == pytest.approx(document["accuracy"])
    assert json.loads(out)["records"] == 360
    _, out, _ = answer(capfd, "evaluate", document["folder"], "--clients", "--json")
    assert len(json.loads(out)["clients"]) == 10


def test_repeats_train_different_seeds_and_show_mean_and_spread(capfd) -> None:
    code, out, _ = answer(capfd, "train", *QUICK, "--repeats", "3", "--out", "many", "--json")
    assert code == 0
    document = json.loads(out)
    accuracies = [r["accuracy"] for r in document["runs"]]
    assert document["accuracy"]["mean"] == pytest.approx(sum(accuracies) / 3)
    assert sorted(p.name for p in Path("many").iterdir()) == ["seed-7", "seed-8", "seed-9"]
    assert (document["tested_on"], document["scores_covered"]) == ("public", True)
    code, out, _ = answer(capfd, "train", *QUICK, "--repeats", "2")
    assert "spread" in out
    assert "scored on public test records" in " ".join(out.split())


def test_repeats_say_that_scores_on_private_records_are_not_covered(capfd) -> None:
    x, y = np.random.default_rng(0).normal(size=(200, 3)), np.arange(200) % 2
    np.savez("mine.npz", x_train=x, y_train=y)
    own = ["--set", "data.name=mine.npz", "--set", 'data.classes=["no", "yes"]']
    typed = ["train", *QUICK, *own, "--repeats", "2"]
    code, out, err = answer(capfd, *typed, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert (document["tested_on"], document["scores_covered"]) == ("held-out", False)
    _, out, _ = answer(capfd, *typed)
    assert "scored on held-out private records, not covered" in " ".join(out.split())


def test_new_writes_a_file_that_checks_and_is_never_overwritten(capfd) -> None:
    code, out, _ = answer(capfd, "new", "mine")
    assert code == 0
    assert "sordino train mine.toml" in out
    assert read_protocol("mine.toml").clients == 100
    code, _, err = answer(capfd, "new", "mine.toml")
    assert code == 2
    assert "exists already" in err
    assert answer(capfd, "new", "other", "--from", "nothing")[0] == 2


def test_new_lists_every_example_with_a_sentence_and_writes_nothing(capfd, tmp_path) -> None:
    code, out, _ = answer(capfd, "new", "--list")
    assert code == 0
    said = dict(line.split(": ", 1) for line in out.splitlines())
    assert sorted(said) == sorted(path.stem for path in EXAMPLES.glob("*.toml"))
    assert all(len(sentence) > 20 and sentence.endswith(".") for sentence in said.values())
    assert said["convergent-glm"].startswith("Softmax regression whose privacy converges")
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_an_example_gets_the_command_that_writes_it(capfd, tmp_path) -> None:
    code, _, err = answer(capfd, "train", "digits-local")
    assert code == 2
    assert "`sordino new digits-local.toml --from digits-local`" in " ".join(err.split())
    assert "sordino new writes one" not in err
    assert list(tmp_path.iterdir()) == []
    Path("digits-local.toml").write_text("seed = 1")
    assert "example of that name" not in answer(capfd, "check", "digits-local.toml")[2]


def test_check_prints_the_complete_protocol_and_draws_the_partition(capfd, tmp_path) -> None:
    answer(capfd, "new")
    code, out, err = answer(capfd, "check", "federation.toml", "--picture", "shares.png")
    assert code == 0
    assert loads(out) == read_protocol("federation.toml")
    assert "valid" in err
    assert (tmp_path / "shares.png").read_bytes()[:4] == b"\x89PNG"
    _, out, _ = answer(capfd, "check", "--schema")
    assert json.loads(out) == json.loads(json.dumps(build_schema()))


def test_commands_to_type_next_are_quoted_for_a_shell(capfd) -> None:
    _, out, _ = answer(capfd, "new", "my plan")
    assert "sordino check 'my plan.toml', then sordino train 'my plan.toml'" in out
    _, out, _ = answer(capfd, "train", *QUICK, "--keep-uploads", "--out", "run $1")
    for command in ("certify", "audit", "attack", "evaluate"):
        assert f"sordino {command} 'run $1'" in out
    answer(capfd, "report", "run $1")
    assert "sordino audit 'run $1' --view" in html.unescape(
        Path("run $1", "report.html").read_text()
    )
    _, _, err = answer(capfd, "train", *QUICK, "--out", "run $1")
    assert "`sordino resume 'run $1'`" in err
    assert str(Stopped(Path("run $1"))).endswith("Resume with: sordino resume 'run $1'")
    assert str(Stopped(Path("a"), sign=Path("k"))).endswith("sordino resume a --sign k")


def test_version_prints_the_version(capfd) -> None:
    code, out, _ = answer(capfd, "--version")
    assert code == 0
    assert out.strip()[0].isdigit()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "absent.toml"], ["absent.toml", "sordino new"]),
        (["train", "--set", "local.clpi=3"], ["local.clpi", "clip"]),
        (["train", "--set", "noise.sigma=-1"], ["noise.sigma", "-1"]),
        (["train", "--set", "federation.participation={fixed=1000}"], ["1000", "clients = 100"]),
        (["train", "--set", "local.batch=15"], ["local.batch", "data.records = 14"]),
        (["train", "--set", "data.records=1000"], ["records"]),
        (["train", "--set", "data.name=mnits"], ["mnits", "mnist"]),
        (["train", "--set", "model.name=lenet5"], ["lenet5"]),
        (["train", "--set", "model.parameters=3"], ["model.parameters", "650"]),
        (["train", "--engine", "quantum"], ["quantum", "torch"]),
        (["train", "--device", "cuda"], ["cuda", "cpu"]),
        (["train", "--workers", "0"], ["workers"]),
        (["train", "--repeats", "0"], ["0"]),
        (["train", "--no-such-option"], ["no-such-option"]),
        (["resume", "nowhere"], ["nowhere"]),
        (["evaluate", "nowhere"], ["nowhere"]),
        (["check", "--set", "seed"], ["KEY=VALUE"]),
        (["new", "."], ["'.' is a folder", "sordino new mine"]),
        (["new", ""], ["is a folder"]),
        (["new", ".."], ["'..' is a folder"]),
        (["quantise"], ["quantise"]),
        (["check", "n" * 300], ["File name too long", "Check the name"]),
        (["train", "--set", f"data.name={'n' * 300}.csv"], ["File name too long"]),
        (["train", "--insecure"], ["--insecure without --superlink"]),
        (["train", "--keep-every", "2"], ["--keep-every without --keep-uploads"]),
        (["verify", "--new-key", "k", "--sign", "s"], ["--sign with --new-key"]),
        (["report", "r", "--owner", "me", "--pdf", "--annex", "a.md"], ["--pdf with --registry"]),
        (["papers", "check", "convergent/theorem-3a", "--trainings", "9"], ["without --measure"]),
        (["calibrate", "--mechanisms", "--epsilon", "1", "--data"], ["--data with --mechanisms"]),
        (["certify", "--tradeoff", "0.1"], ["--tradeoff without --json"]),
    ],
)
def test_a_mistake_gets_exit_code_2_one_message_and_no_files(
    capfd, tmp_path, arguments, words
) -> None:
    code, out, err = answer(capfd, *arguments)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    for word in words:
        assert word in err
    assert not err.startswith("\n")
    assert list(tmp_path.iterdir()) == []


def test_evaluating_on_other_data_says_whether_the_model_fits(capfd) -> None:
    answer(capfd, "train", *QUICK, "--out", "a")
    assert answer(capfd, "evaluate", "a", "digits")[0] == 0
    code, _, err = answer(capfd, "evaluate", "a", "breast-cancer")
    assert code == 2
    assert "shape" in err


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path, capfd) -> None:
    endless = [
        "--set",
        "federation.rounds=100000",
        "--set",
        "local.batch=14",
        "--set",
        "privacy.budget.epsilon=1e9",
        "--out",
        "a",
    ]
    command = [sys.executable, "-m", "sordino", "train", *endless]

    def heed() -> None:
        signal.signal(
            signal.SIGINT, signal.SIG_DFL
        )  # a shell that runs tests in the background ignores it, and children inherit that

    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
        preexec_fn=heed,
    )
    for _ in range(1800):
        if (tmp_path / "a" / "checkpoint").exists():
            break
        time.sleep(0.05)
    os.killpg(
        process.pid, signal.SIGINT
    )  # a terminal sends it to every process of the group, workers too
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "sordino resume a" in err
    assert "Traceback" not in err
    assert json.loads((tmp_path / "a" / "run.json").read_text())["status"] == "unfinished"


@pytest.mark.slow
def test_an_output_that_shows_plain_letters_only_gets_plain_letters(tmp_path) -> None:
    def said(*arguments: str) -> str:
        command = [sys.executable, "-m", "sordino", *arguments]
        ended = subprocess.run(
            command,
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
        )
        assert ended.returncode == 0, ended.stderr.decode()
        return ended.stdout.decode("ascii")

    out = said(
        "train", "--set", "federation.rounds=8", "--set", "federation.clients=10", "--out", "läufe"
    )
    curve = (
        next(line for line in out.splitlines() if "accuracy" in line)
        .rstrip(" |")
        .rsplit("  ", 1)[1]
    )
    assert len(curve) == 8
    assert {"_", "#"} <= set(curve) <= set("_.:-=+*#")
    assert r"l\xe4ufe" in out
    laplace = 'noise={mechanism="laplace", scale=1.0}'
    assert r"R\xe9nyi" in said(
        "certify", "--set", laplace, "--set", "local.batch=14", "--set", "model.parameters=650"
    )


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_output_that_takes_no_more_is_said_in_a_line(more) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "sordino", "certify", *more],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.returncode == 2
    assert (
        ended.stderr
        == "sordino: standard output cannot be written to: No space left on device. Make room, or send it elsewhere.\n"
    )


def test_a_reader_who_has_gone_is_not_told() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    ended = subprocess.run(
        [sys.executable, "-m", "sordino", "--version"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.slow
def test_a_request_to_end_stops_what_a_script_has_left_in_the_background(tmp_path) -> None:
    endless = "--set federation.rounds=100000 --set local.batch=14 --set privacy.budget.epsilon=1e9 --out a"
    script = f"""
        {sys.executable} -m sordino train {endless} 2> said &
        for i in $(seq 1800); do test -e a/checkpoint && break; sleep 0.05; done
        kill -TERM $!
        for i in $(seq 1200); do kill -0 $! 2> gone || break; sleep 0.05; done
        kill -KILL $! 2> gone
        wait $!
    """
    ended = subprocess.run(["sh", "-c", script], cwd=tmp_path, timeout=170)
    said = (tmp_path / "said").read_text()
    assert ended.returncode == 130
    assert "Resume with: sordino resume a" in said
    assert "Traceback" not in said
    assert json.loads((tmp_path / "a" / "run.json").read_text())["status"] == "unfinished"


def test_ctrl_c_before_the_first_round_leaves_nothing(tmp_path, monkeypatch, capfd) -> None:
    from sordino.federation.training import Training

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Training, "run", interrupted)
    code, _, err = answer(capfd, "train", *QUICK, "--out", "a")
    assert code == 130
    assert "Nothing was written" in err
    assert not (tmp_path / "a").exists()


def test_names_are_printed_as_they_are_and_help_is_there(capfd) -> None:
    _, out, err = answer(capfd, "train", *QUICK, "--out", "x[red]y:boom:")
    assert "x[red]y:boom:" in out
    assert "x[red]y:boom:" in err
    answer(capfd, "train", "--help")
    code, out, _ = answer(capfd, "train", "--help")
    assert code == 0
    assert "built-in" in out

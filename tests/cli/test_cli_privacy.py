"""The commands that price: certify, calibrate, papers, and training under a budget."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sordino import certify
from sordino.cli.main import run
from sordino.protocol import View, loads, override_keys
from sordino.protocol.file import read_protocol

DIGITS = Path(__file__).parents[2] / "sordino" / "examples" / "digits-local.toml"
GAUSSIAN = [
    "--set",
    "local.batch=14",
]  # all records in every step: nothing is drawn, so the answer is Gaussian
QUICK = ["--set", "federation.rounds=30", "--set", "federation.clients=10"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def answer(capfd, *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    out, err = capfd.readouterr()
    return code, out, err


def test_the_demo_promises_an_epsilon_of_at_most_10_in_a_named_view(capfd) -> None:
    code, out, _ = answer(capfd, "certify", "--json")
    assert code == 0
    found = {guarantee["view"]: guarantee for guarantee in json.loads(out)["guarantees"]}
    assert list(found) == ["server", "rounds", "coalition:1", "coalition:99", "final"]
    assert found["rounds"]["epsilon"] <= 10
    keys = {
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
    }
    keys |= {"notes"}
    keys |= {"notes"}
    assert all(set(guarantee) == keys for guarantee in found.values())
    assert found["server"]["mu"] is None


def test_a_gaussian_answer_carries_mu_and_infinity_is_a_string(capfd) -> None:
    _, out, _ = answer(
        capfd, "certify", *GAUSSIAN, "--view", "server", "--unit", "client", "--json"
    )
    (guarantee,) = json.loads(out)["guarantees"]
    assert guarantee["mu"] == pytest.approx(2 * 0.1 / 0.16 * 600**0.5)
    assert guarantee["unit"] == "client"
    _, out, _ = answer(capfd, "certify", "--set", "noise.sigma=0", "--view", "rounds", "--json")
    assert json.loads(out)["guarantees"][0]["epsilon"] == "inf"
    _, out, _ = answer(capfd, "certify", "--set", "noise.sigma=0", "--view", "rounds")
    assert "no limit" in out


def test_a_run_whose_protocol_does_not_say_the_sizes_warns_of_a_large_delta_too(capfd) -> None:
    plan = 'data={name="digits"}', "federation.rounds=2", "federation.clients=10"
    answer(capfd, "train", *(word for one in plan for word in ("--set", one)), "--out", "a")
    records = sum(json.loads(Path("a/run.json").read_text())["sizes"])
    _, out, _ = answer(capfd, "certify", "a", "--view", "rounds", "--delta", "0.001")
    assert f"Warning: delta = 0.001 is not below 1/{records}, one over the number of records" in out
    _, out, _ = answer(capfd, "certify", "a", "--view", "rounds", "--delta", "0.0001")
    assert "Warning" not in out


def test_the_table_warns_of_a_large_delta_and_names_what_is_vouched_for(capfd) -> None:
    _, out, _ = answer(capfd, "certify", *GAUSSIAN, "--delta", "0.001")
    assert "Warning: delta = 0.001" in out
    options = [
        "--set",
        "assumptions.smoothness=0.1",
        "--set",
        "local.schedule.kind=stage-wise",
        "--view",
        "final",
    ]
    _, out, _ = answer(capfd, "certify", *GAUSSIAN, *options)
    assert "0.1-smooth" in out
    assert "without that" in out


def test_explain_and_plot(capfd, tmp_path) -> None:
    code, out, _ = answer(
        capfd, "certify", *GAUSSIAN, "--view", "final", "--explain", "--plot", "c.svg"
    )
    assert code == 0
    assert "docs/theory.md#a8" in out
    assert "<svg" in (tmp_path / "c.svg").read_text()


def test_a_run_shows_planned_and_realised_bounds(capfd) -> None:
    answer(capfd, "train", *QUICK, "--set", "federation.participation={poisson=0.5}", "--set", "privacy.budget.view=server",
           "--set", "privacy.budget.epsilon=500", "--out", "a", "--json")  # fmt: skip
    code, out, _ = answer(capfd, "certify", "a", "--view", "server", "--json")
    assert code == 0
    document = json.loads(out)
    assert len(document["realised"]) == 10
    assert (
        max(r["epsilon"] for r in document["realised"]) > document["guarantees"][0]["epsilon"] * 0.5
    )
    _, out, _ = answer(capfd, "certify", "a", "--view", "server")
    assert "planned" in out
    assert "worst client" in out


def test_calibrate_meets_its_target_from_the_safe_side(capfd) -> None:
    code, out, _ = answer(
        capfd, "calibrate", *GAUSSIAN, "--epsilon", "4", "--view", "rounds", "--json"
    )
    assert code == 0
    document = json.loads(out)
    assert 3.96 <= document["epsilon"] <= 4.0
    _, out, _ = answer(
        capfd,
        "certify",
        *GAUSSIAN,
        "--set",
        f"noise.sigma={document['sigma']!r}",
        "--view",
        "rounds",
        "--json",
    )
    assert json.loads(out)["guarantees"][0]["epsilon"] == pytest.approx(document["epsilon"])


def test_a_budget_ends_training_with_exit_code_3_and_says_what_is_left(capfd, tmp_path) -> None:
    code, out, err = answer(
        capfd, "train", *QUICK, "--set", "privacy.budget.epsilon=1", "--out", "a", "--json"
    )
    assert code == 3
    assert json.loads(out)["status"] == "budget"
    assert json.loads(out)["guarantee"]["epsilon"] <= 1
    assert "Left:" in err
    code, _, err = answer(
        capfd, "train", *QUICK, "--set", "privacy.budget.epsilon=0.02", "--out", "b"
    )
    assert code == 3
    assert "after round 1 it would be" in err
    assert not (tmp_path / "b").exists()


def test_papers_list_and_check(capfd) -> None:
    _, out, _ = answer(capfd, "papers", "list", "--json")
    verdicts = {claim["claim"]: claim["verdict"] for claim in json.loads(out)["claims"]}
    assert verdicts["convergent/theorem-3a"] == "unsound"
    assert verdicts["convergent/theorem-3c"] == "sound"
    code, out, _ = answer(
        capfd, "papers", "check", "convergent/theorem-3a", "--set", "rounds=100", "--json"
    )
    assert code == 0
    document = json.loads(out)
    assert document["published"] < document["exact"]
    assert document["parameters"]["rounds"] == 100
    _, out, _ = answer(capfd, "papers", "check", "prifedsync/theorem-1")
    assert "verdict" in out
    assert answer(capfd, "papers", "list")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["certify", "--view", "sever"], "server"),
        (["certify", "--view", "coalition:100"], "99"),
        (["certify", "--unit", "row"], "record"),
        (["certify", "--delta", "0"], "delta"),
        (["certify", "--delta", "nan"], "delta"),
        (["certify", "nowhere.toml"], "nowhere.toml"),
        (["certify", "--plot", "a.doc"], ".png"),
        (["calibrate"], "one target"),
        (["calibrate", "--epsilon", "-1"], "epsilon"),
        (["calibrate", "--advantage", "0"], "no noise is enough"),
        (["papers", "check", "convergent/theorem-9z"], "convergent/theorem"),
        (["papers", "check", "convergent/theorem-3a", "--set", "rounds=many"], "NAME=VALUE"),
        (["papers", "reproduce", "nothing"], "prifedsync-tables"),
    ],
)
def test_a_mistake_gets_exit_code_2_and_one_message(capfd, tmp_path, arguments, words) -> None:
    code, out, err = answer(capfd, *arguments)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    assert words in err
    assert list(tmp_path.iterdir()) == []


def loaded_by(*arguments: str) -> set[str]:
    code = f"import sys; from sordino.cli.main import run; run({list(arguments)!r}); print(*sys.modules, file=sys.stderr)"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stderr.split()
    )


def test_a_gaussian_answer_needs_nothing_heavy() -> None:
    assert not loaded_by("certify", *GAUSSIAN, "--view", "server") & {
        "torch",
        "dp_accounting",
        "scipy.stats",
        "sklearn",
        "matplotlib",
    }
    assert "torch" not in loaded_by("papers", "list")


def test_views_have_spellings_and_words() -> None:
    assert View.parse("coalition:3") == View.coalition(3)
    assert View.parse(str(View.SERVER)) is not None
    assert View.parse("final").sees == "the last model only"


def test_the_table_of_mechanisms_counts_the_parameters_and_marks_the_least(capfd) -> None:
    known = (
        "--set",
        "local.minibatches=public",
    )  # only for Gaussian noise is a secret draw counted
    code, out, _ = answer(capfd, "calibrate", "--mechanisms", "--epsilon", "8", *known)
    assert code == 0
    lines = [line for line in out.splitlines() if re.search("gaussian|laplace|staircase", line)]
    assert "650 parameters" in out
    assert ["least" in line for line in lines] == [True, False, False]
    ratios = [float(re.search(r"([\d.]+) x", line)[1]) for line in lines[1:]]
    assert 1.4 < ratios[0] < 1.6
    assert ratios[1] > 5


def test_noise_in_the_table_is_rounded_towards_more(capfd) -> None:
    """What a person copies from the table keeps the guarantee."""
    code, out, _ = answer(
        capfd, "calibrate", "--mechanisms", "--epsilon", "8", "--set", "model.parameters=650"
    )
    assert code == 0
    found = dict(re.findall(r"(sigma|scale|step|width) = ([\d.]+)", out))
    for noise in (
        f'mechanism="gaussian",sigma={found["sigma"]}',
        f'mechanism="laplace",scale={found["scale"]}',
        f'mechanism="staircase",step={found["step"]},width={found["width"]}',
    ):
        code, out, _ = answer(
            capfd,
            "certify",
            "--view",
            "server",
            "--json",
            "--set",
            "model.parameters=650",
            "--set",
            f"noise={{{noise}}}",
        )
        assert code == 0
        assert 7.9 < json.loads(out)["guarantees"][0]["epsilon"] <= 8.0


def test_what_does_not_fit_into_memory_is_said(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "mine"]) == 0
    assert run(["certify", "mine.toml", "--set", "federation.rounds=1000000000000000"]) == 2
    error = capfd.readouterr().err
    assert "not enough memory" in error
    assert "Traceback" not in error


@pytest.mark.soak
def test_epsilon_is_shown_at_the_delta_of_the_budget(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "mine"]) == 0
    capfd.readouterr()
    budget = ["--set", 'privacy.budget={epsilon=50.0,delta=1e-7,view="rounds"}']
    for command in (["certify"], ["audit", "--trainings", "300", "--workers", "1"]):
        assert (
            run([command[0], "mine.toml", *command[1:], *budget, "--view", "rounds", "--json"]) == 0
        )
        found = json.loads(capfd.readouterr().out)
        assert (found["guarantees"][0] if command == ["certify"] else found)["delta"] == 1e-7


UNEQUAL = """
[federation]
clients = 3
rounds = 10
aggregation = { mean = { weights = "records" } }
[local]
rule = "clipped-glm"
steps = 5
clip = 1.0
weight-decay = 0.1
schedule = { kind = "constant", rate = 0.5 }
[noise]
mechanism = "gaussian"
sigma = 0.1
[data]
name = "wards.csv"
partition = { by = "ward" }
classes = ["ill", "well"]
[model]
name = "logistic"
"""


def test_noise_for_unequal_clients_is_found_by_a_look_at_the_data(capfd) -> None:
    lines = ["ward,age,label"]
    for ward, count in (("north", 20), ("south", 20), ("west", 600)):
        lines += [f"{ward},{at % 7},{('ill', 'well')[at % 2]}" for at in range(count)]
    Path("wards.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    Path("wards.toml").write_text(UNEQUAL, encoding="utf-8")
    call = ("calibrate", "wards.toml", "--epsilon", "2", "--view", "rounds")
    found = []
    for looks in ([], ["--data"]):
        code, out, err = answer(capfd, *call, *looks, "--json")
        assert code == 0, err
        found.append(json.loads(out)["sigma"])
    assert found[1] < 0.2 * found[0]
    blind, seen = (answer(capfd, *call, *looks)[1] for looks in ([], ["--data"]))
    assert "does not say how many records clients have" in blind
    assert "is not stated" not in seen
    promised = [
        json.loads(answer(capfd, "certify", "wards.toml", "--view", "rounds", "--json", *looks)[1])
        for looks in ([], ["--data"])
    ]
    epsilons = [one["guarantees"][0]["epsilon"] for one in promised]
    assert epsilons[1] < 0.2 * epsilons[0]


def test_certify_prints_points_of_the_curve_on_request(capfd) -> None:
    asked = ("--json", "--view", "server", "--tradeoff", "0.05,0.5", "--orders", "2,8")
    code, out, _ = answer(capfd, "certify", *GAUSSIAN, *asked)
    assert code == 0
    found = json.loads(out)["guarantees"][0]
    assert found["rho"] == pytest.approx(found["mu"] ** 2 / 2)
    assert [point["divergence"] for point in found["renyi"]] == pytest.approx(
        [2 * found["rho"], 8 * found["rho"]]
    )
    assert [point["alpha"] for point in found["tradeoff"]] == [0.05, 0.5]
    assert found["tradeoff"][0]["beta"] > found["tradeoff"][1]["beta"]
    assert answer(capfd, "certify", "--tradeoff", "0.1")[0] == 2
    assert answer(capfd, "certify", "--json", "--orders", "two")[0] == 2


def test_calibrate_needs_few_prices(monkeypatch) -> None:
    """A search in the logarithm of the noise, by the values themselves and not by halves."""
    from sordino.privacy import calibrate as module

    asked, bounds = [], module.find_bounds

    def counted(question):
        asked.append(question)
        return bounds(question)

    monkeypatch.setattr(module, "find_bounds", counted)
    for target in ({"epsilon": 1.0}, {"advantage": 0.01}, {"beta": 0.5, "at_alpha": 0.05}):
        asked.clear()
        found = module.calibrate(read_protocol(DIGITS), "rounds", **target)
        assert len(asked) <= 12
        value, aim = found.achieved, next(iter(target.values()))
        assert value == pytest.approx(aim, rel=1e-3)
        assert value >= aim if "beta" in target else value <= aim


OWN_CLIENTS = """
seed = 7

[federation]
clients = 3
rounds = 20

[local]
rule = "noisy-sgd"
steps = 2
batch = 10
clip = 1.0
sampling = "poisson"
schedule = { kind = "constant", rate = 0.1 }

[noise]
mechanism = "gaussian"
multiplier = 1.0

[data]
name = "digits"
records = 100

[model]
name = "logistic"

[[client]]
id = 0
epsilon = 1.0
mechanism = "laplace"

[[client]]
id = 1
epsilon = 2.0
mechanism = "gaussian"

[[client]]
id = 2
epsilon = 4.0
mechanism = "staircase"
"""


def test_certify_lists_what_each_client_of_its_own_is_promised(capsys, tmp_path) -> None:
    """The file does not say how many parameters the model has, on which two of the prices depend."""
    plan = tmp_path / "own.toml"
    plan.write_text(OWN_CLIENTS)
    assert run(["certify", str(plan), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["clients"]
    assert [row["mechanism"] for row in rows] == ["laplace", "gaussian", "staircase"]
    for row, budget in zip(rows, (1.0, 2.0, 4.0), strict=True):
        assert 0.99 * budget < row["epsilon"] <= row["budget_epsilon"] == budget
        assert row["rounds_at_most"] == 20
    # Each bound is that of a federation where all clients are like this one.
    scale = rows[0]["scale"]
    noise = f"noise={{ mechanism = 'laplace', scale = {scale!r} }}"
    alone = [noise, "model.parameters=650"]
    protocol = override_keys(loads(OWN_CLIENTS.split("[[client]]")[0]), alone)
    assert certify(protocol).epsilon(1e-5) == pytest.approx(rows[0]["epsilon"], rel=1e-9)
    assert run(["certify", str(plan), "--view", "server"]) == 0
    out = capsys.readouterr().out
    assert "Each client's own noise" in out
    assert "multiplier = " in out

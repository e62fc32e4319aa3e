"""Claims about epsilon are judged beside claims about mu."""

import json

import pytest

from sordino.audit.verdict import Claim
from sordino.cli.claim_option import read_claim
from sordino.cli.main import run
from sordino.protocol import InvalidValue, UserError, View
from sordino.report.evidence import Audit

FILE = """
seed = 1
[federation]
clients = 2
rounds = 4
[local]
rule = "fedavg"
steps = 1
batch = 1
clip = 1.0
schedule = { kind = "constant", rate = 0.1 }
[noise]
mechanism = "gaussian"
sigma = 0.15
"""


@pytest.mark.slow
def test_epsilon_claims_are_refuted_or_hold_and_json_says_which(tmp_path, capfd) -> None:
    file = tmp_path / "a.toml"
    file.write_text(FILE)
    arguments = ["audit", str(file), "--trainings", "2000", "--workers", "1", "--json"]
    claims = ["theirs: epsilon=0.2, delta=1e-5", "careful: epsilon=60, delta=1e-5", "mine=9"]
    given = [part for claim in claims for part in ("--claim", claim)]
    assert run([*arguments, "--out", str(tmp_path / "audit"), *given]) == 4
    document = json.loads(capfd.readouterr().out)
    found = {row["claim"]: row for row in document["claims"]}
    assert found["theirs"]["verdict"] == "refuted"
    assert (found["theirs"]["epsilon"], found["theirs"]["delta"]) == (0.2, 1e-5)
    assert found["theirs"]["mu"] is None
    assert found["careful"]["verdict"] == "holds"
    assert (found["mine"]["mu"], found["mine"]["verdict"]) == (9.0, "holds")
    shown = {name: text for name, text, _ in Audit.of(document).claims}
    assert shown["theirs"] == "ε = 0.2 at δ = 1e-5"
    assert shown["mine"] == "μ = 9"


@pytest.mark.parametrize(
    "text",
    ["theirs", "=2", "theirs=-1", "theirs: epsilon=2", "theirs: epsilon=x, delta=1e-5",
     "theirs: epsilon=2, delta=1", ": epsilon=2, delta=1e-5", "theirs: rho=2"],
)  # fmt: skip
def test_a_claim_that_is_none_gets_a_sentence_with_both_forms(text) -> None:
    with pytest.raises(UserError, match=r"such as theirs=0\.29, or 'NAME: epsilon"):
        read_claim(text, View.SERVER, "record")


def test_a_claim_is_about_mu_or_about_epsilon() -> None:
    for wrong in ({}, {"mu": 1.0, "epsilon": 1.0, "delta": 0.1}, {"epsilon": 1.0}):
        with pytest.raises(InvalidValue):
            Claim(name="theirs", **wrong)

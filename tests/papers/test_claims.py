"""Every claim at its defaults, the verdicts as a whole, and what is refused."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from sordino.papers.catalogue import all_claims, as_documents, find
from sordino.papers.claims import check
from sordino.papers.parameters import PARAMETERS, check_parameter
from sordino.protocol import UserError
from tests.support import REPOSITORY

# By name: the verdict and the statements of docs/theory.md that it rests on; none where it is
# silent.
VERDICTS = {
    "convergent/theorem-1": ("conditional", "A6"),
    "convergent/theorem-2": ("conditional", "A3, A5"),
    "convergent/theorem-3a": ("unsound", "A1, A2"),
    "convergent/theorem-3b": ("unsound", "A2"),
    "convergent/theorem-3c": ("sound", "A4"),
    "convergent/theorem-3d": ("conditional", "A5"),
    "convergent/theorem-4": ("unsound", "A3"),
    "convergent/lemma-3": ("sound", ""),
    "convergent/lemma-4": ("sound", ""),
    "convergent/lemma-5": ("sound", ""),
    "convergent/lemma-6": ("conditional", "A6"),
    "convergent/lemma-7": ("sound", ""),
    "convergent/lemma-8": ("sound", ""),
    "convergent/lemma-9": ("conditional", "A3"),
    "convergent/lemma-10": ("conditional", "A3"),
    "convergent/table-2": ("conditional", "A5"),
    "convergent/remark-3.2": ("unsound", "A8, A10"),
    "convergent/appendix-f": ("unsound", "A1, A7"),
    "convergent/theorem-3a-nonconvex": ("unsound", "A2"),
    "convergent/theorem-3b-nonconvex": ("unsound", "A2"),
    "convergent/theorem-4-nonconvex": ("unsound", "A3"),
    "convergent/lemma-1": ("sound", ""),
    "convergent/lemma-2": ("sound", ""),
    "convergent/remark-2.1": ("unsound", "A7"),
    "convergent/remark-3.1": ("unsound", "A2"),
    "convergent/remark-3.2-delta": ("conditional", "A10"),
    "convergent/remark-4.1": ("conditional", "A3"),
    "convergent/equation-28": ("unsound", ""),
    "convergent/equation-29": ("unsound", ""),
    "convergent/table-3": ("unsound", "A4"),
    "convergent/appendix-f-factor": ("unsound", "A7"),
    "convergent/appendix-f-np-hard": ("unsound", "A7"),
    "udp-fl/composition": ("sound", ""),
    "udp-fl/conversion": ("sound", "B5"),
    "udp-fl/table-3": ("unsound", "B4"),
    "udp-fl/theorem-1": ("unsound", "B1, B2"),
    "udp-fl/theorem-2": ("unsound", "B1"),
    "udp-fl/theorem-3": ("unsound", "B4"),
    "udp-fl/theorem-4": ("unsound", ""),
    "udp-fl/theorem-5": ("unsound", ""),
    "udp-fl/appendix-a.4": ("conditional", "B1"),
    "udp-fl/saving": ("unsound", ""),
    "udp-fl/appendix-c": ("unsound", ""),
    "udp-fl/theorem-6": ("conditional", ""),
    "udp-fl/theorem-7": ("unsound", ""),
    "udp-fl/theorem-8": ("unsound", "B4"),
    "udp-fl/theorem-9": ("conditional", ""),
    "udp-fl/lemma-1": ("sound", ""),
    "udp-fl/lemma-2": ("unsound", "B7"),
    "udp-fl/lemma-3": ("conditional", "B8"),
    "udp-fl/lemma-4": ("sound", ""),
    "udp-fl/lemma-5": ("unsound", "B4"),
    "udp-fl/algorithm-3": ("unsound", "B2"),
    "prifedsync/lemma-3.3": ("sound", ""),
    "prifedsync/lemma-3.4": ("sound", ""),
    "prifedsync/lemma-3.7": ("sound", ""),
    "prifedsync/lemma-3.8": ("sound", "C3"),
    "prifedsync/lemma-b.1": ("sound", "C3"),
    "prifedsync/theorem-1": ("unsound", "C4"),
    "prifedsync/theorem-1-strong": ("unsound", "C4, C6"),
    "prifedsync/definition-3.6": ("unsound", "C6"),
    "prifedsync/lemma-d.1": ("sound", ""),
    "prifedsync/theorem-2": ("sound", "C5"),
    "prifedsync/theorem-2-limit": ("asymptotic", "C2, C5"),
}

every_claim = pytest.mark.parametrize("claim", all_claims(), ids=lambda claim: claim.name)


def test_the_verdicts_are_those_of_theory_and_no_claim_is_missing() -> None:
    assert [claim.name for claim in all_claims()] == list(VERDICTS)
    for claim in all_claims():
        verdict, letters = VERDICTS[claim.name]
        assert claim.verdict == verdict, claim.name
        anchors = letters.lower().replace(" ", " #")
        assert claim.reason.startswith(f"docs/theory.md#{anchors}:" if letters else ""), claim.name


@every_claim
def test_the_numbers_at_the_defaults_bear_the_verdict_out(claim) -> None:
    verdict = check(claim)
    assert verdict.holds == (claim.verdict in ("sound", "conditional"))
    if claim.verdict == "unsound" and claim.relation == "at most":
        assert verdict.published < 0.99 * verdict.exact  # not a matter of rounding


@every_claim
def test_outside_its_condition_a_conditional_claim_is_refuted(claim) -> None:
    if claim.outside is None:
        return
    assert claim.verdict == "conditional"
    assert not check(claim, **claim.outside).holds
    assert "Outside its condition" in check(claim).explanation


@every_claim
def test_a_check_is_a_document_and_a_list_of_facts(claim) -> None:
    verdict = check(claim)
    document = verdict.as_document()
    assert list(document) == ["claim", "quantity", "parameters", "published", "exact", "verdict"]
    assert document["parameters"] == dict(claim.defaults)
    assert isinstance(document["published"], float)
    assert isinstance(document["exact"], float)
    assert all(word and text for word, text in verdict.facts())


@every_claim
def test_every_parameter_of_a_formula_is_described(claim) -> None:
    for formula in (claim.published, claim.exact):
        for name, parameter in inspect.signature(formula).parameters.items():
            # Only accuracies, which no check sets, have values of their own.
            if name in claim.defaults or parameter.default is parameter.empty:
                assert PARAMETERS[name].meaning


@every_claim
def test_every_claim_says_all_there_is_to_say(claim) -> None:
    assert claim.where.startswith(
        {"convergent": "convergent-dp, ", "udp-fl": "udp-fl, ", "prifedsync": "prifedsync, "}[
            claim.name.split("/")[0]
        ]
    )
    assert claim.statement.endswith(".")
    assert claim.reason.endswith(".")
    assert claim.defaults.keys() <= PARAMETERS.keys()
    for name, value in claim.defaults.items():
        assert check_parameter(name, value) == value
    # True as printed, or not: a condition beside "sound" would say both.
    if claim.verdict == "sound":
        assert claim.condition == "none"
    else:
        assert claim.condition
        assert claim.sound_replacement != "none needed"


def test_the_list_is_a_document() -> None:
    documents = as_documents()["claims"]
    assert len(documents) == len(VERDICTS)
    assert all(list(document) == ["claim", "where", "verdict"] for document in documents)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "convergent/theorem-3",
            "did you mean convergent/theorem-3a or convergent/theorem-3b or convergent/theorem-3c or convergent/theorem-3d?",
        ),
        ("theorem-3a", "did you mean convergent/theorem-3a or"),
        ("convergant/theorem-4", "did you mean convergent/theorem-4 or"),
        ("", "`sordino papers list` shows all"),
    ],
)
def test_an_unknown_claim_is_refused_with_the_nearest_names(name, message) -> None:
    with pytest.raises(UserError, match="no claim") as refusal:
        find(name)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("convergent/theorem-3a", {"round": 3}, "has no parameter 'round'; did you mean rounds?"),
        ("convergent/theorem-3a", {"foo": 3}, "has no parameter 'foo'. It has: "),
        ("convergent/theorem-3a", {"rounds": 2.5}, "rounds = 2.5: expected a whole number"),
        ("convergent/theorem-3a", {"rounds": True}, "rounds = True"),
        ("convergent/theorem-3a", {"sigma": 0}, "sigma = 0: expected a number above 0."),
        ("convergent/theorem-3a", {"rate": float("nan")}, "rate = nan"),
        (
            "convergent/theorem-4",
            {"smoothness": 2.0},
            "proximal = 1.0: Theorem 4 and Lemma 10 need it above the smoothness",
        ),
        ("convergent/remark-3.2", {"participants": 101}, "there are only 100 clients"),
        ("convergent/remark-3.2", {"delta": 1.0}, "delta = 1.0: expected a number"),
        ("prifedsync/theorem-2", {"batch": 601}, "there are only 600 records"),
        ("udp-fl/theorem-2", {"order": 1000.0}, "choose less extreme parameters"),
        ("udp-fl/theorem-4", {"rate": 2.0}, "needs a rate below 1/curvature = 1"),
        ("prifedsync/lemma-d.1", {"batch": 601}, "there are only 600 records"),
        ("prifedsync/lemma-d.1", {"sigma": 1e-12}, "too wide to be integrated"),
        ("prifedsync/theorem-1", {"clients": 1}, "clients = 1: expected at least 2"),
        ("prifedsync/theorem-1", {"clients": 1, "mixing": 0.5}, "clients = 1: expected at least 2"),
        ("prifedsync/theorem-1", {"clients": 10_000}, "where mixing is 1, expected at most"),
        ("convergent/remark-2.1", {"rho": 0.5}, "Remark 2.1 is about a rho above 1"),
        ("udp-fl/table-3", {"sensitivity": 1e300}, "choose less extreme parameters"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(name, overrides, message) -> None:
    with pytest.raises(UserError) as refusal:
        check(find(name), **overrides)
    assert message in str(refusal.value)


@pytest.mark.slow
def test_no_promise_rests_on_a_paper() -> None:
    for room in ("privacy", "protocol"):
        for path in (REPOSITORY / "sordino" / room).rglob("*.py"):
            assert not any(name.startswith("sordino.papers") for name in imported(path)), path


def imported(path: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [
        f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]


def test_the_list_of_claims_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'scipy', 'torch', 'matplotlib', 'dp_accounting'}"
    code = f"import sys; from sordino.papers.catalogue import as_documents; as_documents(); print({heavy} & set(sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "set()"

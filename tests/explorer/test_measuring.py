"""A counterexample in a process of its own: looks that grow, a verdict at the end, an end when it is told to."""

import time

import pytest

from sordino.explorer import measuring
from sordino.explorer.measuring import MEASURABLE, ClaimMeasurement
from sordino.papers.catalogue import find
from sordino.papers.claims import check
from sordino.papers.measured import SCHEDULES, measure, measure_in_steps
from sordino.protocol import UserError


def until(condition, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert condition()


def test_the_claims_that_can_be_measured_are_those() -> None:
    assert tuple(SCHEDULES) == MEASURABLE


@pytest.mark.slow
def test_looks_end_where_an_audit_of_the_same_trainings_does(tmp_path) -> None:
    verdict = check(find("convergent/theorem-3a"), rounds=30, clients=2)
    looks = list(measure_in_steps(verdict, trainings=200, steps=4))
    assert [look.finding is None for look in looks] == [True] * (len(looks) - 1) + [False]
    assert [look.trainings for look in looks] == sorted({look.trainings for look in looks})
    assert looks[-1].trainings == looks[-1].planned == 200
    whole = measure(verdict, tmp_path / "audit", trainings=200, workers=1)
    assert looks[-1].mu_lower == whole.mu_lower
    assert looks[-1].finding.claims[0].verdict == whole.claims[0].verdict == "refuted"


@pytest.mark.soak
def test_a_process_reports_looks_and_the_verdict() -> None:
    running = ClaimMeasurement("convergent/theorem-3a", rounds=30, clients=2)
    until(lambda: running.over)
    assert running.problem == ""
    assert len(running.looks) > 3
    assert [look.verdict for look in running.looks[:-1]] == [""] * (len(running.looks) - 1)
    assert running.looks[-1].verdict == "refuted"
    assert (
        running.looks[-1].mu_lower
        > check(find("convergent/theorem-3a"), rounds=30, clients=2).published
    )
    assert running not in ClaimMeasurement.running


def test_it_can_be_stopped_and_no_more_than_a_few_run_at_a_time() -> None:
    started = [
        ClaimMeasurement("convergent/theorem-3b", rounds=1000, clients=50)
        for _ in range(measuring.MOST)
    ]
    with pytest.raises(UserError, match="already"):
        ClaimMeasurement("convergent/theorem-3b", rounds=1000, clients=50)
    measuring.stop_all()
    until(lambda: all(one.over for one in started))
    assert {one.problem for one in started} == {"stopped"}
    assert not ClaimMeasurement.running


@pytest.mark.slow
def test_a_claim_that_cannot_be_measured_says_so() -> None:
    running = ClaimMeasurement("convergent/lemma-3", rounds=10, clients=2)
    until(lambda: running.over)
    assert running.problem
    assert running.looks == []

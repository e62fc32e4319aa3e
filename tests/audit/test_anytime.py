"""Limits that hold at any time: against an integrated mixture, by simulated audits with a look after every step, and in audits that are planned by time."""

import json
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sordino import Constant, FedAvg, Gaussian, Protocol, audit
from sordino.audit import timed_play
from sordino.audit.anytime_limits import BELIEVED, AnytimeLimit
from sordino.audit.auditing import resume_audit
from sordino.audit.judging import is_clear
from sordino.audit.lower_bounds import (
    FIRM,
    Scores,
    choose_threshold,
    limit_error_rate,
    limit_errors,
    measure_error_rates,
)
from sordino.audit.timed_play import TimePlan, make_half_chunks
from sordino.audit.verdict import Claim
from sordino.privacy.certify import certify
from sordino.protocol import InvalidValue, UserError
from sordino.randomness import LANES

STEP = 250
LOOKS = 16


@settings(max_examples=20)
@given(
    st.integers(0, 40), st.integers(1, 80), st.floats(0, 0.9), st.sampled_from([0.2, 0.025, 5e-5])
)
def test_a_limit_is_where_the_bet_against_it_has_made_1_over_miss(errors, more, seen, miss) -> None:
    trials, batch = errors + more, 50
    limit = float(AnytimeLimit(batch=batch)(errors, trials, miss, seen))
    wrong, right = 0.5 + seen * batch, 0.5 + (1 - seen) * batch

    def bet(rate: float) -> mpmath.mpf:
        def paid(q):
            return q ** (wrong - 1 + errors) * (1 - q) ** (right - 1 + more)

        def prior(q):
            return q ** (wrong - 1) * (1 - q) ** (right - 1)

        pieces = mpmath.linspace(0, 1, 21)
        mixture = mpmath.quad(paid, pieces) / mpmath.quad(prior, pieces)
        return mixture / (mpmath.mpf(rate) ** errors * (1 - mpmath.mpf(rate)) ** more)

    with mpmath.workdps(30):
        if limit == 1:
            assert errors == trials or bet(1 - 1e-15) < 1 / miss
        else:
            assert abs(bet(limit) * miss - 1) < 1e-3
    low = AnytimeLimit(batch=batch).low(errors, trials, miss, seen)
    assert low <= errors / trials <= limit
    # A limit for one look alone is lower.
    assert limit >= float(limit_error_rate(errors, trials, miss))


def test_a_thousand_audits_with_a_look_after_every_step() -> None:
    """Of 1,000 the limits may ever fail in 5 %; limits for one look, used at each, fail in more."""
    generator = np.random.default_rng(24)
    rate, miss, audits = float(stats.norm.cdf(-1.0)), 0.05, 1000
    seen = generator.binomial(1000, rate, audits) / 1000
    errors = generator.binomial(STEP, rate, (audits, LOOKS)).cumsum(axis=1)
    ever = np.zeros((2, audits), dtype=bool)
    for look in range(LOOKS):
        trials = STEP * (look + 1)
        ever[0] |= AnytimeLimit(batch=1000)(errors[:, look], trials, miss, seen) < rate
        ever[1] |= limit_error_rate(errors[:, look], trials, miss) < rate
    most = stats.binom.ppf(0.999, audits, miss)
    assert ever[0].sum() <= most
    assert ever[0].sum() > 0
    assert ever[1].sum() > 2 * most


def test_a_late_look_costs_little_beside_a_fixed_test() -> None:
    """The smallest mu that each shows of mu = 3: within 3 % at 4,000 trainings."""
    generator = np.random.default_rng(3)
    draws = generator.standard_normal((4, 4000))
    scores = Scores(choosing=(draws[0], draws[1] + 3), judging=(draws[2], draws[3] + 3))
    once = measure_error_rates(scores, "mu", FIRM).mu
    ever = measure_error_rates(scores, "mu", FIRM, limit=AnytimeLimit(batch=4000)).mu
    assert 0.97 * once < ever < once


def plan(**changes) -> Protocol:
    rule = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.1))
    return Protocol(seed=1, clients=2, rounds=3, local=rule, noise=Gaussian(sigma=0.2), **changes)


def normal_scores(mu: float, trainings: int) -> Scores:
    draws = np.random.default_rng(5).standard_normal((4, trainings))
    return Scores(choosing=(draws[0], draws[1] + mu), judging=(draws[2], draws[3] + mu))


def test_a_verdict_is_clear_when_it_is_refuted_or_cannot_be() -> None:
    certified = certify(plan(), "server")
    mu = certified.mu
    assert mu is not None
    claim = Claim(name="theirs", mu=mu / 2, view="server")
    for truth, claims, clear in (
        (mu, (), False),  # attained: more trainings might always find a little more
        (0.5 * mu, (), True),  # far below: this test never refutes it
        (1.5 * mu, (), True),  # refuted
        (1.5 * mu, (claim,), True),  # both are
        (0.5 * mu, (claim,), False),  # the bound is settled, the claim is attained
    ):
        assert is_clear(normal_scores(truth, 4000), certified, claims, 1e-5, "") == clear
    few = normal_scores(0.5 * mu, 10)
    assert not is_clear(few, certified, (), 1e-5, "")  # too few to say that it holds
    # A claim about another view, or one that an adversary with more knowledge cannot judge.
    other = Claim(name="other", mu=0.5 * mu, view="final")
    assert is_clear(normal_scores(0.5 * mu, 4000), certified, (other,), 1e-5, "")
    assert is_clear(normal_scores(0.5 * mu, 4000), certified, (claim,), 1e-5, "every step")


def test_the_threshold_is_that_of_the_first_batch_alone() -> None:
    scores = normal_scores(2.0, 500)
    threshold = choose_threshold(scores.choosing, "mu", FIRM, 1e-5)
    zero, one = scores.judging
    alarms, missed = (zero >= threshold).sum(), (one < threshold).sum()
    seen = [(scores.choosing[0] >= threshold).mean(), (scores.choosing[1] < threshold).mean()]
    limit, miss = AnytimeLimit(batch=500), (1 - FIRM) / 2
    found = limit_errors(scores, threshold, FIRM, limit)
    assert found.false_positive == float(limit(alarms, 500, miss, seen[0]))
    assert found.false_negative == float(limit(missed, 500, miss, seen[1]))


def test_chunks_of_a_half_lie_in_one_group_of_lanes_and_alternate() -> None:
    chunks = make_half_chunks(1, 0, 3 * LANES, 2048)
    assert [chunk.side for chunk in chunks[:4]] == [0, 1, 0, 1]
    assert {chunk.half for chunk in chunks} == {1}
    for chunk in chunks:
        assert chunk.trainings.start // LANES == (chunk.trainings.stop - 1) // LANES


def test_an_audit_by_time_says_what_it_can_show_and_stops_when_it_is_clear(tmp_path) -> None:
    plans: list[TimePlan] = []
    claim = Claim(name="theirs", mu=0.01, view="server")
    found = audit(
        plan(),
        "server",
        minutes=0.2,
        claims=(claim,),
        folder=tmp_path / "audit",
        workers=1,
        on_plan=lambda plan, certified: plans.append(plan),
    )
    timed = found.timed
    assert timed is not None
    assert found.claims[0].verdict == "refuted"
    assert found.contradicted is False  # somebody else's claim
    assert found.verdict == "holds"
    assert found.mu_lower < found.certified.mu
    assert timed.choosing == plans[0].choosing
    assert timed.planned == plans[0].judging
    assert found.trainings == timed.looks * plans[0].step
    document = json.loads((tmp_path / "audit" / "result.json").read_text())
    assert document["timed"]["ended"] == timed.ended
    assert json.loads((tmp_path / "audit" / "plan.json").read_text())["step"] == plans[0].step


def test_an_audit_by_time_is_resumed(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "audit"

    def interrupt(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(plan(), "server", minutes=0.05, folder=folder, workers=1, on_progress=interrupt)
    kept = (folder / "plan.json").read_bytes()
    before = {path.name: path.read_bytes() for path in (folder / "scores").iterdir()}
    found = resume_audit(folder, workers=1)
    assert found.timed is not None
    assert (folder / "plan.json").read_bytes() == kept
    for name, scores in before.items():
        assert (folder / "scores" / name).read_bytes() == scores
    for damaged in ("[1, 2", '{"choosing": 128}', '{"choosing": 128, "judging": 128, "step": 0}'):
        (folder / "plan.json").write_text(damaged)
        with pytest.raises(UserError, match="damaged"):
            resume_audit(folder, workers=1)


@pytest.mark.parametrize("minutes", [0, -1, math.nan, math.inf, "1", True, 1e9])
def test_times_that_are_none_are_refused(minutes, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValue, match="minutes"):
        audit(plan(), "server", minutes=minutes)
    assert list(tmp_path.iterdir()) == []


def test_a_number_and_a_time_are_refused_together(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="Give one of them"):
        audit(plan(), "server", minutes=1, trainings=500)
    assert list(tmp_path.iterdir()) == []


def test_constants_fit_together() -> None:
    assert LANES % timed_play.FIRST == 0
    assert BELIEVED <= timed_play.MOST_CHOOSING


@pytest.mark.parametrize("together", [8, 2048])
def test_trainings_that_choose_are_cut_as_they_were_played(together) -> None:
    played: list = []
    done, first = 0, min(timed_play.FIRST, together)
    while done < 8192:
        more = max(done, first)
        played += make_half_chunks(0, done, done + more, together)
        done += more
        assert timed_play.make_choosing_chunks(together, done) == played

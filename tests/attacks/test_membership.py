"""Membership: every attacker against a slow oracle, all of them on real data with and without noise, shadows that are kept, find_refusals."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from sordino import Constant, Data, FedAvg, Iid, Run, UserError, train
from sordino.attacks import canary_queries as canary
from sordino.attacks import lira, rmia, shadows, shokri
from sordino.attacks.membership import (
    LABELS_ALONE,
    SETTINGS,
    MembershipAttack,
    choose_matched,
    detection_curve,
    find_label_shares,
    measure_detection,
)
from sordino.attacks.observed import ObservedRecords
from sordino.attacks.referee import Referee
from sordino.attacks.shadows import MembershipEvidence, choose_shadow_records, train_shadows
from sordino.attacks.suite import attack
from sordino.attacks.truth import TruthMembers
from sordino.cli.main import run as command
from sordino.protocol import ByColumn, Dirichlet
from sordino.report.evidence import read_attacks
from tests.support import toy_dataset, toy_protocol

SMALL = MembershipAttack(
    rounds=1,
    shadows=4,
    asked=40,
    population=20,
    queries=canary.QueryOptimiser(iterations=2, models=2),
)
OVERFITTED = FedAvg(steps=5, batch=16, clip=10.0, schedule=Constant(rate=0.5))
DATA = toy_dataset(records=200)
SPARE = Data(name="toy", partition=Iid(), records=18)


def invented(count: int, records: int = 12, classes: int = 3, seed: int = 0) -> MembershipEvidence:
    """Answers of shadows that are the surer of what they were trained on."""
    generator = np.random.default_rng(seed)
    labels = torch.from_numpy(generator.integers(0, classes, records))
    inside = np.stack([shadow % 2 == np.arange(records) % 2 for shadow in range(count)])
    answers = generator.normal(size=(count + 1, records, classes))
    answers[1:, np.arange(records), labels] += 1.5 * inside
    return MembershipEvidence(
        labels=labels,
        target=torch.from_numpy(answers[0]),
        shadows=torch.from_numpy(answers[1:]),
        inside=inside,
    )


def confidence(logits: np.ndarray, label: int) -> float:
    weights = [math.exp(value) for value in logits]
    p = weights[label] / sum(weights)
    return math.log(p / (1 - p))


@pytest.mark.parametrize("count", [4, 64])
def test_lira_is_the_ratio_of_two_fitted_normals(count) -> None:
    """Few shadows share one variance, whose degrees of freedom are shadows less one mean per record; 64 have one for each record."""
    known = invented(count)
    own = [confidence(known.target[n].numpy(), int(label)) for n, label in enumerate(known.labels)]
    table = [
        [confidence(one[n].numpy(), int(label)) for n, label in enumerate(known.labels)]
        for one in known.shadows
    ]
    sides = []
    for side in (True, False):
        groups = [
            [table[s][n] for s in range(count) if known.inside[s, n] == side]
            for n in range(len(own))
        ]
        own_spread = [np.std(group, ddof=1) for group in groups]
        shared = math.sqrt(
            sum((len(g) - 1) * s**2 for g, s in zip(groups, own_spread, strict=True))
            / sum(len(g) - 1 for g in groups)
        )
        sides.append(
            [
                stats.norm(np.mean(group), s if count == 64 else shared)
                for group, s in zip(groups, own_spread, strict=True)
            ]
        )
    online = [math.log(a.pdf(x) / b.pdf(x)) for x, a, b in zip(own, *sides, strict=True)]
    offline = [-math.log(1 - b.cdf(x)) for x, b in zip(own, sides[1], strict=True)]
    np.testing.assert_allclose(lira.score_online(known), online, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(lira.score_offline(known), offline, rtol=1e-8, atol=1e-8)


def test_confidences_of_models_that_are_sure_keep_their_digits() -> None:
    answers = torch.tensor([[200.0, 0.0, 0.0], [-200.0, 0.0, 0.0]], dtype=torch.float64)
    np.testing.assert_allclose(
        lira.logit_confidences(answers, torch.tensor([0, 0])),
        [200 - math.log(2), -200 - math.log(2)],
    )


def test_a_record_that_no_shadow_left_out_is_compared_with_the_mean_of_all() -> None:
    known = invented(6)
    known.inside[:, 0] = True
    assert np.isfinite(lira.score_online(known)).all()
    assert np.isfinite(rmia.score_pairwise(known, invented(6, seed=1))).all()


def test_rmia_orders_records_by_the_share_of_the_population_that_they_dominate() -> None:
    known, population = invented(8, records=20), invented(8, records=30, seed=1)

    def probability(logits, label) -> float:
        weights = [math.exp(value) for value in logits.tolist()]
        return weights[int(label)] / sum(weights)

    means, ratios = [], []
    for n, label in enumerate(known.labels):
        each = [probability(one[n], label) for one in known.shadows]
        split = [
            [p for p, side in zip(each, known.inside[:, n], strict=True) if side == wanted]
            for wanted in (True, False)
        ]
        means.append([sum(part) / len(part) for part in split])
        ratios.append(probability(known.target[n], label) / (sum(means[-1]) / 2))
    grid = np.linspace(0, 1, 200_001)  # the slope, by trying
    errors = [
        sum((a * (1 - out) - (1 - inside)) ** 2 for inside, out in means) for a in grid[::100]
    ]
    slope = grid[::100][int(np.argmin(errors))]
    dominated = []
    for ratio in ratios:
        wins = 0
        for z, label in enumerate(population.labels):
            outside = np.mean([probability(one[z], label) for one in population.shadows])
            wins += ratio >= probability(population.target[z], label) / (
                (outside + slope * outside + 1 - slope) / 2
            )
        dominated.append(wins)
    scores = rmia.score_pairwise(known, population)
    assert (
        np.floor(scores * 31 + 1e-9) == dominated
    ).mean() > 0.9  # the tried slope is right to 0.0005
    assert np.argsort(scores).tolist() == np.argsort(ratios).tolist()


def test_a_query_tells_members_better_and_stays_near_its_record() -> None:
    """Two kinds of linear models that differ along one direction, which the records have nothing of."""
    generator = np.random.default_rng(0)
    module, inside = torch.nn.Linear(4, 2), np.tile([[True], [False]], (4, 10))
    models = generator.normal(size=(8, 10), scale=0.01)
    models[:, 3] += np.where(inside[:, 0], 1.0, -1.0)  # class 0 looks at the last input
    records = shadows.ObservedRecords(
        inputs=torch.from_numpy(generator.normal(size=(10, 4))).float(),
        labels=torch.zeros(10).long(),
    )
    records.inputs[:, 3] = 0.0
    made = canary.optimise_queries(
        module,
        shadows.Shadows(models=models, inside=inside),
        records,
        canary.QueryOptimiser(),
        lambda share: None,
    )
    reach = 0.2 * float(records.inputs.std())
    assert float((made - records.inputs).abs().max()) <= reach * 1.0001
    assert float(made[:, 3].min()) == pytest.approx(reach, rel=1e-4)


def test_a_classifier_learns_what_answers_about_members_look_like() -> None:
    known = invented(40, records=200)
    answers = known.target.clone()
    answers[torch.arange(0, 200, 2), known.labels[::2]] += 3.0
    said = shokri.score_by_classifier(replace(known, target=answers))
    assert said[::2].mean() > said[1::2].mean() + 0.2


def test_rates_are_those_of_counting() -> None:
    generator = np.random.default_rng(3)
    members = generator.integers(0, 2, 300).astype(bool)
    scores = np.round(generator.normal(size=300) + members, 1)  # with ties
    found = measure_detection(*detection_curve(members, scores))
    pairs = list(itertools.product(scores[members], scores[~members]))
    assert found["AUC"][0] == pytest.approx(
        sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs)
    )
    tests = [
        ((scores[~members] >= t).mean(), (scores[members] >= t).mean())
        for t in [*np.unique(scores), np.inf]
    ]
    assert found["TPR at 1 % FPR"][0] == max(true for false, true in tests if false <= 0.01)
    assert found["accuracy"][0] == pytest.approx(
        max((true + 1 - false) / 2 for false, true in tests)
    )


@pytest.mark.parametrize(("candidates", "held"), [(40, 20), (30, 20)])
def test_every_pair_of_shadows_takes_every_candidate(candidates, held) -> None:
    for pair in range(3):
        first, second = (
            choose_shadow_records(candidates, held, 2 * pair + side) for side in (0, 1)
        )
        assert len(first) == len(second) == held
        assert len({*first, *second}) == candidates
    assert (
        choose_shadow_records(candidates, held, 0).tolist()
        != choose_shadow_records(candidates, held, 2).tolist()
    )


@pytest.mark.soak
def test_members_are_found_without_noise_and_lost_under_strong_noise(trained) -> None:
    """Location-30, 1000 of 2000 records. Margins without noise: AUC 0.75 for Shokri and 0.85 for the others, TPR at 1 % FPR 0.05 and 0.2.

    Under sigma = 5 every AUC lies within 0.06 of guessing, which has a standard error of 0.013.
    """
    settings, plan = (
        {"local": OVERFITTED, "rounds": 25},
        replace(SETTINGS["quick"], rounds=1, shadows=8),
    )
    clear, noisy = (
        attack(trained("location30", sigma=sigma, **settings), plan) for sigma in (0.0, 5.0)
    )
    values = {(row.method, row.metric): row.value for row in clear.rows}
    # Thirty labels, of each as many members as others.
    [samples] = {row.samples for row in clear.rows}
    assert 1700 < samples <= 2000
    for method, (area, few) in {
        "Shokri": (0.75, 0.05),
        **dict.fromkeys(("LiRA", "LiRA offline", "RMIA", "Canary"), (0.85, 0.2)),
    }.items():
        assert values[method, "AUC"] > area, method
        assert values[method, "TPR at 1 % FPR"] > few, method
    for row in noisy.rows:
        if row.metric == "AUC":
            assert abs(row.value - 0.5) < 0.06, row.method
    run = trained("location30", sigma=0.0, **settings).folder
    assert (run / "attacks" / "membership-roc.png").stat().st_size > 10_000
    [shown] = read_attacks(run)
    [(rates, detected)] = shown.plots[1].lines.values()
    assert shown.plots[1].logarithmic
    best = max(values[method, "AUC"] for method, _ in values)
    method = next(
        method for method, metric in values if metric == "AUC" and values[method, "AUC"] == best
    )
    assert max(
        true for rate, true in zip(rates, detected, strict=True) if rate <= 0.01
    ) == pytest.approx(values[method, "TPR at 1 % FPR"])


def toy_run(folder, **changes) -> Run:
    protocol = toy_protocol(data=SPARE, **changes)
    return train(
        protocol, data=DATA, model="mlp", folder=folder, keep_uploads=1, workers=1, report=False
    )


def test_candidates_are_the_clients_records_and_as_many_others(tmp_path) -> None:
    run = toy_run(tmp_path)
    referee = Referee(run, data=DATA, model="mlp")
    candidates, members = referee.mix_candidates()

    def known(inputs) -> set[bytes]:
        return {row.numpy().tobytes() for row in inputs}

    held = known(referee.reveal_records(np.concatenate([referee.client_rows(1000)])).inputs)
    assert known(candidates.inputs[torch.from_numpy(members)]) == held
    assert not known(candidates.inputs[torch.from_numpy(~members)]) & held
    assert (members.sum(), len(members)) == (90, 180)
    assert 20 < members[:90].sum() < 70  # their order says nothing
    labels = candidates.labels.numpy()
    asked = choose_matched(members, labels, 40)
    assert (len(asked), members[asked].sum()) == (40, 20)


def test_records_in_question_are_matched_by_label() -> None:
    """Members that are nearly all of two labels are told by their labels from others of all; matched, labels say nothing."""
    generator = np.random.default_rng(5)
    labels = generator.integers(0, 10, 4000)
    members = generator.random(4000) < np.where(labels < 2, 0.9, 0.4)
    shares = find_label_shares(members, labels)
    assert shares[labels == 1].tolist() == [members[labels == 1].mean()] * (labels == 1).sum()
    unmatched = measure_detection(*detection_curve(members, shares))
    assert unmatched["AUC"][0] > 0.65
    asked = choose_matched(members, labels, 500)
    assert len(set(asked.tolist())) == 500
    counts = [
        np.bincount(labels[asked][members[asked] == side], minlength=10) for side in (True, False)
    ]
    assert (counts[0] == counts[1]).all()
    assert counts[0].min() == 25  # no label crowds out another
    matched = measure_detection(*detection_curve(members[asked], shares[asked]))
    assert matched["AUC"][0] == pytest.approx(0.5)
    assert matched["accuracy"][0] == pytest.approx(0.5)
    # More than there are: all that have a partner.
    everything = choose_matched(members, labels, 10_000)
    pairs = [
        min((members & (labels == n)).sum(), (~members & (labels == n)).sum()) for n in range(10)
    ]
    assert len(everything) == 2 * sum(pairs)


def test_who_knows_labels_alone_has_a_row() -> None:
    truth = TruthMembers(
        members=np.array([True, False, True, False]), label_shares=np.array([0.9, 0.9, 0.2, 0.2])
    )
    guess = {"LiRA": np.array([3.0, 1.0, 2.0, 0.0])}
    found = {(one.method, one.metric): one.value for one in SMALL.score(guess, truth).measures}
    assert found["LiRA", "AUC"] == 1.0
    assert found[LABELS_ALONE, "AUC"] == 0.5
    assert found[LABELS_ALONE, "accuracy"] == 0.5


@pytest.mark.slow
def test_shadows_are_trained_once_and_more_of_them_besides(tmp_path, monkeypatch) -> None:
    run, trainings, train_many = toy_run(tmp_path), [], shadows.train_many
    monkeypatch.setattr(
        shadows,
        "train_many",
        lambda plans, **rest: trainings.extend(plans) or train_many(plans, **rest),
    )
    first = attack(run, SMALL, data=DATA, model="mlp").rows
    assert len(trainings) == 4
    assert len({plan.seed for plan in trainings} | {run.protocol.seed}) == 5
    for path in (tmp_path / "attacks" / "parts").rglob("*.safetensors"):
        path.unlink()
    assert attack(run, SMALL, data=DATA, model="mlp").rows == first
    assert len(trainings) == 4
    attack(run, replace(SMALL, shadows=6), data=DATA, model="mlp")
    assert len(trainings) == 6


@pytest.mark.slow
def test_a_killed_attack_goes_on_with_the_shadows_that_are_left(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(shadows, "SHADOWS_PER_CALL", 1)
    whole = attack(toy_run(tmp_path / "whole"), SMALL, data=DATA, model="mlp").rows
    run, calls, keep = toy_run(tmp_path / "killed"), [], shadows.ShadowStore.write

    def stop(self, number, model) -> None:
        calls.append(number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        keep(self, number, model)

    monkeypatch.setattr(shadows.ShadowStore, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        attack(run, SMALL, data=DATA, model="mlp")
    assert attack(run, SMALL, data=DATA, model="mlp").rows == whole
    assert calls == [0, 1, 2, 2, 3]


@pytest.mark.parametrize("dealt", [Dirichlet(beta=0.3), ByColumn(column="who")])
def test_shadows_are_as_large_as_the_run_however_records_are_dealt(tmp_path, dealt) -> None:
    half = {
        "x_train": DATA.x_train[:90],
        "y_train": DATA.y_train[:90],
        "x_test": DATA.x_train[90:],
        "y_test": DATA.y_train[90:],
    }
    data = replace(DATA, **half, columns={"who": np.arange(90) % 5})
    run = train(
        toy_protocol(data=Data(name="toy", partition=dealt)),
        data=data,
        model="mlp",
        folder=tmp_path,
        report=False,
    )
    [case] = SMALL.cases(Referee(run, data=data, model="mlp"))
    seen = case.observe()
    found = train_shadows(seen, 2, lambda share: None)
    assert found.inside.sum(axis=1).tolist() == [90, 90]
    assert not np.array_equal(found.models[0], found.models[1])


@pytest.mark.slow
def test_earlier_models_are_attacked_with_shadows_as_old(tmp_path) -> None:
    run = toy_run(tmp_path)
    finding = attack(run, replace(SMALL, rounds=2), data=DATA, model="mlp")
    assert {row.round for row in finding.rows} == {2, 4}
    assert sorted(path.name for path in (tmp_path / "attacks" / "shadows").iterdir()) == [
        "000002",
        "000004",
    ]


@pytest.mark.parametrize("count", [0, 2, 5])
def test_too_few_shadows_get_exit_code_2(tmp_path, capfd, monkeypatch, count) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        command(
            [
                "train",
                "--set",
                "federation.rounds=1",
                "--set",
                "federation.clients=5",
                "--out",
                "run",
            ]
        )
        == 0
    )
    assert command(["attack", "run", "membership", "--shadows", str(count)]) == 2
    said = capfd.readouterr().err.replace("\n", " ")
    assert "--shadows 16" in said
    assert "Traceback" not in said
    assert command(["attack", "run", "labels", "--shadows", "16"]) == 2
    assert "only the attack membership" in capfd.readouterr().err.replace("\n", " ")


def test_a_run_that_holds_nearly_all_records_is_refused(tmp_path) -> None:
    data = replace(DATA, x_test=DATA.x_train[:20], y_test=DATA.y_train[:20])
    run = train(
        toy_protocol(data=replace(SPARE, records=38)),
        data=data,
        model="mlp",
        folder=tmp_path,
        report=False,
    )
    with pytest.raises(UserError, match=r"data\.records of at most 28"):
        attack(run, SMALL, data=data, model="mlp")


def test_records_whose_classes_say_who_is_a_member_are_refused(monkeypatch) -> None:
    """Where no class has both members and others, nothing is left to ask about."""
    candidates = ObservedRecords(inputs=torch.zeros(4, 2), labels=torch.tensor([0, 0, 1, 1]))
    members = np.array([True, True, False, False])
    referee = SimpleNamespace(
        mix_candidates=lambda: (candidates, members), run=SimpleNamespace(folder="runs/one")
    )
    with pytest.raises(UserError, match="no class has both members and other records"):
        SETTINGS["quick"].cases(referee)

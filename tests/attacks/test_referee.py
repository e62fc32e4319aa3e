"""What attackers are given is what the view shows; what scorers are given is what really happened."""

import dataclasses
import inspect
import typing

import numpy as np
import pytest
import torch

from sordino import (
    ByColumn,
    Constant,
    Data,
    FedAvg,
    Gaussian,
    Iid,
    NoisySgd,
    Poisson,
    Run,
    Scaffold,
    UserError,
    train,
)
from sordino.attacks import observed, truth
from sordino.attacks.observed import ObservedUpload
from sordino.attacks.referee import Referee
from sordino.attacks.suite import ATTACKS, attack
from sordino.data import drop_test_part
from sordino.federation.store.upload_archive import read_round
from sordino.models.flat import FlatModel
from sordino.models.task_losses import cross_entropy
from tests.support import toy_dataset, toy_protocol

DATA = toy_dataset(records=200)
SPARE = Data(
    name="toy", partition=Iid(), records=30
)  # 5 clients with 30 of 200 records: 50 are nobody's


def referee_of(folder, protocol, **options) -> Referee:
    run = train(
        protocol,
        data=DATA,
        model="mlp",
        folder=folder,
        keep_uploads=1,
        workers=1,
        report=False,
        **options,
    )
    return Referee(run, data=DATA, model="mlp")


def gradient_at(
    weights: np.ndarray, module: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor
) -> np.ndarray:
    flat = FlatModel(module)
    flat.load(torch.from_numpy(weights))
    flat.loss_gradient(inputs, labels, cross_entropy)
    return flat.gradients.numpy().astype(np.float64)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"channel": "shuffler"},
        {"participation": Poisson(rate=0.6)},
        {"channel": "shuffler", "participation": Poisson(rate=0.6)},
    ],
)
def test_the_true_batch_of_every_upload_gives_the_upload(tmp_path, changes) -> None:
    rule = FedAvg(steps=1, batch=6, clip=100.0, schedule=Constant(rate=0.3))
    referee = referee_of(
        tmp_path, toy_protocol(local=rule, noise=Gaussian(sigma=0.0), data=SPARE, **changes)
    )
    federation, tried = referee.public_federation(10), 0
    for t in referee.kept:
        for place in range(len(read_round(tmp_path, t).uploads)):
            seen, true = (
                referee.observe_upload(federation, t, place),
                referee.reveal_batch(t, place),
            )
            expected = gradient_at(seen.model, federation.module, true.inputs, true.labels)
            np.testing.assert_allclose(seen.gradient.numpy(), expected, atol=2e-6)
            tried += 1
    assert tried > 8


def test_too_few_other_records_are_refused_with_what_works(tmp_path) -> None:
    """Clients by a column hold all training records; what is said to work is done here, and works."""
    wards = dataclasses.replace(DATA, columns={"ward": np.arange(200) % 5})
    by = toy_protocol(rounds=1, data=Data(name="toy", partition=ByColumn(column="ward")))

    def refused_or_not(name: str, protocol, data) -> str:
        run = train(
            protocol, data=data, model="logistic", folder=tmp_path / name, workers=1, report=False
        )
        try:
            Referee(run, data=data, model="logistic").mix_candidates()
        except UserError as error:
            return str(error)
        return ""

    said = refused_or_not("by", by, wards)
    assert "more than half are test records" in said
    assert "or one with another partition and data.records of at most 29." in said
    fewer = {
        "x_train": DATA.x_train[:99],
        "y_train": DATA.y_train[:99],
        "columns": {"ward": np.arange(99) % 5},
    }
    halved = dataclasses.replace(DATA, **fewer, x_test=DATA.x_train[99:], y_test=DATA.y_train[99:])
    assert refused_or_not("halved", by, halved) == ""
    dealt = {
        records: toy_protocol(rounds=1, data=Data(name="toy", partition=Iid(), records=records))
        for records in (29, 40)
    }
    assert refused_or_not("few", dealt[29], wards) == ""
    assert "Attack a run with data.records of at most 29." in refused_or_not(
        "many", dealt[40], wards
    )


def test_the_gradient_of_a_noisy_step_comes_without_its_weight_decay(tmp_path) -> None:
    rule = NoisySgd(steps=1, batch=6, clip=100.0, schedule=Constant(rate=0.3), weight_decay=0.5)
    referee = referee_of(
        tmp_path, toy_protocol(local=rule, noise=Gaussian(multiplier=0.0), data=SPARE, rounds=2)
    )
    federation = referee.public_federation(10)
    seen, true = referee.observe_upload(federation, 1, 2), referee.reveal_batch(1, 2)
    np.testing.assert_allclose(
        seen.gradient.numpy(),
        gradient_at(seen.model, federation.module, true.inputs, true.labels),
        atol=2e-6,
    )


def test_the_attackers_own_records_are_no_clients_and_no_scorers(tmp_path) -> None:
    other = toy_dataset(records=200, seed=1)
    data = dataclasses.replace(DATA, x_test=other.x_train[:80], y_test=other.y_train[:80])
    run = train(toy_protocol(data=SPARE), data=data, model="mlp", folder=tmp_path, report=False)
    referee = Referee(run, data=data, model="mlp")

    def known(inputs: torch.Tensor) -> set[bytes]:
        return {row.numpy().tobytes() for row in inputs}

    own, scoring = (
        known(referee.attacker_records(10_000).inputs),
        known(referee.reveal_answers(referee.last_model(), 10_000).inputs),
    )
    held = known(referee.reveal_records(referee.client_rows(10_000)).inputs)
    assert (len(own), len(scoring), len(held)) == (50 + 40, 40, 150)
    assert not own & held
    assert not own & scoring
    assert (
        known(referee.attribute_records(referee.unassigned_rows(10_000), "y", DATA.y_train).inputs)
        <= own
    )


def test_the_protocol_comes_without_its_seed(tmp_path) -> None:
    referee = referee_of(tmp_path, toy_protocol(data=SPARE))
    assert referee.protocol.seed == 3
    assert referee.public_federation(10).protocol.seed is None


def test_noise_of_an_update_has_the_size_that_attackers_are_told(tmp_path) -> None:
    noisy = referee_of(
        tmp_path / "noisy", toy_protocol(data=SPARE, rounds=1, noise=Gaussian(sigma=0.2))
    )
    plain = referee_of(
        tmp_path / "plain", toy_protocol(data=SPARE, rounds=1, noise=Gaussian(sigma=0.0))
    )
    federation = noisy.public_federation(10)
    differences = [
        noisy.observe_upload(federation, 0, i).gradient
        - plain.observe_upload(federation, 0, i).gradient
        for i in range(5)
    ]
    told, found = (
        noisy.observe_upload(federation, 0, 0).deviation,
        float(torch.stack(differences).std()),
    )
    assert found == pytest.approx(told, rel=0.1)  # 5 x 323 normals: three standard errors are 5 %


def test_noise_of_noisy_steps_has_the_size_that_attackers_are_told(tmp_path) -> None:
    def referee(multiplier: float) -> Referee:
        rule = NoisySgd(
            steps=3, batch=6, clip=1e-9, schedule=Constant(rate=0.3)
        )  # gradients are clipped away: noise is all there is
        place = tmp_path / str(multiplier)
        return referee_of(
            place,
            toy_protocol(data=SPARE, rounds=1, local=rule, noise=Gaussian(multiplier=multiplier)),
        )

    noisy = referee(1e6)
    seen = [noisy.observe_upload(noisy.public_federation(10), 0, place) for place in range(5)]
    assert float(torch.stack([one.gradient for one in seen]).std()) == pytest.approx(
        seen[0].deviation, rel=0.1
    )


def types_within(hint: object) -> set[object]:
    return {hint} | {inner for part in typing.get_args(hint) for inner in types_within(part)}


def test_no_attempt_is_given_anything_of_the_truth() -> None:
    seen = {cls for _, cls in inspect.getmembers(observed, dataclasses.is_dataclass)}
    hidden = {cls for _, cls in inspect.getmembers(truth, dataclasses.is_dataclass)}
    for cls in seen:
        for hint in typing.get_type_hints(cls).values():
            assert not types_within(hint) & hidden, cls
            assert Run not in types_within(hint)
    for settings in ATTACKS.values():
        for plan in settings.values():
            hints = typing.get_type_hints(type(plan).attempt)
            assert set(hints) == {"seen", "tick", "return"}
            assert hints["seen"] in seen
            assert typing.get_type_hints(type(plan).score)["truth"] in hidden


def test_an_upload_that_is_not_finite_gives_a_gradient_that_is() -> None:
    rule = FedAvg(steps=1, batch=6, clip=1.0, schedule=Constant(rate=0.5))
    federation = observed.ObservedFederation(
        protocol=toy_protocol(local=rule),
        module=torch.nn.Linear(2, 1),
        classes=("a",),
        auxiliary=observed.ObservedRecords(inputs=torch.zeros(1, 2), labels=torch.zeros(1)),
    )
    upload = ObservedUpload(
        federation=federation, round=0, model=np.zeros(3), upload=np.array([np.inf, np.nan, -1.0])
    )
    assert upload.gradient.tolist() == [0.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise": Gaussian(sigma=0.1, secure=True)}, "secure = false"),
        ({"local": Scaffold(steps=1, batch=6, clip=1.0, schedule=Constant(rate=0.1))}, "scaffold"),
        (
            {
                "local": NoisySgd(
                    steps=1, batch=6, clip=1.0, schedule=Constant(rate=0.1), optimizer="adam"
                ),
                "noise": Gaussian(multiplier=1.0),
            },
            "noisy-sgd",
        ),
    ],
)
def test_what_has_no_gradient_to_read_is_refused(tmp_path, changes, message) -> None:
    referee = referee_of(tmp_path, toy_protocol(data=SPARE, rounds=1, **changes))
    with pytest.raises(UserError, match=message):
        ATTACKS["labels"]["quick"].cases(referee)


def test_a_run_without_uploads_is_refused_with_what_to_do(tmp_path) -> None:
    run = train(toy_protocol(), data=DATA, model="mlp", folder=tmp_path, report=False)
    with pytest.raises(UserError, match="--keep-uploads"):
        ATTACKS["labels"]["quick"].cases(Referee(run, data=DATA, model="mlp"))


def test_other_data_than_the_runs_are_refused(tmp_path) -> None:
    run = train(toy_protocol(), data=DATA, model="mlp", folder=tmp_path, report=False)
    with pytest.raises(UserError, match="not those it was trained on"):
        Referee(run, data=toy_dataset(seed=1, records=200), model="mlp")
    with pytest.raises(UserError, match="handed over in Python"):
        Referee(run)


def test_attacks_on_a_run_without_test_records_say_what_they_need(tmp_path) -> None:
    """Every attack either does with what uploads show, or names the setting that took its test records away."""
    unscored = drop_test_part(DATA)
    run = train(
        toy_protocol(clients=5, data=Data(name="toy", partition=Iid())),
        data=unscored,
        model="mlp",
        folder=tmp_path / "run",
        keep_uploads=1,
        workers=1,
        report=False,
    )
    assert (run.protocol.data.test, run.facts["tested_on"]) == ("none", "none")
    referee = Referee(run, data=unscored, model="mlp")
    needs = {
        "population": lambda: referee.population_records(10),
        "scoring": lambda: referee.reveal_answers(referee.last_model(), 10),
        "own records": lambda: referee.public_federation(10),
        "others": referee.mix_candidates,
    }
    for need in needs.values():
        with pytest.raises(UserError, match=r'without data\.test = "none"'):
            need()
    for name in ("membership", "extraction", "labels"):
        with pytest.raises(UserError, match=r'without data\.test = "none"'):
            attack(run, name, data=unscored, model="mlp")

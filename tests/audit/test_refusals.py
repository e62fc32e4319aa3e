"""Audits that would look at something else than what is promised are refused."""

from dataclasses import replace

import pytest

from sordino.audit.canaries.canary_training import refuse_unscored
from sordino.audit.twins import refuse_unbounded
from sordino.federation.client import ClientWork
from sordino.federation.setup import prepare
from sordino.protocol import (
    Constant,
    FedAvg,
    Gaussian,
    Identity,
    ModeConnectivity,
    NoisySgd,
    Protocol,
    UserError,
)
from tests.audit.test_many import FEDERATIONS
from tests.support import play_table, toy_dataset

STEPS = {"steps": 2, "batch": 4, "clip": 1.0, "schedule": Constant(rate=0.1)}
OWN = Protocol(
    clients=4,
    rounds=2,
    local=FedAvg(**STEPS),
    noise=Gaussian(sigma=1.0),
    personalization=Identity(pull=0.1),
)
NOISY = Protocol(clients=4, rounds=2, local=NoisySgd(**STEPS), noise=Gaussian(multiplier=1.0))
MOMENTS = Protocol(
    clients=4, rounds=2, local=NoisySgd(**STEPS, optimizer="adam"), noise=Gaussian(multiplier=1.0)
)
POISSON = Protocol(
    clients=4, rounds=2, local=NoisySgd(**STEPS, sampling="poisson"), noise=Gaussian(multiplier=1.0)
)


@pytest.mark.parametrize("protocol", [OWN, NOISY, MOMENTS])
def test_twins_are_for_uploads_with_noise_of_clients_that_keep_nothing(protocol) -> None:
    with pytest.raises(UserError, match="--sensitivity"):
        refuse_unbounded(protocol)


@pytest.mark.parametrize("protocol", [OWN, MOMENTS])
def test_no_clients_work_forgets_what_it_should_keep(protocol) -> None:
    setup = prepare(protocol, data=toy_dataset(), model="mlp")
    with pytest.raises(UserError, match="keep state"):
        ClientWork(setup).upload(client=0, round_index=0, weights=setup.initial_weights())


def test_one_training_exchanges_records_and_adds_none() -> None:
    with pytest.raises(UserError, match="replace-one"):
        refuse_unscored(prepare(POISSON, data=toy_dataset(), model="mlp"))
    refuse_unscored(prepare(NOISY, data=toy_dataset(), model="mlp"))


def test_mode_connectivity_is_trained_one_by_one() -> None:
    setup = FEDERATIONS["fedavg"]
    joined = replace(
        setup, protocol=replace(setup.protocol, aggregation=ModeConnectivity(public="records.npz"))
    )
    with pytest.raises(UserError, match="one by one"):
        next(play_table(joined, range(2)))

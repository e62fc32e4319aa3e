"""Audits that would look at something else than what is promised are refused."""

import pytest

from sordino.audit.auditing import audit
from sordino.audit.real_game import rounds_of_one
from sordino.audit.twins import refuse_unmeasured
from sordino.federation.client import ClientWork
from sordino.federation.setup import prepare
from sordino.protocol import Constant, FedAvg, Gaussian, Identity, NoisySgd, Protocol, UserError
from tests.support import toy_dataset

STEPS = {"steps": 2, "batch": 4, "clip": 1.0, "schedule": Constant(rate=0.1)}
PLAIN = Protocol(clients=4, rounds=2, local=FedAvg(**STEPS), noise=Gaussian(sigma=1.0))
OWN = Protocol(clients=4, rounds=2, local=FedAvg(**STEPS), noise=Gaussian(sigma=1.0), personalization=Identity(pull=0.1))
NOISY = Protocol(clients=4, rounds=2, local=NoisySgd(**STEPS), noise=Gaussian(multiplier=1.0))
MOMENTS = Protocol(clients=4, rounds=2, local=NoisySgd(**STEPS, optimizer="adam"), noise=Gaussian(multiplier=1.0))


@pytest.mark.parametrize("protocol", [OWN, NOISY, MOMENTS])
def test_no_game_is_played_for_clients_that_keep_something(protocol, tmp_path) -> None:
    with pytest.raises(UserError, match="cannot be audited"):
        audit(protocol, folder=tmp_path / "audit")
    assert not (tmp_path / "audit").exists()
    with pytest.raises(UserError, match="keeps nothing"):
        next(rounds_of_one(prepare(protocol, data=toy_dataset(), model="mlp"), 0, 1, {}))
    with pytest.raises(UserError, match="--sensitivity"):
        refuse_unmeasured(protocol)


@pytest.mark.parametrize("protocol", [OWN, MOMENTS])
def test_no_clients_work_forgets_what_it_should_keep(protocol) -> None:
    setup = prepare(protocol, data=toy_dataset(), model="mlp")
    with pytest.raises(UserError, match="keep something"):
        ClientWork(setup).upload(client=0, round=0, weights=setup.initial_weights())


@pytest.mark.parametrize(("view", "same"), [("weak", "coalition:1"), ("strong", "coalition:3")])
def test_views_that_have_another_name_are_told_so(view, same, tmp_path) -> None:
    with pytest.raises(UserError, match=same):
        audit(PLAIN, view, folder=tmp_path / "audit")

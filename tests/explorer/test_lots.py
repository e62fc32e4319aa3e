"""The explorer's setting of dp-sgd is the protocol that the file would have."""

from __future__ import annotations

import pytest

from sordino import DpSgd, certify
from sordino.explorer.setting import Setting


@pytest.mark.parametrize("where", ["client", "server"])
@pytest.mark.parametrize("participation", ["everyone", "poisson", "fixed"])
def test_lots_can_be_explored(where: str, participation: str) -> None:
    setting = Setting(
        rule="dp-sgd", clients=20, rounds=50, noise=2.0, where=where, participation=participation
    )
    plan = setting.protocol
    assert plan.local == DpSgd(batch=4, clip=1.0, schedule=plan.local.schedule)
    assert setting.noise_name == "multiplier"
    assert plan.noise.where == where
    assert 0 < certify(plan, "rounds").epsilon(1e-5) < 20

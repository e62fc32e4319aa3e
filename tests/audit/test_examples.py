"""Every protocol file that ships is audited in every view that certify prices: nothing is refused, nothing is contradicted."""

from __future__ import annotations

import json

import pytest

from sordino.audit import game
from sordino.audit.auditing import audit
from sordino.audit.observation import describe_beyond_view
from sordino.cli.main import run
from sordino.protocol import Protocol, View, override_keys
from tests.test_examples import EXAMPLES, example

# Few rounds and clients; and less noise where a view's mu is so small that it would take thousands of trainings to show any of it.
FOUR = ("federation.clients=4", "federation.channel.secure-aggregation.threshold=4")
SMALLER = {
    "convergent-fedavg.toml": ("federation.clients=12", "noise.sigma=0.08"),
    "convergent-fedprox.toml": ("federation.clients=12", "noise.sigma=0.05"),
    "convergent-glm.toml": ("federation.clients=6", "data.records=4", "noise.sigma=0.5"),
    "digits-local.toml": ("federation.clients=12", "noise.sigma=0.08"),
    "digits.toml": (*FOUR, "local.batch=7", "noise.multiplier=0.8"),
    "secure-mnist.toml": (*FOUR, "local.batch=300", "noise.multiplier=0.8"),
    "secure-cifar.toml": (*FOUR, "local.batch=250", "noise.multiplier=0.8"),
    "secure-consortium.toml": ("local.batch=470", "noise.multiplier=0.8"),
    "dp-fedavg.toml": ("federation.clients=20", "noise.sigma=0.05"),
    # A step draws one of 56 records: with so few rounds, 250 trainings would show nothing of it.
    "harmonizer.toml": ("data.records=4",),
    "nbafl.toml": ("federation.clients=12", "noise.sigma=0.3"),
    "prifedsync.toml": ("noise.multiplier=0.6",),
    "prifedsync-cifar.toml": ("noise.multiplier=0.3",),
    "prifedsync-mnist.toml": ("noise.multiplier=0.3",),
    "shuffler.toml": ("federation.clients=40", "noise.sigma=0.3", "federation.rounds=2"),
    # Over many steps whose batches nobody sees, linear losses show little of what is allowed.
    "udp-fl-mnist.toml": ("local.batch=3000", "noise.multiplier=0.5"),
    "udp-fl-cifar.toml": ("local.batch=2500", "noise.multiplier=0.5"),
    "udp-fl-harmonizer.toml": ("local.batch=3000",),
    "udp-fl-wind.toml": ("local.batch=500", "noise.multiplier=0.5"),
    "dp-sgd.toml": ("local.batch=35", "noise.multiplier=0.8", "federation.clients=4"),
    "wind-scaffold.toml": ("data.records=40", "local.batch=20", "noise.sigma=0.05"),
}
VIEWS = {
    "record": ("server", "rounds", "coalition:2", "final", "weak", "strong"),
    "client": ("server", "rounds"),
}
ONE_GAME = {
    "record": ("server", "final", "strong"),
    "client": ("rounds",),
}  # where every view has the server's bound


@pytest.fixture(autouse=True)
def _less_noise_looked_at(monkeypatch) -> None:
    monkeypatch.setattr(game, "RESIDUALS", 20_000)


def settings(name: str) -> list[str]:
    budget = ["privacy.budget.epsilon=1e9"] if example(name).privacy.budget is not None else []
    return ["federation.rounds=3", *budget, *SMALLER.get(name, ())]


def small(name: str) -> Protocol:
    return override_keys(example(name), settings(name))


@pytest.mark.soak
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("unit", VIEWS)
def test_every_example_is_audited_in_every_view(name, unit, tmp_path) -> None:
    protocol, shown = small(name), []
    for view in (VIEWS if describe_beyond_view(protocol, View.ROUNDS) == "" else ONE_GAME)[unit]:
        finding = audit(
            protocol, view, unit, trainings=200, folder=tmp_path / view.replace(":", "-"), workers=1
        )
        assert not finding.contradicted, (view, finding.verdict, str(finding.residuals))
        assert finding.epsilon_lower <= finding.certified.epsilon(1e-5)
        assert finding.given == describe_beyond_view(
            protocol, View.parse(view), unit, protocol.stated_sizes
        )
        shown.append(finding.mu_lower)
    assert max(shown) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prifedsync.toml", "harmonizer.toml", "wind-scaffold.toml"])
def test_the_command_audits_them(name, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "mine", "--from", name.removesuffix(".toml")]) == 0
    capfd.readouterr()
    sets = [word for setting in settings(name) for word in ("--set", setting)]
    assert (
        run(
            [
                "audit",
                "mine.toml",
                *sets,
                "--view",
                "strong",
                "--trainings",
                "250",
                "--workers",
                "1",
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capfd.readouterr().out)
    assert found["verdict"] in ("holds", "not tested")
    assert (
        found["given"]
        == describe_beyond_view(small(name), View.STRONG, sizes=small(name).stated_sizes)
        != ""
    )
    assert found["mu_lower"] > 0

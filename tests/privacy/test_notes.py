"""What must be said with a promise stays with it, whatever rule, noise, view or way to a number there is."""

import json
from dataclasses import replace

import pytest

from sordino.cli.main import run
from sordino.privacy.calibrate import calibrate
from sordino.privacy.certify import certify
from sordino.privacy.ledger_lines import Missed, RoundCharged
from sordino.privacy.spending import certify_clients, certify_run
from sordino.protocol import (
    Assumptions,
    Bezier,
    ByColumn,
    ClientBudget,
    ClippedGlm,
    Constant,
    Data,
    Dirichlet,
    DpSgd,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    Iid,
    Laplace,
    Model,
    NoisySgd,
    Protocol,
    Scaffold,
    Shards,
    View,
    all_views,
)
from sordino.report.phrasing import RULE_NAMES

STEPS = {"steps": 1, "batch": 2, "clip": 1.0, "schedule": Constant(rate=0.1)}
LOCAL = {
    "fedavg": FedAvg(**STEPS),
    "fedprox": FedProx(**STEPS, proximal=0.1),
    "scaffold": Scaffold(**STEPS),
    "bezier": Bezier(**{**STEPS, "schedule": Constant(rate=1.0)}),
    "clipped-glm": ClippedGlm(
        steps=1, clip=1.0, schedule=Constant(rate=0.1), weight_decay=0.1, feature_norm=1.0
    ),
    "noisy-sgd": NoisySgd(steps=1, batch=2, clip=1.0, schedule=Constant(rate=0.1)),
    "dp-sgd": DpSgd(batch=2, clip=1.0, schedule=Constant(rate=0.1)),
}
IN_STEPS = ("noisy-sgd", "dp-sgd")
DEALT = Data(name="digits", records=10, partition=Dirichlet(beta=0.5))
SIZES = (10,) * 4


def federation(rule: str, **more: object) -> Protocol:
    noise = Gaussian(multiplier=2.0) if rule in IN_STEPS else Gaussian(sigma=0.5)
    given = {
        "clients": 4,
        "rounds": 2,
        "seed": 1,
        "local": LOCAL[rule],
        "noise": noise,
        "data": DEALT,
        "assumptions": Assumptions(smoothness=1.0) if rule == "bezier" else Assumptions(),
    }
    return Protocol(**{**given, **more})


OF_EVERY_KIND = {
    **{rule: federation(rule) for rule in LOCAL},
    "some take part": federation("fedavg", participation=FixedSize(size=2)),
    "shuffled": federation(
        "fedavg",
        channel="shuffler",
        noise=Laplace(scale=2.0),
        model=Model(name="logistic", parameters=9),
    ),
    "at the server": federation("fedavg", noise=Gaussian(sigma=0.5, where="server")),
    "capped": federation("fedavg", client=(ClientBudget(id=0, epsilon=30.0),)),
    "own noise": federation(
        "fedavg",
        client=tuple(ClientBudget(id=k, epsilon=5.0, mechanism="gaussian") for k in range(4)),
    ),
    "vouched": federation("fedavg", assumptions=Assumptions(smoothness=0.01)),
}


def says_it(guarantee) -> bool:
    return (
        any("assigned to clients by label" in note for note in guarantee.notes)
        and "assigned to clients by label" in guarantee.sentence(1e-5)
        and "assigned to clients by label" in json.dumps(guarantee.as_document(1e-5))
    )


def test_every_rule_is_looked_at() -> None:
    assert set(LOCAL) == {rule.tag for rule in RULE_NAMES.kinds}
    assert not RULE_NAMES.missing


@pytest.mark.parametrize("name", OF_EVERY_KIND)
def test_the_note_stays_with_the_promise_of_a_file_and_of_a_run(name: str) -> None:
    protocol = OF_EVERY_KIND[name]
    ledger = [RoundCharged(round=t, clients=(0, 1)) for t in range(2)]
    silent = [*ledger, Missed(round=1, clients=(1,), reasons=("it is not connected",))]
    for view in all_views(protocol.clients):
        for unit in ("record", "client"):
            assert says_it(certify(protocol, view, unit, sizes=SIZES))
    for view in (View.SERVER, View.ROUNDS):
        assert says_it(certify_run(protocol, ledger, view, sizes=SIZES))
        assert says_it(certify_run(protocol, silent, view, sizes=SIZES))
        assert all(map(says_it, certify_clients(protocol, silent, view, sizes=SIZES).values()))


def test_what_holds_without_a_voucher_says_it_too() -> None:
    guarantee = certify(OF_EVERY_KIND["vouched"], "final")
    for one in (guarantee, guarantee.unconditional):
        assert one is None or says_it(one)


def test_noise_that_was_found_for_a_promise_comes_with_the_note() -> None:
    found = calibrate(federation("fedavg"), "server", epsilon=5.0)
    assert says_it(found.guarantee)
    assert "assigned to clients by label" in json.dumps(found.as_document())


@pytest.mark.parametrize(
    "command",
    [
        ["certify"],
        ["calibrate", "--epsilon", "5"],
        ["audit", "--set", "noise.sigma=0.05", "--trainings", "200", "--workers", "1"],
    ],
)
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_the_command_line_says_it(tmp_path, monkeypatch, capfd, command, more) -> None:
    from sordino.protocol import dumps

    monkeypatch.chdir(tmp_path)
    path = tmp_path / "dealt.toml"
    path.write_text(dumps(federation("fedavg")))
    assert run([command[0], str(path), *command[1:], *more]) == 0
    assert "assigned to clients by label" in " ".join(capfd.readouterr().out.split())


@pytest.mark.parametrize(("kind", "said"), [(Shards(per_client=2), True), (Iid(), False)])
def test_shards_say_it_and_even_dealing_does_not(kind, said) -> None:
    protocol = federation("fedavg", data=replace(DEALT, partition=kind))
    assert says_it(certify(protocol, "server")) == said


def test_a_column_that_assigns_records_is_named_with_the_guarantee() -> None:
    data = Data(name="wards.csv", partition=ByColumn(column="{ward}"), sizes=list(SIZES))
    found = certify(federation("fedavg", data=data), "server")
    said = (
        "assigned to clients by the column '{ward}'. The guarantee takes this assignment as fixed"
    )
    assert said in found.sentence(1e-5)
    assert said in json.dumps(found.as_document(1e-5))

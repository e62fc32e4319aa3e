"""A client answers what it agreed to and nothing else, whatever the server asks; every attempt is in its own ledger."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from flwr.app import Error, Message, RecordDict

from sordino import (
    Assumptions,
    Attention,
    Bezier,
    ClientBudget,
    Constant,
    Custom,
    Dataset,
    Gaussian,
    Poisson,
    Protocol,
    UserError,
    train,
)
from sordino.engines.choice import SuperLink
from sordino.federation.setup import prepare
from sordino.flower import client_store, local_work
from sordino.flower.client_store import ClientStore
from sordino.flower.messages import request_message
from sordino.flower.server_app import make_strategy
from sordino.flower.upload_requests import HELPER, MODEL, Request
from sordino.protocol import dumps, override_keys
from sordino.protocol.arithmetic import state_integers
from sordino.protocol.version import own_version
from tests.flower.local import LocalGrid, agreed, plan, settings_of

SECURE = Gaussian(sigma=0.05, secure=True)


class Server:
    """One client's view of a server that may ask for anything."""

    def __init__(self, folder: Path, protocol: Protocol, **terms: object) -> None:
        self.store = agreed(folder / "client-0", 0, protocol, **terms)
        self.grid, self.protocol = LocalGrid(folder), protocol
        self.model = prepare(protocol).initial_weights()

    def ask(
        self,
        round: int = 0,
        *,
        protocol: Protocol | None = None,
        attempt: int = 0,
        training: str = "one",
        **changes,
    ) -> Message:
        asked = protocol if protocol is not None else self.protocol
        arrays = {
            MODEL: changes.pop("model", self.model),
            **({HELPER: changes.pop("helper")} if "helper" in changes else {}),
        }
        options = {"client": 0, "round": round, "attempt": attempt, "training": training, **changes}
        request = Request(protocol=dumps(state_integers(asked)), arrays=arrays, **options)
        return self.send(request_message(request, node=1000, ttl=60))

    def send(self, message: Message) -> Message:
        message.metadata.__dict__["_message_id"] = "question"
        return self.grid.answer(0, message)

    def upload(self, *arguments, **options) -> np.ndarray:
        reply = self.ask(*arguments, **options)
        assert reply.has_content(), reply.error
        return reply.content["upload"]["vector"].numpy()

    def refusal(self, *arguments, **options) -> str:
        """Ask, be refused, and find the reason in the client's ledger, which is not charged."""
        paid, before = self.store.rounds_paid, len(self.store.refusals)
        reply = self.ask(*arguments, **options)
        assert reply.has_error(), "it answered"
        assert self.store.rounds_paid == paid
        assert len(self.store.refusals) == before + 1
        assert reply.error.reason == f"it refused: {self.store.refusals[-1].reason}"
        return self.store.refusals[-1].reason


@pytest.fixture
def server(tmp_path) -> Server:
    return Server(tmp_path, plan(noise=SECURE, rounds=10))


CHANGES = {
    "noise.sigma=0.01": "noise.sigma = 0.01",
    "local.steps=4": "local.steps = 4",
    "local.clip=2.0": "local.clip = 2.0",
    "local.batch=7": "local.batch = 7",
    "local.schedule.rate=0.4": "local.schedule.rate = 0.4",
    "local.clip-target=update": "local.clip-target = 'update'",
    "federation.rounds=11": "federation.rounds = 11",
    "federation.participation={poisson=0.5}": "federation.participation",
    "federation.personalization=identity": "federation.personalization = 'identity'",
    "noise.where=server": "noise.where = 'server'",
    "noise.secure=false": "noise.secure = False",
    "noise.mechanism=laplace": "noise.mechanism = 'laplace'",
    "model.name=logistic": "model.name = 'logistic'",
    "data.records=30": "data.records = 30",
}


def changed(protocol: Protocol, change: str) -> Protocol:
    sets = (
        [change]
        if change != "noise.mechanism=laplace"
        else ["noise={mechanism='laplace', scale=0.05, secure=true}"]
    )
    return override_keys(protocol, sets)


@pytest.mark.parametrize("change", CHANGES)
def test_a_weaker_protocol_than_agreed_is_refused_at_once(server, change) -> None:
    assert CHANGES[change] in server.refusal(protocol=changed(server.protocol, change))


@pytest.mark.parametrize("change", CHANGES)
def test_a_protocol_that_is_changed_in_a_later_round_is_refused(server, change) -> None:
    server.upload(0)
    assert CHANGES[change] in server.refusal(1, protocol=changed(server.protocol, change))
    server.upload(1)


def test_more_noise_and_fewer_rounds_than_agreed_are_fine_but_not_in_the_middle(server) -> None:
    stronger = override_keys(server.protocol, ["noise.sigma=0.1", "federation.rounds=8", "seed=99"])
    server.upload(0, protocol=stronger)
    assert "changed" in server.refusal(1, protocol=override_keys(stronger, ["noise.sigma=0.2"]))
    assert "changed" in server.refusal(1)  # what was agreed is weaker than what was begun
    assert "past the last" in server.refusal(8, protocol=stronger)


def test_a_larger_scale_of_noise_of_somebodys_own_may_be_less_noise(tmp_path) -> None:
    own = plan(
        noise=Custom(factory="sordino.mechanisms.custom_noise:logistic", scale=0.05, secure=True)
    )
    assert "noise.scale = 0.1 was requested" in Server(tmp_path, own).refusal(
        protocol=override_keys(own, ["noise.scale=0.1"])
    )


def test_a_round_is_answered_once(server) -> None:
    server.upload(3)
    assert server.refusal(3) == "round 3 was answered already"
    assert server.refusal(3, model=server.model + 1) == "round 3 was answered already"
    assert server.refusal(3, attempt=1, model=server.model + 1) == "round 3 was answered already"
    server.upload(4)
    server.upload(5)
    assert "no longer kept" in server.refusal(3, attempt=2)
    assert "is over" in server.refusal(2)
    assert server.store.rounds_paid == [3, 4, 5]


def test_a_server_that_lost_an_upload_gets_the_very_same_one(server) -> None:
    first = server.upload(0)
    assert np.array_equal(server.upload(0, attempt=1), first)  # it says that it asks again
    assert server.refusal(0, attempt=1) == "round 0 was answered already"
    server.grid.begin(2)  # it was restarted
    assert np.array_equal(server.upload(0), first)
    assert server.refusal(0) == "round 0 was answered already"
    assert server.store.rounds_paid == [0]


def test_a_replayed_training_is_refused(server) -> None:
    server.upload(0)
    server.grid.begin(2)
    assert "this is another" in server.refusal(0, training="two")
    assert "this is another" in server.refusal(1, training="two")
    assert "client 2 was requested" in server.refusal(1, client=2)


def test_other_kinds_of_messages_are_refused(server) -> None:
    for kind in ("evaluate", "train"):  # scores on private records; nothing that is a request
        assert server.send(Message(RecordDict(), 1000, kind)).has_error()
    assert len(server.store.refusals) == 2
    assert server.store.rounds_paid == []


def test_a_query_says_who_it_is_and_nothing_else(server) -> None:
    reply = server.send(Message(RecordDict(), 1000, "query"))
    assert {name: dict(record) for name, record in reply.content.items()} == {
        "self": {
            "client": 0,
            "records": 40,
            "inputs": "",
            "version": own_version(),
            "identity": b"",
        }
    }


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Balle and Wang 2018: the smallest epsilon of a Gaussian mechanism with this signal, for a budget's oracle."""

    def excess(epsilon: float) -> float:
        return (
            norm.cdf(mu / 2 - epsilon / mu)
            - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
            - delta
        )

    return brentq(excess, 0.0, 500.0)


@pytest.mark.parametrize("epsilon", [12.0, 20.0])
def test_a_budget_is_never_passed(tmp_path, epsilon) -> None:
    """All records of a client are hidden: a round moves its upload by at most 2 V sum(rates) = 2 x 1 x 3 x 0.3, under sigma = 1."""
    server = Server(
        tmp_path,
        plan(noise=Gaussian(sigma=1.0, secure=True), rounds=50),
        epsilon=epsilon,
        unit="client",
    )
    allowed = max(n for n in range(1, 50) if gaussian_epsilon(1.8 * math.sqrt(n), 1e-5) <= epsilon)
    for round in range(allowed):
        server.upload(round)
    assert f"allows {allowed} rounds, and they are spent" in server.refusal(allowed)
    assert "and they are spent" in server.refusal(49)
    assert server.store.rounds_paid == list(range(allowed))


def test_a_server_that_names_less_noise_than_a_clients_budget_needs_gets_nothing(tmp_path) -> None:
    """Where the protocol gives a client a budget and a mechanism of its own, the run says how much noise that is: it may be a lie."""
    budgets = tuple(
        ClientBudget(id=client, epsilon=20.0, mechanism="gaussian") for client in range(3)
    )
    server = Server(tmp_path, plan(noise=SECURE, client=budgets))
    spelled_out = prepare(server.protocol).protocol
    noise = spelled_out.client[0].noise
    for share in (
        1e-6,
        0.5,
    ):  # with half of it, one round would cost more than the three that it was made for
        lie = replace(
            spelled_out,
            client=tuple(replace(budget, noise=share * noise) for budget in spelled_out.client),
        )
        assert "allows 0 rounds of this" in server.refusal(0, protocol=lie)
    for round in range(3):
        server.upload(round, protocol=spelled_out)


def test_a_client_that_lowers_its_budget_stops_at_once(tmp_path) -> None:
    server = Server(
        tmp_path,
        plan(noise=Gaussian(sigma=1.0, secure=True), rounds=50),
        epsilon=20.0,
        unit="client",
    )
    for round in range(3):
        server.upload(round)
    file = tmp_path / "client-0" / "agreement.toml"
    file.write_text(file.read_text().replace("epsilon = 20.0", "epsilon = 12.0"))
    assert "they are spent" in server.refusal(3)


def test_noise_at_the_server_protects_nobody_from_it(tmp_path) -> None:
    server = Server(
        tmp_path, plan(noise=Gaussian(sigma=5.0, where="server", secure=True)), epsilon=100.0
    )
    assert "allows 0 rounds" in server.refusal(0)


def test_noise_comes_from_the_clients_own_entropy(tmp_path) -> None:
    """Two clients with the same records and the same request: what they send differs by the noise of both, of the size agreed on."""
    protocol = plan(noise=Gaussian(sigma=0.5, secure=True))
    one, two = (Server(tmp_path / name, protocol) for name in ("one", "two"))
    difference = one.upload() - two.upload()
    deviation = float(np.std(difference)) / math.sqrt(2)
    assert deviation == pytest.approx(0.5, rel=0.05)
    seeded = Server(tmp_path / "three", plan(noise=Gaussian(sigma=0.5)))
    assert not np.array_equal(one.upload(1), seeded.upload(1))


def test_seeded_noise_is_for_clients_that_agreed_to_it(tmp_path) -> None:
    with pytest.raises(UserError, match="anyone who knows the seed can subtract the noise"):
        agreed(tmp_path / "a", 0, plan(), seeded=False)
    same = [Server(tmp_path / name, plan()).upload() for name in ("b", "c")]
    assert np.array_equal(*same)


def test_a_crash_between_the_charge_and_the_upload_costs_nothing_more(server, monkeypatch) -> None:
    def power_cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(local_work, "compute_upload", power_cut)
        with pytest.raises(KeyboardInterrupt):
            server.ask(0)
    assert server.store.rounds_paid == [0]
    server.upload(0)
    server.upload(1)
    assert server.store.rounds_paid == [0, 1]


def test_the_charge_is_on_disk_before_the_work_and_the_upload_before_it_is_sent(
    server, monkeypatch
) -> None:
    seen = []
    original = local_work.compute_upload

    def watched(*arguments):
        seen.append(ClientStore(server.store.folder).rounds_paid)
        return original(*arguments)

    monkeypatch.setattr(local_work, "compute_upload", watched)
    vector = server.upload(0)
    assert seen == [[0]]
    assert (server.store.folder / "answers" / "0.safetensors").exists()
    assert np.array_equal(server.upload(0, attempt=1), vector)
    assert len(seen) == 1


def test_only_local_work_waits_for_torch() -> None:
    """A node's program starts anew for every message; who it is and what it refuses it says without the seconds that torch takes."""
    names = ("flower_processes", "app_pinning", "client_app")
    code = (
        "".join(f"import sordino.flower.{name}\n" for name in names)
        + "import sys; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_goes_wrong_on_a_client_is_told_without_a_word_about_its_records(
    server, monkeypatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("record 17 is Jane Doe")

    monkeypatch.setattr(local_work, "compute_upload", broken)
    reply = server.ask(0)
    assert isinstance(reply.error, Error)
    assert reply.error.reason == "it failed; its own log says why"


@pytest.mark.parametrize(
    "model", [np.zeros(3, np.float32), np.zeros((), np.float32), "nan", "float64"], ids=str
)
def test_a_model_that_does_not_fit_is_not_trained_on(server, model) -> None:
    bad = server.model.copy()
    bad[0] = np.nan
    reply = server.ask(
        0,
        model=bad
        if str(model) == "nan"
        else server.model.astype(np.float64)
        if str(model) == "float64"
        else model,
    )
    assert reply.has_error()


def test_a_helper_that_does_not_fit_is_not_trained_on(tmp_path) -> None:
    server = Server(
        tmp_path, plan(noise=SECURE, rounds=9, personalization=Attention(own=0.4, pull=0.5))
    )
    server.upload(0)
    for round, helper in enumerate(
        [np.full_like(server.model, np.nan), server.model[:-1], server.model.astype(np.float64)],
        start=1,
    ):
        assert server.ask(round, helper=helper).has_error()
    server.upload(4, helper=server.model)


def test_a_rule_whose_clients_share_a_draw_is_refused_wherever_it_is_asked_for(tmp_path) -> None:
    """Machines that draw from their own entropy have no draw in common; whoever is told so is told what to change."""
    rule = Bezier(steps=3, batch=6, clip=1.0, schedule=Constant(rate=0.25))
    protocol = plan(local=rule, noise=SECURE, assumptions=Assumptions(smoothness=4.0))
    link = SuperLink(address="127.0.0.1:9", certificate=None)
    for ask in (
        lambda: train(protocol, folder=tmp_path / "run", engine="flower", superlink=link),
        lambda: make_strategy(settings_of(tmp_path / "run", protocol)).start(LocalGrid(tmp_path)),
        lambda: agreed(tmp_path / "client-0", 0, protocol),
    ):
        with pytest.raises(
            UserError, match=r'use local\.rule = "fedavg", or for a test noise\.secure = false'
        ):
            ask()
    assert list(tmp_path.iterdir()) == []


def test_who_takes_part_is_the_servers_to_draw_and_the_rounds_in_between_cost_nothing(
    tmp_path,
) -> None:
    server = Server(tmp_path, plan(noise=SECURE, rounds=10, participation=Poisson(rate=0.5)))
    for round in (0, 4, 7):
        server.upload(round)
    assert server.store.rounds_paid == [0, 4, 7]


def test_a_damaged_or_shortened_ledger_stops_the_client(server) -> None:
    server.upload(0)
    ledger = server.store.folder / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(lines[0] + lines[1].replace(b'"round":0', b'"round":5'))
    assert server.ask(1).has_error()


def test_an_agreement_is_made_once_for_a_client_of_the_protocol(tmp_path) -> None:
    agreed(tmp_path / "a", 0, plan())
    with pytest.raises(UserError, match="holds an agreement already"):
        agreed(tmp_path / "a", 0, plan())
    with pytest.raises(UserError, match="client 3 is none of the protocol's"):
        agreed(tmp_path / "b", 3, plan())


def test_an_app_that_was_not_agreed_to_waits_for_the_client_and_is_refused_all_the_same(
    server, monkeypatch
) -> None:
    """Written down without the folder, its line could cut off a charge that is being written."""
    monkeypatch.setattr(client_store, "REFUSAL_PATIENCE", 0.0)
    with server.store.hold_folder():
        assert "not agreed" in str(
            server.store.refuse_unheld("an app was sent that was not agreed to")
        )
    assert server.store.refusals == []
    assert "not agreed" in str(server.store.refuse_unheld("an app was sent that was not agreed to"))
    assert len(server.store.refusals) == 1


def test_refusals_do_not_fill_the_ledger(server, monkeypatch) -> None:
    monkeypatch.setattr(client_store, "LOGGED_REFUSALS", 3)
    for _ in range(6):
        assert server.ask(round=10**6).has_error()
    assert len(server.store.refusals) == 3
    server.upload(0)


@pytest.mark.parametrize(("size", "answered"), [(1e3, True), (8.4e14, False)])
def test_a_model_against_which_steps_are_rounded_is_not_trained_on(server, size, answered) -> None:
    """Clipped steps are added to it before the noise is: at 8e14 the numbers of float64 are 1/8 apart."""
    reply = server.ask(0, model=np.full_like(server.model, size))
    assert reply.has_content() == answered


def test_whether_a_client_answers_does_not_depend_on_its_records(tmp_path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32), np.arange(40) % 2
    x[0] = 3e38
    data = Dataset(
        name="own", x_train=x, y_train=y, x_test=x[1:9], y_test=y[1:9], classes=("a", "b")
    )
    one = replace(plan(), clients=1, data=None, model=None)
    assert (
        prepare(one, data=data, model=nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))).outputs == 2
    )

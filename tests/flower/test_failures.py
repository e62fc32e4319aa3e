"""A client that fails, lies or falls silent is named, skipped and charged; the run survives, and promises what was really hidden."""

import json
import math
import re

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from sordino import (
    Budget,
    Gaussian,
    Mean,
    Privacy,
    Run,
    SordinoError,
    UserError,
    certify,
    realised,
    resume,
    train,
)
from sordino.attacks.referee import Referee
from sordino.cli.main import run as sordino
from sordino.cli.progress import TrainingProgress
from sordino.federation.evaluation import evaluate_clients
from sordino.federation.round_metrics import RoundMetrics
from sordino.federation.store.run_folder import RunFolder
from sordino.federation.store.upload_archive import read_round
from sordino.flower.connected_clients import ConnectedClients
from sordino.flower.run_follower import FollowedRun
from sordino.privacy.guarantee import round_up
from sordino.privacy.ledger_lines import Missed, RoundCharged
from sordino.privacy.spending import certify_run
from sordino.report.price_tables import make_round_pricer, privacy_lines
from sordino.report.sink_feeder import SinkFeeder
from sordino.report.sinks import Sink
from tests.flower.local import LocalGrid, across, consortium, gone_on_with, plan
from tests.flower.test_enforcement import gaussian_epsilon


def replied(request: Message, **arrays: np.ndarray) -> Message:
    return Message(
        RecordDict({"upload": ArrayRecord({name: Array(array) for name, array in arrays.items()})}),
        reply_to=request,
    )


def vector_of(reply: Message) -> np.ndarray:
    return reply.content["upload"]["vector"].numpy()


def with_one(vector: np.ndarray, value: float) -> np.ndarray:
    vector = vector.copy()
    vector[3] = value
    return vector


def lying_header(request: Message, reply: Message) -> Message:
    """Says that it has the right shape, and holds another."""
    true = reply.content["upload"]["vector"]
    other = Array(np.zeros(7, np.float32))
    lie = Array(dtype=true.dtype, shape=true.shape, stype=true.stype, data=other.data)
    return Message(RecordDict({"upload": ArrayRecord({"vector": lie})}), reply_to=request)


def impossible_header(request: Message, reply: Message) -> Message:
    """Its bytes claim to be a million million numbers."""
    true = reply.content["upload"]["vector"]
    data = true.data.replace(str(vector_of(reply).size).encode(), b"9" * 12, 1)
    lie = Array(dtype=true.dtype, shape=true.shape, stype=true.stype, data=data)
    return Message(RecordDict({"upload": ArrayRecord({"vector": lie})}), reply_to=request)


TROUBLES = {
    "NaN": (lambda q, r: replied(q, vector=with_one(vector_of(r), math.nan)), "not finite"),
    "infinity": (lambda q, r: replied(q, vector=with_one(vector_of(r), math.inf)), "not finite"),
    "another shape": (lambda q, r: replied(q, vector=vector_of(r)[:-1]), "of shape"),
    "a table": (lambda q, r: replied(q, vector=vector_of(r)[None]), "of shape"),
    "a number": (lambda q, r: replied(q, vector=np.array(1.0, np.float32)), r"of shape \(\)"),
    "another type": (lambda q, r: replied(q, vector=vector_of(r).astype(np.float64)), "float64"),
    "another name": (lambda q, r: replied(q, weights=vector_of(r)), "under other names"),
    "one more array": (
        lambda q, r: replied(q, vector=vector_of(r), more=np.zeros(2, np.float32)),
        "under other names",
    ),
    "nothing": (lambda q, r: Message(RecordDict(), reply_to=q), "under other names"),
    "metrics": (
        lambda q, r: Message(RecordDict({"upload": MetricRecord({"loss": 1.0})}), reply_to=q),
        "under other names",
    ),
    "fifty megabytes": (
        lambda q, r: replied(q, vector=np.zeros(50_000_000 // 4, np.float32)),
        "of shape",
    ),
    "a lying header": (lying_header, "not what it says"),
    "an impossible header": (impossible_header, "cannot be unpacked"),
    "an error": (
        lambda q, r: Message(Error(2, "line one\nline \x1b[31mtwo" + "x" * 999), reply_to=q),
        r"line one line \[31mtwo",
    ),
    "silence": (lambda q, r: None, "did not answer within 0.2 s"),
}


@pytest.mark.slow
@pytest.mark.parametrize("trouble", TROUBLES)
def test_what_is_no_upload_is_skipped_and_its_sender_named_and_charged(trouble, tmp_path) -> None:
    protocol = plan(rounds=2)
    grid = consortium(tmp_path, protocol)
    made, reason = TROUBLES[trouble]
    grid.troubles = {
        1: lambda request, reply: (
            made(request, reply) if request.content["request"]["round"] == 0 else reply
        )
    }
    run = across(tmp_path / "run", protocol, grid, deadline=0.2)
    assert run.status == "finished"
    missed = [event for event in run.ledger if isinstance(event, Missed)]
    assert [(event.round, event.clients) for event in missed] == [(0, (1,))]
    assert np.array_equal(run.metrics["participants"], [2, 3])
    assert re.search(reason, missed[0].reasons[0])
    assert len(missed[0].reasons[0]) <= 200
    assert [event.clients for event in run.ledger if isinstance(event, RoundCharged)] == [
        (0, 1, 2)
    ] * 2


def test_the_model_of_a_short_round_is_the_mean_of_those_who_contributed(tmp_path) -> None:
    protocol = plan(rounds=1, aggregation=Mean(weights="records"))
    grid, sent = consortium(tmp_path, protocol), {}
    grid.troubles = {
        0: lambda request, reply: None,
        1: lambda request, reply: (sent.setdefault(1, vector_of(reply)), reply)[1],
        2: lambda request, reply: (sent.setdefault(2, vector_of(reply)), reply)[1],
    }
    run = across(tmp_path / "run", protocol, grid, deadline=0.2)
    model = np.concatenate([tensor.detach().numpy().ravel() for tensor in run.model.parameters()])
    assert np.allclose(model, (sent[1].astype(np.float64) + sent[2]) / 2, atol=1e-6)


def test_a_client_that_is_not_there_is_waited_for_once_and_comes_back(
    tmp_path, monkeypatch
) -> None:
    protocol, waited = plan(rounds=4), []
    original = ConnectedClients.wait
    monkeypatch.setattr(
        ConnectedClients,
        "wait",
        lambda self, wanted, seconds: (waited.append(set(wanted)), original(self, wanted, seconds))[
            1
        ],
    )
    grid = consortium(tmp_path, protocol)

    def leave(request: Message, reply: Message) -> Message:
        grid.offline = {2} if request.content["request"]["round"] < 2 else set()
        return reply

    grid.troubles = {0: leave}
    run = across(tmp_path / "run", protocol, grid)
    missed = [event for event in run.ledger if isinstance(event, Missed)]
    assert [(event.round, event.clients, event.reasons) for event in missed] == [
        (t, (2,), ("it is not connected",)) for t in (1, 2)
    ]
    assert waited == [
        {0, 1, 2},
        {0, 1, 2},
        {0, 1, 2},
        {0, 1},
        {0, 1},
    ]  # before the first round, and in every round


def test_nobody_answers_and_the_run_waits_for_a_resume(tmp_path) -> None:
    protocol = plan(rounds=2)
    grid = consortium(tmp_path, protocol)
    grid.troubles = dict.fromkeys(range(3), lambda request, reply: None)
    with pytest.raises(SordinoError, match="round 1 is not complete"):
        across(tmp_path / "run", protocol, grid, deadline=0.2)
    grid.troubles = {}
    grid.begin(2)
    run = gone_on_with(tmp_path / "run", grid)
    assert run.status == "finished"
    assert np.array_equal(run.metrics["participants"], [3, 3])


@pytest.fixture
def short(tmp_path) -> Run:
    """Two of three clients fall silent in the second of two rounds."""
    protocol = plan(rounds=2, noise=Gaussian(sigma=1.0, secure=True))
    grid = consortium(tmp_path, protocol)
    silent = lambda request, reply: None if request.content["request"]["round"] == 1 else reply  # noqa: E731
    grid.troubles = {1: silent, 2: silent}
    return across(tmp_path / "run", protocol, grid, deadline=0.2)


def test_the_guarantee_counts_those_who_contributed(short) -> None:
    """Hiding all of a client: a round of n participants costs mu = 1.8 / sqrt(n), so the planned 1.8 sqrt(2/3) becomes 1.8 sqrt(4/3).
    Fresh noise is of integers, whose grid costs 1.3e-5 of that."""
    planned = certify(short.protocol, "rounds", "client", sizes=short.sizes)
    assert planned.mu == pytest.approx(1.8 * math.sqrt(2 / 3), rel=2e-5)
    known = {"sizes": short.sizes, "delta": 1e-5}
    assert certify_run(
        short.protocol, short.ledger, "rounds", "client", **known
    ).mu == pytest.approx(1.8 * math.sqrt(4 / 3), rel=2e-5)
    per_client = realised(short.protocol, short.ledger, "rounds", "client", sizes=short.sizes)
    assert [guarantee.mu for guarantee in per_client.values()] == [
        pytest.approx(1.8 * math.sqrt(4 / 3), rel=2e-5)
    ] * 3
    # Who sees uploads sees no less of a client because others are silent, and no more.
    assert certify_run(
        short.protocol, short.ledger, "server", "client", **known
    ).mu == pytest.approx(1.8 * math.sqrt(2), rel=2e-5)


def test_everything_that_is_shown_of_a_run_says_so(short, capfd) -> None:
    honest = certify_run(short.protocol, short.ledger, "rounds", sizes=short.sizes).epsilon(1e-5)
    plain = certify(short.protocol, "rounds", sizes=short.sizes).epsilon(1e-5)
    assert honest > 1.1 * plain
    assert sordino(["certify", str(short.folder), "--view", "rounds", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)["guarantees"][0]["epsilon"]
    assert shown == pytest.approx(honest)
    assert f"rounds {round_up(honest)}" in privacy_lines(short)[1]


@pytest.fixture
def seen_by_models(tmp_path) -> Run:
    """Two of three clients fall silent in the second of three rounds; the headline is about who sees models, and about a whole client."""
    budget = Privacy(budget=Budget(epsilon=100.0, view="rounds", unit="client"))
    protocol = plan(rounds=3, noise=Gaussian(sigma=1.0, secure=True), privacy=budget)
    grid = consortium(tmp_path, protocol)
    silent = lambda request, reply: None if request.content["request"]["round"] == 1 else reply  # noqa: E731
    grid.troubles = {1: silent, 2: silent}
    return across(tmp_path / "run", protocol, grid, deadline=0.2)


# What was spent after each of its rounds: 1.8 / sqrt(n) for a round to which n contributed, composed.
SPENT = [
    gaussian_epsilon(1.8 * math.sqrt(total), 1e-5)
    for total in (1 / 3, 1 / 3 + 1, 1 / 3 + 1 + 1 / 3)
]


def rounds_of(run: Run) -> list[RoundMetrics]:
    return [RoundMetrics(**row) for row in RunFolder(run.folder).metrics()]


def test_the_live_display_shows_the_price_of_those_who_contributed(seen_by_models, capfd) -> None:
    run, begun = (
        seen_by_models,
        FollowedRun(protocol=seen_by_models.protocol, sizes=np.array(seen_by_models.sizes)),
    )
    with TrainingProgress() as progress:
        progress.start(rounds=3, done=0, spent=make_round_pricer(begun, run.folder))
        for metrics in rounds_of(run):
            progress.advance(metrics)
    shown = [
        float(found)
        for found in re.findall(r"epsilon <= ([\d.]+) \(rounds\)", capfd.readouterr().err)
    ]
    assert len(shown) == 3
    for seen, spent in zip(shown, SPENT, strict=True):
        assert spent <= seen <= 1.02 * spent


def test_sinks_get_the_price_of_those_who_contributed(seen_by_models) -> None:
    run, begun = (
        seen_by_models,
        FollowedRun(protocol=seen_by_models.protocol, sizes=np.array(seen_by_models.sizes)),
    )
    found: dict[int, float] = {}

    class Notes(Sink):
        def open(self, folder, protocol) -> int:
            return 0

        def log(self, step, values) -> None:
            found.update({step: values["epsilon"]} if "epsilon" in values else {})

        def close(self, status) -> None:
            pass

    logging = SinkFeeder([Notes()], print)
    logging.start(begun, run.folder)
    for metrics in rounds_of(run):
        logging.advance(metrics)
    logging.end(run)
    assert found == {
        step: pytest.approx(spent, rel=1e-4) for step, spent in enumerate(SPENT, start=1)
    }


def test_uploads_that_are_kept_are_those_that_came_with_the_names_of_who_sent_them(
    tmp_path,
) -> None:
    protocol = plan(rounds=2)
    alone = train(protocol, folder=tmp_path / "alone", engine="torch", workers=1, keep_uploads=1)
    grid = consortium(tmp_path, protocol)
    grid.troubles = {1: lambda request, reply: None}
    run = across(tmp_path / "run", protocol, grid, deadline=0.2, **{"keep-uploads": 1})
    first, whole = read_round(run.folder, 0), read_round(alone.folder, 0)
    assert first.clients.tolist() == [0, 2]
    assert np.array_equal(first.uploads, whole.uploads[[0, 2]])
    assert np.array_equal(first.model, whole.model)
    assert read_round(run.folder, 1).clients.tolist() == [0, 2]


def test_a_run_across_machines_knows_who_is_to_sign_it(tmp_path) -> None:
    """The key is with the coordinator, in another process than the run."""
    protocol = plan(rounds=1)
    run = across(tmp_path / "run", protocol, consortium(tmp_path, protocol), signer="ed25519-12")
    RunFolder(run.folder).note(status="unfinished")
    with pytest.raises(UserError, match="to be signed by ed25519-12"):
        resume(run.folder)


def test_what_only_the_clients_know_is_not_made_up_at_the_server(tmp_path) -> None:
    """Attacks are scored by clients' records, and clients told apart by their labels: neither is on the server's machine."""
    protocol = plan(rounds=1)
    run = across(tmp_path / "run", protocol, consortium(tmp_path, protocol), **{"keep-uploads": 1})
    with pytest.raises(UserError, match="across machines: its clients' records are with them"):
        Referee(run)
    with pytest.raises(UserError, match="only a client itself knows"):
        evaluate_clients(run)


def test_a_budget_against_who_sees_models_holds_when_clients_fall_silent(tmp_path) -> None:
    """Two rounds of three clients fit; with two of them silent in the second its model would not, so it is never made."""
    epsilon = (
        certify(plan(rounds=2, noise=Gaussian(sigma=1.0)), "rounds", "client").epsilon(1e-5) * 1.01
    )
    budget = Budget(epsilon=epsilon, view="rounds", unit="client")
    protocol = plan(rounds=2, noise=Gaussian(sigma=1.0), privacy=Privacy(budget=budget))
    grid = consortium(tmp_path, protocol)
    silent = lambda request, reply: None if request.content["request"]["round"] == 1 else reply  # noqa: E731
    grid.troubles = {1: silent, 2: silent}
    run = across(tmp_path / "run", protocol, grid, deadline=0.2)
    assert run.status == "budget"
    assert len(run.metrics["round"]) == 1
    assert "the model of round 2 would have passed the budget" in run.facts["reason"]
    assert (
        certify_run(run.protocol, run.ledger, "rounds", "client", sizes=run.sizes).epsilon(1e-5)
        <= epsilon
    )
    whole = across(tmp_path / "whole", protocol, consortium(tmp_path / "again", protocol))
    assert whole.status == "finished"


def test_a_client_that_is_another_one_now_is_found_under_its_new_node(tmp_path) -> None:
    """After a restart a machine has another node id, and the old one stays listed for a while and never answers."""

    class Restarted(LocalGrid):
        moved = False

        def get_node_ids(self):
            ghosts = [1001] if self.moved else []
            return [
                node + 5000 if self.moved and node == 1001 else node
                for node in super().get_node_ids()
            ] + ghosts

        def push_messages(self, messages):
            kept = []
            for message in messages:
                node = message.metadata.dst_node_id
                if node == 1001 and self.moved:
                    kept.append(self.unanswered(message))
                    continue
                if node > 5000:
                    message.metadata.__dict__["_dst_node_id"] = node - 5000
                kept.extend(super().push_messages([message]))
            return kept

        def unanswered(self, message) -> str:
            message.metadata.__dict__["_message_id"] = f"lost-{id(message)}"
            return message.metadata.message_id

    protocol = plan(rounds=2)
    consortium(tmp_path, protocol)
    grid = Restarted(tmp_path)

    def restart(request: Message, reply: Message) -> Message:
        grid.moved = True
        return reply

    grid.troubles = {2: restart}
    run = across(tmp_path / "run", protocol, grid)
    assert run.status == "finished"
    assert np.array_equal(run.metrics["participants"], [3, 3])

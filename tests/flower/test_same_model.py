"""Everything that the embedded engine trains gives the same model across machines, also resumed, with clients' states on their disks."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino import (
    Assumptions,
    Attention,
    Bezier,
    ByColumn,
    ClientBudget,
    Constant,
    Data,
    DpSgd,
    FedAvg,
    FedProx,
    Gaussian,
    Identity,
    Interpolate,
    Laplace,
    Mean,
    Median,
    Model,
    NoisySgd,
    Poisson,
    Scaffold,
    ServerAdam,
    UserError,
    train,
)
from sordino.federation.store.run_folder import RunFolder
from sordino.federation.training import Incomplete
from sordino.flower.local_work import prepare_client
from sordino.protocol import AdaptiveClip
from tests.flower.local import LocalGrid, across, agreed, consortium, gone_on_with, plan, weights

STEPS = {"steps": 3, "batch": 6, "clip": 1.0, "schedule": Constant(rate=0.3)}
ADAM = NoisySgd(steps=3, batch=6, clip=0.5, schedule=Constant(rate=0.05), optimizer="adam")
STEP_NOISE = Gaussian(multiplier=0.5)
OWN = tuple(
    ClientBudget(id=client, epsilon=2000.0 * (1 + client), delta=1e-5, mechanism=kind)
    for client, kind in enumerate(("gaussian", "laplace", "staircase"))
)
KINDS = {
    "fedavg": {},
    "fedprox": {"local": FedProx(**STEPS, proximal=0.1)},
    "weighted mean": {"aggregation": Mean(weights="records", mixing=0.5)},
    "median": {"aggregation": Median()},
    "server noise": {"noise": Gaussian(sigma=0.05, where="server")},
    "scaffold": {"local": Scaffold(**STEPS), "participation": Poisson(rate=0.6)},
    "prifedsync": {"local": ADAM, "noise": STEP_NOISE, "personalization": Interpolate(alpha=0.3)},
    "attention": {
        "local": ADAM,
        "noise": STEP_NOISE,
        "personalization": Attention(own=0.4),
        "participation": Poisson(rate=0.6),
    },
    "pulled personal models": {
        "personalization": Identity(pull=0.5),
        "participation": Poisson(rate=0.6),
    },
    "udp-fl": {"client": OWN, "penalty": True},
    "laplace in steps": {
        "local": ADAM,
        "noise": Laplace(scale=0.5),
        "model": Model(name="mlp", parameters=2410),
    },
    "harmonizer in steps": {
        "local": ADAM,
        "noise": STEP_NOISE,
        "client": OWN,
        "model": Model(name="mlp", parameters=2410),
    },
    "shuffler": {"channel": "shuffler"},
    "dp-sgd": {
        "local": DpSgd(batch=6, clip=1.0, schedule=Constant(rate=0.3)),
        "noise": STEP_NOISE,
        "server": ServerAdam(rate=0.02),
    },
    "a clip of lots that follows": {
        "local": DpSgd(batch=6, clip=1.0, schedule=Constant(rate=0.3), adaptive=AdaptiveClip()),
        "noise": STEP_NOISE,
    },
    "a clip that follows": {
        "local": FedProx(**STEPS, proximal=0.1, clip_target="update", adaptive=AdaptiveClip()),
        "server": ServerAdam(rate=0.02),
    },
    "a clip that follows behind a shuffler": {
        "local": FedAvg(**STEPS, clip_target="update", adaptive=AdaptiveClip()),
        "channel": "shuffler",
    },
    "bezier": {
        "local": Bezier(**{**STEPS, "schedule": Constant(rate=0.25)}),
        "assumptions": Assumptions(smoothness=4.0),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_across_machines_and_embedded_end_with_the_same_model(kind, tmp_path) -> None:
    protocol = plan(**KINDS[kind])
    alone = train(protocol, folder=tmp_path / "alone", engine="torch", workers=1)
    run = across(tmp_path / "across", protocol, consortium(tmp_path, protocol))
    assert run.status == alone.status == "finished"
    assert weights(run) == weights(alone)
    # The first line seals the data, of which a server across machines knows less.
    assert run.ledger[1:] == alone.ledger[1:]


@pytest.mark.parametrize(
    "kind",
    ["fedavg", "fedprox", "prifedsync", "attention", "scaffold", "dp-sgd", "a clip that follows"],
)
def test_a_run_whose_server_died_in_a_round_goes_on_to_the_same_model(kind, tmp_path) -> None:
    protocol = plan(**KINDS[kind], rounds=4)
    alone = train(protocol, folder=tmp_path / "alone", engine="torch", workers=1)
    grid = consortium(tmp_path, protocol)

    class Died(Exception):
        pass

    def die_in_round_2(request, reply):
        if request.content["request"]["round"] == 2:
            raise Died  # after the client has answered
        return reply

    grid.troubles = dict.fromkeys(range(3), die_in_round_2)
    with pytest.raises(Died):
        across(tmp_path / "across", protocol, grid)
    run = gone_on_with(tmp_path / "across", LocalGrid(tmp_path, run=2))
    assert run.status == "finished"
    assert weights(run) == weights(alone)
    # The first line seals the data, of which a server across machines knows less.
    assert run.ledger[1:] == alone.ledger[1:]


def test_a_client_prices_its_lots_by_the_records_of_all(tmp_path) -> None:
    """A client with most of the records is drawn from as often as the file says, not more rarely."""
    from sordino.privacy.participation_caps import find_capped_rounds

    local = DpSgd(batch=6, clip=1.0)
    noise = Gaussian(multiplier=5.0)
    uneven = plan(
        rounds=400, local=local, noise=noise, data=Data(name="digits", sizes=(20, 20, 80))
    )
    even = plan(rounds=400, local=local, noise=noise, data=Data(name="digits", records=40))
    budget = ClientBudget(id=2, epsilon=2.0)
    rounds = find_capped_rounds(uneven, budget, 80, ())
    assert 0 < rounds < 400
    assert rounds == find_capped_rounds(even, budget, 40, ())


def test_lots_need_sizes_that_everybody_knows(tmp_path) -> None:
    from sordino.flower.agreement import refuse_unsupported

    protocol = plan(local=DpSgd(batch=6, clip=1.0), noise=STEP_NOISE, data=Data(name="digits"))
    with pytest.raises(UserError, match=r"data.records or data.sizes"):
        refuse_unsupported(protocol)


def test_what_clients_keep_never_leaves_them(tmp_path) -> None:
    protocol = plan(**KINDS["prifedsync"])
    grid = consortium(tmp_path, protocol)
    sent = []
    grid.troubles = dict.fromkeys(range(3), lambda request, reply: (sent.append(reply), reply)[1])
    run = across(tmp_path / "across", protocol, grid)
    assert {name for reply in sent for name in reply.content} == {"upload"}
    assert {name for reply in sent for name in reply.content["upload"]} == {"vector"}
    assert run.personal == ()
    state, _ = RunFolder(run.folder).load_checkpoint()
    assert state is not None
    assert all(dict(kept) == {} for kept in state.clients.values())


def test_behind_a_shuffler_the_loop_never_sees_who_sent_what(tmp_path, monkeypatch) -> None:
    from sordino.flower.engine import FlowerEngine

    seen = []
    original = FlowerEngine.train

    def watched(self, task):
        uploads = list(original(self, task))
        seen.extend(uploads)
        return iter(uploads)

    monkeypatch.setattr(FlowerEngine, "train", watched)
    protocol = plan(channel="shuffler", rounds=2)
    across(tmp_path / "across", protocol, consortium(tmp_path, protocol))
    assert len(seen) == 6
    assert {upload.client for upload in seen} == {-1}


def test_fresh_noise_hides_the_order_of_the_clients_from_the_loop(tmp_path, monkeypatch) -> None:
    """Uploads of six clients who send their own number come in every order alike, so not always in that of the clients."""
    from sordino.flower.engine import FlowerEngine

    orders = []

    class Bare:
        _make_uploads = FlowerEngine._make_uploads
        _shuffle = FlowerEngine._shuffle

    bare = Bare()
    protocol = plan(channel="shuffler", noise=Gaussian(sigma=0.05, secure=True))
    bare._setup = type("Setup", (), {"protocol": protocol, "release": protocol.release})()
    for _ in range(200):
        uploads = bare._make_uploads([(client, np.array([client])) for client in range(6)])
        orders.append(tuple(int(upload.vector[0]) for upload in uploads))
    assert len(set(orders)) > 100
    firsts = [sum(order[0] == client for order in orders) for client in range(6)]
    assert min(firsts) > 5


@pytest.mark.slow
def test_a_round_from_which_uploads_are_missing_is_repeated_where_the_protocol_says_so(
    tmp_path,
) -> None:
    protocol = plan(missing="repeat")
    alone = train(protocol, folder=tmp_path / "alone", engine="torch", workers=1)
    grid = consortium(tmp_path, protocol)
    silences = iter([True, True])
    grid.troubles = {1: lambda request, reply: None if next(silences, False) else reply}
    run = across(tmp_path / "across", protocol, grid, deadline=0.3)
    assert weights(run) == weights(alone)


@pytest.mark.slow
def test_a_round_that_needs_everyone_waits_for_everyone_who_was_lost(tmp_path) -> None:
    protocol = plan(missing="repeat")
    alone = train(protocol, folder=tmp_path / "alone", engine="torch", workers=1)

    class Flaky(LocalGrid):
        looks = 0

        def get_node_ids(self):
            self.looks += 1
            self.offline = (
                {2} if 3 <= self.looks < 9 else set()
            )  # lost in the second round, for longer than patience
            return super().get_node_ids()

    consortium(tmp_path, protocol)
    run = across(tmp_path / "across", protocol, Flaky(tmp_path), patience=0.5)
    assert weights(run) == weights(alone)


def test_a_round_that_stays_incomplete_stops_the_run_until_it_is_resumed(tmp_path) -> None:
    protocol = plan(missing="repeat")
    alone = train(protocol, folder=tmp_path / "alone", engine="torch", workers=1)
    grid = consortium(tmp_path, protocol)
    grid.troubles = {1: lambda request, reply: None}
    with pytest.raises(
        Incomplete, match=r"round 1 is not complete\. client 1: it did not answer within 0\.2 s"
    ):
        across(tmp_path / "across", protocol, grid, deadline=0.2)
    assert (
        len(
            [
                message
                for client, message in grid.asked
                if client == 1 and message.metadata.message_type == "train"
            ]
        )
        == 3
    )
    assert weights(gone_on_with(tmp_path / "across", LocalGrid(tmp_path, run=2))) == weights(alone)


def test_clients_with_files_of_their_own_train_what_one_file_by_column_would(tmp_path) -> None:
    """Three hospitals of different sizes: one file with a column, or three files and a server that has test records alone."""
    generator, sizes = np.random.default_rng(0), (40, 55, 70)
    x = generator.normal(size=(sum(sizes), 8)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
    test = {"x_test": x[:30], "y_test": y[:30]}
    hospital = np.repeat([0, 1, 2], sizes)
    np.savez(tmp_path / "all.npz", x_train=x, y_train=y, column_hospital=hospital, **test)
    np.savez(tmp_path / "public.npz", x_train=x[:2], y_train=np.array([0, 1]), **test)
    weighted = {"aggregation": Mean(weights="records"), "model": Model(name="mlp")}
    joint = plan(
        data=Data(name=str(tmp_path / "all.npz"), partition=ByColumn(column="hospital"), classes=2),
        **weighted,
    )
    alone = train(joint, folder=tmp_path / "alone", engine="torch", workers=1)
    protocol = plan(data=Data(name=str(tmp_path / "public.npz"), classes=2), **weighted)
    for client in range(3):
        own = hospital == client
        np.savez(tmp_path / f"{client}.npz", x_train=x[own], y_train=y[own], **test)
        agreed(
            tmp_path / f"client-{client}",
            client,
            protocol,
            data=str(tmp_path / f"{client}.npz"),
            records=int(own.sum()),
        )
    run = across(tmp_path / "across", protocol, LocalGrid(tmp_path))
    assert run.sizes == sizes
    assert weights(run) == weights(alone)


def test_a_client_whose_records_are_not_as_many_as_it_said_does_not_train(tmp_path) -> None:
    """The coordinator does not use it, and it would not answer either."""
    protocol = plan(rounds=1, clients=1)
    client = agreed(tmp_path / "client-0", 0, protocol, records=39)
    with pytest.raises(UserError, match="it says it has 39 records, and the protocol 40"):
        across(tmp_path / "across", protocol, LocalGrid(tmp_path))
    with pytest.raises(UserError, match="there are 40 records; 39 were agreed to"):
        prepare_client(protocol, client.agreement)

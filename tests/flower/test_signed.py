"""Only the coordinator is answered, a client is who its key says, and a charge is one upload: attacks that once worked."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from sordino import Data, Gaussian, Model, Poisson, Protocol, SordinoError, UserError
from sordino.federation.setup import prepare
from sordino.flower import local_work, reply_collection
from sordino.flower.agreement import Agreement, describe_weakening, read_agreement, write_agreement
from sordino.flower.certificates import write_certificates, write_key
from sordino.flower.client_folder import holds_agreement
from sordino.flower.client_keys import add_clients, assign_clients, fingerprint_of_file
from sordino.flower.client_store import ClientStore
from sordino.flower.connected_clients import ConnectedClients, Identities
from sordino.flower.messages import SIGNED, introduction_request, request_message
from sordino.flower.signing import COORDINATOR, COORDINATOR_KEY, Signer
from sordino.flower.upload_requests import MODEL, Request
from sordino.protocol import dumps
from sordino.protocol.arithmetic import state_integers
from tests.flower.local import LocalGrid, across, agreed, consortium, gone_on_with, plan

SECURE = Gaussian(sigma=0.05, secure=True)
RUN = 1


class Attacked:
    """One client that agreed to a coordinator's authority, and whoever reaches it."""

    def __init__(self, folder: Path, protocol: Protocol, **terms: object) -> None:
        self.certificates = folder / "certificates"
        write_certificates(self.certificates, ["localhost"])
        authority = str(self.certificates / "ca.crt")
        self.store = agreed(
            folder / "client-0", 0, protocol, certificate=authority, parameters=2410, **terms
        )
        self.grid = LocalGrid(folder, run=RUN)
        self.protocol = protocol
        self.model = prepare(protocol).initial_weights()
        self.signer: Signer | None = Signer.read(self.certificates)

    def message(self, round: int = 0, *, run: int = RUN, **changes) -> Message:
        arrays = {MODEL: changes.pop("model", self.model)}
        options = {"client": 0, "round": round, "attempt": 0, "training": "one", **changes}
        request = Request(protocol=dumps(state_integers(self.protocol)), arrays=arrays, **options)
        return request_message(request, node=1000, ttl=60, signer=self.signer, run=str(run))

    def send(self, message: Message) -> Message:
        message.metadata.__dict__["_message_id"] = "question"
        return self.grid.answer(0, message)

    def ask(self, round: int = 0, **changes) -> Message:
        return self.send(self.message(round, **changes))

    def upload(self, round: int = 0, **changes) -> np.ndarray:
        reply = self.ask(round, **changes)
        assert reply.has_content(), reply.error
        return reply.content["upload"]["vector"].numpy()

    def refusal(self, reply: Message) -> str:
        """The reason of a refusal, after which the client is as it was but for its list of refusals."""
        assert reply.has_error(), "it answered"
        assert self.store.rounds_paid == []
        assert not (self.store.folder / "accepted.json").exists()
        assert list((self.store.folder / "answers").iterdir()) == []
        return reply.error.reason


@pytest.fixture
def client(tmp_path) -> Attacked:
    return Attacked(tmp_path, plan(noise=SECURE, rounds=10))


def test_the_coordinator_is_answered(client) -> None:
    assert client.upload(0).shape == client.model.shape
    reply = client.send(introduction_request(node=1000, signer=client.signer, run=str(RUN)))
    assert dict(reply.content["self"])["client"] == 0


def test_an_outsider_who_starts_the_agreed_app_gets_nothing_and_spends_nothing(client) -> None:
    client.signer = None
    assert "not signed by the coordinator" in client.refusal(client.ask(0))
    assert "not signed" in client.refusal(client.send(introduction_request(node=1000)))


def test_a_coordinator_of_another_consortium_is_not_answered(client, tmp_path) -> None:
    write_certificates(tmp_path / "theirs", ["localhost"])
    client.signer = Signer.read(tmp_path / "theirs")
    assert "not signed by the coordinator" in client.refusal(client.ask(0))


def test_the_superlinks_own_certificate_signs_no_requests(client) -> None:
    """Its key lies where a TLS server needs it, and is certified by the same authority."""
    key = serialization.load_pem_private_key(
        (client.certificates / "server.key").read_bytes(), None
    )
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificate = (client.certificates / "server.pem").read_bytes()
    client.signer = Signer(certificate=certificate, key=key)
    assert "not for requests" in client.refusal(client.ask(0))


@pytest.mark.parametrize("change", ["round", "model", "attempt", "training", "run"])
def test_a_signature_is_of_one_request_and_of_nothing_else(client, change) -> None:
    signed = client.message(0).content[SIGNED]
    changes = {
        "round": {"round": 1},
        "model": {"model": client.model + 1},
        "attempt": {"attempt": 1},
        "training": {"training": "two"},
        "run": {"run": 2},
    }
    other = client.message(**changes[change])
    if change == "run":
        client.grid.begin(2)
    other.content[SIGNED] = signed
    assert "signature is of something else" in client.refusal(client.send(other))


def test_an_expired_certificate_is_not_taken(tmp_path, monkeypatch) -> None:
    import datetime

    from sordino.flower import signing

    client = Attacked(tmp_path, plan(noise=SECURE))
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=400)
    clock = SimpleNamespace(now=lambda zone: later)
    monkeypatch.setattr(signing, "datetime", SimpleNamespace(datetime=clock, UTC=datetime.UTC))
    assert "not valid today" in client.refusal(client.ask(0))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"round": 999}, "past the last one"),
        ({"model": np.zeros(3, np.float32)}, "expected are 2410 finite float32 numbers"),
        ({"model": np.full(2410, np.nan, np.float32)}, "expected are 2410 finite float32"),
        ({"model": np.zeros(2410)}, "expected are 2410 finite float32"),
        ({"model": np.full(2410, 8.4e14, np.float32)}, "would be rounded against it"),
    ],
    ids=["round", "short", "nan", "float64", "coarse"],
)
def test_a_refused_message_binds_nobody_and_costs_nothing(client, change, reason) -> None:
    assert reason in client.refusal(client.ask(**change))
    client.upload(0, training="another, which is the real one")


def test_one_charge_is_one_upload_though_the_answers_are_gone(client) -> None:
    """Six requests for one round gave six uploads, each with fresh noise, when the folder of answers was emptied."""
    client.upload(0)
    for path in (client.store.folder / "answers").iterdir():
        path.unlink()
    for attempt in range(1, 6):
        reply = client.ask(0, attempt=attempt)
        assert "no longer kept" in reply.error.reason
    assert client.store.rounds_paid == [0]


def test_an_answer_that_was_exchanged_is_not_sent(client) -> None:
    client.upload(0)
    kept = client.store.answers.read(0)
    client.store.answers.write(replace(kept, vector=kept.vector + 1))
    assert "is not what was sent" in client.ask(0, attempt=1).error.reason


def test_a_crash_before_the_digest_is_noted_sends_what_was_kept(client, monkeypatch) -> None:
    def power_cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ClientStore, "note_answer", power_cut)
        with pytest.raises(KeyboardInterrupt):
            client.ask(0)
    kept = ClientStore(client.store.folder).answers.read(0).vector
    monkeypatch.setattr(local_work, "compute_upload", power_cut)  # it is not computed again
    assert np.array_equal(client.upload(0, attempt=1), kept)


def test_a_folder_restored_from_a_backup_answers_nothing(tmp_path) -> None:
    counter = tmp_path / "elsewhere" / "counter.json"
    client = Attacked(tmp_path / "a", plan(noise=SECURE, rounds=10), counter=str(counter))
    client.upload(0)
    shutil.copytree(client.store.folder, tmp_path / "backup")
    client.upload(1)
    shutil.rmtree(client.store.folder)
    shutil.copytree(tmp_path / "backup", client.store.folder)
    before = (client.store.folder / "ledger.jsonl").read_bytes()
    for round in (1, 2):
        assert "restored from an older copy" in client.ask(round).error.reason
    assert (client.store.folder / "ledger.jsonl").read_bytes() == before
    counter.unlink()
    assert "cannot be read" in client.ask(2).error.reason
    # The operator decides that the counter is gone for good.
    write_agreement(replace(read_agreement(client.store.folder), counter=None), client.store.folder)
    client.upload(2)


def test_a_ledger_that_is_ahead_of_its_counter_is_whole(tmp_path) -> None:
    """A crash may come between a line of the ledger and the counter."""
    counter = tmp_path / "counter.json"
    client = Attacked(tmp_path / "a", plan(noise=SECURE, rounds=10), counter=str(counter))
    client.upload(0)
    older = counter.read_bytes()
    client.upload(1)
    counter.write_bytes(older)
    client.upload(2)


class KeyedGrid(LocalGrid):
    """A grid that shows nodes' keys, as a secured SuperLink does."""

    def __init__(self, folder: Path, keys: dict[int, bytes]) -> None:
        super().__init__(folder)
        self.keys = keys

    def get_nodes(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(node_id=node, public_key=self.keys[node - 1000])
            for node in self.get_node_ids()
        ]


def pem(path: Path) -> bytes:
    """A public key as Flower tells it."""
    key = serialization.load_ssh_public_key(path.read_bytes())
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form)


def test_a_registered_node_cannot_be_another_client(tmp_path) -> None:
    """Node 1 says that it is client 0: the last to introduce itself displaced the real one."""
    protocol = plan(clients=2)
    public = {client: write_key(tmp_path / f"{client}.key") for client in range(2)}
    keys = {client: fingerprint_of_file(path) for client, path in public.items()}
    agreed(tmp_path / "client-0", 0, protocol)
    agreed(tmp_path / "client-1", 0, protocol)
    grid = KeyedGrid(tmp_path, {client: pem(path) for client, path in public.items()})
    told: list[str] = []
    connected = ConnectedClients(grid, 2, Identities(keys=keys))
    connected.refresh()
    connected.report_rejections(told.append)
    connected.refresh()
    assert connected.nodes == {0: 1000}
    assert len(told) == 1
    assert "not the one that was registered for that client" in told[0]


def test_a_client_that_comes_back_as_another_node_is_known_again(tmp_path) -> None:
    protocol = plan(clients=2)
    grid = LocalGrid(tmp_path)
    connected = ConnectedClients(grid, 2)
    agreed(tmp_path / "client-0", 0, protocol)
    connected.refresh()
    grid.offline = {0}
    agreed(tmp_path / "client-5", 0, protocol)
    connected.refresh()
    assert connected.nodes == {0: 1005}


def test_keys_are_given_to_clients_by_number_or_in_order(tmp_path) -> None:
    north, south = (write_key(tmp_path / f"{name}.key") for name in ("north", "south"))
    assert assign_clients({}, [str(north), str(south)]) == {0: north, 1: south}
    assert assign_clients({0: "a"}, [f"0{1}={south}", str(north)]) == {1: south, 2: north}
    with pytest.raises(UserError, match="client 0 has one"):
        assign_clients({0: "a"}, [f"0={south}"])
    add_clients(tmp_path, {0: north})
    with pytest.raises(UserError, match="is the key of client 0 already"):
        add_clients(tmp_path, {1: north})
    with pytest.raises(UserError, match=r"ends in \.pub"):
        add_clients(tmp_path, {1: tmp_path / "north.key"})


def test_a_secured_training_needs_registered_clients_and_the_coordinators_key(tmp_path) -> None:
    write_certificates(tmp_path / "c", ["localhost"])
    grid = consortium(tmp_path, plan())
    secured = {"certificate": str(tmp_path / "c" / "ca.crt")}
    with pytest.raises(UserError, match="lists no clients"):
        across(tmp_path / "run", plan(), grid, **secured)
    add_clients(tmp_path / "c", {0: write_key(tmp_path / "0.key")})
    (tmp_path / "c" / COORDINATOR_KEY).unlink()
    with pytest.raises(UserError, match=f"no {COORDINATOR} and {COORDINATOR_KEY}"):
        across(tmp_path / "run", plan(), grid, **secured)
    assert not (tmp_path / "run").exists()


def test_a_superlink_that_sees_other_files_than_the_terminal_is_explained(tmp_path) -> None:
    """As under systemd's unit, where it said that no client was registered."""
    grid = consortium(tmp_path, plan())
    elsewhere = {"certificate": str(tmp_path / "home" / "ca.crt")}
    with pytest.raises(UserError, match=r"do not see .*home.* run folders in the coordinator"):
        across(tmp_path / "run", plan(), grid, **elsewhere)


def lost(code: int):
    """A SuperLink that loses one upload of a client and says so."""
    gone: list[Message] = []

    def trouble(message: Message, reply: Message) -> Message:
        if gone:
            return reply
        gone.append(reply)
        return Message(Error(code, "lost"), reply_to=message)

    return trouble


@pytest.mark.parametrize("code", sorted(reply_collection.LOST))
def test_an_upload_that_flower_lost_is_asked_for_again(tmp_path, monkeypatch, code) -> None:
    monkeypatch.setattr(reply_collection, "RETRY_PAUSE", 0.05)
    grid = consortium(tmp_path, plan(noise=SECURE, rounds=2))
    grid.troubles[1] = lost(code)
    run = across(tmp_path / "run", plan(noise=SECURE, rounds=2), grid, deadline=20.0)
    assert run.status == "finished"
    assert run.metrics["participants"].tolist() == [3, 3]
    assert ClientStore(tmp_path / "client-1").rounds_paid == [0, 1]


def test_a_refusal_is_not_asked_for_again(tmp_path) -> None:
    grid = consortium(tmp_path, plan(noise=SECURE, rounds=1))
    grid.troubles[1] = lost(ErrorCode.MOD_FAILED_PRECONDITION)
    run = across(tmp_path / "run", plan(noise=SECURE, rounds=1), grid, deadline=20.0)
    assert run.metrics["participants"].tolist() == [2]


@pytest.mark.slow
def test_a_run_to_which_nobody_contributes_does_not_finish(tmp_path) -> None:
    protocol = plan(noise=SECURE, rounds=2)
    grid = consortium(tmp_path, protocol)
    for client in range(3):
        grid.troubles[client] = lambda message, reply: None
    with pytest.raises(SordinoError, match="round 1 is not complete"):
        across(tmp_path / "run", protocol, grid)


def test_a_round_that_is_run_again_is_charged_once_at_the_coordinator_too(
    tmp_path, monkeypatch
) -> None:
    """The SuperLink crashes after the uploads of round 1 came and before the model of the round is kept."""
    from sordino.federation.round import Round

    protocol = plan(noise=SECURE, rounds=3)
    grid = consortium(tmp_path, protocol)
    original = Round.keep_result

    def crash(self):
        if self.task.round_index == 1:
            raise KeyboardInterrupt
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Round, "keep_result", crash)
        with pytest.raises(KeyboardInterrupt):
            across(tmp_path / "run", protocol, grid)
    grid.begin(2)
    run = gone_on_with(tmp_path / "run", grid)
    assert run.status == "finished"
    charged = [event.round for event in run.ledger if type(event).__name__ == "RoundCharged"]
    assert charged == [0, 1, 2] == ClientStore(tmp_path / "client-0").rounds_paid


def test_other_participants_in_a_repeated_round_are_charged(tmp_path) -> None:
    """Draws are fresh too: who was asked before the crash and who is asked after it have both been seen."""
    from sordino.privacy.ledger import Ledger
    from sordino.privacy.ledger_lines import Opened

    opened = Opened(protocol="9f2c", generator="chacha20", noise="once")
    with Ledger.create(tmp_path / "ledger.jsonl", opened) as ledger:
        ledger.charge(round=0, clients=[0, 1])
        ledger.charge(round=0, clients=[0, 1])
        ledger.charge(round=0, clients=[1, 2])
        assert [event.attempt for event in ledger.events[1:]] == [0, 1]


def test_an_agreement_says_how_large_its_model_is(tmp_path) -> None:
    protocol = plan(participation=Poisson(rate=0.5))
    mine = Agreement(client=0, records=local_work.count_own_records(protocol, 0, None))
    assert (
        local_work.measure_model(protocol, mine).parameters
        == prepare(protocol).initial_weights().size
    )


def test_a_client_with_another_sordino_is_not_used_and_says_so(tmp_path, monkeypatch) -> None:
    from sordino.flower import messages

    consortium(tmp_path, plan(clients=1))
    monkeypatch.setattr(messages, "own_version", lambda: "9.9.9")
    with pytest.raises(UserError, match=r"it runs Sordino 9\.9\.9, and this machine"):
        across(tmp_path / "run", plan(clients=1), LocalGrid(tmp_path))


def test_a_client_whose_sordino_was_exchanged_answers_nothing(tmp_path) -> None:
    client = Attacked(tmp_path, plan(noise=SECURE), version="0.0.1")
    assert "the agreement was made with 0.0.1" in client.refusal(client.ask(0))


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("weight,age,label", "column 'age' is input 2, and must be 1"),
        ("age,height,label", "it has no column 'weight' of numbers"),
        ("age,weight,extra,label", "its column 'extra' is none of them"),
        ("age,label", "it has no column 'weight' of numbers"),
    ],
)
def test_a_file_with_other_columns_is_told_which_before_anything_is_computed(
    tmp_path, header, problem
) -> None:
    """Swapped columns and a wrong number of them passed without a word."""
    rows = [header, *(",".join(["1"] * header.count(",") + [name]) for name in "ab" * 20)]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    data = Data(name="public.csv", classes=["a", "b"], columns=["age", "weight"], records=20)
    protocol = plan(data=data, model=Model(name="logistic"))
    with pytest.raises(UserError, match=problem):
        local_work.count_own_records(protocol, 0, tmp_path / "mine.csv")


def test_a_table_needs_columns_that_all_parties_agreed_to(tmp_path) -> None:
    (tmp_path / "mine.csv").write_text("age,label\n" + "1,a\n2,b\n" * 20)
    protocol = plan(data=Data(name="public.csv", classes=["a", "b"], records=20))
    with pytest.raises(UserError, match=r"Have data\.columns = \[\.\.\.\] added to the protocol"):
        local_work.count_own_records(protocol, 0, tmp_path / "mine.csv")


def test_records_with_another_number_of_inputs_are_told_before_anything_is_charged(
    tmp_path,
) -> None:
    """An .npz has no names of columns. Each party's model fits its own file, and no other's."""
    generator = np.random.default_rng(0)
    labels = np.arange(40) % 3
    for name, columns in {"public": 5, "north": 5, "south": 6}.items():
        np.savez(tmp_path / f"{name}.npz", x=generator.normal(size=(40, columns)), y=labels)
    data = Data(name=str(tmp_path / "public.npz"), classes=3, records=20)
    protocol = plan(clients=2, noise=SECURE, data=data, model=Model(name="logistic"))
    for client, name in enumerate(["north", "south"]):
        mine = Agreement(client=client, records=20, data=str(tmp_path / f"{name}.npz"))
        measured = local_work.measure_model(protocol, mine)
        ClientStore.create(tmp_path / f"client-{client}", measured, protocol)
    # A third node, of a client that only a larger federation has, does not stand in for one.
    larger = replace(protocol, clients=3)
    agreed(tmp_path / "client-2", 2, larger, records=20, data=str(tmp_path / "north.npz"))
    with pytest.raises(UserError, match=r"client 1.* 6 inputs, and each of this machine's 5"):
        across(tmp_path / "run", protocol, LocalGrid(tmp_path))
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    for client in range(2):
        assert ClientStore(tmp_path / f"client-{client}").rounds_paid == []


@pytest.mark.parametrize("failing", ["counter", "agreement.toml", "ledger.jsonl"])
def test_an_agreement_is_whole_or_none(tmp_path, monkeypatch, failing) -> None:
    """A counter that could not be written once left a ledger, over which a deaf node was started."""
    mine = Agreement(client=0, records=40, counter=str(tmp_path / "state" / "counter"))
    rename = os.replace

    def refuse(source: object, target: object) -> None:
        if Path(str(target)).name == failing:
            raise OSError(errno.EROFS, "Read-only file system")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(UserError, match="Read-only file system"):
            ClientStore.create(tmp_path / "mine", mine, plan(noise=SECURE))
    assert not holds_agreement(tmp_path / "mine")
    assert not list((tmp_path / "mine").glob(".agreeing*"))
    made = ClientStore.create(tmp_path / "mine", mine, plan(noise=SECURE))
    made.check_second_place()
    made.charge_round(0)
    assert made.rounds_paid == [0]


def test_a_counter_of_a_ledger_with_rounds_is_not_written_over(tmp_path) -> None:
    """Who loses the folder and agrees again must not lose the second place as well."""
    mine = Agreement(client=0, records=40, counter=str(tmp_path / "counter"))
    ClientStore.create(tmp_path / "mine", mine, plan(noise=SECURE)).charge_round(0)
    known = (tmp_path / "counter").read_bytes()
    shutil.rmtree(tmp_path / "mine")
    with pytest.raises(UserError, match="how far another ledger had come"):
        ClientStore.create(tmp_path / "mine", mine, plan(noise=SECURE))
    assert (tmp_path / "counter").read_bytes() == known
    assert not holds_agreement(tmp_path / "mine")


def test_a_counter_inside_of_what_is_backed_up_is_refused(tmp_path) -> None:
    mine = Agreement(client=0, records=40, counter=str(tmp_path / "mine" / "x" / "counter"))
    with pytest.raises(UserError, match=r"is inside .*mine"):
        ClientStore.create(tmp_path / "mine", mine, plan(noise=SECURE))
    assert not (tmp_path / "mine").exists()


def test_swapped_labels_are_refused(tmp_path) -> None:
    """Another order of the classes is another protocol."""
    own = {"data": Data(name="public.csv", classes=["a", "b"], columns=["x"], records=40)}
    swapped = {"data": replace(own["data"], classes=("b", "a"))}
    mine = Agreement(client=0, records=40, data="mine.csv")
    assert "other classes" in str(describe_weakening(plan(**own), plan(**swapped), mine))

"""A deployment within one process: Flower's messages and apps, without Flower's machines. For what needs no network to be shown."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from sordino import Constant, Data, FedAvg, Gaussian, Model, Protocol, Run
from sordino.flower.agreement import Agreement
from sordino.flower.client_app import app as client_app
from sordino.flower.client_store import ClientStore
from sordino.flower.guard import FOLDER
from sordino.flower.local_work import count_own_records
from sordino.flower.server_app import make_strategy
from sordino.privacy.ledger_lines import Event, Missed, RoundCharged
from sordino.protocol import dumps

Trouble = Callable[
    [Message, Message], Message | None
]  # from a request and its reply to what arrives, or nothing


def plan(**changes: object) -> Protocol:
    """A federation of three clients."""
    local = FedAvg(steps=3, batch=6, clip=1.0, schedule=Constant(rate=0.3))
    settings = {"seed": 3, "clients": 3, "rounds": 3, "local": local, "noise": Gaussian(sigma=0.05)}
    data = {"data": Data(name="digits", records=40), "model": Model(name="mlp")}
    return Protocol(**{**settings, **data, **changes})  # type: ignore[arg-type]


def agreed(folder: Path, client: int, protocol: Protocol, **terms: Any) -> ClientStore:
    """The folder of a client that agrees to a protocol."""
    records = terms.pop("records", None) or count_own_records(protocol, client, None)
    options = {"seeded": not protocol.noise.secure, "records": records, **terms}
    return ClientStore.create(folder, Agreement(client=client, **options), protocol)


class LocalGrid(Grid):
    """Hands messages to the ClientApp of a node at once. It holds the replies."""

    def __init__(self, folder: Path, run: int = 1, app: ClientApp = client_app) -> None:
        self._folder, self._run, self._app = folder, run, app
        self._numbers = itertools.count(1)
        self._replies: dict[str, Message] = {}
        self.troubles: dict[int, Trouble] = {}
        self.asked: list[tuple[int, Message]] = []
        self.offline: set[int] = set()
        self.begin(run)

    def begin(self, run: int) -> None:
        """A new run on Flower."""
        self._run = TaskIdentity.run_id = run
        TaskIdentity.node_id, TaskIdentity.task_id = 1, 1

    @property
    def clients(self) -> list[int]:
        return sorted(
            int(path.name.removeprefix("client-")) for path in self._folder.glob("client-*")
        )

    def get_node_ids(self) -> Iterable[int]:
        return [1000 + client for client in self.clients if client not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            names.append(f"message-{next(self._numbers)}")
            message.metadata.__dict__["_message_id"] = names[-1]
            client = message.metadata.dst_node_id - 1000
            self.asked.append((client, message))
            reply: Message | None = self.answer(client, message)
            if (
                message.metadata.message_type == "train"
                and client in self.troubles
                and reply is not None
            ):
                reply = self.troubles[client](message, reply)
            if reply is not None:
                self._replies[names[-1]] = reply
        return names

    def answer(self, client: int, message: Message) -> Message:
        """What the client's machine replies."""
        settings = {FOLDER: str(self._folder / f"client-{client}"), "partition-id": client}
        copy = Message(
            RecordDict(dict(message.content)),
            message.metadata.dst_node_id,
            message.metadata.message_type,
        )
        copy.metadata.__dict__["_message_id"] = message.metadata.message_id
        context = Context(
            run_id=self._run,
            node_id=1000 + client,
            node_config=settings,
            state=RecordDict(),
            run_config={},
            series_id=0,
        )
        return self._app(copy, context)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=self._run)

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError


def settings_of(folder: Path, protocol: Protocol | None = None, **changes: Any) -> dict[str, Any]:
    """The settings of a run."""
    plain = {
        "patience": 1.0,
        "deadline": 1.0,
        "superlink": "127.0.0.1:8000",
        "certificate": "",
        "evaluate-every": -1,
        "resume": False,
    }
    plain |= {"keep-uploads": 0, "report": False}
    return {
        "protocol": "" if protocol is None else dumps(protocol),
        "folder": str(folder),
        **plain,
        **changes,
    }


def across(folder: Path, protocol: Protocol, grid: LocalGrid, **changes: Any) -> Run:
    """Train with the clients of a grid."""
    make_strategy(settings_of(folder, protocol, **changes)).start(grid)
    return Run.load(folder)


def gone_on_with(folder: Path, grid: LocalGrid) -> Run:
    """Go on with a run that was interrupted."""
    make_strategy(settings_of(folder, resume=True)).start(grid)
    return Run.load(folder)


def consortium(folder: Path, protocol: Protocol, **terms: Any) -> LocalGrid:
    """A grid whose clients all agree to a protocol."""
    for client in range(protocol.clients):
        agreed(folder / f"client-{client}", client, protocol, **terms)
    return LocalGrid(folder)


def weights(run: Run) -> dict[str, bytes]:
    """The model of a run, bit for bit."""
    if run.state is None:
        raise AssertionError("there is no model")
    return {name: tensor.numpy().tobytes() for name, tensor in run.state.items()}


def charges(run: Run) -> list[Event]:
    """The rounds in a run's ledger; how it opens and is sealed also tells whose data it was."""
    return [event for event in run.ledger if isinstance(event, RoundCharged | Missed)]

"""Which machine is which client. Flower's node ids are known here and nowhere else: a machine that restarts may come back with another."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from sordino.engines.flower.messages import (
    LOG,
    Introduction,
    Malformed,
    in_one_line,
    question_message,
    read_introduction,
)
from sordino.engines.flower.registry import fingerprint_of_node
from sordino.engines.flower.signing import Signer
from sordino.protocol import UserError
from sordino.protocol.version import own_version

POLL = 0.2  # seconds between two looks for replies


@dataclass(frozen=True, kw_only=True)
class Identities:
    """Who the parties are: the coordinator's signing key, and the key of every client.

    Both are empty where nothing is secured, in a test.
    """

    signer: Signer | None = None
    keys: Mapping[int, str] = field(default_factory=dict)


NOT_SECURED = Identities()


class Mailbox:
    """Takes replies from a grid. It holds whether one that cannot be read has come.

    Flower makes a reply of what its sender wrote, down to the question that it answers. One that
    cannot be made, or that answers no question here, is left out: its sender stays silent. Those
    that came with it are lost, and are asked for again; from then on each is taken alone.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._singly = False

    def pull(self, questions: Sequence[str]) -> list[Message]:
        """Returns the replies that have come to the messages of these names.

        Raises:
            httpx.HTTPError: the SuperLink is lost.
        """
        if not self._singly:
            return self._pull(questions)
        return [reply for name in questions for reply in self._pull([name])]

    def _pull(self, questions: Sequence[str]) -> list[Message]:
        try:
            found = list(self._grid.pull_messages(questions))
        except (httpx.HTTPError, OSError):
            raise
        except Exception as error:
            LOG.warning("A reply cannot be read (%s).", type(error).__name__)
            self._singly = True
            return []
        return [reply for reply in found if answered_question(reply) in questions]


def answered_question(reply: object) -> str:
    """Returns the name of the message that a reply answers; empty for what is no reply."""
    return reply.metadata.reply_to_message_id if isinstance(reply, Message) else ""


class Roster:
    """Asks every node that is new who it is. It holds what they said.

    Where clients' keys are registered, a node is the client whose key it connected with. One that
    says it is another client is told of once, and is never asked again. Without keys, in a test, a
    node is whoever it says it is. Where the protocol says how many records every client has, one
    that says another number is not used either.
    """

    def __init__(
        self,
        grid: Grid,
        clients: int,
        identities: Identities = NOT_SECURED,
        records: int | None = None,
    ) -> None:
        self.mailbox = Mailbox(grid)
        self._grid = grid
        self._clients = clients
        self._identities = identities
        self._records = records
        self._asked: dict[str, int] = {}  # message to node
        self._known: dict[int, tuple[int, int]] = {}  # node to client and number of records
        self._rejected: dict[int, str] = {}
        self._online: set[int] = set()
        self._keys: dict[int, str | None] = {}  # node to the fingerprint of its key
        self._tell: Callable[[str], None] = LOG.warning

    def refresh(self) -> None:
        """Asks nodes that were not there before, and reads what nodes have said since."""
        self._online = set(self._look())
        pending = set(self._asked.values())
        new = sorted(self._online - set(self._known) - pending - set(self._rejected))
        if new:
            run = str(self._grid.run.run_id)
            signer = self._identities.signer
            questions = [question_message(node=node, signer=signer, run=run) for node in new]
            self._asked.update(zip(self._grid.push_messages(questions), new, strict=True))
        if self._asked:
            for reply in self.mailbox.pull(list(self._asked)):
                self._introduce(self._asked.pop(reply.metadata.reply_to_message_id), reply)

    def _look(self) -> Iterable[int]:
        if not self._identities.keys:
            return self._grid.get_node_ids()
        self._keys = {
            node.node_id: fingerprint_of_node(node.public_key) for node in self._grid.get_nodes()
        }
        return self._keys

    def _introduce(self, node: int, reply: Message) -> None:
        """Takes what a node said of itself, unless it is another's."""
        if not reply.has_content():
            return
        try:
            said = read_introduction(reply)
        except Malformed:
            return
        reason = self._objection(node, said)
        if reason is None:
            self._known[node] = (said.client, said.records)
            return
        self._rejected[node] = (
            f"A node said that it is client {said.client}, and is not used: {reason}."
        )
        self._tell(self._rejected[node])

    def tell_rejections(self, tell: Callable[[str], None]) -> None:
        """Tells of nodes that claim to be another's client: of those so far, and from now on."""
        self._tell = tell
        for reason in self._rejected.values():
            tell(reason)

    def _objection(self, node: int, said: Introduction) -> str | None:
        """Says why a node is not the client that it says it is; None if it is."""
        keys = self._identities.keys
        own = self._keys.get(node)
        if keys and (own is None or own != keys.get(said.client)):
            return "its key is not the one that was registered for that client"
        if said.version != own_version():
            theirs = in_one_line(said.version, limit=40)
            return f"it runs Sordino {theirs}, and this machine {own_version()}"
        if self._records not in (None, said.records):
            return f"it says it has {said.records} records, and the protocol {self._records}"
        return None

    @property
    def nodes(self) -> dict[int, int]:
        """The node of every client that is there. Of two of one client the later counts: it came back."""
        return {
            client: node
            for node, (client, _) in self._known.items()
            if node in self._online and client < self._clients
        }

    @property
    def sizes(self) -> dict[int, int]:
        """How many records every client that was ever there has."""
        return dict(self._known.values())

    def wait(self, wanted: Collection[int], seconds: float) -> None:
        """Waits until these clients are there, or until the time is over."""
        end = time.monotonic() + seconds
        self.refresh()
        while not set(wanted) <= set(self.nodes) and time.monotonic() < end:
            time.sleep(POLL)
            self.refresh()

    def all_sizes(self, patience: float) -> list[int]:
        """Returns how many records every client has, once all are there.

        Raises:
            UserError: some are not there in time.
        """
        self.wait(range(self._clients), patience)
        missing = sorted(set(range(self._clients)) - set(self.sizes))
        if missing:
            raise UserError(
                f"{len(missing)} of {self._clients} clients are not connected after {patience:g} s: {', '.join(map(str, missing[:10]))}. "
                "Start their nodes, or wait longer with --patience."
                + "".join(f" {reason}" for reason in self._rejected.values())
            )
        return [self.sizes[client] for client in range(self._clients)]

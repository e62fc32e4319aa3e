"""Finds out which connected node is which client.

Flower's node ids are used here and nowhere else: a machine that restarts may get another one.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from sordino.flower.client_keys import fingerprint_of_node
from sordino.flower.foreign_words import print_safely
from sordino.flower.messages import (
    LOG,
    Introduction,
    MalformedMessage,
    introduction_request,
    read_introduction,
)
from sordino.flower.signing import Signer
from sordino.protocol import UserError
from sordino.protocol.version import own_version

# Seconds between two looks for replies.
POLL = 0.2
# Clients that an error message lists at most.
LISTED_CLIENTS = 10
# Characters of a foreign version that a message shows at most, and of a number of inputs.
VERSION_LENGTH = 40
INPUTS_LENGTH = 40


@dataclass(frozen=True, kw_only=True)
class Identities:
    """Holds the keys of the parties; both are empty in tests without TLS.

    Attributes:
        signer: The coordinator's signing key.
        keys: Fingerprint of the public key of every client.
    """

    signer: Signer | None = None
    keys: Mapping[int, str] = field(default_factory=dict)


NOT_SECURED = Identities()


class Mailbox:
    """Takes replies from a grid. It holds whether an unreadable one has come.

    Flower rebuilds a reply from what its sender wrote, including the question that it answers. A
    reply that cannot be rebuilt, or that answers no question, is dropped: its sender counts as
    silent. Replies that came together with it are lost and requested again; from then on each
    reply is taken alone.
    """

    def __init__(self, grid: Grid) -> None:
        """Creates the mailbox.

        Args:
            grid: Flower's connection to the nodes.
        """
        self._grid = grid
        self._one_by_one = False

    def pull(self, questions: Sequence[str]) -> list[Message]:
        """Returns the replies that have arrived.

        Args:
            questions: Ids of the messages that were sent.

        Returns:
            Replies to these messages.

        Raises:
            httpx.HTTPError: The SuperLink is lost.
        """
        if not self._one_by_one:
            return self._pull_together(questions)
        replies: list[Message] = []
        for question in questions:
            replies += self._pull_together([question])
        return replies

    def _pull_together(self, questions: Sequence[str]) -> list[Message]:
        try:
            arrived = list(self._grid.pull_messages(questions))
        except (httpx.HTTPError, OSError):
            raise
        except Exception as error:
            LOG.warning("A reply cannot be read (%s).", type(error).__name__)
            self._one_by_one = True
            return []
        return [reply for reply in arrived if find_question(reply) in questions]


def find_question(reply: object) -> str:
    """Returns the id of the message that a reply answers.

    Args:
        reply: What arrived.

    Returns:
        The id; empty for an object that is not a message.
    """
    if not isinstance(reply, Message):
        return ""
    return str(reply.metadata.reply_to_message_id)


class ConnectedClients:
    """Asks every new node which client it is. It holds the answers.

    Where clients' keys are registered, a node is the client whose key it connected with. A node
    that claims to be another client is reported once and never asked again. Without keys, in
    tests, a node is believed. A node with another number of records than the protocol states is
    not used either.
    """

    def __init__(
        self,
        grid: Grid,
        clients: int,
        identities: Identities = NOT_SECURED,
        records: Mapping[int, int] | None = None,
    ) -> None:
        """Creates the list, which is empty until `refresh`.

        Args:
            grid: Flower's connection to the nodes.
            clients: Number of clients of the protocol.
            identities: Keys of the parties.
            records: Number of records of the clients for which the protocol states it.
        """
        self.mailbox = Mailbox(grid)
        self._grid = grid
        self._clients = clients
        self._identities = identities
        self._records = dict(records or {})
        # From the id of a question to the node that was asked.
        self._asked: dict[str, int] = {}
        # From a node to what it said of itself.
        self._known: dict[int, Introduction] = {}
        # What records of every client must have; empty until this machine's own are loaded.
        self._inputs = ""
        # From a client to its public key, where it takes part in secure sums.
        self._identities_shown: dict[int, bytes] = {}
        # From a node that is not used to the reason.
        self._rejected: dict[int, str] = {}
        self._online: set[int] = set()
        # From a node to the fingerprint of its key.
        self._keys: dict[int, str | None] = {}
        self._report: Callable[[str], None] = LOG.warning

    def refresh(self) -> None:
        """Asks nodes that are new, and reads the answers that have arrived."""
        self._online = set(self._list_nodes())
        pending = set(self._asked.values())
        new = sorted(self._online - set(self._known) - pending - set(self._rejected))
        if new:
            run = str(self._grid.run.run_id)
            signer = self._identities.signer
            questions = [introduction_request(node=node, signer=signer, run=run) for node in new]
            self._asked.update(zip(self._grid.push_messages(questions), new, strict=True))
        if self._asked:
            for reply in self.mailbox.pull(list(self._asked)):
                self._take_introduction(self._asked.pop(find_question(reply)), reply)

    def _list_nodes(self) -> Iterable[int]:
        if not self._identities.keys:
            nodes: Iterable[int] = self._grid.get_node_ids()
            return nodes
        self._keys = {
            node.node_id: fingerprint_of_node(node.public_key) for node in self._grid.get_nodes()
        }
        return self._keys

    def _take_introduction(self, node: int, reply: Message) -> None:
        """Notes which client a node is, or why it is not used."""
        if not reply.has_content():
            return
        try:
            introduction = read_introduction(reply)
        except MalformedMessage:
            return
        objection = self._find_objection(node, introduction)
        if objection is None:
            self._known[node] = introduction
            if introduction.identity:
                self._identities_shown[introduction.client] = introduction.identity
            return
        self._reject(node, introduction.client, objection)

    def _reject(self, node: int, client: int, objection: str) -> None:
        """Uses a node no more, and reports why."""
        self._known.pop(node, None)
        words = f"A node said that it is client {client}, and is not used: {objection}."
        self._rejected[node] = words
        self._report(words)

    def require_inputs(self, inputs: str) -> list[str]:
        """Uses only clients whose records have the inputs of this machine's, from now on.

        Args:
            inputs: How many inputs a record has, axis by axis.

        Returns:
            Why nodes are not used, in words.
        """
        self._inputs = inputs
        for node, introduction in list(self._known.items()):
            objection = self._find_objection(node, introduction)
            if objection is not None:
                self._reject(node, introduction.client, objection)
        return list(self._rejected.values())

    def report_rejections(self, report: Callable[[str], None]) -> None:
        """Reports nodes that are not used: those so far, and from now on every new one.

        Args:
            report: Called with a sentence for each.
        """
        self._report = report
        for reason in self._rejected.values():
            report(reason)

    def _find_objection(self, node: int, introduction: Introduction) -> str | None:
        """Returns why a node is not the client that it claims to be; None if it is."""
        keys = self._identities.keys
        own = self._keys.get(node)
        if keys and (own is None or own != keys.get(introduction.client)):
            return "its key is not the one that was registered for that client"
        shown = introduction.identity
        if keys and shown and hashlib.sha256(shown).hexdigest() != own:
            return "the key that it shows for secure sums is not the one that was registered"
        if introduction.version != own_version():
            theirs = print_safely(introduction.version, limit=VERSION_LENGTH)
            return f"it runs Sordino {theirs}, and this machine {own_version()}"
        stated = self._records.get(introduction.client)
        if stated not in (None, introduction.records):
            return f"it says it has {introduction.records} records, and the protocol {stated}"
        # A client whose agreement does not say it is noticed at its first request.
        if self._inputs and introduction.inputs and introduction.inputs != self._inputs:
            theirs = print_safely(introduction.inputs, limit=INPUTS_LENGTH)
            return (
                f"each of its records has {theirs} inputs, and each of this machine's "
                f"{self._inputs}: compare the columns of both files"
            )
        return None

    @property
    def nodes(self) -> dict[int, int]:
        """The node of every connected client; of two nodes of one client the later one."""
        return {
            known.client: node
            for node, known in self._known.items()
            if node in self._online and known.client < self._clients
        }

    @property
    def identities(self) -> dict[int, bytes]:
        """The public key of every client that was ever connected and is in secure sums."""
        return dict(self._identities_shown)

    @property
    def fingerprints(self) -> dict[int, str]:
        """The fingerprint of every client's public key: as registered, in tests as it is shown."""
        if self._identities.keys:
            return dict(self._identities.keys)
        shown = self._identities_shown.items()
        return {client: hashlib.sha256(key).hexdigest() for client, key in shown}

    @property
    def sizes(self) -> dict[int, int]:
        """The number of records of every client of the protocol that was ever connected."""
        return {
            known.client: known.records
            for known in self._known.values()
            if known.client < self._clients
        }

    def wait(self, wanted: Collection[int], seconds: float) -> None:
        """Waits until clients are connected, or until the time is over.

        Args:
            wanted: The clients.
            seconds: How long to wait at most.
        """
        end = time.monotonic() + seconds
        self.refresh()
        while not set(wanted) <= set(self.nodes) and time.monotonic() < end:
            time.sleep(POLL)
            self.refresh()

    def wait_for_sizes(self, patience: float) -> list[int]:
        """Waits until all clients are connected and returns how many records each has.

        Args:
            patience: Seconds to wait at most.

        Returns:
            The numbers of records, in the order of the clients.

        Raises:
            UserError: Some clients did not connect in time.
        """
        self.wait(range(self._clients), patience)
        sizes = self.sizes
        missing = sorted(set(range(self._clients)) - set(sizes))
        if missing:
            listed = ", ".join(map(str, missing[:LISTED_CLIENTS]))
            reasons = "".join(f" {reason}" for reason in self._rejected.values())
            raise UserError(
                f"{len(missing)} of {self._clients} clients are not connected after "
                f"{patience:g} s: {listed}. Start their nodes, or wait longer with "
                f"--patience.{reasons}"
            )
        return [sizes[client] for client in range(self._clients)]

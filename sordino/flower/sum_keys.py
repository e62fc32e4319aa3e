"""Collects the clients' keys for letters, for the coordinator of secure sums.

A client that is absent when keys are exchanged takes no part until a later round finds it
connected; then its key is requested, and everyone prepares again.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_low

from sordino.flower.connected_clients import ConnectedClients
from sordino.flower.exchange import Exchange
from sordino.flower.sum_messages import KeyCall, KeyReply
from sordino.flower.sum_waves import Waves
from sordino.protocol import Protocol, SecureAggregation, dumps
from sordino.secure_sums.key_roster import (
    Roster,
    SecureSumRefused,
    SignedKey,
    draw_graph,
    verify_key,
)
from sordino.secure_sums.share_holders import Graph

# By how much more than the others' the last attempt that a client says it has prepared for may be.
# Labels go on after it, and end at 2^53: one client must not be able to use them up.
LARGEST_LEAD = 2**32

# Why a client cannot be summed with.
NO_IDENTITY = "it is not connected, or shows no key for secure sums"


class LetterKeys:
    """Holds clients' keys for letters, and who holds shares for whom. It grows with newcomers."""

    def __init__(
        self,
        protocol: Protocol,
        secure: SecureAggregation,
        connected: ConnectedClients,
        exchange: Exchange,
        waves: Waves,
    ) -> None:
        """Begins without keys.

        Args:
            protocol: The federation that the machines train.
            secure: Its secure aggregation.
            connected: Which node is which client.
            exchange: How rounds are requested.
            waves: Sends calls.
        """
        self._protocol = protocol
        self._secure = secure
        self._connected = connected
        self._exchange = exchange
        self._waves = waves
        self._roster: Roster | None = None
        self.known: dict[int, SignedKey] = {}
        self.graph = Graph({}, secure.threshold)
        # Why clients have given no key.
        self.missing: dict[int, str] = {}
        # The last attempt that somebody has prepared for.
        self._attempt = -1

    @property
    def roster(self) -> Roster:
        """The clients with their registered identities."""
        if self._roster is None:
            raise RuntimeError("keys are exchanged before anything else")
        return self._roster

    def find_newcomers(self) -> list[int]:
        """Asks the clients whose keys are not known for them.

        Returns:
            The attempts that these newcomers have prepared for last: one for each key that came.
        """
        # Also those that are not drawn for this round, since all clients hold shares. They are
        # waited for once: who comes later is taken in then.
        if self._roster is None:
            self._connected.wait(range(self._protocol.clients), self._exchange.patience)
        identities = self._connected.identities
        everyone = range(self._protocol.clients)
        lacking = [client for client in everyone if client not in self.known]
        self.missing = dict.fromkeys(lacking, NO_IDENTITY)
        asked = [one for one in lacking if one in identities and one in self._connected.nodes]
        fingerprints = self._connected.fingerprints
        # Keys of clients that the protocol does not have may be registered as well.
        if not asked or not set(everyone) <= set(fingerprints):
            return []
        # Clients make theirs from what they agreed to. Where it differs, no signature verifies.
        self._roster = Roster(
            training=self._exchange.training,
            fingerprints=tuple(fingerprints[client] for client in everyone),
            threshold=self._secure.threshold,
            colluders=self._secure.colluders,
        )
        call = KeyCall(training=self._exchange.training, protocol=dumps(self._protocol))
        replies, silent = self._waves.ask(dict.fromkeys(asked, call))
        self.missing |= silent
        most = self._find_most_attempts(reply.attempt for reply in replies.values())
        attempts = [
            reply.attempt
            for client, reply in replies.items()
            if self._take_key(client, identities[client], reply, most)
        ]
        self._attempt = max(self._attempt, *attempts, -1)
        self.graph = draw_graph(self._roster, self.known)
        return attempts

    def _find_most_attempts(self, said: Iterable[int]) -> int:
        """Returns the largest attempt that is believed of what clients say."""
        # Most clients are honest, and have all been asked for the same attempts.
        return max(self._attempt, median_low([*said, self._attempt])) + LARGEST_LEAD

    def _take_key(self, client: int, identity: bytes, reply: KeyReply, most: int) -> bool:
        """Takes a client's key; returns whether it is its own."""
        if reply.attempt > most:
            self.missing[client] = f"it says that it has prepared for attempt {reply.attempt:,}"
            return False
        key = SignedKey(
            client=client, identity=identity, public=reply.public, signature=reply.signature
        )
        try:
            # Clients check this as well; here it names the client at fault, and the others
            # continue.
            verify_key(self.roster, key)
        except SecureSumRefused as error:
            self.missing[client] = str(error)
            return False
        del self.missing[client]
        self.known[client] = key
        return True

"""Hands letters on and opens the sum of the survivors: the server's side of a secure sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from sordino.protocol.errors import SordinoError
from sordino.secure_sums.key_roster import Roster
from sordino.secure_sums.letters import join_shares
from sordino.secure_sums.masks import derive_round_key, expand_own_mask, expand_pair_mask
from sordino.secure_sums.members import MaskRequest, Preparation, Shares
from sordino.secure_sums.share_holders import Graph


class TooFewContributions(SordinoError):
    """Fewer clients than the threshold were left in a round: its sum cannot be opened."""


def forward_letters(preparations: Iterable[Preparation]) -> dict[int, dict[int, bytes]]:
    """Returns, for each client that has prepared, the letters of the others to it.

    Args:
        preparations: What the candidates of a round have sent.
    """
    prepared = {one.client: one for one in preparations}
    return {
        receiver: {
            sender: one.letters[receiver]
            for sender, one in prepared.items()
            if receiver in one.letters
        }
        for receiver in prepared
    }


def open_sum(
    roster: Roster,
    *,
    asked: MaskRequest,
    preparations: Mapping[int, Preparation],
    graph: Graph,
    vectors: Mapping[int, np.ndarray],
    answers: Iterable[Shares],
) -> np.ndarray:
    """Returns the sum of the survivors' vectors, modulo the range of their type.

    Args:
        roster: The training's roster.
        asked: What the server asked for in the first wave.
        preparations: The participants' preparations, by client.
        graph: Who holds shares for whom.
        vectors: The masked vectors that arrived, by client: those of the survivors.
        answers: The survivors' shares.

    Raises:
        TooFewContributions: Fewer than the threshold contributed, or too few that hold shares of a
            client answered.
    """
    received = list(answers)
    fewest = min(len(vectors), len(received))
    if fewest < roster.threshold:
        raise TooFewContributions(
            f"{len(vectors)} clients contributed and {len(received)} answered; the threshold is "
            f"{roster.threshold}"
        )
    survivors = sorted(vectors)
    first = vectors[survivors[0]]
    count = len(first)
    kind = first.dtype
    total = np.zeros(count, kind)
    for vector in vectors.values():
        total += vector
    for client in survivors:
        # Masks of pairs of survivors have cancelled; each survivor's own mask is still in the sum.
        shares = {one.client: one.survivors for one in received}
        seed = _join_seed(client, shares, graph)
        total -= expand_own_mask(seed, count, kind)
    for client in set(asked.participants) - set(survivors):
        # Its side of the pairs' masks never came, so the survivors' sides are left over.
        shares = {one.client: one.absent for one in received}
        key = derive_round_key(_join_seed(client, shares, graph))
        for other in sorted(set(survivors) & set(graph.find_neighbours(client))):
            # The absent client's side of the pair's mask is the negative of the survivor's.
            total += expand_pair_mask(
                key,
                X25519PublicKey.from_public_bytes(preparations[other].mask_public),
                context=asked.make_pair_context(roster, (client, other)),
                adds=client < other,
                count=count,
                kind=kind,
            )
    return total


def _join_seed(client: int, shares: Mapping[int, Mapping[int, bytes]], graph: Graph) -> bytes:
    """Returns a client's seed, joined from the shares that its holders have given."""
    held = {
        holder: given[client]
        for holder, given in shares.items()
        if client in given and graph.holds(holder, client)
    }
    if len(held) < graph.needed:
        raise TooFewContributions(
            f"{len(held)} of those that hold shares of client {client} answered; {graph.needed} "
            "are needed"
        )
    # In the order in which the client split its seeds: places of shares depend on it.
    return join_shares(held, list(graph.holders[client]), graph.needed)

"""Clients with models of their own: what a participant starts from, what pulls it, and what it keeps for the next round.

What a client keeps is a dictionary of named arrays: "model", and the moments of its optimizer. It never leaves the client, but in a
simulation it travels to the worker that does the client's work, and it is checkpointed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from sordino.privacy.carried import carries
from sordino.protocol import Attention, Interpolate, NoisySgd, Protocol

Kept = Mapping[str, np.ndarray]

HELPER = "helper"  # what the server sends to a participant instead of the global model
SENT = "sent"  # what the server remembers of a client: its last upload


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """The weights that a participant starts from, and the helper that pulls it, if one does."""

    start: np.ndarray
    helper: np.ndarray | None = None
    strength: float = 0.0


def keeps_state(protocol: Protocol) -> bool:
    """Whether anything stays with a client from round to round."""
    return protocol.keeps_models or (
        isinstance(protocol.local, NoisySgd) and protocol.local.optimizer != "sgd"
    )


def beginning(
    protocol: Protocol, weights: np.ndarray, initial: np.ndarray, kept: Kept
) -> Beginning:
    """Where a client begins a round: at the helper model h_i = F_i(global), or at its own model and pulled to the helper.

    Args:
        protocol: what is run.
        weights: the global model.
        initial: the model before the first round, which is a client's own until it takes part.
        kept: what the client has kept.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> plan = Protocol(clients=2, rounds=3, local=local, noise=Gaussian(sigma=1.0), personalization=Interpolate(alpha=0.25))
        >>> beginning(plan, np.ones(1), np.zeros(1), {"model": np.array([5.0])}).start
        array([4.])
    """
    rule = protocol.personalization
    if not protocol.keeps_models:
        return Beginning(start=weights)
    own = kept.get("model", initial)
    helper = kept.get(HELPER, weights)
    if isinstance(rule, Interpolate):
        mixed = (1 - rule.alpha) * own.astype(np.float64) + rule.alpha * weights
        # What no noise has touched is not rounded: a distance of two own models would grow by that.
        helper = mixed if carries(protocol) else mixed.astype(weights.dtype)
    strength = getattr(rule, "pull", None)
    if strength is None:
        return Beginning(start=helper)
    return Beginning(start=own, helper=helper, strength=strength)


def given_to(
    protocol: Protocol, weights: np.ndarray, chosen: Iterable[int], kept: Mapping[int, Kept]
) -> Mapping[int, Kept] | None:
    """What the participants of a round find: what each has kept, and a helper that the server made for it, where it makes one."""
    if not keeps_state(protocol):
        return None
    clients = [int(client) for client in chosen]
    found: dict[int, dict[str, np.ndarray]] = {
        client: {name: array for name, array in kept.get(client, {}).items() if name != SENT}
        for client in clients
    }
    if isinstance(protocol.personalization, Attention):
        sent = {client: state[SENT] for client, state in kept.items() if SENT in state}
        for client, helper in attended(protocol.personalization, weights, clients, sent).items():
            found[client][HELPER] = helper
    return found


def remembered(protocol: Protocol, kept: Kept, upload: np.ndarray) -> Kept:
    """What is kept of a client after its round, by itself and by the server."""
    return {**kept, SENT: upload} if isinstance(protocol.personalization, Attention) else kept


def attended(
    rule: Attention, weights: np.ndarray, clients: list[int], sent: Mapping[int, np.ndarray]
) -> dict[int, np.ndarray]:
    """The helper of every client that has sent something before: its own upload, and others weighted by how alike they are.

    Alike is the cosine of what two uploads differ by from the global model (Huang et al. 2021, with its exponential of the cosine).

    Example:
        >>> sent = {0: np.array([1.0, 0.0]), 1: np.array([1.0, 0.1]), 2: np.array([-1.0, 0.0])}
        >>> attended(Attention(own=0.0, sharpness=50.0), np.zeros(2), [0], sent)[0].round(3)
        array([1. , 0.1])
    """
    known = sorted(sent)
    asked = [client for client in clients if client in sent]
    if not asked or len(known) == 1:
        return {client: sent[client] for client in asked}
    shares = attention_shares(
        rule,
        [known.index(client) for client in asked],
        gram(weights, [sent[client] for client in known]),
    )
    helpers = np.zeros((len(asked), weights.size))
    for column, client in enumerate(known):
        helpers += np.multiply.outer(shares[:, column], sent[client].astype(np.float64))
    return {
        client: helper.astype(weights.dtype) for client, helper in zip(asked, helpers, strict=True)
    }


def gram(weights: np.ndarray, uploads: list[np.ndarray], block: int = 1 << 16) -> np.ndarray:
    """Inner products of the uploads' differences from the global model, a block of coordinates at a time."""
    total = np.zeros((len(uploads), len(uploads)))
    for start in range(0, weights.size, block):
        part = slice(start, start + block)
        rows = np.stack([upload[part] for upload in uploads]).astype(np.float64) - weights[part]
        total += rows @ rows.T
    return total


def attention_shares(rule: Attention, asked: list[int], products: np.ndarray) -> np.ndarray:
    """One row per client asked for, summing to 1: its own share, and a softmax over the others."""
    lengths = np.sqrt(np.diag(products))
    cosines = products / np.maximum(np.outer(lengths, lengths), 1e-300)
    scores = rule.sharpness * cosines[asked]
    own = (np.arange(len(asked)), asked)
    scores[own] = -np.inf
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares *= (1 - rule.own) / shares.sum(axis=1, keepdims=True)
    shares[own] = rule.own
    return shares

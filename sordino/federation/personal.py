"""Clients with personal models: where a participant starts, what pulls it, and what it keeps.

What a client keeps is a dictionary of named arrays: "model", and the moments of its optimizer. It
never leaves the client, but in a simulation it travels to the worker that does the client's work,
and it is checkpointed. Arrays are vectors, or tables with one training a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.federation.rules.local_training import ClientState
from sordino.federation.upload import Upload
from sordino.privacy.amplification.personal_state import carries_noiseless_state
from sordino.protocol import (
    Attention,
    Identity,
    Interpolate,
    NoPersonalization,
    Personalization,
    Protocol,
)
from sordino.protocol.registry import Registry
from sordino.protocol.release import Release, noisy_steps_of

# The client's personal model.
OWN_MODEL = "model"
# What the server sends to a participant instead of the global model.
HELPER = "helper"
# What the server remembers of a client: its last upload.
SENT = "sent"


@dataclass(frozen=True, kw_only=True)
class StartingPoint:
    """Where a participant starts.

    Attributes:
        start: The weights.
        helper: The model that pulls its steps, if one does.
        strength: How strongly it pulls.
    """

    start: np.ndarray
    helper: np.ndarray | None = None
    strength: float = 0.0


# The helper model of a client: (rule, protocol, global model, personal model, what it kept) to it.
HELPERS: Registry[Callable[[Any, Protocol, np.ndarray, np.ndarray, ClientState], np.ndarray]] = (
    Registry("helper model", "personalization", Personalization)
)


# The helpers that the server makes: (rule, global model, participants, last uploads) to them.
SERVER_HELPERS: Registry[
    Callable[[Any, np.ndarray, list[int], Mapping[int, np.ndarray]], Mapping[int, np.ndarray]]
] = Registry("helper of the server", "personalization", Personalization)


@HELPERS.register(NoPersonalization, Identity)
def use_global_model(
    rule: NoPersonalization | Identity,
    protocol: Protocol,
    weights: np.ndarray,
    own: np.ndarray,
    kept: ClientState,
) -> np.ndarray:
    """Returns the global model.

    Args:
        rule: The personalization, which makes no helper here.
        protocol: The federation whose rounds are played.
        weights: The global model.
        own: The client's personal model.
        kept: What the client has kept.
    """
    return weights


@HELPERS.register(Attention)
def use_sent_helper(
    rule: Attention,
    protocol: Protocol,
    weights: np.ndarray,
    own: np.ndarray,
    kept: ClientState,
) -> np.ndarray:
    """Returns the helper that the server made, or the global model where it made none.

    Args:
        rule: The personalization.
        protocol: The federation whose rounds are played.
        weights: The global model.
        own: The client's personal model.
        kept: What the client has kept, with the helper that the server sent.
    """
    return kept.get(HELPER, weights)


@HELPERS.register(Interpolate)
def mix_own_model(
    rule: Interpolate,
    protocol: Protocol,
    weights: np.ndarray,
    own: np.ndarray,
    kept: ClientState,
) -> np.ndarray:
    """Returns a point between the client's personal model and the global one (PriFedSync Eq. 2.1).

    Args:
        rule: The share of the global model.
        protocol: The federation whose rounds are played.
        weights: The global model.
        own: The client's personal model.
        kept: What the client has kept.
    """
    mixed = (1 - rule.alpha) * own.astype(np.float64) + rule.alpha * weights
    # What no noise has touched is not rounded: a distance of two personal models would grow.
    if carries_noiseless_state(protocol):
        return mixed
    return mixed.astype(weights.dtype)


def keeps_state(protocol: Protocol, release: Release | None = None) -> bool:
    """Returns whether anything stays with a client from round to round.

    Args:
        protocol: The federation whose rounds are played.
        release: The protocol's, where it is at hand: it takes longer to make than to read.
    """
    if protocol.keeps_models:
        return True
    in_steps = (release or protocol.release).in_steps
    return in_steps and not noisy_steps_of(protocol).plain


def find_start(
    protocol: Protocol,
    weights: np.ndarray,
    initial: np.ndarray,
    kept: ClientState,
) -> StartingPoint:
    """Returns where a client begins a round.

    It begins at the helper model h_i = F_i(global), or at its personal model, pulled to the helper.

    Args:
        protocol: The federation whose rounds are played.
        weights: The global model.
        initial: The model before the first round, which is a client's own until it takes part.
        kept: What the client has kept.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> plan = Protocol(
        ...     clients=2, rounds=3, local=local, noise=Gaussian(sigma=1.0),
        ...     personalization=Interpolate(alpha=0.25),
        ... )
        >>> find_start(plan, np.ones(1), np.zeros(1), {"model": np.array([5.0])}).start
        array([4.])
    """
    if not protocol.keeps_models:
        return StartingPoint(start=weights)
    rule = protocol.personalization
    # Until its first round a client's personal model is the initial one, which is public.
    own = kept.get(OWN_MODEL, initial)
    helper = HELPERS.of(rule)(rule, protocol, weights, own, kept)
    if rule.pull is None:
        return StartingPoint(start=helper)
    return StartingPoint(start=own, helper=helper, strength=rule.pull)


def find_kept(
    protocol: Protocol,
    weights: np.ndarray,
    participants: Iterable[int],
    kept: Mapping[int, ClientState],
) -> Mapping[int, ClientState] | None:
    """Returns what the participants of a round find when it begins.

    Args:
        protocol: The federation whose rounds are played.
        weights: The global model, or a table with one training a row.
        participants: The clients of the round.
        kept: What all clients have kept, and what the server remembers of them.

    Returns:
        What each has kept, and a helper that the server made for it, where it makes one; None
        where clients keep nothing.
    """
    if not keeps_state(protocol):
        return None
    clients = [int(client) for client in participants]
    found: dict[int, dict[str, np.ndarray]] = {}
    for client in clients:
        own = kept.get(client, {})
        # Its last upload is the server's memory, not the client's: it does not travel to the
        # client.
        found[client] = {name: array for name, array in own.items() if name != SENT}
    rule = protocol.personalization
    sent = {client: state[SENT] for client, state in kept.items() if SENT in state}
    for client, helper in SERVER_HELPERS.of(rule)(rule, weights, clients, sent).items():
        found[client][HELPER] = helper
    return found


def merge_kept(
    protocol: Protocol,
    initial: np.ndarray,
    before: ClientState,
    upload: Upload,
) -> ClientState:
    """Returns the state kept of a client after its round, by itself and by the server.

    Args:
        protocol: The federation whose rounds are played.
        initial: The model before the first round.
        before: What was kept until now.
        upload: What the client sent and kept in this round.
    """
    kept = dict(upload.kept or {})
    if protocol.personalization.of_uploads:
        kept[SENT] = upload.vector
    if upload.rows is True:
        return kept
    # In a table of trainings a client that did not take part in a row keeps what it had: the
    # initial model, moments of zero, and no upload (NaN) until its first round.
    merged: dict[str, np.ndarray] = {}
    for name, array in kept.items():
        unused: Any = 0
        if name == OWN_MODEL:
            unused = initial
        elif name == SENT:
            unused = np.nan
        merged[name] = np.where(upload.rows, array, before.get(name, unused)).astype(array.dtype)
    return merged


@SERVER_HELPERS.register(NoPersonalization, Identity, Interpolate)
def make_no_helpers(
    rule: NoPersonalization | Identity | Interpolate,
    weights: np.ndarray,
    clients: list[int],
    sent: Mapping[int, np.ndarray],
) -> dict[int, np.ndarray]:
    """Returns no helper: under these rules the server remembers no uploads to make one of.

    Args:
        rule: The personalization.
        weights: The global model, or a table with one training a row.
        clients: The participants.
        sent: What clients last sent, which is nothing.
    """
    return {}


@SERVER_HELPERS.register(Attention)
def make_helpers(
    rule: Attention,
    weights: np.ndarray,
    clients: list[int],
    sent: Mapping[int, np.ndarray],
) -> dict[int, np.ndarray]:
    """Returns the helper of every client that has sent something before.

    Args:
        rule: How much of a helper is the client's own upload.
        weights: The global model, or a table with one training a row.
        clients: Those that are given a helper.
        sent: What clients last sent; in a table, rows without an upload are NaN.
    """
    if weights.ndim == 1:
        return make_attentive_helpers(rule, weights, clients, sent)
    # Trainings of a table are independent: attention compares uploads within one row only.
    helpers = {client: weights.copy() for client in clients}
    for row, model in enumerate(weights):
        here = {}
        for client, table in sent.items():
            if not np.isnan(table[row]).all():
                here[client] = table[row]
        for client, helper in make_attentive_helpers(rule, model, clients, here).items():
            helpers[client][row] = helper
    return helpers


def make_attentive_helpers(
    rule: Attention,
    weights: np.ndarray,
    clients: list[int],
    sent: Mapping[int, np.ndarray],
) -> dict[int, np.ndarray]:
    """Returns helpers in which uploads weigh more that are like the client's own.

    Alike is the cosine of what two uploads differ by from the global model (Huang et al. 2021,
    with its exponential of the cosine).

    Args:
        rule: The share of the own upload, and how sharply the others are told apart.
        weights: The global model.
        clients: Those that are given a helper, if they have sent something.
        sent: What clients last sent.

    Example:
        >>> sent = {0: np.array([1.0, 0.0]), 1: np.array([1.0, 0.1]), 2: np.array([-1.0, 0.0])}
        >>> rule = Attention(own=0.0, sharpness=50.0)
        >>> make_attentive_helpers(rule, np.zeros(2), [0], sent)[0].round(3)
        array([1. , 0.1])
    """
    known = sorted(sent)
    asked = [client for client in clients if client in sent]
    if not asked or len(known) == 1:
        # With nobody to compare with, a softmax over the others has nothing to sum over.
        return {client: sent[client] for client in asked}
    products = gram(weights, [sent[client] for client in known])
    shares = attention_shares(rule, [known.index(client) for client in asked], products)
    helpers = np.zeros((len(asked), weights.size))
    for column, client in enumerate(known):
        # One upload at a time: all of them in double precision need not fit in memory, and a matrix
        # product would add them up in an order that the machine chooses, where seeded runs promise
        # every bit.
        helpers += np.multiply.outer(shares[:, column], sent[client].astype(np.float64))
    return {
        client: helper.astype(weights.dtype) for client, helper in zip(asked, helpers, strict=True)
    }


def gram(weights: np.ndarray, uploads: list[np.ndarray], block: int = 1 << 16) -> np.ndarray:
    """Returns the inner products of the uploads' differences from the global model.

    Args:
        weights: The global model.
        uploads: One vector each.
        block: How many coordinates are added up at a time, which bounds the memory.
    """
    total = np.zeros((len(uploads), len(uploads)))
    for start in range(0, weights.size, block):
        part = slice(start, start + block)
        rows = np.stack([upload[part] for upload in uploads]).astype(np.float64) - weights[part]
        total += rows @ rows.T
    return total


def attention_shares(rule: Attention, asked: list[int], products: np.ndarray) -> np.ndarray:
    """Returns the shares of all uploads in each helper.

    Args:
        rule: The share of the own upload, and how sharply the others are told apart.
        asked: The places of the clients among those that have sent something.
        products: Inner products of the uploads' moves.

    Returns:
        One row per client asked for, summing to 1: its own share, and a softmax over the others.
    """
    lengths = np.sqrt(np.diag(products))
    # An upload equal to the global model has no direction; the floor makes its cosines 0, not NaN.
    cosines = products / np.maximum(np.outer(lengths, lengths), 1e-300)
    scores = rule.sharpness * cosines[asked]
    own = (np.arange(len(asked)), asked)
    # The own upload has its fixed share and takes no part in the softmax.
    scores[own] = -np.inf
    shares: np.ndarray = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares *= (1 - rule.own) / shares.sum(axis=1, keepdims=True)
    shares[own] = rule.own
    return shares

"""Notes in a client's ledger what it gives for secure sums, and refuses to give it twice.

The ledger is the witness: an old copy of the file with seeds and shares does not know the last
rounds, and would give a second upload under the same masks, or shares for a second list.
"""

from __future__ import annotations

import hashlib

from sordino.flower.client_store import ClientStore
from sordino.flower.sum_messages import Label
from sordino.privacy.ledger_lines import (
    Answered,
    KeyGiven,
    SharesGiven,
    SurvivorsConfirmed,
)
from sordino.secure_sums.key_roster import SecureSumRefused

# Trainings in which keys are given under one agreement. With each, a server sees another graph of
# neighbours, and has another chance of 2^-40 of one that exposes a client (docs/theory.md#a19).
MOST_TRAININGS = 1000


def refuse_second_key(store: ClientStore, training: str) -> None:
    """Refuses to draw a key for letters in a training in which one was given before.

    A server that could have keys drawn again would choose who holds shares for whom.

    Args:
        store: The client's folder.
        training: Name of the training.

    Raises:
        SecureSumRefused: The ledger has it, or has too many trainings.
    """
    given = _list_trainings_with_keys(store)
    if _digest_name(training) in given:
        raise SecureSumRefused(
            "a key for letters was given in this training before, and is gone: begin another "
            "training"
        )
    if len(given) >= MOST_TRAININGS:
        raise SecureSumRefused(
            f"keys for letters were given in {len(given):,} trainings, and that is the most under "
            "one agreement"
        )


def note_key(store: ClientStore, training: str) -> None:
    """Notes that the key for letters of a training is about to be given.

    Args:
        store: The client's folder.
        training: Name of the training.
    """
    # Asked again, the client gives the same key, and notes it once.
    if _digest_name(training) not in _list_trainings_with_keys(store):
        store.note_sum(KeyGiven(training=_digest_name(training)))


def _list_trainings_with_keys(store: ClientStore) -> list[str]:
    return [event.training for event in store.events if isinstance(event, KeyGiven)]


def _digest_name(training: str) -> str:
    # The server chooses the name, and could choose a long one.
    return hashlib.sha256(training.encode()).hexdigest()


def list_answered_sums(store: ClientStore) -> list[Label]:
    """Returns the labels under which a masked upload was, or was about to be, sent.

    Args:
        store: The client's folder.
    """
    return [
        Label(round=event.round, attempt=event.attempt)
        for event in store.events
        if isinstance(event, Answered) and event.attempt is not None
    ]


def refuse_second_upload(store: ClientStore, label: Label) -> None:
    """Refuses to mask an upload under a label under which one has left.

    Args:
        store: The client's folder.
        label: The label.

    Raises:
        SecureSumRefused: The ledger has it.
    """
    # A second vector under the same masks would show the difference of the two.
    if label in list_answered_sums(store):
        raise SecureSumRefused(f"an upload of this client has left in {label} already")


def note_confirmation(store: ClientStore, label: Label, alive: tuple[int, ...]) -> None:
    """Notes that a list of survivors is about to be signed; refuses a second list.

    Args:
        store: The client's folder.
        label: The label.
        alive: The survivors.

    Raises:
        SecureSumRefused: The ledger has another list for that label.
    """
    wanted = SurvivorsConfirmed(round=label.round, attempt=label.attempt, survivors=alive)
    for event in store.events:
        if isinstance(event, SurvivorsConfirmed) and _is_about(event, label):
            if event == wanted:
                # The reply was lost: the same list again.
                return
            raise SecureSumRefused(
                f"another list of survivors was confirmed in {label}: {list(event.survivors)}"
            )
    store.note_sum(wanted)


def refuse_second_list(store: ClientStore, label: Label, alive: tuple[int, ...]) -> None:
    """Refuses a list of survivors if shares were given for another one under the same label.

    Args:
        store: The client's folder.
        label: The label.
        alive: The survivors.

    Raises:
        SecureSumRefused: The ledger has another list.
    """
    for event in store.shares_given:
        if _is_about(event, label) and event.survivors != alive:
            raise SecureSumRefused(
                f"shares of {label} were given for other survivors: {list(event.survivors)}"
            )


def note_shares(store: ClientStore, label: Label, threshold: int, alive: tuple[int, ...]) -> None:
    """Notes that shares are about to be given for a list of survivors.

    Args:
        store: The client's folder.
        label: The label.
        threshold: The fewest contributions that are ever opened.
        alive: The survivors.
    """
    given = SharesGiven(
        round=label.round, attempt=label.attempt, threshold=threshold, survivors=alive
    )
    # After a crash between ledger and state the note is there already, and is not made twice.
    if given not in store.shares_given:
        store.note_sum(given)


def _is_about(event: SurvivorsConfirmed | SharesGiven, label: Label) -> bool:
    return (event.round, event.attempt) == (label.round, label.attempt)

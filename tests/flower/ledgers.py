"""Compares the coordinator's ledger of a run with those of its clients."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from sordino.flower.client_store import ClientStore
from sordino.privacy.ledger import read_ledger
from sordino.privacy.ledger_lines import Missed, RoundCharged


def find_repeated_charges(run: Path, clients: Sequence[ClientStore]) -> list[str]:
    """Rounds that a client, or the coordinator, charged more than once."""
    ledgers = {f"client {store.agreement.client}": store.rounds_paid for store in clients}
    events = read_ledger(run / "ledger.jsonl").events
    ledgers["coordinator"] = [event.round for event in events if isinstance(event, RoundCharged)]
    return [
        f"{who} charged round {number} {times} times"
        for who, rounds in ledgers.items()
        for number, times in Counter(rounds).items()
        if times > 1
    ]


def find_losses(run: Path, clients: Sequence[ClientStore]) -> list[str]:
    """What one ledger knows and the other does not, and rounds that ended without a trace."""
    # Clients' ledgers first: while a training goes on, the coordinator's is ahead of them.
    answered = {store.agreement.client: set(store.upload_digests) for store in clients}
    paid = {store.agreement.client: set(store.rounds_paid) for store in clients}
    rows = read_rows(run)
    events = read_ledger(run / "ledger.jsonl").events
    charged = pairs_of(event for event in events if isinstance(event, RoundCharged))
    missed = pairs_of(event for event in events if isinstance(event, Missed))
    found = [
        f"client {client} paid for round {number}, which the coordinator did not charge"
        for client, rounds in paid.items()
        for number in sorted(rounds)
        if (number, client) not in charged
    ]
    if [row["round"] for row in rows] != list(range(len(rows))):
        found.append("a round is missing in the run")
    # A round that has just ended may be newer than what was read of the clients.
    known = max((max(rounds, default=-1) for rounds in answered.values()), default=-1)
    for number, client in sorted(charged - missed):
        if number < min(len(rows), known) and number not in answered[client]:
            found.append(f"round {number} counts an upload that client {client} never made")
    for row in rows:
        counted = [client for number, client in charged - missed if number == row["round"]]
        if len(counted) != row["participants"]:
            found.append(f"round {row['round']} has {row['participants']} uploads, not {counted}")
    return found


def pairs_of(events: Iterable[RoundCharged | Missed]) -> set[tuple[int, int]]:
    """Every round with every client that an event names."""
    return {(event.round, client) for event in events for client in event.clients}


def read_rows(run: Path) -> list[dict[str, float]]:
    """The facts of every round that has ended."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]

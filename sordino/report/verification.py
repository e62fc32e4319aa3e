"""Whether the folder of a run holds what the run wrote: everything that can be checked, and what cannot.

Digests are held against the seals in the ledger (federation/seals.py), signatures against keys (federation/signatures.py). What follows
from the protocol and the ledger is worked out anew: who was drawn, the prices, the numbers of the report.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from sordino.federation.folder import RunFolder
from sordino.federation.participation import Attendance, participants
from sordino.federation.randomness import Key
from sordino.federation.run import Run
from sordino.federation.seals import Check, seal_checks
from sordino.federation.setup import prepare
from sordino.federation.signatures import (
    evidence_of,
    signature_checks,
    signed_evidence,
    signers_of,
)
from sordino.federation.uploads import kept_rounds, read_round
from sordino.privacy.caps import capped_rounds
from sordino.privacy.ledger import Missed, RoundCharged, refuse_unpaid
from sordino.privacy.ledger import read as read_ledger
from sordino.protocol import SordinoError, UserError, View
from sordino.protocol.documents import plain
from sordino.protocol.errors import Changed
from sordino.report.evidence import audits_of
from sordino.report.promises import headline_of, promised
from sordino.report.words import claim
from sordino.report.writing import PAGE

CLOSE = 1e-9  # relative: what is worked out anew on another machine may differ in its last bits
BLOCK = re.compile(r'id="sordino-report">(.*?)</script>', re.DOTALL)
HEADLINE = re.compile(r"<h1>(.*?)</h1>", re.DOTALL)
GENERATOR = re.compile(r'name="generator" content="Sordino ([^"]*)"')


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Everything that was checked in the folder of a run.

    Attributes:
        folder: the run's folder.
        checks: what was looked at, in order.
        sealed: whether the ledger seals the run.
        signers: fingerprints of the keys that have signed the run as it is.

    Example:
        >>> verify("runs/digits-1").whole  # doctest: +SKIP
        True
    """

    folder: str
    checks: tuple[Check, ...]
    sealed: bool
    signers: tuple[str, ...]

    @property
    def changed(self) -> tuple[Check, ...]:
        """What was found to be changed."""
        return tuple(check for check in self.checks if check.result == "changed")

    @property
    def whole(self) -> bool:
        """Whether nothing was found to be changed."""
        return not self.changed

    def as_document(self) -> dict[str, Any]:
        """The verification as JSON says it."""
        return {
            "folder": self.folder,
            "whole": self.whole,
            "sealed": self.sealed,
            "signed_by": list(self.signers),
            "checks": [asdict(check) for check in self.checks],
        }


def verify(folder: str | Path, *, key: str | None = None) -> Verification:
    """Checks everything in the folder of a run that can be checked.

    Args:
        folder: the run's folder.
        key: the fingerprint of the key that must have signed the run; None if no key is asked for.

    Returns:
        What was checked; nothing is written.

    Raises:
        UserError: there is no run.
    """
    place = RunFolder.existing(Path(folder))
    checks = list(file_checks(place))
    signers: tuple[str, ...] = ()
    sealed = False
    if not changed_in(checks):
        sealed = Run.load(place.path).sealed
        signers = signers_of(place.path)
        checks += signature_checks(place.path, key)
        checks += work_checks(Run.load(place.path))
    elif key is not None:
        checks += guarded("signature", lambda: signature_checks(place.path, key))
    return Verification(
        folder=str(place.path), checks=tuple(checks), sealed=sealed, signers=signers
    )


def changed_in(checks: list[Check]) -> bool:
    """Returns whether one of the checks failed."""
    return any(check.result == "changed" for check in checks)


def guarded(subject: str, checked: Callable[[], list[Check]]) -> list[Check]:
    """Returns checks, or the refusal that stood in their way as one that failed."""
    try:
        return checked()
    except UserError as error:
        return [Check(subject=subject, result="changed", said=str(error))]


def file_checks(place: RunFolder) -> Iterator[Check]:
    """Yields what became of the files: chain, protocol, seals, and that they can be read."""
    ledger = guarded("ledger", lambda: [ledger_check(place)])
    yield from ledger
    if changed_in(ledger):
        return
    protocol = guarded("protocol", lambda: [protocol_check(place)])
    yield from protocol
    if changed_in(protocol):
        return
    seals = guarded("run folder", lambda: seal_checks(place))
    yield from seals
    if not changed_in(seals):
        yield from guarded("run folder", lambda: [readable(place)])


def ledger_check(place: RunFolder) -> Check:
    """Returns whether every line of the ledger follows from the one before, and pays for every round that was run."""
    reading = read_ledger(place.ledger_path)
    refuse_unpaid(place.ledger_path, reading.events, len(place.metrics()))
    state, _ = place.load_checkpoint()
    if state is not None:
        refuse_unpaid(place.ledger_path, reading.events, state.round)
    paid = sum(isinstance(event, RoundCharged) for event in reading.events)
    said = f"every line follows from the one before; {paid:,} rounds paid for; sha256 {reading.chain[:12]}"
    return Check(subject="ledger", result="whole", said=said)


def protocol_check(place: RunFolder) -> Check:
    """Returns whether the protocol is the one that the ledger was opened with."""
    place.protocol()
    return Check(subject="protocol", result="whole", said="the one that the ledger was opened with")


def readable(place: RunFolder) -> Check:
    """Returns that all files can be read; a refusal says which cannot."""
    Run.load(place.path)
    return Check(subject="run folder", result="whole", said="every file can be read")


def work_checks(run: Run) -> list[Check]:
    """Returns what became of everything that is worked out anew."""
    checks = guarded("partition and sizes", lambda: partition_checks(run))
    checks += guarded("participants", lambda: [*metric_checks(run), *draw_checks(run)])
    checks += guarded("kept uploads", lambda: upload_checks(run))
    checks += guarded("prices", lambda: price_checks(run))
    checks += guarded("audits", lambda: audit_checks(run))
    checks.append(data_check(run))
    checks.append(training_check())
    return checks


def partition_checks(run: Run) -> list[Check]:
    """Returns whether clients have as many labels as records."""
    shares = RunFolder(run.folder).shares()
    if shares is None:
        return []
    counted = tuple(int(count) for count in shares.counts.sum(axis=1))
    if counted != run.sizes:
        said = f"{run.folder / 'partition.json'} was changed: its labels do not add up to the clients' records."
        return [Check(subject="partition and sizes", result="changed", said=said)]
    said = "every client has as many labels as records"
    return [Check(subject="partition and sizes", result="whole", said=said)]


def metric_checks(run: Run) -> list[Check]:
    """Returns whether as many clients contributed to each round as the ledger charged."""
    contributed = contributions(run)
    for round, count in zip(run.metrics["round"], run.metrics["participants"], strict=True):
        if np.isnan(count):  # kept apart, and not here
            continue
        if int(count) != contributed.get(int(round), 0):
            said = (
                f"{run.folder / 'metrics.jsonl'} was changed: it says that {int(count)} clients contributed to round {int(round)}, "
                f"and the ledger says {contributed.get(int(round), 0)}."
            )
            return [Check(subject="participants", result="changed", said=said)]
    return []


def contributions(run: Run) -> dict[int, int]:
    """Returns how many clients contributed to each round, by its last charge in the ledger."""
    found: dict[int, int] = {}
    for event in run.ledger:
        if isinstance(event, RoundCharged):
            found[event.round] = len(event.clients)
        elif isinstance(event, Missed):
            found[event.round] -= len(event.clients)
    return found


def draw_checks(run: Run) -> list[Check]:
    """Returns whether the clients of every round are those that the seed draws."""
    protocol = run.protocol
    if protocol.noise.secure or protocol.seed is None:
        said = "who takes part was drawn with the operating system's entropy, which is kept nowhere"
        return [Check(subject="participants", result="not checked", said=said)]
    caps = {own.id: capped_rounds(protocol, own, run.sizes[own.id]) for own in protocol.client}
    attendance = Attendance(caps, (), next_round=0)
    key = Key.from_seed(protocol.seed)
    charged = {event.round: event for event in run.ledger if isinstance(event, RoundCharged)}
    for round in sorted(charged):
        drawn = attendance.admit(participants(protocol, round=round, key=key), round=round)
        if tuple(drawn.tolist()) != charged[round].clients:
            said = f"{run.folder / 'ledger.jsonl'} was changed: the seed draws other clients for round {round} than it charges."
            return [Check(subject="participants", result="changed", said=said)]
    said = f"drawn anew for {len(charged):,} rounds: those that the ledger charges"
    return [Check(subject="participants", result="whole", said=said)]


def upload_checks(run: Run) -> list[Check]:
    """Returns whether the arrays of kept uploads are those that their files, which are sealed, note."""
    rounds = kept_rounds(run.folder)
    for round in rounds:
        read_round(run.folder, round)
    if not rounds:
        return []
    said = f"the arrays of {len(rounds):,} rounds are those that their files note"
    return [Check(subject="kept uploads", result="whole", said=said)]


@dataclass(frozen=True, kw_only=True)
class Page:
    """What a report says: its headline, its numbers for machines, and the version that wrote it."""

    path: Path
    headline: str
    document: dict[str, Any]
    version: str


def read_page(path: Path) -> Page:
    """Reads a report.

    Raises:
        Changed: it is not a report of ours any more.
    """
    try:
        text = path.read_text(encoding="utf-8")
        headline, block, written = (
            found.group(1) if (found := pattern.search(text)) else None
            for pattern in (HEADLINE, BLOCK, GENERATOR)
        )
        document = json.loads(block or "")
        if not isinstance(document, dict) or headline is None or written is None:
            raise ValueError("a part is missing")
    except (OSError, ValueError) as error:
        raise Changed(f"{path} was changed: it is no report of a run ({error}).") from None
    return Page(path=path, headline=html.unescape(headline), document=document, version=written)


def price_checks(run: Run) -> list[Check]:
    """Returns whether the report says what is worked out anew from what is sealed."""
    asked = headline_of(run)
    anew = promised(run, asked)
    priced = f"worked out anew: {anew.sentence(asked[2])}"
    checks = [Check(subject="price", result="whole", said=priced)]
    path = run.folder / PAGE
    if not path.exists():
        said = "there is no report.html"
        return [*checks, Check(subject="report", result="not checked", said=said)]
    page = read_page(path)
    if page.document.get("run", {}).get("status") == "unfinished" != run.status:
        said = (
            "report.html was written before the run had ended; write it anew with `sordino report`"
        )
        return [*checks, Check(subject="report", result="not checked", said=said)]
    return [*checks, page_check(run, page)]


def page_check(run: Run, page: Page) -> Check:
    """Returns whether the numbers of a report are those of the run."""
    subject = "report"
    try:
        difference = first_difference(run, page)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        difference = f"its numbers for machines are not those of a report ({error!r})", True
    if difference is None:
        said = "headline, prices, metrics and records are those of the run; its other words are not compared"
        return Check(subject=subject, result="whole", said=said)
    said, unsafe = difference
    if not unsafe and page.version != version("sordino"):
        said = f"report.html was written by Sordino {page.version}, which said more: {said}"
        return Check(subject=subject, result="not checked", said=said)
    return Check(
        subject=subject, result="changed", said=f"{page.path} does not fit the run: {said}."
    )


def first_difference(run: Run, page: Page) -> tuple[str, bool] | None:
    """Returns what a report says that the run does not, and whether it promises too much; None where it says the same."""
    document, asked = page.document, headline_of(run)
    rows = [
        document["run"]["guarantee"],
        *(row for rows in document["guarantees"].values() for row in rows),
    ]
    for row in rows:
        anew = promised(run, (View.parse(row["view"]), row["unit"], row["delta"]))
        found, true = as_number(row["epsilon"]), anew.epsilon(row["delta"])
        if not close(found, true):
            said = f"epsilon = {found:.6g} in the view {row['view']}, unit {row['unit']}, where certify gives {true:.6g}"
            return said, found < true
    expected = claim(promised(run, asked), asked[2])
    if page.headline != expected:
        return f"its headline reads {page.headline!r}, and should read {expected!r}", True
    return other_difference(run, document)


def other_difference(run: Run, document: dict[str, Any]) -> tuple[str, bool] | None:
    """Returns what a report says otherwise about how the run ended, its clients and its rounds."""
    if document["run"]["status"] != run.status:
        return f"it says that the run is {document['run']['status']}", True
    for row in document["clients"]:
        if row["records"] != run.sizes[row["client"]]:
            return f"client {row['client']} has {row['records']} records there", True
    places = {int(round): place for place, round in enumerate(run.metrics["round"])}
    shown = document["metrics"]
    for name, values in shown.items():
        for round, value in zip(shown["round"], values, strict=True):
            true = plain(run.metrics[name][places[round]])
            # What was left out of a page is no difference.
            if value is not None and value != true:
                return f"{name} of round {round} is {value} there", True
    for name in ("loss", "accuracy"):
        value = document["run"].get(name)
        if value is not None and len(run.metrics[name]) and value != plain(run.metrics[name][-1]):
            return f"the last {name} is {value} there", True
    return None


def as_number(value: Any) -> float:
    """Returns a number of a JSON document, in which infinity is a text."""
    return math.inf if value == "inf" else float(value)


def close(one: float, other: float) -> bool:
    """Returns whether two numbers are equal up to their last bits."""
    return one == other or math.isclose(one, other, rel_tol=CLOSE)


def audit_checks(run: Run) -> list[Check]:
    """Returns whether audits of the run were held against what it promises, and that nothing else in them is sealed."""
    checks = []
    found = audits_of(run.folder)
    for audit in found:
        anew = promised(run, (View.parse(audit.view), audit.unit, audit.delta)).epsilon(audit.delta)
        if audit.certified < anew and not close(audit.certified, anew):
            said = (
                f"an audit in {run.folder / 'audits'} says that epsilon = {audit.certified:.6g} is certified in the view {audit.view}; "
                f"certify gives {anew:.6g}."
            )
            checks.append(Check(subject="audits", result="changed", said=said))
    evidence = evidence_of(run.folder)
    signed = signed_evidence(run.folder)
    loose = [name for name, digest in evidence.items() if signed.get(name) != digest]
    if loose:
        said = f"no seal covers {', '.join(loose)}: findings are added after the end; a signature covers what is there when it is made"
        checks.append(Check(subject="audits and attacks", result="not checked", said=said))
    elif evidence:
        said = f"{len(evidence)} findings, as they were signed"
        checks.append(Check(subject="audits and attacks", result="whole", said=said))
    return checks


def data_check(run: Run) -> Check:
    """Returns whether the data on this machine are those that the run was trained on."""
    subject = "data"
    if run.engine == "flower":
        said = "the records are with the clients; the server knows how many there are"
        return Check(subject=subject, result="not checked", said=said)
    try:
        found = prepare(run.protocol).data_digest
    except SordinoError as error:
        said = f"the data cannot be read here: {error}"
        return Check(subject=subject, result="not checked", said=said)
    if found != run.facts["data_digest"]:
        said = "the data here are not those that the run was trained on, or another version shared them out"
        return Check(subject=subject, result="not checked", said=said)
    return Check(
        subject=subject, result="whole", said="read anew: those that the run was trained on"
    )


def training_check() -> Check:
    """Returns what no digest can show."""
    said = "that the model came of these rounds: only training again shows it (seeded noise: bit for bit)"
    return Check(subject="training", result="not checked", said=said)

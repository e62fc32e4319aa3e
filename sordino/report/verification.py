"""Verifies that the folder of a run holds what the run wrote.

Digests are compared with the seals in the ledger (federation/store/seals.py), signatures with keys
(federation/store/signatures.py). Participants, prices and the numbers of the report follow from the
protocol and the ledger, and are computed again (report/page_verification.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino.federation.attendance import Attendance, draw_attendance
from sordino.federation.setup import prepare
from sordino.federation.store.run import Run
from sordino.federation.store.run_folder import RunFolder
from sordino.federation.store.seals import SealCheck, seal_checks
from sordino.federation.store.signatures import (
    evidence_of,
    signature_checks,
    signed_evidence,
    signers_of,
)
from sordino.federation.store.upload_archive import kept_rounds, read_round
from sordino.privacy.ledger import read_ledger, refuse_unpaid
from sordino.privacy.ledger_lines import Missed, RoundCharged
from sordino.privacy.participation_caps import find_capped_rounds
from sordino.protocol import SordinoError, UserError, View
from sordino.randomness import Key
from sordino.report.evidence import read_audits
from sordino.report.page_verification import are_close, check_prices
from sordino.report.run_prices import Headline, price_run


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Holds everything that was checked in the folder of a run.

    Attributes:
        folder: The run's folder.
        checks: The checks, in the order in which they were made.
        sealed: Whether the ledger seals the run.
        signers: The fingerprints of the keys that have signed the present state of the run.

    Example:
        >>> verify("runs/digits-1").whole  # doctest: +SKIP
        True
    """

    folder: str
    checks: tuple[SealCheck, ...]
    sealed: bool
    signers: tuple[str, ...]

    @property
    def changed(self) -> tuple[SealCheck, ...]:
        """The checks that found a change."""
        return tuple(check for check in self.checks if check.result == "changed")

    @property
    def whole(self) -> bool:
        """Whether no check found a change."""
        return not self.changed

    def as_document(self) -> dict[str, Any]:
        """Returns the verification as a JSON document."""
        return {
            "folder": self.folder,
            "whole": self.whole,
            "sealed": self.sealed,
            "signed_by": list(self.signers),
            "checks": [asdict(check) for check in self.checks],
        }


def verify(folder: str | Path, *, key: str | None = None) -> Verification:
    """Checks everything in the folder of a run that can be checked, and writes nothing.

    Args:
        folder: The run's folder.
        key: The fingerprint of the key that must have signed the run; None if no key is required.

    Returns:
        All checks.

    Raises:
        UserError: There is no run.
    """
    place = RunFolder.existing(Path(folder))
    checks = list(check_files(place))
    signers: tuple[str, ...] = ()
    sealed = False
    # Contents are computed from files, so nothing follows from them where files were changed.
    if not any_changed(checks):
        run = Run.load(place.path)
        sealed = run.sealed
        signers = signers_of(place.path)
        checks += signature_checks(place.path, key)
        checks += check_contents(run)
    # Signatures do not depend on the contents, so a key is checked in any case.
    elif key is not None:
        checks += run_checks("signature", lambda: signature_checks(place.path, key))
    return Verification(
        folder=str(place.path),
        checks=tuple(checks),
        sealed=sealed,
        signers=signers,
    )


def any_changed(checks: list[SealCheck]) -> bool:
    """Returns whether one of the checks found a change.

    Args:
        checks: The checks.
    """
    return any(check.result == "changed" for check in checks)


def run_checks(subject: str, check: Callable[[], list[SealCheck]]) -> list[SealCheck]:
    """Runs checks; where a file cannot be read, that is a check that found a change.

    Args:
        subject: The part that is checked.
        check: Makes the checks.
    """
    try:
        return check()
    # Files that were changed are often refused by whatever reads them.
    except UserError as error:
        return [SealCheck(subject=subject, result="changed", said=str(error))]


def check_files(place: RunFolder) -> Iterator[SealCheck]:
    """Yields checks of the files: the chain, the protocol, the seals, and that they can be read.

    Args:
        place: The run's folder.

    Yields:
        Checks, until one of them fails: later ones rely on earlier ones.
    """
    # Each stage relies on those before: the ledger holds the seals, and the seals the digests.
    stages: tuple[tuple[str, Callable[[], list[SealCheck]]], ...] = (
        ("ledger", lambda: [check_ledger(place)]),
        ("protocol", lambda: [check_protocol(place)]),
        ("run folder", lambda: seal_checks(place)),
        ("run folder", lambda: [check_readable(place)]),
    )
    for subject, check in stages:
        checks = run_checks(subject, check)
        yield from checks
        if any_changed(checks):
            return


def check_ledger(place: RunFolder) -> SealCheck:
    """Checks that every line of the ledger follows from the one before and charges every round.

    Args:
        place: The run's folder.

    Raises:
        UserError: A line was changed, or a round was not charged.
    """
    reading = read_ledger(place.ledger_path)
    # The privacy of a round that was published and not charged would be counted nowhere.
    refuse_unpaid(place.ledger_path, reading.events, len(place.metrics()))
    # The checkpoint may be ahead of the metrics by one round.
    state, _ = place.load_checkpoint()
    if state is not None:
        refuse_unpaid(place.ledger_path, reading.events, state.round)
    charges = sum(isinstance(event, RoundCharged) for event in reading.events)
    said = (
        f"every line follows from the one before; {charges:,} rounds charged; "
        f"sha256 {reading.chain[:12]}"
    )
    return SealCheck(subject="ledger", result="whole", said=said)


def check_protocol(place: RunFolder) -> SealCheck:
    """Checks that the protocol is the one that the ledger was opened with.

    Args:
        place: The run's folder.

    Raises:
        UserError: It is another protocol.
    """
    # Reading compares the protocol's digest with the one in the ledger.
    place.protocol()
    return SealCheck(
        subject="protocol", result="whole", said="the one that the ledger was opened with"
    )


def check_readable(place: RunFolder) -> SealCheck:
    """Checks that all files can be read.

    Args:
        place: The run's folder.

    Raises:
        UserError: A file cannot be read; the message says which.
    """
    Run.load(place.path)
    return SealCheck(subject="run folder", result="whole", said="every file can be read")


def check_contents(run: Run) -> list[SealCheck]:
    """Checks everything that can be computed again.

    Args:
        run: What was trained.
    """
    # Every group runs by itself, so that one damaged file does not hide another.
    checks = run_checks("partition and sizes", lambda: check_partition(run))
    checks += run_checks("participants", lambda: [*check_metrics(run), *check_draws(run)])
    checks += run_checks("kept uploads", lambda: check_uploads(run))
    checks += run_checks("prices", lambda: check_prices(run))
    checks += run_checks("audits", lambda: check_audits(run))
    checks.append(check_data(run))
    checks.append(mention_training())
    return checks


def check_partition(run: Run) -> list[SealCheck]:
    """Checks that clients have as many labels as records.

    Args:
        run: What was trained.
    """
    subject = "partition and sizes"
    shares = RunFolder(run.folder).shares()
    if shares is None:
        return []
    # If labels and records differed, prices would be about other numbers of records.
    counted = tuple(int(count) for count in shares.counts.sum(axis=1))
    if counted != run.sizes:
        path = run.folder / "partition.json"
        said = f"{path} was changed: its labels do not add up to the clients' records."
        return [SealCheck(subject=subject, result="changed", said=said)]
    return [
        SealCheck(
            subject=subject, result="whole", said="every client has as many labels as records"
        )
    ]


def check_metrics(run: Run) -> list[SealCheck]:
    """Checks that as many clients contributed to each round as the ledger charged.

    Args:
        run: What was trained.

    Returns:
        A check that found a change; none where there is no change.
    """
    contributed = count_contributions(run)
    for number, count in zip(run.metrics["round"], run.metrics["participants"], strict=True):
        # Such a number is withheld, and kept below private/ alone.
        if np.isnan(count):
            continue
        expected = contributed.get(int(number), 0)
        if int(count) != expected:
            said = (
                f"{run.folder / 'metrics.jsonl'} was changed: it says that {int(count)} clients "
                f"contributed to round {int(number)}, and the ledger says {expected}."
            )
            return [SealCheck(subject="participants", result="changed", said=said)]
    return []


def count_contributions(run: Run) -> dict[int, int]:
    """Counts the clients that contributed to each round, by its last charge in the ledger.

    Args:
        run: What was trained.

    Returns:
        The number of clients by round.
    """
    counts: dict[int, int] = {}
    for event in run.ledger:
        if isinstance(event, RoundCharged):
            # A round that was interrupted is charged again, and its last charge counts.
            counts[event.round] = len(event.clients)
        elif isinstance(event, Missed):
            counts[event.round] -= len(event.clients)
    return counts


def check_draws(run: Run) -> list[SealCheck]:
    """Checks that the clients of every round are those that the seed draws.

    Args:
        run: What was trained.
    """
    subject = "participants"
    protocol = run.protocol
    if protocol.noise.secure or protocol.seed is None:
        said = (
            "participants were drawn with the operating system's entropy, which is stored nowhere"
        )
        return [SealCheck(subject=subject, result="not checked", said=said)]
    caps = {own.id: find_capped_rounds(protocol, own, run.sizes[own.id]) for own in protocol.client}
    attendance = Attendance(caps, (), next_round=0)
    key = Key.from_seed(protocol.seed)
    charged = {event.round: event for event in run.ledger if isinstance(event, RoundCharged)}
    # In the order of the rounds, since a client whose budget is spent is left out of later ones.
    for number in sorted(charged):
        drawn = attendance.admit(
            draw_attendance(protocol, round_index=number, key=key, trainings=range(1)),
            round_index=number,
        )
        if tuple(np.flatnonzero(drawn).tolist()) != charged[number].clients:
            said = (
                f"{run.folder / 'ledger.jsonl'} was changed: the seed draws other clients for "
                f"round {number} than the ledger charges."
            )
            return [SealCheck(subject=subject, result="changed", said=said)]
    said = f"drawn again for {len(charged):,} rounds: those that the ledger charges"
    return [SealCheck(subject=subject, result="whole", said=said)]


def check_uploads(run: Run) -> list[SealCheck]:
    """Checks that the arrays of kept uploads have the digests that their sealed files note.

    Args:
        run: What was trained.

    Raises:
        UserError: An array was changed.
    """
    rounds = kept_rounds(run.folder)
    if not rounds:
        return []
    for number in rounds:
        # Reading compares the digests.
        read_round(run.folder, number)
    said = f"the arrays of {len(rounds):,} rounds have the digests that their files note"
    return [SealCheck(subject="kept uploads", result="whole", said=said)]


def check_audits(run: Run) -> list[SealCheck]:
    """Checks that audits compared the run with its price, and which findings are signed.

    Args:
        run: What was trained.
    """
    checks = []
    for audit in read_audits(run.folder):
        headline = Headline(View.parse(audit.view), audit.unit, audit.delta)
        epsilon = price_run(run, headline).epsilon(audit.delta)
        # An audit of an earlier state of the run may state a larger epsilon. Only a smaller one
        # would promise too much.
        if audit.certified < epsilon and not are_close(audit.certified, epsilon):
            said = (
                f"an audit in {run.folder / 'audits'} says that epsilon = {audit.certified:.6g} is "
                f"certified in the view {audit.view}; certify gives {epsilon:.6g}."
            )
            checks.append(SealCheck(subject="audits", result="changed", said=said))
    # Findings are added after the run was sealed, so only a signature can cover them.
    evidence = evidence_of(run.folder)
    signed = signed_evidence(run.folder)
    unsigned = [name for name, digest in evidence.items() if signed.get(name) != digest]
    subject = "audits and attacks"
    if unsigned:
        said = (
            f"no seal covers {', '.join(unsigned)}: findings are added after the end of a run; "
            "a signature covers those that exist when it is made"
        )
        checks.append(SealCheck(subject=subject, result="not checked", said=said))
    elif evidence:
        said = f"{len(evidence)} findings, as they were signed"
        checks.append(SealCheck(subject=subject, result="whole", said=said))
    return checks


def check_data(run: Run) -> SealCheck:
    """Checks that the data on this machine are those that the run was trained on.

    Args:
        run: What was trained.
    """
    subject = "data"
    if run.engine == "flower":
        said = "the records are with the clients; the server knows only how many there are"
        return SealCheck(subject=subject, result="not checked", said=said)
    try:
        # Loading and splitting again gives the digest that the run noted.
        digest = prepare(run.protocol).data_digest
    except SordinoError as error:
        said = f"the data cannot be read here: {error}"
        return SealCheck(subject=subject, result="not checked", said=said)
    if digest != run.facts["data_digest"]:
        said = (
            "the data here are not those that the run was trained on, "
            "or another version divided them among the clients"
        )
        # The folder is not changed: the data are outside of it.
        return SealCheck(subject=subject, result="not checked", said=said)
    said = "read again: those that the run was trained on"
    return SealCheck(subject=subject, result="whole", said=said)


def mention_training() -> SealCheck:
    """Returns a reminder of what no digest can show."""
    said = (
        "that the model came from these rounds: only training again shows it "
        "(seeded noise: bit for bit)"
    )
    return SealCheck(subject="training", result="not checked", said=said)

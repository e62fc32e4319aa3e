"""Seals: digests in a run's ledger of what the run is priced and shown by.

The ledger's first line seals what a run begins with, its last line what it leaves behind. A seal
without a signature shows that a part of a folder was changed; somebody who writes the whole folder
again writes the seals again too (signatures.py).

Times are not sealed: with seeded noise a run that was interrupted has to end with the same ledger,
bit for bit, as one that was not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sordino.data import LabelShares
from sordino.federation.store.files import read_noted_digest
from sordino.federation.store.run_folder import RunFolder
from sordino.privacy.ledger import Reading, first_entry, read_ledger
from sordino.privacy.ledger_lines import Opened, Sealed
from sordino.protocol.documents import to_json_value
from sordino.protocol.errors import Changed

# Entries of run.json that a guarantee, a price or a figure of the report follows from, other than
# `sizes`, `data_digest` and the status.
SEALED_FACTS = (
    "baseline",
    "generator",
    "input_shape",
    "model_digest",
    "noise",
    "outputs",
    "parameters",
)
# Those that say whether its scores are covered by its guarantee.
SCORED_FACTS = ("tested_on", "test_records")

Result = Literal["whole", "changed", "not checked"]


@dataclass(frozen=True, kw_only=True)
class SealCheck:
    """One thing in a run's folder that was looked at.

    Attributes:
        subject: What was looked at.
        result: "whole", "changed", or "not checked".
        said: A sentence: what was found, what was changed, or why it cannot be checked.

    Example:
        >>> SealCheck(subject="ledger", result="whole", said="every line is chained").result
        'whole'
    """

    subject: str
    result: Result
    said: str


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """Holds digests of what a run begins with, as the first line of its ledger has them.

    Attributes:
        sizes: Of the number of records of every client.
        partition: Partition of the labels of every client; empty where they were not written down.
        data: Data of the records and of how they were shared out.
        facts: Facts of the entries of run.json that prices and figures follow from.
        scored: Of whose records the model is scored on, and how many.
    """

    sizes: str
    partition: str
    data: str
    facts: str
    scored: str


def digest_of(value: Any) -> str:
    """Returns the SHA-256 of a value as JSON with sorted keys.

    Args:
        value: Anything that JSON can say.

    Returns:
        The digest, which does not depend on the order of keys.

    Example:
        >>> digest_of({"b": 1, "a": 2}) == digest_of({"a": 2, "b": 1})
        True
    """
    # No spaces and sorted keys: equal values must have equal bytes, in every version of Python.
    text = json.dumps(to_json_value(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def digest_beginning(facts: Mapping[str, Any], shares: LabelShares | None) -> Beginning:
    """Returns the digests of what a run begins with.

    Args:
        facts: What run.json says.
        shares: Which client has which records, where it is known.
    """
    return Beginning(
        sizes=digest_of(list(facts["sizes"])),
        partition=shares_seal(shares),
        data=str(facts["data_digest"]),
        facts=digest_of({name: facts.get(name) for name in SEALED_FACTS}),
        scored=digest_of({name: facts.get(name) for name in SCORED_FACTS}),
    )


def shares_seal(shares: LabelShares | None) -> str:
    """Returns the digest of a partition; empty where none was written down.

    Args:
        shares: Which client has which labels.
    """
    if shares is None:
        return ""
    classes = None if shares.classes is None else list(shares.classes)
    return digest_of({"classes": classes, "counts": shares.counts.tolist()})


def metrics_seal(rows: Sequence[Mapping[str, Any]] | None) -> str:
    """Returns the digest of the metrics of all rounds; empty where there are none.

    Args:
        rows: One entry per round.
    """
    if rows is None:
        return ""
    # The time that a round took differs from run to run, and a repeated run must get the same seal.
    timeless = [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
    return digest_of(timeless)


def file_seal(path: Path) -> str:
    """Returns the SHA-256 of a file; empty where there is none.

    Args:
        path: The file.
    """
    if not path.exists():
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def clients_seal(run: Path) -> str:
    """Returns one digest for the models that clients have kept; empty where there are none.

    Args:
        run: The run folder.
    """
    files = sorted((run / "clients").glob("*.safetensors"))
    return digest_of({path.name: file_seal(path) for path in files}) if files else ""


def uploads_seal(run: Path) -> str:
    """Returns one digest for the uploads that were kept; empty where there are none.

    Args:
        run: The run folder.
    """
    # Each file notes a digest of its arrays, which is held against them whenever the file is read.
    # Only the notes are read here: uploads may fill a disk.
    files = sorted((run / "uploads").glob("*.safetensors"))
    return digest_of({path.name: read_noted_digest(path) for path in files}) if files else ""


def seal_folder(place: RunFolder, *, status: str, rounds: int) -> Sealed:
    """Returns the last line of the ledger of a run that ends now, from what its folder holds.

    Args:
        place: The run folder.
        status: How the run ended.
        rounds: After how many rounds.

    Returns:
        The seal, which the caller writes.
    """
    facts = place.facts()
    begun = digest_beginning(facts, place.shares())
    return Sealed(
        status=status,
        rounds=rounds,
        reason=str(facts.get("reason", "")),
        protocol=first_entry(read_ledger(place.ledger_path).events, place.ledger_path).protocol,
        sizes=begun.sizes,
        partition=begun.partition,
        data=begun.data,
        facts=begun.facts,
        metrics=metrics_seal(place.published_metrics()),
        private=metrics_seal(place.private_metrics()),
        model=file_seal(place.path / "model.safetensors"),
        clients=clients_seal(place.path),
        uploads=uploads_seal(place.path),
        scored=begun.scored,
    )


# What each seal is about: as a check calls it, the file that it is in, and as a message says it.
SUBJECTS = {
    "sizes": ("records of each client", "run.json", "its sizes"),
    "partition": ("partition", "partition.json", "the clients' labels"),
    "data": ("digest of the data", "run.json", "its data_digest"),
    "facts": ("facts of the run", "run.json", "one of " + ", ".join(SEALED_FACTS)),
    "scored": ("whose records are scored", "run.json", " or ".join(SCORED_FACTS)),
    "metrics": ("metrics", "metrics.jsonl", "the metrics of the rounds"),
    "private": ("metrics kept apart", "private/metrics.jsonl", "the metrics that are kept apart"),
    "model": ("model", "model.safetensors", "the model"),
    "clients": ("models of the clients", "clients/", "a client's model"),
    "uploads": ("kept uploads", "uploads/", "an upload"),
}
AT_THE_START = ("sizes", "partition", "data", "facts", "scored")


def seal_checks(place: RunFolder) -> list[SealCheck]:
    """Returns what became of everything that a run's ledger seals.

    Args:
        place: The run folder.

    Returns:
        One check for each seal, in the order in which `verify` prints them.

    Raises:
        Changed: The ledger's chain is broken, or the protocol is not the one that the ledger was
            opened with.
        UserError: A file cannot be read.
    """
    facts = place.facts()
    # Reading the protocol holds it against the ledger; a change is raised, not listed.
    place.protocol()
    reading = read_ledger(place.ledger_path)
    opened = first_entry(reading.events, place.ledger_path)
    missing = missing_seal(place, facts, opened, reading)
    unsealed = opened.sizes is None and reading.seal is None
    # Where the seal itself was taken away, or there never was one, there is nothing to compare
    # with.
    if missing is not None and (missing.result == "changed" or unsealed):
        return [missing]
    begun = digest_beginning(facts, place.shares())
    expected = expected_seals(opened, reading.seal)
    checks = [] if missing is None else [missing]
    checks += [
        compare_seal(place, name, digest, getattr(begun, name)) for name, digest in expected.items()
    ]
    if reading.seal is not None:
        checks += end_checks(place, facts, reading.seal)
    return checks


def missing_seal(
    place: RunFolder,
    facts: Mapping[str, Any],
    opened: Opened,
    reading: Reading,
) -> SealCheck | None:
    """Returns what there is to say where the ledger's last line is not a seal.

    Args:
        place: The run folder.
        facts: What run.json says.
        opened: The first line of the ledger.
        reading: The whole ledger.

    Returns:
        A check, or None where the last line is a seal.
    """
    if reading.seal is not None:
        return None
    if facts["status"] == "unfinished":
        said = "the run has not ended: its metrics and its model are sealed when it does"
        return SealCheck(subject="seal", result="not checked", said=said)
    if opened.sizes is None:
        said = "the run was written before there were seals: a change of its files leaves no trace"
        return SealCheck(subject="seal", result="not checked", said=said)
    said = (
        f"{place.ledger_path} was changed: run.json says that the run is {facts['status']}, and "
        "the line that seals a run at its end is missing. What was spent cannot be known from it."
    )
    return SealCheck(subject="seal", result="changed", said=said)


def expected_seals(opened: Opened, seal: Sealed | None) -> dict[str, str | None]:
    """Returns what the ledger says a run began with.

    Args:
        opened: The first line of the ledger.
        seal: The last line, if it is a seal.

    Returns:
        The digests by name; None where one is still to come, and without those that an earlier
        version never wrote.
    """
    expected: dict[str, str | None] = {}
    for name in AT_THE_START:
        digest = getattr(opened, name)
        # A run that an earlier version started and this one ended has its seals in the last line.
        if digest is None and seal is not None:
            digest = getattr(seal, name)
        if digest is not None or seal is None:
            expected[name] = digest
    return expected


def end_checks(place: RunFolder, facts: Mapping[str, Any], seal: Sealed) -> list[SealCheck]:
    """Returns what became of everything that only the last line of a ledger seals.

    Args:
        place: The run folder.
        facts: What run.json says.
        seal: The last line.

    Returns:
        One check for each thing that is there, or should be.
    """
    run = place.path
    found = {
        "model": file_seal(run / "model.safetensors"),
        "clients": clients_seal(run),
        "uploads": uploads_seal(run),
    }
    checks = [status_check(place, facts, seal)]
    # A run that was killed between its seal and its end may have its metrics cut when it is
    # resumed.
    if facts["status"] != "unfinished":
        found["metrics"] = metrics_seal(place.published_metrics())
        found["private"] = metrics_seal(place.private_metrics())
    return checks + [
        compare_seal(place, name, getattr(seal, name), found[name])
        for name in ("metrics", "private", "model", "clients", "uploads")
        if name in found and (found[name] or getattr(seal, name))
    ]


def status_check(place: RunFolder, facts: Mapping[str, Any], seal: Sealed) -> SealCheck:
    """Returns whether run.json says that the run ended as it did.

    Args:
        place: The run folder.
        facts: What run.json says.
        seal: The last line of the ledger.
    """
    if facts["status"] == "unfinished":
        # A run can be killed after its seal and before run.json says that it has ended. Resumed,
        # it ends in the same way.
        said = f"the run is {seal.status}, and was stopped before run.json said so: resume it"
        return SealCheck(subject="status", result="not checked", said=said)
    ended = (facts["status"], str(facts.get("reason", "")))
    if ended != (seal.status, seal.reason):
        said = (
            f"{place.path / 'run.json'} was changed: it says {facts['status']!r}, and the run "
            f"ended as {seal.status!r}."
        )
        return SealCheck(subject="status", result="changed", said=said)
    return SealCheck(subject="status", result="whole", said=seal.status)


def compare_seal(
    place: RunFolder,
    name: str,
    expected: str | None,
    found: str,
) -> SealCheck:
    """Returns whether something is what its seal says.

    Args:
        place: The run folder.
        name: Which seal, a key of `SUBJECTS`.
        expected: The digest in the ledger; None if there is none yet, empty if nothing was written.
        found: The present digest; empty if there is nothing.
    """
    subject, file, what = SUBJECTS[name]
    path = place.path / file
    if expected is None:
        return SealCheck(subject=subject, result="not checked", said="sealed when the run ends")
    if found == expected:
        said = f"sealed, sha256 {expected[:12]}" if expected else "none, as sealed"
        return SealCheck(subject=subject, result="whole", said=said)
    # A folder that was published is whole without its private part.
    if found == "" and name == "private":
        said = f"{path} is not here: it is kept apart from what is published"
        return SealCheck(subject=subject, result="not checked", said=said)
    if found == "":
        said = f"{path} is gone: the run wrote it and sealed it."
    elif expected == "":
        said = f"{path} was added after the run: it wrote none."
    else:
        said = (
            f"{path} was changed after it was written: the seal in the ledger does not fit {what}."
        )
    return SealCheck(subject=subject, result="changed", said=said)


def refuse_changed_files(place: RunFolder) -> None:
    """Refuses a run whose folder does not hold what was sealed.

    Args:
        place: The run folder.

    Raises:
        Changed: It names the first thing that was changed.
    """
    for check in seal_checks(place):
        if check.result == "changed":
            advice = "Put back a copy of it."
            raise Changed(f"{check.said} {advice}")


def is_sealed(place: RunFolder) -> bool:
    """Returns whether the ledger of a run seals anything.

    Args:
        place: The run folder.
    """
    reading = read_ledger(place.ledger_path)
    return (
        reading.seal is not None or first_entry(reading.events, place.ledger_path).sizes is not None
    )

"""What run folders of earlier versions do not say: whose records were scored, and how own data were divided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sordino.federation.data.catalogue import KNOWN
from sordino.federation.data.dataset import TEST_PARTS
from sordino.protocol import Protocol

IN_PYTHON = "python:"  # begins the name of data or of a model that was handed over as an object and cannot be found again by name
DIVIDED_BY_LABEL = (
    "An earlier version of Sordino wrote this run. If its data came without a test part, their labels decided which records were "
    "held out and which were trained on: another label of one record moves others in and out of the training. The promise does not "
    "cover that division. Train anew: this version holds out by the place of a record."
)


def tested_on(protocol: Protocol, facts: Mapping[str, Any]) -> str:
    """Returns whose records a run was scored on, a key of `TEST_PARTS`; what earlier versions did not note is taken for the worst.

    Args:
        protocol: the protocol of the run.
        facts: what its run.json says.

    Example:
        >>> from sordino.protocol import read
        >>> tested_on(read("sordino/examples/digits.toml"), {})  # doctest: +SKIP
        'public'
    """
    noted = noted_part(facts)
    if noted is not None:
        return noted
    name = protocol.data.name if protocol.data is not None else ""
    if name in KNOWN:
        return "public"
    return "brought" if name.startswith(IN_PYTHON) else "held-out"


def noted_part(facts: Mapping[str, Any]) -> str | None:
    """Returns whose records run.json says were scored; None where it says nothing that is known."""
    noted = facts.get("tested_on")
    return noted if isinstance(noted, str) and noted in TEST_PARTS else None


def division_notes(protocol: Protocol, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns what must be said with every promise about a run on own data that labels may have divided; nothing for others.

    Runs of this version note whose records they are scored on. Published sets are divided by labels that everybody knows, and
    data that were handed over in Python are not divided.

    Args:
        protocol: the protocol of the run.
        facts: what its run.json says.
    """
    if noted_part(facts) is not None or tested_on(protocol, facts) != "held-out":
        return ()
    return (DIVIDED_BY_LABEL,)

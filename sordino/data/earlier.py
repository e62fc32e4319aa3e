"""Interprets run folders of earlier versions.

They do not say whose records were scored, nor how own data were divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sordino.data.dataset import TEST_PARTS
from sordino.data.named_sets import KNOWN
from sordino.protocol import Protocol

# Begins the name of data or of a model that was handed over as an object, and cannot be found again
# by name.
IN_PYTHON = "python:"
DIVIDED_BY_LABEL = (
    "An earlier version of Sordino wrote this run. If its data came without a test part, their "
    "labels decided which records were held out and which were trained on: another label of one "
    "record moves others in and out of the training. The promise does not cover that division. "
    "Train again: this version holds out by the place of a record."
)


def find_tested_on(protocol: Protocol, facts: Mapping[str, Any]) -> str:
    """Returns whose records a run was scored on.

    Where an earlier version did not note it, the worst is assumed.

    Args:
        protocol: The protocol of the run.
        facts: What its run.json says.

    Returns:
        A key of `TEST_PARTS`.

    Example:
        >>> from sordino.protocol import read_protocol
        >>> protocol = read_protocol("sordino/examples/digits-local.toml")  # doctest: +SKIP
        >>> find_tested_on(protocol, {})  # doctest: +SKIP
        'public'
    """
    stated = read_test_part(facts)
    if stated is not None:
        return stated
    if protocol.data is None:
        return "held-out"
    if protocol.data.name in KNOWN:
        return "public"
    if protocol.data.name.startswith(IN_PYTHON):
        return "brought"
    return "held-out"


def are_scores_covered(source: str) -> bool:
    """Returns whether exact scores on test records tell nothing about private ones.

    Args:
        source: Whose records the test records are, as `find_tested_on` returns it.

    Example:
        >>> are_scores_covered("public"), are_scores_covered("held-out")
        (True, False)
    """
    # Records that were brought may be private: only their owner knows.
    return source in ("public", "none")


def read_test_part(facts: Mapping[str, Any]) -> str | None:
    """Returns whose records were scored, as run.json says it.

    Args:
        facts: What run.json says.

    Returns:
        A key of `TEST_PARTS`; None where it says nothing that is known.
    """
    stated = facts.get("tested_on")
    if isinstance(stated, str) and stated in TEST_PARTS:
        return stated
    return None


def division_notes(protocol: Protocol, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a note for guarantees about a run whose labels may have divided its own data.

    Runs of this version note whose records they are scored on. Published sets are divided by labels
    that everybody knows, and data that were passed in Python are not divided.

    Args:
        protocol: The protocol of the run.
        facts: What its run.json says.

    Returns:
        The note, or nothing for other runs.
    """
    if read_test_part(facts) is not None or find_tested_on(protocol, facts) != "held-out":
        return ()
    return (DIVIDED_BY_LABEL,)

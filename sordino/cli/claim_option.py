"""Reads the option `--claim` of `sordino audit`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sordino.protocol import UserError, View

if TYPE_CHECKING:
    from sordino.audit.verdict import Claim

# A claim states mu, or epsilon and delta.
FORMS = ({"mu"}, {"epsilon", "delta"})


def read_claim(text: str, view: View, unit: str) -> Claim:
    """Reads a claim from `NAME=MU` or `NAME: epsilon=E, delta=D`.

    Args:
        text: The claim, as typed.
        view: The view that is audited.
        unit: "record" or "client".

    Returns:
        The claim, about that view and unit.

    Raises:
        UserError: The text has neither form; the message shows both.
    """
    from sordino.audit.verdict import Claim

    name, colon, claimed = text.partition(":")
    if not colon:
        name, _, value = text.partition("=")
        claimed = f"mu={value}"
    numbers = {}
    for part in claimed.split(","):
        key, _, value = part.partition("=")
        numbers[key.strip()] = _read_number(value)
    complete = set(numbers) in FORMS
    # NaN, which stands for a text that is no number, is not in the interval either.
    inside = all(0 <= number < math.inf for number in numbers.values())
    possible = inside and numbers.get("delta", 0.0) < 1
    if not name.strip() or not complete or not possible:
        raise UserError(
            f"--claim {text!r}: expected NAME=MU with a finite number of at least 0, "
            "such as theirs=0.29, or 'NAME: epsilon=E, delta=D' with a delta below 1, "
            "such as 'theirs: epsilon=2, delta=1e-5'."
        )
    return Claim(name=name.strip(), **numbers, view=str(view), unit=unit, ours=True)


def _read_number(text: str) -> float:
    """Returns a number; nan, which no claim may have, where there is none."""
    try:
        return float(text.strip())
    except ValueError:
        return math.nan

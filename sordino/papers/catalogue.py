"""All claims of the three papers, by name."""

from __future__ import annotations

import re

from sordino.papers import (
    convergent_claims,
    convergent_remark_claims,
    prifedsync_claims,
    udp_fl_claims,
)
from sordino.papers.claims import PublishedClaim
from sordino.papers.parameters import suggest_names
from sordino.protocol.errors import UserError

# A statement of the theory, as the code cites it.
THEORY = re.compile(r"docs/theory\.md#(\w+)")
# The papers are in the order of docs/papers.md, whose table `as_markdown` returns.
CLAIMS: tuple[PublishedClaim, ...] = (
    *convergent_claims.CLAIMS,
    *convergent_remark_claims.CLAIMS,
    *udp_fl_claims.CLAIMS,
    *prifedsync_claims.CLAIMS,
)

_CLAIMS_BY_NAME = {claim.name: claim for claim in CLAIMS}


def all_claims() -> tuple[PublishedClaim, ...]:
    """Returns every claim, paper by paper, in the order of the paper.

    Example:
        >>> len(all_claims())
        64
    """
    return CLAIMS


def find(name: str) -> PublishedClaim:
    """Returns the claim with a name.

    Args:
        name: Paper and theorem, such as "convergent/theorem-3a".

    Raises:
        UserError: No claim has the name; the message offers the nearest names.

    Example:
        >>> find("prifedsync/theorem-2").verdict
        'sound'
        >>> find("prifedsync/theorem-3")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        sordino.protocol.errors.UserError: no claim 'prifedsync/theorem-3'; did you mean ...
    """
    claim = _CLAIMS_BY_NAME.get(name)
    if claim is None:
        raise UserError(
            f"no claim {name!r}{suggest_names(name, _CLAIMS_BY_NAME)} "
            "`sordino papers list` shows all."
        )
    return claim


def as_documents() -> dict[str, list[dict[str, str]]]:
    """Returns the list of claims as a JSON object.

    Example:
        >>> as_documents()["claims"][2]["where"]
        'convergent-dp, Theorem 3(a), Eq. (15)'
    """
    documents = []
    for claim in all_claims():
        document = {"claim": claim.name, "where": claim.where, "verdict": str(claim.verdict)}
        documents.append(document)
    return {"claims": documents}


def as_markdown() -> str:
    """Returns the list of claims as the table of the documentation.

    Example:
        >>> print(as_markdown().splitlines()[0])
        | claim | where | verdict | condition or replacement |
    """
    rows = ["| claim | where | verdict | condition or replacement |", "|---|---|---|---|"]
    for claim in all_claims():
        remark = claim.sound_replacement
        # A true claim needs no replacement: what a reader has to know is when it is true.
        if claim.verdict == "conditional":
            remark = claim.condition
        if claim.verdict == "sound":
            remark = claim.condition
            if claim.assumes != "none":
                remark = f"none; it assumes: {claim.assumes}"
        remark = THEORY.sub(r"[\1](theory.md#\1)", remark)
        rows.append(f"| `{claim.name}` | {claim.where} | {claim.verdict} | {remark} |")
    return "\n".join(rows)

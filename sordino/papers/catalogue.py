"""All claims of the three papers, by name."""

from __future__ import annotations

from functools import cache

from sordino.papers import convergent_claims, prifedsync_claims, udp_fl_claims
from sordino.papers.claims import Claim
from sordino.papers.parameters import nearest
from sordino.protocol.errors import UserError

CLAIMS: tuple[Claim, ...] = (
    *convergent_claims.CLAIMS,
    *udp_fl_claims.CLAIMS,
    *prifedsync_claims.CLAIMS,
)


def all_claims() -> tuple[Claim, ...]:
    """Every claim, paper by paper, in the order of the paper.

    Example:
        >>> len(all_claims())
        40
    """
    return CLAIMS


def find(name: str) -> Claim:
    """The claim of this name.

    Raises:
        UserError: there is none; the message offers the nearest names.

    Example:
        >>> find("prifedsync/theorem-2").verdict
        'sound'
        >>> find("prifedsync/theorem-3")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        sordino.protocol.errors.UserError: no claim 'prifedsync/theorem-3'; did you mean prifedsync/theorem-2 or ...
    """
    found = _by_name().get(name)
    if found is None:
        raise UserError(
            f"no claim {name!r};{nearest(name, _by_name())} `sordino papers list` shows all."
        )
    return found


def as_documents() -> dict[str, list[dict[str, str]]]:
    """The list as a JSON object.

    Example:
        >>> as_documents()["claims"][2]
        {'claim': 'convergent/theorem-3a', 'where': 'convergent-dp, Theorem 3(a), Eq. (15)', 'verdict': 'unsound'}
    """
    return {
        "claims": [
            {"claim": claim.name, "where": claim.where, "verdict": claim.verdict}
            for claim in all_claims()
        ]
    }


def as_markdown() -> str:
    """The list as the table of the documentation.

    Example:
        >>> print(as_markdown().splitlines()[0])
        | claim | where | verdict | condition or replacement |
    """
    rows = ["| claim | where | verdict | condition or replacement |", "|---|---|---|---|"]
    for claim in all_claims():
        remark = (
            claim.condition
            if claim.verdict in ("sound", "conditional")
            else claim.sound_replacement
        )
        rows.append(f"| `{claim.name}` | {claim.where} | {claim.verdict} | {remark} |")
    return "\n".join(rows)


@cache
def _by_name() -> dict[str, Claim]:
    return {claim.name: claim for claim in all_claims()}

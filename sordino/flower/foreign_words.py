"""Makes words of other machines fit for a terminal, a log and a ledger."""

from __future__ import annotations


def print_safely(text: str | None, limit: int = 200) -> str:
    r"""Returns the words of another machine in one line, without control characters.

    Args:
        text: The words.
        limit: Characters that are left at most.

    Example:
        >>> print_safely("it refused:\n \x1b[2Jnothing")
        'it refused: [2Jnothing'
    """
    words = " ".join((text or "").split())
    return "".join(character for character in words if character.isprintable())[:limit]

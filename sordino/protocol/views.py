"""Who the adversary is, and what is hidden from it: a guarantee without both means nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sordino.protocol.entries import Check, nearest, one_of
from sordino.protocol.errors import InvalidValue

SEES = {
    "server": "every client's upload, every round",
    "rounds": "every round's global model, having contributed no noise to it",
    "coalition": "every round's global model, and the noise of {colluders}",
    "final": "the last model only",
    "weak": "what one other client is given and holds, every round",
    "strong": "what all other clients are given and hold, every round",
}
UNITS = ("record", "client")


@dataclass(frozen=True)
class View:
    """An adversary, by what it sees.

    Example:
        >>> View.parse("coalition:3").sees
        "every round's global model, and the noise of 3 participants who pool what they know"
        >>> str(View.SERVER)
        'server'
    """

    kind: str
    colluders: int = 0

    SERVER: ClassVar[View]
    ROUNDS: ClassVar[View]
    FINAL: ClassVar[View]
    WEAK: ClassVar[View]  # PriFedSync's definitions 3.5 and 3.6
    STRONG: ClassVar[View]

    def __post_init__(self) -> None:
        if self.kind not in SEES:
            raise InvalidValue("view", self.kind, one_of(SEES), nearest(self.kind, SEES))
        whole = isinstance(self.colluders, int) and not isinstance(self.colluders, bool)
        if not whole or (self.colluders >= 1) != (self.kind == "coalition"):
            raise InvalidValue(
                "view",
                f"{self.kind}:{self.colluders}",
                "coalition:k with k of at least 1, or a view without a number",
            )

    @classmethod
    def coalition(cls, colluders: int) -> View:
        """`colluders` participants who pool what they know; one curious participant is 1."""
        return cls("coalition", colluders)

    @classmethod
    def parse(cls, text: str | View) -> View:
        """A view from its spelling: server, rounds, coalition:3, final, weak, strong."""
        if isinstance(text, View):
            return text
        kind, _, number = text.partition(":") if isinstance(text, str) else (str(text), "", "")
        if number == "":
            return cls(kind, 0) if kind != "coalition" else cls(kind, 1)
        if not number.isdecimal() or len(number) > 9:
            raise InvalidValue(
                "view", text, "a whole number of colluding participants, as in coalition:3"
            )
        return cls(kind, int(number))

    @property
    def sees(self) -> str:
        """What this adversary sees, in words."""
        colluders = (
            "one participant, who knows its own"
            if self.colluders == 1
            else f"{self.colluders} participants who pool what they know"
        )
        return SEES[self.kind].format(colluders=colluders)

    def __str__(self) -> str:
        return f"coalition:{self.colluders}" if self.kind == "coalition" else self.kind


View.SERVER, View.ROUNDS, View.FINAL = View("server"), View("rounds"), View("final")
View.WEAK, View.STRONG = View("weak"), View("strong")


@dataclass(frozen=True)
class ViewName(Check):
    """The spelling of a view in the file."""

    def accept(self, key: str, value: Any) -> str:
        try:
            return str(View.parse(value))
        except InvalidValue as error:
            raise InvalidValue(key, value, error.allowed, error.advice) from None

    @property
    def allowed(self) -> str:
        return one_of(kind if kind != "coalition" else "coalition:k" for kind in SEES)

    def schema(self) -> dict[str, Any]:
        return {
            "type": "string",
            "pattern": r"^(server|rounds|final|weak|strong|coalition(:[1-9][0-9]*)?)$",
        }


def all_views(clients: int) -> tuple[View, ...]:
    """The views that are shown side by side: server, rounds, one curious participant, all but one colluding, final.

    Example:
        >>> [str(view) for view in all_views(50)]
        ['server', 'rounds', 'coalition:1', 'coalition:49', 'final']
    """
    sizes = sorted({1, clients - 1} - {0})
    return (
        View.SERVER,
        View.ROUNDS,
        *(View.coalition(k) for k in sizes if k <= clients - 1),
        View.FINAL,
    )

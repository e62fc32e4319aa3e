"""Names the adversaries, and the units that are hidden from them.

A guarantee means nothing without both.

This module is the one place that puts views and units into words. Guarantees, tables, the report,
the explorer and messages take their words from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sordino.protocol.errors import InvalidValue
from sordino.protocol.registry import Registry
from sordino.protocol.spelling import one_of, suggest_spelling
from sordino.protocol.value_checks import Check

ViewKind = Literal["server", "rounds", "coalition", "final", "weak", "strong"]
# Each completes the sentence "an adversary who sees ... learns at most".
SEES = {
    "server": "every client's upload in every round",
    "rounds": "every round's global model",
    "coalition": "every round's global model and the noise of {coalition}",
    "final": "the last model only",
    "weak": "what one other client receives and holds in every round",
    "strong": "what all other clients receive and hold in every round",
}
# What the server sees where it learns nothing but sums of uploads.
SEES_SUMS = "the sum of every round's uploads with the names of those who contributed"
# Views whose adversary may have participants on its side.
WITH_COLLUDERS = ("server", "coalition")
# How each is written in a file or on the command line.
SPELLINGS = ("server", "server:k", "rounds", "coalition:k", "final", "weak", "strong")
# Each is the subject of a sentence in the singular: "the server ... learns at most".
ADVERSARIES: Registry[str] = Registry("name of the adversary", "view", ViewKind)
ADVERSARIES.register("server")("anyone who sees what reaches the server")
ADVERSARIES.register("rounds")("anyone who sees the model after every round")
ADVERSARIES.register("coalition")("{coalition}")
ADVERSARIES.register("final")("anyone who sees only the finished model")
ADVERSARIES.register("weak")("one other client")
ADVERSARIES.register("strong")("a coalition of all other clients")
UNITS = ("record", "client")
UNIT_IN_WORDS = {"record": "one record", "client": "all records of one client"}
# The object of a promise, which holds for every record and every client.
ANY_UNIT_IN_WORDS = {
    "record": "any one record of a client",
    "client": "all records of any one client",
}


@dataclass(frozen=True)
class View:
    """Describes an adversary by what it sees.

    Attributes:
        kind: One of the keys of `SEES`.
        colluders: How many participants pool what they know: in a coalition, or with the server;
            0 for every other kind.

    Example:
        >>> View.parse("coalition:3").sees
        "every round's global model and the noise of a coalition of 3 participants"
        >>> View.parse("coalition:1").adversary
        'one curious participant'
        >>> str(View.SERVER), str(View.parse("server:2"))
        ('server', 'server:2')
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
            raise InvalidValue(
                "view", self.kind, one_of(SPELLINGS), suggest_spelling(self.kind, SEES)
            )
        whole = isinstance(self.colluders, int) and not isinstance(self.colluders, bool)
        missing = self.kind == "coalition" and self.colluders == 0
        useless = self.kind not in WITH_COLLUDERS and self.colluders != 0
        if not whole or self.colluders < 0 or missing or useless:
            raise InvalidValue(
                "view",
                f"{self.kind}:{self.colluders}",
                "coalition:k or server:k with k of at least 1, or a view without a number",
            )

    @classmethod
    def coalition(cls, colluders: int) -> View:
        """Returns the view of participants who pool what they know.

        Args:
            colluders: How many they are; 1 for one curious participant.
        """
        return cls("coalition", colluders)

    @classmethod
    def parse(cls, text: str | View) -> View:
        """Returns a view from its spelling.

        Args:
            text: Server, server:2, rounds, coalition:3, final, weak or strong; or a view, which is
                returned.

        Raises:
            InvalidValue: There is no such view.
        """
        if isinstance(text, View):
            return text
        kind, _, number = text.partition(":") if isinstance(text, str) else (str(text), "", "")
        if number == "":
            # A coalition without a number is one curious participant.
            return cls(kind, 0) if kind != "coalition" else cls(kind, 1)
        # `int` would also read "+3", "1_000" and digits without end.
        if not number.isdecimal() or len(number) > 9:
            raise InvalidValue(
                "view", text, "a whole number of colluding participants, as in coalition:3"
            )
        return cls(kind, int(number))

    @property
    def is_server(self) -> bool:
        """Whether it sees what reaches the server, alone or with participants on its side."""
        return self.kind == "server"

    @property
    def sees(self) -> str:
        """What this adversary sees, in words, where uploads reach the server."""
        return self.describe_seen(sums_only=False)

    def describe_seen(self, *, sums_only: bool) -> str:
        """Returns what this adversary sees, in words.

        Args:
            sums_only: Whether the server learns nothing but sums of uploads.

        Example:
            >>> View.SERVER.describe_seen(sums_only=True)
            "the sum of every round's uploads with the names of those who contributed"
        """
        seen = SEES[self.kind]
        if self.is_server and sums_only:
            seen = SEES_SUMS
        if self.is_server and self.colluders > 0:
            seen += ", and the noise of {coalition}"
        return seen.format(coalition=self._coalition_in_words)

    @property
    def adversary(self) -> str:
        """The adversary in words, as the subject of a sentence in the singular."""
        if self.is_server and self.colluders > 0:
            return f"the server together with {self._coalition_in_words}"
        return ADVERSARIES.of(self.kind).format(coalition=self._coalition_in_words)

    @property
    def _coalition_in_words(self) -> str:
        if self.colluders == 1:
            return "one curious participant"
        return f"a coalition of {self.colluders} participants"

    def __str__(self) -> str:
        return f"{self.kind}:{self.colluders}" if self.colluders > 0 else self.kind


View.SERVER = View("server")
View.ROUNDS = View("rounds")
View.FINAL = View("final")
View.WEAK = View("weak")
View.STRONG = View("strong")


@dataclass(frozen=True)
class ViewName(Check):
    """The spelling of a view in the file."""

    def accept_value(self, key: str, value: Any) -> str:
        """Returns the view's one spelling.

        Args:
            key: Key of the entry, for the message of an error.
            value: A spelling, or a view.

        Raises:
            InvalidValue: There is no such view.
        """
        try:
            return str(View.parse(value))
        except InvalidValue as error:
            # A view does not know under which key it is.
            raise InvalidValue(key, value, error.allowed, error.advice) from None

    @property
    def values_allowed(self) -> str:
        return one_of(SPELLINGS)

    def build_schema(self) -> dict[str, Any]:
        plain = [kind for kind in SEES if kind not in WITH_COLLUDERS]
        counted = "|".join(WITH_COLLUDERS)
        return {
            "type": "string",
            "pattern": f"^({'|'.join(plain)}|({counted})(:[1-9][0-9]*)?)$",
        }


def all_views(clients: int, colluders: int = 0) -> tuple[View, ...]:
    """Returns the views that are shown side by side.

    Args:
        clients: The number of clients of the federation.
        colluders: How many clients may help the server, where it learns only sums.

    Returns:
        Server, with colluders where there are some, rounds, one curious participant, all clients
        but one, and final.

    Example:
        >>> [str(view) for view in all_views(50)]
        ['server', 'rounds', 'coalition:1', 'coalition:49', 'final']
    """
    # The smallest and the largest coalition: with two clients they are the same one.
    sizes = sorted({1, clients - 1} - {0})
    helped = (View("server", colluders),) if colluders > 0 else ()
    return (
        View.SERVER,
        *helped,
        View.ROUNDS,
        *(View.coalition(k) for k in sizes if k <= clients - 1),
        View.FINAL,
    )

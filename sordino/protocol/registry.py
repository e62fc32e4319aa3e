"""What belongs to each kind of a protocol's parts, looked up by exact type.

Nothing is inherited, and nothing unknown is guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar, get_args

from sordino.protocol.errors import UserError

Held = TypeVar("Held")
NOTHING: Any = object()


class UnknownKind(UserError, TypeError):
    """A kind for which a registry holds nothing, and which it therefore refuses.

    Example:
        >>> UnknownKind("no price for the local rule Nova").exit_code
        2
    """


class Registry(Generic[Held]):
    """Holds one thing for each kind of a part of the protocol, such as a price or a worst case.

    A kind is a type, as of `LocalRule`, or a word, as of `Literal["direct", "shuffler"]`. A lookup
    takes exactly that kind: a subclass of a registered type is another type, about which nothing is
    known, so it is refused.

    Attributes:
        name: Name of the things held, as a refusal says it: "price of an upload".
        part: The part of the protocol, as a refusal says it: "local rule".
        kinds: All kinds for which something must be held. A test walks `Registry.all` and names
            those that are missing.

    Example:
        >>> from sordino.protocol import Everyone, Participation, Poisson
        >>> shares = Registry("share of the clients", "participation", Participation)
        >>> @shares.register(Everyone)
        ... def _everyone(rule):
        ...     return 1.0
        >>> shares.of(Everyone())(Everyone())
        1.0
        >>> shares.of(Poisson(rate=0.5))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        sordino.protocol.registry.UnknownKind: no share of the clients is known for the ...
        >>> Registry.all.remove(shares)
    """

    all: ClassVar[list[Registry[Any]]] = []

    def __init__(self, name: str, part: str, kinds: Any) -> None:
        """Makes an empty registry.

        Args:
            name: Name of the things held.
            part: The part of the protocol that has the kinds.
            kinds: A union of types, or a `Literal` of words.
        """
        self.name = name
        self.part = part
        self.kinds: tuple[Any, ...] = get_args(kinds) or (kinds,)
        self._held: dict[Any, Held] = {}
        self._others: Held = NOTHING
        # One test walks all registries, so no pair of a kind and a registry can be forgotten.
        Registry.all.append(self)

    def register(self, *kinds: Any) -> Callable[[Held], Held]:
        """Returns a decorator that registers what it decorates for each of the kinds.

        Args:
            *kinds: Types or words.

        Raises:
            TypeError: A kind that the part does not have, or that has something already.
        """
        for kind in kinds:
            if kind not in self.kinds:
                raise TypeError(f"{name_of(kind)} is no {self.part}")
            # A second registration would silently replace the first, and with it a price.
            if kind in self._held:
                raise TypeError(f"there is a {self.name} for {name_of(kind)} already")

        def keep_held(held: Held) -> Held:
            """Holds it for every kind, and returns it unchanged.

            Args:
                held: The decorated function or value.
            """
            for kind in kinds:
                self._held[kind] = held
            return held

        return keep_held

    def register_others(self, held: Held) -> Held:
        """Registers what holds for every kind of the part that registers nothing itself.

        It is for answers that are true of any new kind, such as "not in the native kernel". A type
        that is not a kind of the part is refused nevertheless.

        Args:
            held: What holds for the others; a decorated function is returned as it is.
        """
        self._others = held
        return held

    def of(self, value: Any) -> Held:
        """Returns the thing held for the kind of a value.

        Args:
            value: A part of a protocol; where kinds are words, a word.

        Raises:
            UnknownKind: Nothing is held for exactly that kind.
        """
        kind = value if isinstance(value, str) else type(value)
        # Clients' rules are looked up in every round: what is held is found without another call.
        return self._held[kind] if kind in self._held else self[kind]

    def __getitem__(self, kind: Any) -> Held:
        """Returns the thing held for a kind; see `of`."""
        # No search along base classes: a subclass may train otherwise than its base, and then
        # the base's price would be a false promise.
        if kind in self._held:
            return self._held[kind]
        if self._others is not NOTHING and kind in self.kinds:
            return self._others
        raise UnknownKind(self._describe_refusal(kind))

    @property
    def missing(self) -> tuple[Any, ...]:
        """The kinds for which nothing is held."""
        if self._others is not NOTHING:
            return ()
        return tuple(kind for kind in self.kinds if kind not in self._held)

    def _describe_refusal(self, kind: Any) -> str:
        name = name_of(kind)
        known = ", ".join(map(name_of, self._held)) or "none"
        sentence = f"no {self.name} is known for the {self.part} {name}: known are {known}."
        # Who subclasses a known kind expects to inherit; the message says why nothing is inherited.
        bases = [name_of(base) for base in getattr(kind, "__mro__", ())[1:] if base in self._held]
        if bases:
            sentence += f" What holds for {bases[0]} need not hold for {name}: "
            sentence += "register it separately."
        return sentence


def name_of(kind: Any) -> str:
    """Returns a kind's name: that of a type, or the word itself in quotes.

    Args:
        kind: A type or a word.
    """
    return kind.__name__ if isinstance(kind, type) else f'"{kind}"'

"""How uploads reach the server.

Every kind says what the server learns of who sent an upload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from sordino.protocol.entries import Named, Value, entry
from sordino.protocol.errors import InvalidValue
from sordino.protocol.value_checks import Check, Integer

# Fewer contributions than these do not make a sum.
SMALLEST_THRESHOLD = 2
# Residues travel as unsigned integers of these widths.
MODULUS_BITS = (32, 64)


@dataclass(frozen=True, kw_only=True)
class ChannelKind(Value):
    """Base of every channel, with the answers of one that hides nothing.

    Attributes:
        names_senders: Whether the server knows every upload's sender.
        shuffles: Whether it receives every upload, in a random order.
        sums_only: Whether it learns nothing but the sum of all uploads.
    """

    names_senders: ClassVar[bool] = True
    shuffles: ClassVar[bool] = False
    sums_only: ClassVar[bool] = False

    @property
    def colluders(self) -> int:
        """How many clients may help the server to see through the channel."""
        return 0

    @property
    def secure_sum(self) -> SecureAggregation | None:
        """The secure aggregation, where uploads are shares of a sum."""
        return None

    def check_threshold(self, *, clients: int, participants: float) -> None:
        """Refuses a threshold that no round reaches.

        Args:
            clients: How many clients there are.
            participants: How many take part in a round, or are expected to.

        Raises:
            InvalidValue: Names the key, the value and the values allowed.
        """


@dataclass(frozen=True, kw_only=True)
class Direct(ChannelKind):
    """The server receives every upload with its sender's name.

    Example:
        >>> Direct().names_senders
        True
    """

    tag: ClassVar[str] = "direct"


@dataclass(frozen=True, kw_only=True)
class Shuffler(ChannelKind):
    """The server receives every upload, in a random order and without names.

    Example:
        >>> Shuffler().names_senders
        False
    """

    # What it is worth that names are gone is priced by clones (docs/theory.md#b7).
    tag: ClassVar[str] = "shuffler"
    names_senders: ClassVar[bool] = False
    shuffles: ClassVar[bool] = True


@dataclass(frozen=True)
class ModulusBits(Check):
    """The width of a residue."""

    def accept_value(self, key: str, value: Any) -> int:
        """Returns the width.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: It is none of the widths.
        """
        # 64.0 equals 64, and True is an int: the type is asked for first.
        if isinstance(value, bool) or not isinstance(value, int) or value not in MODULUS_BITS:
            raise InvalidValue(key, value, self.values_allowed)
        return value

    @property
    def values_allowed(self) -> str:
        return "32 or 64"

    def build_schema(self) -> dict[str, Any]:
        return {"enum": list(MODULUS_BITS)}


@dataclass(frozen=True, kw_only=True)
class SecureAggregation(ChannelKind):
    """The server learns who contributed to a round and the sum of their uploads, modulo 2^bits.

    No sum of fewer than `threshold` uploads is opened, and one sum a round.

    Example:
        >>> SecureAggregation(threshold=40, colluders=5).modulus == 2**64
        True
    """

    # A sum is priced by docs/theory.md#a12; that no other sum can be opened is #a19.
    tag: ClassVar[str] = "secure-aggregation"
    names_senders: ClassVar[bool] = False
    sums_only: ClassVar[bool] = True
    # The price rests on it: at least threshold - colluders shares of noise are in every sum.
    threshold: int = entry(
        Integer(at_least=SMALLEST_THRESHOLD), "fewest uploads whose sum is ever opened"
    )
    colluders: int = entry(
        Integer(at_least=0), "clients that may help the server; below the threshold", 0
    )
    bits: int = entry(
        ModulusBits(), "residues of this many bits are summed: fewer travel faster", 64
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # Nobody would be left whose noise hides anything.
        if self.colluders >= self.threshold:
            allowed = f"from 0 to {self.threshold - 1}, below the threshold"
            raise InvalidValue("colluders", self.colluders, allowed)

    @property
    def modulus(self) -> int:
        """Sums are known modulo this number."""
        return 1 << self.bits

    @property
    def secure_sum(self) -> SecureAggregation:
        """The secure aggregation itself."""
        return self

    def check_threshold(self, *, clients: int, participants: float) -> None:
        """Refuses a threshold that no round reaches.

        Args:
            clients: How many clients there are.
            participants: How many take part in a round, or are expected to.

        Raises:
            InvalidValue: Names the key, the value and the values allowed.
        """
        key = "federation.channel.secure-aggregation.threshold"
        if self.threshold > clients:
            allowed = f"from {SMALLEST_THRESHOLD} to federation.clients = {clients}"
            raise InvalidValue(key, self.threshold, allowed)
        # Otherwise the sums of most rounds would never be opened.
        if self.threshold > participants:
            allowed = f"at most the {participants:g} clients that take part in a round"
            raise InvalidValue(key, self.threshold, allowed)


Channel = Direct | Shuffler | SecureAggregation


@dataclass(frozen=True)
class ChannelKinds(Named):
    """A channel, or its name where nothing else has to be said about it."""

    def accept_value(self, key: str, value: Any) -> Any:
        """Returns the channel.

        Args:
            key: Key of the entry, for the message of an error.
            value: A channel, or a name such as "shuffler".

        Raises:
            InvalidValue: There is no such channel.
        """
        if isinstance(value, str):
            return self.decode_value(key, value)
        return super().accept_value(key, value)


CHANNEL = ChannelKinds(get_args(Channel))

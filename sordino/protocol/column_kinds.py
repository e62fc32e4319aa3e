"""What the columns of a table are, and how they become inputs of a model.

Everything here is public: limits, categories and values that fill gaps are stated in the protocol
and never taken from private records, whose extremes and rarities they would give away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

from sordino.protocol.entries import Value, decode_table, encode_table, entry, table_schema
from sordino.protocol.errors import InvalidValue, UserError
from sordino.protocol.spelling import one_of
from sordino.protocol.value_checks import Check, Choice, Maybe, Names, Number, Text


@dataclass(frozen=True)
class Limits(Check):
    """Two numbers, the smaller one first."""

    def accept_value(self, key: str, value: Any) -> tuple[float, float]:
        """Returns the two limits.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: It is not a pair of ascending numbers.
        """
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise InvalidValue(key, value, self.values_allowed)
        low = Number().accept_value(key, value[0])
        high = Number().accept_value(key, value[1])
        # Equal limits would divide by zero when values are scaled to -1 ... 1.
        if not low < high:
            raise InvalidValue(key, list(value), self.values_allowed)
        return (low, high)

    def encode_value(self, value: Any) -> Any:
        """Returns a list of two numbers.

        Args:
            value: In its normal form.
        """
        return list(value)

    @property
    def values_allowed(self) -> str:
        return "two numbers, the smaller one first, as [0, 120]"

    def build_schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}


@dataclass(frozen=True)
class Categories(Names):
    """Names in order; in a file also the path of a public list, one name a line."""

    def decode_value(self, key: str, raw: Any) -> tuple[str, ...]:
        """Returns the names, which a path is replaced by, so that all parties agree on them.

        Args:
            key: Key of the entry, for the message of an error.
            raw: What TOML holds.

        Raises:
            UserError: The file cannot be read, or holds no names.
        """
        if not isinstance(raw, str):
            return self.accept_value(key, raw)
        try:
            # Spreadsheets write a byte order mark first, which is not part of the first name.
            lines = Path(raw).expanduser().read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{key} = {raw!r}: the list cannot be read: {error}. "
                "Give the path of a text file with a category a line, or the list itself."
            ) from None
        names = [line.strip() for line in lines if line.strip()]
        return self.accept_value(key, names)

    @property
    def values_allowed(self) -> str:
        return 'names in order, as ["no", "yes"], or the path of a public list, one name a line'

    def build_schema(self) -> dict[str, Any]:
        return {"anyOf": [super().build_schema(), Text().build_schema()]}


@dataclass(frozen=True, kw_only=True)
class NumberColumn(Value):
    """A column of numbers, which is one input, and a second one where gaps are filled.

    Example:
        >>> NumberColumn(name="age", limits=(0, 120)).limits
        (0.0, 120.0)
    """

    tag: ClassVar[str] = "number"
    name: str = entry(Text(), "name of the column in the file")
    limits: tuple[float, float] | None = entry(
        Maybe(Limits()),
        "public limits: values beyond are clipped, and all are scaled to -1 ... 1; "
        "left out: numbers as they are",
        None,
    )
    # A stated number, and no mean of the records: a mean would let one record change the inputs of
    # all others, and no statement about one record would follow (docs/theory.md#a20).
    fill: float | None = entry(
        Maybe(Number()),
        "public value where one is missing, which a second input then says; "
        "left out: a missing value is refused",
        None,
    )


@dataclass(frozen=True, kw_only=True)
class CategoryColumn(Value):
    """A column of words, which is one input for each category: 1 for the record's, else 0.

    Example:
        >>> CategoryColumn(name="smoker", categories=["no", "yes"]).categories
        ('no', 'yes')
    """

    tag: ClassVar[str] = "category"
    name: str = entry(Text(), "name of the column in the file")
    categories: tuple[str, ...] = entry(
        Categories(), "the public list of categories in order, or the path of a file with it"
    )
    fill: str | None = entry(
        Maybe(Text()),
        "the category of a missing value; left out: a missing value is refused",
        None,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # Any other word would need an input that the model does not have.
        if self.fill is not None and self.fill not in self.categories:
            raise InvalidValue("fill", self.fill, f"one of {one_of(self.categories)}")


@dataclass(frozen=True, kw_only=True)
class LabelColumn(Value):
    """The class of a record; `data.classes` lists the classes.

    Example:
        >>> LabelColumn(name="income").tag
        'label'
    """

    tag: ClassVar[str] = "label"
    name: str = entry(Text(), "name of the column in the file")


@dataclass(frozen=True, kw_only=True)
class TargetColumn(Value):
    """The answer of a regression.

    Example:
        >>> TargetColumn(name="days").tag
        'target'
    """

    tag: ClassVar[str] = "target"
    name: str = entry(Text(), "name of the column in the file")


@dataclass(frozen=True, kw_only=True)
class SplitColumn(Value):
    """A column that says train or test for every record.

    Example:
        >>> SplitColumn(name="part").tag
        'split'
    """

    tag: ClassVar[str] = "split"
    name: str = entry(Text(), "name of the column in the file")


@dataclass(frozen=True, kw_only=True)
class GroupColumn(Value):
    """A column that is not an input; a partition may use it, as by a hospital.

    Example:
        >>> GroupColumn(name="hospital").tag
        'group'
    """

    tag: ClassVar[str] = "group"
    name: str = entry(Text(), "name of the column in the file")


@dataclass(frozen=True, kw_only=True)
class IgnoredColumn(Value):
    """A column that is left out.

    Example:
        >>> IgnoredColumn(name="notes").tag
        'ignored'
    """

    tag: ClassVar[str] = "ignored"
    name: str = entry(Text(), "name of the column in the file")


Column = (
    NumberColumn
    | CategoryColumn
    | LabelColumn
    | TargetColumn
    | SplitColumn
    | GroupColumn
    | IgnoredColumn
)
COLUMN_KINDS: Mapping[str, type[Column]] = {kind.tag: kind for kind in get_args(Column)}
# There is one answer, and a record is in one part.
AT_MOST_ONCE = (LabelColumn, TargetColumn, SplitColumn)


def names_of_kind(columns: Iterable[Column], *kinds: type[Column]) -> list[str]:
    """Returns the names of the columns of some kinds, in order.

    Args:
        columns: The columns of a table.
        *kinds: Exactly these kinds.

    Example:
        >>> names_of_kind([NumberColumn(name="age"), GroupColumn(name="ward")], GroupColumn)
        ['ward']
    """
    return [column.name for column in columns if type(column) in kinds]


@dataclass(frozen=True)
class Columns(Check):
    """Names of input columns in order, or a description of every column of a table."""

    def accept_value(self, key: str, value: Any) -> tuple[str, ...] | tuple[Column, ...]:
        """Returns the names, or the descriptions.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: Names and descriptions are mixed, one appears twice, or no column is
                an input.
        """
        kinds = get_args(Column)
        described = isinstance(value, (list, tuple)) and any(type(one) in kinds for one in value)
        if not described:
            return Names().accept_value(key, value)
        for one in value:
            if type(one) not in kinds:
                raise InvalidValue(key, one, "a description of every column, or only names")
        # Descriptions are held to the rules of bare names: no name appears twice.
        Names().accept_value(key, [one.name for one in value])
        for kind in AT_MOST_ONCE:
            found = names_of_kind(value, kind)
            if len(found) > 1:
                raise InvalidValue(key, found, f"one column of the kind {kind.tag!r}")
        if not names_of_kind(value, NumberColumn, CategoryColumn):
            raise InvalidValue(key, [one.name for one in value], "a column that is an input")
        return tuple(value)

    def decode_value(self, key: str, raw: Any) -> Any:
        """Returns the value of a list of names, or of a table with an entry for each column.

        Args:
            key: Key of the entry, for the message of an error.
            raw: What TOML holds.

        Raises:
            UserError: An entry is of no known kind, or lacks what its kind needs.
        """
        if not isinstance(raw, Mapping):
            return self.accept_value(key, raw)
        return self.accept_value(
            key, [self._decode_column(f"{key}.{name}", name, one) for name, one in raw.items()]
        )

    def encode_value(self, value: Any) -> Any:
        """Returns a list of names, or a table with an entry for each column.

        Args:
            value: In its normal form.
        """
        if all(isinstance(one, str) for one in value):
            return list(value)
        table = {}
        for column in value:
            inner = encode_table(column)
            # The name is the key.
            name = inner.pop("name")
            table[name] = {"kind": column.tag, **inner}
        return table

    @property
    def values_allowed(self) -> str:
        return (
            'names of input columns in order, as ["age", "weight"], or a table [data.columns] '
            'with an entry for every column, as age = { kind = "number", limits = [0, 120] }'
        )

    def build_schema(self) -> dict[str, Any]:
        forms: list[dict[str, Any]] = [{"enum": list(COLUMN_KINDS)}]
        for tag, kind in COLUMN_KINDS.items():
            form = table_schema(kind)
            del form["properties"]["name"]
            form["properties"] = {"kind": {"const": tag}, **form["properties"]}
            needed = [name for name in form["required"] if name != "name"]
            form["required"] = ["kind", *needed]
            forms.append(form)
        described = {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"anyOf": forms},
        }
        return {"anyOf": [Names().build_schema(), described]}

    @staticmethod
    def _decode_column(key: str, name: str, raw: Any) -> Column:
        """Returns the description of one column: a kind alone, or a table that names it."""
        if isinstance(raw, str):
            raw = {"kind": raw}
        if not isinstance(raw, Mapping) or "kind" not in raw:
            raise InvalidValue(key, raw, f"a table with kind = {one_of(COLUMN_KINDS)}")
        tag = Choice(tuple(COLUMN_KINDS)).accept_value(f"{key}.kind", raw["kind"])
        if "name" in raw:
            raise UserError(f"unknown key {key}.name: the column is named by its key.")
        rest = {inner: value for inner, value in raw.items() if inner != "kind"}
        column: Column = decode_table(COLUMN_KINDS[tag], {"name": name, **rest}, key)
        return column

"""Which records there are, how clients share them, and which model is trained on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from sordino.protocol.column_kinds import Column, Columns
from sordino.protocol.entries import Named, Value, entry
from sordino.protocol.errors import InvalidValue, UserError
from sordino.protocol.value_checks import Choice, Counts, Integer, Labels, Maybe, Number, Text


@dataclass(frozen=True, kw_only=True)
class Iid(Value):
    """Records are shared out at random, the same number to every client.

    Example:
        >>> Iid().tag
        'iid'
    """

    tag: ClassVar[str] = "iid"
    by_column: ClassVar[bool] = False
    takes_sizes: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Value):
    """Each client's label proportions are drawn from a Dirichlet distribution.

    A small `beta` means few labels per client.

    Example:
        >>> Dirichlet(beta=0.1).beta
        0.1
    """

    tag: ClassVar[str] = "dirichlet"
    by_column: ClassVar[bool] = False
    takes_sizes: ClassVar[bool] = False
    beta: float = entry(Number(above=0), "concentration of the label proportions")


@dataclass(frozen=True, kw_only=True)
class Shards(Value):
    """Records sorted by label are cut into clients x `per_client` shards.

    Each client gets `per_client` of them at random.

    Example:
        >>> Shards(per_client=4).per_client
        4
    """

    tag: ClassVar[str] = "shards"
    by_column: ClassVar[bool] = False
    takes_sizes: ClassVar[bool] = False
    # Few shards mean few labels at a client, as in the first papers on federated learning.
    per_client: int = entry(Integer(at_least=1), "shards that each client gets")


@dataclass(frozen=True, kw_only=True)
class ByColumn(Value):
    """One client per value of a column of the data, such as a hospital; sizes differ.

    Example:
        >>> ByColumn(column="hospital").column
        'hospital'
    """

    tag: ClassVar[str] = "by"
    by_column: ClassVar[bool] = True
    takes_sizes: ClassVar[bool] = True
    column: str = entry(Text(), "column whose values are the clients")


Partition = Iid | Dirichlet | Shards | ByColumn
# Transforms that come with Sordino; anything else is package.module:factory.
FEATURES = ("scattering", "random-filters")


@dataclass(frozen=True, kw_only=True)
class Data(Value):
    """Which records there are and how they are spread over the clients.

    Example:
        >>> Data(name="digits", partition=Dirichlet(beta=0.5), records=28).records
        28
        >>> Data(name="wards.csv", classes=["sick", "well"]).classes
        ('sick', 'well')
        >>> Data(name="wards.csv", partition=ByColumn(column="ward"), sizes=[120, 80]).sizes
        (120, 80)
    """

    name: str = entry(
        Text(), "a known data set, or the path of an .npz file, a table, or a folder of either"
    )
    partition: Partition = entry(
        Named((Iid, Dirichlet, Shards, ByColumn)), "how records are spread over clients", Iid()
    )
    # Public, since prices and batch sizes depend on it: a number that the data decided would tell
    # about them.
    records: int | None = entry(
        Maybe(Integer(at_least=1)),
        "records per client, a public constant; left out: all there are, equally. "
        "By column: what every client must have",
        None,
    )
    sizes: tuple[int, ...] | None = entry(
        Maybe(Counts()),
        "records of every client in order, a public list, where clients differ; "
        "the data must have as many",
        None,
    )
    classes: int | tuple[str, ...] | None = entry(
        Maybe(Labels()),
        "classes of your own data: how many, numbered from 0, or their names in order. "
        "Public, so never taken from private records",
        None,
    )
    columns: tuple[str, ...] | tuple[Column, ...] | None = entry(
        Maybe(Columns()),
        "input columns of a table in order, or a description of every column; a file with others "
        "is refused. Across machines all parties' files must have them",
        None,
    )
    # An exact score is a release that no noise covers; with 'none' nothing is scored.
    test: str | None = entry(
        Maybe(Choice(("none",))),
        "'none': no record is held out and nothing is scored; "
        "left out: the test part, or a fifth of data without one, is scored exactly",
        None,
    )

    # A fixed function of one record leaves neighbouring data sets neighbours: it costs nothing.
    features: str | None = entry(
        Maybe(Text()),
        "a fixed public transform of every single record, before everything else: 'scattering', "
        "'random-filters' or package.module:factory; left out: records as they are",
        None,
    )

    @property
    def described_columns(self) -> tuple[Column, ...] | None:
        """The description of every column of a table, where the protocol has one."""
        if self.columns is None or isinstance(self.columns[0], str):
            return None
        return self.columns

    @property
    def input_columns(self) -> tuple[str, ...] | None:
        """The names of the input columns in order, where the protocol only names them."""
        if self.columns is None or self.described_columns is not None:
            return None
        return cast("tuple[str, ...]", self.columns)

    @property
    def distinct_sizes(self) -> tuple[int, ...]:
        """The different numbers of records that clients have, ascending, where they are known."""
        if self.records is not None:
            return (self.records,)
        # Prices depend on a client's size alone, so equal sizes are priced once.
        return tuple(sorted(set(self.sizes or ())))

    def records_of(self, client: int) -> int | None:
        """Returns how many records a client has, where the file says it.

        Args:
            client: Number of the client, from 0.
        """
        if self.records is not None:
            return self.records
        return None if self.sizes is None else self.sizes[client]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features is not None and self.features not in FEATURES and ":" not in self.features:
            raise InvalidValue(
                "data.features",
                self.features,
                "'scattering', 'random-filters' or package.module:factory",
            )
        if self.sizes is None:
            return
        if self.records is not None:
            raise InvalidValue("data.sizes", list(self.sizes), "no data.records together with it")
        if not self.partition.takes_sizes:
            raise InvalidValue(
                "data.sizes",
                list(self.sizes),
                # Shards and label proportions are cut for clients of equal size.
                'data.partition = "iid" or { by = "column" }: the others deal equal numbers',
            )


@dataclass(frozen=True, kw_only=True)
class Model(Value):
    """Which model is trained.

    Example:
        >>> Model(name="lenet5", parameters=44426).parameters
        44426
    """

    name: str = entry(
        Text(), "a known model, or package.module:factory returning a torch.nn.Module"
    )
    # Machines that disagree about the model would fail only when they add up their uploads.
    parameters: int | None = entry(
        Maybe(Integer(at_least=1)), "number of trained parameters; checked against the model", None
    )


def require_dimension(dimension: int | None) -> int:
    """Returns the number of parameters, where the price of a noise depends on it.

    Args:
        dimension: The number of parameters, or None.

    Raises:
        UserError: It is not known.
    """
    # Assuming a dimension would give a bound for another model than the one that is trained.
    if dimension is None:
        raise UserError(
            "model.parameters is missing: what this noise costs depends on the number of "
            "parameters. Add it to the file; training and `sordino check` hold it against the "
            "model."
        )
    return dimension

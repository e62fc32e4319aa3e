"""Which records there are, how they are spread over the clients, and which model is trained on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol.entries import (
    Choice,
    Integer,
    Labels,
    Maybe,
    Named,
    Names,
    Number,
    Text,
    Value,
    entry,
)


@dataclass(frozen=True, kw_only=True)
class Iid(Value):
    """Records are shared out at random, the same number to every client.

    Example:
        >>> Iid().tag
        'iid'
    """

    tag: ClassVar[str] = "iid"


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Value):
    """Each client's label proportions are drawn from a Dirichlet distribution; small `beta` means few labels per client.

    Example:
        >>> Dirichlet(beta=0.1).beta
        0.1
    """

    tag: ClassVar[str] = "dirichlet"
    beta: float = entry(Number(above=0), "concentration of the label proportions")


@dataclass(frozen=True, kw_only=True)
class Shards(Value):
    """Records sorted by label are cut into clients x `per_client` shards, of which each client gets `per_client` at random.

    Example:
        >>> Shards(per_client=4).per_client
        4
    """

    tag: ClassVar[str] = "shards"
    per_client: int = entry(Integer(at_least=1), "shards that each client gets")


@dataclass(frozen=True, kw_only=True)
class ByColumn(Value):
    """One client per value of a column of the data, such as a hospital or a wind farm; sizes differ.

    Example:
        >>> ByColumn(column="hospital").column
        'hospital'
    """

    tag: ClassVar[str] = "by"
    column: str = entry(Text(), "column whose values are the clients")


Partition = Iid | Dirichlet | Shards | ByColumn


@dataclass(frozen=True, kw_only=True)
class Data(Value):
    """Which records there are and how they are spread over the clients.

    Example:
        >>> Data(name="digits", partition=Dirichlet(beta=0.5), records=28).records
        28
        >>> Data(name="wards.csv", classes=["sick", "well"]).classes
        ('sick', 'well')
    """

    name: str = entry(
        Text(), "a known data set, or the path of a .npz file, a .csv file or a folder of images"
    )
    partition: Partition = entry(
        Named((Iid, Dirichlet, Shards, ByColumn)), "how records are spread over clients", Iid()
    )
    records: int | None = entry(
        Maybe(Integer(at_least=1)),
        "records per client, a public constant; left out: all there are, equally. By column: what every client must have",
        None,
    )
    classes: int | tuple[str, ...] | None = entry(
        Maybe(Labels()),
        "classes of your own data: how many, numbered from 0, or their names in order. Public, so never taken from private records",
        None,
    )
    columns: tuple[str, ...] | None = entry(
        Maybe(Names()),
        "input columns of a .csv file in order; a file with others is refused. Across machines all parties' files must have them",
        None,
    )
    test: str | None = entry(
        Maybe(Choice(("none",))),
        "'none': no record is held out and nothing is scored; left out: the test part, or a fifth of data without one, is scored exactly",
        None,
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
    parameters: int | None = entry(
        Maybe(Integer(at_least=1)), "number of trained parameters; checked against the model", None
    )

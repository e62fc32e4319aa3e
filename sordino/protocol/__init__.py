"""What is a federation: the vocabulary that is priced, run, attacked and printed."""

from sordino.protocol.errors import InvalidValue, SordinoError, UserError
from sordino.protocol.file import dumps, loads, overridden, read, save, schema
from sordino.protocol.schedules import Constant, Continuous, Cyclic, Schedule, StageWise
from sordino.protocol.values import (
    Aggregation,
    ByColumn,
    Data,
    Dirichlet,
    Everyone,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    Iid,
    LocalRule,
    Mean,
    Median,
    Model,
    Noise,
    Participation,
    Partition,
    Poisson,
    Protocol,
    Shards,
)

__all__ = [
    "Aggregation", "ByColumn", "Constant", "Continuous", "Cyclic", "Data", "Dirichlet", "Everyone", "FedAvg", "FedProx", "FixedSize",
    "Gaussian", "Iid", "InvalidValue", "LocalRule", "Mean", "Median", "Model", "Noise", "Participation", "Partition", "Poisson",
    "Protocol", "Schedule", "Shards", "SordinoError", "StageWise", "UserError",
    "dumps", "loads", "overridden", "read", "save", "schema",
]  # fmt: skip

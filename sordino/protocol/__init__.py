"""What is a federation: the vocabulary that is priced, run, attacked and printed."""

from sordino.protocol.aggregation import Aggregation, Mean, Median, ModeConnectivity
from sordino.protocol.data import ByColumn, Data, Dirichlet, Iid, Model, Partition, Shards
from sordino.protocol.errors import InvalidValue, SordinoError, UserError
from sordino.protocol.file import dumps, loads, overridden, read, save, schema
from sordino.protocol.mechanisms import Custom, Gaussian, Laplace, Noise, Staircase
from sordino.protocol.noisy_sgd import NoisySgd
from sordino.protocol.participation import Everyone, FixedSize, Participation, Poisson
from sordino.protocol.personalization import (
    Attention,
    Identity,
    Interpolate,
    Nobody,
    Personalization,
)
from sordino.protocol.rules import Bezier, ClippedGlm, FedAvg, FedProx, LocalRule, Scaffold
from sordino.protocol.schedules import Constant, Continuous, Cyclic, Decay, Schedule, StageWise
from sordino.protocol.values import Assumptions, Budget, ClientBudget, Privacy, Protocol
from sordino.protocol.views import UNITS, View, all_views

__all__ = [
    "UNITS", "Aggregation", "Assumptions", "Attention", "Bezier", "Budget", "ByColumn", "ClientBudget", "ClippedGlm", "Constant",
    "Continuous", "Custom", "Cyclic", "Data", "Decay", "Dirichlet", "Everyone", "FedAvg", "FedProx", "FixedSize", "Gaussian",
    "Identity", "Iid", "Interpolate", "InvalidValue", "Laplace", "LocalRule", "Mean", "Median", "ModeConnectivity", "Model", "Nobody",
    "Noise", "NoisySgd", "Participation", "Partition", "Personalization", "Poisson", "Privacy", "Protocol", "Scaffold", "Schedule",
    "Shards", "SordinoError", "StageWise", "Staircase", "UserError", "View", "all_views", "dumps", "loads", "overridden", "read",
    "save", "schema",
]  # fmt: skip

"""The vocabulary of a federation, which is priced, run, attacked and printed."""

from sordino.protocol.adaptive_clip import AdaptiveClip
from sordino.protocol.aggregation_kinds import Aggregation, Mean, Median, ModeConnectivity
from sordino.protocol.channel_kinds import Channel, Direct, SecureAggregation, Shuffler
from sordino.protocol.data_entries import ByColumn, Data, Dirichlet, Iid, Model, Partition, Shards
from sordino.protocol.dp_sgd_rule import DpSgd
from sordino.protocol.errors import InvalidValue, SordinoError, UserError
from sordino.protocol.file import (
    ProtocolSource,
    accept_protocol,
    build_schema,
    dumps,
    loads,
    loads_kept,
    override_keys,
    read_protocol,
    save_protocol,
)
from sordino.protocol.grids import Grid
from sordino.protocol.noise_kinds import Custom, Gaussian, Laplace, Noise, OwnMechanism, Staircase
from sordino.protocol.noisy_sgd_rule import NoisySgd
from sordino.protocol.participation_kinds import Everyone, FixedSize, Participation, Poisson
from sordino.protocol.personalization import (
    Attention,
    Identity,
    Interpolate,
    NoPersonalization,
    Personalization,
)
from sordino.protocol.registry import Registry, UnknownKind
from sordino.protocol.release import (
    NoisySteps,
    NoisyUpload,
    Release,
    noisy_steps_of,
    noisy_upload_of,
)
from sordino.protocol.rule_kinds import (
    Bezier,
    ClippedGlm,
    FedAvg,
    FedProx,
    LocalRule,
    Scaffold,
    UploadRule,
)
from sordino.protocol.schedules import Constant, Continuous, Cyclic, Decay, Schedule, StageWise
from sordino.protocol.server_kinds import (
    PlainServer,
    ServerAdaGrad,
    ServerAdam,
    ServerMomentum,
    ServerOptimizer,
    ServerYogi,
)
from sordino.protocol.values import Assumptions, Budget, ClientBudget, Privacy, Protocol
from sordino.protocol.views import UNITS, View, all_views

__all__ = [
    "UNITS", "AdaptiveClip", "Aggregation", "Assumptions", "Attention", "Bezier", "Budget",
    "ByColumn", "Channel",
    "ClientBudget", "ClippedGlm", "Constant", "Continuous", "Custom", "Cyclic", "Data", "Decay",
    "Direct", "Dirichlet", "DpSgd", "Everyone", "FedAvg", "FedProx", "FixedSize", "Gaussian",
    "Grid", "Identity", "Iid", "Interpolate", "InvalidValue", "Laplace", "LocalRule", "Mean",
    "Median", "ModeConnectivity", "Model", "NoPersonalization", "Noise", "NoisySgd", "NoisySteps",
    "NoisyUpload", "OwnMechanism", "Participation", "Partition", "Personalization", "PlainServer",
    "Poisson", "Privacy", "Protocol", "ProtocolSource", "Registry", "Release", "Scaffold",
    "Schedule",
    "SecureAggregation", "ServerAdaGrad", "ServerAdam", "ServerMomentum", "ServerOptimizer",
    "ServerYogi", "Shards", "Shuffler", "SordinoError", "StageWise", "Staircase", "UnknownKind",
    "UploadRule", "UserError", "View", "accept_protocol", "all_views", "build_schema", "dumps",
    "loads",
    "loads_kept",
    "noisy_steps_of", "noisy_upload_of", "override_keys", "read_protocol", "save_protocol",
]  # fmt: skip

"""Sordino: differentially private federated learning whose guarantees are checked.

Names are loaded when they are first used, so that `import sordino` is instant and torch is imported
only by what trains. Each public name therefore appears twice below: for type checkers, which read
the imports, and in the table of the modules that define them, which is used when a name is loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sordino.wiring import ANSWERED_BY

if TYPE_CHECKING:
    from sordino import audit as audit
    from sordino.attacks.suite import attack as attack
    from sordino.audit.verdict import Finding as Finding
    from sordino.data import Dataset as Dataset
    from sordino.engines.many_trainings import train_many as train_many
    from sordino.engines.train_one import resume as resume
    from sordino.engines.train_one import train as train
    from sordino.federation.store.run import Run as Run
    from sordino.federation.store.run import Trained as Trained
    from sordino.privacy.calibrate import calibrate as calibrate
    from sordino.privacy.certify import certify as certify
    from sordino.privacy.dp_events import dp_event as dp_event
    from sordino.privacy.guarantee import Guarantee as Guarantee
    from sordino.privacy.spending import BudgetExceeded as BudgetExceeded
    from sordino.privacy.spending import realised as realised
    from sordino.protocol import Assumptions as Assumptions
    from sordino.protocol import Attention as Attention
    from sordino.protocol import Bezier as Bezier
    from sordino.protocol import Budget as Budget
    from sordino.protocol import ByColumn as ByColumn
    from sordino.protocol import ClientBudget as ClientBudget
    from sordino.protocol import ClippedGlm as ClippedGlm
    from sordino.protocol import Constant as Constant
    from sordino.protocol import Continuous as Continuous
    from sordino.protocol import Custom as Custom
    from sordino.protocol import Cyclic as Cyclic
    from sordino.protocol import Data as Data
    from sordino.protocol import Decay as Decay
    from sordino.protocol import Dirichlet as Dirichlet
    from sordino.protocol import DpSgd as DpSgd
    from sordino.protocol import Everyone as Everyone
    from sordino.protocol import FedAvg as FedAvg
    from sordino.protocol import FedProx as FedProx
    from sordino.protocol import FixedSize as FixedSize
    from sordino.protocol import Gaussian as Gaussian
    from sordino.protocol import Identity as Identity
    from sordino.protocol import Iid as Iid
    from sordino.protocol import Interpolate as Interpolate
    from sordino.protocol import Laplace as Laplace
    from sordino.protocol import Mean as Mean
    from sordino.protocol import Median as Median
    from sordino.protocol import ModeConnectivity as ModeConnectivity
    from sordino.protocol import Model as Model
    from sordino.protocol import NoisySgd as NoisySgd
    from sordino.protocol import Poisson as Poisson
    from sordino.protocol import Privacy as Privacy
    from sordino.protocol import Protocol as Protocol
    from sordino.protocol import Scaffold as Scaffold
    from sordino.protocol import SecureAggregation as SecureAggregation
    from sordino.protocol import ServerAdaGrad as ServerAdaGrad
    from sordino.protocol import ServerAdam as ServerAdam
    from sordino.protocol import ServerMomentum as ServerMomentum
    from sordino.protocol import ServerYogi as ServerYogi
    from sordino.protocol import Shards as Shards
    from sordino.protocol import SordinoError as SordinoError
    from sordino.protocol import StageWise as StageWise
    from sordino.protocol import Staircase as Staircase
    from sordino.protocol import UserError as UserError
    from sordino.protocol import View as View
    from sordino.protocol import read_protocol as read_protocol
    from sordino.sweeps.sweep_results import Sweep as Sweep
    from sordino.sweeps.sweeping import sweep as sweep

    __version__: str

# The module that defines each public name.
_NAMES_BY_MODULE = {
    "sordino.protocol": """
        Assumptions Attention Bezier Budget ByColumn ClientBudget ClippedGlm Constant Continuous
        Custom Cyclic Data Decay Dirichlet DpSgd Everyone FedAvg FedProx FixedSize Gaussian
        Identity Iid Interpolate Laplace Mean Median ModeConnectivity Model NoisySgd Poisson
        Privacy Protocol
        Scaffold SecureAggregation ServerAdaGrad ServerAdam ServerMomentum ServerYogi Shards
        SordinoError StageWise Staircase UserError View read_protocol
    """,
    "sordino.privacy.calibrate": "calibrate",
    "sordino.privacy.certify": "certify",
    "sordino.privacy.dp_events": "dp_event",
    "sordino.privacy.guarantee": "Guarantee",
    "sordino.privacy.spending": "BudgetExceeded realised",
    "sordino.data": "Dataset",
    "sordino.federation.store.run": "Run Trained",
    "sordino.engines.many_trainings": "train_many",
    "sordino.engines.train_one": "resume train",
    "sordino.sweeps.sweep_results": "Sweep",
    "sordino.sweeps.sweeping": "sweep",
    "sordino.audit.verdict": "Finding",
    "sordino.attacks.suite": "attack",
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

# What a room asks of one above it, and the module that answers.
ANSWERED_BY.update(
    {
        "audit_with_claims": "sordino.papers.applied",
        "dp_event": "sordino.privacy.dp_events",
        "read_protocol": "sordino.protocol",
        "resume_across": "sordino.flower.driver",
        "train_across": "sordino.flower.driver",
        "write_final_report": "sordino.report.writing",
    }
)

__all__ = sorted([*_MODULE_OF, "audit"])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from sordino.protocol.version import own_version

        return own_version()
    if name == "audit":
        # A package that can be called; see its docstring for why.
        return import_module("sordino.audit")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'sordino' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__

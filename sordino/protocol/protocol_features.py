"""Features of a protocol that may not go with others, each with its words and a test for it.

`combinations.py` is the table of the pairs that do not go together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sordino.protocol.dp_sgd_rule import DpSgd
from sordino.protocol.noisy_sgd_rule import NoisySgd
from sordino.protocol.rule_kinds import Bezier, ClippedGlm, FedAvg, Scaffold

if TYPE_CHECKING:
    from sordino.protocol.values import Protocol


@dataclass(frozen=True)
class Feature:
    """Something that a protocol may have.

    Attributes:
        words: Its name in the documentation, by the keys of the file.
        had_by: Whether a protocol has it.
    """

    words: str
    had_by: Callable[[Protocol], bool]


def find_own_mechanism(protocol: Protocol) -> str | None:
    """Returns a mechanism that a client chose itself, or None.

    Args:
        protocol: The federation, as its file describes it.
    """
    named = [budget.mechanism for budget in protocol.client if budget.mechanism is not None]
    # One example is enough for a message that names the key.
    return named[0] if named else None


def hides_coming_and_going(protocol: Protocol) -> bool:
    """Returns whether an adversary cannot see that a client or a record comes or goes.

    Args:
        protocol: The federation, as its file describes it.
    """
    # Noise at the server is there whether the client comes or not, and a fixed denominator does not
    # count it (docs/theory.md#a17).
    central = protocol.noise.where == "server" and protocol.aggregation.fixed_denominator
    return central or protocol.local.varying_batches


def has_rule(*kinds: type) -> Callable[[Protocol], bool]:
    """Returns a test of whether a protocol has one of some local rules.

    Args:
        *kinds: The rules.
    """
    # By exact type: a subclass of a rule is another rule, about which no row says anything.
    return lambda protocol: type(protocol.local) in kinds


SHUFFLER = Feature('`channel = "shuffler"`', lambda protocol: protocol.channel.shuffles)
SECURE_SUMS = Feature(
    "`channel = { secure-aggregation = ... }`", lambda protocol: protocol.channel.sums_only
)
INTEGERS = Feature(
    '`arithmetic = "integers"`', lambda protocol: protocol.noise.arithmetic == "integers"
)
FLOATS = Feature('`arithmetic = "floats"`', lambda protocol: protocol.noise.arithmetic == "floats")
UNKNOWN_WEIGHTS = Feature(
    'a mean with `weights = "records"`, unless `data.records` or `data.sizes` says them',
    lambda protocol: protocol.aggregation.weighs_records and protocol.stated_sizes is None,
)
BUDGETS = Feature("`[[client]]`", lambda protocol: bool(protocol.client))
OWN_MECHANISMS = Feature(
    "`[[client]]` with a mechanism", lambda protocol: find_own_mechanism(protocol) is not None
)
PENALTY = Feature("`penalty = true`", lambda protocol: protocol.penalty)
OWN_MODELS = Feature("`personalization`", lambda protocol: protocol.personalization.keeps_models)
BY_RECORDS = Feature(
    'a mean with `weights = "records"`', lambda protocol: protocol.aggregation.weighs_records
)
BY_NOISE = Feature(
    'a mean with `weights = "noise"`', lambda protocol: protocol.aggregation.weighs_noise
)
ONE_NOISE = Feature(
    "no `[[client]]` with a mechanism", lambda protocol: find_own_mechanism(protocol) is None
)
FIXED_DENOMINATOR = Feature(
    'a mean with `denominator = "fixed"`', lambda protocol: protocol.aggregation.fixed_denominator
)
NO_MEAN = Feature(
    "an `aggregation` other than a mean", lambda protocol: not protocol.aggregation.averages
)
SERVER_NOISE = Feature('`where = "server"`', lambda protocol: protocol.noise.where == "server")
NOT_AT_CLIENT = Feature(
    '`where = "server"` or `"both"`', lambda protocol: protocol.noise.where != "client"
)
OTHER_NOISE = Feature("noise other than gaussian", lambda protocol: not protocol.noise.normal)
OTHER_UPLOAD_NOISE = Feature(
    "noise other than gaussian on uploads",
    lambda protocol: not protocol.noise.normal and not protocol.local.noise_in_steps,
)
MULTIPLIER = Feature("a `multiplier`", lambda protocol: protocol.noise.multiplier is not None)
NO_MULTIPLIER = Feature(
    "gaussian noise without a `multiplier`, or noise not at the client",
    # Other noise says its absolute size, on whatever it is added to.
    lambda protocol: (
        (protocol.noise.normal and protocol.noise.multiplier is None)
        or protocol.noise.where != "client"
    ),
)
ADDED = Feature(
    '`adjacency = "add-or-remove"`', lambda protocol: protocol.privacy.adjacency == "add-or-remove"
)
SEEN_TO_COME = Feature(
    # What comes and goes in sight of the adversary: a client with its noise, a record with a size.
    'anything but `where = "server"` with a fixed denominator, '
    "or `noisy-sgd` or `dp-sgd` with poisson sampling",
    lambda protocol: not hides_coming_and_going(protocol),
)
UPDATE_CLIPPED = Feature(
    '`clip-target = "update"`',
    lambda protocol: protocol.local.clips_update,
)
SCAFFOLD = Feature("`scaffold`", has_rule(Scaffold))
BEZIER = Feature("`bezier`", has_rule(Bezier))
CLIPPED_GLM = Feature("`clipped-glm`", has_rule(ClippedGlm))
NOISY_SGD = Feature("`noisy-sgd`", has_rule(NoisySgd))
DP_SGD = Feature("`dp-sgd`", has_rule(DpSgd))
NO_MULTIPLIED_NOISE = Feature(
    "a rule other than `noisy-sgd` and `dp-sgd`",
    lambda protocol: not has_rule(NoisySgd, DpSgd)(protocol),
)
UNUSUAL_SIZE = Feature(
    'noise without a `multiplier`, or `where = "both"`',
    lambda protocol: protocol.noise.multiplier is None or protocol.noise.where == "both",
)
ADAPTIVE = Feature(
    "an `adaptive` clip",
    lambda protocol: protocol.local.adaptive is not None,
)
COUNTED_MEAN = Feature(
    "poisson participation and a mean without a fixed denominator",
    lambda protocol: protocol.participation.varies and not protocol.aggregation.fixed_denominator,
)
FIRMLY_PULLED = Feature(
    '`weight-decay` or `anchor = "start"` with clipped steps',
    lambda protocol: protocol.local.pull > protocol.local.proximal_pull,
)
NO_PRICED_OWN_MODELS = Feature(
    "a rule other than `fedavg` and `noisy-sgd`",
    lambda protocol: not has_rule(FedAvg, NoisySgd)(protocol),
)

"""Which features of a protocol do not go together, and why.

It is one table, which constructors check and the documentation prints. A row names two features.
Where a protocol has both, it is refused by the key that is to be changed. Two features are refused
together where nobody has proved a price for them or built them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sordino.protocol.errors import InvalidValue

if TYPE_CHECKING:
    from sordino.protocol.values import Protocol
from sordino.protocol.protocol_features import (
    ADAPTIVE,
    ADDED,
    BEZIER,
    BUDGETS,
    BY_NOISE,
    BY_RECORDS,
    CLIPPED_GLM,
    COUNTED_MEAN,
    DP_SGD,
    FIRMLY_PULLED,
    FIXED_DENOMINATOR,
    FLOATS,
    INTEGERS,
    MULTIPLIER,
    NO_MEAN,
    NO_MULTIPLIED_NOISE,
    NO_MULTIPLIER,
    NO_PRICED_OWN_MODELS,
    NOISY_SGD,
    NOT_AT_CLIENT,
    ONE_NOISE,
    OTHER_NOISE,
    OTHER_UPLOAD_NOISE,
    OWN_MECHANISMS,
    OWN_MODELS,
    PENALTY,
    SCAFFOLD,
    SECURE_SUMS,
    SEEN_TO_COME,
    SERVER_NOISE,
    SHUFFLER,
    UNKNOWN_WEIGHTS,
    UNUSUAL_SIZE,
    UPDATE_CLIPPED,
    Feature,
    find_own_mechanism,
)


@dataclass(frozen=True, kw_only=True)
class Incompatible:
    """Two features that do not go together.

    Attributes:
        pair: The features.
        key: The key that a refusal names.
        instead: What that key may be together with the other feature.
        reason: Why.
    """

    pair: tuple[Feature, Feature]
    key: str
    instead: str
    reason: str


def refuse_incompatible(protocol: Protocol) -> None:
    """Refuses a protocol whose features do not go together.

    Args:
        protocol: The protocol, whose single values are checked already.

    Raises:
        InvalidValue: Names the key, the value given, the values allowed and the reason.
    """
    # The first row that applies is reported: its key is the one to change first.
    for row in INCOMPATIBLE:
        first, second = row.pair
        if first.had_by(protocol) and second.had_by(protocol):
            given = GIVEN[row.key](protocol)
            raise InvalidValue(row.key, given, f"{row.instead}: {row.reason}")


# What a refusal says was given, by the key that it names.
GIVEN: dict[str, Callable[[Protocol], Any]] = {
    "client.mechanism": find_own_mechanism,
    "federation.aggregation.mean.denominator": lambda protocol: "fixed",
    "federation.aggregation.mean.weights": lambda protocol: "noise",
    "local.weight-decay": lambda protocol: getattr(protocol.local, "weight_decay", None),
    "federation.channel": lambda protocol: protocol.channel.tag,
    "federation.penalty": lambda protocol: protocol.penalty,
    "federation.personalization": lambda protocol: protocol.personalization.tag,
    "local.rule": lambda protocol: protocol.local.tag,
    "noise.arithmetic": lambda protocol: protocol.noise.arithmetic,
    "noise.multiplier": lambda protocol: protocol.noise.multiplier,
    "noise.where": lambda protocol: protocol.noise.where,
    "privacy.adjacency": lambda protocol: protocol.privacy.adjacency,
}


INCOMPATIBLE = (
    # A shuffler hides senders only among uploads of one kind, and a server that cannot distinguish
    # uploads cannot weigh them.
    Incompatible(
        pair=(SHUFFLER, BUDGETS),
        key="federation.channel",
        instead='"direct" with [[client]]',
        reason="clients with different budgets or mechanisms do not hide one another",
    ),
    Incompatible(
        pair=(SHUFFLER, BY_RECORDS),
        key="federation.channel",
        instead='"direct", or aggregation weights = "equal"',
        reason="behind it the server cannot tell how many records are behind an upload",
    ),
    Incompatible(
        pair=(SHUFFLER, SERVER_NOISE),
        key="federation.channel",
        instead='"direct", or noise at the client',
        reason="noise at the server hides nothing from the receiver of the uploads",
    ),
    Incompatible(
        pair=(SHUFFLER, OWN_MODELS),
        key="federation.channel",
        instead='"direct" with personalization',
        reason="clients that continue from their personal models do not hide one another",
    ),
    Incompatible(
        pair=(SHUFFLER, NOISY_SGD),
        key="federation.channel",
        instead='"direct" with noisy-sgd',
        reason="its uploads carry no noise that could be priced among others",
    ),
    # Under secure aggregation the server has a sum of integers, and nothing that is made of single
    # uploads.
    Incompatible(
        pair=(SECURE_SUMS, NO_MEAN),
        key="federation.channel",
        instead='"direct" or "shuffler", unless the aggregation is a mean',
        reason="the server has only the sum of the uploads",
    ),
    Incompatible(
        pair=(SECURE_SUMS, SCAFFOLD),
        key="federation.channel",
        instead='"direct" with local.rule = "scaffold"',
        reason="its control variates are computed from single uploads",
    ),
    Incompatible(
        pair=(SECURE_SUMS, OWN_MODELS),
        key="federation.channel",
        instead='"direct" with personalization',
        reason="updates that start from personal models have no bound to size a modulus by, "
        "and attention needs single uploads",
    ),
    Incompatible(
        pair=(SECURE_SUMS, BUDGETS),
        key="federation.channel",
        instead='"direct" with [[client]]',
        reason="all noise is summed on one grid, and clients that leave are missing from every sum",
    ),
    Incompatible(
        pair=(SECURE_SUMS, OTHER_NOISE),
        key="federation.channel",
        instead='"direct", or gaussian noise',
        reason="only for discrete gaussian noise is it known what sums hide",
    ),
    Incompatible(
        pair=(SECURE_SUMS, NOT_AT_CLIENT),
        key="federation.channel",
        instead='"direct", or noise at the client',
        reason="the server must not know the noise that hides a client from it",
    ),
    Incompatible(
        pair=(SECURE_SUMS, NOISY_SGD),
        key="federation.channel",
        instead='"direct" with noisy-sgd',
        reason="its uploads carry no noise that would add up",
    ),
    Incompatible(
        pair=(SECURE_SUMS, CLIPPED_GLM),
        key="federation.channel",
        instead='"direct" with clipped-glm',
        reason="its weight decay moves models without limit, and a modulus needs a limit",
    ),
    Incompatible(
        pair=(SECURE_SUMS, UNKNOWN_WEIGHTS),
        key="federation.channel",
        instead='"direct", aggregation weights = "equal", or data.records or data.sizes',
        reason="clients weigh their uploads before these are summed, by sizes that are public",
    ),
    Incompatible(
        pair=(SECURE_SUMS, FLOATS),
        key="noise.arithmetic",
        instead='"integers" under secure aggregation',
        reason="masks hide only integers",
    ),
    Incompatible(
        pair=(INTEGERS, NOT_AT_CLIENT),
        key="noise.arithmetic",
        instead='"floats", or noise at the client',
        reason="uploads are put on a grid, but the server's mean is not",
    ),
    Incompatible(
        pair=(INTEGERS, OWN_MODELS),
        key="noise.arithmetic",
        instead='"floats" with personalization',
        reason="the grid is centred on the global model, and personal models start elsewhere",
    ),
    Incompatible(
        pair=(INTEGERS, BUDGETS),
        key="noise.arithmetic",
        instead='"floats" with [[client]]',
        reason="one grid holds the noise of all clients",
    ),
    Incompatible(
        pair=(INTEGERS, NOISY_SGD),
        key="noise.arithmetic",
        instead='"floats" with noisy-sgd',
        reason="its noise goes through further steps, which are not integers",
    ),
    # Noise at the server, and what needs it.
    Incompatible(
        pair=(NOT_AT_CLIENT, NO_MEAN),
        key="noise.where",
        instead='"client" unless the aggregation is a mean',
        reason="only for a mean is it known how far one upload moves it",
    ),
    Incompatible(
        pair=(SERVER_NOISE, BUDGETS),
        key="noise.where",
        instead='"client" or "both" with [[client]]',
        reason="their budgets hold against the server",
    ),
    Incompatible(
        pair=(FIXED_DENOMINATOR, CLIPPED_GLM),
        key="federation.aggregation.mean.denominator",
        instead='"participants" with clipped-glm',
        reason="its weight decay moves models without limit",
    ),
    # Adding or removing is for units that may come or go without changing anything public, least of
    # all how much noise there is.
    Incompatible(
        pair=(ADDED, SEEN_TO_COME),
        key="privacy.adjacency",
        instead=(
            '"replace-one", unless noise.where = "server" and the mean has a fixed denominator, '
            "or the rule is noisy-sgd or dp-sgd with poisson sampling"
        ),
        reason="otherwise noise leaves with the client, or a record changes a public size",
    ),
    # Clients with noise of their own, or pulled to one another.
    Incompatible(
        pair=(PENALTY, NOT_AT_CLIENT),
        key="noise.where",
        instead='"client" with federation.penalty = true',
        reason="pulls are derived from what clients' own noise costs against the server",
    ),
    Incompatible(
        pair=(OWN_MECHANISMS, NOT_AT_CLIENT),
        key="noise.where",
        instead='"client" where a client names a mechanism',
        reason="a client's own noise is added by the client",
    ),
    Incompatible(
        pair=(BY_NOISE, ONE_NOISE),
        key="federation.aggregation.mean.weights",
        instead='"equal" or "records" unless clients name mechanisms',
        reason="all clients have the same noise, and would have the same weight",
    ),
    Incompatible(
        pair=(PENALTY, CLIPPED_GLM),
        key="federation.penalty",
        instead="false with clipped-glm",
        reason="a pull would change the dynamics that its price rests on",
    ),
    # Control variates are free only if they come from noisy uploads whose senders the server knows.
    Incompatible(
        pair=(SCAFFOLD, SHUFFLER),
        key="federation.channel",
        instead='"direct" with local.rule = "scaffold"',
        reason="its control variates need the senders of uploads",
    ),
    Incompatible(
        pair=(SCAFFOLD, NOT_AT_CLIENT),
        key="noise.where",
        instead='"client" with local.rule = "scaffold"',
        reason="its control variates are free only if computed from noisy uploads",
    ),
    Incompatible(
        pair=(SCAFFOLD, PENALTY),
        key="federation.penalty",
        instead='false with local.rule = "scaffold"',
        reason="a pull together with its corrections is not priced",
    ),
    Incompatible(
        pair=(BEZIER, PENALTY),
        key="federation.penalty",
        instead="false with the rule bezier",
        reason="a pull along its curve is not priced",
    ),
    # The rule noisy-sgd has its noise in every step, at the client; no other rule has.
    Incompatible(
        pair=(MULTIPLIER, NO_MULTIPLIED_NOISE),
        key="noise.multiplier",
        instead="a noise.sigma for every rule but noisy-sgd and dp-sgd",
        reason="a multiplier is the size of noise on sums of clipped gradients",
    ),
    Incompatible(
        pair=(NOISY_SGD, NO_MULTIPLIER),
        key="local.rule",
        instead="a noise.multiplier, or another mechanism than gaussian, at the client",
        reason="its noise is in its steps",
    ),
    # The rule dp-sgd has one noise on one sum, of which every client adds a share.
    Incompatible(
        pair=(DP_SGD, UNUSUAL_SIZE),
        key="local.rule",
        instead='noise.mechanism = "gaussian" with a noise.multiplier, at the client or the server',
        reason="its noise is a multiple of the clip, on the sum over all clients",
    ),
    Incompatible(
        pair=(DP_SGD, NO_MEAN),
        key="local.rule",
        instead='another rule, or aggregation = "mean"',
        reason="the clients' gradients and noise are summed",
    ),
    Incompatible(
        pair=(DP_SGD, BY_RECORDS),
        key="local.rule",
        instead='another rule, or aggregation weights = "equal"',
        reason="every record of a lot has the same weight in its sum",
    ),
    Incompatible(
        pair=(DP_SGD, COUNTED_MEAN),
        key="local.rule",
        instead='another rule, or aggregation = { mean = { denominator = "fixed" } }',
        reason="its sum is divided by the expected size of a lot",
    ),
    Incompatible(
        pair=(DP_SGD, SHUFFLER),
        key="federation.channel",
        instead='"direct" or secure-aggregation with dp-sgd',
        reason="one client's share of the noise is priced among others only by their sum",
    ),
    Incompatible(
        pair=(DP_SGD, PENALTY),
        key="federation.penalty",
        instead="false with the rule dp-sgd",
        reason="a pull together with its gradients is not priced",
    ),
    Incompatible(
        pair=(DP_SGD, BUDGETS),
        key="local.rule",
        instead="another rule with [[client]]",
        reason="clients that leave take their shares of the noise with them",
    ),
    # A clip that follows: uploads are in units of the present clip, and carry a count.
    Incompatible(
        pair=(ADAPTIVE, NOT_AT_CLIENT),
        key="noise.where",
        instead='"client" with an adaptive clip',
        reason="clients add the noise to their counts of what was within the clip",
    ),
    Incompatible(
        pair=(ADAPTIVE, OTHER_NOISE),
        key="local.rule",
        instead="a fixed clip, or gaussian noise",
        reason="update and count are priced as one vector under normal noise",
    ),
    Incompatible(
        pair=(ADAPTIVE, NO_MEAN),
        key="local.rule",
        instead='a fixed clip, or aggregation = "mean"',
        reason="counts are added up, and so are the updates that they are of",
    ),
    Incompatible(
        pair=(ADAPTIVE, BY_RECORDS),
        key="local.rule",
        instead='a fixed clip, or aggregation weights = "equal"',
        reason="all clients count alike, and one with a small share would show more by its count",
    ),
    Incompatible(
        pair=(ADAPTIVE, OWN_MECHANISMS),
        key="local.rule",
        instead="a fixed clip where a client names a mechanism",
        reason="counts would be under as many kinds of noise, and one of them decides the clip",
    ),
    Incompatible(
        pair=(ADAPTIVE, PENALTY),
        key="federation.penalty",
        instead="false with an adaptive clip",
        reason="the leader's upload is in units of a clip that has gone by",
    ),
    Incompatible(
        pair=(ADAPTIVE, OWN_MODELS),
        key="federation.personalization",
        instead='"none" with an adaptive clip',
        reason="what personal models carry from round to round is known for a clip that stays",
    ),
    Incompatible(
        pair=(ADAPTIVE, SCAFFOLD),
        key="local.rule",
        instead='a fixed clip, or another rule than "scaffold"',
        reason="its control variates are made of uploads in units of one clip",
    ),
    Incompatible(
        pair=(ADAPTIVE, BEZIER),
        key="local.rule",
        instead='a fixed clip, or another rule than "bezier"',
        reason="the random point of its curve scales the update and not the count",
    ),
    # What personal models carry from round to round is known for clipped steps under the clients'
    # normal noise alone.
    Incompatible(
        pair=(OWN_MODELS, NO_PRICED_OWN_MODELS),
        key="federation.personalization",
        instead='"none" for every rule but fedavg and noisy-sgd',
        reason="what personal models carry from round to round is known only for these",
    ),
    Incompatible(
        pair=(OWN_MODELS, OTHER_UPLOAD_NOISE),
        key="federation.personalization",
        instead='"none", or gaussian noise',
        reason="what personal models carry from round to round is priced for normal noise",
    ),
    Incompatible(
        pair=(OWN_MODELS, NOT_AT_CLIENT),
        key="federation.personalization",
        instead='"none", or noise at the client',
        reason="personal models meet only the noise of their own clients",
    ),
    Incompatible(
        pair=(OWN_MODELS, UPDATE_CLIPPED),
        key="federation.personalization",
        instead='"none", or clipped steps',
        reason="an update that starts from a personal model can be longer than its clip",
    ),
    Incompatible(
        pair=(OWN_MODELS, FIXED_DENOMINATOR),
        key="federation.personalization",
        instead='"none" with a fixed denominator, for updates from the global model',
        reason="personal models are further from it than the clip",
    ),
    Incompatible(
        pair=(OWN_MODELS, PENALTY),
        key="federation.personalization",
        instead='"none" with federation.penalty = true',
        reason="only one pull at a time is priced",
    ),
    Incompatible(
        pair=(OWN_MODELS, OWN_MECHANISMS),
        key="client.mechanism",
        instead="no such key with personalization",
        reason="only one noise for all clients is priced",
    ),
    # Pulls to a fixed model move far models far, and are priced where nothing else pulls.
    Incompatible(
        pair=(SECURE_SUMS, FIRMLY_PULLED),
        key="federation.channel",
        instead='"direct" with weight decay or an anchor at the start',
        reason="such pulls move models without limit, and a modulus needs a limit",
    ),
    Incompatible(
        pair=(FIXED_DENOMINATOR, FIRMLY_PULLED),
        key="federation.aggregation.mean.denominator",
        instead='"participants" with weight decay or an anchor at the start',
        reason="such pulls move models without limit",
    ),
    Incompatible(
        pair=(PENALTY, FIRMLY_PULLED),
        key="federation.penalty",
        instead="false with weight decay or an anchor at the start",
        reason="only one pull at a time is priced",
    ),
    Incompatible(
        pair=(FIRMLY_PULLED, OWN_MODELS),
        key="local.weight-decay",
        instead='0, and local.anchor = "global", with personalization',
        reason="only one pull at a time is priced",
    ),
    Incompatible(
        pair=(FIRMLY_PULLED, SCAFFOLD),
        key="local.weight-decay",
        instead="0 with scaffold",
        reason="its control variates count only moves by gradients",
    ),
    Incompatible(
        pair=(FIRMLY_PULLED, BEZIER),
        key="local.weight-decay",
        instead="0 with bezier",
        reason="its curve is priced only for moves by gradients",
    ),
)


def incompatible_table() -> str:
    """Returns the table in Markdown, for the documentation.

    Example:
        >>> print(incompatible_table().splitlines()[2][:46])
        | `channel = "shuffler"` | `[[client]]` | clie
    """
    # Printed from the rows that constructors check, the documentation cannot differ from them.
    rows = [f"| {row.pair[0].words} | {row.pair[1].words} | {row.reason} |" for row in INCOMPATIBLE]
    return "\n".join(["| this | does not go with | because |", "|---|---|---|", *rows])

"""Worst cases with every choice made by the test: the attacked client, the curvature, the caps."""

from collections.abc import Mapping, Sequence

from sordino.audit.worst_cases.clipped_glm_pair import make_clipped_glm_pair
from sordino.audit.worst_cases.linear_pair import LinearShape, make_linear_pair
from sordino.audit.worst_cases.neighbours import Pair, PairRequest, find_most_exposed
from sordino.audit.worst_cases.noisy_step_pair import StepPair, make_noisy_step_pair
from sordino.protocol import Protocol, View
from sordino.randomness import Key


def request(
    protocol: Protocol,
    unit: str,
    sizes: Sequence[int],
    key: Key,
    *,
    attacked: int,
    view: View = View.SERVER,
    caps: Mapping[int, int] | None = None,
) -> PairRequest:
    return PairRequest(
        protocol=protocol,
        view=view,
        unit=unit,
        sizes=tuple(sizes),
        stated_sizes=tuple(sizes),
        caps=caps or {},
        key=key,
        rounds=protocol.rounds,
        attacked=attacked,
    )


def linear_pair(
    protocol: Protocol, unit: str, sizes: Sequence[int], key: Key, curvature: float, attacked: int
) -> Pair:
    asked = request(protocol, unit, sizes, key, attacked=attacked)
    return make_linear_pair(asked, LinearShape(curvature=curvature))


def clipped_glm_pair(
    protocol: Protocol, unit: str, sizes: Sequence[int], key: Key, attacked: int
) -> Pair:
    return make_clipped_glm_pair(request(protocol, unit, sizes, key, attacked=attacked))


def noisy_pair(
    protocol: Protocol,
    unit: str,
    sizes: Sequence[int],
    key: Key,
    caps: Mapping[int, int],
    view: View = View.SERVER,
) -> StepPair:
    attacked = find_most_exposed(protocol, sizes, caps, unit)
    return make_noisy_step_pair(
        request(protocol, unit, sizes, key, attacked=attacked, view=view, caps=caps)
    )

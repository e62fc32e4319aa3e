"""The worst case of clipped steps: linear losses, whose slope is turned around in one client.

Linear losses attain the bound for uploads and for every round's model (docs/theory.md#a2 and
docs/theory.md#a3). For the last model alone, early rounds stay visible if losses of the other
clients drive models apart (docs/theory.md#a7); several strengths are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sordino.audit.observation import find_given_observation, hides_batches
from sordino.audit.worst_cases.neighbours import (
    STEEPNESS,
    WORST_PAIRS,
    Pair,
    PairRequest,
    assign_records,
    find_client_noise,
    make_setup,
    removes_unit,
)
from sordino.audit.worst_cases.rehearsal import (
    find_mean_deviation,
    rehearse_pair,
    shrink_request,
)
from sordino.audit.worst_cases.synthetic_losses import SyntheticLosses
from sordino.privacy.bounds.question import Observation
from sordino.protocol import (
    Bezier,
    Custom,
    FedAvg,
    FedProx,
    Gaussian,
    Laplace,
    Mean,
    Noise,
    Protocol,
    Scaffold,
)
from sordino.protocol.registry import Registry

# The parameters of a worst case under noise whose price depends on their number.
MOST_PARAMETERS = 32
# Curvatures that are tried, as the expansion of the first round: the sum of its rates times the
# curvature.
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)

PARAMETERS: Registry[Callable[[str], int]] = Registry(
    "number of parameters of a worst case", "noise", Noise
)


@dataclass(frozen=True, kw_only=True)
class LinearShape:
    """Says what the records of a linear worst case do, apart from the one that differs.

    Attributes:
        curvature: The curvature of the other clients' losses; below zero they drive models apart.
        in_crowd: Whether the other clients do what the attacked one does on the first data set. A
            client that does something else behind a shuffler stands out most among such others.
        secret: Whether the adversary does not know the minibatches. The client's other records then
            pull as the record does on the first data set, and are outweighed by it: the upload is
            certain there, and on the neighbour a minibatch that holds the record turns it around.
        width: The number of parameters; None for as many as the noise needs.
    """

    curvature: float = 0.0
    in_crowd: bool = False
    secret: bool = False
    width: int | None = None


@WORST_PAIRS.register(FedAvg, FedProx, Scaffold, Bezier)
def make_clipped_steps_pair(request: PairRequest) -> Pair:
    """Returns the worst case of rules whose clients take clipped steps.

    Args:
        request: The protocol and the adversary.
    """
    protocol = request.protocol
    note = ""
    if not protocol.aggregation.known_law:
        # Its bound is the one for single uploads, which do not depend on how they are joined.
        name = protocol.aggregation.tag.replace("-", " ")
        note = f"; a mean in place of {name}, which starts from the uploads"
        protocol = replace(protocol, aggregation=Mean())
        request = replace(request, protocol=protocol)
    given = find_given_observation(protocol, request.view)
    curvature = 0.0
    if given == Observation.LAST and protocol.aggregation.averages and not protocol.keeps_models:
        curvature = find_best_curvature(request)
    secret = hides_batches(protocol, request.unit, request.stated_sizes)
    shape = LinearShape(
        curvature=curvature,
        in_crowd=protocol.release.shuffled and given == Observation.UPLOADS,
        secret=secret and curvature == 0,
    )
    pair = make_linear_pair(request, shape)
    return replace(pair, description=pair.description + note)


def make_linear_pair(request: PairRequest, shape: LinearShape) -> Pair:
    """Returns linear losses whose slope is turned around in the attacked client.

    The record acts on all parameters equally, so that a clip of each coordinate is not mistaken for
    a clip of the norm; and noise drawn for each coordinate reveals most along the diagonal.

    Args:
        request: The protocol and the adversary.
        shape: What the other records do.
    """
    protocol = request.protocol
    attacked = request.attacked
    sizes = request.sizes
    noise = find_client_noise(protocol, attacked, sizes[attacked])
    width = shape.width or count_parameters(protocol, noise)
    parts = assign_records(sizes)
    own = parts[attacked]
    differing = own if request.unit == "client" else own[:1]
    batch = protocol.local.batch or 1
    slope = width**-0.5 * STEEPNESS * protocol.release.clip

    records = np.zeros((sum(sizes), width + 1), dtype=np.float32)
    records[:, width] = shape.curvature
    records[own, width] = 0.0
    if shape.in_crowd:
        others = np.ones(len(records), dtype=bool)
        others[own] = False
        records[others, :width] = slope
    # Among the records of a batch a single one makes the whole gradient; if the whole client
    # differs, its records share it.
    records[differing, :width] = slope * (1 if request.unit == "client" else batch)
    if shape.secret:
        records[own, :width] = slope
        records[differing, :width] = 2 * slope * batch * protocol.local.steps

    neighbour = records.copy()
    neighbour[differing, :width] *= 0 if removes_unit(protocol, request.unit) else -1
    turned = records.copy()
    turned[own, :width] *= -1

    targets = np.zeros(len(records), dtype=np.float32)
    module = SyntheticLosses(width)
    zero, one, always = (
        make_setup(protocol, table, targets, parts=parts, module=module, key=request.key)
        for table in (records, neighbour, turned)
    )
    return Pair(
        zero=zero,
        one=one,
        attacked=attacked,
        description=describe_linear_pair(request, shape, width, noise),
        caps=request.caps,
        turned=always if shape.secret else None,
    )


def describe_linear_pair(
    request: PairRequest,
    shape: LinearShape,
    width: int,
    noise: Noise,
) -> str:
    """Returns the two data sets in words.

    Args:
        request: The protocol and the adversary.
        shape: What the other records do.
        width: The number of parameters.
        noise: The noise of the attacked client.
    """
    unit = "a record" if request.unit == "record" else "a client"
    change = "absent or present" if removes_unit(request.protocol, request.unit) else "flipped"
    words = [f"linear losses with {unit} {change} at {STEEPNESS:g} times the clip"]
    batch = request.protocol.local.batch or 1
    records = request.sizes[request.attacked]
    if request.unit == "record" and batch < records:
        words.append(f", drawn into a step with probability {batch}/{records}")
    if shape.secret:
        words.append(", unseen")
    if not noise.normal:
        words.append(f", in {width} parameters")
    if shape.in_crowd:
        words.append("; the other clients do what it does on the first data set")
    if shape.curvature != 0:
        words.append(f"; the other clients' losses have curvature {shape.curvature:.3g}")
    return "".join(words)


def count_parameters(protocol: Protocol, noise: Noise) -> int:
    """Returns the number of parameters of a worst case, at most that of the model.

    Args:
        protocol: The protocol that is audited.
        noise: The noise of the attacked client.
    """
    known = 2
    if protocol.model is not None and protocol.model.parameters is not None:
        known = protocol.model.parameters
    return min(known, PARAMETERS.of(noise)(protocol.release.clip_norm))


@PARAMETERS.register(Gaussian)
def _count_for_gaussian(clip_norm: str) -> int:
    # The price depends on nothing but the length of a shift.
    return 1 if clip_norm == "l1" else 2


@PARAMETERS.register(Laplace, Custom)
def _count_for_laplace(clip_norm: str) -> int:
    # Under an l1 clip an upload reveals most if the whole shift is in one coordinate.
    return 1 if clip_norm == "l1" else MOST_PARAMETERS


@PARAMETERS.register_others
def _count_for_any_noise(clip_norm: str) -> int:
    # A staircase reveals most if a shift is spread evenly, under either clip. Other noise gets the
    # same number, since a game is valid with any.
    return MOST_PARAMETERS


def find_best_curvature(request: PairRequest) -> float:
    """Returns the curvature of the other clients' losses with which the last model reveals most.

    If rates repeat, losses without curvature are the worst case (docs/theory.md#a7), unless steps
    are pulled to a fixed model. Under falling rates early rounds move models furthest, and only
    losses that drive models apart still show that in the end. The clip limits how far, so several
    curvatures are tried. None exceeds a smoothness that the protocol vouches for.

    Args:
        request: The protocol and the adversary.
    """
    rule = request.protocol.local
    # A pull to a fixed model makes early rounds fade, unless losses drive the models apart.
    forgets = rule.pull > rule.proximal_pull
    if (rule.schedule.repeats and not forgets) or request.rounds == 1:
        return 0.0
    total = sum(rule.schedule.rates(round=0, steps=rule.steps))
    limit = np.inf
    if request.protocol.assumptions.smoothness is not None:
        limit = request.protocol.assumptions.smoothness
    candidates = sorted({-min(strength / total, limit) for strength in STRENGTHS})
    noise = find_client_noise(request.protocol, request.attacked, request.sizes[request.attacked])
    width = count_parameters(request.protocol, noise)
    rehearsal = shrink_request(request)
    spread = find_mean_deviation(request)
    shown = []
    for curvature in candidates:
        pair = make_linear_pair(rehearsal, LinearShape(curvature=curvature, width=width))
        shown.append(rehearse_pair(pair, request.rounds, spread))
    return float(candidates[int(np.argmax(shown))])

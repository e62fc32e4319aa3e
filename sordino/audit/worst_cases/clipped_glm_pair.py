"""The worst case of clipped linear models: a record with a feature that no other record has."""

from __future__ import annotations

from typing import cast

import numpy as np

from sordino.audit.worst_cases.neighbours import (
    WORST_PAIRS,
    Pair,
    PairRequest,
    assign_records,
    make_setup,
)
from sordino.models.bounded import build_bounded_model
from sordino.protocol import ClippedGlm

# The feature before it is scaled into the ball, in units of the ball's radius: so large that the
# bias coordinate becomes negligible.
FAR = 1e4
# The number of classes of losses with more than two; the price does not depend on it.
MANY = 10


@WORST_PAIRS.register(ClippedGlm)
def make_clipped_glm_pair(request: PairRequest) -> Pair:
    """Returns two data sets that differ in a record on a feature that no other record has.

    With two classes its label is flipped. Its gradient has norm V as long as its prediction stays
    unsure and V is at most half the feature norm, so it pulls by V and -V; under a larger clip the
    two gradients differ by less than is priced. With many classes the feature changes its sign, and
    all coefficients with it. One-against-rest then pulls by V and -V; softmax by sqrt(1 - 1/C) X of
    the sqrt(2) X that are priced, since its predictions begin unsure.

    Args:
        request: The protocol and the adversary.
    """
    # The registry calls this function for no other rule.
    rule = cast(ClippedGlm, request.protocol.local)
    attacked = request.attacked
    parts = assign_records(request.sizes)
    differing = parts[attacked] if request.unit == "client" else parts[attacked][:1]
    module = build_bounded_model(rule.loss, 1, MANY, rule.feature_norm)
    two_classes = rule.loss == "logistic"
    setups = []
    for label, side in ((0, 1.0), (1, -1.0)):
        records = np.zeros((sum(request.sizes), 1), dtype=np.float32)
        labels = np.arange(len(records)) % 2
        if two_classes:
            records[differing, 0] = FAR * rule.feature_norm
            labels[differing] = label
        else:
            records[differing, 0] = side * FAR * rule.feature_norm
            labels[differing] = 0
        setups.append(
            make_setup(
                request.protocol, records, labels, parts=parts, module=module, key=request.key
            )
        )
    unit = "a record" if request.unit == "record" else "all records of a client"
    turned = "its label" if two_classes else "the feature"
    return Pair(
        zero=setups[0],
        one=setups[1],
        attacked=attacked,
        description=f"{unit} on its own feature, with {turned} turned",
        caps=request.caps,
    )

"""The local rule dp-sgd: one sum of clipped example gradients, divided by a public number."""

from __future__ import annotations

import numpy as np

from sordino.federation.rules.local_training import (
    LOCAL_RULES,
    Assignment,
    LocalResult,
    LocalSteps,
    Worker,
    read_present_clip,
)
from sordino.protocol import DpSgd


@LOCAL_RULES.register(DpSgd)
def sum_clipped_examples(rule: DpSgd, worker: Worker, task: Assignment) -> LocalResult:
    """Returns the global model less the clipped gradients of a client's part of the lot, over B.

    The noise is added to the upload, and the server's rate applies to the sum over all clients. A
    clip that follows the gradients is divided out of the upload, which moves by the same distance
    whatever the clip is.

    Args:
        rule: The rule, with its settings.
        worker: Computes for the client.
        task: The round's work.
    """
    start = worker.as_tensor(task.start)
    worker.model.load(start)
    # One step a round, and so one lot (docs/theory.md#a13).
    inputs, targets = next(worker.draw_examples(task))
    clip = read_present_clip(worker, task)
    found = worker.clipped_sums.clipped_sum(inputs, targets, clip=clip, norm=rule.clip_norm)
    steps = LocalSteps(clipped=found.clipped, clips=len(targets), nonfinite=found.nonfinite)
    # V / C_t takes the present clip out: an upload moves by at most V / B for each record,
    # whatever the clip has become (docs/theory.md#a22).
    mean = found.total.double() / rule.batch * (rule.clip / clip)
    within = None
    if task.clip is not None:
        within = np.asarray(found.within, dtype=np.float64).reshape(task.clip.shape)
    return LocalResult(model=start.double() - mean, steps=steps, within=within)

"""Jobs of the kernel, made by hand: clients that begin at one model and take one rule's steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sordino.native.kernel import Kernel, PackedRule, key_address, row_addresses
from sordino.native.layout import JOB


def make_jobs(
    kernel: Kernel,
    rule: PackedRule,
    start: np.ndarray,
    parts: Sequence[np.ndarray],
    keys: Sequence[bytes],
    *,
    round_index: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns jobs for clients 0, 1, ..., and the table that the results go to, one a row.

    All arguments must outlive the jobs, which point to their memory.

    Args:
        kernel: the kernel that is to run the jobs.
        rule: how all clients step.
        start: the model that all clients begin at.
        parts: the records of every client.
        keys: of the minibatches, of the noise in steps and of the noise on uploads.
        round_index: the round that draws are addressed by.
    """
    # Pointers that are not set are null.
    jobs = np.zeros(len(parts), JOB)
    results = np.empty((len(parts), kernel.program.parameters), np.float32)
    jobs["rule"] = rule.address
    jobs["start"] = start.ctypes.data
    jobs["round"] = round_index
    jobs["result"] = row_addresses(results)
    jobs["records"] = [part.ctypes.data for part in parts]
    jobs["population"] = [len(part) for part in parts]
    jobs["client"] = np.arange(len(parts))
    for name, key in zip(("batch_key", "step_key", "upload_key"), keys, strict=True):
        jobs[name] = key_address(key)
    return jobs, results

"""Processors that do the work: how many of them, which device, and torch on one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sordino.protocol import InvalidValue, UserError


def worker_count(workers: int | None, device: str) -> int:
    """Returns how many processes work.

    Args:
        workers: What was asked for; None for one per core on the cpu, and one elsewhere.
        device: Where they work.

    Raises:
        InvalidValue: A number that is none, or several processes on an accelerator.
    """
    # A bool is an int in Python, and nobody means one worker by True.
    if workers is not None and (
        isinstance(workers, bool) or not isinstance(workers, int) or workers < 1
    ):
        raise InvalidValue("workers", workers, "a whole number of at least 1")
    if device != "cpu":
        if workers is not None and workers > 1:
            raise InvalidValue(
                "workers", workers, f"1 on the device {device!r}, which a single process uses"
            )
        return 1
    if workers is not None:
        return workers
    # The cores that this process may use, which in a container are fewer than the machine has.
    return len(os.sched_getaffinity(0))


def check_device(device: str) -> str:
    """Returns the device, if this machine has it.

    Args:
        device: "cpu", "cuda" or "mps"; a number may follow a colon.

    Raises:
        InvalidValue: There is no such kind of device.
        UserError: This machine has none.
    """
    kind = device.split(":")[0]
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if kind not in available:
        raise InvalidValue("device", device, '"cpu", "cuda" or "mps"')
    if not available[kind]:
        raise UserError(
            f"device = {device!r}: torch finds no such device on this machine. Use device = 'cpu'."
        )
    return device


@contextmanager
def single_threaded() -> Iterator[None]:
    """Runs torch operators on one thread while the context lasts.

    The caller's setting and global generator are left as they were.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)

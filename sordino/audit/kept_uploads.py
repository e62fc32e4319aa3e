"""Replays the uploads that a run kept: less the clients' work, they must be the promised noise.

A client's work is repeated from what the server sent it. If that is the global model alone, any
rounds will do. If clients are also sent what the server computes from earlier uploads (control
variates, models of other clients), or keep something themselves, all rounds must have been kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sordino.audit.noise.residual_tests import ResidualReport
from sordino.audit.noise_report import report_noise
from sordino.audit.repeated_work import SingleWork
from sordino.audit.replay import Replay
from sordino.audit.round_table import RoundTable
from sordino.engines.compiled import Kernel, KernelRefusal, kernel_for
from sordino.federation.complete_protocol import DataSource, ModelSource
from sordino.federation.personal import keeps_state
from sordino.federation.setup import Setup, prepare
from sordino.federation.store.run import Run
from sordino.federation.store.upload_archive import ArchivedRound, kept_rounds, read_round
from sordino.protocol import Protocol, UserError

# The most noise values that are tested; of a larger model every n-th coordinate is.
MOST_VALUES = 500_000


@dataclass(frozen=True, kw_only=True)
class KeptUploads:
    """The outcome of replaying the uploads that a run kept.

    Attributes:
        report: The tests of their noise; None if there were none.
        reason: Why the uploads were not replayed; empty if they were, or if none were kept.
    """

    report: ResidualReport | None = None
    reason: str = ""


def find_obstacle(protocol: Protocol, rounds: list[int]) -> str:
    """Returns why the work behind kept uploads cannot be repeated; empty if it can be.

    Args:
        protocol: The protocol of the run.
        rounds: The rounds whose uploads were kept, in ascending order.
    """
    release = protocol.release
    if protocol.noise.secure:
        return "the draws of noise.secure = true are not written down"
    if release.in_steps:
        return f"the noisy steps of {protocol.local.tag} are not kept, only what they lead to"
    if not release.at_client:
        return "clients add no noise to them"
    if not protocol.channel.names_senders:
        return f"behind the {protocol.channel.tag} they are kept without their senders"
    if protocol.local.adaptive is not None:
        return "the counts that their clip followed are not kept"
    remembered = keeps_state(protocol) or protocol.penalty or protocol.local.corrected
    if remembered and rounds != list(range(len(rounds))):
        return "clients' work follows from earlier uploads, and not all rounds were kept"
    return ""


def replay_kept_uploads(
    path: Path, *, data: DataSource | None = None, model: ModelSource | None = None
) -> KeptUploads:
    """Tests the noise on the uploads that a run kept.

    Args:
        path: The folder of the run.
        data: The data of the run, if they were passed in Python.
        model: The model of the run, if it was passed in Python.

    Returns:
        The tests, or why there are none.
    """
    rounds = kept_rounds(path)
    if not rounds:
        return KeptUploads()
    run = Run.load(path)
    obstacle = find_obstacle(run.protocol, rounds)
    if obstacle:
        return KeptUploads(reason=obstacle)
    try:
        setup = prepare(run.protocol, data=data, model=model)
    except UserError as error:
        return KeptUploads(reason=f"the run cannot be prepared here ({str(error).rstrip('.')})")
    # On other records clients would do other work, and the difference would be taken for noise.
    if setup.data_digest != run.facts["data_digest"]:
        return KeptUploads(reason="the data here are not those of the run")
    noise = measure_noise(setup, path, rounds, find_kernel(setup, run.engine))
    return KeptUploads(report=report_noise(setup.protocol, setup.noises, noise, None))


def find_kernel(setup: Setup, engine: str) -> Kernel | None:
    """Returns the kernel that trained a run; None if torch did.

    Args:
        setup: The federation.
        engine: The name of the run's engine.
    """
    # The engine of the run repeats its own work: engines differ by rounding, which is not noise.
    if engine != "native":
        return None
    try:
        return kernel_for(setup)
    except KernelRefusal:
        return None


def measure_noise(
    setup: Setup,
    path: Path,
    rounds: list[int],
    kernel: Kernel | None,
) -> np.ndarray:
    """Returns kept uploads less their clients' work.

    Args:
        setup: The federation.
        path: The folder of the run.
        rounds: The rounds whose uploads were kept.
        kernel: The compiled kernel that repeats the work; None for torch.

    Returns:
        An array (1, rounds, clients, parameters), NaN where a client did not take part.
    """
    replay = Replay(setup, SingleWork(setup, kernel), setup.training, 1)
    size = setup.initial_weights().size
    values = len(rounds) * setup.protocol.clients * size
    # Testing all coordinates of a large model would take long and show little more.
    coordinates = slice(None, None, max(1, values // MOST_VALUES))
    noise = []
    for round_index in rounds:
        table = tabulate_round(setup.protocol.clients, read_round(path, round_index))
        noise.append(replay.see(table)[..., coordinates])
    return np.concatenate(noise, axis=1)


def tabulate_round(clients: int, kept: ArchivedRound) -> RoundTable:
    """Returns a kept round as a table of one training.

    Args:
        clients: The number of clients of the federation.
        kept: The round, with the senders of its uploads.
    """
    before = kept.model[None]
    present = np.zeros((1, clients), dtype=bool)
    uploads = np.zeros((clients, *before.shape), dtype=kept.uploads.dtype)
    if kept.clients is not None:
        present[0, kept.clients] = True
        uploads[kept.clients, 0] = kept.uploads
    # The file has neither the next model nor what was sent along; the noise follows without them.
    return RoundTable(
        round=kept.round,
        before=before,
        broadcast=before,
        present=present,
        uploads=uploads,
        joined=before,
        after=before,
    )

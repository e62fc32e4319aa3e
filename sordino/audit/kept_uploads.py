"""Replays the uploads that a run kept: without the clients' work they must be the noise promised.

A client's work is repeated from what the server sent it. Where that is the global model alone, any
rounds will do. Where clients are also given what earlier uploads make (control variates, models of
other clients), or keep something themselves, all rounds must have been kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sordino.audit.noise.residual_tests import ResidualReport
from sordino.audit.noise_report import noise_report
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

# Noise values that are looked at; of large models coordinates at regular distances are.
MOST_VALUES = 500_000


@dataclass(frozen=True, kw_only=True)
class KeptUploads:
    """What came of the replay of a run's kept uploads.

    Attributes:
        report: The tests of their noise; None where there were none.
        reason: Why they were not replayed; empty where they were, or none were kept.
    """

    report: ResidualReport | None = None
    reason: str = ""


def find_obstacle(protocol: Protocol, rounds: list[int]) -> str:
    """Returns why the work behind kept uploads cannot be repeated; empty where it can.

    Args:
        protocol: Protocol of the run.
        rounds: Rounds whose uploads were kept, in order.
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
        data: In place of the protocol's, if they were passed in Python.
        model: Likewise.

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
    # On other records clients do other work, and the difference would pass for noise.
    if setup.data_digest != run.facts["data_digest"]:
        return KeptUploads(reason="the data here are not those of the run")
    noise = measure_noise(setup, path, rounds, find_kernel(setup, run.engine))
    return KeptUploads(report=noise_report(setup.protocol, setup.noises, noise, None))


def find_kernel(setup: Setup, engine: str) -> Kernel | None:
    """Returns the kernel that trained a run, None where torch did.

    Args:
        setup: The federation.
        engine: The name of the run's engine.
    """
    # Work is repeated by what did it: the engines agree to rounding, and rounding is not noise.
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
    """Returns the remainder of kept uploads without their clients' work.

    Args:
        setup: The federation.
        path: The folder of the run.
        rounds: Rounds whose uploads were kept.
        kernel: Does the work; None for torch.

    Returns:
        An array (1, rounds, clients, parameters), NaN where a client did not take part.
    """
    replay = Replay(setup, SingleWork(setup, kernel), setup.training, 1)
    size = setup.initial_weights().size
    values = len(rounds) * setup.protocol.clients * size
    # Of a large model every n-th coordinate is tested; all would take long and show little more.
    coordinates = slice(None, None, max(1, values // MOST_VALUES))
    noise = []
    for round_index in rounds:
        table = tabulate_round(setup.protocol.clients, read_round(path, round_index))
        noise.append(replay.see(table)[..., coordinates])
    return np.concatenate(noise, axis=1)


def tabulate_round(clients: int, kept: ArchivedRound) -> RoundTable:
    """Returns a kept round as a table of one training.

    Args:
        clients: How many clients the federation has.
        kept: The round, with the senders of its uploads.
    """
    before = kept.model[None]
    present = np.zeros((1, clients), dtype=bool)
    uploads = np.zeros((clients, *before.shape), dtype=kept.uploads.dtype)
    if kept.clients is not None:
        present[0, kept.clients] = True
        uploads[kept.clients, 0] = kept.uploads
    # The next model and what was sent with this one are not in the file. Noise needs neither.
    return RoundTable(
        round=kept.round,
        before=before,
        broadcast=before,
        present=present,
        uploads=uploads,
        joined=before,
        after=before,
    )

"""A training repeated from what was released: what cannot be repeated must be the noise that was promised, and nothing else.

The auditor knows all data and every draw but the noise. From what clients were sent and what they uploaded it repeats their work:
what is left of an upload, or of a noisy step, is noise. And what is made of noisy values alone must come out the same: models that clients
are sent beside the global one, and with noisy-sgd the uploads themselves. A value that strays from that was made of something else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from typing import Protocol as Interface

import numpy as np
import torch
from torch import Tensor

from sordino.audit.laws import GAUSSIAN, gaussian, law_of
from sordino.audit.noise_sample import ROUNDING, ResidualTest
from sordino.audit.residuals import FEWEST, ResidualReport, residual_tests
from sordino.federation.assignment import Upload
from sordino.federation.companions import companion_of
from sordino.federation.folder import State
from sordino.federation.many import UNCOUNTED, ManyRound
from sordino.federation.many_clients import Worked
from sordino.federation.many_kept import ManyKept
from sordino.federation.models.per_example import ClippedSum
from sordino.federation.noisy_sgd import ClippedSums, Substitute
from sordino.federation.personal import HELPER, Kept
from sordino.federation.setup import Setup
from sordino.privacy.mechanisms import deviation, silent
from sordino.privacy.sizes import size_of
from sordino.protocol import Attention, Noise, NoisySgd, Protocol, Scaffold

STRAYED = 1e-5  # of the largest value: more than rounding moves what is computed twice in float32


class LocalWork(Interface):
    """Who can repeat a client's work, in one training or in many at once."""

    like: np.ndarray  # for each client, the first one whose work is the same

    def work(
        self,
        *,
        client: int,
        round: int,
        weights: np.ndarray,
        first: int,
        kept: Kept,
        sums: Substitute | None = None,
    ) -> Worked:
        """See `ManyClients.work`."""


class SeenSums:
    """Noisy sums that were seen, in the place of a client's own. It holds what is left of them without the sums themselves: the noise."""

    _clean: ClippedSums

    def __init__(self, means: np.ndarray, batch: int) -> None:
        self._means, self._batch = means, batch
        self.noise: list[np.ndarray] = []

    def instead(self, clean: ClippedSums) -> ClippedSums:
        """These in the place of a client's own."""
        self._clean = clean
        return self

    def clipped_sum(
        self, inputs: Tensor, targets: Tensor, /, *, clip: float, norm: str = "l2"
    ) -> ClippedSum:
        """The sum of the step that is next."""
        found = self._clean.clipped_sum(inputs, targets, clip=clip, norm=norm)
        seen = torch.from_numpy(self._means[:, len(self.noise)]) * self._batch
        self.noise.append((seen.double() - found.total.double()).numpy().reshape(seen.shape))
        return ClippedSum(seen.reshape(found.total.shape).double(), 0, 0)


class Replay:
    """Repeats the first trainings of a table. It holds what clients keep and the server remembers, as it follows from what was released.

    `strays` says for every round and client how far what it sent, or was sent, is from what it should be; relative to the largest value.
    """

    def __init__(self, setup: Setup, clients: LocalWork, first: int, trainings: int) -> None:
        self._setup, self._clients, self._first, self._count = setup, clients, first, trainings
        self._kept, self._beside = ManyKept(setup, trainings), dict[str, np.ndarray]()
        self.strays: list[np.ndarray] = []

    def see(self, seen: ManyRound) -> np.ndarray:
        """Take in one round; what is left of it is noise: (trainings, steps or 1, clients, parameters), NaN where nothing was sent."""
        protocol, count = self._setup.protocol, self._count
        before, present = seen.before[:count], seen.present[:count]
        companion = companion_of(
            protocol, State(weights=before, round=seen.round, kept=self._beside)
        )
        broadcast, found = companion.broadcast(before), self._kept.found(before)
        uploads, done = seen.uploads[:, :count], dict[int, Worked]()
        strays = np.full(protocol.clients, strayed(seen.broadcast[..., :count, :], broadcast))
        steps = protocol.local.steps if isinstance(protocol.local, NoisySgd) else 1
        noise = np.full((count, steps, *uploads.shape[::2]), np.nan)
        for client in np.flatnonzero(present.any(axis=0)).tolist():
            here, like = present[:, client], int(self._clients.like[client])
            work = partial(
                self._clients.work,
                client=like,
                round=seen.round,
                weights=broadcast,
                first=self._first,
                kept=found[like],
            )
            if isinstance(protocol.local, NoisySgd):
                sums = SeenSums(seen.means[client][:count], protocol.local.batch)
                worked = work(sums=sums.instead)
                left = np.stack(sums.noise, axis=1)
            else:
                worked = done.get(like) or done.setdefault(like, work())
                left = (uploads[client] - worked.models.numpy())[:, None]
            noise[here, :, client] = left[here]
            strays[client] = max(
                strays[client], self._strayed(seen, client, found[client], worked, here)
            )
            self._kept.keep(client, worked.kept, uploads[client], here)
        noted = (
            Upload(client=c, vector=uploads[c], steps=UNCOUNTED, rows=present[:, [c]])
            for c in range(protocol.clients)
        )
        deque(companion.noted(noted), maxlen=0)
        self._beside = dict(companion.kept)
        self.strays.append(strays)
        return noise

    def _strayed(
        self, seen: ManyRound, client: int, found: Kept, worked: Worked, here: np.ndarray
    ) -> float:
        """How far the helper that a client was given, or with noisy-sgd its upload, is from what it should be."""
        pairs = []
        if HELPER in found:
            given = seen.kept[client].get(
                HELPER, seen.before
            )  # who has sent nothing yet is given the global model
            pairs.append((given[: self._count], found[HELPER]))
        if isinstance(self._setup.protocol.local, NoisySgd):
            pairs.append((seen.uploads[client, : self._count], worked.models.numpy()))
        return max((strayed(one[here], other[here]) for one, other in pairs), default=0.0)


def strayed(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest value; infinite where one is not finite and the other is.

    Example:
        >>> strayed(np.array([2.0, 1.5]), np.array([2.0, 1.0])), strayed(np.zeros(2), np.zeros(2))
        (0.25, 0.0)
    """
    both = np.isfinite(found) & np.isfinite(expected)
    if not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return float("inf")
    apart = float(np.abs(found[both].astype(np.float64) - expected[both]).max(initial=0.0))
    return apart / float(np.abs(expected[both]).max(initial=0.0) or 1.0) if apart > 0 else 0.0


def shows_noise(seen: ManyRound, setup: Setup, count: int) -> bool:
    """Whether float32 is fine enough at the size of what was released for the law of its noise to be seen, and nothing diverged."""
    rule, protocol = setup.protocol.local, setup.protocol
    if isinstance(rule, NoisySgd):
        values, noise = (
            [means[:count] for means in seen.means.values()],
            size_of(protocol.noise) * rule.noise_unit / rule.batch,
        )
    else:
        values, noise = [seen.uploads[:, :count]], min(deviation(own) for own in setup.noises)
    largest = max((float(np.abs(value).max(initial=0.0)) for value in values), default=0.0)
    return bool(np.isfinite(largest)) and float(np.spacing(np.float32(largest))) < ROUNDING * noise


def noise_report(
    protocol: Protocol,
    noises: tuple[Noise, ...],
    noise: np.ndarray | None,
    strays: np.ndarray | None,
) -> ResidualReport | None:
    """The tests of the noise that the first trainings drew, and of what was made of it; None where there is nothing to test.

    Args:
        protocol: what was trained.
        noises: the noise of every client that was trained.
        noise: what is left of the first trainings: (trainings, rounds or steps, clients, parameters).
        strays: how far released values are from what noisy ones make: (rounds, clients).
    """
    report = None if noise is None else tested_noise(protocol, noises, noise)
    sent_on = (
        protocol.penalty
        or isinstance(protocol.local, (Scaffold, NoisySgd))
        or isinstance(protocol.personalization, Attention)
    )
    if strays is None or not sent_on:
        return report
    extra = stray_test(strays)
    if report is None:
        return (
            ResidualReport(law="not looked at", values=0, tests=(extra,)) if extra.p == 0 else None
        )
    return replace(report, tests=(*report.tests, extra))


def tested_noise(
    protocol: Protocol, noises: tuple[Noise, ...], noise: np.ndarray
) -> ResidualReport | None:
    """The residual tests, in which noisy-sgd has steps in the place of rounds; None without noise, or with too little of it."""
    taken = ~np.isnan(noise).all(axis=-1)
    if protocol.noise.where == "server" or int(taken.sum()) * noise.shape[-1] < FEWEST:
        return None
    if isinstance(protocol.local, NoisySgd):
        deviation = size_of(protocol.noise) * protocol.local.noise_unit
        return (
            in_steps(residual_tests(noise, law=gaussian(deviation), taken=taken))
            if deviation > 0
            else None
        )
    laws = [
        law for law in (None if silent(own) else law_of(own) for own in noises) if law is not None
    ]
    if len(laws) < len(noises):
        return None
    if len(set(noises)) == 1:
        return residual_tests(noise, law=laws[0], taken=taken)
    scores = np.stack([law.scores(noise[:, :, client]) for client, law in enumerate(laws)], axis=2)
    return replace(
        residual_tests(scores, law=GAUSSIAN, taken=taken), law="each client's own, as normal scores"
    )


def in_steps(report: ResidualReport) -> ResidualReport:
    """The same report in the words of noisy steps, which are numbered from the first step of the first round on."""
    words = [
        {name: getattr(test, name).replace("round", "step") for name in ("name", "tested", "place")}
        for test in report.tests
    ]
    return replace(
        report,
        tests=tuple(replace(test, **word) for test, word in zip(report.tests, words, strict=True)),
    )


def stray_test(strays: np.ndarray) -> ResidualTest:
    """Whether all that was sent is what noisy values make."""
    round, client = np.unravel_index(int(np.argmax(strays)), strays.shape)
    largest = float(strays[round, client])
    return ResidualTest(
        name="post-processing",
        tested="whether what is made of noisy values is made of them alone",
        p=0.0 if not largest <= STRAYED else 1.0,
        place=f"round {round}, client {client}",
        found=f"{largest:.3g} of the largest value away from what they make",
    )

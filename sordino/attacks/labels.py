"""Which labels a client trained on, from its upload (convergent-dp, Table 13).

The gradient of the last layer names them. With p the predicted probabilities, y a label and h the embedding of a record, the bias has the
gradient p - e_y and the weights (p - e_y) h^T: negative only in the row of the label (iDLG, Zhao et al. 2020). In a batch the rows add up,
so that their magnitudes count labels (LLG, Wainakh et al. 2022; iLRG, Ma et al. 2023). Three attackers:

magnitudes  no records of its own: probabilities are those for random inputs, and counts B (p - gradient of the bias)
mixture     with records of its own: the gradient is a mixture of the mean gradients of the classes, and its shares are the counts
optimised   embeddings and soft labels are invented so that they give the gradient (DLG, Zhu et al. 2019, from the last layer on)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor
from torch.nn import functional

from sordino.attacks.game import Case, Measure, Scored, Tick, upload_cases
from sordino.attacks.observed import ObservedUpload
from sordino.attacks.reading import LastLayer, Reader
from sordino.attacks.referee import Referee
from sordino.attacks.truth import TruthBatch
from sordino.protocol import View

SMALLEST = 1e-12
SURENESS = 3.0  # of an invented label at the start, in logits
EXACT = 0.01  # relative error of a gradient without noise that the optimised attacker does not care about
SWAPPED = 0.25  # share of the labels that another start has different


@dataclass(frozen=True, kw_only=True)
class LabelAttack:
    """Labels from uploads.

    Attributes:
        rounds: how many rounds are attacked, from first to last.
        uploads: how many uploads of each.
        records: how many records the attacker has.
        iterations: of the optimised attacker.
        starts: of the optimised attacker, tried side by side; the best fit counts.
    """

    rounds: int
    uploads: int
    records: int
    iterations: int
    starts: int
    name: str = "labels"
    view: View = View.SERVER
    paper: str = "convergent-dp, Table 13"
    headline: str = "accuracy"

    def cases(self, referee: Referee) -> list[Case[ObservedUpload, TruthBatch]]:
        """Some uploads of some rounds."""
        return upload_cases(referee, rounds=self.rounds, uploads=self.uploads, records=self.records)

    def attempt(self, seen: ObservedUpload, tick: Tick) -> dict[str, np.ndarray]:
        """For every method, how often each label was drawn."""
        known = evidence(seen)
        mixture = by_mixture(known)
        optimised = by_optimisation(known, mixture, self.iterations, self.starts, tick)
        return {"magnitudes": by_magnitudes(seen), "mixture": mixture, "optimised": optimised}

    def score(self, guess: dict[str, np.ndarray], truth: TruthBatch) -> Scored:
        """The share of the drawn labels that were named, beside who guesses every class equally often."""
        classes = len(next(iter(guess.values())))
        true = np.bincount(truth.labels.numpy(), minlength=classes)
        total, trivial = int(true.sum()), uninformed_overlap(true)
        return Scored(
            measures=tuple(
                Measure(
                    metric="accuracy", method=method, value=float(np.minimum(counts, true).sum() / total), baseline=trivial,
                    better="higher", samples=total,
                )
                for method, counts in guess.items()
            )
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What an upload and the attacker's own records say about the last layer.

    Attributes:
        last: where it stands among the parameters.
        model: all parameters of the global model.
        gradient: the upload's gradient of it, class by class.
        deviation: standard deviation of the noise on a coordinate of that.
        drawn: records that the upload's steps drew, counted with repetition; the protocol says it.
        embeddings: what goes into it, for the attacker's own records.
        answers: what comes out, for the same.
        labels: their classes.
    """

    last: LastLayer
    model: Tensor
    gradient: Tensor
    deviation: float
    drawn: int
    embeddings: Tensor
    answers: Tensor
    labels: Tensor


def evidence(seen: ObservedUpload) -> Evidence:
    """Read an upload's last layer."""
    own = seen.federation.auxiliary
    reader = Reader(seen.federation.module, seen.model, own.inputs)
    embeddings, answers = reader.read(own.inputs)
    return Evidence(
        last=reader.last, model=torch.from_numpy(seen.model), gradient=flattened(reader.last, seen.gradient), deviation=seen.deviation,
        drawn=seen.drawn, embeddings=embeddings, answers=answers, labels=own.labels,
    )  # fmt: skip


def by_magnitudes(seen: ObservedUpload) -> np.ndarray:
    """Counts of labels from the magnitudes of the last layer's gradient, without any records."""
    inputs = torch.randn(
        64, *seen.federation.auxiliary.inputs.shape[1:], generator=torch.Generator().manual_seed(0)
    )
    reader = Reader(seen.federation.module, seen.model, inputs)
    embeddings, answers = reader.read(inputs)
    weight, bias = reader.last.parts(seen.gradient)
    if bias is None:  # the sum of a row is the same, times the sum of an embedding
        bias = weight.sum(dim=1) / max(SMALLEST, float(embeddings.sum(dim=1).mean()))
    if seen.drawn == 1:
        return only_negative(bias)
    shares = answers.softmax(dim=1).mean(dim=0).double() - bias
    return rounded_shares(shares.numpy(), seen.drawn)


def only_negative(rows: Tensor) -> np.ndarray:
    """The label of a single record: the only row that its gradient makes negative, or under noise the most negative one (iDLG).

    Example:
        >>> only_negative(torch.tensor([0.1, -0.7, 0.6])).tolist()
        [0, 1, 0]
    """
    return (np.arange(len(rows)) == int(rows.argmin())).astype(np.int64)


def by_mixture(known: Evidence) -> np.ndarray:
    """Counts of labels as the shares of the classes' mean gradients, each coordinate weighed by how far it can be trusted.

    A coordinate errs by the noise, whose size the protocol says, and by the spread of records of one class, as the attacker's own
    have it. The sum of the shares is left free: a gradient that was clipped is shorter, by nobody knows how much.
    """
    if known.drawn == 1:
        return only_negative(
            known.gradient.reshape(known.last.classes, -1)
            @ extended(known.embeddings.double(), known.last).mean(dim=0)
        )
    means, variances = class_gradients(known)
    trust = 1 / np.sqrt(np.maximum(variances / known.drawn + known.deviation**2, SMALLEST))
    shares, _ = nnls(
        means.T * trust[:, None], known.gradient.numpy() * trust, maxiter=100 * len(means)
    )
    return rounded_shares(shares, known.drawn)


def class_gradients(known: Evidence) -> tuple[np.ndarray, np.ndarray]:
    """Mean gradient of the last layer for a record of each class, one a row, and the mean variance within a class per coordinate."""
    errors = known.answers.softmax(dim=1).double() - functional.one_hot(
        known.labels, known.last.classes
    )
    inner = extended(known.embeddings.double(), known.last)
    means, variances = [], []
    for label in range(known.last.classes):
        of_class = known.labels == label
        count = max(1, int(of_class.sum()))
        mean = errors[of_class].T @ inner[of_class] / count  # E[(p - e) h^T | y]
        square = (errors[of_class] ** 2).T @ inner[of_class] ** 2 / count
        means.append(mean.flatten())
        variances.append((square - mean**2).clamp(min=0).flatten())
    return torch.stack(means).numpy(), torch.stack(variances).mean(dim=0).numpy()


def by_optimisation(
    known: Evidence, start: np.ndarray, iterations: int, starts: int, tick: Tick
) -> np.ndarray:
    """Counts of the labels that, with some embeddings, best explain the last layer's gradient; the best of several starts counts."""
    explanation = Explanation(known)
    generator = torch.Generator().manual_seed(0)
    labels = varied_starts(
        torch.from_numpy(np.repeat(np.arange(len(start)), start)),
        starts,
        known.last.classes,
        generator,
    )
    inner = explanation.drawn_embeddings(labels, generator).requires_grad_()
    soft = (SURENESS * functional.one_hot(labels, known.last.classes).float()).requires_grad_()
    pace = 0.1 * float(explanation.spreads.sqrt().mean())
    optimizer = torch.optim.Adam([{"params": [inner], "lr": pace}, {"params": [soft], "lr": 0.1}])
    for iteration in range(iterations):
        optimizer.zero_grad()
        explanation.misfit(inner, soft.softmax(dim=2)).sum().backward()
        optimizer.step()
        tick((iteration + 1) / iterations)
    with torch.no_grad():
        best = int(explanation.misfit(inner, soft.softmax(dim=2)).argmin())
        return rounded_shares(soft[best].softmax(dim=1).sum(dim=0).double().numpy(), known.drawn)


class Explanation:
    """How badly invented embeddings and labels explain a gradient: minus the logarithm of their likelihood. It holds what is known.

    Noise on the gradient is normal and of the protocol's size; embeddings are normal around the mean of their class, as the attacker's
    own records have it. A clip may have shortened the gradient.
    """

    def __init__(self, known: Evidence) -> None:
        one_hot = functional.one_hot(known.labels, known.last.classes).float()
        self._known, self._gradient = known, known.gradient.float()
        self.centres = (one_hot / one_hot.sum(dim=0).clamp(min=1)).T @ known.embeddings
        within = (known.embeddings - self.centres[known.labels]).square().mean(dim=0)
        self.spreads = within + 1e-3 * known.embeddings.var() + SMALLEST
        self._variance = max(
            known.deviation**2, EXACT**2 * float(self._gradient.square().mean()), SMALLEST
        )

    def drawn_embeddings(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Embeddings of these labels as likely as any."""
        normals = torch.randn(*labels.shape, self.centres.shape[1], generator=generator)
        return self.centres[labels] + self.spreads.sqrt() * normals

    def misfit(self, inner: Tensor, labels: Tensor) -> Tensor:
        """For every start (starts, records, ...), how badly its embeddings and soft labels fit."""
        last, (weight, bias) = self._known.last, self._known.last.parts(self._known.model)
        answers = inner @ weight.T + (0.0 if bias is None else bias)
        given = (
            torch.einsum(
                "snc,snh->sch", answers.softmax(dim=2) - labels, extended(inner, last)
            ).flatten(1)
            / self._known.drawn
        )
        kept = ((given @ self._gradient) / given.square().sum(dim=1).clamp(min=SMALLEST)).clamp(
            0, 1
        )  # what a clip left of it
        noise = (kept[:, None] * given - self._gradient).square().sum(dim=1) / (2 * self._variance)
        return noise + ((inner - labels @ self.centres).square() / (2 * self.spreads)).sum(
            dim=(1, 2)
        )


def varied_starts(labels: Tensor, starts: int, classes: int, generator: torch.Generator) -> Tensor:
    """The labels as they are, and again with some of them drawn anew, one start a row."""
    table = labels.repeat(starts, 1)
    swapped = torch.rand(table.shape, generator=generator) < SWAPPED
    swapped[0] = False
    return torch.where(swapped, torch.randint(0, classes, table.shape, generator=generator), table)


def extended(embeddings: Tensor, last: LastLayer) -> Tensor:
    """Embeddings with a 1 at the end where the last layer has a bias: its gradient is then that of one more weight."""
    return (
        embeddings
        if last.bias is None
        else torch.cat([embeddings, torch.ones_like(embeddings[..., :1])], dim=-1)
    )


def flattened(last: LastLayer, gradient: Tensor) -> Tensor:
    """The gradient of the last layer, class by class: the weights of a class, then its bias."""
    weight, bias = last.parts(gradient)
    return (weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)).flatten()


def rounded_shares(shares: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers in proportion to the shares, negative ones being none, that add up to the total; the largest remainders round up.

    Example:
        >>> rounded_shares(np.array([0.5, -0.1, 0.26, 0.24]), 4).tolist()
        [2, 0, 1, 1]
    """
    positive = np.maximum(np.nan_to_num(shares, posinf=0.0), 0.0)
    wanted = (
        positive / positive.sum() * total
        if positive.sum() > 0
        else np.full(len(shares), total / len(shares))
    )
    counts = np.floor(wanted).astype(np.int64)
    counts[np.argsort(counts - wanted, kind="stable")[: total - counts.sum()]] += 1
    return counts


def uninformed_overlap(true: np.ndarray) -> float:
    """The share of labels that are right on average if every class is named equally often, which one gets one more drawn at random.

    Example:
        >>> uninformed_overlap(np.array([4, 0, 0, 0, 0, 0, 0, 0, 0, 0])), uninformed_overlap(np.array([1, 3]))
        (0.1, 0.75)
    """
    each, left = divmod(int(true.sum()), len(true))
    share = left / len(true)
    return float(
        ((1 - share) * np.minimum(each, true) + share * np.minimum(each + 1, true)).sum()
        / true.sum()
    )


SETTINGS = {
    "quick": LabelAttack(rounds=3, uploads=8, records=1000, iterations=150, starts=4),
    # Table 13: 1,000 samples; here uploads of so many rounds that the samples come to at least as many.
    "paper": LabelAttack(rounds=6, uploads=100, records=4000, iterations=600, starts=16),
}

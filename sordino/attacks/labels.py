"""Finds the labels that a client trained on, from its upload (convergent-dp, Table 13).

The gradient of the last layer shows them. With p the predicted probabilities, y a label and h the
embedding of a record, the bias has the gradient p - e_y and the weights (p - e_y) h^T: negative
only in the row of the label (iDLG, Zhao et al. 2020). In a batch the rows add up, so that their
magnitudes count labels (LLG, Wainakh et al. 2022; iLRG, Ma et al. 2023). Three attackers:

magnitudes  has no records: probabilities are those for random inputs, and counts are
            B (p - gradient of the bias)
mixture     has records: the gradient is a mixture of the mean gradients of the classes, and its
            shares are the counts
optimised   invents embeddings and soft labels that give the gradient (DLG, Zhu et al. 2019, from
            the last layer on)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor
from torch.nn import functional

from sordino.attacks.attack import Case, CaseResult, Measure, Tick, list_upload_cases
from sordino.attacks.observed import ObservedUpload
from sordino.attacks.reading import LastLayer, ModelReader
from sordino.attacks.referee import Referee
from sordino.attacks.truth import TruthBatch
from sordino.protocol import View

# Keeps quotients finite.
SMALLEST = 1e-12
# The logit of an invented label at the start.
INITIAL_LOGIT = 3.0
# The relative error of a gradient without noise that the optimised attacker tolerates.
TOLERATED_ERROR = 0.01
# The share of the labels in which another start differs.
SWAPPED_SHARE = 0.25
# The number of random inputs that stand in for records.
RANDOM_INPUTS = 64


@dataclass(frozen=True, kw_only=True)
class LabelAttack:
    """Finds labels from uploads.

    Attributes:
        rounds: The number of rounds that are attacked, from first to last.
        uploads: The number of uploads of each round.
        records: The number of records that the attacker has.
        iterations: The steps of the optimised attacker.
        starts: The starts of the optimised attacker, tried side by side; the best fit counts.
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
        """Returns some uploads of some rounds.

        Args:
            referee: Knows the run.
        """
        return list_upload_cases(
            referee, rounds=self.rounds, uploads=self.uploads, records=self.records
        )

    def attempt(self, seen: ObservedUpload, tick: Tick) -> dict[str, np.ndarray]:
        """Returns how often each label was drawn, by every method.

        Args:
            seen: What the attacker is given.
            tick: Called with the share of the work that is done.
        """
        known = read_last_layer(seen)
        mixture = count_by_mixture(known)
        optimised = count_by_optimisation(known, mixture, self.iterations, self.starts, tick)
        return {"magnitudes": count_by_magnitudes(seen), "mixture": mixture, "optimised": optimised}

    def score(self, guess: dict[str, np.ndarray], truth: TruthBatch) -> CaseResult:
        """Returns the share of the drawn labels that each method named.

        The baseline is an attacker who names every class equally often.

        Args:
            guess: Counts of labels by every method.
            truth: The records that were drawn.
        """
        classes = len(next(iter(guess.values())))
        true_counts = np.bincount(truth.labels.numpy(), minlength=classes)
        total = int(true_counts.sum())
        # Methods name counts: naming every class equally often is then right more often than
        # guessing label by label would be.
        baseline = uninformed_overlap(true_counts)
        measures = []
        for method, counts in guess.items():
            measure = Measure(
                metric="accuracy",
                method=method,
                value=float(np.minimum(counts, true_counts).sum() / total),
                baseline=baseline,
                better="higher",
                samples=total,
            )
            measures.append(measure)
        return CaseResult(measures=tuple(measures))


@dataclass(frozen=True, kw_only=True, eq=False)
class LastLayerEvidence:
    """What an upload and the attacker's own records say about the last layer.

    Attributes:
        last: The place of the layer's parameters among those of the model.
        model: All parameters of the global model.
        gradient: The upload's gradient of the layer, class by class.
        deviation: The standard deviation of the noise on a coordinate of the gradient.
        drawn: The number of records that the upload's steps drew, counted with repetition.
        embeddings: The inputs of the layer, for the attacker's own records.
        answers: The outputs of the layer, for the same records.
        labels: The classes of these records.
    """

    last: LastLayer
    model: Tensor
    gradient: Tensor
    deviation: float
    drawn: int
    embeddings: Tensor
    answers: Tensor
    labels: Tensor


def read_last_layer(seen: ObservedUpload) -> LastLayerEvidence:
    """Returns the evidence of an upload about the last layer.

    Args:
        seen: What the attacker is given.
    """
    own = seen.federation.auxiliary
    reader = ModelReader(seen.federation.module, seen.model, own.inputs)
    embeddings, answers = reader.read(own.inputs)
    return LastLayerEvidence(
        last=reader.last,
        model=torch.from_numpy(seen.model),
        gradient=flatten_by_class(reader.last, seen.gradient),
        deviation=seen.deviation,
        drawn=seen.drawn,
        embeddings=embeddings,
        answers=answers,
        labels=own.labels,
    )


def count_by_magnitudes(seen: ObservedUpload) -> np.ndarray:
    """Returns counts of labels from the magnitudes of the last layer's gradient, without records.

    Args:
        seen: What the attacker is given.
    """
    shape = seen.federation.auxiliary.inputs.shape[1:]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(RANDOM_INPUTS, *shape, generator=generator)
    reader = ModelReader(seen.federation.module, seen.model, inputs)
    embeddings, answers = reader.read(inputs)
    weight, bias = reader.last.split_vector(seen.gradient)
    if bias is None:
        # The sum of a row is the bias's gradient times the sum of an embedding.
        bias = weight.sum(dim=1) / max(SMALLEST, float(embeddings.sum(dim=1).mean()))
    if seen.drawn == 1:
        return find_most_negative(bias)
    shares = answers.softmax(dim=1).mean(dim=0).double() - bias
    return round_shares(shares.numpy(), seen.drawn)


def find_most_negative(rows: Tensor) -> np.ndarray:
    """Returns the count of each label for a single record (iDLG).

    The gradient of one record is negative in one row alone; under noise, the most negative counts.

    Args:
        rows: One number for each class.

    Example:
        >>> find_most_negative(torch.tensor([0.1, -0.7, 0.6])).tolist()
        [0, 1, 0]
    """
    named: np.ndarray = (np.arange(len(rows)) == int(rows.argmin())).astype(np.int64)
    return named


def count_by_mixture(known: LastLayerEvidence) -> np.ndarray:
    """Returns counts of labels as shares of the classes' mean gradients.

    Args:
        known: The evidence about the last layer.
    """
    if known.drawn == 1:
        by_class = known.gradient.reshape(known.last.classes, -1)
        embedding = append_one(known.embeddings.double(), known.last).mean(dim=0)
        return find_most_negative(by_class @ embedding)
    means, variances = estimate_class_gradients(known)
    # A coordinate errs by the noise, whose size is in the protocol, and by the spread of records
    # within a class, estimated from the attacker's own.
    error_variances = variances / known.drawn + known.deviation**2
    precision = 1 / np.sqrt(np.maximum(error_variances, SMALLEST))
    # The sum of the shares is left free: a clip may have shortened the gradient.
    shares, _ = nnls(
        means.T * precision[:, None], known.gradient.numpy() * precision, maxiter=100 * len(means)
    )
    return round_shares(shares, known.drawn)


def estimate_class_gradients(known: LastLayerEvidence) -> tuple[np.ndarray, np.ndarray]:
    """Returns the last layer's gradients for a record of each class.

    Args:
        known: The evidence about the last layer.

    Returns:
        The mean gradient of each class, one a row, and the mean variance within a class for each
        coordinate.
    """
    one_hot = functional.one_hot(known.labels, known.last.classes)
    errors = known.answers.softmax(dim=1).double() - one_hot
    inner = append_one(known.embeddings.double(), known.last)
    means = []
    variances = []
    for label in range(known.last.classes):
        of_class = known.labels == label
        count = max(1, int(of_class.sum()))
        # E[(p - e) h^T | y], and the same of the squares.
        mean = errors[of_class].T @ inner[of_class] / count
        square = (errors[of_class] ** 2).T @ inner[of_class] ** 2 / count
        means.append(mean.flatten())
        variances.append((square - mean**2).clamp(min=0).flatten())
    return torch.stack(means).numpy(), torch.stack(variances).mean(dim=0).numpy()


def count_by_optimisation(
    known: LastLayerEvidence, start: np.ndarray, iterations: int, starts: int, tick: Tick
) -> np.ndarray:
    """Returns counts of the labels that, with some embeddings, best explain the gradient.

    Args:
        known: The evidence about the last layer.
        start: The counts of labels to begin with.
        iterations: The steps of the optimiser.
        starts: The number of starts; the best fit counts.
        tick: Called with the share of the work that is done.
    """
    explanation = GradientExplanation(known)
    generator = torch.Generator().manual_seed(0)
    first_labels = torch.from_numpy(np.repeat(np.arange(len(start)), start))
    labels = vary_labels(first_labels, starts, known.last.classes, generator)
    inner = explanation.draw_embeddings(labels, generator).requires_grad_()
    one_hot = functional.one_hot(labels, known.last.classes).float()
    logits = (INITIAL_LOGIT * one_hot).requires_grad_()
    rate = 0.1 * float(explanation.spreads.sqrt().mean())
    optimizer = torch.optim.Adam([{"params": [inner], "lr": rate}, {"params": [logits], "lr": 0.1}])
    for iteration in range(iterations):
        optimizer.zero_grad()
        explanation.measure_misfit(inner, logits.softmax(dim=2)).sum().backward()
        optimizer.step()
        tick((iteration + 1) / iterations)
    with torch.no_grad():
        best = int(explanation.measure_misfit(inner, logits.softmax(dim=2)).argmin())
        shares = logits[best].softmax(dim=1).sum(dim=0).double()
        return round_shares(shares.numpy(), known.drawn)


class GradientExplanation:
    """Measures how badly invented embeddings and labels explain a gradient.

    The measure is minus the logarithm of their likelihood. Noise on the gradient is normal and has
    the protocol's size. Embeddings are normal around the mean of their class, as estimated from the
    attacker's own records.
    """

    def __init__(self, known: LastLayerEvidence) -> None:
        """Estimates where the embeddings of each class lie.

        Args:
            known: The evidence about the last layer.
        """
        self._known = known
        self._gradient = known.gradient.float()
        one_hot = functional.one_hot(known.labels, known.last.classes).float()
        self.centres = (one_hot / one_hot.sum(dim=0).clamp(min=1)).T @ known.embeddings
        within = (known.embeddings - self.centres[known.labels]).square().mean(dim=0)
        self.spreads = within + 1e-3 * known.embeddings.var() + SMALLEST
        rounding = TOLERATED_ERROR**2 * float(self._gradient.square().mean())
        self._variance = max(known.deviation**2, rounding, SMALLEST)

    def draw_embeddings(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Returns likely embeddings of some labels.

        Args:
            labels: The labels.
            generator: The source of random numbers.
        """
        normals = torch.randn(*labels.shape, self.centres.shape[1], generator=generator)
        return self.centres[labels] + self.spreads.sqrt() * normals

    def measure_misfit(self, inner: Tensor, labels: Tensor) -> Tensor:
        """Returns how badly each start explains the gradient.

        Args:
            inner: Embeddings, of shape (starts, records, width).
            labels: Soft labels, of shape (starts, records, classes).

        Returns:
            One number for each start.
        """
        last = self._known.last
        weight, bias = last.split_vector(self._known.model)
        answers = inner @ weight.T
        if bias is not None:
            answers = answers + bias
        errors = answers.softmax(dim=2) - labels
        sums = torch.einsum("snc,snh->sch", errors, append_one(inner, last)).flatten(1)
        given = sums / self._known.drawn
        # The share of the gradient that a clip has left, as fits best.
        lengths = given.square().sum(dim=1).clamp(min=SMALLEST)
        kept = ((given @ self._gradient) / lengths).clamp(0, 1)
        residuals = (kept[:, None] * given - self._gradient).square().sum(dim=1)
        offsets = (inner - labels @ self.centres).square() / (2 * self.spreads)
        return residuals / (2 * self._variance) + offsets.sum(dim=(1, 2))


def vary_labels(labels: Tensor, starts: int, classes: int, generator: torch.Generator) -> Tensor:
    """Returns the given labels, and copies of them in which some are drawn again.

    Args:
        labels: The labels of the first start.
        starts: The number of starts.
        classes: The number of classes.
        generator: The source of random numbers.

    Returns:
        One start a row.
    """
    table = labels.repeat(starts, 1)
    swapped = torch.rand(table.shape, generator=generator) < SWAPPED_SHARE
    swapped[0] = False
    return torch.where(swapped, torch.randint(0, classes, table.shape, generator=generator), table)


def append_one(embeddings: Tensor, last: LastLayer) -> Tensor:
    """Returns embeddings with a 1 at the end where the last layer has a bias.

    The gradient of the bias is then that of one more weight.

    Args:
        embeddings: The inputs of the layer.
        last: The layer.
    """
    if last.bias is None:
        return embeddings
    return torch.cat([embeddings, torch.ones_like(embeddings[..., :1])], dim=-1)


def flatten_by_class(last: LastLayer, gradient: Tensor) -> Tensor:
    """Returns the last layer's gradient class by class: the weights of a class, then its bias.

    Args:
        last: The layer.
        gradient: The gradient of all parameters.
    """
    weight, bias = last.split_vector(gradient)
    if bias is not None:
        weight = torch.cat([weight, bias[:, None]], dim=1)
    return weight.flatten()


def round_shares(shares: np.ndarray, total: int) -> np.ndarray:
    """Returns whole numbers in proportion to the shares that add up to a total.

    The largest remainders round up. Negative shares count as zero.

    Args:
        shares: One for each class.
        total: The sum of the whole numbers.

    Example:
        >>> round_shares(np.array([0.5, -0.1, 0.26, 0.24]), 4).tolist()
        [2, 0, 1, 1]
    """
    positive = np.maximum(np.nan_to_num(shares, posinf=0.0), 0.0)
    if positive.sum() > 0:
        exact = positive / positive.sum() * total
    else:
        exact = np.full(len(shares), total / len(shares))
    counts: np.ndarray = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(counts - exact, kind="stable")
    counts[by_remainder[: total - counts.sum()]] += 1
    return counts


def uninformed_overlap(true_counts: np.ndarray) -> float:
    """Returns the mean share of labels that are right if every class is named equally often.

    Where that leaves a remainder, the classes that are named once more are drawn at random.

    Args:
        true_counts: How often each label was drawn.

    Example:
        >>> uninformed_overlap(np.array([4, 0, 0, 0, 0, 0, 0, 0, 0, 0]))
        0.1
        >>> uninformed_overlap(np.array([1, 3]))
        0.75
    """
    each, left = divmod(int(true_counts.sum()), len(true_counts))
    share_with_more = left / len(true_counts)
    without = (1 - share_with_more) * np.minimum(each, true_counts)
    with_more = share_with_more * np.minimum(each + 1, true_counts)
    return float((without + with_more).sum() / true_counts.sum())


SETTINGS = {
    "quick": LabelAttack(rounds=3, uploads=8, records=1000, iterations=150, starts=4),
    # Table 13 has 1,000 samples; these rounds and uploads give at least as many.
    "paper": LabelAttack(rounds=6, uploads=100, records=4000, iterations=600, starts=16),
}

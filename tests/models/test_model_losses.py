"""The losses against their formulas, written out in numpy."""

import numpy as np
import pytest
import torch

from sordino.models import cross_entropy, evaluate_batch, loss_for, mean_squared_error

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.0, 3.0], [1.0, 4.0, -2.0], [0.3, 0.2, 0.1]])
LABELS = torch.tensor([0, 1, 1, 0])


def entropies(logits, labels):
    values = logits.double().numpy()
    return [
        np.log(np.exp(row).sum()) - row[label]
        for row, label in zip(values, labels.tolist(), strict=True)
    ]


def test_cross_entropy_is_the_mean():
    assert cross_entropy(LOGITS, LABELS).item() == pytest.approx(
        np.mean(entropies(LOGITS, LABELS)), rel=1e-6
    )


def test_log_softmax_outputs_have_the_same_loss():
    assert cross_entropy(LOGITS.log_softmax(1), LABELS).item() == pytest.approx(
        cross_entropy(LOGITS, LABELS).item(), rel=1e-6
    )


def test_evaluation_of_classes():
    loss_sum, correct, count = evaluate_batch(LOGITS, LABELS)
    assert loss_sum == pytest.approx(sum(entropies(LOGITS, LABELS)), rel=1e-12)
    assert (correct, count) == (3, 4)


def test_evaluation_adds_up_over_batches():
    whole = evaluate_batch(LOGITS, LABELS)
    parts = [evaluate_batch(LOGITS[:1], LABELS[:1]), evaluate_batch(LOGITS[1:], LABELS[1:])]
    assert tuple(map(sum, zip(*parts, strict=True))) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("shape", [(3, 2), (6, 1)])
def test_squared_error_is_the_mean_over_records_and_outputs(shape):
    outputs, targets = (
        torch.arange(6.0).reshape(shape),
        torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 8.0]).reshape(shape),
    )
    assert mean_squared_error(outputs, targets).item() == pytest.approx(9 / 6)
    loss_sum, correct, count = evaluate_batch(outputs, targets)
    assert loss_sum == pytest.approx(9 / 6 * shape[0])
    assert correct is None
    assert count == shape[0]


def test_squared_error_does_not_compare_records_with_each_other():
    outputs = torch.tensor([[0.0], [1.0], [2.0]])
    assert mean_squared_error(outputs, torch.tensor([0.0, 1.0, 2.0])).item() == 0.0


def test_the_targets_choose_the_loss():
    assert loss_for(LABELS) is cross_entropy
    assert loss_for(LABELS.double()) is mean_squared_error

"""Where the last layer of any model is, and what it reads."""

import numpy as np
import pytest
import torch
from torch import nn

from sordino import UserError
from sordino.attacks.reading import ModelReader
from sordino.models import build_model
from sordino.models.flat import FlatModel


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("logistic", (1, 8, 8)),
        ("mlp", (1, 8, 8)),
        ("lenet5", (1, 28, 28)),
        ("vit-small", (3, 32, 32)),
    ],
)
def test_the_last_layer_makes_the_answers_of_the_embeddings(name, shape) -> None:
    module = build_model(name, shape, 10, seed=3)
    weights, inputs = FlatModel(module).weights, torch.randn(3, *shape)
    reader = ModelReader(module, weights.numpy(), inputs)
    embeddings, answers = reader.read(inputs)
    weight, bias = reader.last.split_vector(weights)
    torch.testing.assert_close(embeddings @ weight.T + bias, answers)
    torch.testing.assert_close(answers, FlatModel(module).predict(inputs))


class Doubled(nn.Module):
    """Ends in something else than a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 2 * self.layer(inputs)


def test_models_that_end_otherwise_or_whose_end_is_frozen_are_refused() -> None:
    with pytest.raises(UserError, match="does not end in a linear layer"):
        ModelReader(Doubled(), np.zeros(9, np.float32), torch.zeros(1, 2))
    frozen = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    frozen[1].requires_grad_(False)
    with pytest.raises(UserError, match="frozen"):
        ModelReader(frozen, np.zeros(6, np.float32), torch.zeros(1, 2))


def test_numbers_that_overflow_stay_finite() -> None:
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 2))
    embeddings, answers = ModelReader(module, np.full(6, 3e38, np.float32), torch.zeros(1, 1)).read(
        torch.full((2, 1), -5.0)
    )
    assert torch.isfinite(embeddings).all()
    assert torch.isfinite(answers).all()

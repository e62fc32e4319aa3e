"""Models: the named ones, the user's, whether they can be trained privately, and as one vector."""

from sordino.models.fitness import check_model, parameter_count
from sordino.models.flat import FlatModel
from sordino.models.named_models import KNOWN, build_model
from sordino.models.task_losses import (
    Evaluation,
    Loss,
    cross_entropy,
    evaluate_batch,
    loss_for,
    mean_predictor_loss,
    mean_squared_error,
)

__all__ = [
    "KNOWN",
    "Evaluation",
    "FlatModel",
    "Loss",
    "build_model",
    "check_model",
    "cross_entropy",
    "evaluate_batch",
    "loss_for",
    "mean_predictor_loss",
    "mean_squared_error",
    "parameter_count",
]

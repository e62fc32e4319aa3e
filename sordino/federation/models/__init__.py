"""Which model is trained: the zoo, the user's own, whether it can be trained privately, and the model as one vector."""

from sordino.federation.models.catalogue import KNOWN, build_model
from sordino.federation.models.fitness import check_model, parameter_count
from sordino.federation.models.flat import FlatModel
from sordino.federation.models.losses import (
    Evaluation,
    Loss,
    cross_entropy,
    evaluate_batch,
    loss_for,
    mean_predictor_loss,
    mean_squared_error,
)

__all__ = [
    "KNOWN", "Evaluation", "FlatModel", "Loss", "build_model", "check_model", "cross_entropy", "evaluate_batch", "loss_for",
    "mean_predictor_loss", "mean_squared_error", "parameter_count",
]  # fmt: skip

"""Who executes the local work of a federation."""

from sordino.engines.many_trainings import train_many
from sordino.engines.training import resume, train

__all__ = ["resume", "train", "train_many"]

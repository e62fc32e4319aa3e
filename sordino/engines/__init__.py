"""Who executes the local work of a federation."""

from sordino.engines.training import resume, train

__all__ = ["resume", "train"]

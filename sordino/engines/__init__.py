"""The engines that execute the local work of a federation.

Names are loaded when they are first used, since a client across machines does not need them all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.engines.many_trainings import train_many as train_many
    from sordino.engines.train_one import resume as resume
    from sordino.engines.train_one import train as train

__all__ = ["resume", "train", "train_many"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sordino.engines' has no attribute {name!r}")
    module = "train_one"
    if name == "train_many":
        module = "many_trainings"
    return getattr(import_module(f"sordino.engines.{module}"), name)

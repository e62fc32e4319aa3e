"""The engines that execute the local work of a federation.

Names are loaded when they are first used: a client across machines has no use for all.
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
    return getattr(
        import_module(
            "sordino.engines.many_trainings"
            if name == "train_many"
            else "sordino.engines.train_one"
        ),
        name,
    )

"""Who executes the local work of a federation. Names are loaded when they are first used: a client across machines has no use for all."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.engines.training import resume as resume
    from sordino.engines.training import train as train

__all__ = ["resume", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sordino.engines' has no attribute {name!r}")
    from sordino.engines import training

    return getattr(training, name)

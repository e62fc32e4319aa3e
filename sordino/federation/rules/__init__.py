"""How clients train: one file per local rule, on one model or a table of trainings."""

from importlib import import_module
from pkgutil import iter_modules

# Every file of this folder registers its own kind, so that a new kind is a new file and no more.
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

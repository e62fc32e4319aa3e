"""The kinds of noise, one file each: price, sampler, density, law, moments, size and words."""

from importlib import import_module
from pkgutil import iter_modules

from sordino.mechanisms.mechanism import Mechanism, NoisePrice, mechanism_of, mechanism_of_name

# Every file of this folder registers its own kind, so that a new kind is a new file and no more.
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["Mechanism", "NoisePrice", "mechanism_of", "mechanism_of_name"]

"""Models of the user's own: `package.module:factory`, found and called."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from sordino.federation.models.nets import Shape
from sordino.protocol import InvalidValue, UserError

Factory = Callable[..., nn.Module]


def model_at(path: str, input_shape: Shape, outputs: int) -> nn.Module:
    """The model that `package.module:factory` makes. The module may be a file in the current directory.

    Example:
        >>> model_at("sordino.federation.models.nets:logistic", (1, 8, 8), 10)[1].out_features
        10
    """
    # The factory may import too, so the directory stays importable until it returns.
    with current_directory_importable():
        return made_by(factory_at(path), input_shape, outputs, described=f"model {path}")


def factory_at(path: str) -> Factory:
    """The object that `package.module:factory` names."""
    module_name, _, name = path.partition(":")
    if not module_name or not name or module_name.endswith(".py"):
        raise InvalidValue(
            "model.name",
            path,
            "package.module:factory, such as nets:make for the function make in nets.py",
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises while it is imported
        where = "Looked in the current directory and among the installed packages."
        raise UserError(
            f"model {path}: importing {module_name} failed: {type(error).__name__}: {error}. {where}"
        ) from error
    try:
        return getattr(module, name)
    except AttributeError:
        near = difflib.get_close_matches(name, dir(module), n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UserError(
            f"model {path}: module {module_name} ({getattr(module, '__file__', None)}) has no {name}.{hint}"
        ) from None


def made_by(factory: Factory, input_shape: Shape, outputs: int, *, described: str) -> nn.Module:
    """Call a factory with what it asks for: `(input_shape, outputs)`, `(outputs,)` or nothing.

    Arguments called `input_shape` and `outputs` are given by name, even where they have a default; otherwise the number of
    arguments without a default decides.

    Example:
        >>> made_by(lambda classes: nn.Linear(4, classes), (4,), 3, described="a lambda").out_features
        3
    """
    if not callable(factory):
        raise UserError(
            f"{described} is {factory!r}, which cannot be called; it must be a function that returns a torch.nn.Module"
        )
    arguments = arguments_for(factory, input_shape, outputs, described)
    try:
        model = factory(*arguments.args, **arguments.kwargs)
    except Exception as error:  # whatever the user's factory raises
        raise UserError(
            f"{described}: the factory raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise UserError(
            f"{described} returned {type(model).__name__}; it must return a torch.nn.Module"
        )
    return model


def arguments_for(
    factory: Factory, input_shape: Shape, outputs: int, described: str
) -> inspect.BoundArguments:
    """The arguments of one call, chosen by the factory's signature."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        raise UserError(
            f"{described} does not tell its arguments; wrap it in a function of (input_shape, outputs)"
        ) from None
    offered: dict[str, Any] = {"input_shape": input_shape, "outputs": outputs}
    by_name = {name: value for name, value in offered.items() if name in signature.parameters}
    with contextlib.suppress(TypeError):
        if by_name:
            return signature.bind(**by_name)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(
        p.kind in positional and p.default is p.empty for p in signature.parameters.values()
    )
    try:
        return signature.bind(*((), (outputs,), (input_shape, outputs))[required])
    except (IndexError, TypeError):
        raise UserError(
            f"{described} takes {signature}; it must take (input_shape, outputs), or (outputs), or nothing"
        ) from None


@contextlib.contextmanager
def current_directory_importable() -> Iterator[None]:
    """Let modules be imported from the current directory, as `python -m` does, and only until the end of the block."""
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()  # the file may have been written a moment ago
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)

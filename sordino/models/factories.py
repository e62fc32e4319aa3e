"""The user's models: `package.module:factory`, found and called."""

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

from sordino.models.nets import Shape
from sordino.protocol import InvalidValue, UserError

Factory = Callable[..., nn.Module]


def build_from_path(path: str, input_shape: Shape, outputs: int) -> nn.Module:
    """Returns the model that `package.module:factory` makes.

    Args:
        path: The factory. Its module may be a file in the current directory.
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.

    Raises:
        UserError: It cannot be found, or does not make a model.

    Example:
        >>> build_from_path("sordino.models.nets:logistic", (1, 8, 8), 10)[1].out_features
        10
    """
    # The factory may import too, so the directory stays importable until it returns.
    with import_from_here():
        factory = find_factory(path)
        return call_factory(factory, input_shape, outputs, description=f"model {path}")


def find_factory(path: str) -> Factory:
    """Returns the object that `package.module:factory` names.

    Args:
        path: The factory.

    Raises:
        InvalidValue: The path has another form.
        UserError: There is no such module, or nothing of this name in it.
    """
    found: Factory = find_object(path, "model.name")
    return found


def find_object(path: str, key: str) -> Any:
    """Returns the object that `package.module:name` names.

    Args:
        path: The object.
        key: The entry of the protocol that names it, for messages.

    Raises:
        InvalidValue: The path has another form.
        UserError: There is no such module, or nothing of this name in it.
    """
    what = "features"
    if key == "model.name":
        what = "model"
    module_name, _, name = path.partition(":")
    if not module_name or not name or module_name.endswith(".py"):
        raise InvalidValue(
            key,
            path,
            "package.module:factory, such as nets:make for the function make in nets.py",
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        # Whatever the user's module raises while it is imported.
        raise UserError(
            f"{what} {path}: importing {module_name} failed: {type(error).__name__}: {error}. "
            "Looked in the current directory and among the installed packages."
        ) from error
    try:
        return getattr(module, name)
    except AttributeError:
        hint = ""
        near = difflib.get_close_matches(name, dir(module), n=1)
        if near:
            hint = f" Did you mean {near[0]}?"
        file = getattr(module, "__file__", None)
        raise UserError(
            f"{what} {path}: module {module_name} ({file}) has no {name}.{hint}"
        ) from None


def call_factory(
    factory: Factory,
    input_shape: Shape,
    outputs: int,
    *,
    description: str,
) -> nn.Module:
    """Returns the model of a factory, called with the arguments that it takes.

    Args:
        factory: A function of `(input_shape, outputs)`, of `(outputs,)` or of nothing.
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.
        description: The factory, as errors name it.

    Raises:
        UserError: It cannot be called so, raises, or returns something else.

    Example:
        >>> factory = lambda classes: nn.Linear(4, classes)
        >>> call_factory(factory, (4,), 3, description="a lambda").out_features
        3
    """
    if not callable(factory):
        raise UserError(
            f"{description} is {factory!r}, which cannot be called; it must be a function that "
            "returns a torch.nn.Module"
        )
    arguments = choose_arguments(factory, input_shape, outputs, description)
    try:
        model = factory(*arguments.args, **arguments.kwargs)
    except Exception as error:
        # Whatever the user's factory raises.
        raise UserError(
            f"{description}: the factory raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise UserError(
            f"{description} returned {type(model).__name__}; it must return a torch.nn.Module"
        )
    return model


def choose_arguments(
    factory: Factory,
    input_shape: Shape,
    outputs: int,
    description: str,
) -> inspect.BoundArguments:
    """Returns the arguments of one call, chosen by the factory's signature.

    Arguments called `input_shape` and `outputs` are given by name, even where they have a default;
    otherwise the number of arguments without a default decides.

    Args:
        factory: What makes the network.
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.
        description: The factory, as errors name it.

    Raises:
        UserError: It takes other arguments.
    """
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        raise UserError(
            f"{description} does not tell its arguments; wrap it in a function of "
            "(input_shape, outputs)"
        ) from None
    offered: dict[str, Any] = {"input_shape": input_shape, "outputs": outputs}
    by_name = {name: value for name, value in offered.items() if name in signature.parameters}
    with contextlib.suppress(TypeError):
        if by_name:
            return signature.bind(**by_name)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = 0
    for parameter in signature.parameters.values():
        required += parameter.kind in positional and parameter.default is parameter.empty
    by_number: dict[int, tuple[Any, ...]] = {0: (), 1: (outputs,), 2: (input_shape, outputs)}
    try:
        return signature.bind(*by_number[required])
    except (KeyError, TypeError):
        raise UserError(
            f"{description} takes {signature}; it must take (input_shape, outputs), or (outputs), "
            "or nothing"
        ) from None


@contextlib.contextmanager
def import_from_here() -> Iterator[None]:
    """Lets modules be imported from the current directory within the block, as `python -m` does."""
    here = os.getcwd()
    sys.path.insert(0, here)
    # The file may have been written a moment ago.
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)

"""Models that the user brings, and what building a model leaves untouched."""

import functools
import sys

import pytest
import torch
from torch import nn

from sordino.models import build_model
from sordino.protocol import InvalidValue, UserError

SOURCE = """
import torch
from torch import nn

class Named(nn.Module):
    def __init__(self, input_shape, outputs):
        super().__init__()
        self.inner = nn.Linear(input_shape[0], outputs)

    def forward(self, inputs):
        return self.inner(inputs)

def both(shape, classes): return nn.Linear(shape[0], classes)
def swapped(outputs, input_shape): return nn.Linear(input_shape[0], outputs)
def half_named(shape, outputs): return nn.Linear(shape[0], outputs)
def one(classes): return nn.Linear(5, classes)
def none(): return nn.Linear(5, 3)
def named_default(width=9, outputs=99): return nn.Sequential(nn.Linear(5, width), nn.Linear(width, outputs))
def other_default(classes, width=9): return nn.Sequential(nn.Linear(5, width), nn.Linear(width, classes))
def keyword_only(*, input_shape, outputs): return nn.Linear(input_shape[0], outputs)
def positional_only(outputs, /): return nn.Linear(5, outputs)
def catch_all(*args, **kwargs): return nn.Linear(5, 3 + len(args) + len(kwargs))
def lazily():
    import {helper}
    return {helper}.net()

def three(a, b, c): return nn.Linear(5, 3)
def odd_keyword(*, width): return nn.Linear(5, 3)
def broken(): raise KeyError("no such layer")
def wrong(): return 42
ready = nn.Linear(5, 3)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A current directory with a module of the user's; its name is new to Python in every test."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SOURCE.replace("{helper}", f"{name}_helper"))
    (tmp_path / f"{name}_helper.py").write_text(
        "from torch import nn\ndef net(): return nn.Linear(5, 3)\n"
    )
    (tmp_path / f"{name}_bad.py").write_text("import nothing_of_this_name\n")
    (tmp_path / f"{name}_syntax.py").write_text("def :\n")
    monkeypatch.chdir(tmp_path)
    yield name
    for loaded in [module for module in sys.modules if module.startswith(name)]:
        del sys.modules[loaded]


ACCEPTED = [
    "Named", "both", "swapped", "half_named", "one", "none", "named_default", "other_default", "keyword_only", "positional_only",
    "catch_all", "lazily",
]  # fmt: skip


@pytest.mark.parametrize("factory", ACCEPTED)
def test_factories_of_every_signature(home, factory):
    path_before = list(sys.path)
    model = build_model(f"{home}:{factory}", (5,), 3, seed=1)
    assert isinstance(model, nn.Module)
    assert model(torch.zeros(2, 5)).shape == (2, 3)
    assert sys.path == path_before


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "{home}:three",
            r"takes \(a, b, c\); it must take \(input_shape, outputs\), or \(outputs\), or nothing",
        ),
        ("{home}:odd_keyword", r"takes \(\*, width\)"),
        ("{home}:broken", "the factory raised KeyError: 'no such layer'"),
        ("{home}:wrong", "returned int; it must return a torch.nn.Module"),
        ("{home}:SOURCELESS", "has no SOURCELESS"),
        ("{home}:bothh", "has no bothh. Did you mean both?"),
        ("{home}:torch", "which cannot be called"),
        (
            "{home}_absent:net",
            "importing {home}_absent failed: ModuleNotFoundError: No module named '{home}_absent'",
        ),
        ("{home}.inner:net", "importing {home}.inner failed: ModuleNotFoundError"),
        (
            "{home}_bad:net",
            "importing {home}_bad failed: ModuleNotFoundError: No module named 'nothing_of_this_name'",
        ),
        ("{home}_syntax:net", "importing {home}_syntax failed: SyntaxError"),
        (".relative:net", "importing .relative failed"),
        ("sys:net", "module sys .* has no net"),
    ],
)
def test_mistakes_are_named(home, path, message):
    path_before = list(sys.path)
    with pytest.raises(UserError, match=message.replace("{home}", home)):
        build_model(path.replace("{home}", home), (5,), 3, seed=1)
    assert sys.path == path_before


@pytest.mark.parametrize("path", [":", "module:", ":factory", "nets.py:make", "./nets.py:make"])
def test_malformed_paths(path):
    with pytest.raises(InvalidValue, match=r"expected package\.module:factory"):
        build_model(path, (5,), 3, seed=1)


def test_an_object_that_hides_its_signature():
    class Hidden:
        __signature__ = "not a signature"

        def __call__(self):
            return nn.Linear(5, 3)

    with pytest.raises(UserError, match="does not tell its arguments"):
        build_model(Hidden(), (5,), 3, seed=1)


@pytest.mark.parametrize(
    "factory",
    [
        lambda input_shape, outputs: nn.Linear(input_shape[0], outputs),
        lambda classes: nn.Linear(5, classes),
        functools.partial(nn.Linear, 5),
    ],
)
def test_callables_from_python(factory):
    first, second = (build_model(factory, (5,), 3, seed=8) for _ in range(2))
    assert first.weight.shape == (3, 5)
    assert first is not second
    assert torch.equal(first.weight, second.weight)


def test_what_is_no_model_at_all():
    with pytest.raises(UserError, match="model 42 is 42, which cannot be called"):
        build_model(42, (5,), 3, seed=1)


def test_a_module_is_copied_with_its_weights(home):
    module = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    module[1].weight.requires_grad_(False)
    copied = build_model(module, (5,), 3, seed=1)
    assert copied is not module
    assert all(
        torch.equal(a, b) and a.data_ptr() != b.data_ptr()
        for a, b in zip(copied.parameters(), module.parameters(), strict=True)
    )
    assert not copied[1].weight.requires_grad


@pytest.mark.parametrize("model", ["mlp", "lenet5", lambda outputs: nn.Linear(784, outputs)])
def test_the_seed_decides_and_the_global_generator_does_not_notice(model):
    torch.manual_seed(100)
    before = torch.get_rng_state()
    first = build_model(model, (1, 28, 28), 10, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(200)
    again, other = (
        build_model(model, (1, 28, 28), 10, seed=1),
        build_model(model, (1, 28, 28), 10, seed=2**63 - 1),
    )
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_the_global_generator_survives_a_refusal():
    before = torch.get_rng_state()
    with pytest.raises(UserError):
        build_model("lenet5", (1, 8, 8), 10, seed=1)
    assert torch.equal(torch.get_rng_state(), before)

"""The named networks: their sizes by hand, their shapes, their refusals, and that they learn."""

import itertools
import re

import pytest
import torch
from torch import nn

from sordino.models import (
    KNOWN,
    FlatModel,
    build_model,
    check_model,
    loss_for,
    nets,
    parameter_count,
)
from sordino.protocol import InvalidValue, UserError


def conv(before, after, kernel, *, bias=True):
    return after * (before * kernel * kernel + bias)


def dense(*widths):
    return sum(after * (before + 1) for before, after in itertools.pairwise(widths))


def resnet_block(before, after):
    shortcut = conv(before, after, 1, bias=False) + 2 * after if before != after else 0
    return (
        conv(before, after, 3, bias=False)
        + conv(after, after, 3, bias=False)
        + 4 * after
        + shortcut
    )


RESNET = conv(3, 64, 3, bias=False) + 128 + sum(
    resnet_block(before, after) + resnet_block(after, after) for before, after in [(64, 64), (64, 128), (128, 256), (256, 512)]
) + dense(512, 10)  # fmt: skip
VIT_BLOCK = 2 * (2 * 384) + dense(384, 3 * 384) + dense(384, 384) + dense(384, 1536, 384)
VIT = conv(3, 384, 4) + 384 + 65 * 384 + 12 * VIT_BLOCK + 2 * 384 + dense(384, 10)

USUAL = {
    "logistic": ((1, 8, 8), 10, 64 * 10 + 10),
    "mlp": ((1, 8, 8), 10, 64 * 32 + 32 + 32 * 10 + 10),
    "lenet5": ((1, 28, 28), 10, conv(1, 6, 5) + conv(6, 16, 5) + dense(16 * 4 * 4, 120, 84, 10)),
    "prifedsync-mnist": ((1, 28, 28), 10, conv(1, 32, 3) + conv(32, 64, 3) + dense(9216, 128, 10)),
    "prifedsync-cifar": ((3, 32, 32), 10, conv(3, 32, 3) + conv(32, 64, 3) + conv(64, 64, 3) + dense(64 * 4 * 4, 64, 10)),
    "udp-mnist": ((1, 28, 28), 10, conv(1, 10, 5) + conv(10, 20, 5) + dense(20 * 4 * 4, 50, 10)),
    "udp-cnn": ((1, 28, 28), 10, conv(1, 32, 3) + conv(32, 64, 3) + dense(64 * 7 * 7, 128, 10)),
    "udp-medical": (
        (3, 64, 64), 10, conv(3, 16, 3) + conv(16, 32, 3) + conv(32, 64, 3) + conv(64, 128, 3) + dense(128 * 4 * 4, 128, 64, 10)
    ),
    "udp-wind": ((7, 48), 48, 16 * (7 * 3 + 1) + 32 * (16 * 3 + 1) + dense(32 * 48, 48)),
    "power-curve": ((3, 48), 48, 8 * (3 + 1) + 1 * (8 + 1)),
    "resnet18": ((3, 32, 32), 10, RESNET),
    "vit-small": ((3, 32, 32), 10, VIT),
}  # fmt: skip
PUBLISHED = {
    "lenet5": 44_426,
    "prifedsync-mnist": 1_199_882,
    "prifedsync-cifar": 122_570,
    "udp-mnist": 21_840,
    "udp-cnn": 421_642,
    "resnet18": 11_173_962,
}
SMALLEST = {
    "lenet5": 16, "prifedsync-mnist": 6, "prifedsync-cifar": 18, "udp-mnist": 16, "udp-cnn": 4, "udp-medical": 16, "resnet18": 8, "vit-small": 4
}  # fmt: skip
STACKS = [name for name in USUAL if name not in ("power-curve", "resnet18", "vit-small")]


def test_every_known_model_is_tested_here():
    assert USUAL.keys() == KNOWN.keys()


@pytest.mark.parametrize("name", USUAL)
def test_parameters_shapes_and_fitness(name):
    shape, outputs, expected = USUAL[name]
    model = build_model(name, shape, outputs, seed=1)
    assert parameter_count(model) == expected == PUBLISHED.get(name, expected)
    check_model(model, torch.randn(2, *shape), outputs, declared=expected)


@pytest.mark.parametrize("name", STACKS)
def test_small_networks_are_flat_stacks_of_plain_layers(name):
    shape, outputs, _ = USUAL[name]
    model = KNOWN[name](shape, outputs)
    plain = {nn.Flatten, nn.Linear, nn.ReLU, nn.Conv1d, nn.Conv2d, nn.MaxPool2d}
    assert type(model) is nn.Sequential
    assert {type(layer) for layer in model} <= plain
    assert type(model[-1]) is nn.Linear


@pytest.mark.parametrize("name", USUAL)
def test_loss_falls(name):
    shape, outputs, _ = USUAL[name]
    records, steps, rate = (2, 3, 1e-3) if name in ("resnet18", "vit-small") else (8, 20, 0.05)
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(records, *shape, generator=generator)
    # Of a softmax the bias that all hours share has no gradient but by rounding.
    wind = name in ("udp-wind", "power-curve")
    targets = (
        torch.randn(records, outputs, generator=generator)
        if wind
        else torch.randint(outputs, (records,), generator=generator)
    )
    flat = FlatModel(build_model(name, shape, outputs, seed=6))
    losses = []
    for _ in range(steps):
        losses.append(flat.loss_gradient(inputs, targets, loss_for(targets)))
        flat.weights.sub_(flat.gradients, alpha=rate)
    assert losses[1] < losses[0], "one step downhill"
    assert losses[-1] < losses[1]
    assert all(block.any() for block in flat.blocks(flat.gradients)), "every parameter takes part"


@pytest.mark.parametrize("name", ["resnet18", "vit-small"])
def test_records_do_not_meet_in_the_large_networks(name):
    shape, outputs, _ = USUAL[name]
    model = build_model(name, shape, outputs, seed=1).train()
    inputs = torch.randn(2, *shape)
    with torch.no_grad():
        torch.testing.assert_close(
            model(inputs), torch.cat([model(inputs[:1]), model(inputs[1:])]), rtol=1e-4, atol=1e-5
        )


def test_transformer_blocks_start_from_different_weights():
    blocks = build_model("vit-small", (3, 8, 8), 10, seed=1)[1:13]
    assert len({block.linear1.weight[0, 0].item() for block in blocks}) == 12


@pytest.mark.parametrize("name", SMALLEST)
@pytest.mark.parametrize("channels", [1, 3])
def test_smallest_images(name, channels):
    size = SMALLEST[name]
    for shape in [(channels, size, size), (channels, size, size + 4)]:
        model = build_model(name, shape, 3, seed=1)
        check_model(model, torch.randn(2, *shape), 3, None)
    with pytest.raises(
        UserError,
        match=f"{name} takes images of at least {size} x {size}; these are {size} x {size - 1}",
    ):
        build_model(name, (channels, size, size - 1), 3, seed=1)


@pytest.mark.parametrize(
    "name",
    ["lenet5", "prifedsync-mnist", "prifedsync-cifar", "udp-mnist", "udp-cnn", "udp-medical"],
)
def test_nothing_smaller_would_have_worked(name, monkeypatch):
    monkeypatch.setattr(nets, "image_channels", lambda model, shape, smallest: shape[0])
    with pytest.raises(RuntimeError, match=r"(?i)size"):
        KNOWN[name]((1, SMALLEST[name] - 1, SMALLEST[name] - 1), 3)


@pytest.mark.parametrize("name", SMALLEST)
@pytest.mark.parametrize("shape", [(64,), (32, 32), (1, 1, 32, 32)])
def test_image_networks_refuse_what_is_no_image(name, shape):
    with pytest.raises(
        UserError,
        match=rf"{name} takes images of shape .*; the records have shape {re.escape(str(shape))}",
    ):
        build_model(name, shape, 10, seed=1)


def test_wind_network_refuses_images():
    with pytest.raises(UserError, match=r"udp-wind takes series.*\(1, 28, 28\)"):
        build_model("udp-wind", (1, 28, 28), 10, seed=1)


def test_transformer_refuses_a_size_that_patches_do_not_fill():
    with pytest.raises(UserError, match="28 x 30 is not a multiple of 4"):
        build_model("vit-small", (1, 28, 30), 10, seed=1)


@pytest.mark.parametrize("shape", [(5,), (3, 7), (1, 8, 8)])
@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_dense_networks_take_any_shape(name, shape):
    check_model(build_model(name, shape, 4, seed=1), torch.randn(2, *shape), 4, None)


@pytest.mark.parametrize(
    ("name", "near"), [("lenet", "lenet5"), ("resnet-18", "resnet18"), ("vit_small", "vit-small")]
)
def test_unknown_name_suggests_the_nearest_and_lists_all(name, near):
    with pytest.raises(InvalidValue, match=f"Did you mean {near}") as caught:
        build_model(name, (1, 28, 28), 10, seed=1)
    assert all(known in str(caught.value) for known in KNOWN)
    assert "package.module:factory" in str(caught.value)

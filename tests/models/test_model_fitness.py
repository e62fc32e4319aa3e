"""Every reason to refuse a model, provoked; and models that come close but are fine."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sordino.models import check_model, parameter_count
from sordino.protocol import InvalidValue, UserError

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def image_net(*layers):
    return nn.Sequential(
        nn.Conv2d(3, 20, 3),
        nn.Sequential(nn.ReLU(), *layers),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(20, 5),
    )


class Layer(nn.Module):
    """Flatten and linear, with something done to it before or after."""

    def __init__(self, classes=5):
        super().__init__()
        self.linear = nn.Linear(192, classes)

    def forward(self, images):
        return self.linear(images.flatten(1))


class RunningMean(Layer):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(192))

    def forward(self, images):
        self.mean.mul_(0.9).add_(0.1 * images.flatten(1).mean(0))
        return super().forward(images)


class ReplacedBuffer(RunningMean):
    def forward(self, images):
        self.mean = images.flatten(1).mean(0)
        return Layer.forward(self, images)


class FirstSeen(Layer):
    """A buffer that does not exist until data come."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", None)

    def forward(self, images):
        self.seen = images.mean()
        return super().forward(images)


class Codebook(Layer):
    """A frozen parameter that the forward pass writes to."""

    def __init__(self):
        super().__init__()
        self.codes = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, images):
        with torch.no_grad():
            self.codes += images.mean()
        return super().forward(images)


class Unchanging(Layer):
    """Buffers of many kinds, NaN and infinity among them, that stay."""

    def __init__(self):
        super().__init__()
        for name, value in {
            "nan": torch.tensor(float("nan")),
            "mask": torch.tensor([True, False]),
            "count": torch.tensor(3),
        }.items():
            self.register_buffer(name, value)
        self.register_buffer("bias", torch.full((2, 2), -torch.inf))
        self.register_buffer("absent", None)


class Tied(Layer):
    def __init__(self):
        super().__init__()
        self.again = self.linear
        self.weight = self.linear.weight


class FrozenIntegers(Layer):
    def __init__(self):
        super().__init__()
        self.order = nn.Parameter(torch.arange(192), requires_grad=False)

    def forward(self, images):
        return self.linear(images.flatten(1)[:, self.order])


class Pair(Layer):
    def forward(self, images):
        return super().forward(images), images


class Scaled(Layer):
    def forward(self, images):
        return super().forward(images) / 0.0


def frozen():
    return Layer().requires_grad_(False)


def mixed_precision():
    model = image_net()
    model[-1].half()
    return model


REFUSED = {
    "batchnorm2d": (
        lambda: image_net(nn.BatchNorm2d(20)),
        r"layer 1\.1 is BatchNorm2d.*outputs of others.*nn\.GroupNorm\(4, 20\)",
    ),
    "batchnorm1d": (
        lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192), nn.Linear(192, 5)),
        r"1 is BatchNorm1d.*GroupNorm\(8, 192\)",
    ),
    "batchnorm3d": (lambda: nn.Sequential(nn.BatchNorm3d(3), Layer()), "BatchNorm3d"),
    "batchnorm without statistics": (
        lambda: image_net(nn.BatchNorm2d(20, track_running_stats=False)),
        "BatchNorm2d",
    ),
    "the model is a batchnorm": (
        lambda: nn.BatchNorm2d(3),
        r"layer \(the model itself\) is BatchNorm2d",
    ),
    "sync": (lambda: image_net(nn.SyncBatchNorm(20)), r"layer 1\.1 is SyncBatchNorm"),
    "instancenorm": (
        lambda: image_net(nn.InstanceNorm2d(20, track_running_stats=True)),
        "is InstanceNorm2d. Its running statistics leave",
    ),
    "running mean": (RunningMean, "forward pass changes mean, which would carry data"),
    "replaced buffer": (ReplacedBuffer, "changes mean"),
    "new buffer": (FirstSeen, "changes seen"),
    "frozen parameter written": (Codebook, "changes codes"),
    "spectral norm": (
        lambda: nn.Sequential(
            nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(192, 5))
        ),
        "changes 1.*_u",
    ),
    "lazy": (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(5)), "1.weight is lazy"),
    "lazy buffer": (
        lambda: nn.Sequential(nn.LazyBatchNorm2d(affine=False), Layer()),
        "0.running_mean is lazy",
    ),
    "float64": (
        lambda: Layer().double(),
        r"linear.weight is torch.float64; trained .* must be torch.float32. Call model.float\(\)",
    ),
    "half": (mixed_precision, r"4.weight is torch.float16"),
    "complex": (lambda: Layer().to(torch.complex64), "linear.weight is torch.complex64"),
    "frozen": (frozen, "Layer has no parameter to train"),
    "empty": (lambda: nn.Flatten(), "Flatten has no parameter to train"),
    "too many outputs": (
        lambda: Layer(7),
        r"of shape \(2, 3, 8, 8\) the model gave outputs of shape \(2, 7\); the data need \(2, 5\)",
    ),
    "outputs per pixel": (lambda: nn.Conv2d(3, 5, 1), r"gave outputs of shape \(2, 5, 8, 8\)"),
    "records lost": (
        lambda: nn.Sequential(nn.Flatten(0), nn.Linear(384, 5)),
        r"gave outputs of shape \(5,\)",
    ),
    "input shape": (
        lambda: nn.Linear(28, 5),
        r"inputs of shape \(2, 3, 8, 8\) the forward pass raised RuntimeError: .*shapes",
    ),
    "tuple": (Pair, r"the model gave tuple; it must give one tensor of shape \(2, 5\)"),
    "infinite": (Scaled, "not finite"),
    "meta": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 5, device="meta")),
        "forward pass raised",
    ),
}


@pytest.mark.filterwarnings("ignore:Complex modules")
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(UserError, match=message) as caught:
        check_model(make(), IMAGES, 5, None)
    assert caught.value.exit_code == 2


ACCEPTED = {
    "plain": Layer,
    "groupnorm": lambda: image_net(nn.GroupNorm(4, 20)),
    "instancenorm without memory": lambda: image_net(nn.InstanceNorm2d(20, affine=True)),
    "layernorm": lambda: nn.Sequential(nn.LayerNorm([3, 8, 8]), Layer()),
    "dropout": lambda: image_net(nn.Dropout(0.5)),
    "buffers that stay": Unchanging,
    "tied": Tied,
    "partly frozen": lambda: nn.Sequential(nn.Conv2d(3, 3, 1).requires_grad_(False), Layer()),
    "frozen integers": FrozenIntegers,
    "weight norm": lambda: nn.Sequential(
        nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(192, 5))
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
@pytest.mark.parametrize("records", [1, 2, 4])
def test_accepted_and_untouched(case, records):
    model = ACCEPTED[case]().eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    identities = [id(parameter) for parameter in model.parameters()]
    generator = torch.get_rng_state()
    check_model(model, IMAGES[:records], 5, None)
    assert torch.equal(torch.get_rng_state(), generator)
    assert [id(parameter) for parameter in model.parameters()] == identities
    assert all(
        torch.equal(value.nan_to_num(), state[name].nan_to_num())
        for name, value in model.state_dict().items()
    )
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(layer.training or layer._forward_hooks for layer in model.modules())


def test_refusal_of_a_changing_buffer_leaves_the_model_as_it_was():
    model = RunningMean()
    with pytest.raises(UserError):
        check_model(model, IMAGES, 5, None)
    assert not model.mean.any()


def test_one_sample_is_enough_to_see_that_records_are_lost():
    class Average(Layer):
        def forward(self, images):
            return super().forward(images.mean(0, keepdim=True))

    with pytest.raises(UserError, match=r"gave outputs of shape \(1, 5\); the data need \(2, 5\)"):
        check_model(Average(), IMAGES[:1], 5, None)


def test_integer_inputs_reach_an_embedding():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(11, 5)

        def forward(self, words):
            return functional.normalize(self.embed(words).mean(1))

    check_model(Words(), torch.randint(11, (2, 6)), 5, 55)


def test_declared_parameters_must_be_true():
    model = Layer()
    check_model(model, IMAGES, 5, 192 * 5 + 5)
    with pytest.raises(InvalidValue, match=r"model\.parameters = 964: expected 965") as caught:
        check_model(model, IMAGES, 5, 964)
    assert caught.value.key == "model.parameters"


def test_counting():
    assert parameter_count(Tied()) == 192 * 5 + 5, "one matrix under three names"
    assert (
        parameter_count(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).requires_grad_(False))) == 8
    )
    assert parameter_count(nn.ParameterList([nn.Parameter(torch.tensor(1.0))])) == 1

"""Clipped sums against one backward pass per example in float64, for every way that they are computed."""

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sordino.federation.processors import single_threaded
from sordino.federation.rules.clipped_glm_steps import train_clipped_glm
from sordino.models import FlatModel, build_model, cross_entropy
from sordino.models import per_example as subject
from sordino.models.layer_gradients import find_stacked_layers
from sordino.models.per_example import ExampleGradients
from sordino.models.task_losses import mean_squared_error
from sordino.protocol import ClippedGlm, Constant, UserError


@pytest.fixture(autouse=True)
def _one_thread():
    with single_threaded():
        yield


class Residual(nn.Module):
    """A forward pass of its own, with a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = (
            nn.Conv2d(2, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.Linear(4 * 36, 3),
        )
        self.mix = nn.Linear(3, 3)

    def forward(self, x):
        return self.mix(
            torch.tanh(self.mix(self.head(torch.relu(self.norm(self.conv(x))).flatten(1))))
        )


class Branching(nn.Linear):
    """Looks at numbers, which torch.func cannot vectorise."""

    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


class OwnLoss(nn.Sequential):
    """A loss that mixes the examples of a batch: alone, each has its own."""

    def loss(self, outputs, targets):
        return functional.cross_entropy(outputs, targets) * (1 + outputs.var(unbiased=False))


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    net[0].requires_grad_(False)
    net[2].bias.requires_grad_(False)
    return net


def convolutions() -> nn.Module:
    layers = [
        nn.Conv2d(2, 3, 3, stride=2, padding=1),
        nn.ELU(),
        nn.Conv2d(3, 4, (2, 1), dilation=(1, 2), bias=False),
        nn.AvgPool2d(2),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 3))


def in_place() -> nn.Module:
    """Activations that write over the outputs of the layers before them, as torchvision's do."""
    layers = [nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(48, 4), nn.ELU(inplace=True), nn.Linear(4, 3))


def hooked(layer: int | None) -> nn.Module:
    """A hook mixes the examples of a batch: alone, each is halved."""
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    altered = net if layer is None else net[layer]
    altered.register_forward_hook(lambda layer, given, made: made - made.mean(0, keepdim=True) / 2)
    return net


def sequences() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))


# name: (module, shape of a record, whether it is a plain stack)
NETS = {
    "mlp": (lambda: build_model("mlp", (1, 4, 4), 3, seed=1), (1, 4, 4), True),
    "lenet5": (lambda: build_model("lenet5", (1, 28, 28), 3, seed=1), (1, 28, 28), True),
    "prifedsync-cifar": (
        lambda: build_model("prifedsync-cifar", (3, 18, 18), 3, seed=1),
        (3, 18, 18),
        True,
    ),
    "convolutions": (convolutions, (2, 9, 11), True),
    "sequences": (sequences, (2, 5), True),
    "frozen": (frozen, (5,), True),
    "in place": (in_place, (2, 6, 6), True),
    "hooked layer": (lambda: hooked(1), (5,), False),
    "hooked stack": (lambda: hooked(None), (5,), False),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(5, 4), nn.ReLU()), nn.Linear(4, 3)),
        (5,),
        True,
    ),
    "wind": (lambda: build_model("udp-wind", (2, 6), 3, seed=1), (2, 6), False),
    "residual": (Residual, (2, 6, 6), False),
    "branching": (lambda: Branching(5, 3), (5,), False),
    "grouped": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3)),
        (2, 4, 4),
        False,
    ),
    "twice": (lambda: nn.Sequential(layer := nn.Linear(3, 3), nn.ReLU(), layer), (3,), False),
}


def example(shape, count=7, seed=0):
    torch.manual_seed(seed)
    return torch.randn(count, *shape) * 2, torch.randint(0, 3, (count,))


def one_by_one(
    net: nn.Module, loss, x, y, clip: float, order: float
) -> tuple[torch.Tensor, list[float]]:
    net = copy.deepcopy(net).double()
    trained = [p for p in net.parameters() if p.requires_grad]
    total, norms = torch.zeros(sum(p.numel() for p in trained), dtype=torch.float64), []
    for i in range(len(y)):
        grads = torch.autograd.grad(loss(net(x[i : i + 1].double()), y[i : i + 1]), trained)
        vector = torch.cat([g.reshape(-1) for g in grads])
        norms.append(float(torch.linalg.vector_norm(vector, ord=order)))
        total += vector / max(1.0, norms[-1] / clip)
    return total, norms


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("name", NETS)
def test_the_sum_is_that_of_examples_taken_one_by_one(name, norm) -> None:
    torch.manual_seed(2)
    make, shape, plain = NETS[name]
    net, (x, y), order = make(), example(shape), {"l2": 2.0, "l1": 1.0}[norm]
    _, norms = one_by_one(net, functional.cross_entropy, x, y, 1.0, order)
    clip = sorted(norms)[len(norms) // 2] * 1.001  # some are clipped, some are not
    expected, _ = one_by_one(net, functional.cross_entropy, x, y, clip, order)
    found = ExampleGradients(FlatModel(net), cross_entropy).clipped_sum(x, y, clip=clip, norm=norm)
    assert (find_stacked_layers(net) is not None) == plain
    assert float((found.total - expected).norm() / expected.norm()) < 1e-5
    assert (found.clipped, found.nonfinite) == (sum(n > clip for n in norms), 0)


def test_a_loss_of_the_models_own_sees_every_example_alone() -> None:
    net, (x, y) = OwnLoss(nn.Linear(5, 3)), example((5,))
    expected, _ = one_by_one(net, net.loss, x, y, 0.5, 2.0)
    found = ExampleGradients(FlatModel(net), net.loss).clipped_sum(x, y, clip=0.5)
    assert float((found.total - expected).norm()) < 1e-5


def test_quantities_are_averaged_over_outputs_but_not_over_examples() -> None:
    net, (x, _), y = nn.Sequential(nn.Linear(5, 4)), example((5,)), torch.randn(7, 4)
    expected, _ = one_by_one(net, lambda o, t: functional.mse_loss(o, t.double()), x, y, 0.5, 2.0)
    found = ExampleGradients(FlatModel(net), mean_squared_error).clipped_sum(x, y, clip=0.5)
    assert float((found.total - expected).norm()) < 1e-5


@pytest.mark.parametrize("name", ["lenet5", "residual"])
def test_small_chunks_give_the_same_sum(name, monkeypatch) -> None:
    make, shape, _ = NETS[name]
    net, (x, y) = make(), example(shape)
    whole = ExampleGradients(FlatModel(net), cross_entropy).clipped_sum(x, y, clip=0.5)
    monkeypatch.setattr(subject, "MOST_FLOATS", 1)
    pieces = ExampleGradients(FlatModel(net), cross_entropy).clipped_sum(x, y, clip=0.5)
    assert float((whole.total - pieces.total).abs().max()) < 1e-5
    assert whole.clipped == pieces.clipped


@pytest.mark.parametrize("name", NETS)
def test_no_example_is_longer_than_the_clip(name) -> None:
    make, shape, _ = NETS[name]
    x, y = example(shape, count=4, seed=5)
    gradients = ExampleGradients(FlatModel(make()), cross_entropy)
    for scale in (1e-3, 1.0, 1e4):
        for i in range(4):
            one = gradients.clipped_sum(x[i : i + 1] * scale, y[i : i + 1], clip=0.01).total
            assert float(torch.linalg.vector_norm(one, dtype=torch.float64)) <= 0.01


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["lenet5", "residual", "branching"])
def test_an_example_that_is_not_finite_counts_as_zero(name, bad) -> None:
    make, shape, _ = NETS[name]
    net, (x, y) = make(), example(shape)
    gradients = ExampleGradients(FlatModel(net), cross_entropy)
    rest = gradients.clipped_sum(torch.cat([x[:2], x[3:]]), torch.cat([y[:2], y[3:]]), clip=1.0)
    x[2] = bad
    found = gradients.clipped_sum(x, y, clip=1.0)
    assert found.nonfinite == 1
    assert float((found.total - rest.total).abs().max()) < 1e-5


def test_no_examples_sum_to_nothing() -> None:
    net = nn.Linear(5, 3)
    found = ExampleGradients(FlatModel(net), cross_entropy).clipped_sum(
        torch.zeros(0, 5), torch.zeros(0, dtype=torch.long), clip=1.0
    )
    assert found.total.abs().max() == 0
    assert (found.clipped, found.nonfinite) == (0, 0)


def test_no_gradient_is_so_long_that_more_than_the_clip_gets_through() -> None:
    """clip / norm below the normal numbers of float32 would be rounded by up to a half; such an example counts as zero."""
    net = nn.Sequential(nn.Linear(3, 1))
    model = FlatModel(net)
    model.load(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    sums, lengths = ExampleGradients(model, mean_squared_error), []
    for power in np.linspace(5, 23, 400):
        x, y = torch.tensor([[10**power, 0.0, 0.0]], dtype=torch.float32), torch.zeros(1, 1)
        lengths.append(float(sums.clipped_sum(x, y, clip=1.0).total.double().norm()))
    assert max(lengths) <= 1.0
    assert lengths[0] > 0.99
    assert lengths[-1] == 0.0


def test_a_replaced_record_moves_the_sum_of_a_million_by_no_more_than_is_counted() -> None:
    batch = 1_000_000
    net = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        net.weight.zero_()
    x = torch.rand((batch, 3), generator=torch.Generator().manual_seed(4)) + 0.2
    y = torch.full((batch, 1), -1.0)
    neighbour = y.clone()
    neighbour[batch // 2] = 1.0
    gradients = ExampleGradients(FlatModel(net), mean_squared_error)
    sums = [
        gradients.clipped_sum(x, targets, clip=0.1).total.double() for targets in (y, neighbour)
    ]
    assert float((sums[0] - sums[1]).norm()) <= 2 * 0.1


def aligned_batch(loss, count: int):
    """Equal examples whose gradients are just short enough not to be clipped at 1."""
    inputs = torch.full((count, 3), 0.3)
    if loss is mean_squared_error:
        net, targets = nn.Linear(3, 3, bias=False), torch.ones(count, 3)
    else:
        net, targets = nn.Linear(3, 2, bias=False), torch.zeros(count, dtype=torch.int64)
    with torch.no_grad():
        net.weight.zero_()
    one = ExampleGradients(FlatModel(net), loss)
    length = one.clipped_sum(inputs[:1], targets[:1], clip=1e9).total.norm()
    return net, inputs, targets, float(length) * (1 + 2e-6)


@pytest.mark.parametrize("loss", [cross_entropy, mean_squared_error])
@pytest.mark.parametrize("plain", [True, False])
def test_an_example_that_is_not_drawn_moves_a_sum_by_no_more_than_the_clip(loss, plain) -> None:
    """Whatever the sizes of the two batches are: no other example's gradient may depend on them."""
    for count in (*range(2, 20), *range(480, 540), *range(1020, 1030)):
        net, inputs, targets, clip = aligned_batch(loss, count)
        gradients = ExampleGradients(FlatModel(net), loss)
        if not plain:
            gradients._layers = None
        whole, rest = (
            gradients.clipped_sum(inputs[:size], targets[:size], clip=clip)
            for size in (count, count - 1)
        )
        assert whole.clipped == 0
        assert 0.99 * clip <= float((whole.total - rest.total).norm()) <= clip


# name, shape of a record, batches: products of matrices are cut otherwise at these sizes.
WIDE = {
    "wide": ("logistic", (3, 32, 32), (2, 3, 17, 49, 65, 257, 513, 1024)),
    "hidden layer": ("mlp", (1, 28, 28), (2, 17, 49, 65, 257, 1024)),
    "convolutions": ("lenet5", (1, 28, 28), (2, 65, 1024)),
}


@pytest.mark.parametrize(("name", "shape", "counts"), WIDE.values(), ids=WIDE)
@pytest.mark.parametrize("plain", [True, False])
def test_no_gradient_depends_on_its_batch(name, shape, counts, plain) -> None:
    """Equal examples: if the size of a batch changed the last bit of each gradient, the changes would add up."""
    gradients = ExampleGradients(FlatModel(build_model(name, shape, 10, seed=0)), cross_entropy)
    if not plain:
        gradients._layers = None
        # torch.func keeps a whole gradient of every example.
        counts = [count for count in counts if count <= 65]
    one = torch.randn((1, *shape), generator=torch.Generator().manual_seed(1))
    inputs = one.expand(max(counts), *shape).contiguous()
    targets = torch.zeros(max(counts), dtype=torch.long)
    for count in counts:
        whole, rest = (
            gradients.clipped_sum(inputs[:size], targets[:size], clip=1e9).total
            for size in (count, count - 1)
        )
        own = whole / count
        # Half of what clipping leaves; at 1,024 examples less than a last bit of each gradient.
        assert float((own * (count - 1) - rest).norm()) <= 5e-7 * float(own.norm())


@pytest.mark.parametrize("name", ["mlp", "lenet5", "logistic"])
@pytest.mark.parametrize("loss", [cross_entropy, mean_squared_error])
def test_the_others_do_not_notice_that_an_example_is_not_drawn(name, loss) -> None:
    """In real networks, wherever it stood: all later examples take other places in the batch."""
    shape = (1, 28, 28) if name == "lenet5" else (1, 8, 8)
    gradients = ExampleGradients(FlatModel(build_model(name, shape, 10, seed=0)), loss)
    generator = torch.Generator().manual_seed(1)
    for count in (2, 3, 4, 5, 8, 17, 33, 64, 65, 200):
        inputs = torch.randn((count, *shape), generator=generator)
        targets = torch.arange(count) % 10
        if loss is mean_squared_error:
            targets = torch.randn((count, 10), generator=generator)
        for absent in (0, count // 2):
            rest = torch.arange(count) != absent
            sums = [
                gradients.clipped_sum(inputs[rows], targets[rows], clip=1e9).total
                for rows in (torch.ones(count, dtype=torch.bool), rest, ~rest)
            ]
            own = float(sums[2].norm())
            # Twice float32 for the example itself, which is alone in its batch here.
            assert float((sums[0] - sums[1] - sums[2]).norm()) <= 1e-6 * own


def test_sums_of_more_examples_than_are_proved_precise_are_refused(monkeypatch) -> None:
    net, inputs, targets, clip = aligned_batch(mean_squared_error, 9)
    monkeypatch.setattr("sordino.models.per_example.MOST_EXAMPLES", 8)
    gradients = ExampleGradients(FlatModel(net), mean_squared_error)
    gradients.clipped_sum(inputs[:8], targets[:8], clip=clip)
    with pytest.raises(UserError, match=r"9 examples .* at most 8"):
        gradients.clipped_sum(inputs, targets, clip=clip)


@pytest.mark.parametrize(("count", "refused"), [(2**16, False), (2**16 + 1, True)])
def test_a_linear_models_batch_beyond_what_is_proved_is_refused(count, refused) -> None:
    """Its gradient is one product of matrices: C7 covers 65,536 records, and no more."""
    schedule = Constant(rate=0.1)
    rule = ClippedGlm(steps=1, clip=1.0, feature_norm=1.0, weight_decay=0.1, schedule=schedule)
    weights = torch.zeros(1, dtype=torch.float64)
    features = torch.full((count, 1), 0.5)
    expected = pytest.raises(UserError, match="at most 65,536") if refused else nullcontext()
    with expected:
        train_clipped_glm(weights, features, torch.zeros(count), rule, (0.1,))
    assert bool(weights == 0) == refused

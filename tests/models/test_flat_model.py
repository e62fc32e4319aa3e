"""A flat model computes what its module computes, and leaves that module alone."""

import copy
import io
import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import nn

from sordino.models import FlatModel, cross_entropy, mean_squared_error
from sordino.protocol import UserError


class Tied(nn.Module):
    """One matrix as encoder and as decoder, and a scalar."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(4, 4, bias=False)
        self.decode = nn.Linear(4, 4)
        self.decode.weight = self.encode.weight
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, inputs):
        return self.scale * self.decode(torch.tanh(self.encode(inputs)))


class Partly(nn.Module):
    """A frozen layer, a buffer, a parameter that no pass uses, and trained layers between them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3, 2))
        self.last = nn.Linear(6, 4)
        self.register_buffer("offset", torch.arange(6.0))
        self.register_buffer("steps", torch.tensor(5))

    def forward(self, inputs):
        return self.last(self.frozen(torch.relu(self.first(inputs))) + self.offset)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 5, batch_first=True)
        self.out = nn.Linear(5, 4)

    def forward(self, inputs):
        return self.out(self.lstm(inputs[:, :, None])[0][:, -1])


MODULES = {
    "linear": lambda: nn.Linear(4, 4),
    "tied": Tied,
    "partly": Partly,
    "recurrent": Recurrent,
    "channels-last": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2, 1)),
        nn.Conv2d(2, 4, (2, 1)).to(memory_format=torch.channels_last),
        nn.Flatten(),
    ),
}


@pytest.fixture(params=MODULES)
def module(request):
    torch.manual_seed(3)
    return MODULES[request.param]()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(4)
    return torch.randn(5, 4, generator=generator), torch.randint(4, (5,), generator=generator)


def autograd(module, inputs, targets, loss=cross_entropy):
    """Loss and gradients by plain torch, with zeros where there is none."""
    twin = copy.deepcopy(module).train()
    value = loss(twin(inputs), targets)
    value.backward()
    trained = [p for p in twin.parameters() if p.requires_grad]
    return value.item(), torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained]
    )


def test_gradient_is_that_of_plain_autograd(module, batch):
    value, expected = autograd(module, *batch)
    flat = FlatModel(module)
    assert flat.loss_gradient(*batch, cross_entropy) == value
    torch.testing.assert_close(flat.gradients, expected, rtol=0, atol=1e-7)
    assert expected.abs().max() > 1e-3


def test_gradient_does_not_add_up_over_calls_and_follows_the_weights(module, batch):
    flat = FlatModel(module)
    flat.loss_gradient(*batch, cross_entropy)
    first = flat.gradients.clone()
    flat.predict(batch[0])
    flat.loss_gradient(*batch, cross_entropy)
    assert torch.equal(first, flat.gradients)
    flat.weights.mul_(0.5)
    flat.loss_gradient(*batch, cross_entropy)
    assert not torch.allclose(first, flat.gradients)
    torch.testing.assert_close(
        flat.gradients, autograd(flat.module(), *batch)[1], rtol=0, atol=1e-7
    )


def test_descent_on_the_vector_is_torch_sgd(module, batch):
    twin = copy.deepcopy(module)
    optimizer = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], lr=0.1)
    flat = FlatModel(module)
    for _ in range(5):
        optimizer.zero_grad()
        cross_entropy(twin(batch[0]), batch[1]).backward()
        optimizer.step()
        flat.loss_gradient(*batch, cross_entropy)
        flat.weights.sub_(flat.gradients, alpha=0.1)
    torch.testing.assert_close(flat.predict(batch[0]), twin(batch[0]).detach(), rtol=0, atol=1e-5)


def test_vector_and_layout_follow_the_named_parameters(module):
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    flat = FlatModel(module)
    assert flat.layout == tuple((name, p.shape) for name, p in trained)
    assert torch.equal(flat.weights, torch.cat([p.detach().flatten() for _, p in trained]))
    assert len(flat) == flat.weights.numel() == flat.gradients.numel()
    assert flat.weights.dtype == flat.gradients.dtype == torch.float32
    assert flat.weights.is_contiguous()
    assert not flat.weights.requires_grad


def test_sizes_of_special_parameters():
    assert len(FlatModel(Tied())) == 16 + 4 + 1, "the tied matrix once, the bias, the scalar"
    assert ("scale", torch.Size([])) in FlatModel(Tied()).layout
    assert len(FlatModel(Partly())) == (4 * 6 + 6) + 6 + (6 * 4 + 4), "without the frozen layer"


def test_unused_parameter_keeps_a_zero_gradient(batch):
    flat = FlatModel(Partly())
    flat.gradients.fill_(9.0)
    flat.loss_gradient(*batch, cross_entropy)
    blocks = dict(zip([name for name, _ in flat.layout], flat.blocks(flat.gradients), strict=True))
    assert torch.equal(blocks["unused"], torch.zeros(3, 2))
    assert blocks["first.weight"].abs().sum() > 0


def test_frozen_parameters_and_buffers_stay(batch):
    module = Partly()
    flat = FlatModel(module)
    for _ in range(3):
        flat.loss_gradient(*batch, cross_entropy)
        flat.weights.sub_(flat.gradients)
    trained = flat.module()
    assert torch.equal(trained.frozen.weight, module.frozen.weight)
    assert torch.equal(trained.offset, module.offset)
    assert trained.frozen.weight.requires_grad is False


def test_the_given_module_is_left_alone(module, batch):
    module.eval()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    identities = [(id(p), p.data_ptr()) for p in module.parameters()]
    flat = FlatModel(module)
    flat.loss_gradient(*batch, cross_entropy)
    flat.load(torch.zeros(len(flat)))
    flat.from_state({name: torch.ones_like(value) for name, value in state.items()})
    assert [(id(p), p.data_ptr()) for p in module.parameters()] == identities
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert not any(
        layer.training or layer._forward_hooks or layer._forward_pre_hooks
        for layer in module.modules()
    )


def test_load_copies(module):
    flat = FlatModel(module)
    vector = torch.randn(len(flat))
    flat.load(vector)
    assert torch.equal(flat.weights, vector)
    vector.zero_()
    assert flat.weights.abs().sum() > 0


@pytest.mark.parametrize("shape", [(19,), (21,), (1,), (), (1, 20)])
def test_load_refuses_other_shapes(shape):
    with pytest.raises(UserError, match="20 parameters"):
        FlatModel(nn.Linear(4, 4)).load(torch.zeros(shape))


def test_module_is_a_copy_with_the_present_weights(module, batch):
    flat = FlatModel(module)
    flat.loss_gradient(*batch, cross_entropy)
    flat.load(torch.linspace(-1, 1, len(flat)))
    fresh = flat.module()
    with torch.no_grad():
        assert torch.equal(fresh(batch[0]), flat.predict(batch[0]))
        for parameter in fresh.parameters():
            parameter.fill_(7.0)
    assert torch.equal(flat.weights, torch.linspace(-1, 1, len(flat)))
    assert all(p.grad is None for p in fresh.parameters())
    assert not fresh.training


def test_modes_dropout_acts_in_training_only():
    flat = FlatModel(nn.Sequential(nn.Dropout(0.5), nn.Linear(100, 1)).eval())
    inputs = torch.ones(2, 100)
    torch.manual_seed(0)
    flat.predict(inputs)
    losses = {flat.loss_gradient(inputs, torch.zeros(2), mean_squared_error) for _ in range(3)}
    assert len(losses) == 3
    assert torch.equal(flat.predict(inputs), flat.predict(inputs))
    assert not flat.predict(inputs).requires_grad


def test_state_goes_through_a_file_and_back(module, batch):
    flat = FlatModel(module)
    vector = torch.linspace(-1, 1, len(flat))
    state = flat.to_state(vector)
    assert state.keys() == module.state_dict().keys()
    assert all(value.is_contiguous() and not value.requires_grad for value in state.values())
    other = FlatModel(shifted(module))
    assert torch.equal(other.from_state(load(save(state))), vector)
    flat.load(vector)
    assert torch.equal(other.predict(batch[0]), flat.predict(batch[0])), (
        "frozen parameters and buffers came along"
    )


def shifted(module):
    """A module of the same kind whose every number is another."""
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for value in twin.state_dict().values():
            value.add_(1)
    return twin


def test_state_is_a_copy_and_leaves_the_weights():
    flat = FlatModel(Tied())
    before = flat.weights.clone()
    vector = torch.ones(len(flat))
    state = flat.to_state(vector)
    assert torch.equal(state["encode.weight"], state["decode.weight"])
    for value in state.values():
        value.fill_(5.0)
    assert torch.equal(vector, torch.ones(len(flat)))
    assert torch.equal(flat.weights, before)


def test_from_state_returns_a_copy():
    flat = FlatModel(nn.Linear(2, 1))
    flat.from_state({"weight": torch.ones(1, 2), "bias": torch.ones(1)}).zero_()
    assert torch.equal(flat.weights, torch.ones(3))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"weight": torch.zeros(1, 2)}, r"lacks \['bias'\]"),
        (
            {"weight": torch.zeros(1, 2), "bias": torch.zeros(1), "gain": torch.zeros(1)},
            r"has \['gain'\]",
        ),
        (
            {"weight": torch.zeros(1, 1), "bias": torch.zeros(1)},
            r"weight of shape \(1, 1\), this model \(1, 2\)",
        ),
    ],
)
def test_from_state_refuses_another_model_and_changes_nothing(state, message):
    flat = FlatModel(nn.Linear(2, 1))
    before = flat.weights.clone()
    with pytest.raises(UserError, match=message):
        flat.from_state(state)
    assert torch.equal(flat.weights, before)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda flat: pickle.load(io.BytesIO(pickle.dumps(flat)))]
)
def test_a_duplicate_is_wired_to_its_own_vectors(duplicate, batch):
    flat = FlatModel(Partly())
    twin = duplicate(flat)
    twin.weights.mul_(0.5)
    twin.loss_gradient(*batch, cross_entropy)
    torch.testing.assert_close(
        twin.gradients, autograd(twin.module(), *batch)[1], rtol=0, atol=1e-7
    )
    assert torch.equal(flat.weights, 2 * twin.weights)
    assert not flat.gradients.any()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 7), min_size=2, max_size=5), st.integers(1, 6), st.integers(0, 2**31)
)
def test_any_stack_agrees_with_autograd(widths, records, seed):
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    module = nn.Sequential(*layers)
    inputs, targets = (
        torch.randn(records, widths[0], generator=generator),
        torch.randn(records, widths[-1], generator=generator),
    )
    value, expected = autograd(module, inputs, targets, mean_squared_error)
    flat = FlatModel(module)
    assert flat.loss_gradient(inputs, targets, mean_squared_error) == value
    torch.testing.assert_close(flat.gradients, expected, rtol=0, atol=1e-7)

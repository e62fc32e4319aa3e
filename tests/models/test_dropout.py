"""Dropout with addresses: which values are dropped, by an oracle of its own, whatever way a pass takes."""

import copy

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import nn
from torch.nn import functional

from sordino.federation.assignment import draw_mask_words
from sordino.models.dropout import place_dropouts
from sordino.models.flat import FlatModel
from sordino.models.per_example import ExampleGradients

KEY = bytes(range(100, 132))


def keystream(step: int, example: int, words: int) -> np.ndarray:
    """RFC 8439 from its library: counter 0, then the three parts of the nonce."""
    nonce = b"".join(n.to_bytes(4, "little") for n in (0, step, example, 0))
    text = Cipher(ChaCha20(KEY, nonce), mode=None).encryptor().update(bytes(4 * words))
    return np.frombuffer(text, "<u4")


def test_words_of_a_record_are_a_keystream_of_its_own() -> None:
    found = draw_mask_words(KEY, 3, examples=5, length=48)
    for example in range(5):
        assert np.array_equal(found[example], keystream(3, example, 48))


def keyed(module: nn.Module, x: torch.Tensor) -> FlatModel:
    model = FlatModel(module)
    assert model.masks is not None
    length = place_dropouts(model.net, x[:1])
    words = draw_mask_words(KEY, 0, examples=len(x), length=length)
    model.masks.give_words(words, model.device)
    return model


def test_values_are_dropped_at_the_rate_and_the_others_scaled() -> None:
    x = torch.ones(200, 50)
    out = keyed(nn.Sequential(nn.Dropout(0.25), nn.Linear(50, 1)), x).net[0](x)
    for example in range(200):
        kept = keystream(0, example, 50) / 2**32 >= 0.25
        assert torch.equal(out[example], torch.from_numpy(kept / np.float32(0.75)).float())
    # 10,000 values: five deviations of a fair count, and not those of another rate.
    share = float((out == 0).float().mean())
    assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 10_000)


def test_the_second_dropout_begins_at_a_block_of_its_own() -> None:
    x = torch.ones(3, 20)
    net = keyed(nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5), nn.Linear(20, 1)), x).net
    second = net[1](x)
    for example in range(3):
        kept = keystream(0, example, 64)[32:52] >= 2**31
        assert np.array_equal(second[example].numpy() != 0, kept)


class Bent(nn.Module):
    """A forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.5), nn.Tanh(), nn.Linear(9, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


@pytest.mark.parametrize("ways", ["layers", "vectorised", "one by one"])
def test_clipped_sums_drop_what_a_pass_of_the_whole_batch_drops(ways: str) -> None:
    torch.manual_seed(0)
    module = Bent()
    x, y = torch.randn(7, 6), torch.randint(0, 3, (7,))
    model = keyed(module if ways != "layers" else module.body, x)
    gradients = ExampleGradients(model, functional.cross_entropy)
    gradients._vectorised = ways == "vectorised"
    # Several chunks, the last of them smaller.
    gradients._chunk = 3
    found = gradients.clipped_sum(x, y, clip=1e6).total
    model.loss_gradient(x, y, functional.cross_entropy)
    assert torch.allclose(found, 7 * model.gradients.double(), atol=1e-5)
    model.masks.rows = model.masks.rows.flip(0)
    model.loss_gradient(x, y, functional.cross_entropy)
    assert not torch.allclose(found, 7 * model.gradients.double(), atol=1e-2)


def test_a_model_that_is_handed_out_has_the_dropouts_of_torch() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Dropout(0.3)), nn.Linear(4, 2))
    out = keyed(module, torch.ones(2, 4)).module()
    assert type(out[1][0]) is nn.Dropout
    assert out[1][0].p == 0.3
    assert not out.training
    assert copy.deepcopy(out).state_dict().keys() == module.state_dict().keys()

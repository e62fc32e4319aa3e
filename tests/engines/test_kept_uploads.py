"""What the server receives can be kept with a run: all of it, as it arrived, and no more than the channel tells."""

import numpy as np
import pytest

from sordino import Gaussian, Poisson, Run, UserError, train
from sordino.federation.channels.shuffler import shuffled_order
from sordino.federation.store.upload_archive import kept_rounds, read_round
from sordino.models.flat import FlatModel
from sordino.randomness import Key, Purpose
from tests.support import toy_dataset, toy_protocol


def kept(folder, protocol, **options) -> Run:
    return train(
        protocol, data=toy_dataset(), model="logistic", folder=folder, keep_uploads=1, **options
    )


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_the_mean_of_a_rounds_uploads_is_the_model_of_the_next(tmp_path, engine) -> None:
    run = kept(tmp_path, toy_protocol(participation=Poisson(rate=0.7)), engine=engine)
    rounds = [read_round(tmp_path, t) for t in kept_rounds(tmp_path)]
    models = [one.model for one in rounds[1:]] + [FlatModel(run.model).weights.numpy()]
    for one, after in zip(rounds, models, strict=True):
        np.testing.assert_allclose(
            one.uploads.astype(np.float64).mean(axis=0), after, rtol=1e-6, atol=1e-7
        )
    assert [one.clients.tolist() for one in rounds] == [
        list(event.clients) for event in run.ledger[1:]
    ]


def test_behind_a_shuffler_names_are_not_kept_and_the_order_is_the_shufflers(tmp_path) -> None:
    plain, mixed = toy_protocol(), toy_protocol(channel="shuffler")
    kept(tmp_path / "plain", plain)
    kept(tmp_path / "mixed", mixed)
    first, shuffled = read_round(tmp_path / "plain", 0), read_round(tmp_path / "mixed", 0)
    assert shuffled.clients is None
    order = shuffled_order(5, Key.from_seed(3).stream(Purpose.SHUFFLER, round_index=0))
    assert order.tolist() != sorted(order)
    np.testing.assert_array_equal(shuffled.uploads, first.uploads[order])


def test_some_rounds_can_be_kept_and_none_are_unless_asked_for(tmp_path) -> None:
    train(
        toy_protocol(rounds=7),
        data=toy_dataset(),
        model="logistic",
        folder=tmp_path / "some",
        keep_uploads=3,
    )
    train(toy_protocol(), data=toy_dataset(), model="logistic", folder=tmp_path / "none")
    assert kept_rounds(tmp_path / "some") == [0, 3, 6]
    assert kept_rounds(tmp_path / "none") == []
    assert not (tmp_path / "none" / "uploads").exists()


def test_keeping_uploads_changes_nothing_else(tmp_path) -> None:
    protocol = toy_protocol(noise=Gaussian(sigma=0.1, where="server"))
    kept(tmp_path / "kept", protocol)
    train(protocol, data=toy_dataset(), model="logistic", folder=tmp_path / "not")
    assert (tmp_path / "kept" / "model.safetensors").read_bytes() == (
        tmp_path / "not" / "model.safetensors"
    ).read_bytes()
    assert read_round(tmp_path / "kept", 0).uploads.dtype == np.float64


@pytest.mark.parametrize("every", [-1, 1.5, True])
def test_a_number_of_rounds_that_is_none_is_refused(tmp_path, every) -> None:
    with pytest.raises(UserError, match="keep-uploads"):
        train(
            toy_protocol(),
            data=toy_dataset(),
            model="logistic",
            folder=tmp_path / "run",
            keep_uploads=every,
        )
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_says_so(tmp_path) -> None:
    kept(tmp_path, toy_protocol())
    place = tmp_path / "uploads" / "000002.safetensors"
    place.write_bytes(place.read_bytes()[:-3])
    with pytest.raises(UserError, match="000002"):
        read_round(tmp_path, 2)

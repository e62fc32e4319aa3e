"""Public features: a fixed function of one record, which costs no privacy; cached, and refused where it is no such function."""

import math
import stat
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import sordino
from sordino.cli.main import run
from sordino.data import Dataset, load_dataset
from sordino.federation.evaluation import evaluate_run
from sordino.federation.record_tensors import loaded
from sordino.federation.setup import prepare
from sordino.flower.agreement import Agreement
from sordino.flower.local_work import prepare_client
from sordino.models.feature_cache import cache_folder
from sordino.models.public_features import apply_features, find_transform
from sordino.models.random_filters import RandomFilters
from sordino.models.scattering import Scattering
from sordino.protocol import (
    Constant,
    Data,
    FedAvg,
    FedProx,
    Gaussian,
    InvalidValue,
    Model,
    NoisySgd,
    Protocol,
    Scaffold,
    UserError,
    dumps,
)

BUILT_IN = ("scattering", "random-filters")


def make_images(count: int, side: int = 12, channels: int = 1) -> torch.Tensor:
    drawn = np.random.default_rng(3).standard_normal((count, channels, side, side))
    return torch.from_numpy(drawn.astype(np.float32))


def make_set(count: int = 20, side: int = 8, name: str = "toy") -> Dataset:
    generator = np.random.default_rng(1)
    x = generator.integers(0, 256, (count, 1, side, side), dtype=np.uint8)
    y = np.arange(count) % 2
    return Dataset(
        name=name, x_train=x, y_train=y, x_test=x[:4].copy(), y_test=y[:4].copy(),
        classes=("no", "yes"), scale=np.float32(1 / 255).reshape(()),
    )  # fmt: skip


def draw_bell(side: int, covariance: np.ndarray, wave: np.ndarray) -> np.ndarray:
    """A Gaussian bell times a plane wave on a torus, from the covariance matrix, point by point."""
    bell = np.zeros((side, side), dtype=complex)
    precision = np.linalg.inv(covariance)
    for row in range(side):
        for column in range(side):
            for above in range(-3, 4):
                for left in range(-3, 4):
                    place = np.array([row + above * side, column + left * side])
                    exponent = -0.5 * place @ precision @ place + 1j * (wave @ place)
                    bell[row, column] += np.exp(exponent)
    return bell / (2 * math.pi * math.sqrt(np.linalg.det(covariance)))


def draw_wavelet(side: int, scale: int, direction: int) -> np.ndarray:
    angle = (3 - direction) * math.pi / 8
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    spread = 0.8 * 2**scale
    # Half as steep across as along.
    covariance = turn @ np.diag([spread**2, (spread * 2) ** 2]) @ turn.T
    frequency = 0.75 * math.pi / 2**scale
    wave = draw_bell(side, covariance, frequency * turn[:, 0])
    envelope = draw_bell(side, covariance, np.zeros(2))
    return wave - envelope * wave.sum() / envelope.sum()


def convolve(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """A circular convolution as the sum that defines it."""
    total = np.zeros(image.shape, dtype=complex)
    for row in range(len(kernel)):
        for column in range(len(kernel)):
            total += kernel[row, column] * np.roll(image, (row, column), axis=(0, 1))
    return total


def scatter_directly(image: np.ndarray) -> np.ndarray:
    """The scattering of one image of 8 by 8 pixels by sums over pixels, without any transform."""
    padded = np.pad(image, 4, mode="reflect")
    side = len(padded)
    blur = draw_bell(side, np.eye(2) * 1.6**2, np.zeros(2))

    def average(values: np.ndarray, step: int) -> np.ndarray:
        # Every `step`-th sample alone is averaged, each for as many pixels as it stands for.
        sampled = np.zeros_like(values)
        sampled[::step, ::step] = values[::step, ::step] * step**2
        return convolve(sampled, blur).real[4:-4:4, 4:-4:4]

    kernels = [[draw_wavelet(side, scale, turn) for turn in range(8)] for scale in range(2)]
    fine = [np.abs(convolve(padded, kernel)) for kernel in kernels[0]]
    coarse = [np.abs(convolve(padded, kernel)) for kernel in kernels[1]]
    maps = [average(padded, 1)]
    maps += [average(values, 1) for values in fine]
    maps += [average(values, 2) for values in coarse]
    for values in fine:
        maps += [average(np.abs(convolve(values, kernel)), 2) for kernel in kernels[1]]
    return np.array(maps)


@pytest.mark.slow
def test_scattering_is_what_sums_over_pixels_give() -> None:
    images = make_images(2, side=8)
    found = Scattering((1, 8, 8)).scatter(images).numpy()
    expected = scatter_directly(images[1, 0].numpy().astype(float))
    assert found.shape == (2, 81, 2, 2)
    np.testing.assert_allclose(found[1], expected, atol=2e-6)


def test_brightness_is_in_order_0_alone() -> None:
    images = make_images(3)
    transform = Scattering((1, 12, 12))
    before = transform.scatter(images)
    after = transform.scatter(images + 2)
    torch.testing.assert_close(after[:, 0], before[:, 0] + 2, atol=1e-4, rtol=0)
    torch.testing.assert_close(after[:, 1:], before[:, 1:], atol=1e-5, rtol=0)


def test_twice_the_contrast_is_twice_the_scattering_and_the_same_features() -> None:
    images = make_images(3)
    transform = Scattering((1, 12, 12))
    torch.testing.assert_close(transform.scatter(2 * images), 2 * transform.scatter(images))
    torch.testing.assert_close(transform(200 * images), transform(100 * images), atol=1e-4, rtol=0)


def test_what_moves_by_four_pixels_moves_by_one_value() -> None:
    image = torch.zeros(1, 1, 48, 48)
    image[0, 0, 20:25, 18:23] = make_images(1, side=5)[0, 0]
    moved = torch.roll(image, (4, 0), dims=(2, 3))
    transform = Scattering((1, 48, 48))
    expected = torch.roll(transform.scatter(image), (1, 0), dims=(2, 3))
    torch.testing.assert_close(transform.scatter(moved), expected, atol=1e-6, rtol=0)


def test_a_small_move_changes_features_less_than_pixels() -> None:
    image = torch.zeros(1, 1, 28, 28)
    image[0, 0, 10:18, 10:18] = make_images(1, side=8)[0, 0]
    moved = torch.roll(image, 1, dims=3)
    transform = Scattering((1, 28, 28))
    far = (moved - image).norm() / image.norm()
    near = (transform.scatter(moved) - transform.scatter(image)).norm()
    assert near / transform.scatter(image).norm() < far / 2


@pytest.mark.parametrize("kind", [Scattering, RandomFilters])
@pytest.mark.parametrize("channels", [1, 3])
def test_each_record_in_each_group_of_channels_has_mean_0_and_variance_1(kind, channels) -> None:
    transform = kind((channels, 16, 16))
    features = transform(10 * make_images(4, side=16, channels=channels))
    assert tuple(features.shape[1:]) == transform.output_shape
    groups = 27 if kind is Scattering else 16
    grouped = features.reshape(4, groups, -1)
    assert float(grouped.mean(dim=2).abs().max()) < 1e-4
    assert float((grouped.var(dim=2, unbiased=False) - 1).abs().max()) < 1e-2


@pytest.mark.parametrize("kind", [Scattering, RandomFilters])
def test_bits_are_equal_for_every_size_of_a_batch_and_every_place_in_it(kind) -> None:
    images = make_images(64, side=28)
    transform = kind((1, 28, 28))
    together = transform(images)
    assert torch.equal(torch.cat([transform(image) for image in images.split(1)]), together)
    assert torch.equal(transform(images[:37]), together[:37])
    assert torch.equal(transform(images.flip(0)).flip(0), together)


@pytest.mark.parametrize("features", BUILT_IN)
def test_another_record_changes_no_features_but_its_own(features) -> None:
    one = make_set(100)
    other = make_set(100)
    other.x_train[70] = 255 - other.x_train[70]
    before = apply_features(one, features).x_train
    after = apply_features(other, features).x_train
    changed = (before != after).reshape(100, -1).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [70]


def test_features_are_computed_once_and_then_read(monkeypatch) -> None:
    first = apply_features(make_set(name="cached"), "scattering")
    monkeypatch.setattr(
        "sordino.models.public_features.fill_features", lambda *parts: pytest.fail("computed again")
    )
    second = apply_features(make_set(name="under another name"), "scattering")
    assert np.array_equal(first.x_train, second.x_train)
    assert np.array_equal(first.x_test, second.x_test)


def test_what_is_written_to_cached_features_does_not_reach_the_file() -> None:
    first = apply_features(make_set(), "scattering")
    value = float(first.x_train[0, 0, 0, 0])
    first.x_train[0, 0, 0, 0] = value + 1
    assert float(apply_features(make_set(), "scattering").x_train[0, 0, 0, 0]) == value


def test_cached_files_are_their_owners_and_a_damaged_one_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path))
    first = np.array(apply_features(make_set(), "scattering").x_train)
    folder = cache_folder()
    assert folder == tmp_path / "features"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = sorted(folder.iterdir())
    assert len(files) == 2
    for file in files:
        assert file.suffix == ".npy"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.write_bytes(file.read_bytes()[:200])
    assert np.array_equal(apply_features(make_set(), "scattering").x_train, first)


def test_nothing_is_kept_where_the_cache_is_none(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SORDINO_CACHE", "none")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    apply_features(make_set(), "scattering")
    assert list(tmp_path.iterdir()) == []


def test_the_cache_is_never_in_the_working_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("SORDINO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_folder() == tmp_path / "caches" / "sordino" / "features"


def write_factories(folder, monkeypatch, code: str) -> None:
    (folder / "own_features.py").write_text("import torch\n\n" + code)
    monkeypatch.chdir(folder)
    sys.modules.pop("own_features", None)


GOOD = """
def make(shape):
    return lambda records: FACTOR * records.flatten(1)[:, :5]
"""


def test_a_factory_in_the_working_folder_is_used_and_its_change_is_noticed(tmp_path, monkeypatch):
    write_factories(tmp_path, monkeypatch, "FACTOR = 2\n" + GOOD)
    data = make_set()
    found = apply_features(data, "own_features:make")
    inputs = data.x_train.reshape(20, -1)[:, :5] / 255
    np.testing.assert_allclose(found.x_train, 2 * inputs, rtol=1e-6)
    # Of another size: Python takes a file of the same second and size for unchanged.
    write_factories(tmp_path, monkeypatch, "FACTOR = 3.0\n" + GOOD)
    found = apply_features(data, "own_features:make")
    np.testing.assert_allclose(found.x_train, 3 * inputs, rtol=1e-6)


LEAKS = {
    "the mean of the batch": "lambda x: x.flatten(1) - x.flatten(1).mean(0)",
    "the largest value of the batch": "lambda x: x.flatten(1) / x.abs().max()",
    "the record next to it": "lambda x: x.flatten(1) + x.flatten(1).roll(1, 0)",
    "fresh noise": "lambda x: x.flatten(1) + torch.randn(len(x), 1)",
    "training of batch normalisation": "torch.nn.BatchNorm2d(1).train().forward",
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_transform_that_looks_at_more_than_one_record_is_refused(leak, tmp_path, monkeypatch):
    write_factories(tmp_path, monkeypatch, f"def make(shape):\n    return {LEAKS[leak]}\n")
    with pytest.raises(UserError, match="depend on the records next to it"):
        find_transform("own_features:make", (1, 8, 8))


def test_a_transform_that_remembers_is_refused(tmp_path, monkeypatch) -> None:
    code = """
class Remember:
    seen = 0.0
    def __call__(self, x):
        result = x.flatten(1) + self.seen
        self.seen = float(x.mean())
        return result

def make(shape):
    return Remember()
"""
    write_factories(tmp_path, monkeypatch, code)
    with pytest.raises(UserError, match="or on earlier calls"):
        find_transform("own_features:make", (1, 8, 8))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("lambda x: x.sum()", "a row for each record"),
        ("lambda x: x.flatten(1) / 0", "finite numbers"),
        ("lambda x: x.numpy()", "returned ndarray"),
        ("lambda x: x @ x", "raised|returned|depend"),
        ("1 / 0", "the factory raised ZeroDivisionError"),
    ],
)
def test_a_transform_that_makes_no_features_is_refused(code, message, tmp_path, monkeypatch):
    write_factories(tmp_path, monkeypatch, f"def make(shape):\n    return {code}\n")
    with pytest.raises(UserError, match=message):
        find_transform("own_features:make", (1, 8, 9))


def test_a_transform_that_fails_on_real_records_is_named(tmp_path, monkeypatch) -> None:
    # Of the invented records each has negative values; images have none.
    code = "lambda x: x.flatten(1) if (x < 0).any() else x.sum()"
    write_factories(tmp_path, monkeypatch, f"def make(shape):\n    return {code}\n")
    with pytest.raises(
        UserError, match=r"data\.features = 'own_features:make' returned shape \(\)"
    ):
        apply_features(make_set(), "own_features:make")


def test_names_that_are_not_known_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"data\.features"):
        Data(name="digits", features="scatering")
    with pytest.raises(UserError, match="importing nowhere_at_all failed"):
        find_transform("nowhere_at_all:make", (1, 8, 8))


@pytest.mark.parametrize("features", BUILT_IN)
@pytest.mark.parametrize("shape", [(30,), (1, 7, 9), (3, 48)])
def test_built_in_features_need_images(features, shape) -> None:
    with pytest.raises(UserError, match="needs images"):
        find_transform(features, shape)


def plan(local) -> Protocol:
    return Protocol(
        clients=4, rounds=3, seed=5, local=local, noise=Gaussian(sigma=0.01),
        data=Data(name="digits", records=40, features="scattering"), model=Model(name="logistic"),
    )  # fmt: skip


FEDAVG = FedAvg(steps=3, batch=8, clip=1.0, schedule=Constant(rate=0.5))


def test_models_get_the_shape_of_the_features_and_prices_stay(tmp_path) -> None:
    protocol = plan(FEDAVG)
    setup = prepare(protocol)
    assert setup.input_shape == (81, 2, 2)
    assert setup.initial_weights().size == 324 * 10 + 10
    plain = replace(protocol, data=Data(name="digits", records=40))
    prices = [sordino.certify(made, view="server").epsilon(1e-5) for made in (protocol, plain)]
    assert prices[0] == prices[1]


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_a_run_on_features_learns_and_is_scored_on_features(engine, tmp_path) -> None:
    found = sordino.train(plan(FEDAVG), folder=tmp_path / "run", engine=engine)
    scores = evaluate_run(found)
    assert scores["accuracy"] > 0.5
    assert found.facts["input_shape"] == [81, 2, 2]


def test_a_data_set_that_is_handed_over_gets_features_once() -> None:
    setup = prepare(plan(FEDAVG), data=load_dataset("digits"))
    named = prepare(plan(FEDAVG))
    assert torch.equal(setup.train.x, named.train.x)
    assert setup.data_digest == named.data_digest


def test_the_digest_of_a_run_knows_its_features() -> None:
    plain = loaded(Data(name="digits")).digest
    digests = {loaded(Data(name="digits", features=name)).digest for name in BUILT_IN}
    assert len(digests | {plain}) == 3


def test_check_says_the_shape_of_the_features(tmp_path, capsys) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(dumps(plan(FEDAVG)))
    assert run(["check", str(file)]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "records of shape (1, 8, 8) become (81, 2, 2)" in shown
    np.savez(tmp_path / "grey.npz", x=np.zeros((9, 28, 28), dtype=np.uint8), y=np.arange(9) % 2)
    capsys.readouterr()
    assert run(["check", str(file), "--set", f"data.name={tmp_path / 'grey.npz'}"]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "records of shape (1, 28, 28) become (81, 7, 7)" in shown


RULES = {
    "fedavg": FEDAVG,
    "fedprox": FedProx(steps=2, batch=8, clip=1.0, schedule=Constant(rate=0.5), proximal=0.1),
    "scaffold": Scaffold(steps=2, batch=8, clip=1.0, schedule=Constant(rate=0.5)),
    "noisy-sgd": NoisySgd(steps=1, batch=8, clip=1.0, schedule=Constant(rate=0.5)),
}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_trains_on_features_alike_in_every_engine(name, tmp_path) -> None:
    noise = Gaussian(multiplier=0.5) if name == "noisy-sgd" else Gaussian(sigma=0.01)
    protocol = replace(plan(FEDAVG), local=RULES[name], noise=noise)
    weights = []
    for engine in ("torch", "auto"):
        found = sordino.train(protocol, folder=tmp_path / engine, engine=engine, report=False)
        weights.append(torch.cat([tensor.flatten() for tensor in found.state.values()]))
    assert weights[0].numel() == 324 * 10 + 10
    assert torch.allclose(weights[0], weights[1], atol=1e-4)


def test_a_client_across_machines_makes_features_of_its_own_records(tmp_path) -> None:
    images = (make_images(50, side=8).numpy() * 10 + 100).clip(0, 255).astype(np.uint8)
    file = tmp_path / "own.npz"
    np.savez(file, x=images[:, 0], y=np.arange(50) % 10)
    spec = Data(name="digits", records=40, features="scattering", classes=10, test="none")
    protocol = replace(plan(FEDAVG), data=spec)
    agreement = Agreement(client=2, records=40, data=str(file), seeded=True)
    setup = prepare_client(protocol, agreement)
    own = apply_features(load_dataset(str(file), classes=10, test="none"), "scattering")
    assert setup.input_shape == (81, 2, 2)
    assert np.array_equal(setup.train.x[:40].numpy(), own.x_train[:40])

"""Formats of image sets, on small files made here; damaged ones are refused by name."""

import gzip
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sordino.data import load_dataset
from sordino.protocol import UserError
from tests.data.making import write_idx, write_idx_set


@pytest.mark.parametrize(
    ("folder", "prefix", "suffix"), [("", "mnist_", ".gz"), ("mnist", "", ".gz"), ("mnist", "", "")]
)
def test_mnist_under_every_name(tmp_path: Path, folder: str, prefix: str, suffix: str) -> None:
    images = write_idx_set(tmp_path / folder, prefix=prefix, suffix=suffix)
    mnist = load_dataset("mnist", root=tmp_path)
    assert np.array_equal(mnist.x_train[:, 0], images)
    assert mnist.y_test.tolist() == list(range(10))


def test_fashion_mnist_in_a_folder_and_from_debian(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = write_idx_set(tmp_path / "debian")
    monkeypatch.setattr("sordino.data.images.DEBIAN", str(tmp_path / "debian"))
    assert np.array_equal(load_dataset("fashion-mnist").x_train[:, 0], images)
    write_idx_set(tmp_path / "fashion-mnist", train=30)
    assert len(load_dataset("fashion-mnist", root=tmp_path).x_train) == 30


def break_magic(path: Path) -> None:
    path.write_bytes(gzip.compress(b"\1" + gzip.decompress(path.read_bytes())[1:]))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def shorten(path: Path) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1]))


def replace_by_text(path: Path) -> None:
    path.write_text("<html>404</html>")


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [break_magic, truncate, shorten, replace_by_text, empty])
@pytest.mark.parametrize("file", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"])
def test_damaged_idx_files_are_named(
    tmp_path: Path, damage: Callable[[Path], None], file: str
) -> None:
    write_idx_set(tmp_path / "mnist")
    damage(tmp_path / "mnist" / file)
    with pytest.raises(UserError, match=f"{file} cannot be read as an idx file"):
        load_dataset("mnist", root=tmp_path)


def test_idx_files_that_do_not_fit_together(tmp_path: Path) -> None:
    write_idx_set(tmp_path / "mnist")
    write_idx(tmp_path / "mnist" / "train-labels-idx1-ubyte.gz", np.zeros(19))
    with pytest.raises(
        UserError, match=r"train-labels-idx1-ubyte.gz cannot be .* 19 of them for the 20 images"
    ):
        load_dataset("mnist", root=tmp_path)
    write_idx(tmp_path / "mnist" / "train-labels-idx1-ubyte.gz", np.full(20, 11))
    with pytest.raises(UserError, match=r"labels out of range: one is 11"):
        load_dataset("mnist", root=tmp_path)
    write_idx(tmp_path / "mnist" / "train-images-idx3-ubyte.gz", np.zeros((20, 32, 32)))
    with pytest.raises(
        UserError, match=r"train-images-idx3-ubyte.gz cannot be read as images of 28 x 28"
    ):
        load_dataset("mnist", root=tmp_path)


def test_a_set_that_is_half_there(tmp_path: Path) -> None:
    write_idx_set(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match=r"is there, but not .*t10k-labels-idx1-ubyte.gz"):
        load_dataset("mnist", root=tmp_path)


def write_batch(path: Path, images: np.ndarray, protocol: int = 2, **entries: object) -> None:
    path.parent.mkdir(exist_ok=True)
    content = {
        b"data": images.reshape(len(images), -1),
        **{name.encode(): value for name, value in entries.items()},
    }
    path.write_bytes(pickle.dumps(content, protocol=protocol))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_cifar10_from_pickled_batches(tmp_path: Path, protocol: int) -> None:
    images = np.random.default_rng(2).integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(60) % 10
    names = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]
    for k, name in enumerate(names):
        rows = slice(10 * k, 10 * k + 10)
        write_batch(
            tmp_path / "cifar-10-batches-py" / name,
            images[rows],
            protocol,
            labels=labels[rows].tolist(),
            batch_label=b"x",
        )
    cifar = load_dataset("cifar10", root=tmp_path)
    assert np.array_equal(cifar.x_train, images[:50])
    assert np.array_equal(cifar.x_test, images[50:])
    assert cifar.y_train.tolist() == labels[:50].tolist()


def test_cifar10_batch_as_python_2_wrote_it(tmp_path: Path) -> None:
    """The opcodes of numpy 1 under Python 2: text strings, `numpy.core`, raw bytes as a latin-1 string."""
    raw = bytes(range(256)) * 12
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR(I1\n(I1\nI3072\ntcnumpy\ndtype\n(U\x02u1I0\nI1\ntR"
        b"(I3\nU\x01|NNNI-1\nI-1\nI0\ntbI00\nT" + len(raw).to_bytes(4, "little") + raw + b"tb"
    )
    pickled = b"\x80\x02}(U\x04data" + array + b"U\x06labels](I7\neu."
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]:
        (folder / name).write_bytes(pickled)
    cifar = load_dataset("cifar10", root=tmp_path)
    assert cifar.x_train[0].tobytes() == raw
    assert cifar.y_train.tolist() == [7] * 5


def write_cifar100(folder: Path) -> np.ndarray:
    images = np.random.default_rng(3).integers(0, 256, (120, 3, 32, 32), dtype=np.uint8)
    fine, coarse = (np.arange(120) % 100).tolist(), [0] * 120
    write_batch(
        folder / "cifar-100-python" / "train", images, fine_labels=fine, coarse_labels=coarse
    )
    write_batch(
        folder / "cifar-100-python" / "test",
        images[:30],
        fine_labels=fine[:30],
        coarse_labels=coarse[:30],
    )
    return images


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    images = write_cifar100(tmp_path)
    cifar = load_dataset("cifar100", root=tmp_path)
    assert np.array_equal(cifar.x_train, images)
    assert (cifar.outputs, cifar.y_train[99], cifar.classes[0], cifar.classes[99]) == (
        100,
        99,
        "apple",
        "worm",
    )
    assert len(set(cifar.classes)) == 100


class Attack:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("pwned",)


def test_a_pickle_that_runs_code_is_refused_and_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cifar100(tmp_path)
    (tmp_path / "cifar-100-python" / "test").write_bytes(pickle.dumps({b"data": Attack()}))
    with pytest.raises(UserError, match=r"cifar-100-python/test cannot be read as .*\.mkdir"):
        load_dataset("cifar100", root=tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80\x02}.", pickle.dumps([1]), pickle.dumps({b"data": np.zeros((2, 5), np.uint8)})],
)
def test_damaged_batches_are_named(tmp_path: Path, content: bytes) -> None:
    write_cifar100(tmp_path)
    (tmp_path / "cifar-100-python" / "train").write_bytes(content)
    with pytest.raises(
        UserError, match=r"cifar-100-python/train cannot be read as a pickled batch of CIFAR"
    ):
        load_dataset("cifar100", root=tmp_path)


def test_cifar10_sheets_that_are_damaged(tmp_path: Path) -> None:
    from PIL import Image

    for name in [*(f"cifar10_train_{k}" for k in range(1, 6)), "cifar10_test"]:
        Image.new("RGB", (64, 32)).save(tmp_path / f"{name}.webp", lossless=True)
    np.savez(
        tmp_path / "cifar10_labels.npz",
        y_train=np.zeros(10, np.uint8),
        y_test=np.zeros(2, np.uint8),
    )
    assert load_dataset("cifar10", root=tmp_path).x_train.shape == (10, 3, 32, 32)
    np.savez(
        tmp_path / "cifar10_labels.npz", y_train=np.zeros(9, np.uint8), y_test=np.zeros(2, np.uint8)
    )
    with pytest.raises(UserError, match=r"cifar10_labels.npz cannot be read .* 10 images"):
        load_dataset("cifar10", root=tmp_path)
    Image.new("RGB", (64, 40)).save(tmp_path / "cifar10_test.webp", lossless=True)
    with pytest.raises(UserError, match=r"cifar10_test.webp cannot be read as a sheet"):
        load_dataset("cifar10", root=tmp_path)
    replace_by_text(tmp_path / "cifar10_train_2.webp")
    with pytest.raises(UserError, match=r"cifar10_train_2.webp cannot be read as a sheet"):
        load_dataset("cifar10", root=tmp_path)


@pytest.mark.parametrize(
    ("name", "file"), [("pneumoniamnist", "pneumoniamnist.npz"), ("location30", "location30.npz")]
)
def test_archives_that_are_damaged(tmp_path: Path, name: str, file: str) -> None:
    for content in (b"", b"PK\3\4 nothing", b"text"):
        (tmp_path / file).write_bytes(content)
        with pytest.raises(UserError, match=f"{file} cannot be read"):
            load_dataset(name, root=tmp_path)
    np.savez(tmp_path / file, other=np.zeros(3))
    with pytest.raises(UserError, match=f"{file} cannot be read"):
        load_dataset(name, root=tmp_path)
    np.savez(tmp_path / file, x_packed=np.array([object()]), allow_pickle=True)
    with pytest.raises(UserError, match=f"{file} cannot be read"):
        load_dataset(name, root=tmp_path)

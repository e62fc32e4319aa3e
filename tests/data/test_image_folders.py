"""Folders of images in every layout that is understood, and what is said about the others."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sordino.data import load_dataset
from sordino.protocol import UserError


def draw(path: Path, shade: int, mode: str = "RGB", size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode in ("L", "I;16") else (shade, 0, 255 - shade)).save(path)


def test_one_folder_per_class_is_split(tmp_path: Path) -> None:
    """Medical MNIST's layout."""
    for shade, name in ((200, "Hand"), (100, "AbdomenCT")):
        for number in range(10):
            draw(tmp_path / "medical" / name / f"{shade + number:06}.png", shade + number, mode="L")
    (tmp_path / "medical" / "Hand" / "Thumbs.db").write_bytes(b"")
    (tmp_path / "medical" / "readme.txt").write_text("not a class")
    medical = load_dataset(str(tmp_path / "medical"))
    assert (medical.name, medical.classes) == ("medical", ("AbdomenCT", "Hand"))
    assert (medical.x_train.shape, medical.x_test.shape) == ((16, 1, 4, 6), (4, 1, 4, 6))
    assert (np.bincount(medical.y_test).tolist(), medical.test) == ([2, 2], "held-out")
    assert np.array_equal(medical.x_train[:, 0, 0, 0] >= 200, medical.y_train == 1)
    seen = np.concatenate([medical.x_train, medical.x_test])[:, 0, 0, 0]
    assert sorted(seen) == [*range(100, 110), *range(200, 210)]


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_train_and_test_folders(tmp_path: Path, held_out: str) -> None:
    for name, shade in (("cat", 10), ("dog", 20)):
        draw(tmp_path / "train" / name / f"{shade}.png", shade)
        draw(tmp_path / "train" / name / f"{shade + 1}.png", shade + 1)
        draw(tmp_path / held_out / name / f"{shade + 2}.png", shade + 2)
    pets = load_dataset(str(tmp_path))
    assert pets.x_train[:, 0, 0, 0].tolist() == [10, 11, 20, 21]
    assert pets.x_train[0, :, 0, 0].tolist() == [10, 0, 245]
    assert (pets.x_test[:, 0, 0, 0].tolist(), pets.test) == ([12, 22], "brought")
    assert (pets.y_train.tolist(), pets.y_test.tolist()) == ([0, 0, 1, 1], [0, 1])
    assert [
        float(pets.scale[0, 0, 0] * byte + pets.shift[0, 0, 0]) for byte in (0, 255)
    ] == pytest.approx([-1, 1], abs=1e-6)


def test_tiny_imagenet(tmp_path: Path) -> None:
    for name, shade in (("n01443537", 40), ("n02058221", 140)):
        for number in range(3):
            draw(tmp_path / "train" / name / "images" / f"{name}_{number}.png", shade)
        (tmp_path / "train" / name / f"{name}_boxes.txt").write_text("x\t0\t0\t62\t62\n")
    draw(tmp_path / "val" / "images" / "val_0.png", 141)
    draw(tmp_path / "val" / "images" / "val_1.png", 41)
    (tmp_path / "val" / "val_annotations.txt").write_text(
        "val_0.png\tn02058221\t0\t32\t44\t62\nval_1.png\tn01443537\t0\t0\t1\t1\n"
    )
    draw(tmp_path / "test" / "images" / "test_0.png", 1)
    tiny = load_dataset(str(tmp_path))
    assert tiny.classes == ("n01443537", "n02058221")
    assert (tiny.x_test[:, 0, 0, 0].tolist(), tiny.y_test.tolist()) == ([141, 41], [1, 0])
    assert tiny.y_train.tolist() == [0, 0, 0, 1, 1, 1]

    (tmp_path / "val" / "val_annotations.txt").write_text("val_0.png\tn99999999\t0\t32\t44\t62\n")
    with pytest.raises(UserError, match=r"val_annotations.txt .* line 1 names class 'n99999999'"):
        load_dataset(str(tmp_path))
    (tmp_path / "val" / "val_annotations.txt").write_text("val_7.png\tn02058221\t0\t32\t44\t62\n")
    with pytest.raises(UserError, match=r"val_7.png cannot be opened"):
        load_dataset(str(tmp_path))


def test_one_image_does_not_decide_whether_all_are_read_in_colour(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(2, 7):
        draw(tmp_path / "b" / f"{number}.png", 50)
    assert load_dataset(str(tmp_path)).input_shape == (3, 4, 6)
    draw(tmp_path / "a" / "1.png", 9, mode="L")
    refused(tmp_path, "is in colour, but .*1.png is grey|1.png is grey, but .* is in colour")


def test_images_of_one_name_are_refused_as_their_order_would_tell_their_classes(
    tmp_path: Path,
) -> None:
    for name in ("cat", "dog"):
        for number in range(5):
            draw(tmp_path / name / f"{number}.png", number)
    refused(tmp_path, "cat/0.png and .*dog/0.png have one name.*running number")


def refused(folder: Path, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_dataset(str(folder))


def test_what_is_wrong_with_a_folder_is_said_by_name(tmp_path: Path) -> None:
    refused(tmp_path, "has no subfolders")
    for number in range(5):
        draw(tmp_path / "cat" / f"{number}.png", number)
    refused(tmp_path, "one class only")
    (tmp_path / "dog").mkdir()
    assert load_dataset(str(tmp_path)).classes == ("cat", "dog")  # the list of folders is public
    with pytest.raises(UserError, match=r"dog is none of the classes cat, cow"):
        load_dataset(str(tmp_path), classes=["cat", "cow"])
    draw(tmp_path / "dog" / "big.png", 1, size=(8, 4))
    refused(tmp_path, r"dog/big.png has 8 x 4 pixels, but .*\.png has 6 x 4")
    (tmp_path / "dog" / "big.png").write_bytes(b"\x89PNG broken")
    refused(tmp_path, r"dog/big.png cannot be read as an image")
    draw(tmp_path / "dog" / "big.png", 1, mode="I;16")
    refused(tmp_path, r"dog/big.png cannot be read as an image of 8 bits")
    draw(tmp_path / "dog" / "big.png", 1)
    whole = (tmp_path / "dog" / "big.png").read_bytes()
    (tmp_path / "dog" / "big.png").write_bytes(whole[:-30])
    refused(tmp_path, r"dog/big.png cannot be read as an image")


def test_what_is_wrong_with_a_test_folder(tmp_path: Path) -> None:
    draw(tmp_path / "train" / "cat" / "1.png", 1)
    draw(tmp_path / "train" / "dog" / "2.png", 1)
    refused(tmp_path, "neither test nor val")
    draw(tmp_path / "test" / "cow" / "1.png", 1)
    refused(tmp_path, "test/cow is none of the classes cat, dog")

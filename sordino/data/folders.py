"""Loads a folder of images as a data set: one subfolder for each class.

It may have a test part. TinyImageNet's layout is understood too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sordino.data.classes import (
    PROPOSED,
    Classes,
    class_names,
    refuse_too_many_classes,
)
from sordino.data.dataset import Dataset, split
from sordino.data.formats import damaged_file, reading
from sordino.data.images import centre_pixels, make_image_set
from sordino.protocol import UserError

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
# The modes of Pillow: one bit or byte of grey, and everything that converts to colour.
GREY = {"1", "L"}
COLOUR = {"P", "RGB", "RGBA", "LA", "CMYK", "YCbCr"}
ANNOTATIONS = "val_annotations.txt"
# Image files and their labels.
Listing = list[tuple[Path, int]]


def load_folder(folder: Path, classes: Classes | None = None, *, hold_out: bool = True) -> Dataset:
    """Loads images that are sorted into folders by class, all of one size, all grey or in colour.

    Understood are `class/*.png`, of which a fifth is held out for testing; `train/class/*.png` with
    `test/` or `val/` like it; and TinyImageNet's `train/class/images/*.JPEG` with the labels of
    `val/images` in `val/val_annotations.txt`. Files that are not images are passed over. The names
    of the class folders, empty ones included, are a public list of the classes. An image's place in
    the data is decided by its file name and not by its folder, so that an image of another class
    leaves all others where they are.

    Args:
        folder: Where the images are.
        classes: Which classes there are; None: those that have a folder.
        hold_out: Whether a fifth is held out where there is no test part.

    Raises:
        UserError: No classes, two images of one name, an image that cannot be read or has another
            size.
    """
    with reading(folder, "a folder of images"):
        names, train, test = _list_parts(folder, classes)
    whose = "brought"
    if not hold_out:
        test = []
        whose = "none"
    elif test is None:
        train_places, test_places = split(len(train))
        test = [train[place] for place in test_places]
        train = [train[place] for place in train_places]
        whose = "held-out"
    refuse_too_many_classes(folder, len(names), len(train) + len(test))
    shape = _find_shape([path for path, _ in train + test])
    return make_image_set(
        folder.resolve().name,
        _read_images(train, shape),
        _read_images(test, shape),
        names,
        centre_pixels(shape[0]),
        whose=whose,
    )


def _list_parts(
    folder: Path, given: Classes | None
) -> tuple[tuple[str, ...], Listing, Listing | None]:
    """Returns the classes, the training images, and the test images where they have a folder."""
    # A folder train marks a divided set; otherwise the classes themselves are at the top.
    train_folder = folder / "train"
    has_parts = train_folder.is_dir()
    if not has_parts:
        train_folder = folder
    if given is None:
        classes = _list_subfolders(train_folder)
    else:
        classes = class_names(given)
    train = _list_by_class(train_folder, classes)
    if not has_parts:
        return classes, train, None
    return classes, train, _list_test_part(folder, classes)


def _list_subfolders(folder: Path) -> tuple[str, ...]:
    """Returns the names of the subfolders in order."""
    names = []
    for place in folder.iterdir():
        # Hidden folders, such as .git or a viewer's thumbnails, are not classes.
        if place.is_dir() and not place.name.startswith("."):
            names.append(place.name)
    return tuple(sorted(names))


def _list_by_class(folder: Path, classes: tuple[str, ...]) -> Listing:
    """Returns the images of a folder with their labels, in the order of their file names."""
    subfolders = _list_subfolders(folder)
    if not subfolders:
        raise UserError(
            f"{folder} has no subfolders: images must be sorted into one folder per class, "
            f"such as {folder}/cat/1.png."
        )
    placed: dict[str, tuple[Path, int]] = {}
    for name in subfolders:
        # A new folder must not add a class: its name would be taken from private records.
        if name not in classes:
            raise UserError(
                f"{folder / name} is none of the classes {', '.join(classes[:PROPOSED])}. "
                "Move it away, or add it to them."
            )
        for path in _list_images(folder / name):
            if path.name in placed:
                raise _same_name(placed[path.name][0], path)
            placed[path.name] = (path, classes.index(name))
    if not placed:
        raise UserError(
            f"{folder} holds no images in its subfolders ({', '.join(sorted(SUFFIXES))})."
        )
    return [placed[name] for name in sorted(placed)]


def _same_name(one: Path, other: Path) -> UserError:
    """Returns the error for two images of one name."""
    return UserError(
        f"{one} and {other} have one name: an image's name is its place in the data whatever its "
        "class, so that changing the class of one image moves no other. Give every image a "
        "different name, such as a running number over all classes."
    )


def _list_images(folder: Path) -> list[Path]:
    """Returns the images of a class in the order of their names."""
    # TinyImageNet has one more level.
    # Below a class of its training part.
    if (folder / "images").is_dir():
        folder = folder / "images"
    images = []
    for path in folder.iterdir():
        if path.suffix.lower() in SUFFIXES and not path.name.startswith("."):
            images.append(path)
    return sorted(images)


def _list_test_part(folder: Path, classes: tuple[str, ...]) -> Listing:
    """Returns the test images with their labels."""
    if (folder / "val" / ANNOTATIONS).is_file():
        return _list_annotated(folder / "val", classes)
    for name in ("test", "val"):
        if (folder / name).is_dir():
            return _list_by_class(folder / name, classes)
    raise UserError(
        f"{folder} has a folder train but neither test nor val. "
        "Add one of them, or move the classes up out of train."
    )


def _list_annotated(folder: Path, classes: tuple[str, ...]) -> Listing:
    """Returns TinyImageNet's validation images with their labels.

    A line of the annotations is file name, class, and a box that is not needed.
    """
    annotations = folder / ANNOTATIONS
    kind = "a list of image names and classes"
    labels = {name: label for label, name in enumerate(classes)}
    listing = []
    with reading(annotations, kind):
        for number, line in enumerate(annotations.read_text().splitlines(), start=1):
            file, name = line.split("\t")[:2]
            if name not in labels:
                reason = f"line {number} names class {name!r}, which is none of the classes"
                raise damaged_file(annotations, kind, reason)
            listing.append((folder / "images" / file, labels[name]))
    return listing


def _find_shape(paths: Sequence[Path]) -> tuple[int, int, int]:
    """Returns channels, height and width of all images, from their headers alone."""
    from PIL import Image

    sizes = []
    first_mode = ""
    for path in paths:
        with reading(path, "an image"), Image.open(path) as picture:
            sizes.append(picture.size)
            first_mode = first_mode or picture.mode
            if picture.mode not in GREY | COLOUR:
                raise damaged_file(
                    path, "an image of 8 bits per channel", f"its mode is {picture.mode}"
                )
            if picture.size != sizes[0]:
                size = " x ".join(str(side) for side in picture.size)
                first_size = " x ".join(str(side) for side in sizes[0])
                raise UserError(
                    f"{path} has {size} pixels, but {paths[0]} has {first_size}. "
                    "Resize all images to one size."
                )
            if (picture.mode in GREY) != (first_mode in GREY):
                raise UserError(
                    f"{path} is {_describe_tone(picture.mode)}, but {paths[0]} is "
                    f"{_describe_tone(first_mode)}. Save all images as grey or all in colour: one "
                    "image must not decide how the others are read."
                )
    width, height = sizes[0]
    channels = 1 if first_mode in GREY else 3
    return channels, height, width


def _describe_tone(mode: str) -> str:
    """Returns a word for the mode of an image."""
    return "grey" if mode in GREY else "in colour"


def _read_images(listing: Listing, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images and labels of a listing."""
    from PIL import Image

    # Filled in place: a list of images would need the memory twice.
    images = np.empty((len(listing), *shape), dtype=np.uint8)
    for place, (path, _) in enumerate(listing):
        with reading(path, "an image"), Image.open(path) as picture:
            if shape[0] == 1:
                images[place] = np.asarray(picture.convert("L"))
            else:
                images[place] = np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
    return images, np.array([label for _, label in listing], dtype=np.int64)

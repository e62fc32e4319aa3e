"""A folder of images as a data set: one subfolder per class, with or without a test part, TinyImageNet's layout included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sordino.federation.data.classes import (
    PROPOSED,
    Classes,
    class_names,
    refuse_too_many_classes,
)
from sordino.federation.data.dataset import Dataset, split
from sordino.federation.data.formats import damaged, reading
from sordino.federation.data.images import centred, image_set
from sordino.protocol import UserError

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
GREY = {"1", "L"}
COLOUR = {"P", "RGB", "RGBA", "LA", "CMYK", "YCbCr"}
ANNOTATIONS = "val_annotations.txt"
Listing = list[tuple[Path, int]]  # image files and their labels


def load_folder(folder: Path, classes: Classes | None = None, *, hold_out: bool = True) -> Dataset:
    """Images sorted into folders by class, all of one size, all grey or all in colour.

    Understood are `class/*.png`, of which a fifth is held out for testing; `train/class/*.png` with `test/` or `val/` like it; and
    TinyImageNet's `train/class/images/*.JPEG` with the labels of `val/images` in `val/val_annotations.txt`. Files that are no images
    are passed over. The names of the class folders, empty ones included, are a public list of the classes. An image's place in the
    data is decided by its file name and not by its folder, so that an image of another class leaves all others where they are.

    Args:
        folder: where the images are.
        classes: which classes there are; None: those that have a folder.
        hold_out: whether a fifth is held out where there is no test part.

    Raises:
        UserError: no classes, two images of one name, an image that cannot be read or has another size.
    """
    with reading(folder, "a folder of images"):
        names, train, test = _listings(folder, classes)
    whose = "brought" if test is not None else "held-out"
    if not hold_out:
        test = []
        whose = "none"
    if test is None:
        kept, held_out = split(len(train))
        train, test = [train[place] for place in kept], [train[place] for place in held_out]
    refuse_too_many_classes(folder, len(names), len(train) + len(test))
    shape = _common_shape([path for path, _ in train + test])
    return image_set(
        folder.resolve().name,
        _read(train, shape),
        _read(test, shape),
        names,
        centred(shape[0]),
        whose=whose,
    )


def _listings(
    folder: Path, said: Classes | None
) -> tuple[tuple[str, ...], Listing, Listing | None]:
    """Returns the classes, training images, and test images where they have a folder of their own."""
    inner = folder / "train"
    divided = inner.is_dir()
    place = inner if divided else folder
    classes = class_names(said) if said is not None else _class_folders(place)
    train = _by_class(place, classes)
    return classes, train, _test_listing(folder, classes) if divided else None


def _class_folders(folder: Path) -> tuple[str, ...]:
    """Returns the names of the subfolders in order."""
    return tuple(
        sorted(
            place.name
            for place in folder.iterdir()
            if place.is_dir() and not place.name.startswith(".")
        )
    )


def _by_class(folder: Path, classes: tuple[str, ...]) -> Listing:
    """Returns the images of a folder with their labels, in the order of their file names."""
    found = _class_folders(folder)
    if found == ():
        raise UserError(
            f"{folder} has no subfolders: images must be sorted into one folder per class, such as {folder}/cat/1.png."
        )
    strange = [name for name in found if name not in classes]
    if strange:
        raise UserError(
            f"{folder / strange[0]} is none of the classes {', '.join(classes[:PROPOSED])}. Move it away, or add it to them."
        )
    placed: dict[str, tuple[Path, int]] = {}
    for name in found:
        for path in _images_of(folder / name):
            if path.name in placed:
                raise _same_name(placed[path.name][0], path)
            placed[path.name] = path, classes.index(name)
    if placed == {}:
        raise UserError(
            f"{folder} holds no images in its subfolders ({', '.join(sorted(SUFFIXES))})."
        )
    return [placed[name] for name in sorted(placed)]


def _same_name(one: Path, other: Path) -> UserError:
    return UserError(
        f"{one} and {other} have one name: an image's name is its place in the data whatever its class, so that changing the class "
        "of one image moves no other. Give every image a name of its own, such as a running number over all classes."
    )


def _images_of(folder: Path) -> list[Path]:
    inner = folder / "images" if (folder / "images").is_dir() else folder
    return sorted(
        path
        for path in inner.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )


def _test_listing(folder: Path, classes: tuple[str, ...]) -> Listing:
    if (folder / "val" / ANNOTATIONS).is_file():
        return _annotated(folder / "val", classes)
    place = next((folder / name for name in ("test", "val") if (folder / name).is_dir()), None)
    if place is None:
        raise UserError(
            f"{folder} has a folder train but neither test nor val. Add one of them, or move the classes up out of train."
        )
    return _by_class(place, classes)


def _annotated(folder: Path, classes: tuple[str, ...]) -> Listing:
    """TinyImageNet's validation images: a line of the annotations is file name, class, and a box that is not needed."""
    annotations = folder / ANNOTATIONS
    labels = {name: label for label, name in enumerate(classes)}
    listing = []
    with reading(annotations, "a list of image names and classes"):
        for number, line in enumerate(annotations.read_text().splitlines(), start=1):
            file, name = line.split("\t")[:2]
            if name not in labels:
                raise damaged(
                    annotations,
                    "a list of image names and classes",
                    f"line {number} names class {name!r}, which is none of the classes",
                )
            listing.append((folder / "images" / file, labels[name]))
    return listing


def _common_shape(paths: Sequence[Path]) -> tuple[int, int, int]:
    """Channels, height and width of all images, from their headers alone."""
    from PIL import Image

    sizes = []
    first_mode = ""
    for path in paths:
        with reading(path, "an image"), Image.open(path) as picture:
            sizes.append(picture.size)
            first_mode = first_mode or picture.mode
            if picture.mode not in GREY | COLOUR:
                raise damaged(path, "an image of 8 bits per channel", f"its mode is {picture.mode}")
            if picture.size != sizes[0]:
                (width, height), (wide, high) = picture.size, sizes[0]
                raise UserError(
                    f"{path} has {width} x {height} pixels, but {paths[0]} has {wide} x {high}. Resize all images to one size."
                )
            if (picture.mode in GREY) != (first_mode in GREY):
                raise _mixed(path, picture.mode, paths[0], first_mode)
    width, height = sizes[0]
    return (1 if first_mode in GREY else 3), height, width


def _mixed(path: Path, mode: str, first: Path, first_mode: str) -> UserError:
    return UserError(
        f"{path} is {_tone(mode)}, but {first} is {_tone(first_mode)}. Save all images as grey or all in colour: one image "
        "must not decide how the others are read."
    )


def _tone(mode: str) -> str:
    return "grey" if mode in GREY else "in colour"


def _read(listing: Listing, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image

    images = np.empty((len(listing), *shape), dtype=np.uint8)
    for place, (path, _) in enumerate(listing):
        with reading(path, "an image"), Image.open(path) as picture:
            pixels = np.asarray(picture.convert("L" if shape[0] == 1 else "RGB"))
            images[place] = pixels if shape[0] == 1 else pixels.transpose(2, 0, 1)
    return images, np.array([label for _, label in listing], dtype=np.int64)

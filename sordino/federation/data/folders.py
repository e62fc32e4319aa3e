"""A folder of images as a data set: one subfolder per class, with or without a test part, TinyImageNet's layout included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sordino.federation.data.dataset import Dataset, split
from sordino.federation.data.formats import damaged, reading
from sordino.federation.data.images import centred, image_set
from sordino.protocol import UserError

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
GREY = {"1", "L"}
COLOUR = {"P", "RGB", "RGBA", "LA", "CMYK", "YCbCr"}
ANNOTATIONS = "val_annotations.txt"
Listing = list[tuple[Path, int]]  # image files and their labels


def load_folder(folder: Path) -> Dataset:
    """Images sorted into folders by class, all of one size; colour if any of them is.

    Understood are `class/*.png`, of which a fifth is held out for testing; `train/class/*.png` with `test/` or `val/` like it; and
    TinyImageNet's `train/class/images/*.JPEG` with the labels of `val/images` in `val/val_annotations.txt`. Files that are no images
    are passed over.

    Raises:
        UserError: no classes, a class without images, an image that cannot be read or has another size.
    """
    with reading(folder, "a folder of images"):
        classes, train, test = _listings(folder)
    shape = _common_shape([path for path, _ in train + test])
    name = folder.resolve().name
    return image_set(name, _read(train, shape), _read(test, shape), classes, centred(shape[0]))


def _listings(folder: Path) -> tuple[tuple[str, ...], Listing, Listing]:
    """Classes, training images and test images."""
    if (folder / "train").is_dir():
        classes, train = _by_class(folder / "train")
        return classes, train, _test_listing(folder, classes)
    classes, everything = _by_class(folder)
    kept, held_out = split(np.array([label for _, label in everything]))
    return classes, [everything[place] for place in kept], [everything[place] for place in held_out]


def _by_class(
    folder: Path, classes: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], Listing]:
    """The classes of a folder and its images with their labels; `classes` are those that are known already."""
    found = tuple(
        sorted(
            place.name
            for place in folder.iterdir()
            if place.is_dir() and not place.name.startswith(".")
        )
    )
    if found == ():
        raise UserError(
            f"{folder} has no subfolders: images must be sorted into one folder per class, such as {folder}/cat/1.png."
        )
    known = found if classes is None else classes
    strange = [name for name in found if name not in known]
    if strange:
        raise UserError(
            f"{folder / strange[0]} is a class without training images. Allowed here are the folders {', '.join(known[:20])}."
        )
    listing = []
    for name in found:
        images = _images_of(folder / name)
        if images == []:
            raise UserError(
                f"{folder / name} holds no images. Each class needs some ({', '.join(sorted(SUFFIXES))})."
            )
        listing += [(path, known.index(name)) for path in images]
    return known, listing


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
    return _by_class(place, classes)[1]


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
                    f"line {number} names class {name!r}, which train lacks",
                )
            listing.append((folder / "images" / file, labels[name]))
    return listing


def _common_shape(paths: Sequence[Path]) -> tuple[int, int, int]:
    """Channels, height and width of all images, from their headers alone."""
    from PIL import Image

    sizes, modes = [], set()
    for path in paths:
        with reading(path, "an image"), Image.open(path) as picture:
            sizes.append(picture.size)
            modes.add(picture.mode)
            if picture.mode not in GREY | COLOUR:
                raise damaged(path, "an image of 8 bits per channel", f"its mode is {picture.mode}")
            if picture.size != sizes[0]:
                (width, height), (wide, high) = picture.size, sizes[0]
                raise UserError(
                    f"{path} has {width} x {height} pixels, but {paths[0]} has {wide} x {high}. Resize all images to one size."
                )
    width, height = sizes[0]
    return (1 if modes <= GREY else 3), height, width


def _read(listing: Listing, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image

    images = np.empty((len(listing), *shape), dtype=np.uint8)
    for place, (path, _) in enumerate(listing):
        with reading(path, "an image"), Image.open(path) as picture:
            pixels = np.asarray(picture.convert("L" if shape[0] == 1 else "RGB"))
            images[place] = pixels if shape[0] == 1 else pixels.transpose(2, 0, 1)
    return images, np.array([label for _, label in listing], dtype=np.int64)

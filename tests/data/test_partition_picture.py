"""The picture of a partition: right numbers in it, every format, few and many clients."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sordino.data import draw_partition
from sordino.data.picture import _draw_map
from sordino.protocol import UserError


def counts(clients: int, labels: int) -> np.ndarray:
    generator = np.random.default_rng(5)
    return generator.multinomial(100, generator.dirichlet(np.full(labels, 0.3), size=clients))


@pytest.mark.parametrize(("clients", "labels"), [(1, 1), (7, 2), (50, 10), (500, 10), (100, 200)])
def test_few_and_many_clients_fit(tmp_path: Path, clients: int, labels: int) -> None:
    draw_partition(
        counts(clients, labels), [f"label {k}" for k in range(labels)], tmp_path / "p.png"
    )
    with Image.open(tmp_path / "p.png") as picture:
        assert max(picture.size) < 2400
        assert len(set(picture.convert("L").resize((60, 60)).tobytes())) > 5  # not blank


@pytest.mark.parametrize(
    ("suffix", "magic"),
    [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89PNG")],
)
def test_formats(tmp_path: Path, suffix: str, magic: bytes) -> None:
    draw_partition(counts(7, 3), ("a", "b", "c"), tmp_path / f"p.{suffix}")
    assert (tmp_path / f"p.{suffix}").read_bytes().startswith(magic)


def test_cells_show_the_counts_client_by_client() -> None:
    shown = counts(7, 3)
    body = _draw_map(shown, ("a", "b", "c")).axes[0]
    assert np.array_equal(body.images[0].get_array().filled(0), shown.T)
    written = {
        (int(text.get_position()[0]), int(text.get_position()[1])): int(text.get_text())
        for text in body.texts
    }
    assert written == {
        (client, label): shown[client, label] for client, label in np.argwhere(shown > 0).tolist()
    }
    assert [label.get_text() for label in body.get_yticklabels()] == ["a", "b", "c"]
    assert (body.get_xlabel(), body.get_ylabel()) == ("client", "label")
    assert body.get_title(loc="left") == "700 training records of 7 clients, 100 each"


def test_clients_of_unequal_size_get_a_bar_each() -> None:
    shown = np.array([[3, 4], [10, 0], [0, 1]])
    heights = [
        [bar.get_height() for bar in axes.patches] for axes in _draw_map(shown, ("a", "b")).axes
    ]
    assert [7, 10, 1] in heights


def test_regression_is_drawn_as_bars(tmp_path: Path) -> None:
    draw_partition(np.array([[1095]] * 7), None, tmp_path / "wind.svg")
    assert (tmp_path / "wind.svg").stat().st_size > 1000


def test_the_global_state_of_pyplot_is_left_alone(tmp_path: Path) -> None:
    import matplotlib.pyplot

    draw_partition(counts(7, 3), ("a", "b", "c"), tmp_path / "p.png")
    assert matplotlib.pyplot.get_fignums() == []


def test_other_formats_and_unwritable_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in \.png, \.svg, \.pdf"):
        draw_partition(counts(7, 3), ("a", "b", "c"), tmp_path / "p.jpg")
    with pytest.raises(UserError, match="cannot be written: No such file or directory"):
        draw_partition(counts(7, 3), ("a", "b", "c"), tmp_path / "nowhere" / "p.png")

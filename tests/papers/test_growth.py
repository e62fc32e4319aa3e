"""The picture of Table 3, and the page of the documentation."""

import itertools

import pytest

from sordino.papers.catalogue import as_markdown
from sordino.papers.growth import draw_growth, rates_by_rounds, rates_by_steps, spread_labels
from sordino.protocol import UserError
from tests.support import REPOSITORY


def test_every_rate_is_1_at_first() -> None:
    for rate in [*rates_by_rounds(), *rates_by_steps()]:
        assert rate.growth([1]) == [1.0]


def test_what_is_certified_grows_as_it_should() -> None:
    grown = {rate.label: rate.growth([1, 100, 1000]) for rate in rates_by_rounds()}
    assert grown["certified, constant rate, every view: √T"][2] == pytest.approx(1000**0.5)
    assert grown["certified, stage-wise rate, every view"][2] == pytest.approx(
        1.2821, abs=1e-4
    )  # below pi/sqrt(6)
    assert grown["certified, stage-wise, final view, L vouched"][2] < 0.9
    assert grown["certified, clipped linear model, final view"][1] == pytest.approx(
        ((1 + 0.95**5) / (1 - 0.95**5)) ** 0.5, rel=1e-6
    )


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_picture_is_drawn(tmp_path, suffix) -> None:
    path = tmp_path / f"growth{suffix}"
    draw_growth(path)
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize("name", ["growth.gif", "nowhere/growth.png"])
def test_a_place_where_no_picture_can_be_is_refused(tmp_path, name) -> None:
    with pytest.raises(UserError, match="picture"):
        draw_growth(tmp_path / name)


def test_labels_keep_their_distance_and_order() -> None:
    places = spread_labels([0.2, 0.21, 0.22, 0.9, 0.1], gap=0.05)
    assert sorted(range(5), key=lambda i: places[i]) == [4, 0, 1, 2, 3]
    assert min(high - low for low, high in itertools.pairwise(sorted(places))) >= 0.05 - 1e-12


def test_the_table_of_the_page_is_the_catalogue() -> None:
    assert as_markdown() in (REPOSITORY / "docs" / "papers.md").read_text()

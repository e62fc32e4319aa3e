"""The table of tightness in docs/tightness.md: as kept, as certified today, and never below what is known to be true."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest

import sordino
from experiments.tightness import DELTA, all_rows, as_table, read_kept
from sordino import certify
from sordino.protocol import View
from sordino.protocol.rule_kinds import LocalRule
from sordino.protocol.views import ViewKind

ROWS = all_rows()
EXPLAINED = 1.3


def test_the_page_holds_the_kept_table() -> None:
    page = (Path(__file__).parents[1] / "docs" / "tightness.md").read_text()
    assert as_table(read_kept()) in page


def test_the_kept_table_has_every_row() -> None:
    kept = [(row["bound"], row["setting"], row["view"]) for row in read_kept()]
    assert kept == [(row.bound, row.setting, row.view) for row in ROWS]


@pytest.mark.parametrize("place", range(len(ROWS)), ids=lambda place: ROWS[place].setting)
def test_a_row_is_what_is_certified_today(place: int) -> None:
    row, kept = ROWS[place], read_kept()[place]
    guarantee = certify(row.protocol, row.view, row.unit, delta=DELTA)
    assert guarantee.method == row.bound
    assert float(kept["certified"]) == pytest.approx(guarantee.epsilon(DELTA), rel=1e-3)
    # Both numbers are rounded to four digits.
    assert float(kept["at least"]) <= guarantee.epsilon(DELTA) * (1 + 1e-3)


def test_what_is_far_from_a_true_value_is_named_on_the_page() -> None:
    far = [row["setting"] for row in read_kept() if float(row["ratio"]) > EXPLAINED]
    assert len(far) == 4
    page = (Path(__file__).parents[1] / "docs" / "tightness.md").read_text()
    assert "Four rows are above 1.3" in page


# What is said where there is nothing to measure.
EMPTY = {"", "no noise", "no claim", "no bound", "no limit", "nothing released", "trusted server"}


def test_every_method_of_certify_has_a_row() -> None:
    rooms = Path(sordino.__file__).parent / "privacy"
    named = set()
    for path in rooms.rglob("*.py"):
        module = ast.parse(path.read_text())
        constants = {}
        for node in module.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                constants[ast.unparse(node.targets[0])] = node.value.value
        for node in ast.walk(module):
            if not isinstance(node, ast.keyword) or node.arg != "method":
                continue
            if isinstance(node.value, ast.Constant):
                named.add(node.value.value)
            elif ast.unparse(node.value) in constants:
                named.add(constants[ast.unparse(node.value)])
    assert {row.bound for row in ROWS} == named - EMPTY


def test_every_local_rule_has_a_row() -> None:
    assert {type(row.protocol.local) for row in ROWS} == set(get_args(LocalRule))


def test_every_kind_of_adversary_has_a_row() -> None:
    assert {View.parse(row.view).kind for row in ROWS} == set(get_args(ViewKind))

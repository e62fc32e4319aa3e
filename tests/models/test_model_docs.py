"""The table of models in the documentation is true."""

import math
import re
from pathlib import Path

from sordino.models import KNOWN, build_model, parameter_count

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
ROW = re.compile(r"^\| `([\w-]+)` \| \(([\d, ]+)\) \| (\d+) \| ([\d,]+) \|", re.MULTILINE)


def test_the_table_is_complete_and_true():
    rows = ROW.findall(PAGE.read_text())
    assert [name for name, *_ in rows] == list(KNOWN)
    for name, shape, outputs, count in rows:
        record = tuple(int(size) for size in shape.split(",") if size.strip())
        assert math.prod(record) > 0
        assert parameter_count(build_model(name, record, int(outputs), seed=0)) == int(
            count.replace(",", "")
        )

"""Hypothesis: no time limit per example, since machines differ, and the same examples every time.

`HYPOTHESIS_PROFILE=search pytest` looks for new ones.
"""

import os

import pytest
from hypothesis import settings

# Tests start hundreds of interpreters. Where the shell forbids compiled modules to be kept, each of
# them would compile numpy, scipy and torch again, which takes longer than what is tested.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("repeat", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


@pytest.fixture(autouse=True)
def _reports_are_written_where_they_are_tested(request, monkeypatch) -> None:
    """Every training ends with a report, which takes a second or two, and hundreds of tests train."""
    if "report" not in request.path.parts:
        monkeypatch.setattr("sordino.report.writing.write_final_report", lambda run, say: None)


@pytest.fixture(autouse=True)
def _features_are_cached_beside_the_test(monkeypatch, tmp_path_factory) -> None:
    """Tests leave nothing in the cache folder of whoever runs them."""
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))

"""Where the tests find real data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import real_data_folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    return real_data_folder()


@pytest.fixture(autouse=True)
def _no_ambient_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test says itself where its data are: neither the shell nor this machine's packages decide its outcome."""
    monkeypatch.delenv("SORDINO_DATA", raising=False)
    monkeypatch.setattr("sordino.data.images.DEBIAN", "/nowhere/fashion-mnist")

"""Where the tests find real data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    folder = Path(os.environ.get("SORDINO_DATA") or BESIDE)
    if not folder.is_dir():
        pytest.skip(f"no real data: SORDINO_DATA is not set and {BESIDE} is not there")
    return folder


@pytest.fixture(autouse=True)
def _no_ambient_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test says itself where its data are: neither the shell nor this machine's packages decide its outcome."""
    monkeypatch.delenv("SORDINO_DATA", raising=False)
    monkeypatch.setattr("sordino.federation.data.images.DEBIAN", "/nowhere/fashion-mnist")

"""The stages of a round follow one another: none of them runs inside another."""

from __future__ import annotations

import traceback
from pathlib import Path

import numpy as np
import pytest

from sordino.engines.torch_engine import TorchEngine
from sordino.federation import round as round_module
from sordino.federation.client import ClientWork
from sordino.federation.round import play_training
from sordino.federation.setup import prepare
from sordino.federation.upload import Upload
from tests.support import toy_dataset, toy_protocol


def find_traceback_files(error: type[Exception]) -> list[Path]:
    """The files from the call of a round that fails to the place where it failed."""
    setup = prepare(toy_protocol(rounds=1), data=toy_dataset(), model="logistic")
    with (
        TorchEngine(setup, workers=1) as engine,
        pytest.raises(error) as caught,
    ):
        list(play_training(setup, engine, 1))
    frames = traceback.extract_tb(caught.value.__traceback__)
    return [Path(frame.filename) for frame in frames]


def test_a_failing_clients_traceback_does_not_lead_through_what_the_server_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = ClientWork.upload

    # Of the third client: by then the server has joined two uploads.
    def fail_late(self: ClientWork, *, client: int, **task: object) -> Upload:
        if client == 2:
            raise ZeroDivisionError
        return whole(self, client=client, **task)  # type: ignore[arg-type]

    monkeypatch.setattr(ClientWork, "upload", fail_late)
    files = find_traceback_files(ZeroDivisionError)
    assert {"round", "torch_engine"} <= {file.stem for file in files}
    assert not {"aggregation", "channels"} & {file.parent.name for file in files}


def test_a_failing_means_traceback_leads_through_it_and_through_no_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One weight for all uploads: the second one that the mean takes fails there.
    monkeypatch.setattr(round_module.Round, "_weigh_uploads", lambda self: np.ones(1))
    files = find_traceback_files(IndexError)
    assert "aggregation" in {file.parent.name for file in files}
    assert "torch_engine" not in {file.stem for file in files}

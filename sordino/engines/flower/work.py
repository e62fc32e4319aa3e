"""The local work of one round, on the client's own machine and records: what `federation/client.py` does, for one client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from sordino.engines.flower.agreement import Agreement
from sordino.engines.flower.requests import HELPER, MODEL, Request
from sordino.engines.torch_engine import single_threaded
from sordino.federation import personal
from sordino.federation.assignment import Upload
from sordino.federation.client import ClientWork
from sordino.federation.data import load_dataset
from sordino.federation.personal import Kept, keeps_state
from sordino.federation.setup import Setup, prepare
from sordino.protocol import Mean, ModeConnectivity, Protocol, UserError, loads


def local_upload(request: Request, agreement: Agreement, kept: Mapping[str, np.ndarray]) -> Upload:
    """Train on the client's records, clip, and add noise. With `noise.secure` the noise comes from this machine's own entropy."""
    setup = own_setup(loads(request.protocol), agreement)
    weights, expected = request.arrays[MODEL], setup.initial_weights()
    for given in request.arrays.values():
        if given.dtype != expected.dtype or given.shape[-1:] != expected.shape or given.ndim > 2 or not np.isfinite(given).all():
            raise UserError(f"a model of shape {given.shape} was received; expected are {expected.size} finite {expected.dtype} numbers.")
    own: Kept | None = None
    if keeps_state(setup.protocol):
        helper = {personal.HELPER: request.arrays[HELPER]} if HELPER in request.arrays else {}
        own = {**kept, **helper}
    with single_threaded():
        return ClientWork(setup).upload(client=agreement.client, round=request.round, weights=weights, kept=own)


def own_setup(protocol: Protocol, agreement: Agreement) -> Setup:
    """A protocol made concrete on a client's machine. The client's own records stand for everyone's: it never does others' work.

    Raises:
        UserError: the records are not as many as was agreed.
    """
    if isinstance(protocol.aggregation, ModeConnectivity):
        protocol = replace(protocol, aggregation=Mean())  # joining uploads is the server's affair, and so are its public records
    if agreement.data is None:
        setup = prepare(protocol)
    else:
        dataset = load_dataset(agreement.data)
        count = protocol.data.records if protocol.data is not None and protocol.data.records is not None else len(dataset.y_train)
        if count > len(dataset.y_train):
            raise UserError(f"{agreement.data} has {len(dataset.y_train)} records; data.records = {count} are needed.")
        setup = prepare(protocol, data=dataset, parts=(np.arange(count),) * protocol.clients)
    if setup.sizes[agreement.client] != agreement.records:
        raise UserError(f"there are {setup.sizes[agreement.client]} records; {agreement.records} were agreed to.")
    return setup


def own_records(protocol: Protocol, client: int, data: Path | None) -> int:
    """How many records a client has: of its own file, or its share of the protocol's data."""
    if client >= protocol.clients:
        raise UserError(f"client {client} is none of the protocol's: its clients are 0 to {protocol.clients - 1}.")
    if data is None:
        return int(prepare(protocol).sizes[client])
    count = len(load_dataset(str(data)).y_train)
    wanted = protocol.data.records if protocol.data is not None else None
    return count if wanted is None else wanted

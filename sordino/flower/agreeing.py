"""Makes a client's agreement: from its terms, or from the consortium.toml that has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sordino.flower.agreement import Agreement, make_path_absolute
from sordino.flower.app_pinning import compute_app_digest
from sordino.flower.client_keys import list_fingerprints
from sordino.flower.client_store import ClientStore
from sordino.flower.consortium import Client
from sordino.flower.ledger_counter import name_counter
from sordino.flower.local_work import count_own_records, measure_model
from sordino.protocol import UserError, read_protocol
from sordino.protocol.version import own_version


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of a client's agreement, with paths as they were typed.

    Attributes:
        protocol: The protocol that the client agrees to.
        client: The number of the client in the protocol, from 0.
        data: The file of its own records; None for its share of the protocol's data.
        epsilon: The largest epsilon of its uploads, against the server; None for no limit.
        delta: The delta of that epsilon.
        unit: What is hidden, "record" or "client".
        superlink: The host and port of the SuperLink.
        certificate: The file of the authority that signed the SuperLink's certificate.
        key: The file of its node's private key.
        clients: The coordinator's list of all clients' keys, for secure aggregation.
        app: The folder of the Flower app that may run; None for Sordino's own.
        counter: The file outside the client's folder that remembers how far its ledger had come;
            None for one in the user's state folder.
        seeded: Whether noise from the protocol's seed is allowed.
    """

    protocol: Path
    client: int
    data: Path | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    unit: str = "record"
    superlink: str | None = None
    certificate: Path | None = None
    key: Path | None = None
    clients: Path | None = None
    app: Path | None = None
    counter: Path | None = None
    seeded: bool = False


def make_agreement(folder: Path, terms: Terms) -> ClientStore:
    """Makes the folder of a client that agrees to a protocol.

    Args:
        folder: The folder to make, which answers nothing else.
        terms: The terms of the agreement.

    Returns:
        The client's folder.

    Raises:
        UserError: The protocol, the records or a file of the terms cannot be used, or there is an
            agreement in the folder.
    """
    # Nodes are started in other folders, where a relative path would mean another file.
    plan = make_path_absolute(read_protocol(terms.protocol))
    fingerprints = None
    if terms.clients is not None:
        fingerprints = list_fingerprints(terms.clients)
    agreement = Agreement(
        client=terms.client,
        # Counted here, on the client's own machine: nobody else has to see the records.
        records=count_own_records(plan, terms.client, terms.data),
        data=_make_absolute(terms.data),
        epsilon=terms.epsilon,
        delta=terms.delta,
        unit=terms.unit,
        seeded=terms.seeded,
        # Pinned: code that was not looked at must not run on the records.
        app=compute_app_digest(terms.app),
        superlink=terms.superlink,
        certificate=_make_absolute(terms.certificate),
        key=_make_absolute(terms.key),
        # Kept in the agreement itself: a list that the coordinator changes later changes nothing.
        clients=fingerprints,
        # Outside of the folder, so that a restored backup of the folder is noticed.
        counter=str((terms.counter or name_counter()).resolve()),
        version=own_version(),
    )
    # The size of the model needs the records' shape, and so an agreement that names them.
    return ClientStore.create(folder, measure_model(plan, agreement), plan)


def find_terms(place: Path, party: Client) -> Terms:
    """Returns the terms that a client's consortium.toml states.

    Args:
        place: The folder of the file, from which its paths are meant.
        party: The contents of the file.

    Raises:
        UserError: A file that the coordinator sends has not arrived.
    """
    for received in (place / party.certificate, place / party.protocol):
        if not received.is_file():
            raise UserError(f"there is no {received}. Ask the coordinator for it.")
    return Terms(
        protocol=place / party.protocol,
        client=party.client,
        data=_find_beside(place, party.data),
        epsilon=party.epsilon,
        delta=party.delta,
        unit=party.unit,
        superlink=party.superlink,
        certificate=place / party.certificate,
        key=place / party.key,
        clients=_find_beside(place, party.clients),
        counter=_find_beside(place, party.counter),
        seeded=party.seeded,
    )


def _find_beside(place: Path, name: str | None) -> Path | None:
    """Returns the path of a file that is named from a folder; None for no file."""
    if name is None:
        return None
    return place / name


def _make_absolute(path: Path | None) -> str | None:
    """Returns a path that holds wherever a node is started; None for no path."""
    if path is None:
        return None
    return str(path.absolute())

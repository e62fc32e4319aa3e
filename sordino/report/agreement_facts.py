"""Says in words what a client has agreed to, and what that costs it at most."""

from __future__ import annotations

from sordino.data.table_columns import describe_column
from sordino.flower.admission import count_affordable_rounds
from sordino.flower.agreement import Agreement, state_model_size
from sordino.flower.client_store import ClientStore
from sordino.flower.local_work import load_own_dataset
from sordino.privacy.guarantee import epsilon_in_words, format_delta
from sordino.protocol import Protocol
from sordino.protocol.errors import format_command
from sordino.report.phrasing import describe_protocol, find_known_grid


def list_agreement_facts(store: ClientStore) -> list[tuple[str, str]]:
    """Lists what a client has agreed to, before it answers anything.

    Args:
        store: The client's folder.

    Returns:
        Pairs of a word and a text.
    """
    agreement = store.agreement
    protocol = store.agreed
    cap = count_affordable_rounds(store, protocol)
    limit = "no limit"
    if agreement.epsilon is not None:
        limit = f"epsilon = {agreement.epsilon:g} at delta = {format_delta(agreement.delta)}"
    bound = epsilon_in_words(store.compute_guarantee(range(cap)).epsilon(agreement.delta))
    return [
        ("Agreed", f"client {agreement.client}: {describe_protocol(protocol)}"),
        ("Records", f"{agreement.records}, of {_describe_source(protocol, agreement.data)}"),
        *_list_labels(protocol, agreement.data),
        ("Budget", f"{limit}: {cap} of {protocol.rounds} rounds fit"),
        (
            "Server",
            f"learns at most epsilon = {bound} about one {agreement.unit}, "
            f"{_describe_hiding(protocol)}",
        ),
        ("Noise", _describe_noise(protocol, agreement)),
        ("Folder", f"{store.folder}; next: {format_command('flower', 'node', store.folder)}"),
    ]


def _describe_noise(protocol: Protocol, agreement: Agreement) -> str:
    """Returns where the client's noise comes from, and the grid that it lies on."""
    noise = "from this machine's entropy"
    if agreement.seeded:
        noise = "from the protocol's seed, which anyone can subtract: for tests"
    grid = find_known_grid(state_model_size(protocol, agreement))
    if grid is None:
        return noise
    return f"{noise}; {grid.in_words}"


def _describe_hiding(protocol: Protocol) -> str:
    """Returns whose noise hides a client from the server."""
    secure = protocol.release.secure_sum
    if secure is None:
        return "only by this client's noise"
    honest = secure.threshold - secure.colluders
    return (
        f"by the noise of at least {honest} honest clients: it sees only sums, of at least "
        f"{secure.threshold} uploads, and up to {secure.colluders} clients may help it"
    )


def _describe_source(protocol: Protocol, data: str | None) -> str:
    """Returns where a client's records come from: its own file, or a share of the data."""
    if data is not None:
        return data
    if protocol.data is None:
        return "its share of the data"
    return f"its share of {protocol.data.name}"


def _list_labels(protocol: Protocol, data: str | None) -> list[tuple[str, str]]:
    """Lists the labels and the input columns of a client's own file, as the protocol has them."""
    if data is None:
        return []
    dataset = load_own_dataset(protocol, data)
    described = None
    if protocol.data is not None:
        described = protocol.data.described_columns
    agreed = {}
    if dataset.classes is not None:
        agreed["Labels"] = ", ".join(dataset.classes)
    # Limits and values for gaps are part of what is agreed to, and not only names.
    if described is not None:
        agreed["Columns"] = "; ".join(describe_column(column) for column in described)
    elif dataset.inputs is not None:
        agreed["Columns"] = ", ".join(dataset.inputs)
    said = "agreed to in the protocol, in this order"
    return [(name, f"{words}; {said}") for name, words in agreed.items()]

"""Describes what a client has agreed to, and finds out whether a protocol protects less."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sordino.data import find_agreed_classes
from sordino.federation.store.files import write_whole, writing
from sordino.mechanisms import mechanism_of
from sordino.protocol import UNITS, ClientBudget, Noise, Protocol, UserError, dumps
from sordino.protocol.addresses import Address
from sordino.protocol.entries import Value, decode_table, encode_table, entry
from sordino.protocol.file import parse_toml, toml_table
from sordino.protocol.release import release_of
from sordino.protocol.value_checks import LARGEST, Choice, Flag, Integer, Maybe, Names, Number, Text
from sordino.secure_sums.key_roster import refuse_threshold

FILE = "agreement.toml"
# Entries that do not concern a client whose records are in its own file: the server's data set and
# its split.
SERVER_DATA = ("data.name", "data.partition")


@dataclass(frozen=True, kw_only=True)
class Agreement(Value):
    """Describes what one client has agreed to, in addition to the protocol.

    The entries are those of agreement.toml; each says below what it means.

    Example:
        >>> Agreement(client=2, records=480, epsilon=8.0).seeded
        False
    """

    client: int = entry(Integer(at_least=0), "number of the client in the protocol, from 0")
    records: int | None = entry(
        Maybe(Integer(at_least=1)),
        "how many records it has: public; left out: prices do not need it",
        None,
    )
    data: str | None = entry(
        Maybe(Text()),
        "file of its own records; left out: its share of the protocol's data, for tests",
        None,
    )
    epsilon: float | None = entry(
        Maybe(Number(above=0)),
        "largest epsilon of its uploads, against the server; left out: no limit",
        None,
    )
    delta: float = entry(Number(above=0, below=1), "at this delta", 1e-5)
    unit: str = entry(
        Choice(UNITS), "what is hidden: one record, or all records of the client", "record"
    )
    seeded: bool = entry(
        Flag(),
        "whether noise from the protocol's seed is allowed: for tests, since anyone who knows the "
        "seed can subtract it",
        False,
    )
    app: str | None = entry(
        Maybe(Text()), "SHA-256 of the Flower app that may run here; left out: any", None
    )
    superlink: str | None = entry(Maybe(Address()), "host and port of the SuperLink", None)
    certificate: str | None = entry(
        Maybe(Text()), "file of the authority that signed the SuperLink's certificate", None
    )
    key: str | None = entry(Maybe(Text()), "file of the node's private key", None)
    clients: tuple[str, ...] | None = entry(
        Maybe(Names()),
        "SHA-256 of every client's public key, in their order, for secure aggregation: nobody else "
        "is summed with; left out: this client takes part in no secure sum",
        None,
    )
    parameters: int | None = entry(
        Maybe(Integer(at_least=1)),
        "number of weights of the model; left out: any, and a model that does not fit is noticed "
        "late",
        None,
    )
    inputs: str | None = entry(
        Maybe(Text()),
        "number of inputs of a record, or the numbers of their axes; left out: a file with other "
        "columns than the coordinator's is noticed at the first round",
        None,
    )
    version: str | None = entry(
        Maybe(Text()),
        "version of Sordino that the agreement was made with; another one answers nothing; left "
        "out: any",
        None,
    )
    counter: str | None = entry(
        Maybe(Text()),
        "file outside of this folder that remembers how far the ledger had come; left out: none, "
        "and a folder restored from a backup is not noticed",
        None,
    )


def read_agreement(folder: Path) -> Agreement:
    """Returns the agreement in a client's folder.

    Args:
        folder: The client's own folder.

    Raises:
        UserError: There is none, or it cannot be read.
    """
    path = folder / FILE
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"there is no {FILE} in {folder}: make one with `sordino flower agree`."
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None
    # Unknown entries are refused: a misspelt `epsilon` would otherwise be an agreement without a
    # limit.
    agreed: Agreement = decode_table(Agreement, table.get("agreement"), "agreement")
    return agreed


def write_agreement(agreement: Agreement, folder: Path) -> None:
    """Writes an agreement to a client's folder.

    Args:
        agreement: The agreement.
        folder: The client's own folder.
    """
    with writing(folder / FILE):
        write_whole(folder / FILE, toml_table("agreement", encode_table(agreement)).encode())


def refuse_unsupported(protocol: Protocol) -> None:
    """Refuses protocols that separate machines cannot run, or cannot run safely.

    Args:
        protocol: The federation that the machines train.

    Raises:
        UserError: It needs one random point that all clients share, or the number of all clients'
            records; or a server that deviates could open two secure sums of a round.
    """
    secure = release_of(protocol).secure_sum
    if secure is not None:
        refuse_threshold(
            clients=protocol.clients, threshold=secure.threshold, colluders=secure.colluders
        )
    refuse_unstated_sizes(protocol)
    # Seeded machines draw the same point from the protocol's seed.
    if release_of(protocol).on_curve and protocol.noise.secure:
        raise UserError(
            'local.rule = "bezier" with noise.secure = true: all clients of a round send the same '
            "random point of a curve, and machines that draw from their own entropy cannot agree "
            'on one. Across machines use local.rule = "fedavg", or for a test noise.secure = '
            "false; on one machine it runs as it is, without --engine flower."
        )


def refuse_unstated_sizes(protocol: Protocol) -> None:
    """Refuses Poisson lots if the protocol does not state the clients' numbers of records.

    Args:
        protocol: The federation that the machines train.

    Raises:
        UserError: Records are drawn with one probability, and the file does not say of how many.
    """
    if protocol.draws_coins and protocol.stated_sizes is None:
        raise UserError(
            'local.rule = "dp-sgd" with sampling = "poisson": every record is drawn with '
            "probability local.batch / (mean records of a client), which a machine that knows its "
            "own records cannot compute. Add data.records or data.sizes, or use "
            'local.sampling = "fixed".'
        )


def make_path_absolute(protocol: Protocol) -> Protocol:
    """Returns a protocol whose data are found wherever Flower's processes are started.

    Args:
        protocol: The federation that the machines train.
    """
    data = protocol.data
    # Names of public sets are not paths, and stay as they are.
    if data is None or not Path(data.name).exists():
        return protocol
    return replace(protocol, data=replace(data, name=str(Path(data.name).absolute())))


def state_model_size(protocol: Protocol, agreement: Agreement) -> Protocol:
    """Returns a protocol that says how many weights its model has, where the client knows it.

    Args:
        protocol: The protocol, whose file may leave that open.
        agreement: What the client agreed to.
    """
    model = protocol.model
    if model is None or model.parameters is not None or agreement.parameters is None:
        return protocol
    return replace(protocol, model=replace(model, parameters=agreement.parameters))


def make_own_budget(agreement: Agreement, protocol: Protocol) -> ClientBudget:
    """Returns the client's own limit, with the mechanism that the protocol gives the client.

    Args:
        agreement: What the client agreed to.
        protocol: The federation that the machines train.

    Returns:
        The budget; without a limit in the agreement, one that nothing exceeds.
    """
    budget = ClientBudget(
        id=agreement.client,
        # Without a limit the budget still names the client's mechanism and unit.
        epsilon=LARGEST,
        delta=agreement.delta,
        unit=agreement.unit,
    )
    if agreement.epsilon is not None:
        budget = replace(budget, epsilon=agreement.epsilon)
    for named in protocol.client:
        if named.id == agreement.client:
            return replace(budget, mechanism=named.mechanism, noise=named.noise)
    return budget


def list_budgets(agreement: Agreement, protocol: Protocol) -> list[ClientBudget]:
    """Returns the budgets that a client enforces.

    Args:
        agreement: What the client agreed to.
        protocol: The federation that the machines train.

    Returns:
        The budget that the protocol gives the client, whose noise the server names, and its own.
    """
    # The protocol's budget and the client's own both hold: the stricter one ends the training.
    budgets = [budget for budget in protocol.client if budget.id == agreement.client]
    if agreement.epsilon is not None:
        budgets.append(make_own_budget(agreement, protocol))
    return budgets


def describe_weakening(agreed: Protocol, requested: Protocol, agreement: Agreement) -> str | None:
    """Returns why a protocol protects less than the one that was agreed to.

    Rounds may be fewer and the noise may be larger. A run may spell out what the file left open,
    and for a client with its own records the protocol's data are the server's concern. Everything
    else must be as agreed.

    Args:
        agreed: The protocol that was agreed to.
        requested: The protocol of a request.
        agreement: What else was agreed to.

    Returns:
        The first difference that matters, in words; None if there is none.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian, override_keys
        >>> local = FedAvg(steps=5, batch=8, clip=1.0, schedule=Constant(rate=0.1))
        >>> agreed = Protocol(clients=3, rounds=9, local=local, noise=Gaussian(sigma=1.0))
        >>> mine = Agreement(client=0, records=9)
        >>> more = override_keys(agreed, ["noise.sigma=2.0", "federation.rounds=5"])
        >>> describe_weakening(agreed, more, mine)
        >>> describe_weakening(agreed, override_keys(agreed, ["noise.sigma=0.5"]), mine)
        'noise.sigma = 0.5 was requested, and 1.0 was agreed to'
    """
    if agreement.data is not None and find_classes(agreed) != find_classes(requested):
        # Its labels would be held against another list, and whether they are in it would show.
        return (
            "other classes were requested than were agreed to (data.classes, or those of data.name)"
        )
    # Compared as the files have them, so that a new entry of a later version cannot be forgotten
    # here.
    before = dict(flatten_entries(parse_toml(dumps(agreed))))
    after = dict(flatten_entries(parse_toml(dumps(requested))))
    # Sorted, so that the same request is refused with the same words. The arithmetic of the noise
    # follows from other entries and comes last: if one of them differs, that one is named.
    for key in sorted({*before, *after}, key=lambda key: (key == "noise.arithmetic", key)):
        old = before.get(key)
        new = after.get(key)
        # Everything that is not listed as harmless counts as weaker: the safe side of a mistake.
        if old == new or may_differ(key, old, new, agreement):
            continue
        if not is_more_noise(agreed.noise, key, old, new):
            return f"{key} = {new!r} was requested, and {old!r} was agreed to"
    return None


def find_classes(protocol: Protocol) -> int | tuple[str, ...] | None:
    """Returns the classes that a protocol fixes for all parties.

    Args:
        protocol: The federation that the machines train.
    """
    if protocol.data is None:
        return None
    return find_agreed_classes(protocol.data)


def may_differ(key: str, agreed: Any, requested: Any, agreement: Agreement) -> bool:
    """Returns whether one entry may differ from what was agreed.

    Args:
        key: Whole name of the entry.
        agreed: Its agreed value; None where the file left it open.
        requested: Its value in a request; None where it is left out.
        agreement: What else was agreed to.
    """
    if key == "seed" or (agreement.data is not None and key.startswith(SERVER_DATA)):
        return True
    if agreed is None:
        # A run spells out what the file left open. A model's size is checked against the model,
        # a client's noise against its budget.
        own_noise = key.startswith("client.") and key.endswith(".noise")
        same_records = key == "data.records" and requested == agreement.records
        return key == "model.parameters" or own_noise or same_records
    if requested is None:
        return False
    if key == "noise.secure":
        # Fresh noise in place of seeded noise protects more.
        return requested is True
    # Fewer rounds release less.
    return key == "federation.rounds" and bool(requested <= agreed)


def is_more_noise(noise: Noise, key: str, agreed: Any, requested: Any) -> bool:
    """Returns whether an entry asks for more noise than was agreed.

    Args:
        noise: The agreed mechanism.
        key: Whole name of the entry.
        agreed: Its agreed value.
        requested: Its value in a request.
    """
    # Each mechanism names the one entry whose growth means more noise.
    if key != f"noise.{mechanism_of(noise).growing_entry}":
        return False
    if agreed is None or requested is None:
        return False
    return bool(requested >= agreed)


def flatten_entries(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the entries of a parsed file, each under its whole name.

    Args:
        document: A table, a list, or a value.
        path: Name of the document itself.

    Yields:
        Names and values.
    """
    items: Iterable[tuple[Any, Any]]
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    else:
        yield path, document
        return
    for key, inner in items:
        name = str(key)
        if path:
            name = f"{path}.{key}"
        yield from flatten_entries(inner, name)

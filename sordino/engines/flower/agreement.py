"""What a client has agreed to: a protocol, a budget of its own, which code may run. It lies on the client's machine, and decides there."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sordino.federation.data import agreed_classes
from sordino.federation.storage import write_whole, writing
from sordino.protocol import UNITS, Bezier, ClientBudget, Custom, Noise, Protocol, UserError, dumps
from sordino.protocol.entries import (
    LARGEST,
    Choice,
    Flag,
    Integer,
    Maybe,
    Number,
    Text,
    Value,
    decode_table,
    encode_table,
    entry,
)
from sordino.protocol.file import parse, toml_table

FILE = "agreement.toml"
GROWS = ("noise.sigma", "noise.multiplier", "noise.scale")  # more noise than agreed is fine
OWN = ("data.name", "data.partition")  # what does not concern a client with records of its own


@dataclass(frozen=True, kw_only=True)
class Agreement(Value):
    """What one client has agreed to, beside the protocol.

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
        "whether noise from the protocol's seed is allowed: for tests, who knows the seed can subtract it",
        False,
    )
    app: str | None = entry(
        Maybe(Text()), "SHA-256 of the Flower app that may run here; left out: any", None
    )
    superlink: str | None = entry(Maybe(Text()), "host and port of the SuperLink", None)
    certificate: str | None = entry(
        Maybe(Text()), "file of the authority that signed the SuperLink's certificate", None
    )
    key: str | None = entry(Maybe(Text()), "file of the node's private key", None)
    parameters: int | None = entry(
        Maybe(Integer(at_least=1)),
        "number of weights of the model; left out: any, and a model that does not fit is noticed late",
        None,
    )
    version: str | None = entry(
        Maybe(Text()),
        "version of Sordino that the agreement was made with; another one answers nothing; left out: any",
        None,
    )
    counter: str | None = entry(
        Maybe(Text()),
        "file outside of this folder that remembers how far the ledger had come; left out: none, "
        "and a folder restored from a backup is not noticed",
        None,
    )


def read_agreement(folder: Path) -> Agreement:
    """The agreement in a client's folder."""
    path = folder / FILE
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"there is no {FILE} in {folder}: make one with `sordino flower agree`."
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None
    agreed: Agreement = decode_table(Agreement, table.get("agreement"), "agreement")
    return agreed


def write_agreement(agreement: Agreement, folder: Path) -> None:
    """Keep an agreement in a client's folder."""
    with writing(folder / FILE):
        write_whole(folder / FILE, toml_table("agreement", encode_table(agreement)).encode())


def refuse_across_machines(protocol: Protocol) -> None:
    """Refuse what machines that each draw from their own entropy cannot do together."""
    if isinstance(protocol.local, Bezier) and protocol.noise.secure:
        raise UserError(
            'local.rule = "bezier" with noise.secure = true: all clients of a round send the same random point of a curve, and machines '
            'that draw from their own entropy cannot agree on one. Across machines use local.rule = "fedavg", or for a test '
            "noise.secure = false; on one machine it runs as it is, without --engine flower."
        )


def with_whole_path(protocol: Protocol) -> Protocol:
    """The protocol with a path to its data that holds wherever Flower's processes are started."""
    data = protocol.data
    if data is None or not Path(data.name).exists():
        return protocol
    return replace(protocol, data=replace(data, name=str(Path(data.name).absolute())))


def own_budget(agreement: Agreement, protocol: Protocol) -> ClientBudget:
    """The client's own limit, with the mechanism that the protocol gives it; without a limit, one that nothing passes."""
    named = next((budget for budget in protocol.client if budget.id == agreement.client), None)
    mechanism, noise = (named.mechanism, named.noise) if named is not None else (None, None)
    epsilon = agreement.epsilon if agreement.epsilon is not None else LARGEST
    return ClientBudget(
        id=agreement.client,
        epsilon=epsilon,
        delta=agreement.delta,
        unit=agreement.unit,
        mechanism=mechanism,
        noise=noise,
    )


def limits_on(agreement: Agreement, protocol: Protocol) -> list[ClientBudget]:
    """The budgets that a client holds a protocol to: the one that the protocol gives it, whose noise the server names, and its own."""
    named = [budget for budget in protocol.client if budget.id == agreement.client]
    return named if agreement.epsilon is None else [*named, own_budget(agreement, protocol)]


def weaker(agreed: Protocol, asked: Protocol, agreement: Agreement) -> str | None:
    """Why a protocol is not the one that was agreed to, or one that protects more; None if it is.

    Rounds may be fewer and the noise may be larger. What a run spells out may be spelled out, and for a client with records of its own
    the protocol's data are the server's affair. Everything else must be as agreed.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian, overridden
        >>> local = FedAvg(steps=5, batch=8, clip=1.0, schedule=Constant(rate=0.1))
        >>> agreed, mine = Protocol(clients=3, rounds=9, local=local, noise=Gaussian(sigma=1.0)), Agreement(client=0, records=9)
        >>> weaker(agreed, overridden(agreed, ["noise.sigma=2.0", "federation.rounds=5"]), mine)
        >>> weaker(agreed, overridden(agreed, ["noise.sigma=0.5"]), mine)
        'noise.sigma = 0.5 was asked for, and 1.0 was agreed to'
    """
    if agreement.data is not None and classes_in(agreed) != classes_in(asked):
        # Its labels would be held against another list, and whether they are in it would show.
        return (
            "other classes were asked for than were agreed to (data.classes, or those of data.name)"
        )
    before, after = dict(flat(parse(dumps(agreed)))), dict(flat(parse(dumps(asked))))
    for key in sorted({*before, *after}):
        had, has = before.get(key), after.get(key)
        if (
            had != has
            and not allowed(key, had, has, agreement)
            and not more_noise(agreed.noise, key, had, has)
        ):
            return f"{key} = {has!r} was asked for, and {had!r} was agreed to"
    return None


def classes_in(protocol: Protocol) -> int | tuple[str, ...] | None:
    """Returns the classes that a protocol fixes for all parties."""
    return None if protocol.data is None else agreed_classes(protocol.data)


def allowed(key: str, agreed: Any, asked: Any, agreement: Agreement) -> bool:
    """Whether one entry may differ from what was agreed."""
    if key == "seed" or (agreement.data is not None and key.startswith(OWN)):
        return True
    if agreed is None:
        # What a run spells out where the file left it open: a model's size is held against the model, a client's noise against its budget.
        own_noise = key.startswith("client.") and key.endswith(".noise")
        return (
            key == "model.parameters"
            or own_noise
            or (key == "data.records" and asked == agreement.records)
        )
    if asked is None:
        return False
    if key == "noise.secure":
        return asked is True
    return key == "federation.rounds" and bool(asked <= agreed)


def more_noise(noise: Noise, key: str, agreed: Any, asked: Any) -> bool:
    """Whether an entry asks for more noise than was agreed. What the scale of noise of somebody's own means, its factory alone knows."""
    return (
        key in GROWS
        and not isinstance(noise, Custom)
        and None not in (agreed, asked)
        and bool(asked >= agreed)
    )


def flat(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of a parsed file, each under its whole name."""
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else None
    )
    if items is None:
        yield path, document
        return
    for key, inner in items:
        yield from flat(inner, f"{path}.{key}" if path else str(key))

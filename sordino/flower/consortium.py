"""Reads consortium.toml: what one party of a consortium runs."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.protocol import UNITS, UserError
from sordino.protocol.addresses import Address, Host, join_address, parse_ip
from sordino.protocol.entries import Value, decode_table, entry
from sordino.protocol.value_checks import Choice, Flag, Integer, Maybe, Number, Text

if TYPE_CHECKING:
    from sordino.flower.agreement import Agreement

FILE = "consortium.toml"
# The address at which every machine reaches itself.
LOOPBACK = "127.0.0.1"
LOOPBACK_6 = "::1"
# All addresses of this machine: of IPv4, and of both.
ALL_ADDRESSES = "0.0.0.0"
ALL_ADDRESSES_6 = "::"


@dataclass(frozen=True, kw_only=True)
class Coordinator(Value):
    """Describes what the coordinator runs: the SuperLink, for clients with registered keys.

    Example:
        >>> Coordinator(host="fl.example.org").listen
        '0.0.0.0'
    """

    host: str = entry(Host(), "name or address under which machines reach it", "127.0.0.1")
    port: int = entry(Integer(at_least=1, at_most=65535), "where it listens", 8000)
    keys: str = entry(Text(), "folder of clients' public keys: 0.pub, 1.pub, ...", "keys")
    metrics: int | None = entry(
        Maybe(Integer(at_least=1, at_most=65535)),
        "port of 127.0.0.1 that serves /metrics and /health; left out: none",
        None,
    )

    @property
    def listen(self) -> str:
        """The address to listen on."""
        found = parse_ip(LOOPBACK if self.host == "localhost" else self.host)
        # A port for tests must not be open to other machines.
        if found is not None and found.is_loopback:
            return str(found)
        if found is not None and found.version == 6:
            return ALL_ADDRESSES_6
        return ALL_ADDRESSES

    @property
    def own_host(self) -> str:
        """The address at which its own machine reaches it, whatever others call it."""
        return {ALL_ADDRESSES: LOOPBACK, ALL_ADDRESSES_6: LOOPBACK_6}.get(self.listen, self.listen)

    @property
    def address(self) -> str:
        """Where machines reach the SuperLink; its certificate has this name."""
        return join_address(self.host, self.port)


@dataclass(frozen=True, kw_only=True)
class Client(Value):
    """Describes what a client agrees to, and where its node connects to."""

    client: int = entry(Integer(at_least=0), "number of the client in the protocol, from 0")
    superlink: str = entry(Address(), "host and port of the SuperLink")
    data: str | None = entry(
        Maybe(Text()), "file of its own records; left out: its share of the protocol's", None
    )
    epsilon: float | None = entry(
        Maybe(Number(above=0)), "largest epsilon of its uploads, against the server", None
    )
    delta: float = entry(Number(above=0, below=1), "at this delta", 1e-5)
    unit: str = entry(Choice(UNITS), "what is hidden: one record, or all of the client's", "record")
    protocol: str = entry(Text(), "the protocol that it agrees to", "protocol.toml")
    certificate: str = entry(Text(), "the coordinator's authority", "ca.crt")
    key: str = entry(Text(), "its private key; made if it is missing", "node.key")
    clients: str | None = entry(
        Maybe(Text()),
        "the coordinator's clients.json, for secure aggregation; left out: none",
        None,
    )
    folder: str = entry(Text(), "where agreement, ledger and logs are kept", "mine")
    counter: str | None = entry(
        Maybe(Text()),
        "file outside of `folder` and its backups that remembers how far the ledger had come; left "
        "out: one in the user's state folder",
        None,
    )
    port: int = entry(Integer(at_least=1, at_most=65535), "of this machine, for its node", 9094)
    seeded: bool = entry(Flag(), "whether seeded noise is allowed: for tests", False)
    metrics: int | None = entry(
        Maybe(Integer(at_least=1, at_most=65535)),
        "port of 127.0.0.1 that serves /metrics and /health; left out: none",
        None,
    )


# What an agreement repeats of a client's file, and which of it are files.
TERMS = ("client", "superlink", "epsilon", "delta", "unit", "seeded")
FILES = ("data", "certificate", "key", "counter")

PARTIES: dict[str, type[Value]] = {"coordinator": Coordinator, "client": Client}


def read_consortium(place: Path) -> tuple[Path, Any]:
    """Reads what a party runs.

    Args:
        place: A consortium.toml, or the folder in which one lies.

    Returns:
        The folder of the file, to which its paths are relative, and a Coordinator or a Client.

    Raises:
        UserError: There is no file, or an entry of it is wrong.
    """
    path = place
    if place.is_dir():
        path = place / FILE
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"there is no {path}. It has one table, [coordinator] or [client]: see docs/flower.md."
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None
    # A party is one of the two. Both tables in one file would be a folder that was mixed up.
    if len(document) != 1 or not set(document) <= set(PARTIES):
        given = ", ".join(f"[{name}]" for name in document) or "nothing"
        raise UserError(f"{path} has {given}; it must have one table, [coordinator] or [client].")
    [(name, table)] = document.items()
    return path.parent.absolute(), decode_table(PARTIES[name], table, name)


def refuse_other_terms(place: Path, party: Client, agreement: Agreement) -> None:
    """Refuses a file that says other things than the agreement, which alone is enforced.

    Args:
        place: Folder of consortium.toml.
        party: What the file says.
        agreement: What was agreed to when the file was first used.

    Raises:
        UserError: They differ.
    """
    for name in TERMS:
        stated, agreed = getattr(party, name), getattr(agreement, name)
        if stated != agreed:
            raise UserError(describe_other_term(party, name, stated, agreed))
    for name in FILES:
        stated, agreed = getattr(party, name), getattr(agreement, name)
        # A counter that the file leaves out was named when it was agreed to.
        if stated is None and name == "counter":
            continue
        paths = [None if one is None else (place / one).resolve() for one in (stated, agreed)]
        if paths[0] != paths[1]:
            raise UserError(describe_other_term(party, name, stated, agreed))


def describe_other_term(party: Client, name: str, stated: object, agreed: object) -> str:
    """Returns the message about an entry that differs from the agreement.

    Args:
        party: What consortium.toml says.
        name: Name of the entry.
        stated: Its value there.
        agreed: Its value in the agreement.
    """
    return (
        f"{FILE} has {name} = {stated!r}, and {party.folder}/agreement.toml, which is "
        f"enforced, has {agreed!r}. Write it there too if you mean it (a training that has begun "
        "continues under the new terms, or not at all), or put it back; a new agreement needs "
        "another `folder`."
    )

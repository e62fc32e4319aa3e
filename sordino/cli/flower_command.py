"""The commands of `sordino flower`, for the coordinator and the clients of a consortium."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.arguments import Certificate, Insecure, Json, Unit
from sordino.cli.console import print_json, print_message, results
from sordino.cli.protocol_sources import example_text
from sordino.report.terminal_tables import facts_table

if TYPE_CHECKING:
    from sordino.flower.client_store import ClientStore
    from sordino.flower.consortium import Client

app = typer.Typer(help="Across machines: a federation on Flower.", no_args_is_help=True)

Place = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="The coordinator's folder, made by `sordino flower new`."),
]
Own = Annotated[Path, typer.Argument(metavar="FOLDER", help="The client's own folder.")]
ClientList = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The coordinator's clients.json, with the fingerprints of all clients' keys: for "
        "secure aggregation. Compare them with the other clients'.",
    ),
]
Counter = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Records outside FOLDER how far its ledger had come; by default a file in "
        "the user's state folder.",
    ),
]


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make.")],
    example: Annotated[
        str, typer.Option("--from", help="Built-in example to start from.")
    ] = "consortium",
) -> None:
    """Write the folder of a consortium: a protocol, a Flower app, and a README with every step."""
    from sordino.flower.new_consortium import write_consortium

    write_consortium(folder, example_text(example))
    results.print(
        f"Wrote {folder}. Next: read {folder / 'README.md'}, which has every step for every party.",
        soft_wrap=True,
    )


@app.command()
def certificates(
    folder: Place,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address under which machines reach the SuperLink; repeat it."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long they are valid.")] = 365,
) -> None:
    """Coordinator: make the SuperLink's certificate, and the authority that signed it."""
    from sordino.flower.certificates import add_own_names, write_certificates

    # For tests on one machine its own names are enough; otherwise a real name has to be given.
    hosts = add_own_names(host or [])
    write_certificates(folder / "certificates", hosts, days)
    results.print(
        f"Wrote {folder / 'certificates'} for {', '.join(hosts)}. "
        "Give ca.crt to every client; server.key stays here."
    )


@app.command()
def key(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="File of the private key.")],
) -> None:
    """Client: make a key pair for its node."""
    from sordino.flower.certificates import write_key

    results.print(
        f"Wrote {path} and {write_key(path)}. "
        "Give the second to the coordinator; the first stays here.",
        soft_wrap=True,
    )


@app.command()
def register(
    folder: Place,
    keys: Annotated[
        list[str],
        typer.Argument(
            metavar="[N=]KEY.pub...",
            help="Public keys of the clients; N is the client's number, by default the next.",
        ),
    ],
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the SuperLink listens.")
    ] = "127.0.0.1:8000",
) -> None:
    """Coordinator: tell the running SuperLink which nodes may connect."""
    from sordino.flower.flower_processes import register_clients

    rows = [
        (f"Client {client}", f"key {key[:16]}... may connect, and is this client from now on")
        for client, key in sorted(register_clients(folder, keys, superlink).items())
    ]
    results.print(facts_table(rows))


@app.command()
def agree(
    protocol: Annotated[
        Path,
        typer.Argument(metavar="PROTOCOL.toml", help="The protocol that the client agrees to."),
    ],
    folder: Own,
    client: Annotated[
        int, typer.Option(min=0, help="Which client of the protocol this is, from 0.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Its own records; without, its share of the protocol's data."
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Largest epsilon of its uploads, against the server.")
    ] = None,
    delta: Annotated[float, typer.Option(help="For --epsilon.")] = 1e-5,
    unit: Unit = "record",
    superlink: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the machines meet.")
    ] = None,
    certificate: Certificate = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key of its node.")
    ] = None,
    clients: ClientList = None,
    app: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Flower app that may run here; without, Sordino's own."),
    ] = None,
    counter: Counter = None,
    seeded: Annotated[
        bool, typer.Option("--seeded", help="Allow noise from the protocol's seed: for tests.")
    ] = False,
) -> None:
    """Client: agree to a protocol. The folder that this makes answers nothing else."""
    from sordino.flower.agreeing import Terms, make_agreement
    from sordino.flower.flower_commands import require_flower

    require_flower()
    terms = Terms(
        protocol=protocol,
        client=client,
        data=data,
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        superlink=superlink,
        certificate=certificate,
        key=key,
        clients=clients,
        app=app,
        counter=counter,
        seeded=seeded,
    )
    show_agreement(make_agreement(folder, terms))


def show_agreement(store: ClientStore) -> None:
    """Prints what a client has agreed to, before it answers anything.

    Args:
        store: The client's folder.
    """
    from sordino.report.agreement_facts import list_agreement_facts

    results.print(facts_table(list_agreement_facts(store)))


@app.command()
def spent(folder: Own, json: Json = False) -> None:
    """Client: say what was answered, what that cost at most, and what was refused."""
    from sordino.flower.client_store import ClientStore
    from sordino.privacy.guarantee import epsilon_in_words, format_delta

    store = ClientStore(folder)
    agreement = store.agreement
    guarantee = store.compute_guarantee()
    if json:
        refused = [{"round": refusal.round, "reason": refusal.reason} for refusal in store.refusals]
        print_json(
            {
                "client": agreement.client,
                "rounds": store.rounds_paid,
                "guarantee": guarantee.as_document(agreement.delta),
                "refused": refused,
            }
        )
        return
    cost = f"epsilon = {epsilon_in_words(guarantee.epsilon(agreement.delta))}"
    if agreement.epsilon is not None:
        cost += f" of {agreement.epsilon:g}"
    rows = [
        ("Client", str(agreement.client)),
        ("Answered", f"{len(store.rounds_paid)} rounds"),
        (
            "Spent",
            f"{cost} at delta = {format_delta(agreement.delta)}, one {agreement.unit}, "
            "against the server",
        ),
    ]
    word = "Refused"
    for refusal in store.refusals:
        rows.append((word, f"round {refusal.round}: {refusal.reason}"))
        # Only the first row of several names them.
        word = ""
    results.print(facts_table(rows))


@app.command()
def link(
    folder: Place,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for all of IPv4, :: for all.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    insecure: Insecure = False,
) -> None:
    """Coordinator: start the SuperLink, where the machines meet."""
    from sordino.flower.flower_processes import run_superlink
    from sordino.protocol.addresses import parse_ip

    # In brackets, an address of IPv6 could not be listened on.
    run_superlink(folder, str(parse_ip(host) or host), port, insecure=insecure)


@app.command()
def node(
    folder: Own,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Local port, one for every node on a machine.")
    ] = 9094,
    insecure: Insecure = False,
) -> None:
    """Client: start the node, which connects to the SuperLink and answers what was agreed to."""
    from sordino.flower.flower_processes import run_node

    run_node(folder, port, insecure=insecure)


Where = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="Folder with a consortium.toml, or the file itself."),
]


@app.command()
def up(place: Where = Path(".")) -> None:
    """Start what a party runs, keep it alive, and report on it: one file, one command."""
    from sordino.flower.consortium import Coordinator, read_consortium
    from sordino.flower.services import ClientService, CoordinatorService

    folder, party = read_consortium(place)
    # Each file holds one party, and its table says which.
    if type(party) is Coordinator:
        CoordinatorService(folder, party, print_with_time).run()
        return
    ClientService(folder, party, print_with_time, lambda: agree_as_written(folder, party)).run()


def print_with_time(words: str) -> None:
    """Prints a message with the time of day.

    Args:
        words: The message.
    """
    print_message(f"{time.strftime('%H:%M:%S')} {words}")


def agree_as_written(folder: Path, party: Client) -> None:
    """Agrees to the terms of a client's consortium.toml, with a new key if it has none.

    Args:
        folder: The folder of consortium.toml.
        party: The contents of the file.
    """
    from sordino.flower.agreeing import find_terms, make_agreement
    from sordino.flower.certificates import write_key
    from sordino.flower.flower_commands import require_flower

    require_flower()
    # Before the agreement, which names the key's file.
    private = folder / party.key
    if not private.exists():
        public = write_key(private)
        print_with_time(f"Wrote {public}. Give it to the coordinator, as keys/{party.client}.pub.")
    show_agreement(make_agreement(folder / party.folder, find_terms(folder, party)))


@app.command()
def doctor(place: Where = Path("."), json: Json = False) -> None:
    """Check clock, certificate, key, port, versions and disk of a party; name the remedy."""
    from sordino.flower.consortium import read_consortium
    from sordino.flower.doctor import examine_party
    from sordino.flower.flower_commands import require_flower

    require_flower()
    findings = examine_party(*read_consortium(place))
    if json:
        print_json({"findings": [vars(finding) for finding in findings]})
    else:
        rows = []
        for finding in findings:
            text = f"ok, {finding.seen}"
            if finding.trouble is not None:
                text = f"TROUBLE, {finding.seen}: {finding.trouble}"
            rows.append((finding.what, text))
        results.print(facts_table(rows))
    # Scripts watch the exit code.
    if any(finding.trouble is not None for finding in findings):
        raise typer.Exit(1)

"""The commands of `sordino flower`, for the coordinator and the clients of a consortium."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.arguments import Certificate, Insecure, Json, Unit
from sordino.cli.console import print_json, print_message, results
from sordino.cli.protocol_sources import example_text
from sordino.protocol.errors import format_command
from sordino.report.terminal_tables import facts_table

if TYPE_CHECKING:
    from sordino.flower.client_store import ClientStore
    from sordino.flower.consortium import Client
    from sordino.protocol import Protocol

app = typer.Typer(help="Across machines: a federation on Flower.", no_args_is_help=True)

Place = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="The coordinator's folder, made by `sordino flower new`."),
]
Own = Annotated[Path, typer.Argument(metavar="FOLDER", help="The client's own folder.")]


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
    clients: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The coordinator's clients.json, with the fingerprints of all clients' keys: for "
            "secure aggregation. Compare them with the other clients'.",
        ),
    ] = None,
    app: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Flower app that may run here; without, Sordino's own."),
    ] = None,
    counter: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Records outside FOLDER how far its ledger had come; by default a file in "
            "the user's state folder.",
        ),
    ] = None,
    seeded: Annotated[
        bool, typer.Option("--seeded", help="Allow noise from the protocol's seed: for tests.")
    ] = False,
) -> None:
    """Client: agree to a protocol. The folder that this makes answers nothing else."""
    from sordino.flower.agreement import Agreement, make_path_absolute
    from sordino.flower.app_pinning import compute_app_digest
    from sordino.flower.client_keys import list_fingerprints
    from sordino.flower.client_store import ClientStore
    from sordino.flower.flower_commands import require_flower
    from sordino.flower.ledger_counter import name_counter
    from sordino.flower.local_work import count_own_records, measure_model
    from sordino.protocol import read_protocol
    from sordino.protocol.version import own_version

    require_flower()
    # Nodes are started in other folders, where a relative path would mean another file.
    plan = make_path_absolute(read_protocol(protocol))
    fingerprints = None
    if clients is not None:
        fingerprints = list_fingerprints(clients)
    agreement = Agreement(
        client=client,
        # Counted here, on the client's own machine: nobody else has to see the records.
        records=count_own_records(plan, client, data),
        data=absolute_path(data),
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        seeded=seeded,
        # Pinned: code that was not looked at must not run on the records.
        app=compute_app_digest(app),
        superlink=superlink,
        certificate=absolute_path(certificate),
        key=absolute_path(key),
        # Kept in the agreement itself: a list that the coordinator changes later changes nothing.
        clients=fingerprints,
        # Outside of the folder, so that a restored backup of the folder is noticed.
        counter=str((counter or name_counter()).resolve()),
        version=own_version(),
    )
    # The size of the model needs the records' shape, and so an agreement that names them.
    agreement = measure_model(plan, agreement)
    results.print(facts_table(agreement_rows(ClientStore.create(folder, agreement, plan))))


def agreement_rows(store: ClientStore) -> list[tuple[str, str]]:
    """Returns what a client has agreed to, and what that costs it at most.

    Args:
        store: The client's folder.

    Returns:
        Pairs of a word and a text.
    """
    from sordino.flower.admission import count_affordable_rounds
    from sordino.flower.agreement import state_model_size
    from sordino.privacy.guarantee import epsilon_in_words, format_delta
    from sordino.report.phrasing import describe_protocol, find_known_grid

    agreement = store.agreement
    protocol = store.agreed
    # Shown before anything is answered: this is what the client agrees to.
    cap = count_affordable_rounds(store, protocol)
    limit = "no limit"
    if agreement.epsilon is not None:
        limit = f"epsilon = {agreement.epsilon:g} at delta = {format_delta(agreement.delta)}"
    bound = epsilon_in_words(store.compute_guarantee(range(cap)).epsilon(agreement.delta))
    noise = "from this machine's entropy"
    if agreement.seeded:
        noise = "from the protocol's seed, which anyone can subtract: for tests"
    grid = find_known_grid(state_model_size(protocol, agreement))
    if grid is not None:
        noise += f"; {grid.in_words}"
    return [
        ("Agreed", f"client {agreement.client}: {describe_protocol(protocol)}"),
        ("Records", f"{agreement.records}, of {describe_source(protocol, agreement.data)}"),
        *label_rows(protocol, agreement.data),
        ("Budget", f"{limit}: {cap} of {protocol.rounds} rounds fit"),
        (
            "Server",
            f"learns at most epsilon = {bound} about one {agreement.unit}, "
            f"{describe_hiding(protocol)}",
        ),
        ("Noise", noise),
        ("Folder", f"{store.folder}; next: {format_command('flower', 'node', store.folder)}"),
    ]


def describe_hiding(protocol: Protocol) -> str:
    """Returns whose noise hides a client from the server.

    Args:
        protocol: What was agreed to.
    """
    secure = protocol.release.secure_sum
    if secure is None:
        return "only by this client's noise"
    honest = secure.threshold - secure.colluders
    return (
        f"by the noise of at least {honest} honest clients: it sees only sums, of at least "
        f"{secure.threshold} uploads, and up to {secure.colluders} clients may help it"
    )


def describe_source(protocol: Protocol, data: str | None) -> str:
    """Returns where a client's records come from.

    Args:
        protocol: What was agreed to.
        data: The client's own file; None for its share of the protocol's data.
    """
    if data is not None:
        return data
    if protocol.data is None:
        return "its share of the data"
    return f"its share of {protocol.data.name}"


def label_rows(protocol: Protocol, data: str | None) -> list[tuple[str, str]]:
    """Returns the labels and the input columns of a client's own file, as the protocol has them.

    Args:
        protocol: What was agreed to.
        data: The client's own file; None for its share of the protocol's data.
    """
    from sordino.data.table_columns import describe_column
    from sordino.flower.local_work import load_own_dataset

    if data is None:
        return []
    dataset = load_own_dataset(protocol, data)
    described = None if protocol.data is None else protocol.data.described_columns
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


def absolute_path(path: Path | None) -> str | None:
    """Returns a path that holds wherever a node is started.

    Args:
        path: As typed, or None.
    """
    if path is None:
        return None
    return str(path.absolute())


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
    """Agrees to what a client's consortium.toml says, with a new key if it has none.

    Args:
        folder: Folder that holds consortium.toml.
        party: What the file says.
    """
    from sordino.flower.certificates import write_key
    from sordino.protocol import UserError

    # Paths of the file are meant from its folder, wherever the command is called.
    private = folder / party.key
    # Before the agreement, which names the key's file.
    if not private.exists():
        public = write_key(private)
        print_with_time(f"Wrote {public}. Give it to the coordinator, as keys/{party.client}.pub.")
    for received in (folder / party.certificate, folder / party.protocol):
        if not received.is_file():
            raise UserError(f"there is no {received}. Ask the coordinator for it.")
    data = None
    if party.data is not None:
        data = folder / party.data
    clients = None
    if party.clients is not None:
        clients = folder / party.clients
    counter = None
    if party.counter is not None:
        counter = folder / party.counter
    agree(
        protocol=folder / party.protocol,
        folder=folder / party.folder,
        client=party.client,
        data=data,
        epsilon=party.epsilon,
        delta=party.delta,
        unit=party.unit,
        superlink=party.superlink,
        certificate=folder / party.certificate,
        key=private,
        clients=clients,
        counter=counter,
        seeded=party.seeded,
    )


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

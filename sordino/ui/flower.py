"""`sordino flower`: what the parties of a consortium type, the coordinator's and the clients'."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.protocol.errors import typed
from sordino.ui.arguments import Certificate, Insecure, Json, Unit
from sordino.ui.console import facts_table, messages, print_json, results
from sordino.ui.sources import example_text

if TYPE_CHECKING:
    from sordino.engines.flower.consortium import Client
    from sordino.engines.flower.custody import Custodian
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
    from sordino.engines.flower.new import write_consortium

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
    from sordino.engines.flower.certificates import write_certificates

    hosts = host or ["localhost", "127.0.0.1"]
    write_certificates(folder / "certificates", hosts, days)
    results.print(
        f"Wrote {folder / 'certificates'} for {', '.join(hosts)}. Give ca.crt to every client; server.key stays here."
    )


@app.command()
def key(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="File of the private key.")],
) -> None:
    """Client: make a key pair for its node."""
    from sordino.engines.flower.certificates import write_key

    results.print(
        f"Wrote {path} and {write_key(path)}. Give the second to the coordinator; the first stays here.",
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
    from sordino.engines.flower.nodes import register

    rows = [
        (f"Client {client}", f"key {key[:16]}... may connect, and is this client from now on")
        for client, key in sorted(register(folder, keys, superlink).items())
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
    app: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Flower app that may run here; without, Sordino's own."),
    ] = None,
    counter: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Remembers outside of FOLDER how far its ledger had come; by default a file in "
            "the user's state folder.",
        ),
    ] = None,
    seeded: Annotated[
        bool, typer.Option("--seeded", help="Allow noise from the protocol's seed: for tests.")
    ] = False,
) -> None:
    """Client: agree to a protocol. Nothing else is ever answered from the folder that this makes."""
    from sordino.engines.flower.agreement import Agreement, with_whole_path
    from sordino.engines.flower.counter import default_counter
    from sordino.engines.flower.custody import Custodian
    from sordino.engines.flower.pinned import app_digest
    from sordino.engines.flower.processes import require_flower
    from sordino.engines.flower.work import own_parameters, own_records
    from sordino.protocol import read
    from sordino.protocol.version import own_version

    require_flower()
    plan = with_whole_path(read(protocol))
    agreement = Agreement(
        client=client, records=own_records(plan, client, data), data=absolute(data), epsilon=epsilon, delta=delta, unit=unit,
        seeded=seeded, app=app_digest(app), superlink=superlink, certificate=absolute(certificate), key=absolute(key),
        counter=str((counter or default_counter()).absolute()), version=own_version(),
    )  # fmt: skip
    agreement = replace(agreement, parameters=own_parameters(plan, agreement))
    results.print(facts_table(agreement_rows(Custodian.create(folder, agreement, plan))))


def agreement_rows(custodian: Custodian) -> list[tuple[str, str]]:
    """What a client has agreed to, and what that costs it at most."""
    from sordino.report.words import described

    agreement, protocol = custodian.agreement, custodian.agreed
    cap = custodian.afforded(protocol)
    own = (
        "no limit of its own"
        if agreement.epsilon is None
        else f"epsilon = {agreement.epsilon:g} at delta = {agreement.delta:g}"
    )
    learned = custodian.guarantee(range(cap)).epsilon(agreement.delta)
    return [
        ("Agreed", f"client {agreement.client}: {described(protocol)}"),
        (
            "Records",
            f"{agreement.records}, of {agreement.data or 'its share of ' + (protocol.data.name if protocol.data else '?')}",
        ),
        *label_rows(protocol, agreement.data),
        ("Budget", f"{own}: {cap} of {protocol.rounds} rounds fit"),
        (
            "Server",
            f"learns about one {agreement.unit} at most epsilon = {shown(learned)}, by this client's noise alone",
        ),
        (
            "Noise",
            "from the protocol's seed, which anyone can subtract: for tests"
            if agreement.seeded
            else "from this machine's entropy",
        ),
        ("Folder", f"{custodian.folder}; next: {typed('flower', 'node', custodian.folder)}"),
    ]


def label_rows(protocol: Protocol, data: str | None) -> list[tuple[str, str]]:
    """Returns the labels and the input columns of a client's own file, as the protocol has them."""
    from sordino.engines.flower.work import own_dataset

    if data is None:
        return []
    dataset = own_dataset(protocol, data)
    agreed = {"Labels": dataset.classes, "Columns": dataset.inputs}
    return [
        (name, f"{', '.join(names)}; agreed to in the protocol, in this order")
        for name, names in agreed.items()
        if names is not None
    ]


def shown(epsilon: float) -> str:
    """An epsilon, rounded up."""
    from sordino.privacy.guarantee import epsilon_in_words

    return epsilon_in_words(epsilon)


@app.command()
def spent(folder: Own, json: Json = False) -> None:
    """Client: say what was answered, what that cost at most, and what was refused."""
    from sordino.engines.flower.custody import Custodian

    custodian = Custodian(folder)
    agreement, paid, refusals = custodian.agreement, custodian.rounds_paid, custodian.refusals
    guarantee = custodian.guarantee()
    if json:
        refused = [{"round": refusal.round, "reason": refusal.reason} for refusal in refusals]
        print_json(
            {
                "client": agreement.client,
                "rounds": paid,
                "guarantee": guarantee.as_document(agreement.delta),
                "refused": refused,
            }
        )
        return
    limit = "" if agreement.epsilon is None else f" of {agreement.epsilon:g}"
    spent = f"epsilon = {shown(guarantee.epsilon(agreement.delta))}{limit} at delta = {agreement.delta:g}, one {agreement.unit}"
    rows = [
        ("Client", str(agreement.client)),
        ("Answered", f"{len(paid)} rounds"),
        ("Spent", f"{spent}, against the server"),
    ]
    rows += [
        ("Refused" if first == 0 else "", f"round {one.round}: {one.reason}")
        for first, one in enumerate(refusals)
    ]
    results.print(facts_table(rows))


def absolute(path: Path | None) -> str | None:
    """A path that holds wherever a node is started."""
    return None if path is None else str(path.absolute())


@app.command()
def link(
    folder: Place,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    insecure: Insecure = False,
) -> None:
    """Coordinator: start the SuperLink, where the machines meet."""
    from sordino.engines.flower.nodes import run_link

    run_link(folder, host, port, insecure=insecure)


@app.command()
def node(
    folder: Own,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Local port, one for every node on a machine.")
    ] = 9094,
    insecure: Insecure = False,
) -> None:
    """Client: start the node, which connects to the SuperLink and answers what was agreed to."""
    from sordino.engines.flower.nodes import run_node

    run_node(folder, port, insecure=insecure)


Where = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="Folder with a consortium.toml, or the file itself."),
]


@app.command()
def up(place: Where = Path(".")) -> None:
    """Start what a party runs, keep it alive, and say how it is: one file, one command."""
    from sordino.engines.flower.consortium import Coordinator, read_consortium
    from sordino.engines.flower.party import ClientParty, CoordinatorParty

    folder, party = read_consortium(place)
    if type(party) is Coordinator:
        CoordinatorParty(folder, party, say).run()
        return
    ClientParty(folder, party, say, lambda: agree_as_written(folder, party)).run()


def say(words: str) -> None:
    """Print a line with the time of day."""
    messages.print(f"{time.strftime('%H:%M:%S')} {words}", soft_wrap=True)


def agree_as_written(folder: Path, party: Client) -> None:
    """Agree to what a client's consortium.toml says, with a new key if it has none."""
    from sordino.engines.flower.certificates import write_key

    private = folder / party.key
    if not private.exists():
        say(f"Wrote {write_key(private)}. Give it to the coordinator, as keys/{party.client}.pub.")
    agree(
        protocol=folder / party.protocol,
        folder=folder / party.folder,
        client=party.client,
        data=None if party.data is None else folder / party.data,
        epsilon=party.epsilon,
        delta=party.delta,
        unit=party.unit,
        superlink=party.superlink,
        certificate=folder / party.certificate,
        key=private,
        seeded=party.seeded,
    )


@app.command()
def doctor(place: Where = Path("."), json: Json = False) -> None:
    """Look at clock, certificate, key, port, versions and disk of a party; name the remedy."""
    from sordino.engines.flower.consortium import read_consortium
    from sordino.engines.flower.doctor import examine
    from sordino.engines.flower.processes import require_flower

    require_flower()
    findings = examine(*read_consortium(place))
    if json:
        print_json({"findings": [vars(finding) for finding in findings]})
    else:
        rows = []
        for one in findings:
            remedy = "" if one.trouble is None else f": {one.trouble}"
            rows.append(
                (one.what, f"{'ok' if one.trouble is None else 'TROUBLE'}, {one.seen}{remedy}")
            )
        results.print(facts_table(rows))
    if any(finding.trouble is not None for finding in findings):
        raise typer.Exit(1)

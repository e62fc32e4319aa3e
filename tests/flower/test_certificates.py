"""Keys and certificates of a consortium, held against other implementations of what they must be."""

import datetime
import ipaddress
import re
import shutil
import stat

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from sordino import Gaussian, UserError
from sordino.cli.main import run as sordino
from sordino.flower import services
from sordino.flower.certificates import write_certificates, write_key
from sordino.flower.client_keys import add_clients
from sordino.flower.client_store import ClientStore
from sordino.protocol import SecureAggregation, save_protocol
from tests.flower.local import plan
from tests.support import REPOSITORY


@pytest.fixture
def made(tmp_path):
    write_certificates(tmp_path / "ours", ["localhost", "127.0.0.1", "[2001:DB8::1]"], days=10)
    return tmp_path / "ours"


def read(path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def verifier(authority: x509.Certificate, host: x509.verification.Subject, days: int = 0):
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    return PolicyBuilder().store(Store([authority])).time(then).build_server_verifier(host)


@pytest.mark.parametrize(
    "host",
    [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("2001:db8::1")),
    ],
    ids=str,
)
def test_the_superlink_is_trusted_under_its_names_as_long_as_was_said(made, host) -> None:
    authority, server = read(made / "ca.crt"), read(made / "server.pem")
    assert verifier(authority, host).verify(server, [])
    assert verifier(authority, host, days=9).verify(server, [])
    with pytest.raises(VerificationError):
        verifier(authority, host, days=11).verify(server, [])


def test_nobody_is_trusted_under_another_name_or_by_another_authority(made, tmp_path) -> None:
    authority, server = read(made / "ca.crt"), read(made / "server.pem")
    with pytest.raises(VerificationError):
        verifier(authority, x509.DNSName("elsewhere.example")).verify(server, [])
    write_certificates(tmp_path / "theirs", ["localhost"])
    with pytest.raises(VerificationError):
        verifier(read(tmp_path / "theirs" / "ca.crt"), x509.DNSName("localhost")).verify(server, [])


def test_private_files_are_their_owners_and_nothing_is_replaced(made, tmp_path) -> None:
    public = write_key(tmp_path / "keys" / "node.key")
    for private in (made / "server.key", tmp_path / "keys" / "node.key"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
    before = {path: path.read_bytes() for path in (made / "server.key", public)}
    with pytest.raises(UserError, match="exists already"):
        write_certificates(made, ["localhost"])
    with pytest.raises(UserError, match="exists already"):
        write_key(tmp_path / "keys" / "node.key")
    assert {path: path.read_bytes() for path in before} == before


def test_a_nodes_key_is_in_the_form_that_flower_takes_and_its_halves_belong_together(
    tmp_path,
) -> None:
    public = serialization.load_ssh_public_key(write_key(tmp_path / "node.key").read_bytes())
    private = serialization.load_ssh_private_key(
        (tmp_path / "node.key").read_bytes(), password=None
    )
    assert private.public_key() == public
    assert public.curve.name == "secp384r1"


def test_the_lines_for_secure_sums_followed_word_for_word(tmp_path, monkeypatch, capfd) -> None:
    """Two hospitals and a coordinator, up to the agreements; no SuperLink runs, and all keys are taken."""
    page = (REPOSITORY / "docs" / "flower-sums.md").read_text()
    section = page.split("## Set up")[1].split("\n## ")[0]
    lines = re.findall(r"^(\w+)\$ (.*)$", section, re.MULTILINE)
    ours = tmp_path / "coordinator" / "ours"
    write_certificates(ours / "certificates", ["127.0.0.1"])
    channel = SecureAggregation(threshold=2)
    protocol = plan(clients=2, noise=Gaussian(sigma=0.05, secure=True), channel=channel)
    for client, name in enumerate(["north", "south"]):
        place = tmp_path / name
        place.mkdir()
        shutil.copy(ours / "certificates" / "ca.crt", place)
        save_protocol(protocol, place / "protocol.toml")
        (place / "consortium.toml").write_text(
            f'[client]\nclient = {client}\nsuperlink = "127.0.0.1:1"\n'
            f'clients = "clients.json"\ncounter = "../{name}.json"\n'
        )
        assert sordino(["flower", "up", str(place)]) == 2
        assert "clients.json there once all clients are registered" in capfd.readouterr().err
    # What the coordinator's `up` does with keys/0.pub and keys/1.pub, once the SuperLink takes them.
    keys = {
        client: tmp_path / name / "node.key.pub" for client, name in enumerate(["north", "south"])
    }
    fingerprints = add_clients(ours / "certificates", keys)
    monkeypatch.setattr(services.PartyService, "run", lambda service: service.prepare())
    for who, typed in lines:
        monkeypatch.chdir(tmp_path / who)
        program, *arguments = typed.split()
        if program == "cp":
            shutil.copy(*arguments)
        else:
            assert sordino(arguments) == 0
    agreed = ClientStore(tmp_path / "north" / "mine").agreement
    assert agreed.clients == (fingerprints[0], fingerprints[1])

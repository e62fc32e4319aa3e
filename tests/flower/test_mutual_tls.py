"""Nodes show certificates of their keys; who shows none of a registered key is told nothing at all."""

import base64
import ssl
import threading
import time

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sordino import UserError
from sordino.flower import mutual_tls, superlink, superlink_probe
from sordino.flower.certificates import write_certificates, write_key
from sordino.flower.client_keys import NODES, add_clients, read_clients, remove_client
from sordino.flower.node_certificates import certify_key
from sordino.flower.superlink_probe import probe_superlink
from tests.flower.lab import free_port
from tests.flower.test_access_control import Behind


def private_half(path) -> ec.EllipticCurvePrivateKey:
    return serialization.load_ssh_private_key(path.read_bytes(), password=None)


@pytest.fixture
def consortium(tmp_path, monkeypatch):
    """A server behind door and threshold to which everybody is from another machine."""
    monkeypatch.setattr(uvicorn.Server, "run", uvicorn.Server.run)
    monkeypatch.setattr(mutual_tls, "is_own_connection", lambda *_: False)
    write_certificates(tmp_path, ["127.0.0.1"])
    superlink.install_listener(tmp_path / NODES)
    behind, port = Behind(), free_port()
    config = uvicorn.Config(
        behind, host="127.0.0.1", port=port, log_level="error", lifespan="off",
        ssl_certfile=tmp_path / "server.pem", ssl_keyfile=tmp_path / "server.key",
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield tmp_path, f"127.0.0.1:{port}", behind
    server.should_exit = True
    thread.join()


def trouble(folder, address, key=None) -> str | None:
    return probe_superlink(address, str(folder / "ca.crt"), key and str(key)).trouble


def test_a_node_is_spoken_with_from_when_its_key_is_registered(consortium) -> None:
    folder, address, behind = consortium
    public = write_key(folder / "node.key")
    assert "has the coordinator registered" in trouble(folder, address, folder / "node.key")
    assert behind.reached == []
    add_clients(folder, {0: public})
    assert trouble(folder, address, folder / "node.key") is None
    assert len(behind.reached) == 1


def test_who_shows_no_certificate_is_cut_off_before_anything_is_read(consortium) -> None:
    folder, address, behind = consortium
    add_clients(folder, {0: write_key(folder / "node.key")})
    assert "ends the connection" in trouble(folder, address)
    assert behind.reached == []


def test_the_coordinators_own_account_need_not_show_one(consortium, monkeypatch) -> None:
    folder, address, behind = consortium
    monkeypatch.setattr(mutual_tls, "is_own_connection", lambda *_: True)
    assert trouble(folder, address) is None
    assert len(behind.reached) == 1


@pytest.mark.parametrize("signed_by", ["stranger", "registered node"])
def test_a_certificate_that_somebody_else_signed_is_refused(
    consortium, monkeypatch, signed_by
) -> None:
    """Under a registered node's name: by a stranger, or by that node for somebody else's key."""
    folder, address, behind = consortium
    add_clients(folder, {0: write_key(folder / "node.key")})
    write_key(folder / "stranger.key")
    registered, stranger = (private_half(folder / name) for name in ("node.key", "stranger.key"))
    signer = {"stranger": stranger, "registered node": registered}[signed_by]
    name = certify_key(registered).subject
    forged = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(stranger.public_key())
        .serial_number(2)
        .not_valid_before(certify_key(registered).not_valid_before_utc)
        .not_valid_after(certify_key(registered).not_valid_after_utc)
        .sign(signer, hashes.SHA384())
    )

    def load_forged(context: ssl.SSLContext, path) -> None:
        pem = serialization.Encoding.PEM
        form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        chain = forged.public_bytes(pem) + certify_key(registered).public_bytes(pem)
        (folder / "forged.pem").write_bytes(stranger.private_bytes(pem, *form) + chain)
        context.load_cert_chain(folder / "forged.pem")

    assert trouble(folder, address, folder / "node.key") is None
    monkeypatch.setattr(superlink_probe, "load_own_certificate", load_forged)
    assert trouble(folder, address, folder / "stranger.key") is not None
    assert len(behind.reached) == 1


def test_a_key_always_has_the_same_certificate_and_every_key_another(tmp_path) -> None:
    keys = [ec.generate_private_key(ec.SECP384R1()) for _ in range(2)]
    assert certify_key(keys[0]) == certify_key(keys[0])
    assert certify_key(keys[0]) != certify_key(keys[1])
    public = write_key(tmp_path / "node.key").read_bytes().split()
    shown = x509.load_der_x509_certificate(base64.b64decode(public[2]))
    assert shown == certify_key(private_half(tmp_path / "node.key"))


def test_a_public_key_without_a_certificate_of_its_own_is_not_registered(tmp_path) -> None:
    path = write_key(tmp_path / "node.key")
    kind, key, own = path.read_bytes().split()
    other = write_key(tmp_path / "other.key").read_bytes().split()[2]
    private = private_half(tmp_path / "node.key")
    signing = (
        x509.CertificateBuilder()
        .subject_name(certify_key(private).subject)
        .issuer_name(certify_key(private).subject)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(certify_key(private).not_valid_before_utc)
        .not_valid_after(certify_key(private).not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA384())
        .public_bytes(serialization.Encoding.DER)
    )
    spoiled = own[:-8] + b"AAAAAAAA"
    for comment in (b"", b"me@north", other, spoiled, base64.b64encode(signing)):
        path.write_bytes(b" ".join([kind, key, comment]) + b"\n")
        with pytest.raises(UserError, match="certificate"):
            add_clients(tmp_path, {0: path})
        assert read_clients(tmp_path) == {}
    path.write_bytes(b" ".join([kind, key, own]) + b"\n")
    assert list(add_clients(tmp_path, {0: path})) == [0]


def test_who_is_removed_is_no_longer_among_the_certificates(tmp_path) -> None:
    keys = {client: write_key(tmp_path / f"{client}.key") for client in range(2)}
    add_clients(tmp_path, keys)
    remove_client(tmp_path, 0)
    [left] = x509.load_pem_x509_certificates((tmp_path / NODES).read_bytes())
    assert left == certify_key(private_half(tmp_path / "1.key"))
    remove_client(tmp_path, 1)
    assert (tmp_path / NODES).read_bytes() == b""
    add_clients(tmp_path, {0: keys[0]})

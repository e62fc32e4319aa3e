"""Keys and certificates of a consortium: an authority of its own, the SuperLink's certificate, and a key pair for every node."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sordino.engines.flower.signing import COORDINATOR, COORDINATOR_KEY, SIGNS_REQUESTS
from sordino.federation.storage import write_whole, writing
from sordino.protocol import InvalidValue, UserError

AUTHORITY, SERVER, SERVER_KEY = "ca.crt", "server.pem", "server.key"
ISSUER = "Sordino consortium authority"


def write_certificates(folder: Path, hosts: Sequence[str], days: int = 365) -> None:
    """Makes an authority, the SuperLink's certificate and the coordinator's, both signed by it.

    The authority's key is thrown away: it signs nothing else.

    Args:
        folder: where the files are written; files that are there are not replaced.
        hosts: names and addresses under which machines reach the SuperLink.
        days: how long all are valid.

    Raises:
        UserError: no host, or there are certificates already.
    """
    if not hosts:
        raise InvalidValue(
            "host", hosts, "at least one name or address under which machines reach the SuperLink"
        )
    names = (AUTHORITY, SERVER, SERVER_KEY, COORDINATOR, COORDINATOR_KEY)
    taken = [name for name in names if (folder / name).exists()]
    if taken:
        raise UserError(
            f"{folder / taken[0]} exists already: with another certificate, nodes would no longer trust the SuperLink."
        )
    authority_key = ec.generate_private_key(ec.SECP384R1())
    server_key = ec.generate_private_key(ec.SECP384R1())
    coordinator_key = ec.generate_private_key(ec.SECP384R1())
    authority = authority_certificate(authority_key, days)
    server = server_certificate(server_key, authority_key, hosts, days)
    coordinator = coordinator_certificate(coordinator_key, authority_key, days)
    pem, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_private(folder / SERVER_KEY, private_text(server_key, private))
        write_private(folder / COORDINATOR_KEY, private_text(coordinator_key, private))
        write_whole(folder / SERVER, server.public_bytes(pem))
        write_whole(folder / COORDINATOR, coordinator.public_bytes(pem))
        write_whole(folder / AUTHORITY, authority.public_bytes(pem))


def authority_certificate(key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    """An authority that signs for itself, and may sign certificates and nothing else."""
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        dated(named(ISSUER), key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )


def server_certificate(
    key: ec.EllipticCurvePrivateKey,
    authority: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    days: int,
) -> x509.Certificate:
    """The SuperLink's certificate under all its names, signed by the authority."""
    names = x509.SubjectAlternativeName([alternative(host) for host in hosts])
    builder = dated(named(hosts[0]), key.public_key(), days).add_extension(names, critical=False)
    return signed_by_authority(builder, authority, ExtendedKeyUsageOID.SERVER_AUTH)


def coordinator_certificate(
    key: ec.EllipticCurvePrivateKey, authority: ec.EllipticCurvePrivateKey, days: int
) -> x509.Certificate:
    """Returns the certificate of the key that signs requests to clients."""
    builder = dated(named("Sordino coordinator"), key.public_key(), days)
    return signed_by_authority(builder, authority, SIGNS_REQUESTS)


def signed_by_authority(
    builder: x509.CertificateBuilder,
    authority: ec.EllipticCurvePrivateKey,
    usage: x509.ObjectIdentifier,
) -> x509.Certificate:
    """Returns a certificate that may be used for one purpose, and cannot sign others."""
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority, hashes.SHA384())
    )


def write_key(path: Path) -> Path:
    """Make a node's key pair in OpenSSH's form, which Flower wants; the public half, which is given to the SuperLink, gets .pub.

    Raises:
        UserError: there is a key already.
    """
    public = path.with_name(path.name + ".pub")
    if path.exists() or public.exists():
        raise UserError(
            f"{path} exists already: a node with another key would no longer be known to the SuperLink."
        )
    key = ec.generate_private_key(ec.SECP384R1())
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, private_text(key, serialization.PrivateFormat.OpenSSH))
        form = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        write_whole(public, form + b"\n")
    return public


def private_text(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    """A private key as text, without a passphrase."""
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may ever read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def named(text: str) -> x509.Name:
    """A name as certificates have it; they allow 64 characters."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def dated(subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    """A certificate of the consortium's authority that is valid from now on; a clock may be an hour late."""
    now = datetime.datetime.now(datetime.UTC)
    begin, end = now - datetime.timedelta(hours=1), now + datetime.timedelta(days=days)
    builder = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(named(ISSUER)).public_key(key)
    )
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def alternative(host: str) -> x509.GeneralName:
    """An address or a name under which the SuperLink is reached."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)

"""Creates the keys and certificates of a consortium."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sordino.federation.store.files import write_whole, writing
from sordino.flower.consortium import LOOPBACK, LOOPBACK_6, Coordinator
from sordino.flower.node_certificates import encode_certificate
from sordino.flower.signing import COORDINATOR, COORDINATOR_KEY, SIGNS_REQUESTS
from sordino.protocol import InvalidValue, UserError
from sordino.protocol.addresses import Host, join_address, parse_ip

AUTHORITY = "ca.crt"
SERVER = "server.pem"
SERVER_KEY = "server.key"
ISSUER = "Sordino consortium authority"
# A machine's names for itself.
OWN_NAMES = ("localhost", LOOPBACK, LOOPBACK_6)
# Characters that X.509 allows in a name.
NAME_LENGTH = 64


def write_certificates(folder: Path, hosts: Sequence[str], days: int = 365) -> None:
    """Creates an authority, and the certificates of SuperLink and coordinator, signed by it.

    The authority's key is thrown away: it signs nothing else.

    Args:
        folder: Folder of the files; files that exist are not replaced.
        hosts: Names and addresses under which machines reach the SuperLink.
        days: How long all are valid.

    Raises:
        UserError: No host is given, or there are certificates already.
    """
    if not hosts:
        raise InvalidValue(
            "host", hosts, "at least one name or address under which machines reach the SuperLink"
        )
    hosts = [Host().accept_value("host", host) for host in hosts]
    names = (AUTHORITY, SERVER, SERVER_KEY, COORDINATOR, COORDINATOR_KEY)
    # Checked before anything is made: half of an old set and half of a new one would fit nobody.
    taken = [name for name in names if (folder / name).exists()]
    if taken:
        raise UserError(
            f"{folder / taken[0]} exists already: with another certificate, nodes would no longer "
            "trust the SuperLink."
        )
    # The authority's key lives in this function only. Nobody can sign a second coordinator with it.
    authority_key = ec.generate_private_key(ec.SECP384R1())
    server_key = ec.generate_private_key(ec.SECP384R1())
    coordinator_key = ec.generate_private_key(ec.SECP384R1())
    authority = certify_authority(authority_key, days)
    server = certify_server(server_key, authority_key, hosts, days)
    coordinator = certify_coordinator(coordinator_key, authority_key, days)
    pem = serialization.Encoding.PEM
    private = serialization.PrivateFormat.PKCS8
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # Keys come before certificates, and the authority last: `sordino flower up` takes its file
        # as the sign that all others are there.
        write_private(folder / SERVER_KEY, encode_private_key(server_key, private))
        write_private(folder / COORDINATOR_KEY, encode_private_key(coordinator_key, private))
        write_whole(folder / SERVER, server.public_bytes(pem))
        write_whole(folder / COORDINATOR, coordinator.public_bytes(pem))
        write_whole(folder / AUTHORITY, authority.public_bytes(pem))


def add_own_names(hosts: Sequence[str]) -> list[str]:
    """Returns the names for a SuperLink's certificate, with those that its own machine uses.

    The name that others know a machine by may lead to a router in front of it. The coordinator
    itself connects over loopback.

    Args:
        hosts: Names and addresses under which other machines reach the SuperLink.
    """
    return list(dict.fromkeys([*hosts, *OWN_NAMES]))


def find_own_address(folder: Path, party: Coordinator) -> str:
    """Returns where the coordinator itself reaches its SuperLink.

    Args:
        folder: Folder of the certificates.
        party: What its consortium.toml says.

    Returns:
        The loopback address and the port; those that others use where the certificate does not
        name the loopback address, or cannot be read.
    """
    if make_general_name(party.own_host) in list_names(folder):
        return join_address(party.own_host, party.port)
    return party.address


def list_names(folder: Path) -> list[x509.GeneralName]:
    """Returns the names under which a SuperLink's certificate lets machines know it.

    Args:
        folder: Folder of the certificates.

    Returns:
        The names; none where the certificate cannot be read.
    """
    try:
        certificate = x509.load_pem_x509_certificate((folder / SERVER).read_bytes())
        return list(
            certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        )
    except (OSError, ValueError, x509.ExtensionNotFound):
        return []


def require_host(folder: Path, host: str) -> None:
    """Checks that a SuperLink's certificate has the name that others use.

    Args:
        folder: Folder of the certificates.
        host: Name or address under which other machines reach the SuperLink.

    Raises:
        UserError: It has other names: no node would trust the SuperLink.
    """
    names = list_names(folder)
    if not names or make_general_name(host) in names:
        return
    shown = ", ".join(str(name.value) for name in names)
    raise UserError(
        f"host = {host!r}, and {folder / SERVER} was made for {shown}: no node would trust it. "
        "Name one of these, or renew the certificates, as docs/flower.md says, and send the new "
        f"{AUTHORITY} to every client."
    )


def certify_authority(key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    """Returns the certificate of an authority, which may sign certificates and nothing else.

    Args:
        key: The authority's key.
        days: How long it is valid.
    """
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        begin_certificate(make_name(ISSUER), key.public_key(), days)
        # It signs end certificates and no further authorities.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )


def certify_server(
    key: ec.EllipticCurvePrivateKey,
    authority: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    days: int,
) -> x509.Certificate:
    """Returns the SuperLink's certificate under all its names, signed by the authority.

    Args:
        key: The SuperLink's key.
        authority: The authority's key.
        hosts: Names and addresses of the SuperLink.
        days: How long it is valid.
    """
    # TLS compares the names that machines use, not the subject.
    names = x509.SubjectAlternativeName([make_general_name(host) for host in hosts])
    builder = begin_certificate(make_name(hosts[0]), key.public_key(), days)
    builder = builder.add_extension(names, critical=False)
    return sign_certificate(builder, authority, ExtendedKeyUsageOID.SERVER_AUTH)


def certify_coordinator(
    key: ec.EllipticCurvePrivateKey, authority: ec.EllipticCurvePrivateKey, days: int
) -> x509.Certificate:
    """Returns the certificate of the key that signs requests to clients.

    Args:
        key: The coordinator's key.
        authority: The authority's key.
        days: How long it is valid.
    """
    builder = begin_certificate(make_name("Sordino coordinator"), key.public_key(), days)
    return sign_certificate(builder, authority, SIGNS_REQUESTS)


def sign_certificate(
    builder: x509.CertificateBuilder,
    authority: ec.EllipticCurvePrivateKey,
    usage: x509.ObjectIdentifier,
) -> x509.Certificate:
    """Returns a certificate for one purpose, which cannot sign others.

    Args:
        builder: The certificate without its purpose.
        authority: The authority's key.
        usage: The purpose.
    """
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return (
        # Without this a stolen certificate could sign others.
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority, hashes.SHA384())
    )


def write_key(path: Path) -> Path:
    """Creates a node's key pair in OpenSSH's form, which Flower needs.

    The public half, which the coordinator registers, is in a second file that ends in .pub. It has
    the node's certificate as its comment.

    Args:
        path: File of the private key.

    Returns:
        File of the public key.

    Raises:
        UserError: There is a key already.
    """
    public = path.with_name(path.name + ".pub")
    if path.exists() or public.exists():
        # Flower knows a node by its key, so a new key is a new node.
        raise UserError(
            f"{path} exists already: a node with another key would no longer be known to the "
            "SuperLink."
        )
    key = ec.generate_private_key(ec.SECP384R1())
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, encode_private_key(key, serialization.PrivateFormat.OpenSSH))
        form = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        write_whole(public, form + b" " + encode_certificate(key) + b"\n")
    return public


def encode_private_key(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    """Returns a private key as text, without a passphrase.

    Args:
        key: The key.
        form: The form of the text.
    """
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner may ever read.

    Args:
        path: The file, which must not exist.
        content: Its content.
    """
    # Created with its permissions: a file that is narrowed afterwards could be read in between.
    # O_EXCL follows no link that somebody else put there.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def make_name(text: str) -> x509.Name:
    """Returns a name in the form of certificates.

    Args:
        text: The name; it is cut at the length that X.509 allows.
    """
    # A longer name is refused by X.509; the alternative names, which count, are not shortened.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:NAME_LENGTH])])


def begin_certificate(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    """Returns the beginning of a certificate of the consortium's authority.

    Args:
        subject: Subject whose certificate it is.
        key: Its public key.
        days: How long it is valid from now on.
    """
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(make_name(ISSUER))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # A clock may be an hour late.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def make_general_name(host: str) -> x509.GeneralName:
    """Returns a name or an address of the SuperLink in the form of certificates.

    Args:
        host: The name or the address.
    """
    found = parse_ip(host)
    if found is None:
        return x509.DNSName(host)
    return x509.IPAddress(found)

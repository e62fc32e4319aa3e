"""Makes and reads the certificates that nodes show to the SuperLink, each signed by its own key.

A certificate follows from the key alone, so that a node needs no file but its key. It travels in
the comment of the public key. The SuperLink trusts those of registered clients, and no others.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import ssl
import tempfile
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sordino.protocol import UserError

REMEDY = "Ask for the whole file that `sordino flower key` or `sordino flower up` wrote."
# A certificate ends when the coordinator removes the key, not at a date. X.509 writes a date in the
# year 9999 for that.
BEGIN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
END = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


def certify_key(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """Returns the certificate of a node's key: always the same one for the same key.

    Args:
        key: The private key.
    """
    public = key.public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    digest = hashlib.sha256(public.public_bytes(serialization.Encoding.DER, form)).hexdigest()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, digest)])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(1)
        .not_valid_before(BEGIN)
        .not_valid_after(END)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=False)
        .sign(key, hashes.SHA384(), ecdsa_deterministic=True)
    )


def encode_certificate(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns a key's certificate as one word, for the comment of the public key.

    Args:
        key: The private key.
    """
    return base64.b64encode(certify_key(key).public_bytes(serialization.Encoding.DER))


def read_certificate(path: Path) -> x509.Certificate:
    """Returns the certificate in the comment of a public key that `sordino flower key` wrote.

    Args:
        path: File of the public key.

    Raises:
        UserError: There is none, or it is not of this key alone.
    """
    words = path.read_bytes().split()
    try:
        certificate = x509.load_der_x509_certificate(base64.b64decode(words[2], validate=True))
        key = serialization.load_ssh_public_key(b" ".join(words[:2]))
        limits = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.verify_directly_issued_by(certificate)
    except (IndexError, ValueError, TypeError, binascii.Error, x509.ExtensionNotFound):
        raise UserError(f"{path} has no certificate of its key. {REMEDY}") from None
    except Exception as error:
        # InvalidSignature, or what cryptography raises for a strange key.
        kind = type(error).__name__
        raise UserError(f"{path}: its certificate is not its own ({kind}). {REMEDY}") from None
    if certificate.public_key() != key or limits.ca:
        raise UserError(f"{path}: its certificate is of another key, or signs others. {REMEDY}")
    return certificate


def load_own_certificate(context: ssl.SSLContext, path: Path) -> None:
    """Makes a connection show the certificate of a node's key.

    Args:
        context: TLS context of the connection.
        path: File of the private key.
    """
    key: Any = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # OpenSSL reads neither OpenSSH's form nor memory. Only this account can read the file.
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".showing-") as file:
        file.write(private + certify_key(key).public_bytes(pem))
        file.flush()
        context.load_cert_chain(file.name)


def show_certificate(path: Path) -> None:
    """Makes Flower's SuperNode in this process show the certificate of its key.

    Args:
        path: File of the private key.
    """
    from flwr.supernode.fleet_http_client import FleetHttpClient

    client: Any = FleetHttpClient
    initialize = client.__init__

    def initialize_with_certificate(
        self: Any, url: str, *, verify: Any = True, **named: Any
    ) -> None:
        context = verify
        if isinstance(verify, str):
            context = ssl.create_default_context(cafile=verify)
        elif not isinstance(verify, ssl.SSLContext):
            context = ssl.create_default_context()
        load_own_certificate(context, path)
        initialize(self, url, verify=context, **named)

    client.__init__ = initialize_with_certificate

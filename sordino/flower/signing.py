"""Signs requests and checks signatures: a client answers only the coordinator that it agreed to.

`sordino flower certificates` makes a signing certificate next to the SuperLink's, under the same
authority. Clients have that authority in ca.crt, so nothing more has to be handed to them. The
authority's own key is thrown away: nobody can make a second coordinator.
"""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from sordino.flower.upload_requests import Request
from sordino.protocol import SordinoError, UserError

COORDINATOR = "coordinator.pem"
COORDINATOR_KEY = "coordinator.key"
# The SuperLink's TLS certificate has another usage, so neither can stand in for the other.
SIGNS_REQUESTS = ExtendedKeyUsageOID.CODE_SIGNING
ALGORITHM = ec.ECDSA(hashes.SHA384())


class InvalidSender(SordinoError):
    """Is raised for a message that the coordinator did not sign; its text names the fault."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Holds a signature and the certificate of the key that made it.

    Attributes:
        certificate: The certificate, as PEM.
        signature: The signature of a statement.
    """

    certificate: bytes
    signature: bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class Signer:
    """Holds the coordinator's private key and its certificate.

    Attributes:
        certificate: The certificate, as PEM.
        key: The private key.
    """

    certificate: bytes
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def read(cls, folder: Path) -> Signer:
        """Reads the coordinator's key from the folder of its certificates.

        Args:
            folder: Folder of ca.crt, which `sordino flower certificates` wrote.

        Returns:
            The signer.

        Raises:
            UserError: The key or its certificate is missing or damaged, or the certificate's time
                is over.
        """
        try:
            certificate = (folder / COORDINATOR).read_bytes()
            end = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
            key = serialization.load_pem_private_key((folder / COORDINATOR_KEY).read_bytes(), None)
        except (OSError, ValueError):
            raise UserError(
                f"{folder} has no {COORDINATOR} and {COORDINATOR_KEY} that can be read: clients "
                "answer signed requests only. Make new ones in another folder with `sordino "
                "flower certificates`, and give its ca.crt to every client."
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UserError(f"{folder / COORDINATOR_KEY} is not a key that signs requests.")
        if end < datetime.datetime.now(datetime.UTC):
            raise UserError(
                f"{folder / COORDINATOR} has ended on {end:%Y-%m-%d}, and no client answers what "
                "it signs: renew the certificates, as docs/flower.md says."
            )
        return cls(certificate=certificate, key=key)

    def sign(self, statement: bytes) -> Signature:
        """Returns the signature of a statement.

        Args:
            statement: The bytes to sign.
        """
        return Signature(
            certificate=self.certificate, signature=self.key.sign(statement, ALGORITHM)
        )


def request_statement(request: Request, run: str) -> bytes:
    """Returns the bytes that are signed for a request: all of it, and its run on Flower.

    With the run in it, a recorded request is of no use in another run.

    Args:
        request: What the server asks of a client in a round.
        run: The run on Flower.
    """
    # A first line of fixed words separates the kinds: no request can pass for an introduction.
    return f"sordino request\n{request.digest}\n{request.attempt}\n{run}".encode()


def sums_statement(wave: str, body: bytes, run: str) -> bytes:
    """Returns the bytes that are signed for a wave of a secure sum.

    Args:
        wave: The wave.
        body: All that it says.
        run: The run on Flower.
    """
    digest = hashlib.sha256(body).hexdigest()
    return f"sordino sums\n{wave}\n{digest}\n{run}".encode()


def introduction_statement(run: str) -> bytes:
    """Returns the bytes that are signed where a node is asked which client it is.

    Args:
        run: The run on Flower.
    """
    return f"sordino introduction\n{run}".encode()


def check_signature(statement: bytes, signature: Signature | None, authority: Path) -> None:
    """Checks that a coordinator certified by an authority signed a statement.

    Args:
        statement: The bytes that must have been signed.
        signature: The signature in the message; None if it has none.
        authority: File of the authority's certificate, ca.crt.

    Raises:
        InvalidSender: There is no signature, it is of something else, or the key that made it is
            not certified as a coordinator's by this authority, now.
        UserError: The authority's certificate cannot be read.
    """
    if signature is None:
        raise InvalidSender("it is not signed by the coordinator")
    try:
        # Read for every message: a renewed authority counts without a restart.
        trusted = x509.load_pem_x509_certificate(authority.read_bytes())
    except (OSError, ValueError):
        raise UserError(f"{authority} cannot be read as a certificate.") from None
    try:
        certificate = x509.load_pem_x509_certificate(signature.certificate)
        # Issued by the consortium's own authority, and not merely by one that the system trusts.
        certificate.verify_directly_issued_by(trusted)
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        raise InvalidSender("it was not signed by the coordinator") from None
    key = certificate.public_key()
    # The SuperLink's own certificate has the same issuer, and must not sign requests.
    if SIGNS_REQUESTS not in usage or not isinstance(key, ec.EllipticCurvePublicKey):
        raise InvalidSender("it is signed with a certificate that is not for requests")
    now = datetime.datetime.now(datetime.UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise InvalidSender("the coordinator's certificate is not valid today")
    try:
        # The statement is checked last: only a certified key is worth verifying with.
        key.verify(signature.signature, statement, ALGORITHM)
    except InvalidSignature:
        raise InvalidSender("its signature is of something else") from None

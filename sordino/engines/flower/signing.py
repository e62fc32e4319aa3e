"""Signatures on requests: a client answers the coordinator whose authority it agreed to, and nobody else.

`sordino flower certificates` makes a signing certificate beside the SuperLink's, under the same
authority. Clients have that authority in ca.crt, so nothing more has to be handed to them. The
authority's own key is thrown away: nobody can make a second coordinator.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from sordino.engines.flower.requests import Request
from sordino.protocol import SordinoError, UserError

COORDINATOR = "coordinator.pem"
COORDINATOR_KEY = "coordinator.key"
# The SuperLink's TLS certificate has another usage, so neither can stand in for the other.
SIGNS_REQUESTS = ExtendedKeyUsageOID.CODE_SIGNING
ALGORITHM = ec.ECDSA(hashes.SHA384())


class NotSigned(SordinoError):
    """A message that the coordinator did not sign, in words that say what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A signature, and the certificate of the key that made it, as PEM."""

    certificate: bytes
    signature: bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class Signer:
    """The coordinator's private key and its certificate."""

    certificate: bytes
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def read(cls, folder: Path) -> Signer:
        """Reads the coordinator's key from the folder of its certificates.

        Args:
            folder: where `sordino flower certificates` wrote ca.crt and what belongs to it.

        Returns:
            The signer.

        Raises:
            UserError: the key or its certificate is missing or damaged.
        """
        try:
            certificate = (folder / COORDINATOR).read_bytes()
            key = serialization.load_pem_private_key((folder / COORDINATOR_KEY).read_bytes(), None)
        except (OSError, ValueError):
            raise UserError(
                f"{folder} has no {COORDINATOR} and {COORDINATOR_KEY} that can be read: clients "
                "answer signed requests only. Make new ones in another folder with `sordino "
                "flower certificates`, and give its ca.crt to every client."
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UserError(f"{folder / COORDINATOR_KEY} is not a key that signs requests.")
        return cls(certificate=certificate, key=key)

    def sign(self, statement: bytes) -> Signature:
        """Returns the signature of a statement."""
        return Signature(
            certificate=self.certificate, signature=self.key.sign(statement, ALGORITHM)
        )


def request_statement(request: Request, run: str) -> bytes:
    """Returns what is signed of a request: all of it, and the run on Flower that it belongs to.

    With the run in it, a request that somebody recorded is of no use in a run of theirs.
    """
    return f"sordino request\n{request.digest}\n{request.attempt}\n{run}".encode()


def introduction_statement(run: str) -> bytes:
    """Returns what is signed where a node is asked which client it is."""
    return f"sordino introduction\n{run}".encode()


def check_signature(statement: bytes, signature: Signature | None, authority: Path) -> None:
    """Checks that a coordinator certified by an authority signed a statement.

    Args:
        statement: what must have been signed.
        signature: what came with the message; None if nothing did.
        authority: the file of the authority's certificate, ca.crt.

    Raises:
        NotSigned: there is no signature, it is of something else, or the key that made it is not
            certified as a coordinator's by this authority, now.
        UserError: the authority's certificate cannot be read.
    """
    if signature is None:
        raise NotSigned("it is not signed by the coordinator")
    try:
        trusted = x509.load_pem_x509_certificate(authority.read_bytes())
    except (OSError, ValueError):
        raise UserError(f"{authority} cannot be read as a certificate.") from None
    try:
        certificate = x509.load_pem_x509_certificate(signature.certificate)
        certificate.verify_directly_issued_by(trusted)
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        raise NotSigned("it is signed by somebody who is not the coordinator") from None
    key = certificate.public_key()
    if SIGNS_REQUESTS not in usage or not isinstance(key, ec.EllipticCurvePublicKey):
        raise NotSigned("it is signed with a certificate that is not for requests")
    now = datetime.datetime.now(datetime.UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise NotSigned("the coordinator's certificate is not valid today")
    try:
        key.verify(signature.signature, statement, ALGORITHM)
    except InvalidSignature:
        raise NotSigned("its signature is of something else") from None

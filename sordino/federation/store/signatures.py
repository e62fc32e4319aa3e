"""Signatures: which keys vouch for a run.

An Ed25519 key signs the last line of a run's ledger, and with it everything that the line seals.

    signatures/FINGERPRINT.json     one file for each key
      public     the public key
      ledger     the hash that the ledger's last line is chained to
      files      SHA-256 of files that no ledger seals: audits, attacks
      signature  over all of that

Somebody who changes a folder can rewrite its seals, or take a signature away, but cannot sign in
another's name. An auditor of a foreign run therefore has to know the key, or its fingerprint, from
elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from sordino.federation.store.files import write_whole, writing
from sordino.federation.store.run_folder import RunFolder, as_json
from sordino.federation.store.seals import SealCheck, digest_of, file_seal
from sordino.privacy.ledger import read_ledger
from sordino.protocol import UserError
from sordino.protocol.errors import format_command

# How a fingerprint begins.
PREFIX = "ed25519-"
# Hexadecimal digits of a fingerprint: 128 bits, too many to find a second key with the same.
LENGTH = 32
FOLDER = "signatures"
# Folders of a run whose files are written after its seal, so that no ledger can seal them.
EVIDENCE = ("audits", "attacks")


@dataclass(frozen=True, kw_only=True)
class RunSignature:
    """A signature of a run, as its file has it.

    Attributes:
        public: The public key, 32 bytes in hexadecimal.
        ledger: The hash that the ledger's last line is chained to.
        files: SHA-256 of files that no ledger seals, by their path in the run's folder.
        signature: 64 bytes in hexadecimal, over all of that.
    """

    public: str
    ledger: str
    files: Mapping[str, str]
    signature: str = ""

    @property
    def fingerprint(self) -> str:
        """A short name of the key."""
        return fingerprint_of(bytes.fromhex(self.public))

    @property
    def message(self) -> bytes:
        """The bytes that are signed."""
        # They begin with what they are, so that no other signature of the same key can pass for
        # one of a run.
        body = {"public": self.public, "ledger": self.ledger, "files": dict(self.files)}
        return f"sordino run 1 {digest_of(body)}".encode()

    @property
    def valid(self) -> bool:
        """Whether the key has signed this."""
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.public))
            key.verify(bytes.fromhex(self.signature), self.message)
        except (InvalidSignature, ValueError):
            return False
        return True


def fingerprint_of(public: bytes) -> str:
    """Returns the name of a public key: a digest short enough to be read aloud.

    Args:
        public: The 32 bytes of the key.

    Example:
        >>> fingerprint_of(bytes(32))
        'ed25519-66687aadf862bd776c8fc18b8e9f8e20'
    """
    return PREFIX + hashlib.sha256(public).hexdigest()[:LENGTH]


def write_new_key(path: Path) -> str:
    """Makes a key and writes it to a file that only its owner can read.

    The public key is written next to it, as FILE.pub.

    Args:
        path: Where the private key goes; a file that is there already is never written over.

    Returns:
        The fingerprint.

    Raises:
        UserError: There is such a file already, or it cannot be written.
    """
    public_path = path.with_name(path.name + ".pub")
    for taken in (path, public_path):
        if taken.exists():
            raise UserError(f"{taken} exists already. Choose another name: a key is not replaced.")
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with writing(path):
        # Made with its mode: there is no moment at which others could read it.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:
            file.write(private)
    with writing(public_path):
        public_path.write_bytes(public)
    return name_signer(key)


def raw_bytes(key: Ed25519PublicKey) -> bytes:
    """Returns the 32 bytes of a public key.

    Args:
        key: The key that signs the run.
    """
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def name_signer(key: Ed25519PrivateKey | None) -> str:
    """Returns the fingerprint of a key that signs; empty where there is none.

    Args:
        key: The private key.
    """
    return "" if key is None else fingerprint_of(raw_bytes(key.public_key()))


def refuse_unsigned(place: RunFolder, key: Ed25519PrivateKey | None) -> None:
    """Refuses to continue without a key with a run that was to be signed.

    Args:
        place: The run folder.
        key: The key that would sign it; another one than at the start will do.

    Raises:
        UserError: The run would end without its signature.
    """
    facts = place.facts()
    signer = facts.get("signer")
    if signer and key is None and facts["status"] == "unfinished":
        how = format_command("resume", place.path, "--sign", "KEY")
        raise UserError(
            f"{place.path} is to be signed by {signer} when it ends, and no key was given. "
            f"Go on with `{how}`; another key will do."
        )


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Reads a private key.

    Args:
        path: Its file.

    Returns:
        The key.

    Raises:
        UserError: There is none, it is of another kind, or others can read it.
    """
    how = f"Make one with `{format_command('verify', '--new-key', 'FILE')}`."
    try:
        mode = path.stat().st_mode
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise UserError(f"the key {path} cannot be read: {error.strerror}. {how}") from None
    except (ValueError, TypeError):
        raise UserError(
            f"{path} is not a private key in PEM format without a password. {how}"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError(f"{path} is not an Ed25519 key. {how}")
    # A key that others can read vouches for nobody.
    if mode & 0o077:
        raise UserError(f"others can read the key {path}. Take their right away: chmod 600 {path}")
    return key


def read_fingerprint(text: str) -> str:
    """Returns the fingerprint that `--key` names.

    Args:
        text: A fingerprint, or the file of a public or private key.

    Returns:
        The fingerprint with its prefix.

    Raises:
        UserError: It is neither.
    """
    path = Path(text)
    if path.is_file():
        return fingerprint_of(raw_bytes(read_public_key(path)))
    digits = text.removeprefix(PREFIX)
    if len(digits) != LENGTH or not all(digit in "0123456789abcdef" for digit in digits):
        raise UserError(
            f"--key {text!r}: expected the file of a public key, or a fingerprint such as "
            f"{PREFIX}{'0' * 8}... with {LENGTH} digits."
        )
    return PREFIX + digits


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Reads a public key from the file of a public or a private one.

    Args:
        path: The file.

    Returns:
        The public key.

    Raises:
        UserError: The file holds no Ed25519 key.
    """
    content = path.read_bytes()
    try:
        if b"PRIVATE KEY" in content:
            private = load_pem_private_key(content, password=None)
            found = private.public_key()
        else:
            found = load_pem_public_key(content)
    except (ValueError, TypeError):
        raise UserError(f"{path} is not a key in PEM format.") from None
    if not isinstance(found, Ed25519PublicKey):
        raise UserError(f"{path} is not an Ed25519 key.")
    return found


def evidence_of(run: Path) -> dict[str, str]:
    """Returns the digests of the files of a run that no ledger seals.

    Args:
        run: The run folder.

    Returns:
        Each digest by the file's path in the folder.
    """
    return {
        f"{name}/{path.name}": file_seal(path)
        for name in EVIDENCE
        for path in sorted((run / name).glob("*.json"))
    }


def sign_run(run: Path, key: Ed25519PrivateKey) -> str:
    """Signs a run that has ended, in place of an earlier signature of the same key.

    Args:
        run: The run folder.
        key: The private key.

    Returns:
        The fingerprint of the key.

    Raises:
        UserError: The run has not ended, or its ledger has no seal.
    """
    place = RunFolder.existing(run)
    reading = read_ledger(place.ledger_path)
    if reading.seal is None:
        raise UserError(
            f"{run} has no seal that could be signed: it is {place.facts()['status']}, or was "
            "written before there were seals."
        )
    public = raw_bytes(key.public_key())
    unsigned = RunSignature(public=public.hex(), ledger=reading.chain, files=evidence_of(run))
    target = run / FOLDER / f"{unsigned.fingerprint}.json"
    with writing(target):
        target.parent.mkdir(exist_ok=True)
        document = {
            "public": unsigned.public,
            "ledger": unsigned.ledger,
            "files": dict(unsigned.files),
            "signature": key.sign(unsigned.message).hex(),
        }
        write_whole(target, as_json(document))
    return unsigned.fingerprint


def signatures_of(run: Path) -> list[tuple[Path, RunSignature | None]]:
    """Returns the signatures in a run's folder with their files.

    Args:
        run: The run folder.

    Returns:
        Each file and its signature; None for a file that cannot be read.
    """
    found = []
    for path in sorted((run / FOLDER).glob("*.json")):
        found.append((path, read_signature(path)))
    return found


def read_signature(path: Path) -> RunSignature | None:
    """Reads a signature; None where the file is not one.

    Args:
        path: The file.

    Returns:
        The signature, which need not be valid.
    """
    try:
        document = json.loads(path.read_bytes())
        signature = RunSignature(
            public=str(document["public"]),
            ledger=str(document["ledger"]),
            files={str(name): str(value) for name, value in document["files"].items()},
            signature=str(document["signature"]),
        )
        # A key that is not hexadecimal has no fingerprint, so the file could not even be named.
        bytes.fromhex(signature.public)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return signature


def signers_of(run: Path) -> tuple[str, ...]:
    """Returns the fingerprints of the keys that have signed a run as it is now.

    Args:
        run: The run folder.
    """
    chain = read_ledger(run / "ledger.jsonl").chain
    return tuple(
        signature.fingerprint
        for _, signature in signatures_of(run)
        if signature is not None and signature.valid and signature.ledger == chain
    )


def signed_evidence(run: Path) -> dict[str, str]:
    """Returns the digests of findings that somebody has signed together with the run as it is now.

    Args:
        run: The run folder.

    Returns:
        Each digest by the file's path in the folder.
    """
    chain = read_ledger(run / "ledger.jsonl").chain
    found: dict[str, str] = {}
    for _, signature in signatures_of(run):
        # A signature of an earlier ledger says nothing about the run as it is now.
        if signature is not None and signature.valid and signature.ledger == chain:
            found.update(signature.files)
    return found


def signature_checks(run: Path, wanted: str | None) -> list[SealCheck]:
    """Returns what became of the signatures of a run.

    Args:
        run: Its folder.
        wanted: The fingerprint of the key that must have signed it; None if any will do.

    Returns:
        One check or more for each signature; one that says so where there is none.
    """
    chain = read_ledger(run / "ledger.jsonl").chain
    checks = []
    for path, signature in signatures_of(run):
        checks += check_run_signature(run, path, signature, chain, wanted)
    if wanted is not None and wanted not in signers_of(run):
        said = (
            f"{run} is not signed by {wanted}: it is another run, or was changed, or the signature "
            "was taken away."
        )
        checks.append(SealCheck(subject="signature", result="changed", said=said))
    if not checks:
        said = "the run is not signed: rewriting the whole folder leaves no trace"
        signer = RunFolder(run).facts().get("signer")
        if signer:
            said = (
                f"the run was to be signed by {signer}, and is not: it has not ended, or was "
                "stopped just then, or its signature was taken away"
            )
        checks.append(SealCheck(subject="signature", result="not checked", said=said))
    return checks


def check_run_signature(
    run: Path,
    path: Path,
    signature: RunSignature | None,
    chain: str,
    wanted: str | None,
) -> list[SealCheck]:
    """Returns what became of one signature, and of the files that it covers.

    Args:
        run: The run folder.
        path: The file of the signature.
        signature: The signature; None if the file cannot be read.
        chain: The hash that the ledger's last line is chained to.
        wanted: The fingerprint of the key that must have signed; None if any will do.
    """
    if signature is None or not signature.valid:
        said = f"{path} was changed: it is not the signature of the key that it names."
        return [SealCheck(subject="signature", result="changed", said=said)]
    who = signature.fingerprint
    if signature.ledger != chain:
        said = (
            f"{run / 'ledger.jsonl'} is not the ledger that {who} has signed: it was changed, or "
            "is of another run."
        )
        return [SealCheck(subject="signature", result="changed", said=said)]
    if who == wanted:
        said = f"signed by {who}, the requested key"
    else:
        said = f"signed by {who}; whose key that is cannot be known here: compare it, or give --key"
    checks = [SealCheck(subject="signature", result="whole", said=said)]
    present = evidence_of(run)
    for name, digest in signature.files.items():
        if present.get(name) == digest:
            continue
        fate = "was changed"
        if name not in present:
            fate = "is gone"
        said = f"{run / name} {fate} after {who} signed it."
        checks.append(SealCheck(subject=name, result="changed", said=said))
    return checks

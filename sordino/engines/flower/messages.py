"""Requests and uploads as Flower's messages, and back. What comes from another machine is looked at before it is believed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode

from sordino.engines.flower.agreement import Agreement
from sordino.engines.flower.requests import HELPER, MODEL, Request, RequestRefused
from sordino.engines.flower.signing import (
    Signature,
    Signer,
    introduction_statement,
    request_statement,
)
from sordino.protocol import SordinoError, UserError
from sordino.protocol.version import own_version

LOG = logging.getLogger("flwr")  # Flower shows what its own logger says
REQUEST, ARRAYS, UPLOAD, KEPT, SELF = "request", "arrays", "upload", "kept", "self"
SIGNED = "signed"
VECTOR = "vector"
RECORDS = 10**8  # that a client may say it has: the coordinator counts them one by one
HEADER = 4096  # bytes that an array may take beside its numbers
FIELDS: Mapping[str, type] = {
    "training": str,
    "protocol": str,
    "client": int,
    "round": int,
    "attempt": int,
}


class Malformed(SordinoError):
    """A message that is not what was expected, in words that say what is wrong with it."""


def answered(message: Message, answer: Callable[[], Message]) -> Message:
    """What leaves a client: its answer, the reason of a refusal, or that something went wrong and nothing more."""
    try:
        return answer()
    except RequestRefused as refusal:
        LOG.warning("refused: %s", refusal)
        return Message(
            Error(ErrorCode.MOD_FAILED_PRECONDITION, f"it refused: {refusal}"), reply_to=message
        )
    except Exception as error:
        # What went wrong may show in its words what is in the client's records, so the words stay here.
        LOG.error(
            "the client failed: %s",
            error,
            exc_info=None if isinstance(error, SordinoError) else error,
        )
        return Message(
            Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "it failed; its own log says why"),
            reply_to=message,
        )


def request_message(
    request: Request, *, node: int, ttl: float, signer: Signer | None = None, run: str = ""
) -> Message:
    """Returns the message that asks a node for an upload.

    Args:
        request: what is asked.
        node: whom Flower hands the message to.
        ttl: seconds after which Flower forgets it.
        signer: the coordinator's key; None only where nothing is secured, in a test.
        run: the run on Flower, which is signed too.
    """
    fields = ConfigRecord({name: getattr(request, name) for name in FIELDS})
    content = RecordDict({REQUEST: fields, ARRAYS: records_of(request.arrays)})
    attach_signature(content, request_statement(request, run), signer)
    return Message(content, node, MessageType.TRAIN, ttl=ttl, group_id=str(request.round + 1))


def question_message(*, node: int, signer: Signer | None = None, run: str = "") -> Message:
    """Returns the message that asks a node which client it is."""
    content = RecordDict()
    attach_signature(content, introduction_statement(run), signer)
    return Message(content, node, MessageType.QUERY)


def attach_signature(content: RecordDict, statement: bytes, signer: Signer | None) -> None:
    """Adds the coordinator's signature of a statement to the content of a message."""
    if signer is not None:
        content[SIGNED] = ConfigRecord(dict(vars(signer.sign(statement))))


def take_signature(message: Message) -> Signature | None:
    """Takes the signature out of a message, so that what is left is what was signed.

    Returns:
        The signature, or None where there is none that can be read.
    """
    found = message.content.pop(SIGNED, None) if message.has_content() else None
    if not isinstance(found, ConfigRecord) or set(found) != {"certificate", "signature"}:
        return None
    certificate = found["certificate"]
    signature = found["signature"]
    if not isinstance(certificate, bytes) or not isinstance(signature, bytes):
        return None
    return Signature(certificate=certificate, signature=signature)


def read_request(message: Message) -> Request:
    """The request in a message.

    Raises:
        Malformed: it is none.
    """
    content = only(message, {REQUEST, ARRAYS})
    fields, arrays = content[REQUEST], content[ARRAYS]
    if (
        not isinstance(fields, ConfigRecord)
        or not isinstance(arrays, ArrayRecord)
        or set(fields) != set(FIELDS)
    ):
        raise Malformed("its records are not those of a request")
    given: dict[str, Any] = {name: fields[name] for name in FIELDS}
    for name, kind in FIELDS.items():
        if type(given[name]) is not kind or (kind is int and given[name] < 0):
            raise Malformed(f"its {name} is not what it should be")
    if MODEL not in arrays or not set(arrays) <= {MODEL, HELPER}:
        raise Malformed("its arrays are not those of a request")
    return Request(**given, arrays=arrays_of(arrays))


def upload_reply(
    request: Message, vector: np.ndarray, kept: Mapping[str, np.ndarray] | None = None
) -> Message:
    """The reply with an upload; `kept` stays on the client's machine and is taken out before the reply leaves it."""
    content = RecordDict({UPLOAD: records_of({VECTOR: vector})})
    if kept is not None:
        content[KEPT] = records_of(kept)
    return Message(content, reply_to=request)


def read_upload(
    message: Message,
    *,
    size: int,
    dtype: np.dtype[Any],
    allowed: frozenset[str] = frozenset({UPLOAD}),
) -> np.ndarray:
    """The upload in a reply: one finite vector of this size and type, under the right names, and nothing else.

    Raises:
        Malformed: it is none. The sizes are compared before anything is unpacked.
    """
    upload = only(message, allowed)[UPLOAD]
    if not isinstance(upload, ArrayRecord) or set(upload) != {VECTOR}:
        raise Malformed(f"it sent arrays under other names than {VECTOR!r}")
    array = upload[VECTOR]
    if array.dtype != str(dtype) or tuple(array.shape) != (size,):
        raise Malformed(
            f"it sent {array.dtype} numbers of shape {tuple(array.shape)}; expected are {dtype}, ({size},)"
        )
    if len(array.data) > size * dtype.itemsize + HEADER:
        raise Malformed(f"it sent {len(array.data):,} bytes for {size} numbers")
    vector = as_numpy(array)
    if vector.dtype != dtype or vector.shape != (size,):
        raise Malformed("what it sent is not what it says it sent")
    if not np.isfinite(vector).all():
        raise Malformed("it sent numbers that are not finite")
    return vector


def only(message: Message, expected: frozenset[str] | set[str]) -> RecordDict:
    """The content of a message, if it has exactly these records."""
    if not message.has_content():
        raise Malformed("it is empty")
    content = message.content
    if not isinstance(content, RecordDict) or set(content) != set(expected):
        raise Malformed(f"it sent records under other names than {', '.join(sorted(expected))}")
    return content


def introduction(request: Message, agreement: Agreement) -> Message:
    """A client says who it is and how many records it has, which is public."""
    if agreement.records is None:
        raise UserError(
            "the agreement does not say how many records there are: add `records` to agreement.toml."
        )
    return Message(
        RecordDict(
            {
                SELF: ConfigRecord(
                    {
                        "client": agreement.client,
                        "records": agreement.records,
                        "version": own_version(),
                    }
                )
            }
        ),
        reply_to=request,
    )


@dataclass(frozen=True, kw_only=True)
class Introduction:
    """What a node says of itself: which client it is, how many records that has, its Sordino."""

    client: int
    records: int
    version: str


def read_introduction(message: Message) -> Introduction:
    """Returns what a node says of itself.

    Raises:
        Malformed: it does not say it as it should.
    """
    found = only(message, {SELF})[SELF]
    if not isinstance(found, ConfigRecord) or set(found) != {"client", "records", "version"}:
        raise Malformed("it does not say who it is")
    client = found["client"]
    records = found["records"]
    version = found["version"]
    if type(client) is not int or type(records) is not int or type(version) is not str:
        raise Malformed("it does not say who it is")
    if client < 0 or not 1 <= records <= RECORDS:
        raise Malformed("it does not say who it is")
    return Introduction(client=client, records=records, version=version)


def records_of(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Arrays as Flower sends them."""
    return ArrayRecord(
        {name: Array(np.asarray(array, order="C")) for name, array in arrays.items()}
    )


def arrays_of(record: Any) -> dict[str, np.ndarray]:
    """The arrays of a record."""
    return {name: as_numpy(array) for name, array in record.items()}


def as_numpy(array: Array) -> np.ndarray:
    """One array, unpacked; whatever goes wrong is the sender's mistake.

    What numpy raises depends on the bytes: BadZipFile, TokenError and RecursionError were seen too.
    """
    try:
        return np.asarray(array.numpy())
    except Exception as error:
        raise Malformed(f"an array cannot be unpacked ({type(error).__name__})") from None


def in_one_line(text: str | None, limit: int = 200) -> str:
    """What another machine says, made harmless."""
    return "".join(c for c in " ".join((text or "").split()) if c.isprintable())[:limit]

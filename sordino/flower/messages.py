"""Converts requests and uploads to Flower's messages and back.

Whatever comes from another machine is checked before it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode

from sordino.flower.agreement import Agreement
from sordino.flower.signing import (
    Signature,
    Signer,
    introduction_statement,
    request_statement,
)
from sordino.flower.upload_requests import HELPER, MODEL, Request, RequestRefused
from sordino.protocol import SordinoError, UserError
from sordino.protocol.version import own_version

# Flower prints only its own logger's records.
LOG = logging.getLogger("flwr")
# Names of the records in a message.
REQUEST = "request"
ARRAYS = "arrays"
UPLOAD = "upload"
KEPT = "kept"
SELF = "self"
SIGNED = "signed"
VECTOR = "vector"
# What belongs to secure sums.
SUMS = "sums"
# The wave that goes with a request for an upload.
MASK = "mask"
# Records that a client may claim to have; the coordinator makes an index for each of them.
LARGEST_RECORDS = 10**8
# Bytes that an array may take in addition to its numbers.
HEADER_BYTES = 4096
# Letters that the name of a training has at most; ours have 32.
NAME_LENGTH = 200
# Fields of a request, with their types.
FIELDS: Mapping[str, type] = {
    "training": str,
    "protocol": str,
    "client": int,
    "round": int,
    "attempt": int,
}


class MalformedMessage(SordinoError):
    """Is raised for a message that is not as expected; its text names the fault."""


def reply_safely(message: Message, answer: Callable[[], Message]) -> Message:
    """Returns what may leave a client: an answer, the reason of a refusal, or a bare error.

    Args:
        message: The message to reply to.
        answer: Computes the answer.

    Returns:
        The reply. An unexpected error is logged on the client's machine and not sent.
    """
    try:
        return answer()
    except RequestRefused as refusal:
        LOG.warning("refused: %s", refusal)
        return Message(
            Error(ErrorCode.MOD_FAILED_PRECONDITION, f"it refused: {refusal}"), reply_to=message
        )
    except Exception as error:
        # The words of an error may quote private records, so they stay here. Errors of Sordino
        # explain themselves; others are shown with where they come from.
        trace = not isinstance(error, SordinoError)
        LOG.error("the client failed: %s", error, exc_info=trace)
        return Message(
            Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "it failed; its own log says why"),
            reply_to=message,
        )


def request_message(
    request: Request, *, node: int, ttl: float, signer: Signer | None = None, run: str = ""
) -> Message:
    """Returns the message that asks a node for an upload.

    Args:
        request: What the server asks of a client in a round.
        node: Flower's id of the node.
        ttl: Seconds after which Flower forgets the message.
        signer: The coordinator's key; None in tests without TLS.
        run: The run on Flower, which is signed too.
    """
    fields = ConfigRecord({name: getattr(request, name) for name in FIELDS})
    content = RecordDict({REQUEST: fields, ARRAYS: pack_arrays(request.arrays)})
    if request.sums:
        content[SUMS] = make_wave_record(MASK, request.sums)
    attach_signature(content, request_statement(request, run), signer)
    return Message(content, node, MessageType.TRAIN, ttl=ttl, group_id=str(request.round + 1))


def introduction_request(*, node: int, signer: Signer | None = None, run: str = "") -> Message:
    """Returns the message that asks a node which client it is.

    Args:
        node: Flower's id of the node.
        signer: The coordinator's key; None in tests without TLS.
        run: The run on Flower, which is signed.
    """
    content = RecordDict()
    attach_signature(content, introduction_statement(run), signer)
    return Message(content, node, MessageType.QUERY)


def attach_signature(content: RecordDict, statement: bytes, signer: Signer | None) -> None:
    """Adds the coordinator's signature to the content of a message.

    Args:
        content: The content, which is changed.
        statement: The bytes that are signed.
        signer: The coordinator's key; None to add nothing.
    """
    if signer is not None:
        content[SIGNED] = ConfigRecord(dict(vars(signer.sign(statement))))


def take_signature(message: Message) -> Signature | None:
    """Takes the signature out of a message, so that the signed content is left.

    Args:
        message: The message, which is changed.

    Returns:
        The signature, or None where no readable one is there.
    """
    if not message.has_content():
        return None
    found = message.content.pop(SIGNED, None)
    if not isinstance(found, ConfigRecord) or set(found) != {"certificate", "signature"}:
        return None
    certificate = found["certificate"]
    signature = found["signature"]
    if not isinstance(certificate, bytes) or not isinstance(signature, bytes):
        return None
    return Signature(certificate=certificate, signature=signature)


def make_wave_record(wave: str, body: bytes) -> ConfigRecord:
    """Returns the record of a wave.

    Args:
        wave: Its name.
        body: Its body.
    """
    return ConfigRecord({"wave": wave, "body": body})


def read_wave_record(
    message: Message, expected: set[str], wave: str | None = None
) -> tuple[str, bytes]:
    """Returns the name and the body of the wave in a message.

    Args:
        message: The message, as Flower carries it.
        expected: Names of all its records.
        wave: The wave that it must be; None for any.

    Raises:
        MalformedMessage: There is no such record.
    """
    found = check_records(message, expected)[SUMS]
    if not isinstance(found, ConfigRecord) or set(found) != {"wave", "body"}:
        raise MalformedMessage("its record of sums has other fields")
    name = found["wave"]
    body = found["body"]
    if type(name) is not str or type(body) is not bytes or wave not in (None, name):
        raise MalformedMessage("its record of sums has other fields")
    return name, body


def read_request(message: Message) -> Request:
    """Returns the request in a message.

    Args:
        message: The message, as Flower carries it.

    Raises:
        MalformedMessage: It holds no request.
    """
    sums = b""
    expected = {REQUEST, ARRAYS}
    if message.has_content() and SUMS in message.content:
        expected = {*expected, SUMS}
        _, sums = read_wave_record(message, expected, wave=MASK)
    content = check_records(message, expected)
    fields = content[REQUEST]
    arrays = content[ARRAYS]
    if not isinstance(fields, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise MalformedMessage("its records are not those of a request")
    if set(fields) != set(FIELDS):
        raise MalformedMessage("its records are not those of a request")
    given: dict[str, Any] = {name: fields[name] for name in FIELDS}
    for name, kind in FIELDS.items():
        # A bool is an int to isinstance, so types are compared exactly.
        if type(given[name]) is not kind or (kind is int and given[name] < 0):
            raise MalformedMessage(f"its {name} is not what it should be")
    # It is written down, and read again with every request.
    if len(given["training"]) > NAME_LENGTH:
        raise MalformedMessage("its training is not what it should be")
    if MODEL not in arrays or not set(arrays) <= {MODEL, HELPER}:
        raise MalformedMessage("its arrays are not those of a request")
    return Request(**given, arrays=unpack_arrays(arrays), sums=sums)


def upload_reply(
    request: Message, vector: np.ndarray, kept: Mapping[str, np.ndarray] | None = None
) -> Message:
    """Returns the reply with an upload.

    Args:
        request: The message to reply to.
        vector: The upload.
        kept: What the client keeps; the guard takes it out before the reply leaves the machine.
    """
    content = RecordDict({UPLOAD: pack_arrays({VECTOR: vector})})
    if kept is not None:
        content[KEPT] = pack_arrays(kept)
    return Message(content, reply_to=request)


def read_upload(
    message: Message,
    *,
    size: int,
    dtype: np.dtype[Any],
    allowed: frozenset[str] = frozenset({UPLOAD}),
) -> np.ndarray:
    """Returns the upload in a reply: one finite vector, under the right names, and nothing else.

    Args:
        message: The reply.
        size: Number of values that are expected.
        dtype: Their type.
        allowed: Names of all records that the reply must have.

    Raises:
        MalformedMessage: It holds no such upload. Sizes are compared before anything is unpacked.
    """
    upload = check_records(message, allowed)[UPLOAD]
    if not isinstance(upload, ArrayRecord) or set(upload) != {VECTOR}:
        raise MalformedMessage(f"it sent arrays under other names than {VECTOR!r}")
    array = upload[VECTOR]
    if array.dtype != str(dtype) or tuple(array.shape) != (size,):
        raise MalformedMessage(
            f"it sent {array.dtype} numbers of shape {tuple(array.shape)}; expected are {dtype}, "
            f"({size},)"
        )
    if len(array.data) > size * dtype.itemsize + HEADER_BYTES:
        raise MalformedMessage(f"it sent {len(array.data):,} bytes for {size} numbers")
    vector = unpack_array(array)
    if vector.dtype != dtype or vector.shape != (size,):
        raise MalformedMessage("what it sent is not what it says it sent")
    if not np.isfinite(vector).all():
        raise MalformedMessage("it sent numbers that are not finite")
    return vector


def check_records(message: Message, expected: frozenset[str] | set[str]) -> RecordDict:
    """Returns the content of a message that has exactly the expected records.

    Args:
        message: The message, as Flower carries it.
        expected: Names of the records.

    Raises:
        MalformedMessage: It is empty, or has records of other names.
    """
    if not message.has_content():
        raise MalformedMessage("it is empty")
    content = message.content
    if not isinstance(content, RecordDict) or set(content) != set(expected):
        raise MalformedMessage(
            f"it sent records under other names than {', '.join(sorted(expected))}"
        )
    return content


def introduction_reply(request: Message, agreement: Agreement, identity: bytes = b"") -> Message:
    """Returns the reply that says which client a node is and how many records it has.

    Args:
        request: The message to reply to.
        agreement: What the client agreed to; its number of records is public.
        identity: The client's public key in DER form, where it takes part in secure sums.

    Raises:
        UserError: The agreement does not state the number of records.
    """
    if agreement.records is None:
        raise UserError(
            "the agreement does not say how many records there are: add `records` to "
            "agreement.toml."
        )
    fields = ConfigRecord(
        {
            "client": agreement.client,
            "records": agreement.records,
            "inputs": agreement.inputs or "",
            "version": own_version(),
            "identity": identity,
        }
    )
    return Message(RecordDict({SELF: fields}), reply_to=request)


@dataclass(frozen=True, kw_only=True)
class Introduction:
    """Describes what a node says of itself.

    Attributes:
        client: Number of its client.
        records: Number of records of that client.
        inputs: Number of inputs of its records, axis by axis; empty where it is not known.
        version: Version of Sordino that it runs.
        identity: The client's public key in DER form; empty where it is in no secure sum.
    """

    client: int
    records: int
    inputs: str
    version: str
    identity: bytes


def read_introduction(message: Message) -> Introduction:
    """Returns what a node says of itself.

    Args:
        message: Its reply.

    Raises:
        MalformedMessage: The reply does not have the right fields.
    """
    found = check_records(message, {SELF})[SELF]
    expected = {"client", "records", "inputs", "version", "identity"}
    if not isinstance(found, ConfigRecord) or set(found) != expected:
        raise MalformedMessage("it does not say who it is")
    client = found["client"]
    records = found["records"]
    inputs = found["inputs"]
    version = found["version"]
    identity = found["identity"]
    if type(client) is not int or type(records) is not int:
        raise MalformedMessage("it does not say who it is")
    if type(inputs) is not str or type(version) is not str:
        raise MalformedMessage("it does not say who it is")
    if type(identity) is not bytes:
        raise MalformedMessage("it does not say who it is")
    if client < 0 or not 1 <= records <= LARGEST_RECORDS:
        raise MalformedMessage("it does not say who it is")
    return Introduction(
        client=client, records=records, inputs=inputs, version=version, identity=identity
    )


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Returns arrays in Flower's form.

    Args:
        arrays: The arrays by name.
    """
    return ArrayRecord(
        {name: Array(np.asarray(array, order="C")) for name, array in arrays.items()}
    )


def unpack_arrays(record: Any) -> dict[str, np.ndarray]:
    """Returns the arrays of a record.

    Args:
        record: An ArrayRecord.

    Raises:
        MalformedMessage: An array cannot be unpacked.
    """
    return {name: unpack_array(array) for name, array in record.items()}


def unpack_array(array: Array) -> np.ndarray:
    """Returns one array as numpy's.

    Args:
        array: The array in Flower's form.

    Raises:
        MalformedMessage: It cannot be unpacked.
    """
    try:
        return np.asarray(array.numpy())
    except Exception as error:
        # numpy's error depends on the bytes: BadZipFile, TokenError and RecursionError were seen.
        kind = type(error).__name__
        raise MalformedMessage(f"an array cannot be unpacked ({kind})") from None

"""Writes the values of secure sums as JSON and reads them back, exactly.

A value is written with exactly its fields. Bytes are in base64, by client where there are several.
Whatever was written elsewhere is checked field by field before it is used.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from sordino.flower.messages import NAME_LENGTH, MalformedMessage
from sordino.secure_sums.letters import NONCE_BYTES
from sordino.secure_sums.masks import KEY_BYTES, SEED_BYTES

# Bytes that a sealed letter takes: nonce, key and what authenticates it, and where the receiver
# holds shares, two of them.
BARE_LETTER_BYTES = NONCE_BYTES + KEY_BYTES + 16
LETTER_BYTES = (BARE_LETTER_BYTES, BARE_LETTER_BYTES + 2 * SEED_BYTES)
# Attempts and rounds beyond this are nobody's.
LARGEST_NUMBER = 2**53


@dataclass(frozen=True)
class Form:
    """How a field of a body is written to JSON and read from it.

    Attributes:
        write: Returns the value as JSON has it.
        read: Returns the value; raises ValueError, TypeError or KeyError where it is none.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def write_bytes(value: bytes) -> str:
    """Returns bytes in base64.

    Args:
        value: The bytes.
    """
    return base64.b64encode(value).decode()


def read_bytes(raw: Any, *lengths: int) -> bytes:
    """Returns the bytes that `write_bytes` has written.

    Args:
        raw: The text.
        lengths: How many bytes there may be; none for any number.

    Raises:
        ValueError: It is not such a text.
    """
    if type(raw) is not str:
        raise ValueError("bytes are written as text")
    # Without validation, letters outside the alphabet are skipped, and many texts are one value.
    value = base64.b64decode(raw, validate=True)
    if lengths and len(value) not in lengths:
        raise ValueError("another length")
    return value


def read_number(raw: Any, least: int = 0) -> int:
    """Returns an integer in the range that is counted here.

    Args:
        raw: The number.
        least: The smallest that is allowed.

    Raises:
        ValueError: It is none.
    """
    # A bool is an int to isinstance, so types are compared exactly.
    if type(raw) is not int or not least <= raw <= LARGEST_NUMBER:
        raise ValueError("not such a number")
    return raw


def read_client(raw: str) -> int:
    """Returns the client that a key of a JSON object names.

    Args:
        raw: The key.

    Raises:
        ValueError: It is not a number in the one form that is written.
    """
    client = int(raw)
    # int() takes "+1" and " 1" as well, so one client could appear twice in an object.
    if str(client) != raw:
        raise ValueError("not a client's number")
    return read_number(client)


def read_text(raw: Any) -> str:
    """Returns a text.

    Args:
        raw: The text.

    Raises:
        ValueError: It is none.
    """
    if type(raw) is not str:
        raise ValueError("not a text")
    # JSON has halves of letters, which no file and no digest takes: this raises a ValueError.
    raw.encode()
    return raw


def read_name(raw: Any) -> str:
    """Returns the name of a training.

    Args:
        raw: The name.

    Raises:
        ValueError: It is none, or longer than any.
    """
    if len(read_text(raw)) > NAME_LENGTH:
        raise ValueError("no training has such a name")
    return str(raw)


def make_mapping_form(one: Form) -> Form:
    """Returns the form of a mapping from clients to values.

    Args:
        one: The form of a value.
    """

    def write(values: Mapping[int, Any]) -> dict[str, Any]:
        return {str(client): one.write(values[client]) for client in sorted(values)}

    def read(raw: Any) -> dict[int, Any]:
        return {read_client(client): one.read(value) for client, value in raw.items()}

    return Form(write, read)


def make_optional_form(one: Form) -> Form:
    """Returns the form of a value that may be absent.

    Args:
        one: The form of the value.
    """
    return Form(
        lambda value: None if value is None else one.write(value),
        lambda raw: None if raw is None else one.read(raw),
    )


def make_body_form(kind: type[Any]) -> Form:
    """Returns the form of a value that is itself a body.

    Args:
        kind: Its type.
    """
    return Form(lambda value: _write_fields(kind, value), lambda raw: _read_fields(kind, raw))


def read_clients_named(raw: Any) -> tuple[int, ...]:
    """Returns a list of clients.

    Args:
        raw: The list.

    Raises:
        ValueError: It is not one of numbers.
    """
    if type(raw) is not list:
        raise ValueError("not a list")
    return tuple(read_number(client) for client in raw)


TEXT = Form(str, read_text)
NAME = Form(str, read_name)
BYTES = Form(write_bytes, lambda raw: read_bytes(raw))
# Lengths are checked where a value comes in: a wrong one would fail deep inside the cryptography.
KEY = Form(write_bytes, lambda raw: read_bytes(raw, KEY_BYTES))
SHARE = Form(write_bytes, lambda raw: read_bytes(raw, SEED_BYTES))
LETTER = Form(write_bytes, lambda raw: read_bytes(raw, *LETTER_BYTES))
NUMBER = Form(int, read_number)
CLIENTS = Form(list, read_clients_named)

# The fields of every value that is written; modules add their own values.
FORMS: dict[type[Any], Mapping[str, Form]] = {}


def encode_body(value: Any) -> bytes:
    """Returns a call or a reply as bytes.

    Args:
        value: The call or the reply.

    Example:
        >>> from sordino.flower.sum_messages import ConfirmReply
        >>> encode_body(ConfirmReply(signature=b"sig"))
        b'{"signature":"c2ln"}'
    """
    raw = _write_fields(type(value), value)
    # One text for one value, since bodies are signed as bytes.
    return json.dumps(raw, separators=(",", ":"), sort_keys=True).encode()


def decode_body(kind: type[Any], body: Any) -> Any:
    """Returns the call or the reply in a body.

    Args:
        kind: Its type.
        body: What came.

    Raises:
        MalformedMessage: The body is not one of that type.

    Example:
        >>> from sordino.flower.sum_messages import ConfirmReply
        >>> decode_body(ConfirmReply, b'{"signature":"c2ln"}').signature
        b'sig'
    """
    try:
        if type(body) is not bytes:
            raise ValueError("a body is bytes")
        return _read_fields(kind, json.loads(body))
    # Deeply nested JSON ends in a RecursionError, which must not stop a client either.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
        raise MalformedMessage(f"it holds no {kind.__name__} that can be read") from None


def _write_fields(kind: type[Any], value: Any) -> dict[str, Any]:
    return {name: form.write(getattr(value, name)) for name, form in FORMS[kind].items()}


def _read_fields(kind: type[Any], raw: Any) -> Any:
    forms = FORMS[kind]
    # Exactly these fields: what is not understood must not be ignored.
    if type(raw) is not dict or set(raw) != {one.name for one in fields(kind)}:
        raise ValueError("other fields")
    return kind(**{name: form.read(raw[name]) for name, form in forms.items()})

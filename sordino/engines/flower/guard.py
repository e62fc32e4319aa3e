"""The client's mod: whatever the server asks, only what the client agreed to is computed, paid for and sent."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable

from sordino.engines.flower.custody import Answer, Custodian
from sordino.engines.flower.messages import (
    KEPT,
    UPLOAD,
    VECTOR,
    Malformed,
    answered,
    arrays_of,
    introduction,
    read_request,
    records_of,
    take_signature,
    upload_reply,
)
from sordino.engines.flower.requests import Request
from sordino.engines.flower.signing import (
    NotSigned,
    Signature,
    check_signature,
    introduction_statement,
    request_statement,
)
from sordino.protocol import UserError

FOLDER = "sordino-folder"  # the setting of a node that says where its client's folder is


def guard(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Flower mod: enforce the agreement in the client's folder around a ClientApp that does the local work.

    Example:
        >>> app = ClientApp(mods=[guard])  # doctest: +SKIP
    """

    def answer() -> Message:
        custodian = Custodian(client_folder(context))
        with custodian.at_work():
            signature = take_signature(message)
            run = str(context.run_id)
            if message.metadata.message_type == MessageType.QUERY:
                refuse_strangers(custodian, introduction_statement(run), signature)
                return introduction(message, custodian.agreement)
            if message.metadata.message_type != MessageType.TRAIN:
                raise custodian.refused(
                    0,
                    f"a message of the type {message.metadata.message_type!r} is none that it answers",
                )
            return trained(message, context, call_next, custodian, signature)

    return answered(message, answer)


def refuse_strangers(
    custodian: Custodian, statement: bytes, signature: Signature | None, round: int = 0
) -> None:
    """Refuses what the coordinator did not sign.

    An agreement without an authority is one of a test, whose node connects to an unsecured
    SuperLink; `sordino flower node` starts such a node only with --insecure.

    Args:
        custodian: who keeps the client's folder, which must be held.
        statement: what must have been signed.
        signature: what came with the message.
        round: the round that is asked for, for the ledger.

    Raises:
        RequestRefused: the reason is in the ledger by then, and nothing else has changed.
    """
    authority = custodian.agreement.certificate
    if authority is None:
        return
    try:
        check_signature(statement, signature, Path(authority))
    except NotSigned as error:
        raise custodian.refused(round, f"a message was not answered: {error}") from None


def trained(
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
    custodian: Custodian,
    signature: Signature | None,
) -> Message:
    """Answer a request to train: decide, let the app do the work, keep the upload, send it."""
    began = time.perf_counter()
    try:
        request = read_request(message)
    except Malformed as error:
        raise custodian.refused(0, f"a request was not understood: {error}") from None
    run = str(context.run_id)
    refuse_strangers(custodian, request_statement(request, run), signature, request.round)
    answer = custodian.admit(request, run)
    working = 0.0
    if answer is None:
        message.content[KEPT] = records_of(custodian.state())
        started = time.perf_counter()
        reply = call_next(message, context)
        working = time.perf_counter() - started
        answer = kept(custodian, request, run, reply)
    reply = upload_reply(message, answer.vector)
    note_time(custodian.folder, request.round, working, time.perf_counter() - began - working)
    return reply


def kept(custodian: Custodian, request: Request, run: str, reply: Message) -> Answer:
    """Put an upload into custody, and what the app hands over to be kept with it."""
    if not reply.has_content() or UPLOAD not in reply.content:
        raise UserError("the local work gave no upload.")
    own = arrays_of(reply.content[KEPT]) if KEPT in reply.content else {}
    return custodian.keep(request, run, arrays_of(reply.content[UPLOAD])[VECTOR], own)


def client_folder(context: Context) -> Path:
    """The client's folder, which the operator of the node has named."""
    folder = str(context.node_config.get(FOLDER, ""))
    if not folder:
        raise UserError(
            f"this node does not say where its client's folder is: start it with --node-config '{FOLDER}=\"/path\"'."
        )
    return Path(folder)


def note_time(folder: Path, number: int, working: float, guarding: float) -> None:
    """Keep how long the local work of a round took and how long everything here took, for the client's own eyes."""
    with open(folder / "seconds.jsonl", "a", encoding="utf-8") as file:
        file.write(
            json.dumps({"round": number, "work": round(working, 4), "guard": round(guarding, 4)})
            + "\n"
        )

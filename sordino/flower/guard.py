"""Answers a coordinator's messages as a mod for Flower, only with what the client agreed to."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable

from sordino.flower.admission import admit_request
from sordino.flower.client_store import ClientStore
from sordino.flower.kept_answers import Answer
from sordino.flower.masked_uploads import find_mask_signature, keep_masked_upload
from sordino.flower.messages import (
    KEPT,
    MASK,
    SUMS,
    UPLOAD,
    VECTOR,
    MalformedMessage,
    introduction_reply,
    make_wave_record,
    pack_arrays,
    read_request,
    read_wave_record,
    reply_safely,
    take_signature,
    unpack_arrays,
    upload_reply,
)
from sordino.flower.signing import (
    InvalidSender,
    Signature,
    check_signature,
    introduction_statement,
    request_statement,
    sums_statement,
)
from sordino.flower.sum_answers import answer_sum_call
from sordino.flower.sum_forms import encode_body
from sordino.flower.sum_messages import sum_reply
from sordino.flower.sum_parties import find_own_identity
from sordino.flower.upload_requests import Request
from sordino.protocol import UserError

# The setting of a node that names its client's folder.
FOLDER = "sordino-folder"


def guard(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Enforces the agreement in the client's folder around a ClientApp that does the local work.

    Args:
        message: What the server sent.
        context: The node's settings.
        call_next: The app.

    Returns:
        The reply.

    Example:
        >>> app = ClientApp(mods=[guard])  # doctest: +SKIP
    """

    def answer() -> Message:
        # The store is opened for every message, so that a changed agreement counts at once.
        store = ClientStore(find_client_folder(context))
        with store.hold_folder():
            signature = take_signature(message)
            kind = message.metadata.message_type
            if kind == MessageType.QUERY and is_sum_call(message):
                return answer_wave(message, context, store, signature)
            if kind == MessageType.QUERY:
                # Bound to the run: a signature that was overheard opens nothing in another run.
                statement = introduction_statement(str(context.run_id))
                refuse_strangers(store, statement, signature)
                return introduction_reply(
                    message, store.agreement, find_own_identity(store.agreement)
                )
            # Evaluation, too: scores on private records are covered by no noise.
            if kind != MessageType.TRAIN:
                raise store.refuse(0, f"a message of the type {kind!r} is none that it answers")
            return answer_request(message, context, call_next, store, signature)

    return reply_safely(message, answer)


def refuse_strangers(
    store: ClientStore, statement: bytes, signature: Signature | None, round_index: int = 0
) -> None:
    """Refuses what the coordinator did not sign.

    An agreement without an authority is one of a test, whose node connects to an unsecured
    SuperLink; `sordino flower node` starts such a node only with --insecure.

    Args:
        store: The client's folder, which must be held.
        statement: What must have been signed.
        signature: The signature in the message.
        round_index: The round that is requested, for the ledger.

    Raises:
        RequestRefused: The reason is in the ledger by then, and nothing else has changed.
    """
    authority = store.agreement.certificate
    # Tests without TLS have no authority.
    if authority is None:
        return
    try:
        check_signature(statement, signature, Path(authority))
    except InvalidSender as error:
        raise store.refuse(round_index, f"a message was not answered: {error}") from None


def is_sum_call(message: Message) -> bool:
    """Returns whether a query belongs to a secure sum.

    Args:
        message: The query.
    """
    return message.has_content() and SUMS in message.content


def answer_wave(
    message: Message, context: Context, store: ClientStore, signature: Signature | None
) -> Message:
    """Answers a wave of a secure sum that comes in a separate message.

    Args:
        message: The wave as it came.
        context: The node's settings.
        store: The client's folder, which must be held.
        signature: The signature in the message.

    Returns:
        The reply.

    Raises:
        RequestRefused: The reason is in the ledger by then.
    """
    try:
        wave, body = read_wave_record(message, {SUMS})
    except MalformedMessage as error:
        raise store.refuse(0, f"a request was not understood: {error}") from None
    refuse_strangers(store, sums_statement(wave, body, str(context.run_id)), signature)
    return sum_reply(message, answer_sum_call(store, wave, body))


def answer_request(
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
    store: ClientStore,
    signature: Signature | None,
) -> Message:
    """Answers a request for an upload: decides, lets the app work, keeps the upload, replies.

    Args:
        message: The request as it came.
        context: The node's settings.
        call_next: The app.
        store: The client's folder, which must be held.
        signature: The signature in the message.

    Returns:
        The reply with the upload.

    Raises:
        RequestRefused: The reason is in the ledger by then.
    """
    began = time.perf_counter()
    try:
        request = read_request(message)
    except MalformedMessage as error:
        raise store.refuse(0, f"a request was not understood: {error}") from None
    run = str(context.run_id)
    # Before anything is decided: a stranger must learn nothing from how a request is refused.
    refuse_strangers(store, request_statement(request, run), signature, request.round)
    answer = admit_request(store, request, run)
    if answer is None:
        # Earlier state is put into the message here and was never sent: it holds private values.
        message.content[KEPT] = pack_arrays(store.read_state())
        started = time.perf_counter()
        reply = call_next(message, context)
        working = time.perf_counter() - started
        # Kept, and its digest noted, before it is sent: if the connection breaks, the same bits are
        # sent again, and no round gets noise twice.
        answer = keep_upload(store, request, run, reply)
        # Once for a charge: a server that asks again and again must not fill the disk.
        note_seconds(store.folder, request.round, working, time.perf_counter() - began - working)
    # A new message, made only of the kept vector: whatever else the app wrote stays here.
    reply = upload_reply(message, answer.vector)
    if request.sums:
        signed = find_mask_signature(store, request)
        reply.content[SUMS] = make_wave_record(MASK, encode_body(signed))
    return reply


def keep_upload(store: ClientStore, request: Request, run: str, reply: Message) -> Answer:
    """Keeps the app's upload in the client's folder, with what the app wants to keep.

    Args:
        store: The client's folder, which must be held.
        request: What the server asks of this client in a round.
        run: The run on Flower.
        reply: The app's reply.

    Returns:
        The answer that is kept.

    Raises:
        UserError: The reply has no upload.
    """
    if not reply.has_content() or UPLOAD not in reply.content:
        raise UserError("the local work gave no upload.")
    kept = {}
    if KEPT in reply.content:
        kept = unpack_arrays(reply.content[KEPT])
    vector = unpack_arrays(reply.content[UPLOAD])[VECTOR]
    if not request.sums:
        return store.keep_answer(request, run, vector, kept)
    return keep_masked_upload(store, request, run, vector, kept)


def find_client_folder(context: Context) -> Path:
    """Returns the client's folder, which the operator of the node has named.

    Args:
        context: The node's settings.

    Raises:
        UserError: They name none.
    """
    folder = str(context.node_config.get(FOLDER, ""))
    if not folder:
        raise UserError(
            "this node does not say where its client's folder is: start it with --node-config "
            f"'{FOLDER}=\"/path\"'."
        )
    return Path(folder)


def note_seconds(folder: Path, round_index: int, working: float, guarding: float) -> None:
    """Notes how long a round took on this machine, for the client's own use.

    Args:
        folder: The client's folder.
        round_index: Number of the round, from 0.
        working: Seconds of local work.
        guarding: Seconds of everything else here.
    """
    facts = {"round": round_index, "work": round(working, 4), "guard": round(guarding, 4)}
    with open(folder / "seconds.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")

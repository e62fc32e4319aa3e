"""Sordino's ClientApp: the local work of one round, behind the guard."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from sordino.flower.agreement import read_agreement
from sordino.flower.guard import find_client_folder, guard
from sordino.flower.messages import KEPT, read_request, unpack_arrays, upload_reply

app = ClientApp(mods=[guard])


@app.train()
def train_round(message: Message, context: Context) -> Message:
    """Returns the upload of one round, with what the client keeps.

    Args:
        message: The request, which the guard has checked.
        context: The node's settings.

    Returns:
        The reply; the guard takes out what the client keeps.
    """
    # It brings torch: a request that is refused does not wait for it.
    from sordino.federation.upload import pack_upload
    from sordino.flower.local_work import compute_upload

    kept = unpack_arrays(message.content.pop(KEPT))
    agreement = read_agreement(find_client_folder(context))
    upload = compute_upload(read_request(message), agreement, kept)
    return upload_reply(message, pack_upload(upload), upload.kept)


@app.evaluate()
@app.query()
def never_called(message: Message, context: Context) -> Message:
    """Is never called: the guard answers queries, and refuses scores on private records.

    Args:
        message: The message, as Flower carries it.
        context: The node's settings.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError("the guard answers")

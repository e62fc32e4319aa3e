"""Sordino's ClientApp: local work of one round, behind the guard."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from sordino.engines.flower.agreement import read_agreement
from sordino.engines.flower.guard import client_folder, guard
from sordino.engines.flower.messages import KEPT, arrays_of, read_request, upload_reply

app = ClientApp(mods=[guard])


@app.train()
def train(message: Message, context: Context) -> Message:
    """The upload of one round, and what the client keeps, which the guard takes out of the reply."""
    from sordino.engines.flower.work import (
        local_upload,
    )  # brings torch: a request that is refused does not wait for it

    own = arrays_of(message.content.pop(KEPT))
    upload = local_upload(read_request(message), read_agreement(client_folder(context)), own)
    return upload_reply(message, upload.vector, upload.kept)


@app.evaluate()
@app.query()
def never(message: Message, context: Context) -> Message:
    """Not reached: the guard says who this is, and refuses scores on private records."""
    raise NotImplementedError("the guard answers")

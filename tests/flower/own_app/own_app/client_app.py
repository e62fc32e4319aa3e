"""The client's side. The mod is the one line that makes it private."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from sordino.flower.mods import private_updates

app = ClientApp(mods=[private_updates(clip=1.0, sigma=4.0, epsilon=3.0, folder="{sordino-folder}")])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Gradient steps on this client's records, of which y = x is the law."""
    weight = message.content["arrays"]["weight"].numpy()
    x = np.random.default_rng(int(context.node_config["partition-id"])).normal(
        size=(60, weight.size)
    )
    for _ in range(20):
        weight = weight - 0.1 * x.T @ (x @ weight - x.sum(axis=1)) / len(x)
    metrics = MetricRecord(
        {"num-examples": len(x), "train-loss": float(np.mean((x @ weight - x.sum(axis=1)) ** 2))}
    )
    return Message(
        RecordDict({"arrays": ArrayRecord({"weight": Array(weight)}), "metrics": metrics}),
        reply_to=message,
    )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """A score on private records, which nothing covers: the mod does not let it out."""
    return Message(
        RecordDict({"metrics": MetricRecord({"num-examples": 60, "accuracy": 1.0})}),
        reply_to=message,
    )

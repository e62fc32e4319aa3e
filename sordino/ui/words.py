"""Protocols in words."""

from __future__ import annotations

from sordino.protocol import Protocol

RULES = {
    "fedavg": "Noisy-FedAvg",
    "fedprox": "Noisy-FedProx",
    "scaffold": "Noisy-SCAFFOLD",
    "clipped-glm": "clipped logistic regression",
    "noisy-sgd": "noisy SGD",
}


def described(protocol: Protocol) -> str:
    """A protocol in one line."""
    rule = RULES[protocol.local.tag]
    model = protocol.model.name if protocol.model is not None else "?"
    data = protocol.data.name if protocol.data is not None else "?"
    return f"{model} on {data}, {protocol.clients} clients, {protocol.rounds} rounds of {rule}"

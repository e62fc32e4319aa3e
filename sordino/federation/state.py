"""The state of a training between two rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sordino.federation.rules.local_training import ClientState
from sordino.federation.setup import Setup


@dataclass(frozen=True, kw_only=True)
class State:
    """What a training needs in order to continue. In a table of trainings, arrays have one a row.

    Attributes:
        weights: The global model.
        round: The round that comes next.
        kept: What else the server has kept.
        clients: What each client has kept, and the server of each.
    """

    weights: np.ndarray
    round: int
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)
    clients: Mapping[int, ClientState] = field(default_factory=dict)

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns all arrays by name, for a checkpoint; a client's begin with its number."""
        own = {
            f"{client}/{name}": array
            for client, state in self.clients.items()
            for name, array in state.items()
        }
        return {"weights": self.weights, **self.kept, **own}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], round_index: int) -> State:
        """Returns the state that gave these arrays.

        Args:
            arrays: All of them, under the names that `arrays` gives them.
            round_index: The round that comes next.
        """
        clients: dict[int, dict[str, np.ndarray]] = {}
        kept: dict[str, np.ndarray] = {}
        for path, array in arrays.items():
            client, slash, name = path.partition("/")
            if slash:
                clients.setdefault(int(client), {})[name] = array
            else:
                kept[path] = array
        return cls(
            weights=kept.pop("weights"),
            round=round_index,
            kept=kept,
            clients=clients,
        )


def first_state(setup: Setup, trainings: range | None = None) -> State:
    """Returns the state before the first round.

    Args:
        setup: The federation.
        trainings: The numbers of a table's rows; None for one training.
    """
    initial = setup.initial_weights()
    if trainings is not None:
        initial = np.broadcast_to(initial, (len(trainings), initial.size)).copy()
    return State(weights=initial, round=0)

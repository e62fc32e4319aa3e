"""The server's side: Flower's own strategy, which scores on clients' records unless it is told not to."""

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and say which metrics came back."""
    start = ArrayRecord({"weight": Array(np.zeros(50))})
    result = FedAvg().start(grid, start, num_rounds=int(context.run_config["rounds"]), timeout=300)
    told = {
        "train": list(result.train_metrics_clientapp),
        "evaluate": list(result.evaluate_metrics_clientapp),
    }
    Path(str(context.run_config["out"])).write_text(
        json.dumps({**told, "weight": result.arrays["weight"].numpy().tolist()})
    )

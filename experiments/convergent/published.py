"""What convergent-dp prints: Tables 4, 5 and 7 to 10, and 12. Figure 2 is in no text."""

from __future__ import annotations

from collections.abc import Mapping

STEPS = (50, 100, 200)

# Accuracy in percent, by clients and sigma, for K = 50, 100 and 200 and TK = 30,000. The paper has
# no sigma = 0; at sigma = 1 it prints "-", which means that the loss diverges.
TABLE_4 = {
    (50, 0.1): (95.40, 95.42, 95.21),
    (50, 0.01): (98.33, 98.02, 97.88),
    (50, 0.001): (98.41, 98.23, 98.00),
    (100, 0.1): (97.32, 97.50, 97.42),
    (100, 0.01): (98.71, 97.97, 97.72),
    (100, 0.001): (98.94, 98.50, 98.01),
}
# The same on CIFAR-10, with ResNet-18.
TABLE_4_CIFAR = {
    (50, 0.1): (53.76, 53.38, 53.49),
    (50, 0.01): (70.11, 69.08, 66.63),
    (50, 0.001): (70.98, 69.81, 67.98),
    (100, 0.1): (62.02, 61.33, 61.11),
    (100, 0.01): (74.34, 72.87, 70.74),
    (100, 0.001): (75.38, 74.44, 72.11),
}
TABLE_8 = {
    (20, 0.1): (42.69, 41.69, 41.94),
    (20, 0.01): (58.99, 58.59, 55.62),
    (20, 0.001): (60.23, 59.35, 56.13),
    (500, 0.1): (68.42, 66.93, 66.36),
    (500, 0.01): (77.68, 76.25, 73.84),
    (500, 0.001): (78.14, 77.32, 76.07),
}
# CIFAR-100 with ResNet-18, for K = 50, 100, 200 and 500; clients are not given.
TABLE_10_STEPS = (50, 100, 200, 500)
TABLE_10 = {
    (50, 0.1): (35.42, 34.18, 33.25, 33.21),
    (50, 0.01): (38.42, 38.11, 37.36, 37.03),
    (50, 0.001): (38.95, 38.73, 38.11, 37.84),
}
# TinyImageNet, the other half of the table.
TABLE_10_TINY = {
    (50, 0.1): (28.52, 27.39, 25.94, 25.65),
    (50, 0.01): (34.99, 34.36, 34.10, 33.84),
    (50, 0.001): (35.15, 34.87, 34.64, 34.21),
}

# Alpha to accuracy in percent and sensitivity, T = 600.
TABLE_5 = {0.0: (60.67, 31.33), 0.01: (60.69, 30.97), 0.1: (60.94, 18.52), 1.0: (56.33, 6.34)}
TABLE_5_ROUNDS = 600

# Sensitivity after T rounds.
TABLE_7_ROUNDS = (200, 400, 600, 800, 1000)
TABLE_7 = {
    "resnet18": (16.94, 23.13, 24.04, 24.11, 24.17),
    "vit-small": (23.52, 31.37, 35.66, 36.32, 36.58),
}
TABLE_9_ROUNDS = (100, 200, 300, 400, 500, 600)
TABLE_9 = {
    "constant": (19.77, 29.24, 33.52, 36.37, 37.52, 37.98),
    "cyclic": (15.36, 28.44, 33.37, 36.24, 37.82, 38.15),
    "stage-wise": (15.24, 24.33, 26.89, 27.77, 28.69, 29.03),
    "continuous": (14.33, 22.14, 23.35, 24.11, 24.52, 24.68),
}
# Sensitivity after 500 rounds, by clients, for records per client.
TABLE_12_ROUNDS = 500
TABLE_12_RECORDS = (100, 200, 300, 400, 500)
TABLE_12 = {
    20: (30.12, 30.38, 30.45, 29.89, 30.08),
    50: (24.95, 24.93, 24.62, 24.83, 24.53),
    80: (17.41, 17.34, 17.15, 17.22, 17.25),
}

Accuracies = Mapping[tuple[int, float], tuple[float, ...]]


def name_federation(clients: int, steps: int, sigma: float) -> str:
    """Returns the name of a cell of Tables 4, 8 and 10.

    Args:
        clients: m, the number of clients.
        steps: K.
        sigma: The standard deviation of the noise.
    """
    return f"m={clients} K={steps} sigma={sigma:g}"


def find_accuracy(table: str, cell: str) -> float | None:
    """Returns the accuracy in percent that the paper prints for a cell.

    Args:
        table: The name of the table.
        cell: The name of the cell.

    Returns:
        The accuracy, or None where the paper prints none.
    """
    return ACCURACIES.get((table, cell))


def find_distance(table: str, cell: str, rounds: int) -> float | None:
    """Returns the sensitivity that the paper prints for a cell.

    Args:
        table: The name of the table.
        cell: The name of the cell.
        rounds: The number of rounds after which it is printed.

    Returns:
        The sensitivity, or None where the paper prints none.
    """
    return DISTANCES.get((table, cell, rounds))


def _list_accuracies() -> dict[tuple[str, str], float]:
    found = {("table-5", f"alpha={alpha:g}"): values[0] for alpha, values in TABLE_5.items()}
    grids: dict[str, tuple[Accuracies, tuple[int, ...]]] = {
        "table-4": (TABLE_4, STEPS),
        "table-4-cifar": (TABLE_4_CIFAR, STEPS),
        "table-8": (TABLE_8, STEPS),
        "table-10": (TABLE_10, TABLE_10_STEPS),
        "table-10-tiny": (TABLE_10_TINY, TABLE_10_STEPS),
    }
    for table, (grid, steps) in grids.items():
        for (clients, sigma), values in grid.items():
            for number, value in zip(steps, values, strict=True):
                found[table, name_federation(clients, number, sigma)] = value
    return found


def _list_distances() -> dict[tuple[str, str, int], float]:
    found = {
        ("table-5", f"alpha={alpha:g}", TABLE_5_ROUNDS): values[1]
        for alpha, values in TABLE_5.items()
    }
    for table, curves, rounds in (
        ("table-7", TABLE_7, TABLE_7_ROUNDS),
        ("table-9", TABLE_9, TABLE_9_ROUNDS),
    ):
        for name, curve in curves.items():
            for number, value in zip(rounds, curve, strict=True):
                found[table, name, number] = value
    for clients, values in TABLE_12.items():
        for records, value in zip(TABLE_12_RECORDS, values, strict=True):
            found["table-12", f"m={clients} S={records}", TABLE_12_ROUNDS] = value
    return found


ACCURACIES = _list_accuracies()
DISTANCES = _list_distances()

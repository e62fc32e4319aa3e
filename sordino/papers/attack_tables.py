"""The papers' tables of attacks: convergent-dp, 11 and 13 to 16, and udp-fl, 6 to 9."""

from __future__ import annotations

from sordino.attacks.attack import Row
from sordino.protocol import Protocol

ROUNDS = (100, 200, 300, 400, 500)

# convergent-dp, CIFAR-10: for each sigma what is printed after T rounds. Accuracies are in percent,
# Table 14 is in L2 per image.
TABLE_13 = {
    0.1: (17.7, 20.4, 22.0, 22.5, 22.8),
    0.01: (32.5, 38.3, 44.2, 46.6, 48.2),
    0.0: (36.5, 44.7, 53.1, 59.8, 65.4),
}
TABLE_14 = {
    0.1: (20.45, 18.32, 17.17, 16.65, 16.34),
    0.01: (15.51, 12.26, 10.35, 8.44, 8.02),
    0.0: (10.23, 4.55, 1.72, 1.34, 0.97),
}
TABLE_15 = {
    0.1: (20.4, 28.1, 34.2, 38.8, 42.5),
    0.01: (30.1, 46.4, 53.3, 58.8, 62.1),
    0.0: (30.3, 52.2, 59.2, 67.3, 74.4),
}
# Accuracy in percent of the model, and of the one that was trained on its answers.
TABLE_16 = {0.1: (74.25, 60.20), 0.01: (78.44, 72.43), 0.0: (82.55, 80.35)}
# Success rate in percent of finding 10 of 100 clients; the data are not named.
TABLE_11 = {
    1.0: (0, 0, 10, 10, 0),
    0.1: (20, 30, 30, 40, 30),
    0.01: (40, 50, 60, 60, 70),
    0.0: (40, 80, 100, 100, 100),
}
TABLE_11_ROUNDS = (200, 400, 600, 800, 1000)
# The same for CIFAR-100.
TABLE_13_CIFAR100 = {
    0.1: (12.3, 15.5, 17.5, 19.0, 19.2),
    0.01: (20.3, 25.5, 28.6, 29.7, 30.6),
    0.0: (24.4, 30.1, 36.5, 40.5, 43.3),
}
TABLE_16_CIFAR100 = {0.1: (32.36, 15.52), 0.01: (37.41, 26.49), 0.0: (45.25, 38.36)}

EPSILONS = (2, 4, 6, 8)
MECHANISMS = ("gaussian", "laplace", "staircase")
# udp-fl: for each mechanism and epsilon; "gaussian" is DP-SGD. Table 6: TPR at 1 % FPR, accuracy
# and AUC on CIFAR-10, for each attacker.
TABLE_6 = {
    "Shokri": {
        "none": {None: (0.053, 0.710, 0.757)},
        "gaussian": {
            2: (0.009, 0.502, 0.493),
            4: (0.009, 0.505, 0.499),
            6: (0.013, 0.510, 0.509),
            8: (0.011, 0.503, 0.499),
        },
        "laplace": {
            2: (0.011, 0.509, 0.508),
            4: (0.013, 0.512, 0.509),
            6: (0.014, 0.505, 0.501),
            8: (0.007, 0.505, 0.500),
        },
        "staircase": {
            2: (0.009, 0.506, 0.501),
            4: (0.009, 0.505, 0.502),
            6: (0.009, 0.504, 0.499),
            8: (0.008, 0.504, 0.496),
        },
    },
    "LiRA": {
        "none": {None: (0.126, 0.651, 0.716)},
        "gaussian": {
            2: (0.013, 0.506, 0.497),
            4: (0.014, 0.513, 0.505),
            6: (0.017, 0.514, 0.511),
            8: (0.011, 0.504, 0.497),
        },
        "laplace": {
            2: (0.009, 0.506, 0.501),
            4: (0.013, 0.505, 0.495),
            6: (0.011, 0.505, 0.493),
            8: (0.009, 0.513, 0.505),
        },
        "staircase": {
            2: (0.008, 0.504, 0.491),
            4: (0.008, 0.510, 0.501),
            6: (0.009, 0.510, 0.504),
            8: (0.009, 0.507, 0.492),
        },
    },
    "Canary": {
        "none": {None: (0.137, 0.649, 0.719)},
        "gaussian": {
            2: (0.016, 0.519, 0.513),
            4: (0.016, 0.510, 0.504),
            6: (0.015, 0.523, 0.528),
            8: (0.010, 0.521, 0.518),
        },
        "laplace": {
            2: (0.011, 0.504, 0.497),
            4: (0.020, 0.512, 0.498),
            6: (0.011, 0.510, 0.507),
            8: (0.015, 0.516, 0.507),
        },
        "staircase": {
            2: (0.009, 0.506, 0.495),
            4: (0.013, 0.512, 0.509),
            6: (0.009, 0.507, 0.500),
            8: (0.012, 0.511, 0.509),
        },
    },
}
# Table 7: MSE, PSNR, SSIM (the printed "F1" of the Laplace column is a PSNR).
TABLE_7 = {
    "none": {None: (1.7104, 9.79, 0.0751)},
    "gaussian": {
        2: (2.2646, 8.51, 0.0195),
        4: (2.2058, 8.69, 0.0414),
        6: (2.1532, 8.76, 0.0417),
        8: (2.1463, 8.78, 0.0519),
    },
    "laplace": {
        2: (2.2686, 8.63, 0.0573),
        4: (2.1840, 8.68, 0.0629),
        6: (2.1532, 8.83, 0.0692),
        8: (2.1290, 8.95, 0.0746),
    },
    "staircase": {
        2: (2.3399, 8.37, 0.0096),
        4: (2.2405, 8.39, 0.0204),
        6: (2.1910, 8.54, 0.0207),
        8: (2.1832, 8.73, 0.0225),
    },
}
# Table 8: accuracy and F1.
TABLE_8 = {
    "none": {None: (0.86, 0.85)},
    "gaussian": {
        2: (0.8392, 0.8239),
        4: (0.8497, 0.8408),
        6: (0.8519, 0.8439),
        8: (0.8615, 0.8544),
    },
    "laplace": {2: (0.8297, 0.7987), 4: (0.8285, 0.8248), 6: (0.8390, 0.8096), 8: (0.8320, 0.8169)},
    "staircase": {
        2: (0.8267, 0.8124),
        4: (0.8383, 0.8260),
        6: (0.8322, 0.8131),
        8: (0.8317, 0.8174),
    },
}
# Table 9: MSE and MAE.
TABLE_9 = {
    "none": {None: (1.23, 0.65)},
    "gaussian": {2: (2.40, 1.26), 4: (2.35, 1.24), 6: (2.30, 1.22), 8: (2.25, 1.20)},
    "laplace": {2: (2.42, 1.27), 4: (2.38, 1.25), 6: (2.33, 1.23), 8: (2.28, 1.21)},
    "staircase": {2: (2.44, 1.28), 4: (2.40, 1.26), 6: (2.35, 1.24), 8: (2.30, 1.22)},
}

# The table of an attack's rows, by data set, attack and metric, and the table's value for our 1.
_TABLES_BY_ROUND = {
    ("cifar10", "labels", "accuracy"): (TABLE_13, 100.0),
    ("cifar100", "labels", "accuracy"): (TABLE_13_CIFAR100, 100.0),
    ("cifar10", "inversion", "L2"): (TABLE_14, 1.0),
    ("cifar10", "attributes", "accuracy"): (TABLE_15, 100.0),
}


def printed(row: Row, protocol: Protocol) -> float | None:
    """Returns the value that convergent-dp prints for a row of an attack.

    Data, sigma and the number of rounds must be exactly those of the table.

    Args:
        row: The row.
        protocol: The protocol of the attacked run.

    Returns:
        The value, in the unit of the row; None where the paper prints none.

    Example:
        >>> from sordino.protocol import Constant, Data, FedAvg, Gaussian
        >>> plan = Protocol(
        ...     clients=20,
        ...     rounds=500,
        ...     local=FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1)),
        ...     noise=Gaussian(sigma=0.01),
        ...     data=Data(name="cifar10"),
        ... )
        >>> row = Row(
        ...     name="labels", view="server", round=500, noise=0.01, metric="accuracy", value=1.0,
        ...     method="mixture", baseline=0.1, better="higher", samples=1, paper="Table 13",
        ... )
        >>> printed(row, plan)
        0.482
    """
    if protocol.data is None or protocol.noise.tag != "gaussian":
        return None
    found = _TABLES_BY_ROUND.get((protocol.data.name, row.name, row.metric))
    if found is None:
        return None
    table, unit = found
    if row.round not in ROUNDS or row.noise not in table:
        return None
    return round(table[row.noise][ROUNDS.index(row.round)] / unit, 6)

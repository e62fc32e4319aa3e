"""Wind power of seven farms (GEFCom2012): from two days of forecast wind to two days of power, a regression with natural clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sordino.federation.data.dataset import Dataset
from sordino.federation.data.formats import damaged, read_npz, read_table, reading
from sordino.federation.data.sources import locate, not_found

FARMS = tuple(f"wp{farm}" for farm in range(1, 8))
MISSING = -32768
LEADS = np.arange(1, 49)  # hours from the issue of a forecast to the hour it is about
SCALE = 0.1  # 10 m/s, a strong wind, becomes 1


def load_wind(root: Path | None) -> Dataset:
    """A record is one farm and one forecast: u, v and speed of the wind over 48 hours (3, 48), and the power in those hours (48,).

    Records with a missing value are left out, and so are those whose hours lie partly in the test windows of the competition: training
    records see training hours only. Forecasts are issued every 12 hours, so an hour's power is in up to four records of its farm;
    a guarantee for one record is not one for one hour.
    """
    layouts = [["gefcom2012_wind_power.csv.gz", "gefcom2012_wind_forecasts.npz"]]
    files = locate(root, layouts)
    if files is None:
        raise not_found("gefcom-wind", root, layouts)
    hours, power, is_test = _power(files[0])
    issues, wind = _forecasts(files[1])

    places = issues[:, None] + LEADS - hours[0]
    known = ((places >= 0) & (places < len(hours))).all(axis=1)
    wind, places = wind[:, known], places[known]
    in_test, complete = is_test[places], np.isfinite(wind).all(axis=(2, 3))

    x_train, y_train, farm = _records(wind, power, places, complete & ~in_test.any(axis=1))
    x_test, y_test, _ = _records(wind, power, places, complete & in_test.all(axis=1))
    return Dataset(
        name="gefcom-wind", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=None, test="public",
        scale=np.full((3, 1), SCALE, dtype=np.float32), shift=np.zeros((3, 1), dtype=np.float32), columns={"farm": farm},
    )  # fmt: skip


def _power(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hours since 1970, power (hours, farms) and which hours are for testing; without gaps, so that places can be counted."""
    table = read_table(path)
    with reading(path, "hourly power with date, wp1 to wp7 and split"):
        hours = _hours(np.array(table["date"]))
        power = np.array([table[farm] for farm in FARMS]).astype(np.float32).T
        is_test = np.array(table["split"]) == "test"
    if (np.diff(hours) != 1).any():
        raise damaged(path, "hourly power", "its hours do not follow one another")
    return hours, power, is_test


def _forecasts(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Hours since 1970 of every issue, and u, v, speed (farms, issues, 3, leads) in m/s, NaN where missing."""
    arrays = read_npz(path)
    with reading(path, "wind forecasts with issue, lead_hours, u_centi and v_centi"):
        issues = _hours(arrays["issue"].astype(str))
        u, v = (
            np.where(arrays[name] == MISSING, np.nan, arrays[name] / 100)
            for name in ("u_centi", "v_centi")
        )
        if (
            not np.array_equal(arrays["lead_hours"], LEADS)
            or u.shape != (len(FARMS), len(issues), len(LEADS))
            or v.shape != u.shape
        ):
            raise damaged(
                path,
                "wind forecasts",
                f"u_centi has shape {u.shape}, v_centi {v.shape}, for {len(issues)} issues",
            )
    return issues, np.stack([u, v, np.hypot(u, v)], axis=2)


def _hours(stamps: np.ndarray) -> np.ndarray:
    """YYYYMMDDHH as hours since 1970."""
    iso = [f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[8:10]}" for stamp in stamps.tolist()]
    return np.array(iso, dtype="datetime64[h]").astype(np.int64)


def _records(
    wind: np.ndarray, power: np.ndarray, places: np.ndarray, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets and farm names of the (farm, issue) pairs that are chosen, farm by farm."""
    farms, issues = np.nonzero(chosen)
    names = np.array([f"farm {farm}" for farm in range(1, len(FARMS) + 1)])
    return (
        wind[farms, issues].astype(np.float32),
        power[places[issues], farms[:, None]],
        names[farms],
    )

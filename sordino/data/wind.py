"""Loads wind power of seven farms (GEFCom2012), a regression with natural clients.

It goes from two days of forecast wind to two days of power.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sordino.data.dataset import Dataset
from sordino.data.formats import damaged_file, read_npz, reading
from sordino.data.sources import locate, not_found
from sordino.data.table_files import read_table

FARMS = tuple(f"wp{farm}" for farm in range(1, 8))
MISSING = -32768
# Hours from the issue of a forecast to the hour it is about.
LEADS = np.arange(1, 49)
# 10 m/s, a strong wind, becomes 1.
SCALE = 0.1


def load_wind(root: Path | None) -> Dataset:
    """Loads records of one farm and one forecast each.

    A record is u, v and speed of the wind over 48 hours, of shape (3, 48), and the power in those
    hours, of shape (48,). Records with a missing value are left out, and so are those whose hours
    lie partly in the test windows of the competition: training records see training hours only.
    Forecasts are issued every 12 hours, so an hour's power is in up to four records of its farm: a
    guarantee for one record is not one for one hour.

    Args:
        root: The folder of data files.

    Raises:
        UserError: The files are not there, or damaged.
    """
    layouts = [["gefcom2012_wind_power.csv.gz", "gefcom2012_wind_forecasts.npz"]]
    files = locate(root, layouts)
    if files is None:
        raise not_found("gefcom-wind", root, layouts)
    hours, power, is_test = _read_power(files[0])
    issues, wind = _read_forecasts(files[1])

    # The place of each forecast hour among the hours of power.
    places = issues[:, None] + LEADS - hours[0]
    known = ((places >= 0) & (places < len(hours))).all(axis=1)
    wind = wind[:, known]
    places = places[known]
    in_test = is_test[places]
    complete = np.isfinite(wind).all(axis=(2, 3))

    # A forecast that reaches into the test hours belongs to neither part: half of its answers would
    # leak.
    x_train, y_train, farm = _select_records(wind, power, places, complete & ~in_test.any(axis=1))
    x_test, y_test, _ = _select_records(wind, power, places, complete & in_test.all(axis=1))
    return Dataset(
        name="gefcom-wind",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=None,
        test="public",
        scale=np.full((3, 1), SCALE, dtype=np.float32),
        shift=np.zeros((3, 1), dtype=np.float32),
        columns={"farm": farm},
    )


def _read_power(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns hours since 1970, power (hours, farms), and which hours are for testing.

    Hours have no gaps, so that places can be counted.
    """
    table = read_table(path)
    with reading(path, "hourly power with date, wp1 to wp7 and split"):
        hours = _count_hours(np.array(table["date"]))
        power = np.array([table[farm] for farm in FARMS]).astype(np.float32).T
        is_test = np.array(table["split"]) == "test"
    # Places are differences of hours, which only holds without gaps.
    if (np.diff(hours) != 1).any():
        raise damaged_file(path, "hourly power", "its hours do not follow one another")
    return hours, power, is_test


def _read_forecasts(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns hours since 1970 of every issue, and u, v, speed (farms, issues, 3, leads) in m/s.

    Missing values are NaN.
    """
    arrays = read_npz(path)
    with reading(path, "wind forecasts with issue, lead_hours, u_centi and v_centi"):
        issues = _count_hours(arrays["issue"].astype(str))
        u = _read_speeds(arrays["u_centi"])
        v = _read_speeds(arrays["v_centi"])
        expected = (len(FARMS), len(issues), len(LEADS))
        # Inputs are known by their place, so a file with other hours would be read wrongly.
        same_leads = np.array_equal(arrays["lead_hours"], LEADS)
        if not same_leads or u.shape != expected or v.shape != expected:
            reason = f"u_centi has shape {u.shape}, v_centi {v.shape}, for {len(issues)} issues"
            raise damaged_file(path, "wind forecasts", reason)
    return issues, np.stack([u, v, np.hypot(u, v)], axis=2)


def _read_speeds(centimetres: np.ndarray) -> np.ndarray:
    """Returns speeds in m/s, NaN where missing."""
    return np.where(centimetres == MISSING, np.nan, centimetres / 100)


def _count_hours(stamps: np.ndarray) -> np.ndarray:
    """Returns times as YYYYMMDDHH in hours since 1970."""
    iso = [f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[8:10]}" for stamp in stamps.tolist()]
    return np.array(iso, dtype="datetime64[h]").astype(np.int64)


def _select_records(
    wind: np.ndarray, power: np.ndarray, places: np.ndarray, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns inputs, targets and farm names of the chosen (farm, issue) pairs, farm by farm."""
    farms, issues = np.nonzero(chosen)
    names = np.array([f"farm {farm}" for farm in range(1, len(FARMS) + 1)])
    inputs = wind[farms, issues].astype(np.float32)
    targets = power[places[issues], farms[:, None]]
    return inputs, targets, names[farms]

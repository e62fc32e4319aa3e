"""The commands that remake udp-fl's tables and figures: what they train, print and draw."""

from dataclasses import replace

import pytest

from experiments import udp_fl_attacks
from experiments.cells import append_rows, read_rows
from experiments.udp_fl import COLUMNS, measure_cell
from experiments.udp_fl_cells import EXPERIMENTS, Cell, list_cells, make_protocol
from experiments.udp_fl_results import draw_figures, print_costs, print_table
from sordino import certify
from sordino.protocol import Direct, Shuffler

SHUFFLED = Cell(
    data="digits", method="shuffled", epsilon=8.0, clients=700, rate=1.0, rounds=3, seed=1
)


def test_the_same_epsilon_needs_less_noise_behind_a_shuffler() -> None:
    shuffled = make_protocol(SHUFFLED)
    direct = make_protocol(replace(SHUFFLED, method="direct"))
    assert isinstance(shuffled.channel, Shuffler)
    assert isinstance(direct.channel, Direct)
    assert shuffled.noise.sigma < direct.noise.sigma
    for plan in (shuffled, direct):
        assert plan.clients == 700
        assert certify(plan).epsilon(1e-5) <= 8.0
    free = make_protocol(replace(SHUFFLED, method="none"))
    assert free.noise.sigma == 0.0


def test_experiments_share_cells_and_a_look_is_small() -> None:
    every = list(list_cells(list(EXPERIMENTS), 1, quick=False))
    assert len(set(every)) < len(every)
    assert {cell.rate for cell in every if cell.data == "mnist"} == {0.01, 0.05, 0.1, 0.5}
    assert {cell.clients for cell in every if cell.data == "mnist"} == {10, 50, 100, 200}
    quick = list(list_cells(["figure-1"], 3, quick=True))
    assert {cell.seed for cell in quick} == {1}
    assert max(cell.rounds for cell in quick) == 15


def test_rows_are_printed_and_drawn_accuracies_and_squared_errors_alike(
    tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = [measure_cell(cell) for cell in (SHUFFLED, replace(SHUFFLED, seed=2))]
    wind = {
        **measured[0],
        "data": "gefcom-wind",
        "method": "scaffold",
        "epsilon": 2.0,
        "clients": 7,
        "rate": 0.05,
        "accuracy": float("nan"),
        "loss": 0.0512,
        "curve": "0.07;0.0512",
    }
    path = tmp_path / "rows.csv"
    append_rows(path, COLUMNS, [*measured, wind])
    rows = read_rows(path)
    print_table(rows)
    print_costs(rows)
    shown = capsys.readouterr().out
    assert "| gefcom-wind | SCAFFOLD | 8.00 |" in shown
    assert "0.0512" in shown
    assert "| digits | Gaussian, with a shuffler |" in shown
    draw_figures(rows, tmp_path)
    assert {place.name for place in tmp_path.glob("*.svg")} == {
        "udp-fl-shuffler.svg",
        "udp-fl-wind.svg",
        "udp-fl-wind-convergence.svg",
    }


def test_attack_tables_show_the_paper_beside_its_own_attackers_only(
    tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "attacks.csv"
    shared = {"seed": 1, "shadows": 4, "rounds": 15, "accuracy": 0.3, "seconds": 1.0, "round": 15}
    lines = [
        {
            **shared,
            "table": "table-6",
            "mechanism": "gaussian",
            "epsilon": 8.0,
            "attacker": attacker,
            "metric": metric,
            "value": 0.51,
            "baseline": 0.5,
            "samples": 2000,
        }
        for attacker in ("Shokri", "label distribution alone")
        for metric in ("TPR at 1 % FPR", "accuracy", "AUC")
    ]
    append_rows(path, udp_fl_attacks.COLUMNS, lines)
    udp_fl_attacks.main(["--markdown", "--csv", str(path)])
    shokri, labels = [line for line in capsys.readouterr().out.splitlines() if "0.510" in line]
    assert shokri.endswith("| 0.500 | 0.500 | 0.500 | 0.011 | 0.503 | 0.499 |")
    assert labels.endswith("| 0.500 | 0.500 | 0.500 |  |  |  |")
    assert "30.0%" in shokri

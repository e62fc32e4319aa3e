"""The command that remakes convergent-dp's tables: what it trains, keeps, shows and draws."""

from dataclasses import replace

import pytest

from experiments.convergent import __main__ as command
from experiments.convergent import cells, measuring, published
from experiments.convergent.results import append_results, read_results
from sordino import Constant, Data, FedAvg, Gaussian, Model, Protocol, certify

SMALL = Protocol(
    seed=1,
    clients=3,
    rounds=40,
    local=FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.5)),
    noise=Gaussian(sigma=0.1),
    data=Data(name="digits", records=20),
    model=Model(name="logistic"),
)
TRAINED = cells.Cell(
    table="table-4",
    name="m=50 K=50 sigma=0.1",
    model="logistic",
    data="digits",
    schedule="decay",
    protocol=SMALL,
)
COMPARED = replace(
    TRAINED,
    table="table-9",
    name="cyclic",
    protocol=replace(SMALL, rounds=200, data=Data(name="digits", records=4)),
    marks=(100, 200),
)
LOUD = replace(
    TRAINED,
    name="m=50 K=50 sigma=1",
    protocol=replace(SMALL, noise=Gaussian(sigma=1e3)),
    diverges=True,
)


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every second round is scored, and the mean is of scored ones.
    monkeypatch.setattr(measuring, "SCORED", 20)
    monkeypatch.setitem(cells.TABLES, "table-4", lambda choice: iter((TRAINED, LOUD)))
    monkeypatch.setitem(cells.TABLES, "table-9", lambda choice: iter((COMPARED,)))


@pytest.mark.usefixtures("small_tables")
def test_cells_are_measured_once_priced_and_shown_beside_the_paper(
    tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--out", str(tmp_path), "--runs", str(tmp_path / "runs")]
    asked = ["--tables", "table-9,table-4", *places]
    command.main(asked)
    trained, loud = read_results(tmp_path, "table-4")
    assert trained.rounds == 40
    assert trained.accuracy is not None
    assert measuring.CHANCE < trained.accuracy < 100
    assert trained.epsilon_rounds == pytest.approx(certify(SMALL, "rounds").epsilon(1e-5), rel=1e-5)
    assert trained.epsilon_rounds < trained.epsilon_server
    # What diverges is trained for a tenth of its rounds.
    assert loud.rounds == 4
    assert loud.accuracy is not None
    assert loud.accuracy < measuring.CHANCE
    early, late = read_results(tmp_path, "table-9")
    assert (early.rounds, late.rounds) == (100, 200)
    assert early.distance is not None
    assert early.bound is not None
    assert 0 < early.distance < early.bound
    assert early.epsilon_rounds < late.epsilon_rounds
    assert not list((tmp_path / "runs").iterdir())

    monkeypatch.setattr(command, "measure_cell", pytest.fail)
    command.main(asked)
    assert len(read_results(tmp_path, "table-4")) == 2
    capsys.readouterr()
    command.main([*asked, "--markdown"])
    shown = capsys.readouterr().out
    assert f"| {trained.accuracy:.2f} | 95.4 |" in shown
    assert "after 4 rounds" in shown
    # The paper's distances after 100 and 200 rounds end the row.
    assert "| 15.36 | 28.44 |" in shown
    command.main([*asked, "--cost"])
    assert "| table-4 | logistic | decay | 2 | 0 |" in capsys.readouterr().out


def test_pictures_have_the_papers_values_as_crosses(tmp_path, monkeypatch) -> None:
    lines = [
        {"rounds": 100, "distance": 0.1, "bound": 1.0, "accuracy": None},
        {"rounds": 200, "distance": 0.2, "bound": 2.0, "accuracy": None},
    ]
    prices = {"epsilon_rounds": 1.0, "epsilon_server": 2.0, "seconds": 1.0}
    append_results(tmp_path, COMPARED, [{**line, **prices} for line in lines])
    crosses = []

    def plot(self, x, y, *style, **options):
        if style == ("x",):
            crosses.extend(zip(x, y, strict=True))
        return []

    monkeypatch.setattr("matplotlib.axes.Axes.plot", plot)
    monkeypatch.setattr("matplotlib.axes.Axes.legend", lambda *args, **options: None)
    command.main(["--tables", "table-9", "--out", str(tmp_path), "--draw", str(tmp_path)])
    assert crosses == [(100, 15.36), (200, 28.44)]
    assert (tmp_path / "convergent_table_9.png").stat().st_size > 1000
    assert (tmp_path / "convergent_table_9.svg").read_text().startswith("<?xml")


def test_a_training_that_was_interrupted_goes_on(tmp_path, monkeypatch) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    started = []

    def train_a_little(protocol, **options):
        started.append(protocol)
        return measuring_train(protocol, on_round=stop, **options)

    measuring_train = measuring.train
    whole = measuring.measure_accuracy(TRAINED, tmp_path / "whole")
    monkeypatch.setattr(measuring, "train", train_a_little)
    with pytest.raises(KeyboardInterrupt):
        measuring.measure_accuracy(TRAINED, tmp_path / "parts")
    again = measuring.measure_accuracy(TRAINED, tmp_path / "parts")
    assert len(started) == 1
    assert again == whole


def test_every_printed_value_belongs_to_a_cell() -> None:
    # What is printed and would never be shown would be misspelled.
    found = {
        (cell.table, cell.name): cell
        for cell in cells.list_cells([*cells.TABLES], cells.Choice(), 1)
    }
    assert set(published.ACCURACIES) <= set(found)
    for table, name, rounds in published.DISTANCES:
        assert rounds in found[table, name].marks
    # Tables 4 twice, 8, 10 twice and 5; then 5, 7, 9 and 12.
    assert len(published.ACCURACIES) == 18 + 18 + 18 + 12 + 12 + 4
    assert len(published.DISTANCES) == 4 + 10 + 24 + 15


@pytest.mark.parametrize(("table", "steps"), [("table-4", 30_000), ("table-8", 30_000)])
def test_every_cell_trains_the_papers_number_of_steps(table: str, steps: int) -> None:
    for cell in cells.TABLES[table](cells.Choice()):
        assert cell.protocol.rounds * cell.protocol.local.steps == steps
        assert cell.name == published.name_federation(
            cell.protocol.clients, cell.protocol.local.steps, cell.protocol.noise.sigma
        )


def test_a_schedule_and_a_model_are_chosen_and_kept_apart() -> None:
    own = next(cells.TABLES["table-4"](cells.Choice()))
    other = next(cells.TABLES["table-4"](cells.Choice(schedule="stage-wise", model="mlp")))
    assert own.protocol.local.weight_decay == 1e-3
    assert other.protocol.local.weight_decay == 0
    assert other.protocol.model.name == "mlp"
    assert own.key != other.key

"""What Python code may hand over: files and dictionaries as protocols, arrays and frames as data."""

import io
from dataclasses import replace

import numpy as np
import pytest

import sordino
from sordino import UserError, audit, calibrate, certify, train, train_many
from sordino.engines.many_trainings import count_ended
from sordino.protocol import Protocol, dumps, loads
from sordino.protocol.file import parse_toml

TEXT = """
seed = 1
[federation]
clients = 4
rounds = 2
[local]
rule = "fedavg"
steps = 1
batch = 2
clip = 1.0
schedule = { kind = "constant", rate = 0.1 }
[noise]
mechanism = "gaussian"
sigma = 0.5
[data]
name = "mine"
classes = 2
[model]
name = "logistic"
"""
X = np.random.default_rng(0).normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text(TEXT)
    return path


def test_a_path_a_string_a_dictionary_and_a_protocol_are_priced_alike(file) -> None:
    expected = certify(loads(TEXT)).epsilon(1e-5)
    for source in (file, str(file), parse_toml(TEXT), Protocol.load(file)):
        assert certify(source).epsilon(1e-5) == expected
    assert calibrate(file, epsilon=2.0).value == calibrate(loads(TEXT), epsilon=2.0).value


def test_an_audit_takes_a_file_and_a_dictionary_as_certify_does(file, tmp_path) -> None:
    found = [
        audit(source, "rounds", trainings=400, folder=tmp_path / f"audit-{number}", workers=1)
        for number, source in enumerate((loads(TEXT), str(file), parse_toml(TEXT)))
    ]
    assert len({one.mu_lower for one in found}) == 1
    assert len({one.certified.epsilon(1e-5) for one in found}) == 1
    with pytest.raises(UserError, match=r"there is no file 'nowhere.toml'"):
        audit("nowhere.toml")
    with pytest.raises(UserError, match="there is no run in 'nowhere'"):
        audit("nowhere")


def test_what_is_no_protocol_and_no_data_gets_a_sentence(file, tmp_path) -> None:
    with pytest.raises(UserError, match="a protocol of type int: expected is a Protocol"):
        certify(3)
    with pytest.raises(UserError, match=r"there is no file 'nowhere.toml'"):
        train("nowhere.toml")
    for data, message in (
        (3, "data of type int: expected is a name"),
        ((X,), "data of 1 arrays"),
        ((X, [[1], [1, 2]]), "y is not an array"),
        ((X, Y[:5]), "has 60 values, but there are 5 answers"),
    ):
        with pytest.raises(UserError, match=message):
            train(file, data=data, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_arrays_train_like_the_file_that_holds_them(file, tmp_path) -> None:
    np.savez(tmp_path / "mine.npz", x=X, y=Y)
    by_name = train(file, data=str(tmp_path / "mine.npz"), folder=tmp_path / "a", report=False)
    by_arrays = train(file, data=(X, Y), folder=tmp_path / "b", report=False)
    for name, values in by_name.model.state_dict().items():
        assert np.array_equal(values, by_arrays.model.state_dict()[name])


def test_a_data_frame_trains(file, tmp_path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "b", "c"]).assign(label=Y)
    run = train(file, data=frame, folder=tmp_path / "c", report=False)
    assert run.status == "finished"


def test_numbers_of_numpy_are_numbers() -> None:
    protocol = loads(TEXT)
    again = sordino.Protocol(
        clients=np.int64(4),
        rounds=np.int32(2),
        local=protocol.local,
        noise=sordino.Gaussian(sigma=np.float32(0.5)),
    )
    assert type(again.clients) is int
    assert type(again.noise.sigma) is float
    assert loads(dumps(again)) == again
    with pytest.raises(UserError, match=r"clients = .*: allowed|clients"):
        sordino.Protocol(
            clients=np.float64(4.5), rounds=2, local=protocol.local, noise=protocol.noise
        )


def test_a_calibration_prints_as_a_sentence(file) -> None:
    text = str(calibrate(file, epsilon=2.0))
    assert text.startswith("noise.sigma = ")
    assert "meets the target (epsilon = 2, delta = 1e-5). An adversary who sees" in text


@pytest.mark.parametrize(
    "ask",
    [
        lambda plan: certify(plan, delta="1e-5"),
        lambda plan: certify(plan, "rounds").epsilon("1e-5"),
        lambda plan: calibrate(plan, epsilon="4"),
        lambda plan: calibrate(plan, advantage=True),
    ],
)
def test_a_text_in_place_of_a_number_gets_a_sentence(ask) -> None:
    with pytest.raises(UserError, match=r"(delta|epsilon|advantage) = .*: expected a number"):
        ask(loads(TEXT))


def test_many_trainings_share_arrays(file) -> None:
    plans = [replace(loads(TEXT), seed=seed) for seed in range(3)]
    expected = train(plans[1], data=(X, Y), report=False)
    trained = train_many(plans, data=(X, Y))
    assert len(trained) == 3
    for name, values in expected.model.state_dict().items():
        assert np.array_equal(values, trained[1].model.state_dict()[name])
    with pytest.raises(UserError, match="3 protocols and 2 data sets"):
        train_many(plans, data=["digits", "digits"])


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_many_trainings_are_counted_on_a_terminal_and_nowhere_else() -> None:
    screen, file = Screen(), io.StringIO()
    for stream, shown in ((screen, True), (file, True), (screen, False)):
        show = count_ended(2, stream, shown=shown)
        show(1, None)
        show(0, None)
    assert screen.getvalue() == "\r1 of 2 trainings\r2 of 2 trainings\n"
    assert file.getvalue() == ""

"""Events of dp_accounting in files."""

import json
import math
from pathlib import Path

import pytest

from sordino.cli.main import run
from sordino.privacy.foreign_events import decode_event, price_event
from sordino.protocol import UserError

STEPS = {
    "class_name": "SelfComposedDpEvent",
    "count": 1000,
    "event": {
        "class_name": "PoissonSampledDpEvent",
        "sampling_probability": 0.01,
        "event": {"class_name": "GaussianDpEvent", "noise_multiplier": 1.0},
    },
}


def test_a_gaussian_costs_what_its_formula_says() -> None:
    event = decode_event({"class_name": "GaussianDpEvent", "noise_multiplier": 2.0})
    [price] = [one for one in price_event(event, 1e-5) if one.adjacency == "add-or-remove"]
    # delta(epsilon) of N(0, 1) against N(1/2, 1), by the normal distribution function.
    below = math.erfc((price.epsilon / 0.5 - 0.25) / math.sqrt(2)) / 2
    above = math.erfc((price.epsilon / 0.5 + 0.25) / math.sqrt(2)) / 2
    assert below - math.exp(price.epsilon) * above == pytest.approx(1e-5, rel=1e-2)


@pytest.mark.slow
def test_the_command_prices_a_file_for_both_kinds_of_neighbours(tmp_path: Path, capsys) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(STEPS))
    assert run(["certify", "--event", str(path), "--json"]) == 0
    prices = json.loads(capsys.readouterr().out)["prices"]
    assert [price["adjacency"] for price in prices] == ["add-or-remove", "replace-one"]
    assert 1.8 < prices[0]["epsilon"] < 1.85
    assert prices[1]["epsilon"] > prices[0]["epsilon"]
    assert run(["certify", "--event", str(path)]) == 0
    assert "add-or-remove: epsilon of at most 1.8" in capsys.readouterr().out
    assert run(["certify", "mine.toml", "--event", str(path)]) == 2
    assert run(["certify", "--event", str(path), "--delta", "2"]) == 2


def test_no_option_of_an_event_is_ignored(tmp_path: Path, capsys) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps({"class_name": "GaussianDpEvent", "noise_multiplier": 1.0}))
    # A delta of 0 was taken for none, and priced at 1e-5.
    assert run(["certify", "--event", str(path), "--delta", "0"]) == 2
    assert "delta = 0.0: expected" in capsys.readouterr().err
    assert run(["certify", "--event", str(path), "--plot", "p.png"]) == 2
    assert "--plot with --event: the two do not go together" in capsys.readouterr().err


def test_an_event_that_nobody_prices_says_why() -> None:
    prices = price_event(decode_event({"class_name": "UnsupportedDpEvent"}), 1e-5)
    assert [price.epsilon for price in prices] == [None, None]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (3, 'an event is a table with "class_name"'),
        ({"class_name": "os.system"}, "is no event of dp_accounting"),
        ({"class_name": "GaussianDpEvent", "sigma": 1.0}, "GaussianDpEvent: .*sigma"),
        ({**STEPS, "event": {"class_name": "Gaussian"}}, "class_name = 'Gaussian'"),
    ],
)
def test_what_is_no_event_is_refused(document, message) -> None:
    with pytest.raises(UserError, match=message):
        decode_event(document)


def test_files_that_cannot_be_read_get_exit_code_2(tmp_path: Path) -> None:
    assert run(["certify", "--event", str(tmp_path / "none.json")]) == 2
    (tmp_path / "bad.json").write_text("{")
    assert run(["certify", "--event", str(tmp_path / "bad.json")]) == 2

"""The pages without a browser: whatever they are given, they draw something and never a traceback."""

import json
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sordino.cli.main import run
from sordino.protocol import UserError, View, all_views

pytest.importorskip("streamlit", reason="the explorer needs streamlit")
pytest.importorskip("plotly", reason="the explorer needs plotly")

from streamlit.testing.v1 import AppTest

from sordino.explorer import server, watched_folder


def explore_page() -> None:
    from sordino.explorer import explore_page as explore

    explore.draw_page()


def runs() -> None:
    from sordino.explorer import runs_page as runs

    runs.draw_page()


def claims() -> None:
    from sordino.explorer import claims_page as claims

    claims.draw_page()


def opened(page, **query: str) -> AppTest:
    app = AppTest.from_function(page, default_timeout=120)
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def answer(app: AppTest) -> str:
    return next(one.proto.body for one in app.get("html") if "answer" in one.proto.body)


def warned(app: AppTest) -> str:
    return " ".join(one.value for one in [*app.warning, *app.error])


@pytest.fixture(autouse=True)
def _runs_are_here(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(watched_folder.watcher, "root", tmp_path / "runs")


def test_explore_answers_at_once() -> None:
    app = opened(explore_page)
    assert not app.exception
    assert "learns" in answer(app)
    assert len(app.select_slider) > 8
    assert app.toggle[0].set_value(True).run().number_input[0].label.startswith("Clients")


def test_an_address_sets_the_controls_and_a_hostile_one_is_refused() -> None:
    app = opened(
        explore_page,
        rounds="77",
        schedule="stage-wise",
        clip="<script>",
        size="![x](http://evil.example)",
    )
    assert not app.exception
    assert {slider.label: slider.value for slider in app.select_slider}[
        "Rounds of training, T"
    ] == 77
    assert "clip" in warned(app)
    assert "evil" not in warned(app)
    app.select_slider[0].set_value(200).run()
    assert dict(app.query_params)["clients"] in ("200", ["200"])


@pytest.mark.parametrize(
    "query",
    [
        {"participation": "fixed", "size": "500"},
        {"batch": "20"},
        {"mechanism": "staircase", "noise": "0.0"},
        {"mechanism": "staircase", "noise": "1.0", "width": "0.001"},
    ],
)
def test_values_that_do_not_go_together_get_a_message(query) -> None:
    app = opened(explore_page, **query)
    assert not app.exception
    assert "expected" in warned(app)


@pytest.mark.parametrize(
    "query",
    [{"noise": "0.0"}, {"where": "server"}, {"clients": "1"}, {"rule": "noisy-sgd", "rounds": "2"}],
)
def test_odd_federations_are_answered(query) -> None:
    app = opened(explore_page, **query)
    assert not app.exception
    assert warned(app) == ""
    assert "learns" in answer(app)


def test_the_noise_for_an_epsilon_is_set() -> None:
    app = opened(explore_page, adversary="rounds", rounds="20", target="1.0", batch="14")
    next(button for button in app.button if button.label == "Find the noise").click().run()
    assert not app.exception
    assert "reaches epsilon" in app.success[0].value
    found = app.session_state.setting
    assert 0.1 < found.noise != 0.16
    assert found.target == 1.0
    told = {slider.label: slider.value for slider in app.select_slider}
    assert told["Noise: standard deviation on each coordinate, sigma"] == found.noise


def test_answers_that_come_while_the_page_is_drawn_are_drawn(monkeypatch) -> None:
    from sordino.explorer import explore_page as explore
    from sordino.explorer import results

    ready = threading.Event()

    def late(function):
        def answered(*arguments):
            assert ready.wait(60)
            return function(*arguments)

        return answered

    drawn_file = explore.show_protocol

    def all_is_ready_now(setting) -> None:
        ready.set()
        assert explore.worker.request(explore.trace_all_tradeoffs, setting).result(60)
        assert explore.worker.request(results.trace_rounds, setting, setting.view).result(60)
        for view in all_views(setting.clients):
            assert explore.worker.request(results.price_view, setting, view).result(60)
        drawn_file(setting)

    for name in ("price_view", "trace_rounds"):
        monkeypatch.setattr(results, name, late(getattr(results, name)))
    monkeypatch.setattr(explore, "trace_all_tradeoffs", late(explore.trace_all_tradeoffs))
    monkeypatch.setattr(explore, "show_protocol", all_is_ready_now)
    app = opened(explore_page, rounds="21")
    assert not app.exception
    assert ready.is_set()
    shown = [one.proto.body for one in app.get("html")]
    assert "being computed" not in " ".join([*shown, *(one.value for one in app.caption)])


@pytest.mark.slow
def test_after_twelve_quick_changes_the_answer_is_there_within_three_seconds(monkeypatch) -> None:
    from sordino.explorer import results

    priced = results.price_view
    asked = []

    def slowly(setting, view):
        asked.append((setting.rounds, view))
        time.sleep(0.5)
        return priced(setting, view)

    monkeypatch.setattr(results, "price_view", slowly)
    app = opened(explore_page, rounds="31")
    for rounds in range(32, 44):
        app.query_params["rounds"] = str(rounds)
        app.session_state.setting = replace(app.session_state.setting, rounds=rounds)
        app.session_state.generation += 1
        app.run()
    began = time.monotonic()
    while "By plain composition" in " ".join(one.proto.body for one in app.get("html")):
        time.sleep(0.1)
        app.run()
    assert time.monotonic() - began < 3
    assert (43, View.SERVER) in asked
    assert len(asked) < 12 * 5  # not every position that was passed


def test_runs_are_none_one_or_damaged(tmp_path, capfd) -> None:
    assert "no runs" in opened(runs).info[0].value
    quick = [
        "--set",
        "federation.rounds=3",
        "--set",
        "federation.clients=10",
        "--out",
        str(tmp_path / "runs" / "a"),
    ]
    assert run(["train", *quick]) == 0
    app = opened(runs)
    assert not app.exception
    assert "round 3 of 3" in answer(app)
    (tmp_path / "runs" / "a" / "run.json").write_text("{")
    app = opened(runs)
    assert not app.exception
    assert "is damaged" in answer(app)
    shutil.rmtree(tmp_path / "runs" / "a")
    app.run()
    assert not app.exception
    assert "no runs" in app.info[0].value


def test_claims_are_listed_and_filtered() -> None:
    app = opened(claims)
    assert not app.exception
    assert "false as printed" in answer(app)
    app.selectbox[0].set_value("prifedsync").run()
    app.selectbox[1].set_value("asymptotic").run()
    assert app.selectbox[2].options == ["≈ prifedsync/theorem-2-limit"]
    app.selectbox[0].set_value("udp-fl").run()
    assert not app.exception
    assert "No claim" in app.info[0].value


def test_a_mistake_of_the_page_itself_is_no_traceback(capfd) -> None:
    def broken() -> None:
        from sordino.explorer.server import show_error

        show_error(RuntimeError("a secret path"))

    app = opened(broken)
    assert "secret" not in warned(app)
    assert "terminal" in warned(app)
    assert "a secret path" in capfd.readouterr().err


class Request:
    def __init__(self, name: str) -> None:
        self.path_params = {"name": name}


@pytest.mark.parametrize("name", ["../a", "a/../../secret", "/etc", "b", "", "a/.."])
def test_only_reports_of_runs_are_served(name, tmp_path) -> None:
    import asyncio

    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "report.html").write_text("secret")
    (tmp_path / "runs" / "report.html").write_text("secret")
    (tmp_path / "runs" / "a" / "protocol.toml").write_text("")
    assert asyncio.run(server.serve_report(Request(name))).status_code == 404
    assert asyncio.run(server.serve_report(Request("a"))).status_code == 404
    (tmp_path / "runs" / "a" / "report.html").write_text("<p>mine")
    found = asyncio.run(server.serve_report(Request("a")))
    assert found.status_code == 200
    assert "sandbox" in found.headers["content-security-policy"]


def test_a_port_that_is_taken_is_refused(capfd) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["ui", "--port", str(port)]) == 2
    assert str(port) in capfd.readouterr().err
    with pytest.raises(UserError, match="--address"):
        server.find_free_port("203.0.113.7", 8765)
    assert run(["ui", "--address", "not an address", "--port", "8765"]) == 2


def test_without_the_extra_the_command_says_how_to_get_it(monkeypatch, capfd) -> None:
    monkeypatch.setattr("sordino.cli.ui_command.find_spec", lambda name: None)
    assert run(["ui"]) == 2
    assert "pip install 'sordino[ui]'" in capfd.readouterr().err


def test_nothing_is_sent_and_nothing_is_watched() -> None:
    told = json.dumps(server.CONFIG)
    assert server.CONFIG["browser.gatherUsageStats"] is False
    assert server.CONFIG["server.fileWatcherType"] == "none"
    assert "http" not in told
    assert Path(server.__file__).with_name("app.py").exists()

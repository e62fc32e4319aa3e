"""The explorer in a real browser: by the keyboard, beside the command line, while a run goes on, and with runs that are broken."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sordino import Run
from sordino.cli.main import run
from sordino.privacy.guarantee import round_up
from tests.browser.conftest import PATIENCE, photographed, serious
from tests.report.conftest import written_by_hand

pytest.importorskip("streamlit", reason="the explorer needs streamlit")
pytest.importorskip("plotly", reason="the explorer needs plotly")

pytestmark = pytest.mark.soak

QUICK = ["--set", "federation.rounds=4", "--set", "federation.clients=10"]


@dataclass(frozen=True)
class Explorer:
    """A server, and the folder that it was started in."""

    address: str
    folder: Path

    def at(self, page, path: str = "") -> None:
        """Open a page and wait until it has an answer."""
        page.goto(self.address + path)
        page.locator(".answer").first.wait_for()


@pytest.fixture(scope="module")
def explorer(browser, tmp_path_factory) -> Iterator[Explorer]:
    folder = tmp_path_factory.mktemp("explorer")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "sordino", "ui", "--port", str(port)]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/_stcore/health", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.2)
        yield Explorer(address=address, folder=folder)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def settled(page) -> str:
    """Wait until nothing is being computed and all is drawn, and return the answer."""
    page.wait_for_function(
        """() => document.querySelector('.answer') && !document.body.innerText.includes('being computed')
            && document.querySelector('[data-testid=stApp]').dataset.testScriptState === 'notRunning'""",
        timeout=PATIENCE,
    )
    return page.locator(".answer").first.inner_text()


def changed(page, before: str) -> str:
    """Wait until the answer is another one and final, and return it."""
    page.wait_for_function(
        "before => document.querySelector('.answer').innerText !== before",
        arg=before,
        timeout=PATIENCE,
    )
    return settled(page)


def chosen(page, label: str, word: str) -> None:
    """Choose an option by the keyboard alone."""
    page.get_by_role("combobox", name=re.compile(label)).focus()
    page.keyboard.type(word)
    page.locator("[role=option][data-focused]").get_by_text(re.compile(word)).wait_for()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")


def epsilons(page) -> dict[str, str]:
    """The certified column of the table of views."""
    rows = page.locator("table.plain").first.locator("tbody tr")
    return {
        rows.nth(at).locator("th strong").inner_text(): rows.nth(at)
        .locator("td")
        .first.inner_text()
        for at in range(rows.count())
    }


def told_by_certify(file: Path, capfd) -> dict[str, str]:
    capfd.readouterr()
    assert run(["certify", str(file), "--json"]) == 0
    return {
        row["view"]: round_up(row["epsilon"])
        for row in json.loads(capfd.readouterr().out)["guarantees"]
    }


def downloaded(page, place: Path) -> Path:
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download federation.toml").click()
    waiting.value.save_as(place / "federation.toml")
    return place / "federation.toml"


def test_a_slider_moved_by_the_keyboard_gives_what_certify_says_and_the_file_trains(
    explorer, page, tmp_path, capfd
) -> None:
    explorer.at(page, "/?rounds=20&adversary=rounds")
    first = settled(page)
    slider = page.get_by_role("slider", name=re.compile("Rounds of training"))
    slider.focus()
    page.keyboard.press("ArrowRight")
    second = changed(page, first)
    assert "rounds=25" in page.url
    file = downloaded(page, tmp_path)
    told = told_by_certify(file, capfd)
    assert epsilons(page) == told
    assert f"ε = {told['rounds']}" in second
    photographed(page, "explore")
    assert run(["check", str(file)]) == 0
    assert run(["train", str(file), "--out", str(tmp_path / "run"), "--workers", "1"]) == 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 25


def test_a_setting_is_shared_by_its_address(explorer, page, browser) -> None:
    explorer.at(page, "/?rounds=50&adversary=rounds")
    before = settled(page)
    chosen(page, "How the learning rate falls", "cyclic")
    page.get_by_role("slider", name=re.compile("Clip")).focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "() => location.search.includes('cyclic') && location.search.includes('clip')"
    )
    after = changed(page, before)
    other = browser.new_context()
    shared = other.new_page()
    shared.set_default_timeout(PATIENCE)
    shared.goto(page.url)
    shared.locator(".answer .epsilon").wait_for()
    assert settled(shared) == after
    other.close()


def test_a_hostile_address_is_refused_politely(explorer, page) -> None:
    evil = "rounds=%3Cscript%3Ealert(1)%3C/script%3E&clip=1e999&schedule=![x](http://evil.example/x.png)&clients=1000000000&who=<b>"
    explorer.at(page, f"/?{evil}")
    assert "learns without a meaningful limit" in settled(page)
    said = page.get_by_text("Not everything in the address was used").inner_text()
    assert "clients: expected a whole number from 1 to 10,000" in said
    assert "evil" not in page.locator("[data-testid=stMain]").inner_text()
    assert page.locator("img[src*=evil]").count() == 0


def test_the_noise_for_an_epsilon_is_found(explorer, page, tmp_path, capfd) -> None:
    explorer.at(page, "/?rounds=20&adversary=rounds&batch=14")
    before = settled(page)
    field = page.get_by_label(re.compile("Epsilon, view rounds"))
    field.fill("1")
    field.press("Enter")
    # The page is drawn again after the entry, and a click meanwhile would be lost.
    settled(page)
    page.get_by_role("button", name="Find the noise").click()
    page.get_by_text("reaches epsilon").wait_for()
    after = changed(page, before)
    assert "ε = 1 " in after
    assert told_by_certify(downloaded(page, tmp_path), capfd)["rounds"] == "1"


def test_a_printed_bound_that_is_false_is_struck_through_with_its_reason(explorer, page) -> None:
    explorer.at(page, "/?rounds=2000&smoothness=1.0&adversary=final")
    settled(page)
    struck = page.locator("del.false")
    struck.wait_for()
    assert "unsound" in struck.get_attribute("title")
    assert float(struck.inner_text()) < float(epsilons(page)["final"])
    page.get_by_text("convergent/theorem-3a printed").click()
    page.get_by_text("#a1, #a2").wait_for()


@pytest.mark.parametrize("path", ["/?rounds=20", "/claims", "/runs"])
def test_axe_finds_nothing_serious(explorer, page, path) -> None:
    if path == "/runs" and not (explorer.folder / "runs" / "axe").exists():
        assert run(["train", *QUICK, "--out", str(explorer.folder / "runs" / "axe")]) == 0
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        explorer.at(page, path)
        settled(page)
        for summary in page.locator("summary").all():
            summary.click()  # what is folded is judged too
        page.mouse.move(0, 0)  # nothing is on its way from one colour to another
        page.wait_for_timeout(1500)
        assert serious(page) == []
        photographed(page, f"axe-{path.strip('/').split('?')[0] or 'explore'}-{scheme}")


def test_a_run_is_watched_as_it_goes_on_and_missed_when_it_is_gone(explorer, page) -> None:
    folder = explorer.folder / "runs" / "live"
    endless = [
        "--set",
        "federation.rounds=100000",
        "--set",
        "privacy.budget.epsilon=1e9",
        "--set",
        "local.batch=14",
        "--workers",
        "1",
    ]
    command = [sys.executable, "-m", "sordino", "train", *endless, "--out", str(folder)]
    training = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=explorer.folder)
    try:
        deadline = time.monotonic() + 120
        while (
            not (
                (folder / "metrics.jsonl").exists()
                and (folder / "metrics.jsonl").stat().st_size > 0
            )
            and time.monotonic() < deadline
        ):
            time.sleep(0.2)
        explorer.at(page, "/runs")
        page.wait_for_function(
            "() => /live: round [0-9,]+ of 100,000/.test(document.body.innerText)", timeout=PATIENCE
        )
        first = round_shown(page)
        page.wait_for_function(
            f"() => Number(/live: round ([0-9,]+) of/.exec(document.body.innerText)[1].replaceAll(',', '')) > {first}"
        )
        assert round_shown(page) > first
        assert "under way" in page.locator("[data-testid=stMain]").inner_text()
        page.wait_for_function(
            "() => document.querySelector('.answer').innerText.includes('spent')", timeout=PATIENCE
        )
        photographed(page, "runs")
    finally:
        os.kill(training.pid, signal.SIGKILL)
        training.wait(60)
    shutil.rmtree(folder)
    page.get_by_text("live is no longer there").first.wait_for()
    assert page.locator("[data-testid=stException]").count() == 0


def round_shown(page) -> int:
    return int(
        re.search(r"live: round ([0-9,]+) of", page.locator("[data-testid=stMain]").inner_text())[
            1
        ].replace(",", "")
    )


def test_broken_runs_many_runs_and_long_runs_are_shown(explorer, page) -> None:
    runs = explorer.folder / "runs"
    assert run(["train", *QUICK, "--out", str(runs / "base")]) == 0
    long = replace(Run.load(runs / "base").protocol, rounds=10_000)
    written_by_hand(runs / "long", long, lambda t: tuple(range(10)), [14] * 10)
    shutil.copytree(runs / "base", runs / "broken")
    (runs / "broken" / "run.json").write_text("{")
    for number in range(8):
        shutil.copytree(runs / "base", runs / f"copy-{number}")
    (runs / "base" / "report.html").write_text(
        "<!doctype html><title>x</title><p>the report</p><script>document.title='ran'</script>"
    )
    explorer.at(page, "/runs")
    for name in ("broken", "long", "base", *(f"copy-{number}" for number in range(7))):
        if page.get_by_role("button", name=f"Remove {name}").count() == 0:
            chosen(page, "Runs to watch", name)
            page.get_by_role("button", name=f"Remove {name}").first.wait_for()
    page.get_by_text("broken is damaged").first.wait_for()
    page.locator("table.plain").first.get_by_text("10,000 / 10,000").wait_for()
    assert page.locator(".js-plotly-plot").count() >= 2
    assert page.locator("[data-testid=stException]").count() == 0
    photographed(page, "runs-many")
    link = page.get_by_role("link", name="Open the report of base")
    with page.context.expect_page() as waiting:
        link.click()
    waiting.value.get_by_text("the report").wait_for()
    assert waiting.value.title() == "x"  # a report runs nothing


def test_a_counterexample_passes_the_published_line(explorer, page) -> None:
    explorer.at(page, "/claims")
    rounds = page.get_by_label(re.compile("Rounds of each training"))
    rounds.fill("30")
    rounds.press("Enter")
    page.get_by_text(
        re.compile(r"Exact, by computing: 2\.449")
    ).wait_for()  # sqrt(30) times that of one round
    page.get_by_role("button", name="Run the counterexample").press("Enter")
    page.get_by_text(re.compile("convergent/theorem-3a: refuted")).wait_for(timeout=4 * PATIENCE)
    said = page.get_by_text(re.compile("convergent/theorem-3a: refuted")).inner_text()
    measured, printed = (float(text) for text in re.findall(r"mu [≥≤] ([0-9.]+[0-9])", said))
    assert measured > printed
    page.locator(".js-plotly-plot").first.wait_for()
    page.get_by_text("Measured lower bound on mu: the table").click()
    page.get_by_role("cell", name="1,000").or_(
        page.get_by_role("rowheader", name="1,000")
    ).first.wait_for()
    photographed(page, "claims")

"""Verifies that the report of a run says what follows from the sealed files."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from sordino.federation.store.run import Run
from sordino.federation.store.seals import SealCheck
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import View
from sordino.protocol.documents import to_json_value
from sordino.protocol.errors import Changed
from sordino.protocol.views import ANY_UNIT_IN_WORDS
from sordino.report.phrasing import name_adversary, state_headline
from sordino.report.run_prices import Headline, choose_run_headline, price_run
from sordino.report.writing import PAGE

# Relative: numbers computed again on another machine may differ in their last bits.
TOLERANCE = 1e-9
BLOCK = re.compile(r'id="sordino-report">(.*?)</script>', re.DOTALL)
HEADLINE = re.compile(r"<h1>(.*?)</h1>", re.DOTALL)
GENERATOR = re.compile(r'name="generator" content="Sordino ([^"]*)"')
# The words of headlines in reports that were written before November 2026.
EARLIER_ADVERSARIES = {
    "server": "The server, or anyone who reads each client's messages",
    "rounds": "Anyone who sees the model after every round",
    "coalition": "{colluders} participants who pool what they know",
    "final": "Anyone who is given only the finished model",
    "weak": "One other client",
    "strong": "All other clients together",
}


@dataclass(frozen=True, kw_only=True)
class Page:
    """Holds what a report says.

    Attributes:
        path: The file of the report.
        headline: The sentence at the top.
        document: The machine-readable block.
        version: The version of Sordino that wrote the report.
    """

    path: Path
    headline: str
    document: dict[str, Any]
    version: str


class Difference(NamedTuple):
    """Describes something in a report that does not follow from the run.

    Attributes:
        said: What the report says, and what it should say.
        unsafe: Whether the report promises too much.
    """

    said: str
    unsafe: bool


def read_page(path: Path) -> Page:
    """Reads a report.

    Args:
        path: The file.

    Raises:
        Changed: It is no longer a report.
    """
    try:
        text = path.read_text(encoding="utf-8")
        headline = _find(HEADLINE, text)
        document = json.loads(_find(BLOCK, text))
        if not isinstance(document, dict):
            # Any other JSON would fail later, with a message that is less clear.
            raise ValueError("its numbers are missing")
        return Page(
            path=path,
            headline=html.unescape(headline),
            document=document,
            version=_find(GENERATOR, text),
        )
    except (OSError, ValueError) as error:
        raise Changed(f"{path} was changed: it is not the report of a run ({error}).") from None


def _find(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    if found is None:
        raise ValueError("a part is missing")
    return found.group(1)


def check_prices(run: Run) -> list[SealCheck]:
    """Prices a run again, and checks that its report says the same.

    Args:
        run: What was trained.

    Raises:
        Changed: report.html is not a report.
    """
    headline = choose_run_headline(run)
    # Priced from the protocol and the ledger alone; nothing is taken from the page.
    guarantee = price_run(run, headline)
    said = f"computed again: {guarantee.sentence(headline.delta)}"
    checks = [SealCheck(subject="price", result="whole", said=said)]
    path = run.folder / PAGE
    if not path.exists():
        said = "there is no report.html"
        return [*checks, SealCheck(subject="report", result="not checked", said=said)]
    page = read_page(path)
    # A page about an unfinished run was true when it was written, and is no sign of tampering.
    if page.document.get("run", {}).get("status") == "unfinished" != run.status:
        said = "report.html was written before the run ended; rewrite it with `sordino report`"
        return [*checks, SealCheck(subject="report", result="not checked", said=said)]
    return [*checks, check_page(run, page)]


def check_page(run: Run, page: Page) -> SealCheck:
    """Checks that the numbers of a report are those of the run.

    Args:
        run: What was trained.
        page: Its report.
    """
    subject = "report"
    try:
        difference = find_report_difference(run, page)
    # A document of another shape is unsafe, since its numbers cannot be compared with anything.
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        said = f"its numbers for machines are not those of a report ({error!r})"
        difference = Difference(said, unsafe=True)
    if difference is None:
        said = (
            "headline, prices, metrics and records are those of the run; "
            "its other words are not compared"
        )
        return SealCheck(subject=subject, result="whole", said=said)
    # A later version may prove smaller bounds. A page that promises less than it could misleads
    # nobody.
    if not difference.unsafe and page.version != version("sordino"):
        said = (
            f"report.html was written by Sordino {page.version}, which said more: {difference.said}"
        )
        return SealCheck(subject=subject, result="not checked", said=said)
    said = f"{page.path} does not fit the run: {difference.said}."
    return SealCheck(subject=subject, result="changed", said=said)


def find_report_difference(run: Run, page: Page) -> Difference | None:
    """Finds the first statement of a report that does not follow from the run.

    Args:
        run: What was trained.
        page: Its report.

    Returns:
        None where both say the same.
    """
    rows = [page.document["run"]["guarantee"]]
    for guarantees in page.document["guarantees"].values():
        rows += guarantees
    for row in rows:
        headline = Headline(View.parse(row["view"]), row["unit"], row["delta"])
        true = price_run(run, headline).epsilon(headline.delta)
        stated = read_epsilon(row["epsilon"])
        if not are_close(stated, true):
            said = (
                f"epsilon = {stated:.6g} in the view {row['view']}, unit {row['unit']}, "
                f"where certify gives {true:.6g}"
            )
            # Only a promise of less than the truth is dangerous.
            return Difference(said, unsafe=stated < true)
    headline = choose_run_headline(run)
    guarantee = price_run(run, headline)
    expected = state_headline(guarantee, headline.delta)
    if page.headline not in (expected, state_earlier_headline(guarantee, headline.delta)):
        said = f"its headline reads {page.headline!r}, and should read {expected!r}"
        return Difference(said, unsafe=True)
    return find_other_difference(run, page.document)


def state_earlier_headline(guarantee: Guarantee, delta: float) -> str:
    """Returns the headline in the words of earlier versions, whose reports stay valid.

    Args:
        guarantee: The bound.
        delta: Where epsilon is shown.
    """
    view = guarantee.view
    adversary = EARLIER_ADVERSARIES[view.kind].format(colluders=view.colluders)
    if view.colluders == 1:
        adversary = "A curious participant"
    text = state_headline(guarantee, delta).replace(name_adversary(view), adversary, 1)
    return text.replace(ANY_UNIT_IN_WORDS["record"], "any one record", 1)


def find_other_difference(run: Run, document: dict[str, Any]) -> Difference | None:
    """Finds the first wrong statement about the run's end, its clients or its rounds.

    Args:
        run: What was trained.
        document: The machine-readable block of its report.
    """
    status = document["run"]["status"]
    if status != run.status:
        return Difference(f"it says that the run is {status}", unsafe=True)
    for row in document["clients"]:
        if row["records"] != run.sizes[row["client"]]:
            said = f"client {row['client']} has {row['records']} records there"
            return Difference(said, unsafe=True)
    index_of = {int(number): index for index, number in enumerate(run.metrics["round"])}
    shown = document["metrics"]
    # Metrics are compared by round, since a page may show some of them only.
    for name, values in shown.items():
        for number, value in zip(shown["round"], values, strict=True):
            true = to_json_value(run.metrics[name][index_of[number]])
            # A value that the page leaves out is not a wrong one.
            if value is not None and value != true:
                return Difference(f"{name} of round {number} is {value} there", unsafe=True)
    for name in ("loss", "accuracy"):
        value = document["run"].get(name)
        known = run.metrics[name]
        if value is not None and len(known) > 0 and value != to_json_value(known[-1]):
            return Difference(f"the last {name} is {value} there", unsafe=True)
    return None


def read_epsilon(value: Any) -> float:
    """Returns a number of a JSON document, in which infinity is a text.

    Args:
        value: A number, or "inf".
    """
    if value == "inf":
        return math.inf
    return float(value)


def are_close(one: float, other: float) -> bool:
    """Returns whether two numbers are equal up to their last bits.

    Args:
        one: The first number.
        other: The second number.
    """
    return one == other or math.isclose(one, other, rel_tol=TOLERANCE)

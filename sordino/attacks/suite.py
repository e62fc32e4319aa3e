"""`attack`: a run is put through published attacks; what they got is kept beside the run, with plots.

attacks/NAME.json        the rows of one attack, as `--json` prints them; docs/attacks.md says what a row has
attacks/NAME.png         the same against rounds and noise; NAME-pictures.png: originals and reconstructions; NAME-roc.png: detection
attacks/parts/           what came of every case, whole or absent: an attack that was interrupted goes on after it
attacks/shadows/         models that the attacker trained, a folder of runs for every attacked round (shadows.py)
attacks/without-noise/   the run's twin without noise, a run of its own (twin.py)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino.attacks import (
    attributes,
    clients,
    extraction,
    inversion,
    labels,
    membership,
    reconstruction,
)
from sordino.attacks.game import Attack, Measure, Row, Scored, Tick, part_of, rows_of
from sordino.attacks.pictures import LEAST_RATE, draw_curves, draw_pictures, draw_rows
from sordino.attacks.referee import Referee
from sordino.engines.torch_engine import single_threaded
from sordino.federation.folder import as_json
from sordino.federation.run import Run
from sordino.federation.setup import DataSource, ModelSource
from sordino.federation.storage import held, pack, unpack, write_whole, writing
from sordino.protocol import InvalidValue, Protocol, UserError

ATTACKS: Mapping[str, Mapping[str, Attack[Any, Any, Any]]] = {
    "labels": labels.SETTINGS,
    "inversion": inversion.SETTINGS,
    "reconstruction": reconstruction.SETTINGS,
    "attributes": attributes.SETTINGS,
    "extraction": extraction.SETTINGS,
    "membership": membership.SETTINGS,
    "clients": clients.SETTINGS,
}
OPTIONS = {"attribute": "attributes", "shadows": "membership"}  # which attack takes which
SETTINGS = ("quick", "paper")
ARRAYS = ("pictures", "curves")  # of a result, as its file names them

Subject = Run | Referee  # a referee is a run whose data are loaded already

# What a paper prints for a row, where it does.
Printed = Callable[[Row, Protocol], float | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Finding:
    """What one attack got out of one or several runs.

    Attributes:
        name: of the attack.
        setting: "quick", "paper", or "own" for an attack in settings of the caller's.
        subject: what was attacked, in words.
        headline: the metric that tells most.
        rows: what was measured.
        cases: per run its noise, and the round and the result of every case, with pictures.
    """

    name: str
    setting: str
    subject: str
    headline: str
    rows: tuple[Row, ...]
    cases: tuple[tuple[float, Sequence[tuple[int, Scored]]], ...]

    def as_document(self) -> dict[str, Any]:
        """The finding as JSON has it: in short, for reports, and in full."""
        named = {"attack": self.name, "setting": self.setting, "subject": self.subject}
        return {
            **named,
            "headlines": self.headlines(),
            "rows": [row.as_document() for row in self.rows],
        }

    def headlines(self) -> list[dict[str, Any]]:
        """Per noise what the best method reached at the last round, in the metric that tells most; the first with a plot over rounds."""
        found = []
        lines: dict[str, tuple[list[float], list[float]]] = {}
        for noise in sorted({row.noise for row in self.rows}):
            best = best_by_round(
                [row for row in self.rows if row.noise == noise and row.metric == self.headline]
            )
            last = best[-1]
            found.append(
                {
                    "name": f"{self.name}, noise {noise:g}",
                    "metric": last.metric,
                    "value": last.value,
                    "baseline": last.baseline,
                    "paper": last.paper,
                }
            )
            lines[f"noise {noise:g}"] = [row.round for row in best], [row.value for row in best]
            lines["sees nothing"] = [row.round for row in best], [row.baseline for row in best]
        plot = {
            "title": self.subject,
            "x_label": "rounds",
            "y_label": self.headline,
            "lines": lines,
        }
        return [{**found[0], "plots": [plot, *self.detection()]}, *found[1:]]

    def detection(self) -> list[dict[str, Any]]:
        """Where something is detected, a plot of the best method's true against false positive rates after the last round, per noise."""
        rates, lines = np.geomspace(LEAST_RATE, 1, 61), {}
        for noise, results in self.cases:
            best = best_by_round(
                [row for row in self.rows if row.noise == noise and row.metric == self.headline]
            )[-1]
            curves = [
                result.curves[best.method]
                for round, result in results
                if round == best.round and best.method in result.curves
            ]
            for false, true in curves:
                reached = true[np.searchsorted(false, rates, side="right") - 1]
                lines[f"{best.method}, noise {noise:g}"] = (
                    rates.tolist(),
                    np.maximum(reached, LEAST_RATE).tolist(),
                )
        if not lines:
            return []
        labels = {"x_label": "false positive rate", "y_label": "true positive rate"}
        return [{"title": "what is detected", **labels, "lines": lines, "logarithmic": True}]


def attack(
    runs: Subject | Sequence[Subject],
    name: str | Attack[Any, Any, Any],
    *,
    setting: str = "quick",
    attribute: str | None = None,
    shadows: int | None = None,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    folder: Path | None = None,
    printed: Printed = lambda row, protocol: None,
    on_progress: Tick = lambda share: None,
) -> Finding:
    """Put a run, or several that differ in their noise, through one attack, and keep what it got with the first of them.

    Killed at any moment and called again, it goes on after the last case that was finished.

    Args:
        runs: finished runs; what the server received must have been kept with them for attacks on uploads.
        name: one of `ATTACKS`, or an attack in settings of your own.
        setting: "quick" (a minute or so) or "paper" (as near to the papers' as two cores get).
        attribute: for "attributes", which one; by default the one that papers use with these data.
        shadows: for "membership", how many models the attacker trains.
        data: the data of the runs, where they were handed over in Python.
        model: the same for the model.
        folder: where results go; by default `attacks` in the first run's folder.
        printed: what papers print beside a row.
        on_progress: called with the share of the work that is done.

    Raises:
        UserError: the attack cannot be tried on these runs; the message says why and what to do.

    Example:
        >>> attack(Run.load("runs/digits-1"), "labels").rows[0].value  # doctest: +SKIP
        0.97
    """
    options = {"attribute": attribute, "shadows": shadows}
    plan, setting = (
        (named_attack(name, setting, options), setting) if isinstance(name, str) else (name, "own")
    )
    given = [runs] if isinstance(runs, Run | Referee) else list(runs)
    referees = [
        one if isinstance(one, Referee) else Referee(one, data=data, model=model) for one in given
    ]
    place = folder if folder is not None else referees[0].run.folder / "attacks"
    with ExitStack() as stack, single_threaded():
        for referee in referees:
            stack.enter_context(held(referee.run.folder))
        cases: list[tuple[float, list[tuple[int, Scored]]]] = []
        rows: list[Row] = []
        for number, referee in enumerate(referees):
            parts = referee.run.folder / "attacks" / "parts" / f"{plan.name}-{setting}"
            results = tried(plan, referee, parts, part_of(on_progress, number, len(referees)))
            cases.append((referee.noise, results))
            rows += [
                with_printed(row, referee.protocol, printed)
                for row in rows_of(plan, results, referee.noise)
            ]
        finding = Finding(
            name=plan.name,
            setting=setting,
            subject=subject_of(referees[0].run),
            headline=plan.headline,
            rows=tuple(rows),
            cases=tuple(cases),
        )
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
            write_whole(place / f"{plan.name}.json", as_json(finding.as_document()))
            draw_rows(
                finding.rows, place / f"{plan.name}.png", title=f"{plan.name}: {finding.subject}"
            )
            draw_pictures(finding.cases, place / f"{plan.name}-pictures.png")
            draw_curves(
                finding.cases,
                place / f"{plan.name}-roc.png",
                title=f"{plan.name}: {finding.subject}",
            )
    return finding


def refusals(
    referee: Referee, names: Sequence[str], setting: str, options: Mapping[str, Any]
) -> dict[str, UserError]:
    """Of these attacks those that cannot be tried on a run, and why, found out before any work is done."""
    refused = {}
    for name in names:
        try:
            named_attack(name, setting, options_of(name, options)).cases(referee)
        except UserError as error:
            refused[name] = error
    return refused


def options_of(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Of some options those that an attack takes."""
    return {option: value for option, value in options.items() if OPTIONS[option] == name}


def named_attack(name: str, setting: str, options: Mapping[str, Any]) -> Attack[Any, Any, Any]:
    """The attack of a name in a setting, with the options that were given."""
    if name not in ATTACKS:
        raise UserError(f"attack {name!r} is not known. There are: {', '.join(ATTACKS)}, and all.")
    if setting not in SETTINGS:
        raise InvalidValue("--setting", setting, " or ".join(SETTINGS))
    given = {option: value for option, value in options.items() if value is not None}
    for option, value in given.items():
        if OPTIONS[option] != name:
            raise UserError(
                f"--{option} {value}: only the attack {OPTIONS[option]} takes it, and {name} was asked for."
            )
    return replace(ATTACKS[name][setting], **given)  # type: ignore[type-var]


def tried(
    plan: Attack[Any, Any, Any], referee: Referee, parts: Path, progress: Tick
) -> list[tuple[int, Scored]]:
    """The result of every case of an attack on one run; those that were finished earlier are read."""
    cases, results = plan.cases(referee), []
    for number, case in enumerate(cases):
        tick = part_of(progress, number, len(cases))
        place = parts / f"{case.key}.safetensors"
        result = read_part(place, plan)
        if result is None:
            result = plan.score(plan.attempt(case.observe(), tick), case.reveal())
            write_part(place, plan, result)
        results.append((case.round, result))
        tick(1.0)
    return results


def write_part(path: Path, plan: Attack[Any, Any, Any], result: Scored) -> None:
    """Keep what came of a case, and which attack it was."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {
            f"{kind}/{name}": array
            for kind in ARRAYS
            for name, array in getattr(result, kind).items()
        }
        write_whole(
            path,
            pack(
                arrays, {"attack": repr(plan), "measures": [asdict(one) for one in result.measures]}
            ),
        )


def read_part(path: Path, plan: Attack[Any, Any, Any]) -> Scored | None:
    """What came of a case earlier; None where there is nothing, or it is damaged or of an attack in other settings."""
    try:
        arrays, facts = unpack(path.read_bytes())
        if facts["attack"] != repr(plan):
            return None
        kinds = {
            kind: {
                name.removeprefix(f"{kind}/"): array
                for name, array in arrays.items()
                if name.startswith(f"{kind}/")
            }
            for kind in ARRAYS
        }
        return Scored(measures=tuple(Measure(**one) for one in facts["measures"]), **kinds)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def with_printed(row: Row, protocol: Protocol, printed: Printed) -> Row:
    """The row with what a paper prints, where it prints something."""
    return replace(row, printed=printed(row, protocol))


def best_by_round(rows: Sequence[Row]) -> list[Row]:
    """Of every round the row that leaks most, in order."""
    sign = 1 if rows[0].better == "higher" else -1
    return [
        max((row for row in rows if row.round == t), key=lambda row: sign * row.value)
        for t in sorted({row.round for row in rows})
    ]


def subject_of(run: Run) -> str:
    """What was attacked, in words."""
    plan = run.protocol
    model, data = (part.name if part is not None else "?" for part in (plan.model, plan.data))
    steps = f"{plan.local.steps} local step{'s' if plan.local.steps > 1 else ''}"
    batch = f", batches of {plan.local.batch}" if plan.local.batch is not None else ""
    return f"{model} on {data}, {plan.clients} clients, {plan.rounds} rounds of {steps}{batch}"

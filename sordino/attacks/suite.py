"""Puts runs through published attacks, and stores what they found in the run's folder, with plots.

attacks/NAME.json        the rows of one attack, as `--json` prints them; docs/attacks.md explains
                         a row
attacks/NAME.png         the same against rounds and noise
attacks/NAME-pictures.png    originals and reconstructions
attacks/NAME-roc.png     detection curves
attacks/parts/           the result of every case, whole or absent: an interrupted attack continues
                         after it
attacks/shadows/         models that the attacker trained, a folder for every attacked round
attacks/without-noise/   the run's twin without noise, itself a run (`twin`)
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
from sordino.attacks.attack import (
    Attack,
    CaseResult,
    Measure,
    Row,
    Tick,
    average_rows,
    part_progress,
)
from sordino.attacks.pictures import SMALLEST_RATE, draw_curves, draw_pictures, draw_rows
from sordino.attacks.referee import Referee
from sordino.federation.complete_protocol import DataSource, ModelSource
from sordino.federation.processors import single_threaded
from sordino.federation.store.files import hold_lock, pack, unpack, write_whole, writing
from sordino.federation.store.run import Run
from sordino.federation.store.run_folder import as_json
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
# The attack that takes each option.
OPTIONS = {"attribute": "attributes", "shadows": "membership"}
SETTINGS = ("quick", "paper")
# The arrays of a result, as its file names them.
ARRAYS = ("pictures", "curves")
# The number of points of a detection curve in a report.
CURVE_POINTS = 61

# A referee is a run whose data are loaded already.
Subject = Run | Referee

# Returns what a paper prints for a row, where it does.
Printed = Callable[[Row, Protocol], float | None]

# The size of a run's noise, and the round and the result of every case.
RunResults = tuple[float, Sequence[tuple[int, CaseResult]]]


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackFinding:
    """What one attack found in one or several runs.

    Attributes:
        name: The name of the attack.
        setting: "quick", "paper", or "own" for an attack in the caller's settings.
        subject: A description of the run.
        headline: The metric that says most.
        rows: The measures, averaged over the cases of each round.
        cases: For each run its noise, and the round and the result of every case, with pictures.
    """

    name: str
    setting: str
    subject: str
    headline: str
    rows: tuple[Row, ...]
    cases: tuple[RunResults, ...]

    def as_document(self) -> dict[str, Any]:
        """Returns the finding as a JSON object: headlines for reports, and all rows."""
        return {
            "attack": self.name,
            "setting": self.setting,
            "subject": self.subject,
            "headlines": self.summarize_headlines(),
            "rows": [row.as_document() for row in self.rows],
        }

    def summarize_headlines(self) -> list[dict[str, Any]]:
        """Returns what the best method reached at the last round, for each noise.

        Only the metric that says most is taken. The first headline carries the plots.
        """
        headlines: list[dict[str, Any]] = []
        lines: dict[str, tuple[list[int], list[float]]] = {}
        for noise in sorted({row.noise for row in self.rows}):
            best = self._best_rows(noise)
            last = best[-1]
            headline = {
                "name": f"{self.name}, noise {noise:g}",
                "metric": last.metric,
                "value": last.value,
                "baseline": last.baseline,
                "paper": last.paper,
            }
            headlines.append(headline)
            rounds = [row.round for row in best]
            lines[f"noise {noise:g}"] = (rounds, [row.value for row in best])
            lines["sees nothing"] = (rounds, [row.baseline for row in best])
        over_rounds = {
            "title": self.subject,
            "x_label": "rounds",
            "y_label": self.headline,
            "lines": lines,
        }
        headlines[0]["plots"] = [over_rounds, *self.detection_plots()]
        return headlines

    def detection_plots(self) -> list[dict[str, Any]]:
        """Returns a plot of the best method's detection curve after the last round, if any."""
        rates = np.geomspace(SMALLEST_RATE, 1, CURVE_POINTS)
        lines = {}
        for noise, results in self.cases:
            best = self._best_rows(noise)[-1]
            for round_index, result in results:
                if round_index != best.round or best.method not in result.curves:
                    continue
                false_rates, true_rates = result.curves[best.method]
                reached = true_rates[np.searchsorted(false_rates, rates, side="right") - 1]
                lines[f"{best.method}, noise {noise:g}"] = (
                    rates.tolist(),
                    np.maximum(reached, SMALLEST_RATE).tolist(),
                )
        if not lines:
            return []
        plot = {
            "title": "what is detected",
            "x_label": "false positive rate",
            "y_label": "true positive rate",
            "lines": lines,
            "logarithmic": True,
        }
        return [plot]

    def _best_rows(self, noise: float) -> list[Row]:
        """Returns the best method's row of every round, in the metric that says most."""
        rows = [row for row in self.rows if row.noise == noise and row.metric == self.headline]
        return best_by_round(rows)


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
) -> AttackFinding:
    """Puts a run, or several that differ in their noise, through one attack.

    The result is stored with the first run. Killed at any moment and called again, the attack
    continues after the last case that was finished.

    Args:
        runs: Finished runs; for attacks on uploads, their uploads must have been kept.
        name: One of `ATTACKS`, or an attack in the caller's settings.
        setting: "quick" (a minute or so) or "paper" (as near to the papers' as two cores get).
        attribute: For "attributes", which one; by default the one that papers use with these data.
        shadows: For "membership", how many models the attacker trains.
        data: The data of the runs, where they were passed in Python.
        model: The same for the model.
        folder: Where results go; by default `attacks` in the first run's folder.
        printed: Returns what papers print next to a row.
        on_progress: Called with the share of the work that is done.

    Returns:
        What the attack found.

    Raises:
        UserError: The runs cannot be attacked in this way; the message says why and what to do.

    Example:
        >>> attack(Run.load("runs/digits-1"), "labels").rows[0].value  # doctest: +SKIP
        0.97
    """
    if isinstance(name, str):
        plan = find_attack(name, setting, {"attribute": attribute, "shadows": shadows})
    else:
        plan = name
        # Results of attacks that a caller built are stored apart from those of the named settings.
        setting = "own"
    subjects = [runs] if isinstance(runs, Run | Referee) else list(runs)
    referees = []
    for subject in subjects:
        # Loading data is slow, so a caller with many attacks passes one referee for all of them.
        if isinstance(subject, Run):
            subject = Referee(subject, data=data, model=model)
        referees.append(subject)
    # With several threads the order of sums, and so their last bits, would vary. Folders are held
    # so that no two attacks write the same parts.
    with ExitStack() as stack, single_threaded():
        for referee in referees:
            stack.enter_context(hold_lock(referee.run.folder))
        cases: list[RunResults] = []
        rows: list[Row] = []
        for number, referee in enumerate(referees):
            parts = referee.run.folder / "attacks" / "parts" / f"{plan.name}-{setting}"
            progress = part_progress(on_progress, number, len(referees))
            results = run_cases(plan, referee, parts, progress)
            cases.append((referee.noise, results))
            # The paper's value depends on the protocol, which a row does not hold.
            for row in average_rows(plan, results, referee.noise):
                rows.append(replace(row, printed=printed(row, referee.protocol)))
        finding = AttackFinding(
            name=plan.name,
            setting=setting,
            subject=describe_run(referees[0].run),
            headline=plan.headline,
            rows=tuple(rows),
            cases=tuple(cases),
        )
        write_finding(finding, folder or referees[0].run.folder / "attacks")
    return finding


def write_finding(finding: AttackFinding, folder: Path) -> None:
    """Writes a finding and its plots.

    Args:
        finding: What an attack found.
        folder: Where the files go; made if it is not there.
    """
    title = f"{finding.name}: {finding.subject}"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{finding.name}.json", as_json(finding.as_document()))
        draw_rows(finding.rows, folder / f"{finding.name}.png", title=title)
        draw_pictures(finding.cases, folder / f"{finding.name}-pictures.png")
        draw_curves(finding.cases, folder / f"{finding.name}-roc.png", title=title)


def find_refusals(
    referee: Referee, names: Sequence[str], setting: str, options: Mapping[str, Any]
) -> dict[str, UserError]:
    """Returns the attacks that a run does not allow, with reasons, before any work is done.

    Args:
        referee: Knows the run.
        names: The attacks.
        setting: "quick" or "paper".
        options: Options of all attacks.

    Returns:
        The refusal of each attack that has one.
    """
    refused = {}
    for name in names:
        try:
            # Listing cases makes every check that an attack has, and none of its work.
            find_attack(name, setting, select_options(name, options)).cases(referee)
        except UserError as error:
            refused[name] = error
    return refused


def select_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that an attack takes.

    Args:
        name: The attack.
        options: Options of all attacks.
    """
    return {option: value for option, value in options.items() if OPTIONS[option] == name}


def find_attack(name: str, setting: str, options: Mapping[str, Any]) -> Attack[Any, Any, Any]:
    """Returns the attack of a name in a setting.

    Args:
        name: One of `ATTACKS`.
        setting: "quick" or "paper".
        options: Options of the attack; those that are None are left at the setting's value.

    Raises:
        UserError: An unknown attack or setting, or an option that the attack does not take.
    """
    if name not in ATTACKS:
        raise UserError(f"attack {name!r} is not known. There are: {', '.join(ATTACKS)}, and all.")
    if setting not in SETTINGS:
        raise InvalidValue("--setting", setting, " or ".join(SETTINGS))
    # None means that the option was not given; the setting's own value applies.
    given = {option: value for option, value in options.items() if value is not None}
    for option, value in given.items():
        if OPTIONS[option] != name:
            raise UserError(
                f"--{option} {value}: only the attack {OPTIONS[option]} takes it, "
                f"and {name} was requested."
            )
    return replace(ATTACKS[name][setting], **given)  # type: ignore[type-var]


def run_cases(
    plan: Attack[Any, Any, Any], referee: Referee, parts: Path, progress: Tick
) -> list[tuple[int, CaseResult]]:
    """Returns the round and the result of every case of an attack on one run.

    Args:
        plan: The attack.
        referee: Knows the run.
        parts: The folder of results; those that were finished earlier are read.
        progress: Called with the share of the work that is done.
    """
    cases = plan.cases(referee)
    results = []
    for number, case in enumerate(cases):
        tick = part_progress(progress, number, len(cases))
        path = parts / f"{case.key}.safetensors"
        result = read_part(path, plan)
        if result is None:
            # The attempt comes first: nothing of the truth exists in this process before the guess
            # is final.
            result = plan.score(plan.attempt(case.observe(), tick), case.reveal())
            # Stored case by case: an attack of hours that is interrupted continues after its last
            # case.
            write_part(path, plan, result)
        results.append((case.round, result))
        tick(1.0)
    return results


def write_part(path: Path, plan: Attack[Any, Any, Any], result: CaseResult) -> None:
    """Stores the result of a case, and the attack that it is of.

    Args:
        path: The file.
        plan: The attack.
        result: What came of the case.
    """
    arrays = {}
    for kind in ARRAYS:
        for name, array in getattr(result, kind).items():
            arrays[f"{kind}/{name}"] = array
    measures = [asdict(measure) for measure in result.measures]
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, pack(arrays, {"attack": repr(plan), "measures": measures}))


def read_part(path: Path, plan: Attack[Any, Any, Any]) -> CaseResult | None:
    """Returns the stored result of a case.

    Args:
        path: The file.
        plan: The attack.

    Returns:
        The result; None where it is absent, damaged, or of an attack in other settings.
    """
    try:
        arrays, facts = unpack(path.read_bytes())
        # The text of the attack holds all its settings. A result of other settings would be
        # reported under these.
        if facts["attack"] != repr(plan):
            return None
        kinds: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in ARRAYS}
        for name, array in arrays.items():
            kind, _, rest = name.partition("/")
            kinds[kind][rest] = array
        measures = tuple(Measure(**measure) for measure in facts["measures"])
        return CaseResult(measures=measures, **kinds)
    # Anything unreadable counts as absent, and the case is attacked again.
    except (OSError, ValueError, KeyError, TypeError):
        return None


def best_by_round(rows: Sequence[Row]) -> list[Row]:
    """Returns the row of every round that leaks most, in ascending order of the rounds.

    Args:
        rows: Rows of one metric.
    """
    sign = 1 if rows[0].better == "higher" else -1
    best: dict[int, Row] = {}
    for row in rows:
        known = best.get(row.round)
        if known is None or sign * row.value > sign * known.value:
            best[row.round] = row
    return [best[round_index] for round_index in sorted(best)]


def describe_run(run: Run) -> str:
    """Returns a description of a run for titles.

    Args:
        run: The finished run that is attacked.
    """
    plan = run.protocol
    model = plan.model.name if plan.model is not None else "?"
    data = plan.data.name if plan.data is not None else "?"
    steps = f"{plan.local.steps} local steps"
    if plan.local.steps == 1:
        steps = "1 local step"
    batch = ""
    if plan.local.batch is not None:
        batch = f", batches of {plan.local.batch}"
    return f"{model} on {data}, {plan.clients} clients, {plan.rounds} rounds of {steps}{batch}"

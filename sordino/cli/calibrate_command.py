"""The command `sordino calibrate`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.arguments import VIEWS_HELP, File, Json, Sets, Unit
from sordino.cli.console import messages, print_json, results
from sordino.cli.option_checks import refuse_with
from sordino.cli.protocol_sources import count_priced_parameters, protocol_from
from sordino.cli.record_sizes import LooksAtData, print_unstated_sizes, read_sizes
from sordino.protocol import Protocol, UserError
from sordino.report.terminal_tables import facts_table

if TYPE_CHECKING:
    from sordino.privacy.calibrate import Calibration


def calibrate(
    protocol: File = None,
    sets: Sets = None,
    view: Annotated[str, typer.Option(help=VIEWS_HELP)] = "server",
    unit: Unit = "record",
    epsilon: Annotated[float | None, typer.Option(help="Largest epsilon, with --delta.")] = None,
    delta: Annotated[float, typer.Option(help="For --epsilon.")] = 1e-5,
    beta: Annotated[
        float | None, typer.Option(help="Least false negative rate, with --at-alpha.")
    ] = None,
    at_alpha: Annotated[float | None, typer.Option(help="False positive rate for --beta.")] = None,
    advantage: Annotated[
        float | None, typer.Option(help="Largest advantage of any test over guessing.")
    ] = None,
    mechanisms: Annotated[
        bool,
        typer.Option(
            "--mechanisms", help="Compare the noise that each mechanism needs, for --epsilon."
        ),
    ] = False,
    data: LooksAtData = False,
    json: Json = False,
) -> None:
    """Find the smallest noise that meets a target, which is never exceeded."""
    from sordino.privacy.calibrate import calibrate

    plan = count_priced_parameters(protocol_from(protocol, sets))
    if mechanisms:
        refuse_with("--mechanisms", beta=beta, at_alpha=at_alpha, advantage=advantage, data=data)
        # The table compares uploads, and other views would mix in amplification.
        if view != "server":
            raise UserError(
                f"--mechanisms compares mechanisms against the server, "
                f"and --view {view} was given: leave it out."
            )
        compare_mechanisms(plan, unit, epsilon, delta, json)
        return
    sizes = read_sizes(plan, data)
    with messages.status("searching for the noise"):
        found = calibrate(
            plan,
            view,
            unit,
            epsilon=epsilon,
            delta=delta,
            beta=beta,
            at_alpha=at_alpha,
            advantage=advantage,
            sizes=sizes,
        )
    if json:
        print_json(found.as_document())
        return
    show_calibration(found, delta)
    print_unstated_sizes(plan, unit, sizes)


def show_calibration(found: Calibration, delta: float) -> None:
    """Prints the noise that was found, and the bound that it reaches.

    Args:
        found: The noise that meets the target.
        delta: Where epsilon is shown.
    """
    goal = ", ".join(f"{name} = {value:g}" for name, value in found.target.items())
    facts = [
        ("Noise", f"noise.{found.parameter} = {found.value!r}"),
        ("Target", goal),
        ("Reached", found.guarantee.sentence(delta)),
    ]
    # What was vouched for may be wrong, so the value without it is shown too.
    if found.guarantee.unconditional is not None:
        facts.append(
            ("Vouched for", f"without it: {found.guarantee.unconditional.sentence(delta)}")
        )
    results.print(facts_table(facts))


def compare_mechanisms(
    plan: Protocol, unit: str, epsilon: float | None, delta: float, json: bool
) -> None:
    """Prints the noise that each mechanism needs for the same guarantee against the server.

    Args:
        plan: The federation.
        unit: "record" or "client".
        epsilon: The epsilon of the target; None where none was given.
        delta: The delta of the target.
        json: Print one JSON document and nothing else.

    Raises:
        UserError: There is no target.
    """
    from sordino.federation.setup import with_parameter_count
    from sordino.privacy.mechanism_comparison import mechanism_table
    from sordino.report.price_tables import needed_table

    if epsilon is None:
        raise UserError(
            "--mechanisms compares the noise for one guarantee: "
            "add --epsilon, and --delta if it is not 1e-5."
        )
    with messages.status("searching for the noise"):
        # The price of l1 noise depends on the number of parameters, which the file may leave open.
        plan = with_parameter_count(plan)
        rows = mechanism_table(plan, unit, epsilon=epsilon, delta=delta)
    if json:
        print_json(
            {
                "epsilon": epsilon,
                "delta": delta,
                "view": "server",
                "unit": unit,
                "mechanisms": [asdict(row) for row in rows],
            }
        )
    else:
        results.print(needed_table(rows, plan, epsilon, delta))

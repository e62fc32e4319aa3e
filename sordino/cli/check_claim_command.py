"""The command `sordino check-claim`."""

from __future__ import annotations

from typing import Annotated

import typer

from sordino.cli.arguments import Json
from sordino.cli.console import messages, print_json, results
from sordino.protocol import SordinoError


class Untrue(SordinoError):
    """A stated epsilon does not follow from the stated training."""

    exit_code = 4


def check_claim(
    noise_multiplier: Annotated[
        float,
        typer.Option(help="Noise on a step's sum, in units of the norm of one contribution."),
    ],
    rounds: Annotated[int, typer.Option(help="Number of rounds, or steps.")],
    epsilon: Annotated[float, typer.Option(help="The epsilon that is claimed.")],
    delta: Annotated[float, typer.Option(help="At this delta.")] = 1e-5,
    rate: Annotated[
        float, typer.Option(help="q: share of all units in a round; 1 for all of them.")
    ] = 1.0,
    sampling: Annotated[str, typer.Option(help="poisson, fixed or full.")] = "poisson",
    adjacency: Annotated[str, typer.Option(help="add-or-remove or replace-one.")] = "add-or-remove",
    json: Json = False,
) -> None:
    """Check an epsilon that is stated of a training. Exit code 4 if it is false or not proved."""
    from sordino.privacy.guarantee import format_delta, round_up
    from sordino.privacy.stated import Stated, check_stated

    stated = Stated(
        noise_multiplier=noise_multiplier,
        steps=rounds,
        sampling=sampling,
        rate=rate,
        adjacency=adjacency,
    )
    with messages.status("computing"):
        answer = check_stated(stated, epsilon=epsilon, delta=delta)
    theirs = f"{answer.accountant_name}: {round_up(answer.accountant)}"
    line = (
        f"epsilon = {epsilon:g} at delta = {format_delta(delta)} is {answer.verdict}: "
        f"at most {round_up(answer.bound)} is proved, {adjacency} ({theirs})."
    )
    if json:
        print_json(answer.as_document())
    else:
        results.print(line, soft_wrap=True)
    if not answer.true:
        raise Untrue(
            f"the claim is {answer.verdict}: "
            f"at most {round_up(answer.bound)} is proved, not {epsilon:g}."
        )

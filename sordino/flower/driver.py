"""Trains and resumes across machines: hands a run to the SuperLink, and follows its run folder.

The training runs in a process that the SuperLink starts, which also writes the run folder. So a
training is started on the SuperLink's machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import as_file
from pathlib import Path
from typing import Any

from sordino.engines.choice import SuperLink
from sordino.engines.run_options import Watch
from sordino.federation.store.run import Run
from sordino.federation.store.run_folder import RunFolder
from sordino.flower.agreement import make_path_absolute, refuse_unsupported
from sordino.flower.flower_commands import (
    APP,
    CONNECTION,
    CommandFailed,
    require_flower,
    run_flwr,
    write_connection,
)
from sordino.flower.run_follower import LostRun, RunFollower
from sordino.flower.superlink_probe import probe_superlink
from sordino.protocol import Protocol, UserError, dumps
from sordino.protocol.errors import format_command
from sordino.protocol.file import toml_value

# How often a run is resumed by itself after its SuperLink was lost.
RETURNS = 5


def train_across(
    protocol: Protocol,
    superlink: SuperLink,
    *,
    folder: Path,
    evaluate_every: int,
    keep_uploads: int,
    signer: str,
    watch: Watch,
) -> Run:
    """Trains on the machines that are connected to a SuperLink.

    Args:
        protocol: The federation that the machines train.
        superlink: Where the machines meet, and how long they are waited for.
        folder: The run folder; a run that never began leaves none.
        evaluate_every: Rounds between two scorings; 0 for none.
        keep_uploads: Rounds between two whose uploads are kept; 0 for never.
        signer: Fingerprint of the key that signs the run when it has ended; empty for none.
        watch: Callbacks of the user.

    Returns:
        The run.

    Raises:
        SordinoError: It was refused, failed, or was lost.
    """
    try:
        require_flower()
        refuse_unsupported(protocol)
        settings = {
            "protocol": dumps(make_path_absolute(protocol)),
            "folder": str(folder.absolute()),
            "evaluate-every": evaluate_every,
            "keep-uploads": keep_uploads,
            "signer": signer,
        }
        return submit_run(superlink, settings, folder, watch)
    # Otherwise the folder of a run that never began would block its name.
    finally:
        # This succeeds only if the folder is still empty.
        with suppress(OSError):
            folder.rmdir()


def resume_across(place: RunFolder, superlink: SuperLink | None, signer: str, watch: Watch) -> Run:
    """Resumes a run across machines.

    Args:
        place: The run folder.
        superlink: The SuperLink; None for the one where the run began.
        signer: Fingerprint of the key that signs the run when it has ended; empty for none.
        watch: Callbacks of the user.

    Returns:
        The run.

    Raises:
        SordinoError: There is nothing to resume, or it was refused, failed, or was lost.
    """
    require_flower()
    facts = place.facts()
    if facts["status"] != "unfinished":
        raise UserError(f"{place.path} is {facts['status']}: there is nothing left to run.")
    if superlink is None:
        superlink = SuperLink(
            address=facts["superlink"],
            certificate=facts["certificate"] or None,
            patience=facts["patience"],
            deadline=facts["deadline"],
        )
    settings = {**make_resume_settings(place.path), "signer": signer}
    return submit_run(superlink, settings, place.path, watch)


def make_resume_settings(folder: Path) -> dict[str, Any]:
    """Returns the settings of a run on Flower that resumes a run.

    Args:
        folder: The run folder.
    """
    return {"folder": str(folder.absolute()), "resume": True}


def submit_run(
    superlink: SuperLink, settings: Mapping[str, Any], folder: Path, watch: Watch
) -> Run:
    """Hands a run to the SuperLink and follows it to its end.

    A SuperLink that was lost is waited for as long as clients are, and the run is resumed: the
    files on disk decide, so nothing is charged or computed twice.

    Args:
        superlink: Where the machines meet, and how long they are waited for.
        settings: Settings of the run on Flower.
        folder: The run folder.
        watch: Callbacks of the user.

    Returns:
        The run.

    Raises:
        LostRun: It was lost, and could not be resumed.
    """
    known = False
    # A run may be lost several times in a training of days, yet a fault that repeats must end.
    for left in reversed(range(RETURNS + 1)):
        try:
            return submit_once(superlink, settings, folder, watch, known=known)
        except LostRun as lost:
            # A folder without a protocol never began a run, so that there is nothing to resume.
            known = (folder / "protocol.toml").exists()
            if left == 0 or not known:
                raise
            watch.on_message(
                f"{lost}\nWaiting up to {superlink.patience:g} s to continue by itself."
            )
            trouble = wait_for_superlink(superlink)
            if trouble is not None:
                raise LostRun(f"{lost}\nThe SuperLink: {trouble}.") from None
            settings = make_resume_settings(folder)
    raise LostRun(f"the run was lost {RETURNS} times: {format_command('resume', folder)}")


def wait_for_superlink(superlink: SuperLink) -> str | None:
    """Waits until a SuperLink answers.

    Args:
        superlink: Where the machines meet, and how long they are waited for.

    Returns:
        Why it did not answer within its patience; None if it did.
    """
    end = time.monotonic() + superlink.patience
    trouble = probe_superlink(superlink.address, superlink.certificate).trouble
    while trouble is not None and time.monotonic() <= end:
        time.sleep(1.0)
        trouble = probe_superlink(superlink.address, superlink.certificate).trouble
    return trouble


def submit_once(
    superlink: SuperLink, settings: Mapping[str, Any], folder: Path, watch: Watch, *, known: bool
) -> Run:
    """Hands a run to the SuperLink and follows it until it ends or is lost.

    Args:
        superlink: Where the machines meet, and how long they are waited for.
        settings: Settings of the run on Flower.
        folder: The run folder.
        watch: Callbacks of the user.
        known: Whether the user knows already that this run began.

    Returns:
        The run.

    Raises:
        LostRun: It was lost.
        UserError: The SuperLink did not take it.
    """
    # A home of Flower for this run only: the user's own connections are not changed.
    with tempfile.TemporaryDirectory(prefix="sordino-flower-") as temporary, as_file(APP) as app:
        home = Path(temporary) / "home"
        write_connection(home, superlink.address, superlink.certificate)
        config = Path(temporary) / "run.toml"
        write_run_config(config, {**settings, **describe_superlink(superlink), "report": False})
        watch.on_message(f"Handing the run to the SuperLink at {superlink.address}.")
        arguments = ["run", str(app), CONNECTION, "--run-config", str(config)]
        try:
            flower_run = str(run_flwr(home, arguments)["run-id"])
        except CommandFailed as error:
            words = (
                f"the SuperLink at {superlink.address} took no run. Is it running, and is its "
                f"certificate the right one? {error}"
            )
            # A SuperLink that is just restarting refuses runs; one that never took any is
            # misconfigured.
            if known:
                raise LostRun(words) from None
            raise UserError(words) from None
        watch.on_message(
            f"It is run {flower_run} on Flower; waiting up to {superlink.patience:g} s for its "
            "clients."
        )
        follower = RunFollower(home, flower_run, folder, watch, known=known)
        try:
            return follower.follow()
        # Without this the ServerApp would train on after the user has stopped.
        except KeyboardInterrupt:
            with suppress(CommandFailed):
                run_flwr(home, ["stop", flower_run, CONNECTION])
            raise


def describe_superlink(superlink: SuperLink) -> dict[str, Any]:
    """Returns the settings of a run on Flower that describe its SuperLink.

    Args:
        superlink: Where the machines meet, and how long they are waited for.
    """
    certificate = ""
    if superlink.certificate:
        certificate = str(Path(superlink.certificate).absolute())
    return {
        "superlink": superlink.address,
        "certificate": certificate,
        "patience": superlink.patience,
        "deadline": superlink.deadline,
    }


def write_run_config(path: Path, settings: Mapping[str, Any]) -> None:
    """Writes the settings of a run on Flower to a file.

    Args:
        path: The file.
        settings: The settings.
    """
    lines = [f"{key} = {toml_value(value)}\n" for key, value in settings.items()]
    path.write_text("".join(lines), encoding="utf-8")

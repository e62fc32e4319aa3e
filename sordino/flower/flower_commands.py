"""Runs Flower's commands so that they report, look up and install nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from sordino.federation.store.files import writing
from sordino.protocol import SordinoError, UserError

# Flower sends no telemetry and looks for no newer version.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
# The Flower app that `sordino train` sends.
APP = files("sordino") / "flower" / "app"
# The name of the SuperLink in Flower's configuration.
CONNECTION = "sordino"
# Characters of a failed command's output that are shown.
SHOWN_OUTPUT = 600


def require_flower() -> None:
    """Checks that Flower is installed.

    Raises:
        UserError: It is not; the message says what to install.
    """
    if find_spec("flwr") is None:
        raise UserError("Flower is not installed. Install it with: pip install 'sordino[flower]'")


def make_environment(home: Path, **more: str) -> dict[str, str]:
    """Returns the environment of Flower's commands.

    Args:
        home: Folder of Flower's own files.
        **more: Further variables.
    """
    scripts = str(Path(sys.executable).parent)
    path = os.pathsep.join([scripts, os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(home), **more}


def find_command(name: str) -> str:
    """Returns the path of a command of Flower's, next to this Python.

    Args:
        name: Name of the command.
    """
    require_flower()
    return str(Path(sys.executable).with_name(name))


def write_connection(home: Path, address: str, certificate: str | None) -> None:
    """Writes Flower's configuration: where the SuperLink is, and how it is trusted.

    Args:
        home: Folder of Flower's own files.
        address: Host and port of the SuperLink.
        certificate: File of the authority that certified it; None without TLS.
    """
    secured = "insecure = true"
    if certificate is not None:
        secured = f"root-certificates = {json.dumps(str(Path(certificate).absolute()))}"
    lines = [
        "[superlink]",
        f'default = "{CONNECTION}"',
        "",
        f"[superlink.{CONNECTION}]",
        f"address = {json.dumps(address)}",
        secured,
        "",
    ]
    with writing(home / "config.toml"):
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text("\n".join(lines), encoding="utf-8")


class CommandFailed(SordinoError):
    """Is raised where a command of Flower's fails; its own words follow."""


def run_flwr(home: Path, arguments: Sequence[str], *, seconds: float = 120.0) -> dict[str, object]:
    """Runs `flwr ... --format json` and returns its answer.

    Args:
        home: Folder of Flower's own files.
        arguments: What follows `flwr`.
        seconds: How long it may take.

    Returns:
        The document that it printed.

    Raises:
        CommandFailed: It failed, or printed nothing that can be read.
    """
    command = [find_command("flwr"), *arguments, "--format", "json"]
    try:
        done = subprocess.run(
            command,
            env=make_environment(home, NO_COLOR="1"),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(
            f"`flwr {arguments[0]}` did not end within {seconds:g} s. Is the SuperLink there?"
        ) from None
    answer = parse_answer(done.stdout)
    if done.returncode != 0 or not answer.get("success"):
        said = str(answer.get("error-message") or done.stderr or done.stdout).strip()
        shown = said[-SHOWN_OUTPUT:] or "it said nothing"
        raise CommandFailed(f"`flwr {arguments[0]}` failed: {shown}")
    return answer


def parse_answer(output: str) -> dict[str, object]:
    """Returns the JSON document in the output of a command.

    Args:
        output: What the command printed; warnings may precede the document.

    Returns:
        The document; empty where there is none.
    """
    start = output.find("{")
    if start < 0:
        return {}
    try:
        return dict(json.loads(output[start:]))
    except ValueError:
        return {}

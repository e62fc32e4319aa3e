"""Flower's commands, started as they should be: nothing is reported, looked up or installed while they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from sordino.federation.storage import writing
from sordino.protocol import SordinoError, UserError

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
APP = files("sordino") / "engines" / "flower" / "app"  # the Flower app that `sordino train` sends
CONNECTION = "sordino"  # what the SuperLink is called in Flower's configuration


def require_flower() -> None:
    """Say what to install where Flower is missing."""
    if find_spec("flwr") is None:
        raise UserError("Flower is not installed. Install it with: pip install 'sordino[flower]'")


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of Flower's commands; `home` is where they keep what they keep."""
    scripts = str(Path(sys.executable).parent)
    path = os.pathsep.join([scripts, os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(home), **more}


def command(name: str) -> str:
    """A command of Flower's, beside this Python."""
    require_flower()
    return str(Path(sys.executable).with_name(name))


def write_connection(home: Path, address: str, certificate: str | None) -> None:
    """Tell Flower's command line where the SuperLink is, and how it is trusted."""
    secured = (
        "insecure = true"
        if certificate is None
        else f"root-certificates = {json.dumps(str(Path(certificate).absolute()))}"
    )
    text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = {json.dumps(address)}\n{secured}\n'
    with writing(home / "config.toml"):
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(text, encoding="utf-8")


class CommandFailed(SordinoError):
    """A command of Flower's ended with an error; its own words follow."""


def flwr(home: Path, arguments: Sequence[str], *, seconds: float = 120.0) -> dict[str, object]:
    """Run `flwr ... --format json` and read its answer.

    Raises:
        CommandFailed: it said that it failed, or nothing that can be read.
    """
    called = [command("flwr"), *arguments, "--format", "json"]
    try:
        done = subprocess.run(
            called,
            env=environment(home, NO_COLOR="1"),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(
            f"`flwr {arguments[0]}` did not end within {seconds:g} s. Is the SuperLink there?"
        ) from None
    start = done.stdout.find("{")
    try:
        answer: Mapping[str, object] = json.loads(done.stdout[start:]) if start >= 0 else {}
    except ValueError:
        answer = {}
    if done.returncode != 0 or not answer.get("success"):
        said = str(answer.get("error-message") or done.stderr or done.stdout).strip()
        raise CommandFailed(f"`flwr {arguments[0]}` failed: {said[-600:] or 'it said nothing'}")
    return dict(answer)

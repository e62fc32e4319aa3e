"""`sordino flower new`: the folder that a consortium starts from."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from shutil import copytree, ignore_patterns

from sordino.engines.flower.processes import APP
from sordino.federation.storage import writing
from sordino.protocol import UserError

README = files("sordino") / "engines" / "flower" / "consortium.md"
IGNORED = "logs/\nhealth.json\nmetrics.prom\ncertificates/\nkeys/\nclient-*/\nflower/\nruns/\n*.db\n*.key\n"
CONSORTIUM = """\
# What the coordinator runs with `sordino flower up`.
[coordinator]
host = "127.0.0.1"   # name or address under which clients reach this machine
port = 8000
keys = "keys"        # folder of clients' public keys: 0.pub, 1.pub, ...
"""


def write_consortium(folder: Path, protocol: str) -> None:
    """Write a protocol, the Flower app, a README with every step, and what must never be committed.

    Raises:
        UserError: the folder is there already.
    """
    if folder.exists():
        raise UserError(f"{folder} exists already: choose another name.")
    with writing(folder), as_file(APP) as app:
        folder.mkdir(parents=True)
        copytree(app, folder / "app", ignore=ignore_patterns("__pycache__"))
        (folder / "protocol.toml").write_text(protocol, encoding="utf-8")
        (folder / "consortium.toml").write_text(CONSORTIUM, encoding="utf-8")
        (folder / "README.md").write_text(README.read_text(encoding="utf-8"), encoding="utf-8")
        (folder / ".gitignore").write_text(IGNORED, encoding="utf-8")

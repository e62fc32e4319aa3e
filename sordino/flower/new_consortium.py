"""`sordino flower new`: writes the folder that a consortium starts from."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from shutil import copytree, ignore_patterns

from sordino.federation.store.files import writing
from sordino.flower.flower_commands import APP
from sordino.protocol import UserError

README = files("sordino") / "flower" / "consortium.md"
# What must never be committed: keys, records of clients, and what programs write.
IGNORED = """\
logs/
health.json
metrics.prom
certificates/
keys/
client-*/
flower/
runs/
*.db
*.key
"""
CONSORTIUM = """\
# What the coordinator runs with `sordino flower up`.
[coordinator]
host = "127.0.0.1"   # name or address under which clients reach this machine
port = 8000
keys = "keys"        # folder of clients' public keys: 0.pub, 1.pub, ...
"""


def write_consortium(folder: Path, protocol: str) -> None:
    """Writes a protocol, the Flower app, a README with every step, and a .gitignore.

    Args:
        folder: The folder.
        protocol: Text of the protocol.

    Raises:
        UserError: The folder exists already.
    """
    # Never into a folder that exists: it might hold keys or a ledger.
    if folder.exists():
        raise UserError(f"{folder} exists already: choose another name.")
    with writing(folder), as_file(APP) as app:
        folder.mkdir(parents=True)
        # A copy that the parties can read and pin by its digest.
        copytree(app, folder / "app", ignore=ignore_patterns("__pycache__"))
        (folder / "protocol.toml").write_text(protocol, encoding="utf-8")
        (folder / "consortium.toml").write_text(CONSORTIUM, encoding="utf-8")
        (folder / "README.md").write_text(README.read_text(encoding="utf-8"), encoding="utf-8")
        (folder / ".gitignore").write_text(IGNORED, encoding="utf-8")

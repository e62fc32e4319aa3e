"""Attacks on whole deployments that once got in, played again: minutes, so `make test-flower`."""

import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")
if not os.environ.get("SORDINO_FLOWER"):
    pytest.skip("deployments take minutes: make test-flower", allow_module_level=True)

from sordino.cli import run as sordino
from sordino.engines.flower.custody import Custodian
from sordino.protocol import save
from tests.flower.lab import SLOW, Lab, free_port
from tests.flower.local import plan
from tests.support import REPOSITORY


def wait_for_refusals(lab: Lab, client: int = 0) -> list[str]:
    custodian = Custodian(lab.client(client))
    end = time.monotonic() + 2 * SLOW
    while not custodian.refusals:
        assert time.monotonic() < end, lab.log(f"node-{client}")[-3000:]
        time.sleep(0.2)
    return [refusal.reason for refusal in custodian.refusals]


def foreign_app(folder: Path, proof: Path) -> Path:
    """An app whose client's side leaves a proof that it ran."""
    assert sordino(["flower", "new", str(folder / "evil")]) == 0
    app = folder / "evil" / "app"
    with open(app / "sordino_app" / "client_app.py", "a") as file:
        file.write(f"\nopen({str(proof)!r}, 'w').write('stolen')\n")
    return app


def python_with_a_space(folder: Path) -> Path:
    """A virtual environment with a space in its path that finds what this one finds."""
    place = folder / "my environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    found = [REPOSITORY, *[path for path in sys.path if path.endswith("site-packages")]]
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = place / "lib" / version / "site-packages"
    (packages / "found.pth").write_text("\n".join(map(str, found)) + "\n")
    for program in Path(sysconfig.get_path("scripts")).glob("fl*"):
        shutil.copy(program, place / "bin")  # what Flower would find by its name
    return place / "bin" / "python"


def test_a_foreign_app_does_not_run_where_no_program_of_the_clients_can_be_started(
    tmp_path,
) -> None:
    """A space in the path of the environment, and a folder from which nothing may be executed.

    Flower's own `flwr-clientapp` is first in the search path: once it was what ran.
    """
    protocol = plan(clients=1, rounds=1)
    proof = tmp_path / "it-ran"
    with Lab(tmp_path / "lab") as lab:
        lab.start_link()
        lab.agree(0, protocol, "--seeded")
        lab.wait_for_link()
        python = python_with_a_space(tmp_path)
        command = [str(python), "-m", "sordino", "flower", "node", str(lab.client(0))]
        env = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        lab.spawn_any("node-0", [*command, "--port", str(free_port()), "--insecure"], env)
        save(protocol, tmp_path / "protocol.toml")
        told = {"protocol": str(tmp_path / "protocol.toml"), "folder": str(tmp_path / "run")}
        lab.submit(foreign_app(tmp_path, proof), patience=20.0, **told)
        reasons = wait_for_refusals(lab)
        assert "an app was sent that was not agreed to" in reasons[0]
        assert not proof.exists()
        assert Custodian(lab.client(0)).rounds_paid == []
        files = [path for path in lab.client(0).rglob("*") if path.is_file()]
        assert files
        assert not [path for path in files if path.stat().st_mode & stat.S_IXUSR]

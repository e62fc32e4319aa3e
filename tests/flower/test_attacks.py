"""Attacks on whole deployments that once got in, played again: minutes, so `make test-flower`."""

import json
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
from sordino.engines.flower.processes import CONNECTION
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


OUTSIDER = """
import json, ssl, sys, urllib.request, urllib.error
trusted = ssl.create_default_context(cafile=sys.argv[2])
got = {}
for path in sys.argv[3:]:
    head = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    request = urllib.request.Request(sys.argv[1] + path, data=b"", headers=head)
    try:
        got[path] = urllib.request.urlopen(request, timeout=20, context=trusted).status
    except urllib.error.HTTPError as error:
        got[path] = error.code
print(json.dumps(got))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can play another account")
@pytest.mark.skipif(not os.path.exists("/usr/bin/python3"), reason="no Python for everybody")
def test_an_outsider_starts_lists_and_registers_nothing_at_a_real_superlink(tmp_path) -> None:
    """Another account stands for another machine: to the gate they are the same."""
    taken = ["start-run", "list-runs", "register-node", "list-nodes", "stream-logs"]
    closed = [f"/v1/control/{name}" for name in taken]
    closed += ["/v1/runtime/acquire-task", "/v1/fleet/register-node", "/docs"]
    authority = Path("/tmp") / f"outsider-{os.getpid()}.crt"
    with Lab(tmp_path / "lab") as lab:
        lab.secure(1)
        lab.start_link()
        lab.wait_for_link()
        shutil.copy(lab.certificates / "ca.crt", authority)
        authority.chmod(0o644)
        url = f"https://127.0.0.1:{lab.port}"
        keyless = "/v1/fleet/pull-messages"
        command = ["/usr/bin/python3", "-c", OUTSIDER, url, str(authority), *closed, keyless]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, user=65534, cwd="/"
        )
        got = json.loads(done.stdout)
        authority.unlink()
        assert {got[path] for path in closed} == {403}
        assert got[keyless] == 401
        assert lab.flower("list", CONNECTION)["runs"] == []  # the coordinator itself still can
        assert lab.online == []

"""Attacks on whole deployments that once got in, played again."""

import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from cryptography.hazmat.primitives import serialization

from sordino.cli.main import run as sordino
from sordino.flower.client_store import ClientStore
from sordino.flower.flower_commands import CONNECTION
from sordino.flower.node_certificates import certify_key
from sordino.protocol import save_protocol
from tests.flower.lab import SLOW, Lab, free_port
from tests.flower.local import plan
from tests.support import REPOSITORY

pytestmark = pytest.mark.soak


def wait_for_refusals(lab: Lab, client: int = 0) -> list[str]:
    store = ClientStore(lab.client(client))
    end = time.monotonic() + 2 * SLOW
    while not store.refusals:
        assert time.monotonic() < end, lab.log(f"node-{client}")[-3000:]
        time.sleep(0.2)
    return [refusal.reason for refusal in store.refusals]


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
        save_protocol(protocol, tmp_path / "protocol.toml")
        told = {"protocol": str(tmp_path / "protocol.toml"), "folder": str(tmp_path / "run")}
        lab.submit(foreign_app(tmp_path, proof), patience=20.0, **told)
        reasons = wait_for_refusals(lab)
        assert "an app was sent that was not agreed to" in reasons[0]
        assert not proof.exists()
        assert ClientStore(lab.client(0)).rounds_paid == []
        files = [path for path in lab.client(0).rglob("*") if path.is_file()]
        assert files
        assert not [path for path in files if path.stat().st_mode & stat.S_IXUSR]


OUTSIDER = """
import http.client, json, ssl, sys
port, authority, shown, *paths = sys.argv[1:]
got = {}
for path in paths:
    trusted = ssl.create_default_context(cafile=authority)
    if shown:
        trusted.load_cert_chain(shown)
    caller = http.client.HTTPSConnection("127.0.0.1", int(port), timeout=20, context=trusted)
    head = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    try:
        caller.request("POST", path, b"", head)
        got[path] = caller.getresponse().status
    except OSError:
        got[path] = "cut off"
print(json.dumps(got))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can play another account")
@pytest.mark.skipif(not os.path.exists("/usr/bin/python3"), reason="no Python for everybody")
def test_an_outsider_starts_lists_and_registers_nothing_at_a_real_superlink(
    tmp_path, readable
) -> None:
    """Another account stands for another machine: to threshold and gate they are the same.

    Once without a certificate, once with one that nobody registered, and once with a node's own.
    """
    taken = ["start-run", "list-runs", "register-node", "list-nodes", "stream-logs"]
    closed = [f"/v1/control/{name}" for name in taken]
    closed += ["/v1/runtime/acquire-task", "/v1/fleet/register-node", "/docs"]
    keyless = "/v1/fleet/pull-messages"
    paths = [*closed, keyless, "/health"]
    with Lab(tmp_path / "lab") as lab:
        lab.secure(2)
        lab.start_link()
        lab.register(1)
        shutil.copy(lab.certificates / "ca.crt", readable / "ca.crt")
        for client in range(2):
            write_shown(lab.key(client), readable / f"{client}.pem")
        for path in readable.iterdir():
            path.chmod(0o644)

        def ask(shown: str) -> dict[str, object]:
            told = [str(lab.port), str(readable / "ca.crt"), shown and str(readable / shown)]
            command = ["/usr/bin/python3", "-c", OUTSIDER, *told, *paths]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, user=65534, cwd="/"
            )
            return json.loads(done.stdout)

        assert set(ask("").values()) == {"cut off"}
        assert set(ask("1.pem").values()) == {"cut off"}
        got = ask("0.pem")
        assert {got[path] for path in closed} == {403}
        assert got[keyless] == 401
        assert got["/health"] in (200, 405)
        assert lab.flower("list", CONNECTION)["runs"] == []  # the coordinator itself still can
        assert lab.online == []


@pytest.fixture
def readable():
    """A folder that every account can read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def write_shown(key: Path, path: Path) -> None:
    """Writes a node's key and certificate in the form that TLS takes."""
    private = serialization.load_ssh_private_key(key.read_bytes(), password=None)
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem = serialization.Encoding.PEM
    path.write_bytes(private.private_bytes(pem, *form) + certify_key(private).public_bytes(pem))

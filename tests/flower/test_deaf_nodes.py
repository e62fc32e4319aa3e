"""What once left nodes deaf or gone without a reason, played against whole deployments with keys."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from flwr.cli.build import build_fab_from_disk
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from sordino import Gaussian, train
from sordino.flower.client_store import ClientStore
from tests.flower.lab import SLOW, Lab, free_port
from tests.flower.local import plan

pytestmark = pytest.mark.soak

PROTOCOL = plan(clients=1, rounds=1, noise=Gaussian(sigma=0.1, secure=True))

AGENT_PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "agent"
version = "0.1.0"
license = "Apache-2.0"
dependencies = ["flwr"]

[tool.hatch.build.targets.wheel]
packages = ["agent"]

[tool.flwr.app]
publisher = "nobody"

[tool.flwr.app.components]
agentapp = "agent.app:app"
"""

# Whatever it is asked, it sends every node a message. A run that has ended is of no interest to
# nodes, so it waits until the message was seen.
AGENT = """
import json, os, time
from flwr.agentapp import AgentApp

app = AgentApp()


def call(agent, name, **arguments):
    asked = {"type": "function_call", "call_id": name, "name": name, "arguments": arguments}
    return json.loads(agent.grid.call(asked)["output"])


@app.main()
def main(agent, context):
    nodes = call(agent, "get_nodes", sample_size=None)["nodes"]
    messages = [
        {"dst_node_id": node["id"], "payload": "hello", "reply_to_message_id": None}
        for node in nodes
    ]
    call(agent, "push_messages", messages=messages)
    for _ in range(600):
        if not os.path.exists("SEEN"):
            time.sleep(0.3)
"""


@pytest.fixture
def lab(tmp_path):
    """A SuperLink with TLS that knows the key of one node, which has agreed and is not started."""
    with Lab(tmp_path / "lab") as made:
        made.secure(1)
        made.start_link()
        made.register(1)
        made.agree(0, PROTOCOL)
        yield made


def start_agent(lab: Lab, folder: Path) -> None:
    """Starts a run of an agent at the SuperLink, as its coordinator could."""
    (folder / "agent").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(AGENT_PROJECT)
    (folder / "agent" / "__init__.py").write_text("")
    (folder / "agent" / "app.py").write_text(AGENT.replace("SEEN", str(folder / "seen")))
    request = StartRunRequest(
        user_prompt="hello", fab=Fab(hash_str="", content=build_fab_from_disk(folder))
    )
    authority = (lab.certificates / "ca.crt").read_bytes()
    shown = [RuntimeVersionHttpInterceptor(component_name="flwr-cli")]
    with ControlHttpClient.from_server_address(
        lab.superlink.address, False, authority, shown
    ) as client:
        assert client.StartRun(request).HasField("run_id")


def wait_for(found, why) -> None:
    """Waits until something holds."""
    end = time.monotonic() + SLOW
    while not found():
        assert time.monotonic() < end, why()
        time.sleep(0.2)


def test_a_run_of_an_agent_is_refused_and_the_node_goes_on_answering(lab, tmp_path) -> None:
    """One such run once left every node online, and answering nothing until it was restarted."""
    lab.start_node(0)
    wait_for(lambda: lab.online, lambda: lab.log("node-0")[-3000:])
    start_agent(lab, tmp_path / "agent")
    store = ClientStore(lab.client(0))
    wait_for(lambda: store.refusals, lambda: lab.log("link")[-3000:])
    (tmp_path / "agent" / "seen").touch()
    assert store.refusals[0].reason == "flwr-agentapp was to be started, which nobody agreed to"
    run = train(
        PROTOCOL,
        folder=tmp_path / "run",
        engine="flower",
        superlink=lab.superlink,
        report=False,
    )
    assert run.status == "finished"
    assert store.rounds_paid == [0]
    assert "started again" not in lab.log("node-0")


# The clocks of a process and of all that it starts, ahead by the seconds that a file says.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead(void) {
    char text[16] = {0};
    int file = open(getenv("CLOCK_AHEAD"), O_RDONLY);
    if (file < 0) return 0;
    if (read(file, text, 15) < 0) text[0] = 0;
    close(file);
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += ahead();
    return code;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the clock is changed as Linux allows it")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_node_whose_clock_is_10_s_ahead_says_so_and_connects_once_it_is_set(
    lab, tmp_path
) -> None:
    """Flower's SuperNode ends with exit code 0 and no reason, since what it signs is refused."""
    (tmp_path / "clock.c").write_text(CLOCK)
    library = tmp_path / "clock.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"], check=True
    )
    ahead = tmp_path / "ahead"
    ahead.write_text("10")
    env = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_AHEAD": str(ahead)}
    told = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert 5.0 < float(told.stdout) - time.time() < 10.0
    lab.wait_for_link()
    command = [sys.executable, "-m", "sordino", "flower", "node", str(lab.client(0))]
    lab.spawn_any("node-0", [*command, "--port", str(free_port())], env)
    lab.wait_until("node-0", r"clock is (9|10|11) s ahead of the coordinator's")
    status = json.loads((lab.client(0) / "flower" / "status.json").read_bytes())
    assert status["state"] == "restarting"
    assert "timedatectl" in status["reason"]
    assert lab.online == []
    ahead.write_text("0")
    run = train(
        PROTOCOL,
        folder=tmp_path / "run",
        engine="flower",
        superlink=lab.superlink,
        report=False,
    )
    assert run.status == "finished"
    assert ClientStore(lab.client(0)).rounds_paid == [0]

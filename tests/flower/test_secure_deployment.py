"""Four machines sum securely over TLS; in each phase one is killed at a pinned moment: every sum is exact."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino import Constant, Data, FedAvg, Protocol, Run, train
from sordino.engines.choice import SuperLink
from sordino.flower.client_store import ClientStore
from sordino.flower.sum_states import read_sum_state
from sordino.privacy.ledger_lines import Missed
from sordino.protocol import SecureAggregation
from tests.flower.lab import SLOW, Lab
from tests.flower.local import plan, weights
from tests.flower.test_secure_training import train_without

KILLED = 3
# The machine that is held up, so that the round does not go on before another one is dead.
HELD = 0
DEADLINE = 40.0
# An upload that is in the ledger is sent at once; so much later it has left.
SENDING = 3.0


def wait_for(happened: Callable[[], object]) -> None:
    end = time.monotonic() + 2 * SLOW
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError("what was waited for never happened")
        time.sleep(0.01)


def is_at_work(folder: Path) -> bool:
    """Whether a client has charged the round and not kept its upload yet."""
    return ClientStore(folder).has_open_charge(0)


def kill_before_it_prepares(lab: Lab) -> None:
    """Its key for letters has left, and nothing else."""
    folder = lab.client(KILLED)
    wait_for(lambda: read_sum_state(folder) is not None)
    lab.kill(f"node-{KILLED}")
    state = read_sum_state(folder)
    assert state is not None
    assert state.label is None


def kill_at_work(lab: Lab) -> None:
    """The round is charged, and no upload is kept: others have its shares, and nobody its vector."""
    folder = lab.client(KILLED)
    wait_for(lambda: is_at_work(folder))
    lab.kill(f"node-{KILLED}")
    assert ClientStore(folder).rounds_paid == [0]
    assert ClientStore(folder).upload_digests == {}


def kill_before_it_unmasks(lab: Lab) -> None:
    """Its upload has come, and the last one is held up, so that nobody was asked for shares yet."""
    wait_for(lambda: is_at_work(lab.client(HELD)))
    lab.freeze(f"node-{HELD}")
    folder = lab.client(KILLED)
    wait_for(lambda: ClientStore(folder).upload_digests)
    time.sleep(SENDING)
    lab.kill(f"node-{KILLED}")
    lab.thaw(f"node-{HELD}")
    assert ClientStore(folder).shares_given == []


# When one is killed, and who is then missing in the sum.
PHASES: dict[str, tuple[Callable[[Lab], None], set[int]]] = {
    "prepare": (kill_before_it_prepares, {KILLED}),
    "mask": (kill_at_work, {KILLED}),
    "unmask": (kill_before_it_unmasks, set()),
}


def train_while(lab: Lab, protocol: Protocol, folder: Path, kill: Callable[[Lab], None]) -> Run:
    """Trains over the deployment while a machine is killed."""
    failures: list[BaseException] = []

    def act() -> None:
        try:
            kill(lab)
        except BaseException as error:
            failures.append(error)

    killer = threading.Thread(target=act)
    killer.start()
    link = SuperLink(
        address=lab.superlink.address,
        certificate=lab.superlink.certificate,
        patience=SLOW,
        deadline=DEADLINE,
    )
    run = train(protocol, folder=folder, engine="flower", superlink=link, report=False)
    killer.join()
    assert failures == []
    return run


@pytest.mark.soak
def test_one_of_four_machines_is_killed_in_each_phase_and_every_sum_is_exact(tmp_path) -> None:
    generator = np.random.default_rng(0)
    np.savez(
        tmp_path / "records.npz",
        x=generator.normal(size=(240, 20)),
        y=generator.integers(0, 3, size=240),
    )
    protocol = plan(
        clients=4,
        rounds=1,
        channel=SecureAggregation(threshold=3),
        data=Data(name=str(tmp_path / "records.npz"), records=40, classes=3),
        # Seconds of work, within which a machine is killed.
        local=FedAvg(steps=2000, batch=6, clip=1.0, schedule=Constant(rate=0.01)),
    )
    with Lab(tmp_path / "lab") as lab:
        lab.secure(4)
        lab.start_link()
        lab.register(4)
        for phase, (kill, missing) in PHASES.items():
            lab.start_nodes(protocol, "--seeded", "--clients", lab.certificates / "clients.json")
            run = train_while(lab, protocol, tmp_path / phase, kill)
            assert run.status == "finished"
            silent = [set(one.clients) for one in run.ledger if isinstance(one, Missed)]
            assert silent == ([missing] if missing else []), phase
            assert weights(run) == train_without(protocol, [missing])
            for client in range(3):
                lines = ClientStore(lab.client(client)).shares_given
                assert [set(line.survivors) for line in lines] == [set(range(4)) - missing]
            lab.forget_clients()

"""Four machines sum securely over TLS while one of them is killed: every sum is exact."""

import threading
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino import Data, train
from sordino.engines.choice import SuperLink
from sordino.flower.client_store import ClientStore
from sordino.privacy.ledger_lines import Missed
from sordino.protocol import SecureAggregation
from tests.flower.lab import SLOW, Lab
from tests.flower.local import plan, weights
from tests.flower.test_secure_training import train_without

KILLED = 3


@pytest.mark.slow
def test_four_machines_of_which_one_is_killed_sum_exactly(tmp_path) -> None:
    generator = np.random.default_rng(0)
    np.savez(
        tmp_path / "records.npz",
        x=generator.normal(size=(240, 20)),
        y=generator.integers(0, 3, size=240),
    )
    protocol = plan(
        clients=4,
        rounds=3,
        channel=SecureAggregation(threshold=3),
        data=Data(name=str(tmp_path / "records.npz"), records=40, classes=3),
    )
    with Lab(tmp_path / "lab") as lab:
        lab.secure(4)
        lab.start_link()
        lab.register(4)
        lab.start_nodes(protocol, "--seeded", "--clients", lab.certificates / "clients.json")

        def kill_after_its_second_upload() -> None:
            """Killed as its masked upload leaves: between the waves of round 1, and before round 2."""
            store = ClientStore(lab.client(KILLED))
            end = time.monotonic() + 2 * SLOW
            while 1 not in store.upload_digests and time.monotonic() < end:
                time.sleep(0.02)
            lab.kill(f"node-{KILLED}")

        killer = threading.Thread(target=kill_after_its_second_upload)
        killer.start()
        link = SuperLink(
            address=lab.superlink.address,
            certificate=lab.superlink.certificate,
            patience=SLOW,
            deadline=20.0,
        )
        run = train(
            protocol, folder=tmp_path / "across", engine="flower", superlink=link, report=False
        )
        killer.join()
        given = [ClientStore(lab.client(client)).shares_given for client in range(3)]
    assert run.status == "finished"
    silent: list[set[int]] = [set(), set(), set()]
    for event in run.ledger:
        if isinstance(event, Missed):
            silent[event.round] = set(event.clients)
    # Whether its second upload still came is a matter of moments; the sum is exact in any case.
    assert silent[0] == set()
    assert silent[1] <= {KILLED}
    assert silent[2] == {KILLED}
    assert weights(run) == train_without(protocol, silent)
    for lines in given:
        assert [line.round for line in lines] == [0, 1, 2]
        assert [set(range(4)) - set(line.survivors) for line in lines] == silent

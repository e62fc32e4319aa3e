"""The mod in any Flower app, and the accountant in Flower's own form."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity

from sordino import UserError
from sordino.cli.main import run as sordino
from sordino.flower.accountant import SordinoAccountant
from sordino.flower.admission import count_affordable_rounds
from sordino.flower.client_store import ClientStore
from sordino.flower.mods import PrivacyMod, private_steps, private_updates
from sordino.privacy.ledger_lines import Refused
from tests.flower.local import LocalGrid
from tests.flower.test_enforcement import gaussian_epsilon

SHAPES = {"weight": (40, 50), "bias": (50,), "scale": ()}


def model(value: float = 0.0) -> dict[str, np.ndarray]:
    return {
        **{name: np.full(shape, value, np.float32) for name, shape in SHAPES.items()},
        "seen": np.array(3, np.int64),
    }


class Trained:
    """A ClientApp of someone's own, with the mod, and what the server gets from it."""

    def __init__(self, mod: PrivacyMod, move: float = 0.0) -> None:
        self.app, self.runs, self.move = ClientApp(mods=[mod]), 0, move

        @self.app.train()
        def train(message: Message, context: Context) -> Message:
            self.runs += 1
            before = {name: array.numpy() for name, array in message.content["arrays"].items()}
            after = {
                name: array + (np.float32(self.move) if array.dtype.kind == "f" else 1)
                for name, array in before.items()
            }
            arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in after.items()})
            metrics = MetricRecord({"num-examples": 60, "train-loss": 0.123})
            return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

        @self.app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            return Message(
                RecordDict({"metrics": MetricRecord({"accuracy": 0.9})}), reply_to=message
            )

    def ask(self, round: int, kind: str = "train", run: int = 1) -> Message:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, 1, 1
        arrays = ArrayRecord({name: Array(value) for name, value in model().items()})
        message = Message(
            RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": round})}),
            1000,
            kind,
        )
        message.metadata.__dict__["_message_id"] = f"{run} {round}"
        return self.app(
            message,
            Context(
                run_id=run,
                node_id=1,
                node_config={},
                state=RecordDict(),
                run_config={},
                series_id=0,
            ),
        )

    def update(self, round: int = 1) -> np.ndarray:
        reply = self.ask(round)
        sent = {name: array.numpy() for name, array in reply.content["arrays"].items()}
        assert {name: (array.shape, array.dtype) for name, array in sent.items()} == {
            n: (a.shape, a.dtype) for n, a in model().items()
        }
        assert sent["seen"] == 3  # a counter says how much was trained: it stays as it was
        return np.concatenate([sent[name].ravel() for name in SHAPES])


def cap_of(mod: PrivacyMod) -> int:
    """How many rounds its budget allows."""
    store = mod.open_store()
    return count_affordable_rounds(store, store.agreed)


@pytest.mark.parametrize("move", [1000.0, 1e-6, 0.0])
def test_an_update_is_clipped_whole_single_numbers_too(tmp_path, move) -> None:
    sent = Trained(private_updates(clip=2.0, sigma=1e-9, folder=tmp_path), move).update()
    length = move * math.sqrt(sent.size)
    assert np.allclose(sent, move * min(1.0, 2.0 / length) if length > 0 else 0.0, atol=1e-7)
    assert np.linalg.norm(sent.astype(np.float64)) <= 2.0 + 1e-6


@pytest.mark.parametrize("move", [math.nan, math.inf])
def test_an_update_that_is_not_finite_becomes_noise(tmp_path, move) -> None:
    sent = Trained(private_updates(clip=1.0, sigma=0.5, folder=tmp_path), move).update()
    assert np.isfinite(sent).all()
    assert np.std(sent) == pytest.approx(0.5, rel=0.06)


def test_the_noise_is_of_the_size_asked_for_and_never_the_same(tmp_path) -> None:
    trained = Trained(private_updates(clip=1.0, sigma=0.5, folder=tmp_path))
    one, two = trained.update(1), trained.update(2)
    for sent in (one, two):
        assert np.std(sent) == pytest.approx(0.5, rel=0.06)
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.1
    np.random.seed(1)  # noqa: NPY002 - what would repeat the noise of Flower's own mod
    three = trained.update(3)
    np.random.seed(1)  # noqa: NPY002
    assert not np.array_equal(three, trained.update(4))


def test_the_budget_is_kept_over_runs(tmp_path) -> None:
    """Replacing a client moves an update by up to 2: mu = 2 sqrt(n) / 4 after n rounds."""
    allowed = max(n for n in range(1, 100) if gaussian_epsilon(0.5 * math.sqrt(n), 1e-5) <= 5.0)
    mod = private_updates(clip=1.0, sigma=4.0, epsilon=5.0, folder=tmp_path)
    trained = Trained(mod)
    for round in range(allowed):
        again = (
            Trained(private_updates(clip=1.0, sigma=4.0, epsilon=5.0, folder=tmp_path))
            if round % 3 == 0
            else trained
        )
        assert again.ask(round, run=round % 2).has_content()
    assert len(mod.open_store().rounds_paid) == cap_of(mod) == allowed
    asked = (tmp_path / "asked.txt").read_bytes()
    reply = trained.ask(allowed, run=7)
    assert f"allows {allowed} rounds, and they are spent" in reply.error.reason
    # A server that asks on, round after round, fills no disk.
    assert (tmp_path / "asked.txt").read_bytes() == asked
    assert type(mod.open_store().events[-1]) is Refused


def test_what_no_noise_covers_does_not_leave(tmp_path) -> None:
    mod = private_updates(clip=1.0, sigma=1.0, folder=tmp_path)
    trained = Trained(mod)
    reply = trained.ask(1)
    assert {name: dict(record) for name, record in reply.content.items() if name != "arrays"} == {
        "metrics": {"num-examples": 60}
    }
    assert trained.ask(2, kind="evaluate").has_error()
    assert "requested twice" in trained.ask(1).error.reason
    assert trained.runs == 1
    assert mod.open_store().rounds_paid == [0]


def test_a_folder_belongs_to_one_mechanism(tmp_path) -> None:
    assert Trained(private_updates(clip=1.0, sigma=1.0, folder=tmp_path)).ask(1).has_content()
    assert Trained(private_updates(clip=1.0, sigma=0.1, folder=tmp_path)).ask(2).has_error()


@pytest.mark.slow
def test_an_app_with_noisy_steps_of_its_own_is_priced_and_capped(tmp_path) -> None:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    options = {"steps": 20, "batch": 32, "records": 600, "multiplier": 1.0}
    mod = private_steps(**options, epsilon=4.0, folder=tmp_path, most=200)

    def price(rounds: int) -> float:
        step = dp_accounting.PoissonSampledDpEvent(32 / 600, dp_accounting.GaussianDpEvent(1.0))
        accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
        return accountant.compose(dp_accounting.SelfComposedDpEvent(step, 20 * rounds)).get_epsilon(
            1e-5
        )

    cap = cap_of(mod)
    assert price(cap) <= 4.0 < price(cap + 1) * 1.002
    trained = Trained(mod, move=0.25)
    assert np.array_equal(
        trained.update(1), np.full(2051, 0.25, np.float32)
    )  # the noise is the app's own
    assert mod.open_store().rounds_paid == [0]


def test_a_lower_budget_holds_at_once_and_what_was_spent_stays(tmp_path) -> None:
    """Two rounds were paid for; of a budget that allows one, nothing is left."""

    def ask(epsilon, round):
        return Trained(private_updates(clip=1.0, sigma=4.0, epsilon=epsilon, folder=tmp_path)).ask(
            round
        )

    assert ask(8.0, 1).has_content()
    assert ask(8.0, 2).has_content()
    low = gaussian_epsilon(0.5, 1e-5) * 1.01
    assert "allows 1 rounds, and they are spent" in ask(low, 3).error.reason
    assert ask(8.0, 4).has_content()


def test_what_the_mod_spent_can_be_asked_for(tmp_path, capfd) -> None:
    trained = Trained(private_updates(clip=1.0, sigma=4.0, epsilon=8.0, folder=tmp_path / "client"))
    for round in (1, 2, 3):
        assert trained.ask(round).has_content()
    trained.ask(4, kind="evaluate")
    assert sordino(["flower", "spent", str(tmp_path / "client"), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["rounds"] == [0, 1, 2]
    assert document["guarantee"]["epsilon"] == pytest.approx(
        gaussian_epsilon(0.5 * math.sqrt(3), 1e-5), rel=1e-6
    )
    assert len(document["refused"]) == 1


def test_a_folder_may_be_named_by_the_nodes_configuration(tmp_path) -> None:
    mod = private_updates(clip=1.0, sigma=1.0, folder=str(tmp_path / "client-{partition-id}"))
    assert [mod.open_store({"partition-id": number}).folder.name for number in (0, 1)] == [
        "client-0",
        "client-1",
    ]
    with pytest.raises(UserError, match="does not say what is in braces"):
        mod.open_store({})


def own_app(folder: Path) -> LocalGrid:
    """A Flower app of someone's own with two clients, whose folders the nodes name."""
    sys.path.insert(0, str(Path(__file__).parent / "own_app"))
    try:
        from own_app.client_app import app
    finally:
        sys.path.pop(0)
    for client in range(2):
        (folder / f"client-{client}").mkdir()
    return LocalGrid(folder, app=app)


def start() -> ArrayRecord:
    return ArrayRecord({"weight": Array(np.zeros(50))})


def test_flowers_own_strategy_runs_until_the_clients_budgets_are_spent(tmp_path) -> None:
    """mu = 1/2 a round: as many rounds are answered as fit into epsilon = 3, and scores on private records never are."""
    allowed = max(n for n in range(1, 9) if gaussian_epsilon(0.5 * math.sqrt(n), 1e-5) <= 3.0)
    result = FedAvg().start(own_app(tmp_path), start(), num_rounds=allowed + 1)
    assert sorted(result.train_metrics_clientapp) == list(range(1, allowed + 1))
    assert result.evaluate_metrics_clientapp == {}
    assert (
        1.5 < np.std(result.arrays["weight"].numpy()) / math.sqrt(allowed) < 4.5
    )  # noise of 4, halved in square by two clients
    for client in range(2):
        store = ClientStore(tmp_path / f"client-{client}")
        assert store.rounds_paid == list(range(allowed))
        reasons = [refusal.reason for refusal in store.refusals]
        assert sum("not covered by any noise" in reason for reason in reasons) == allowed + 1
        assert (
            sum(f"allows {allowed} rounds, and they are spent" in reason for reason in reasons) == 1
        )


def test_our_accountant_stops_flowers_strategy(tmp_path) -> None:
    """Two releases with multiplier 1 fit below epsilon = 8: the exact Gaussian's are 4.38, 6.57 and 8.39."""
    costs = [gaussian_epsilon(math.sqrt(n), 1e-5) for n in (1, 2, 3)]
    assert costs[1] < 8.0 < costs[2]
    ours = SordinoAccountant(config(SamplingMethod.NO_AMPLIFICATION, population=2, max_epsilon=8.0))
    wrapped = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), 1.0, 1.0, 2, accountant=ours
    )
    with pytest.raises(PrivacyBudgetExhausted):
        wrapped.start(own_app(tmp_path), start(), num_rounds=5)
    assert ours.get_privacy_spent().num_releases == 2
    assert ours.get_privacy_spent().epsilon == pytest.approx(costs[1], rel=1e-6)


def config(sampling: SamplingMethod, population: int = 100, **more: object) -> PrivacyConfig:
    replaced = sampling is SamplingMethod.WITHOUT_REPLACEMENT
    relation = (
        NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    return PrivacyConfig(
        target_delta=1e-5,
        population_size=population,
        neighboring_relation=relation,
        sampling_method=sampling,
        **more,
    )


def event(multiplier: float = 1.0, size: int = 10) -> GaussianPrivacyEvent:
    return GaussianPrivacyEvent(noise_multiplier=multiplier, sample_size=size, population_size=100)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", list(SamplingMethod))
def test_our_accountant_never_charges_more_than_flowers(sampling) -> None:
    ours, theirs = SordinoAccountant(config(sampling)), RdpAccountant(config(sampling))
    for one, count in ((event(2.0), 3), (event(2.0), 5), (event(4.0), 2)):
        ours.compose(one, count)
        theirs.compose(one, count)
    epsilon, upper = ours.get_epsilon(1e-5), theirs.get_epsilon(1e-5)
    assert 0.3 * upper < epsilon <= upper
    assert ours.get_delta(epsilon) == pytest.approx(1e-5, rel=0.02)
    assert ours.get_privacy_spent().num_releases == theirs.get_privacy_spent().num_releases == 10


def test_without_sampling_it_is_the_exact_gaussian() -> None:
    ours = SordinoAccountant(config(SamplingMethod.NO_AMPLIFICATION))
    ours.compose(event(1.5), 4)
    ours.compose(event(3.0), 9)
    assert ours.get_epsilon(1e-5) == pytest.approx(
        gaussian_epsilon(math.sqrt(4 / 1.5**2 + 9 / 3.0**2), 1e-5), rel=1e-6
    )


def test_it_limits_remembers_and_refuses() -> None:
    ours = SordinoAccountant(config(SamplingMethod.NO_AMPLIFICATION, max_epsilon=6.0))
    assert not ours.would_exceed(event())
    ours.compose(event())
    assert ours.would_exceed(event(), count=3)
    assert ours.num_releases == 1
    other = SordinoAccountant(config(SamplingMethod.NO_AMPLIFICATION, max_epsilon=6.0))
    other.load_state_dict(ours.state_dict())
    assert other.get_privacy_spent() == ours.get_privacy_spent()
    with pytest.raises(UserError, match="another PrivacyConfig"):
        SordinoAccountant(config(SamplingMethod.POISSON)).load_state_dict(ours.state_dict())
    with pytest.raises(UserError, match="damaged"):
        other.load_state_dict({**ours.state_dict(), "releases": [{"event": {}, "count": 1}]})
    assert other.num_releases == 1
    with pytest.raises(UserError, match="population_size"):
        ours.compose(GaussianPrivacyEvent(noise_multiplier=1.0, sample_size=1, population_size=7))
    with pytest.raises(UserError, match="count"):
        ours.compose(event(), 0)
    with pytest.raises(UserError, match="epsilon"):
        ours.get_delta(-1.0)
    with pytest.raises(UserError, match="nothing to exceed"):
        SordinoAccountant(config(SamplingMethod.NO_AMPLIFICATION)).would_exceed(event())


def test_flowers_own_strategy_takes_it() -> None:
    ours = SordinoAccountant(
        config(SamplingMethod.NO_AMPLIFICATION, population=10, max_epsilon=50.0)
    )
    wrapped = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 10, accountant=ours)
    assert wrapped.accountant is ours

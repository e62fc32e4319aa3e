"""Everything that belongs to a kind is registered for it, and a kind that is not known is refused."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import sordino
from sordino.audit.observation import describe_beyond_view, find_given_observation
from sordino.audit.worst_cases.worst_pair import make_worst_pair
from sordino.federation.aggregation.joining import JOININGS
from sordino.federation.channels.delivery import CHANNELS
from sordino.federation.rules.local_training import LOCAL_RULES
from sordino.mechanisms import mechanism_of_name
from sordino.mechanisms.mechanism import MECHANISMS, Mechanism, mechanism_of
from sordino.privacy.bounds.priced_view import OBSERVATIONS
from sordino.privacy.bounds.question import Observation
from sordino.protocol import (
    Aggregation,
    Channel,
    Constant,
    Data,
    Dirichlet,
    FedAvg,
    Gaussian,
    LocalRule,
    Median,
    Model,
    Noise,
    NoisySgd,
    Participation,
    Personalization,
    Protocol,
    Registry,
    Schedule,
    ServerOptimizer,
    SordinoError,
    View,
)
from sordino.protocol.data_entries import Partition
from sordino.protocol.views import ADVERSARIES
from sordino.randomness import Key

PACKAGE = Path(sordino.__file__).parent
PLAN = Protocol(
    clients=4,
    rounds=3,
    local=FedAvg(steps=2, batch=2, clip=1.0, schedule=Constant(rate=0.1)),
    noise=Gaussian(sigma=1.0),
    data=Data(name="digits", partition=Dirichlet(beta=0.5), records=20),
    model=Model(name="logistic"),
)


def registering_modules() -> list[str]:
    """The modules that make a registry or add to one."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if "Registry(" in text or ".register(" in text:
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            found.append(".".join(parts).removesuffix(".__init__"))
    return found


def test_every_registry_holds_something_for_every_kind() -> None:
    for name in registering_modules():
        importlib.import_module(name)
    ours = [registry for registry in Registry.all if registry.name != "name"]
    assert len(ours) > 10
    missing = {f"{registry.name} of {registry.part}": registry.missing for registry in ours}
    assert {name: kinds for name, kinds in missing.items() if kinds} == {}


@pytest.mark.parametrize("kind", get_args(Noise), ids=lambda kind: kind.__name__)
def test_every_kind_of_noise_has_all_that_a_mechanism_has(kind: type) -> None:
    mechanism = MECHANISMS[kind]
    assert not inspect.isabstract(mechanism)
    assert mechanism.price is not Mechanism.price, "nothing can be promised with it"
    assert mechanism_of_name(kind.tag) is mechanism


def test_a_mechanism_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(SordinoError, match=r"cauchy.*expected one of custom, gaussian, laplace"):
        mechanism_of_name("cauchy")


def test_noise_without_a_price_is_refused_until_it_has_one() -> None:
    class Unpriced(MECHANISMS[Gaussian]):  # type: ignore[misc]
        price = Mechanism.price

    with pytest.raises(SordinoError, match="no price is known for gaussian noise"):
        Unpriced(Gaussian(sigma=1.0)).price("l2", 3)


def test_noise_without_a_price_is_refused_before_a_run_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(MECHANISMS[Gaussian], "price", Mechanism.price)
    # Noise that no other test has priced: prices are kept.
    plan = dataclasses.replace(PLAN, seed=1, noise=Gaussian(sigma=0.98765))
    with pytest.raises(SordinoError, match="no price is known for gaussian noise"):
        sordino.train(plan, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("registry", [LOCAL_RULES, CHANNELS, JOININGS], ids=lambda one: one.part)
def test_a_part_that_no_round_is_known_for_is_refused_before_a_run_is_written(
    registry: Registry[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(registry, "_held", {})
    plan = dataclasses.replace(PLAN, seed=1)
    with pytest.raises(SordinoError, match=f"is known for the {registry.part}"):
        sordino.train(plan, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("registry", [LOCAL_RULES, CHANNELS, JOININGS], ids=lambda one: one.part)
def test_many_trainings_and_resumed_ones_refuse_such_a_part_too(
    registry: Registry[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = dataclasses.replace(PLAN, seed=1)
    sordino.train(plan, folder=tmp_path / "run", workers=1, report=False)
    facts = tmp_path / "run" / "run.json"
    facts.write_text(facts.read_text().replace('"finished"', '"unfinished"'))
    monkeypatch.setattr(registry, "_held", {})
    with pytest.raises(SordinoError, match=f"is known for the {registry.part}"):
        sordino.train_many([plan], folder=tmp_path / "many")
    assert not (tmp_path / "many").exists()
    with pytest.raises(SordinoError, match=f"is known for the {registry.part}"):
        sordino.resume(tmp_path / "run")


def test_a_view_of_some_models_is_attacked_with_all_of_them_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert describe_beyond_view(PLAN, View.ROUNDS) == ""
    monkeypatch.setitem(OBSERVATIONS._held, "rounds", Observation.SOME_MODELS)
    assert find_given_observation(PLAN, View.ROUNDS) is Observation.MODELS
    assert describe_beyond_view(PLAN, View.ROUNDS) == "every global model"


def test_a_view_without_words_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ADVERSARIES, "_held", {})
    with pytest.raises(SordinoError, match='name of the adversary is known for the view "server"'):
        _ = View.SERVER.adversary


def subclassed(value: Any) -> Any:
    """The same value as an instance of a subclass that nobody registered."""
    kind = type(value)
    other = type(f"Other{kind.__name__}", (kind,), {})
    made = dataclasses.dataclass(frozen=True, kw_only=True)(other)
    return made(**{f.name: getattr(value, f.name) for f in dataclasses.fields(value)})


EXAMPLES: dict[Any, dict[str, Any]] = {
    Participation: {"rate": 0.5, "size": 2},
    Aggregation: {"public": "digits"},
    Channel: {"threshold": 2},
    Personalization: {"alpha": 0.5, "own": 0.5},
    Schedule: {"rate": 0.1, "factor": 0.5, "every": 2},
    ServerOptimizer: {"rate": 0.1},
    LocalRule: {
        "steps": 2,
        "batch": 2,
        "clip": 1.0,
        "schedule": Constant(rate=0.1),
        "proximal": 0.1,
        "weight_decay": 0.1,
        "batches": "cyclic",
    },
    Noise: {"sigma": 1.0, "scale": 1.0, "step": 1.0, "width": 1.0, "factory": "a.b:c"},
    Partition: {"beta": 0.5, "per_client": 2, "column": "ward"},
}


def example(part: Any, kind: type) -> Any:
    names = {f.name for f in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in EXAMPLES[part].items() if name in names})


def with_part(part: Any, value: Any) -> Protocol:
    """The plan with another part, which its constructor may refuse."""
    if part is Schedule:
        return dataclasses.replace(PLAN, local=dataclasses.replace(PLAN.local, schedule=value))
    if part is Partition:
        data = dataclasses.replace(PLAN.data, partition=value)  # type: ignore[type-var]
        return dataclasses.replace(PLAN, data=data)
    return dataclasses.replace(PLAN, **{NAMES[part]: value})


KINDS = [(part, kind) for part in EXAMPLES for kind in get_args(part)]


@pytest.mark.parametrize(("part", "kind"), KINDS, ids=lambda one: getattr(one, "__name__", ""))
def test_no_protocol_is_made_with_a_subclass_of_a_kind(part: Any, kind: type) -> None:
    with pytest.raises(SordinoError, match=f"expected one of .*{kind.__name__}"):
        with_part(part, subclassed(example(part, kind)))


def forged(name: str, value: Any) -> Protocol:
    """A protocol that was changed behind its constructor's back."""
    protocol = dataclasses.replace(PLAN)
    object.__setattr__(protocol, name, value)
    return protocol


def report_on(protocol: Protocol) -> Any:
    from sordino.report.phrasing import describe_protocol

    return describe_protocol(protocol), mechanism_of(protocol.noise).words


COMMANDS: dict[str, Callable[[Protocol], Any]] = {
    "certify": lambda protocol: sordino.certify(protocol, "rounds"),
    "train": lambda protocol: sordino.train(protocol),
    "audit": lambda protocol: sordino.audit(protocol, trainings=2),
    "report": report_on,
}


NAMES = {
    LocalRule: "local",
    Noise: "noise",
    Aggregation: "aggregation",
    Participation: "participation",
    Personalization: "personalization",
    ServerOptimizer: "server",
    Channel: "channel",
    Schedule: "schedule",
    Partition: "partition",
}
HOLDERS = {"schedule": "local", "partition": "data"}


def with_forged_part(name: str, value: Any) -> Protocol:
    """A protocol with another part, which may stand inside a part."""
    if name not in HOLDERS:
        return forged(name, value)
    holder = dataclasses.replace(getattr(PLAN, HOLDERS[name]))
    object.__setattr__(holder, name, value)
    return forged(HOLDERS[name], holder)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("part", "kind"), KINDS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_forged_part_of_any_kind_is_refused_by_every_command(
    command: str, part: Any, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    protocol = with_forged_part(NAMES[part], subclassed(example(part, kind)))
    with pytest.raises(SordinoError, match=f"Other{kind.__name__}"):
        COMMANDS[command](protocol)
    assert list(tmp_path.iterdir()) == []


def test_the_noise_of_steps_is_no_noise_on_uploads() -> None:
    rule = NoisySgd(steps=2, batch=2, clip=1.0, schedule=Constant(rate=0.1))
    plan = dataclasses.replace(PLAN, local=rule, noise=Gaussian(multiplier=1.5))
    assert plan.noise.sigma == 0.0
    assert plan.release.sum_noise.sigma == 3.0
    assert mechanism_of(plan.noise).size == 1.5
    assert PLAN.release.noise_draws == 1
    assert plan.release.noise_draws == 2


@pytest.mark.parametrize("known", [True, False])
def test_an_audit_plays_an_aggregation_exactly_where_its_law_is_known(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Median, "known_law", known)
    plan = dataclasses.replace(PLAN, aggregation=Median(), data=None, model=None)
    pair = make_worst_pair(plan, View.SERVER, "record", key=Key.from_seed(1), rounds=3)
    assert (type(pair.zero.protocol.aggregation) is Median) == known
    assert ("a mean in place of median" in pair.description) != known

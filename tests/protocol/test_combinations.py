"""What two features would do together where nobody has proved or built it is refused, by the name of a key."""

from dataclasses import replace
from pathlib import Path

import pytest

from sordino.protocol import (
    AdaptiveClip,
    Assumptions,
    Attention,
    Bezier,
    ClientBudget,
    ClippedGlm,
    Constant,
    Custom,
    DpSgd,
    FedAvg,
    FedProx,
    Gaussian,
    Identity,
    Interpolate,
    InvalidValue,
    Laplace,
    Mean,
    Median,
    ModeConnectivity,
    NoisySgd,
    Poisson,
    Privacy,
    Protocol,
    Scaffold,
    SecureAggregation,
    Staircase,
    UserError,
)
from sordino.protocol.combinations import INCOMPATIBLE, incompatible_table

STEPS = {"steps": 2, "batch": 4, "clip": 1.0, "schedule": Constant(rate=0.1)}
BUDGETS = tuple(ClientBudget(id=client, epsilon=1.0 + client) for client in range(3))
OWN_NOISE = tuple(ClientBudget(id=client, epsilon=1.0, mechanism="laplace") for client in range(3))
FIXED = Mean(denominator="fixed")
CENTRAL = Gaussian(sigma=1.0, where="server")


def noisy(**changes: object) -> Protocol:
    return Protocol(
        **{
            "clients": 3,
            "rounds": 2,
            "local": NoisySgd(**STEPS),
            "noise": Gaussian(multiplier=1.0),
            **changes,
        }
    )


def plain(rule: type = FedAvg, **changes: object) -> Protocol:
    return Protocol(
        **{
            "clients": 3,
            "rounds": 2,
            "local": rule(**STEPS),
            "noise": Gaussian(sigma=1.0),
            **changes,
        }
    )


@pytest.mark.parametrize("noise", [
    Laplace(scale=1.0, where="server"),
    Gaussian(multiplier=1.0, where="server"),
    Gaussian(multiplier=1.0, where="both", server_sigma=1.0),
    Gaussian(sigma=1.0),
])  # fmt: skip
def test_noisy_steps_have_noise_at_the_client_whose_size_is_known(noise) -> None:
    with pytest.raises(UserError, match="multiplier"):
        noisy(noise=noise)


@pytest.mark.parametrize("noise", [
    Laplace(scale=1.0),
    Staircase(step=1.0, width=1.0),
    Custom(factory="mine.noise:logistic"),
])  # fmt: skip
def test_noisy_steps_may_have_a_mechanism_for_each_client(noise) -> None:
    assert noisy(noise=noise, client=OWN_NOISE).client == OWN_NOISE


@pytest.mark.parametrize("noise", [
    Laplace(scale=1.0),
    Staircase(step=1.0, width=1.0),
    Custom(factory="mine.noise:logistic"),
])  # fmt: skip
def test_noisy_steps_may_have_any_noise_of_an_absolute_size(noise) -> None:
    assert noisy(noise=noise).release.sum_noise == noise


@pytest.mark.parametrize("where", [{}, {"where": "server"}, {"where": "both", "server_sigma": 1.0}])
@pytest.mark.parametrize("rule", [FedAvg, Scaffold])
def test_uploads_have_no_multiplier(rule, where) -> None:
    with pytest.raises(UserError, match=r"noise\.(multiplier|where)"):
        plain(rule, noise=Gaussian(multiplier=1.0, **where))


@pytest.mark.parametrize(("changes", "key"), [
    ({"channel": "shuffler"}, "federation.channel"),
    ({"aggregation": Mean(weights="noise")}, "federation.aggregation.mean.weights"),
    ({"aggregation": Mean(weights="noise"), "client": BUDGETS}, "federation.aggregation.mean.weights"),
    ({"aggregation": FIXED, "personalization": Identity()}, "federation.personalization"),
    ({"privacy": Privacy(adjacency="add-or-remove")}, "privacy.adjacency"),
])  # fmt: skip
def test_what_noisy_steps_do_not_go_with(changes, key) -> None:
    with pytest.raises(UserError, match=key):
        noisy(**changes)


@pytest.mark.parametrize("own", [Identity(), Interpolate(alpha=0.5), Attention(own=0.5, pull=0.1)])
@pytest.mark.parametrize(("changes", "key"), [
    ({"channel": "shuffler"}, "federation.channel"),
    ({"penalty": True, "client": BUDGETS}, "federation.personalization"),
    ({"client": OWN_NOISE}, "client.mechanism"),
    ({"aggregation": FIXED}, "federation.personalization"),
    ({"aggregation": FIXED, "participation": Poisson(rate=0.5), "noise": CENTRAL}, "federation.personalization"),
    ({"noise": Laplace(scale=1.0)}, "federation.personalization"),
    ({"noise": Gaussian(sigma=1.0, where="both", server_sigma=1.0)}, "federation.personalization"),
    ({"local": FedAvg(**STEPS, clip_target="update")}, "federation.personalization"),
    ({"local": Scaffold(**STEPS)}, "federation.personalization"),
])  # fmt: skip
def test_what_own_models_do_not_go_with(own, changes, key) -> None:
    with pytest.raises(UserError, match=key):
        plain(personalization=own, **changes)


def test_what_is_made_of_priced_uploads_alone_is_allowed() -> None:
    connected = ModeConnectivity(public="digits")
    assert noisy(aggregation=connected, client=BUDGETS).adjacency == "replace-one"
    assert noisy(aggregation=FIXED).keeps_models is False
    assert plain(
        aggregation=connected, personalization=Attention(own=0.5), client=BUDGETS
    ).keeps_models


GLM = ClippedGlm(steps=1, clip=1.0, schedule=Constant(rate=0.1), weight_decay=0.1)
BEZIER = Bezier(**STEPS)
SMOOTH = Assumptions(smoothness=10.0)
BOTH = Gaussian(sigma=1.0, where="both", server_sigma=1.0)
ADDED = Privacy(adjacency="add-or-remove")
PULLED = {"penalty": True, "client": BUDGETS}
STEP_NOISE = Gaussian(multiplier=1.0)
LOT = DpSgd(batch=4, clip=1.0)
FOLLOWED = {**STEPS, "clip_target": "update", "adaptive": AdaptiveClip()}
FOLLOWING = FedAvg(**FOLLOWED)
LOTS = {"local": LOT, "noise": STEP_NOISE}
DECAYING = FedAvg(**STEPS, weight_decay=0.1)
SUMS = {"channel": SecureAggregation(threshold=2)}

# A protocol for every row of the table, in its order; no earlier row refuses it.
EXAMPLES = [
    {"channel": "shuffler", "client": BUDGETS},
    {"channel": "shuffler", "aggregation": Mean(weights="records")},
    {"channel": "shuffler", "noise": CENTRAL},
    {"channel": "shuffler", "personalization": Identity()},
    {"channel": "shuffler", "local": NoisySgd(**STEPS), "noise": STEP_NOISE},
    {**SUMS, "aggregation": Median()},
    {**SUMS, "local": Scaffold(**STEPS)},
    {**SUMS, "personalization": Attention(own=0.5)},
    {**SUMS, "client": BUDGETS},
    {**SUMS, "noise": Staircase(step=1.0, width=1.0)},
    {**SUMS, "noise": CENTRAL},
    {**SUMS, "local": NoisySgd(**STEPS), "noise": STEP_NOISE},
    {**SUMS, "local": GLM},
    {**SUMS, "aggregation": Mean(weights="records")},
    {**SUMS, "noise": Gaussian(sigma=1.0, arithmetic="floats")},
    {"noise": Gaussian(sigma=1.0, where="server", arithmetic="integers")},
    {"noise": Gaussian(sigma=1.0, arithmetic="integers"), "personalization": Identity()},
    {"noise": Gaussian(sigma=1.0, arithmetic="integers"), "client": BUDGETS},
    {"local": NoisySgd(**STEPS), "noise": Gaussian(multiplier=1.0, arithmetic="integers")},
    {"noise": BOTH, "aggregation": Median()},
    {"noise": CENTRAL, "client": BUDGETS},
    {"aggregation": FIXED, "local": GLM},
    {"privacy": ADDED},
    {"noise": BOTH, **PULLED},
    {"noise": BOTH, "client": OWN_NOISE},
    {"aggregation": Mean(weights="noise"), "client": BUDGETS},
    {"local": GLM, **PULLED},
    {"local": Scaffold(**STEPS), "channel": "shuffler"},
    {"local": Scaffold(**STEPS), "noise": CENTRAL},
    {"local": Scaffold(**STEPS), **PULLED},
    {"local": BEZIER, "assumptions": SMOOTH, **PULLED},
    {"noise": STEP_NOISE},
    {"local": NoisySgd(**STEPS)},
    {"local": LOT},
    {**LOTS, "aggregation": Median()},
    {**LOTS, "aggregation": Mean(weights="records")},
    {**LOTS, "participation": Poisson(rate=0.5)},
    {**LOTS, "channel": "shuffler"},
    {**LOTS, **PULLED},
    {**LOTS, "client": BUDGETS},
    {"local": FOLLOWING, "noise": CENTRAL},
    {"local": FOLLOWING, "noise": Laplace(scale=1.0)},
    {"local": FOLLOWING, "aggregation": Median()},
    {"local": FOLLOWING, "aggregation": Mean(weights="records")},
    {"local": FOLLOWING, "client": OWN_NOISE},
    {"local": FOLLOWING, **PULLED},
    {"local": FOLLOWING, "personalization": Identity()},
    {"local": Scaffold(**FOLLOWED)},
    {"local": Bezier(**FOLLOWED), "assumptions": SMOOTH},
    {"personalization": Identity(), "local": Scaffold(**STEPS)},
    {"personalization": Identity(), "noise": Laplace(scale=1.0)},
    {"personalization": Identity(), "noise": CENTRAL},
    {"personalization": Identity(), "local": FedAvg(**STEPS, clip_target="update")},
    {"personalization": Identity(), "aggregation": FIXED},
    {"personalization": Identity(), **PULLED},
    {"personalization": Identity(), "client": OWN_NOISE},
    {**SUMS, "local": DECAYING},
    {"aggregation": FIXED, "local": DECAYING},
    {"local": FedProx(**STEPS, proximal=1.0, anchor="start"), **PULLED},
    {"personalization": Identity(), "local": DECAYING},
    {"local": Scaffold(**STEPS, weight_decay=0.1)},
    {"local": replace(BEZIER, weight_decay=0.1), "assumptions": SMOOTH},
]


@pytest.mark.parametrize("number", range(len(INCOMPATIBLE)))
def test_every_row_of_the_table_refuses_by_its_key_and_reason(number) -> None:
    row = INCOMPATIBLE[number]
    with pytest.raises(InvalidValue) as refused:
        plain(**EXAMPLES[number])
    assert refused.value.key == row.key
    assert row.reason in str(refused.value)
    assert row.instead in str(refused.value)


def test_every_row_of_the_table_has_an_example() -> None:
    assert len(EXAMPLES) == len(INCOMPATIBLE)
    assert len({row.pair for row in INCOMPATIBLE}) == len(INCOMPATIBLE)


def test_the_documentation_prints_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "mechanisms.md"
    assert incompatible_table() in page.read_text(encoding="utf-8")

"""Random valid protocols."""

from hypothesis import strategies as st

from sordino.protocol import (
    AdaptiveClip,
    Assumptions,
    Attention,
    Bezier,
    ByColumn,
    Constant,
    Continuous,
    Custom,
    Cyclic,
    Data,
    Decay,
    Dirichlet,
    DpSgd,
    Everyone,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    Identity,
    Iid,
    Interpolate,
    Laplace,
    Mean,
    Median,
    ModeConnectivity,
    Model,
    NoisySgd,
    NoPersonalization,
    PlainServer,
    Poisson,
    Privacy,
    Protocol,
    Scaffold,
    ServerAdaGrad,
    ServerAdam,
    ServerMomentum,
    ServerYogi,
    Shards,
    StageWise,
    Staircase,
)

positive = st.floats(min_value=1e-60, max_value=1e60, allow_nan=False)


def amounts(most: float) -> st.SearchStrategy[float]:
    """Nothing, or a number that is large enough to be taken."""
    return st.just(0.0) | st.floats(1e-60, most)


fractions = st.floats(min_value=1e-9, max_value=1.0, exclude_min=True)
sizes = st.integers(min_value=1, max_value=2**40)
names = st.text(st.characters(exclude_categories=["C"]), min_size=1).filter(
    lambda text: text.strip() != ""
)

schedules = st.one_of(
    [st.builds(kind, rate=positive) for kind in (Constant, Cyclic, StageWise, Continuous)]
    + [st.builds(StageWise, rate=positive, power=st.floats(0.6, 1))]
    + [st.builds(Decay, rate=positive, factor=fractions, every=sizes | st.just("round"))]
)
batches = st.integers(min_value=1, max_value=64)
local_rules = st.one_of(
    st.builds(FedAvg, steps=sizes, batch=batches, clip=positive, schedule=schedules),
    st.builds(
        Scaffold,
        steps=sizes,
        batch=batches,
        clip=positive,
        schedule=schedules,
        clip_norm=st.sampled_from(["l1", "l2"]),
        clip_target=st.sampled_from(["step", "update"]),
    ),
    st.builds(
        Bezier,
        steps=sizes,
        batch=batches,
        clip=positive,
        schedule=st.builds(Constant, rate=positive),
    ),
    st.builds(
        FedProx,
        steps=sizes,
        batch=batches,
        clip=positive,
        schedule=schedules,
        proximal=amounts(1e6),
    ),
)
curves = st.sampled_from(["chain", "bezier"])
aggregations = st.one_of(
    st.builds(Median),
    st.builds(
        ModeConnectivity, public=names, curve=curves, steps=st.integers(0, 99), rate=positive
    ),
    st.builds(Mean, mixing=fractions, denominator=st.sampled_from(["participants", "fixed"])),
    st.builds(Mean, mixing=fractions, weights=st.sampled_from(["equal", "records"])),
)
noisy_rules = st.builds(
    NoisySgd,
    steps=sizes,
    batch=batches,
    clip=positive,
    schedule=schedules,
    sampling=st.sampled_from(["fixed", "poisson"]),
    optimizer=st.sampled_from(["sgd", "momentum", "adam", "adagrad"]),
    clip_norm=st.sampled_from(["l2", "l1"]),
    weight_decay=amounts(1e6),
)
lot_rules = st.builds(
    DpSgd,
    batch=st.integers(1, 64),
    clip=positive,
    schedule=schedules,
    sampling=st.sampled_from(["fixed", "poisson"]),
    adaptive=st.none() | st.builds(AdaptiveClip, quantile=st.floats(0.01, 0.99), rate=positive),
)
pulls = st.none() | positive
personalizations = st.one_of(
    st.builds(NoPersonalization),
    st.builds(Identity, pull=pulls),
    st.builds(Interpolate, alpha=fractions, pull=pulls),
    st.builds(Attention, own=amounts(1), sharpness=amounts(1e6), pull=pulls),
)
partitions = st.one_of(
    st.builds(Iid),
    st.builds(Dirichlet, beta=positive),
    st.builds(Shards, per_client=sizes),
    st.builds(ByColumn, column=names),
)


noises = st.one_of(
    st.builds(Gaussian, sigma=amounts(1e9), secure=st.booleans()),
    st.builds(Laplace, scale=amounts(1e9), secure=st.booleans()),
    st.builds(Staircase, step=st.floats(1e-9, 700), width=positive, nu=st.none() | amounts(1)),
    st.builds(Custom, factory=st.sampled_from(["a:b", "mine.noise:logistic"]), scale=positive),
)
multipliers = st.builds(Gaussian, multiplier=amounts(1e9), secure=st.booleans())


servers = st.one_of(
    st.builds(PlainServer),
    st.builds(ServerMomentum, rate=positive, momentum=amounts(0.99)),
    st.builds(ServerAdam, rate=positive, beta2=amounts(0.99)),
    st.builds(ServerAdaGrad, rate=positive, tau=positive),
    st.builds(ServerYogi, rate=positive),
)


@st.composite
def protocols(draw: st.DrawFn) -> Protocol:
    clients = draw(sizes)
    participation = st.one_of(
        st.builds(Everyone),
        st.builds(Poisson, rate=fractions),
        st.builds(FixedSize, size=st.integers(1, clients)),
    )
    partition = draw(partitions)
    records = draw(st.none() | st.integers(64, 10**6))
    local = draw(local_rules | noisy_rules | lot_rules)
    noisy = isinstance(local, NoisySgd | DpSgd)
    noise = draw(multipliers if noisy else noises)
    aggregation = draw(aggregations)
    if isinstance(local, DpSgd):
        # Its sum is divided by a public number, whoever takes part.
        aggregation = Mean(denominator="fixed")
    fixed = isinstance(aggregation, Mean) and aggregation.denominator == "fixed"
    personal = isinstance(noise, Gaussian) and type(local) in (FedAvg, NoisySgd) and not fixed
    assumed = (
        Assumptions(smoothness=1 / local.schedule.rate)
        if isinstance(local, Bezier)
        else Assumptions()
    )
    adjacencies = ["replace-one", None] + (
        ["add-or-remove"] if noisy and local.sampling == "poisson" else []
    )
    return Protocol(
        seed=draw(st.none() | st.integers(0, 2**63 - 1)),
        clients=clients,
        rounds=draw(sizes),
        participation=draw(participation),
        aggregation=aggregation,
        server=draw(servers),
        personalization=draw(personalizations) if personal else NoPersonalization(),
        local=local,
        noise=noise,
        privacy=draw(st.builds(Privacy, adjacency=st.sampled_from(adjacencies))),
        assumptions=assumed,
        data=draw(
            st.none()
            | st.builds(Data, name=names, partition=st.just(partition), records=st.just(records))
        ),
        model=draw(st.none() | st.builds(Model, name=names, parameters=st.none() | sizes)),
    )

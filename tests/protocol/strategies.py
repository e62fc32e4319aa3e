"""Random valid protocols."""

from hypothesis import strategies as st

from sordino.protocol import (
    Attention,
    ByColumn,
    Constant,
    Continuous,
    Cyclic,
    Data,
    Decay,
    Dirichlet,
    Everyone,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    Identity,
    Iid,
    Interpolate,
    Mean,
    Median,
    Model,
    Nobody,
    NoisySgd,
    Poisson,
    Privacy,
    Protocol,
    Shards,
    StageWise,
)

positive = st.floats(min_value=1e-300, max_value=1e300, allow_nan=False)
fractions = st.floats(min_value=1e-9, max_value=1.0, exclude_min=True)
sizes = st.integers(min_value=1, max_value=2**40)
names = st.text(st.characters(exclude_categories=["C"]), min_size=1).filter(lambda text: text.strip() != "")

schedules = st.one_of(
    [st.builds(kind, rate=positive) for kind in (Constant, Cyclic, StageWise, Continuous)]
    + [st.builds(Decay, rate=positive, factor=fractions, every=sizes)]
)
batches = st.integers(min_value=1, max_value=64)
local_rules = st.one_of(
    st.builds(FedAvg, steps=sizes, batch=batches, clip=positive, schedule=schedules),
    st.builds(FedProx, steps=sizes, batch=batches, clip=positive, schedule=schedules, proximal=st.floats(0, 1e6)),
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
    weight_decay=st.floats(0, 1e6),
)
pulls = st.none() | positive
personalizations = st.one_of(
    st.builds(Nobody),
    st.builds(Identity, pull=pulls),
    st.builds(Interpolate, alpha=fractions, pull=pulls),
    st.builds(Attention, own=st.floats(0, 1), sharpness=st.floats(0, 1e6), pull=pulls),
)
aggregations = st.one_of(st.builds(Median), st.builds(Mean, mixing=fractions, weights=st.sampled_from(["equal", "records"])))
partitions = st.one_of(
    st.builds(Iid), st.builds(Dirichlet, beta=positive), st.builds(Shards, per_client=sizes), st.builds(ByColumn, column=names)
)


@st.composite
def protocols(draw: st.DrawFn) -> Protocol:
    clients = draw(sizes)
    participation = st.one_of(st.builds(Everyone), st.builds(Poisson, rate=fractions), st.builds(FixedSize, size=st.integers(1, clients)))
    partition = draw(partitions)
    records = None if isinstance(partition, ByColumn) else draw(st.none() | st.integers(64, 10**6))
    local = draw(local_rules | noisy_rules)
    noisy = isinstance(local, NoisySgd)
    amount = {"multiplier" if noisy else "sigma": st.floats(0, 1e9)}
    adjacencies = ["replace-one", None] + (["add-or-remove"] if noisy and local.sampling == "poisson" else [])
    return Protocol(
        seed=draw(st.none() | st.integers(0, 2**63 - 1)),
        clients=clients,
        rounds=draw(sizes),
        participation=draw(participation),
        aggregation=draw(aggregations),
        personalization=Nobody() if isinstance(local, FedProx) else draw(personalizations),
        local=local,
        noise=draw(st.builds(Gaussian, secure=st.booleans(), **amount)),
        privacy=draw(st.builds(Privacy, adjacency=st.sampled_from(adjacencies))),
        data=draw(st.none() | st.builds(Data, name=names, partition=st.just(partition), records=st.just(records))),
        model=draw(st.none() | st.builds(Model, name=names, parameters=st.none() | sizes)),
    )

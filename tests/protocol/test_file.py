"""File -> value -> file is the identity; every mistake gets one message that names the key."""

import json
import tomllib
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.protocol import (
    Gaussian,
    InvalidValue,
    Protocol,
    SordinoError,
    UserError,
    build_schema,
    dumps,
    loads,
    override_keys,
    read_protocol,
)
from sordino.protocol.file import decode_protocol
from tests.protocol.strategies import protocols

MINIMAL = """
[federation]
clients = 50
rounds = 600

[local]
rule = "fedavg"
steps = 5
batch = 32
clip = 10
schedule = { kind = "stage-wise", rate = 0.1 }

[noise]
mechanism = "gaussian"
sigma = 0.1
"""


@given(protocols())
def test_value_to_file_to_value_is_the_identity(protocol: Protocol) -> None:
    text = dumps(protocol)
    assert loads(text) == protocol
    assert dumps(loads(text)) == text


@pytest.mark.slow
@given(protocols())
@settings(max_examples=50)
def test_every_written_file_satisfies_the_json_schema(protocol: Protocol) -> None:
    jsonschema.validate(tomllib.loads(dumps(protocol)), build_schema())


@pytest.mark.slow
def test_the_schema_is_itself_valid_and_refuses_what_the_reader_refuses() -> None:
    jsonschema.Draft202012Validator.check_schema(build_schema())
    document = tomllib.loads(MINIMAL)
    jsonschema.validate(document, build_schema())
    for path, value in [
        ("noise.sigma", -1),
        ("local.clip", "ten"),
        ("federation.clients", 0),
        ("local.rule", "fedsgd"),
        ("local.extra", 1),
    ]:
        table, key = path.split(".")
        wrong = {**document, table: {**document[table], key: value}}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, build_schema())
        with pytest.raises(UserError, match=path.replace(".", r"\.")):
            decode_protocol(wrong)


def test_defaults_are_spelled_out_in_what_is_written() -> None:
    text = dumps(loads(MINIMAL))
    for line in (
        'participation = "everyone"',
        'aggregation = "mean"',
        "secure = false",
        'channel = "direct"',
    ):
        assert line in text


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("noise.sigma=-1", ["noise.sigma", "-1", "at least 0"]),
        ("noise.sigma=nan", ["noise.sigma", "nan", "finite"]),
        ("noise.sigma=inf", ["noise.sigma", "inf", "finite"]),
        ("noise.sigma=true", ["noise.sigma", "True"]),
        ("local.clip=0", ["local.clip", "above 0"]),
        ("local.clip='big'", ["local.clip", "big"]),
        ("local.clpi=3", ["local.clpi", 'Did you mean "clip"']),
        ("noize.sigma=3", ["noize", 'Did you mean "noise"']),
        ("local.rule=fedporx", ["local.rule", "fedporx", 'Did you mean "fedprox"']),
        ("local.schedule.kind=stagewise", ["local.schedule.kind", "stage-wise"]),
        ("federation.clients=2.5", ["federation.clients", "2.5", "whole number"]),
        ("federation.clients=0", ["federation.clients", "at least 1"]),
        (
            "federation.participation={fixed=51}",
            ["federation.participation.fixed", "51", "federation.clients = 50"],
        ),
        (
            "federation.participation={poisson=1.5}",
            ["federation.participation.poisson", "1.5", "at most 1"],
        ),
        ("federation.participation={poisson=0}", ["federation.participation.poisson", "above 0"]),
        (
            "federation.participation=some",
            ["federation.participation", "some", "everyone", "poisson", "fixed"],
        ),
        (
            "federation.aggregation={mean={mixing=0}}",
            ["federation.aggregation.mean.mixing", "above 0"],
        ),
        ("federation.channel=pigeons", ["federation.channel", "shuffler", "direct"]),
        ("seed=-3", ["seed", "-3"]),
        ("seed=99999999999999999999", ["seed"]),
        ("data={name='digits',records=16}", ["local.batch", "32", "data.records = 16"]),
        ("data={partition='iid'}", ["data.name", "missing"]),
        ("model={name=''}", ["model.name"]),
        ("local=5", ["local", "5", "table"]),
        ("federation.rounds=1e3", ["federation.rounds", "1000.0"]),
    ],
)
def test_a_mistake_is_named_with_key_value_and_what_is_allowed(
    override: str, words: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        override_keys(loads(MINIMAL), [override])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "missing",
    [
        "federation.clients",
        "federation.rounds",
        "local.clip",
        "local.schedule",
        "noise.sigma",
        "local.rule",
    ],
)
def test_a_missing_key_is_named_with_its_meaning(missing: str) -> None:
    document = tomllib.loads(MINIMAL)
    table, key = missing.split(".")
    del document[table][key]
    with pytest.raises(UserError, match=missing.replace(".", r"\.") + " is missing"):
        decode_protocol(document)


def test_overrides_are_toml_or_else_strings() -> None:
    protocol = override_keys(
        loads(MINIMAL),
        ["data.name=mnist", "data.partition.dirichlet=0.1", "federation.participation.poisson=0.5"],
    )
    assert protocol.data is not None
    assert protocol.data.name == "mnist"
    assert "partition = { dirichlet = 0.1 }" in dumps(protocol)
    assert "participation = { poisson = 0.5 }" in dumps(protocol)


@pytest.mark.parametrize("override", ["noise.sigma", "=3", ".sigma=3", "noise..sigma=3"])
def test_an_override_without_key_or_value_is_refused(override: str) -> None:
    with pytest.raises(UserError, match="KEY=VALUE"):
        override_keys(loads(MINIMAL), [override])


def test_an_override_cannot_smuggle_in_a_second_key() -> None:
    with pytest.raises(UserError):
        override_keys(loads(MINIMAL), ["noise.sigma=1\nseed = 3"])


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path) -> None:
    with pytest.raises(UserError, match="sordino new"):
        read_protocol(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"binary\.toml"):
        read_protocol(tmp_path / "binary.toml")
    with pytest.raises(UserError):
        read_protocol(tmp_path)


def test_values_are_frozen_and_whole_numbers_become_real_where_real_ones_are_meant() -> None:
    protocol = loads(MINIMAL)
    assert isinstance(protocol.local.clip, float)
    with pytest.raises(AttributeError):
        protocol.local.clip = 3.0  # type: ignore[misc]
    with pytest.raises(UserError):
        replace(protocol, rounds=0)


@given(st.text(max_size=400))
def test_no_text_makes_the_reader_fail_otherwise_than_by_a_user_error(text: str) -> None:
    try:
        loads(text)
    except UserError:
        return


toml_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10)
toml_values = st.recursive(
    toml_scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = [
    "seed",
    "federation",
    "local",
    "noise",
    "data",
    "model",
    "clients",
    "participation",
    "poisson",
    "schedule",
    "kind",
    "mean",
    "x",
]


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(KEYS),
        toml_values | st.dictionaries(st.sampled_from(KEYS), toml_values, max_size=4),
        max_size=5,
    )
)
@settings(max_examples=300)
def test_no_document_makes_the_decoder_fail_otherwise_than_by_a_user_error(noise: dict) -> None:
    document = tomllib.loads(MINIMAL)
    for key, value in noise.items():
        document[key] = (
            {**document.get(key, {}), **value}
            if isinstance(value, dict) and isinstance(document.get(key), dict)
            else value
        )
    try:
        protocol = decode_protocol(document)
    except SordinoError:
        return
    assert loads(dumps(protocol)) == protocol


def test_deep_nesting_and_endless_numbers_are_refused_not_crashed_on() -> None:
    for text in (
        "a = " + "[" * 5000 + "]" * 5000,
        "seed = " + "9" * 5000,
        MINIMAL.replace("clip = 10", "clip = " + "9" * 400),
    ):
        with pytest.raises(UserError):
            loads(text)


def test_the_schema_for_editors_in_the_docs_is_current() -> None:
    from pathlib import Path

    kept = Path(__file__).parents[2] / "docs" / "sordino.schema.json"
    assert json.loads(kept.read_text()) == json.loads(json.dumps(build_schema())), (
        "rewrite it: sordino check --schema > docs/sordino.schema.json"
    )


@pytest.mark.parametrize("value", [1e61, 1e-61, 5e-324, 1.7e308])
def test_numbers_whose_squares_leave_float64_are_refused(value) -> None:
    with pytest.raises(InvalidValue, match="of a size from 1e-60 to 1e"):
        Gaussian(sigma=value)
    assert Gaussian(sigma=0.0).sigma == 0.0

"""Addresses of machines: names, IPv4 and IPv6, with the one way in which each is written."""

from urllib.parse import urlsplit

import pytest

from sordino import UserError
from sordino.engines.choice import SuperLink
from sordino.protocol.addresses import Address, Host, join_address, split_address


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("fl.example.org", "fl.example.org"),
        ("coordinator_1", "coordinator_1"),
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:DB8:0:0::1]", "2001:db8::1"),
        ("::1", "::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
    ],
)
def test_a_host_is_a_name_or_an_address_in_its_shortest_form(given, meant) -> None:
    assert Host().accept_value("host", given) == meant


@pytest.mark.parametrize(
    "given",
    [
        "", "fl.example.org:8000", "https://fl.example.org", "fl.example.org/", "a b", "a,b",
        "[fl.example.org]", "[192.0.2.1]", "[::1]:8000", "[::1", "0.0.0.0", "::", "fe80::1",
        "fe80::1%eth0", "2001:db8::1%eth0", "krankenhaus-süd.example", "a\nb", 5, None,
    ],
)  # fmt: skip
def test_what_others_cannot_reach_a_machine_by_is_no_host(given) -> None:
    with pytest.raises(UserError, match="host = "):
        Host().accept_value("host", given)


@pytest.mark.parametrize(
    "given",
    ["127.0.0.1:8000", "fl.example.org:1", "[2001:db8::1]:65535", "[::1]:8000", "localhost:443"],
)
def test_an_address_means_what_a_url_means_by_it(given) -> None:
    assert Address().accept_value("superlink", given) == given
    assert SuperLink(address=given, certificate=None).address == given
    found = urlsplit(f"https://{given}")
    assert split_address(given) == (found.hostname, found.port)
    assert join_address(*split_address(given)) == given


@pytest.mark.parametrize(
    "given",
    [
        "::1:8000", "2001:db8::1", "[::1]", "fl.example.org", ":8000", "127.0.0.1:", "127.0.0.1:0",
        "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:8e3", "127.0.0.1:²", "https://127.0.0.1:8000",
        "[fe80::1%eth0]:8000", "0.0.0.0:8000", "[::]:8000", "a:b:8000",
    ],
)  # fmt: skip
def test_an_address_that_can_be_read_in_two_ways_is_refused_with_the_way_to_write_it(given) -> None:
    with pytest.raises(UserError, match=r"\[2001:db8::1\]:8000"):
        Address().accept_value("superlink", given)
    with pytest.raises(UserError, match="superlink = "):
        SuperLink(address=given, certificate=None)

"""Graphs of neighbours: how likely a bad one is, sums over them, and a server that would cut clients off."""

from __future__ import annotations

import random
from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations
from math import comb, exp, log, prod, sqrt

import numpy as np
import pytest
from Crypto.Protocol.SecretSharing import Shamir

from sordino.secure_sums import key_roster
from sordino.secure_sums.key_roster import Roster, SecureSumRefused
from sordino.secure_sums.opening import TooFewContributions
from sordino.secure_sums.share_holders import (
    Graph,
    Neighbourhood,
    bound_exposure,
    bound_loss,
    choose_neighbourhood,
    pick_holders,
)
from sordino.secure_sums.share_joining import combine_shares, invert, multiply
from tests.secure_sums.test_secure_sums import Federation, ec, roster_of, signed

CLIENTS = 14
# Far below what keeps the promise of 2^-40, so that cut-off clients can be found.
SMALL = Neighbourhood(others=4, needed=3)
MANY = {client: ec.generate_private_key(ec.SECP384R1()) for client in range(CLIENTS)}


@pytest.fixture
def federation(monkeypatch) -> Federation:
    monkeypatch.setattr(key_roster, "choose_neighbourhood", lambda *_: SMALL)
    return Federation(roster_of(CLIENTS, 9, identities=MANY), identities=MANY)


def expect_closed_sets(clients: int, colluders: int, others: int, needed: int) -> Fraction:
    """Counts by going through all sets of honest clients, and all that each of them could pick."""
    honest = range(clients - colluders)
    helpers = set(range(clients - colluders, clients))
    total = Fraction(0)
    for size in range(1, len(honest) // 2 + 1):
        for chosen in combinations(honest, size):
            inside = set(chosen) | helpers
            each = []
            for member in chosen:
                picks = list(combinations([one for one in range(clients) if one != member], others))
                enough = [pick for pick in picks if len(inside & {member, *pick}) >= needed]
                each.append(Fraction(len(enough), len(picks)))
            total += prod(each)
    return total


@pytest.mark.parametrize(
    ("clients", "colluders", "others", "needed"),
    [(6, 1, 2, 2), (7, 2, 3, 3), (8, 0, 3, 2), (8, 1, 4, 4), (9, 2, 4, 4)],
)
def test_the_bound_is_the_expected_number_of_closed_sets(
    clients, colluders, others, needed
) -> None:
    expected = expect_closed_sets(clients, colluders, others, needed)
    assert exp(bound_exposure(clients, colluders, others, needed)) == pytest.approx(float(expected))


def exposure_in_integers(clients: int, colluders: int, others: int, needed: int) -> Fraction:
    honest = clients - colluders
    ways = comb(clients - 1, others)
    total = Fraction(0)
    for size in range(1, honest // 2 + 1):
        marked = size - 1 + colluders
        tail = sum(
            comb(marked, drawn) * comb(clients - 1 - marked, others - drawn)
            for drawn in range(needed - 1, others + 1)
        )
        total += comb(honest, size) * Fraction(tail, ways) ** size
    return total


def loss_in_integers(clients: int, threshold: int, others: int, needed: int) -> Fraction:
    """The number of clients, times how likely a survivor's picks have fewer survivors than needed."""
    fewer = sum(
        comb(threshold - 1, drawn) * comb(clients - threshold, others - drawn)
        for drawn in range(needed)
    )
    return clients * Fraction(fewer, comb(clients - 1, others))


@pytest.mark.parametrize(("clients", "threshold", "colluders"), [(120, 108, 5), (200, 160, 10)])
def test_numbers_of_neighbours_are_the_smallest_that_keep_both_bounds(
    clients, threshold, colluders
) -> None:
    found = choose_neighbourhood(clients, threshold, colluders)
    assert found.others < clients - 1
    case = (clients, colluders, found.others, found.needed)
    exposure = exposure_in_integers(*case)
    assert exposure <= Fraction(1, 2**40)
    assert bound_exposure(*case) == pytest.approx(
        log(exposure.numerator) - log(exposure.denominator)
    )
    loss = loss_in_integers(clients, threshold, found.others, found.needed)
    assert loss <= Fraction(1, 2**20)
    if loss:
        own = bound_loss(clients, threshold, found.others, found.needed)
        assert own == pytest.approx(log(loss.numerator) - log(loss.denominator))
    fewer = found.others - 1
    for needed in range(2, fewer + 1):
        fits = loss_in_integers(clients, threshold, fewer, needed) <= Fraction(1, 2**20)
        safe = bound_exposure(clients, colluders, fewer, needed) <= -40 * log(2)
        assert not (fits and safe)


def test_up_to_a_hundred_clients_and_where_no_graph_is_safe_all_are_neighbours() -> None:
    assert choose_neighbourhood(100, 90, 5) == Neighbourhood(others=99, needed=90)
    # Nearly half may be left out: as many holders as there are clients would be needed.
    assert choose_neighbourhood(101, 52, 1) == Neighbourhood(others=100, needed=52)


def test_every_client_is_picked_equally_often_and_a_key_always_picks_the_same() -> None:
    rng = random.Random(1)
    clients, others, draws = 20, 6, 4000
    counts = np.zeros(clients)
    for _ in range(draws):
        held = pick_holders(7, rng.randbytes(32), clients, others, b"roster")
        assert len(set(held)) == others + 1
        counts[list(held)] += 1
    assert counts[7] == draws
    rate = others / (clients - 1)
    deviations = (np.delete(counts, 7) / draws - rate) / sqrt(rate * (1 - rate) / draws)
    assert np.abs(deviations).max() < 5
    assert 0.3 < deviations.std() < 2
    key = rng.randbytes(32)
    assert pick_holders(7, key, 20, 6, b"a") == pick_holders(7, key, 20, 6, b"a")
    assert pick_holders(7, key, 20, 6, b"a") != pick_holders(7, key, 20, 6, b"b")


def open_for(federation: Federation, participants: list[int], survivors: list[int]) -> np.ndarray:
    asked = federation.request(participants)
    masked = federation.mask_all(asked)
    named = signed(masked, survivors)
    confirmations = {
        client: federation.members[client].confirm(masked[client][0], named) for client in survivors
    }
    answers = [
        federation.members[client].unmask(masked[client][0], named, confirmations)
        for client in survivors
    ]
    for one in answers:
        # Shares of those alone that it holds for.
        held = {
            client
            for client in participants
            if federation.members[0].graph.holds(one.client, client)
        }
        assert set(one.survivors) | set(one.absent) == held
    return federation.open(asked, [masked[client][1] for client in survivors], answers)


def test_sums_over_a_graph_are_exact_whoever_falls_silent(federation) -> None:
    assert federation.roster.needs_confirmation
    graph = federation.members[0].graph
    assert len(federation.sent[0].letters) == len(graph.find_neighbours(0)) < CLIENTS - 1
    rng = random.Random(2)
    for participants in (12, CLIENTS):
        named = find_group(graph, rng, range(CLIENTS), participants)
        survivors = find_group(graph, rng, named, participants - 2)
        found = open_for(federation, named, survivors)
        np.testing.assert_array_equal(found, federation.true_sum(survivors))


def find_group(graph: Graph, rng: random.Random, clients: Iterable[int], size: int) -> list[int]:
    """Some of the clients, among whom each of all clients has as many holders as open its seeds."""
    for _ in range(1000):
        group = sorted(rng.sample(list(clients), size))
        if all(len(set(group) & set(held)) >= graph.needed for held in graph.holders.values()):
            return group
    raise AssertionError("no such group")


def test_too_few_shares_of_one_client_open_nothing(federation) -> None:
    """A round is lost if those that hold an absent client's shares are absent as well."""
    graph = federation.members[0].graph
    everyone = range(CLIENTS)
    masked = federation.mask_all(federation.request(list(everyone)))
    named = signed(masked, everyone)
    confirmed = {one: federation.members[one].confirm(masked[one][0], named) for one in everyone}
    silent = set(sorted(graph.holders[0])[:3])
    answers = [
        federation.members[one].unmask(masked[one][0], named, confirmed)
        for one in everyone
        if one not in silent
    ]
    with pytest.raises(TooFewContributions, match="that hold shares of client"):
        federation.open(
            federation.request(list(everyone)), [one for _, one in masked.values()], answers
        )


def find_cut_off(graph: Graph) -> tuple[int, list[int]]:
    """A client, with everyone but those that hold its shares beside itself."""
    victim = 3
    others = set(graph.holders[victim]) - {victim}
    return victim, [client for client in range(CLIENTS) if client not in others]


def test_a_server_that_cuts_a_client_off_from_its_holders_is_refused(federation) -> None:
    """Else the part of the sum on the other side could be opened alone."""
    victim, alive = find_cut_off(federation.members[0].graph)
    assert len(alive) >= federation.roster.threshold
    # Holders are drawn by fresh keys: others may be cut off as well, and one of them is named.
    words = r"too few of those that hold shares of client \d"
    masked = federation.mask_all(federation.request(list(range(CLIENTS))))
    helper = next(client for client in alive if client != victim)
    member = federation.members[helper]
    with pytest.raises(SecureSumRefused, match=words):
        member.confirm(masked[helper][0], signed(masked, alive))
    letters = {}
    with pytest.raises(SecureSumRefused, match=words):
        member.mask(
            federation.vectors[helper],
            federation.prepared[helper],
            federation.request(alive),
            letters,
        )


def test_a_list_is_confirmed_before_shares_are_given_however_few_may_be_missing(federation) -> None:
    masked = federation.mask_all(federation.request(list(range(CLIENTS))))
    named = signed(masked, range(CLIENTS))
    with pytest.raises(SecureSumRefused, match="0 survivors have confirmed"):
        federation.members[0].unmask(masked[0][0], named, {})
    prints = tuple("ab" for _ in range(120))
    assert Roster(training="one", fingerprints=prints, threshold=119).needs_confirmation


def test_dropping_those_without_holders_goes_on_until_nobody_is_left_without() -> None:
    chain = Graph({0: (0, 1), 1: (1, 2), 2: (2, 3), 3: (0, 3), 4: (4, 5), 5: (4, 5)}, needed=2)
    assert chain.drop_thin(range(6)) == [0, 1, 2, 3, 4, 5]
    # 3 holds for 2, 2 for 1 and 1 for 0.
    assert chain.drop_thin([0, 1, 2, 4, 5]) == [4, 5]


def test_joining_shares_gives_what_the_library_gives() -> None:
    rng = random.Random(3)
    for _ in range(20):
        count = rng.randint(2, 30)
        needed = rng.randint(2, count)
        secret = rng.randbytes(16)
        shares = dict(Shamir.split(needed, count, secret))
        chosen = {place: shares[place] for place in rng.sample(sorted(shares), needed)}
        assert combine_shares(chosen) == secret == Shamir.combine(list(chosen.items()))
    for _ in range(20):
        element = rng.getrandbits(128) or 1
        assert multiply(invert(element), element) == 1

"""The ledger: append-only, chained, idempotent for noise that repeats, and never less than was spent."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.privacy import ledger
from sordino.privacy.ledger import Ledger, read_ledger, refuse_unpaid
from sordino.privacy.ledger_lines import Opened, RoundCharged, encode_line
from sordino.protocol import UserError

SEEDED = Opened(protocol="9f2c", generator="chacha20", noise="seeded")
FRESH = Opened(protocol="9f2c", generator="chacha20", noise="fresh")


def written(path, opened=SEEDED, rounds=4):
    with Ledger.create(path, opened) as ledger:
        for t in range(rounds):
            ledger.charge(round=t, clients=[t, t + 1])
    return path


def test_what_was_written_is_read_and_reading_changes_nothing(tmp_path) -> None:
    path = written(tmp_path / "ledger.jsonl")
    before = path.read_bytes()
    events = read_ledger(path).events
    assert events[0] == SEEDED
    assert [e.clients for e in events[1:]] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert path.read_bytes() == before
    assert all(json.loads(line)["v"] == 1 for line in before.splitlines())


def test_a_repeatable_round_is_paid_for_once_and_a_fresh_one_every_time(tmp_path) -> None:
    for opened, expected in ((SEEDED, [0, 0, 0, 0]), (FRESH, [0, 0, 0, 0, 1, 2])):
        path = written(tmp_path / opened.noise, opened)
        with Ledger.resume(path) as ledger:
            ledger.charge(round=3, clients=[3, 4])
            ledger.charge(round=3, clients=[3, 4])
        assert [
            e.attempt for e in read_ledger(path).events if isinstance(e, RoundCharged)
        ] == expected


def test_going_back_several_rounds_counts_each_of_them_again(tmp_path) -> None:
    path = written(tmp_path / "a", FRESH, rounds=5)
    with Ledger.resume(path) as ledger:
        for t in (3, 4, 5):
            ledger.charge(round=t, clients=[t, t + 1])
    assert [(e.round, e.attempt) for e in read_ledger(path).events[4:]] == [
        (3, 0),
        (4, 0),
        (3, 1),
        (4, 1),
        (5, 0),
    ]


def test_a_repeatable_round_with_other_clients_is_charged(tmp_path) -> None:
    path = written(tmp_path / "a")
    with Ledger.resume(path) as ledger:
        ledger.charge(round=3, clients=[7])
    assert read_ledger(path).events[-1] == RoundCharged(round=3, clients=(7,), attempt=1)


@given(st.integers(0, 4), st.data())
@settings(max_examples=80, deadline=None)
def test_any_changed_byte_is_noticed(tmp_path_factory, line, data) -> None:
    path = written(tmp_path_factory.mktemp("ledgers") / "a")
    lines = path.read_bytes().splitlines(keepends=True)
    position = data.draw(st.integers(0, len(lines[line]) - 2))
    changed = bytearray(lines[line])
    changed[position] ^= 1 << data.draw(st.integers(0, 6))
    if changed[position] == ord("\n"):
        return
    path.write_bytes(b"".join([*lines[:line], bytes(changed), *lines[line + 1 :]]))
    with pytest.raises(UserError):
        read_ledger(path)


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: lines[:2] + lines[3:],
        lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
        lambda lines: lines[1:],
    ],
)
def test_lines_that_are_missing_or_in_another_order_are_noticed(tmp_path, edit) -> None:
    path = written(tmp_path / "a")
    path.write_bytes(b"".join(edit(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(UserError):
        read_ledger(path)


def test_a_forged_line_does_not_fit_the_chain(tmp_path) -> None:
    path = written(tmp_path / "a")
    forged, _ = encode_line(RoundCharged(round=9, clients=()), "")
    path.write_bytes(path.read_bytes() + forged)
    with pytest.raises(UserError, match="line 6"):
        read_ledger(path)


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_line_cut_short_is_recognised_and_the_rest_is_kept(tmp_path, cut) -> None:
    path = written(tmp_path / "a")
    path.write_bytes(path.read_bytes()[:-cut])
    reading = read_ledger(path)
    assert reading.cut_short
    assert [e.round for e in reading.events[1:]] == [0, 1, 2]
    with Ledger.resume(path) as ledger:
        ledger.charge(round=3, clients=[3, 4])
    assert path.read_bytes() == written(tmp_path / "whole").read_bytes()


def test_an_empty_or_missing_ledger_is_refused(tmp_path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for name in ("empty", "missing"):
        with pytest.raises(UserError):
            read_ledger(tmp_path / name)


def test_no_charge_of_another_process_is_cut_off_or_written_over(tmp_path, monkeypatch) -> None:
    path = written(tmp_path / "ledger.jsonl", rounds=2)
    first = Ledger.resume(path)
    original = ledger.read_content

    def meanwhile(of):
        content = original(of)
        first.charge(round=2, clients=[0])
        return content

    monkeypatch.setattr(ledger, "read_content", meanwhile)
    with pytest.raises(UserError, match="another process"):
        Ledger.resume(path)
    monkeypatch.undo()
    second = Ledger.resume(path)
    first.charge(round=3, clients=[0])
    with pytest.raises(UserError, match="another process"):
        second.note_refusal(round=9, reason="too late")
    assert [event.round for event in read_ledger(path).events[1:]] == [0, 1, 2, 3]
    with pytest.raises(FileExistsError):
        Ledger.create(path, SEEDED)


def test_lines_that_are_missing_at_the_end_are_noticed_by_who_knows_how_many_rounds_were_run(
    tmp_path,
) -> None:
    path = written(tmp_path / "ledger.jsonl", rounds=4)
    refuse_unpaid(path, read_ledger(path).events, 4)
    path.write_bytes(b"\n".join(path.read_bytes().split(b"\n")[:4]) + b"\n")
    refuse_unpaid(path, read_ledger(path).events, 3)
    with pytest.raises(UserError, match="lacks round 3"):
        refuse_unpaid(path, read_ledger(path).events, 4)

"""A server that deviates from secure sums is refused by the client's guard, with a line in its ledger, and loses it nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.flower import (
    connected_clients,
    reply_collection,
    sum_answers,
    sum_ledger,
    sum_messages,
)
from sordino.flower.messages import SUMS, make_wave_record, read_request, request_message
from sordino.flower.sum_forms import LARGEST_NUMBER, decode_body, encode_body
from sordino.flower.sum_messages import WAVES, KeyReply, Label, MaskCall, sum_message
from sordino.privacy.ledger_lines import Answered, KeyGiven, SurvivorsConfirmed
from sordino.protocol import dumps, loads, override_keys
from sordino.secure_sums.key_roster import SIGNATURE, Roster, _make_key_statement, sign_key
from tests.flower.summing import SIZE, Summing, fingerprints, identity, summed_plan

VICTIM = 0


@pytest.fixture(autouse=True)
def in_no_hurry(monkeypatch) -> None:
    monkeypatch.setattr(reply_collection, "POLL", 0.0)
    monkeypatch.setattr(connected_clients, "POLL", 0.0)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def summing(tmp_path) -> Summing:
    return Summing(tmp_path, summed_plan(threshold=4))


def seen(summing: Summing, wave: str, client: int = VICTIM) -> Any:
    """The last call of a wave that a client was sent."""
    kind = {**WAVES, "mask": MaskCall}[wave]
    for asked, message in reversed(summing.grid.asked):
        if asked == client and SUMS in message.content:
            record = message.content[SUMS]
            if record["wave"] == wave:
                return decode_body(kind, record["body"])
    raise AssertionError(f"client {client} was never sent {wave}")


def refusal(summing: Summing, message: Any) -> str:
    """Sends, is refused, and finds the reason in the victim's ledger, which is not charged."""
    store = summing.store(VICTIM)
    before = len(store.refusals)
    paid = store.rounds_paid
    given = store.shares_given
    message.metadata.__dict__["_message_id"] = "question"
    reply = summing.grid.answer(VICTIM, message)
    assert reply.has_error(), "it answered"
    assert len(store.refusals) == before + 1
    assert store.rounds_paid == paid
    assert store.shares_given == given
    assert reply.error.reason == f"it refused: {store.refusals[-1].reason}"
    return store.refusals[-1].reason


def ask(call: Any) -> Any:
    return sum_message(call, node=1000 + VICTIM, ttl=60)


def ask_masked(summing: Summing, call: MaskCall | None, **changes: Any) -> Any:
    sums = b"" if call is None else encode_body(call)
    round_index = changes.pop("round", 0 if call is None else call.label.round)
    request = summing.request(VICTIM, round_index, sums, **changes)
    return request_message(request, node=1000 + VICTIM, ttl=60)


def own_signed_key(summing: Summing, client: int, *, training: str = "one", signer: int) -> Any:
    """A key for letters that the server has made, signed by one of the identities that it has."""
    roster = Roster(training=training, fingerprints=fingerprints(5), threshold=4)
    return sign_key(roster, client, X25519PrivateKey.generate(), identity(signer))


class TestKeys:
    """Before the first round."""

    @pytest.fixture(autouse=True)
    def begun(self, summing) -> None:
        # Nobody hears that keys are asked for, so that the client's answer is the first.
        summing.grid.lost = lambda client, wave: True
        summing.sum(0)
        summing.grid.lost = lambda client, wave: False

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ("federation.channel={secure-aggregation={threshold=3}}", "secure-aggregation"),
            (
                "federation.channel={secure-aggregation={threshold=4,colluders=1}}",
                "secure-aggregation",
            ),
            ("federation.channel={secure-aggregation={threshold=4,bits=32}}", "secure-aggregation"),
            ("federation.channel=direct", "federation.channel"),
            ("noise.digits=5", "noise.digits"),
        ],
        ids=["another threshold", "another coalition", "another modulus", "no masks", "a grid"],
    )
    def test_another_protocol(self, summing, change, words) -> None:
        call = seen(summing, "key")
        weaker = override_keys(loads(call.protocol), [change])
        assert words in refusal(summing, ask(replace(call, protocol=dumps(weaker))))


class TestRedrawnKeys:
    """Beyond 100 clients a client's fresh key picks who holds its shares: it is drawn once."""

    @pytest.fixture(autouse=True)
    def begun(self, summing) -> None:
        # The client has given its key; nobody has prepared, so that nothing is paid.
        summing.grid.lost = lambda client, wave: wave == "prepare"
        summing.sum(0)
        summing.grid.lost = lambda client, wave: False

    def key_of(self, summing: Summing, call: Any) -> bytes:
        reply = summing.grid.answer(VICTIM, numbered(ask(call)))
        return decode_body(KeyReply, reply.content[SUMS]["body"]).public

    def test_the_same_key_again_is_what_a_restarted_coordinator_gets(self, summing) -> None:
        call = seen(summing, "key")
        assert self.key_of(summing, call) == self.key_of(summing, call)
        given = [one for one in summing.store(VICTIM).events if isinstance(one, KeyGiven)]
        assert len(given) == 1

    def test_another_key_by_an_allowed_change_of_the_protocol(self, summing) -> None:
        call = seen(summing, "key")
        # Fewer rounds are welcome: the agreement is not what refuses.
        shorter = override_keys(loads(call.protocol), ["federation.rounds=100"])
        reason = refusal(summing, ask(replace(call, protocol=dumps(shorter))))
        assert "a key for letters was given in this training before" in reason

    def test_another_key_by_way_of_another_training(self, summing) -> None:
        call = seen(summing, "key")
        first = self.key_of(summing, call)
        assert self.key_of(summing, replace(call, training="two")) != first
        assert "was given in this training before" in refusal(summing, ask(call))

    def test_another_key_once_the_state_is_gone(self, summing) -> None:
        (summing.folder / f"client-{VICTIM}" / "secure_sums.json").unlink()
        reason = refusal(summing, ask(seen(summing, "key")))
        assert "was given in this training before, and is gone" in reason

    def test_keys_in_ever_more_trainings(self, summing, monkeypatch) -> None:
        monkeypatch.setattr(sum_ledger, "MOST_TRAININGS", 3)
        call = seen(summing, "key")
        for name in ("two", "three"):
            self.key_of(summing, replace(call, training=name))
        reason = refusal(summing, ask(replace(call, training="four")))
        assert "keys for letters were given in 3 trainings" in reason


class TestPreparation:
    """Once keys have been exchanged."""

    @pytest.fixture(autouse=True)
    def begun(self, summing) -> None:
        summing.grid.lost = lambda client, wave: wave == "prepare"
        summing.sum(0)
        summing.grid.lost = lambda client, wave: False

    def test_an_identity_of_the_servers_own(self, summing) -> None:
        call = seen(summing, "prepare")
        forged = own_signed_key(summing, 1, signer=7)
        changed = replace(call, keys={**call.keys, 1: forged})
        assert "shown for client 1 is not the one" in refusal(summing, ask(changed))

    def test_an_invented_client(self, summing) -> None:
        call = seen(summing, "prepare")
        invented = own_signed_key(summing, 5, signer=5)
        changed = replace(call, keys={**call.keys, 5: invented})
        assert "client 5 is not in the roster" in refusal(summing, ask(changed))

    def test_a_key_for_letters_of_the_servers_own(self, summing) -> None:
        call = seen(summing, "prepare")
        forged = replace(own_signed_key(summing, 1, signer=2), identity=call.keys[1].identity)
        changed = replace(call, keys={**call.keys, 1: forged})
        assert "key of client 1 is not signed" in refusal(summing, ask(changed))

    def test_a_key_whose_secrets_everybody_knows(self, summing) -> None:
        """A colluder signs a point of small order: its letters, and those to it, would be open."""
        call = seen(summing, "prepare")
        point = bytes(32)
        roster = Roster(training="one", fingerprints=fingerprints(5), threshold=4)
        signature = identity(4).sign(_make_key_statement(roster, 4, point), SIGNATURE)
        weak = replace(call.keys[4], public=point, signature=signature)
        reason = refusal(summing, ask(replace(call, keys={**call.keys, 4: weak})))
        assert "the key for letters of client 4 is one whose secrets everybody knows" in reason
        # It has met nobody, so the genuine keys are still welcome.
        assert summing.grid.answer(VICTIM, numbered(ask(call))).has_content()

    def test_a_key_without_a_signature(self, summing) -> None:
        call = seen(summing, "prepare")
        bare = replace(call.keys[3], signature=b"")
        assert "key of client 3" in refusal(
            summing, ask(replace(call, keys={**call.keys, 3: bare}))
        )

    def test_a_key_of_another_training(self, summing) -> None:
        call = seen(summing, "prepare")
        other = own_signed_key(summing, 2, training="two", signer=2)
        changed = replace(call, keys={**call.keys, 2: other})
        assert "key of client 2 is not signed" in refusal(summing, ask(changed))

    def test_another_key_for_the_client_itself(self, summing) -> None:
        call = seen(summing, "prepare")
        other = own_signed_key(summing, VICTIM, signer=VICTIM)
        changed = replace(call, keys={**call.keys, VICTIM: other})
        assert "another key for this client" in refusal(summing, ask(changed))

    def test_fewer_keys_than_the_threshold(self, summing) -> None:
        call = seen(summing, "prepare")
        fewer = {client: call.keys[client] for client in range(3)}
        reason = refusal(summing, ask(replace(call, keys=fewer)))
        assert "keys of 3 clients were shown, fewer than the threshold" in reason

    def test_no_keys_at_all(self, summing) -> None:
        call = seen(summing, "prepare")
        assert "were not shown yet" in refusal(summing, ask(replace(call, keys={})))

    def test_another_training(self, summing) -> None:
        call = seen(summing, "prepare")
        assert "no key for letters" in refusal(summing, ask(replace(call, training="two")))


class TestMasking:
    """Once the clients have prepared for the first round."""

    @pytest.fixture(autouse=True)
    def begun(self, summing) -> None:
        summing.grid.lost = lambda client, wave: wave == "mask"
        summing.sum(0)
        summing.grid.lost = lambda client, wave: False

    def test_an_upload_without_masks(self, summing) -> None:
        assert "under masks" in refusal(summing, ask_masked(summing, None))

    @pytest.mark.parametrize(
        ("participants", "words"),
        [
            ((0, 1, 2), "fewer than the threshold"),
            ((1, 2, 3, 4), "client 0 is not among the participants"),
            ((0, 1, 2, 7), "cannot be there"),
            ((0, 1, 1, 2, 3), "twice"),
            ((), "not among"),
        ],
    )
    def test_participants_that_cannot_be(self, summing, participants, words) -> None:
        changed = replace(seen(summing, "mask"), participants=participants)
        assert words in refusal(summing, ask_masked(summing, changed))

    def test_a_changed_letter(self, summing) -> None:
        call = seen(summing, "mask")
        letter = bytes([call.letters[2][0] ^ 1]) + call.letters[2][1:]
        changed = replace(call, letters={**call.letters, 2: letter})
        assert "letter of client 2 was changed" in refusal(summing, ask_masked(summing, changed))

    def test_the_letter_of_another_client(self, summing) -> None:
        call = seen(summing, "mask")
        changed = replace(call, letters={**call.letters, 2: call.letters[3]})
        assert "letter of client 2 was changed" in refusal(summing, ask_masked(summing, changed))

    def test_a_letter_that_is_missing(self, summing) -> None:
        call = seen(summing, "mask")
        fewer = {client: call.letters[client] for client in (1, 2, 3)}
        reason = refusal(summing, ask_masked(summing, replace(call, letters=fewer)))
        assert "no letter of client 4" in reason

    def test_a_round_that_was_not_prepared_for(self, summing) -> None:
        changed = replace(seen(summing, "mask"), label=Label(round=1, attempt=0))
        assert "has not prepared" in refusal(summing, ask_masked(summing, changed))

    def test_masks_of_another_round_than_the_upload(self, summing) -> None:
        call = seen(summing, "mask")
        assert "in round 3" in refusal(summing, ask_masked(summing, call, round=3))

    def test_another_protocol_than_keys_were_exchanged_for(self, summing) -> None:
        quieter = dumps(override_keys(summing.protocol, ["noise.sigma=0.1"]))
        call = seen(summing, "mask")
        assert "keys were exchanged for" in refusal(
            summing, ask_masked(summing, call, protocol=quieter)
        )


class TestUnmasking:
    """Once the masked uploads of the first round have come."""

    @pytest.fixture(autouse=True)
    def begun(self, summing) -> None:
        summing.grid.lost = lambda client, wave: wave == "unmask"
        summing.sum(0)
        summing.grid.lost = lambda client, wave: False

    def survivors(self, summing: Summing, *clients: int) -> Any:
        call = seen(summing, "unmask")
        return replace(call, survivors={client: call.survivors[client] for client in clients})

    def test_fewer_survivors_than_the_threshold(self, summing) -> None:
        changed = self.survivors(summing, 0, 1, 2)
        assert "fewer than the threshold" in refusal(summing, ask(changed))

    def test_survivors_without_the_client_itself(self, summing) -> None:
        changed = self.survivors(summing, 1, 2, 3, 4)
        assert "client 0 is not among the survivors" in refusal(summing, ask(changed))

    def test_a_survivor_without_a_signature(self, summing) -> None:
        call = seen(summing, "unmask")
        changed = replace(call, survivors={**call.survivors, 3: b""})
        assert "request of client 3 is not signed" in refusal(summing, ask(changed))

    def test_a_survivor_with_the_signature_of_another(self, summing) -> None:
        call = seen(summing, "unmask")
        changed = replace(call, survivors={**call.survivors, 3: call.survivors[2]})
        assert "request of client 3 is not signed" in refusal(summing, ask(changed))

    def test_a_survivor_that_nobody_asked(self, summing) -> None:
        call = seen(summing, "unmask")
        changed = replace(call, survivors={**call.survivors, 9: call.survivors[2]})
        assert "cannot be there" in refusal(summing, ask(changed))

    def test_both_shares_of_one_client(self, summing) -> None:
        """Alive in one list and absent in the next: the second one gets nothing, ever."""
        genuine = seen(summing, "unmask")
        first = summing.grid.answer(VICTIM, numbered(ask(genuine)))
        assert first.has_content()
        second = self.survivors(summing, 0, 1, 2, 3)
        assert "given for other survivors: [0, 1, 2, 3, 4]" in refusal(summing, ask(second))
        # Asked again for the first list, it sends the same bytes.
        again = summing.grid.answer(VICTIM, numbered(ask(genuine)))
        assert again.content[SUMS]["body"] == first.content[SUMS]["body"]

    def test_both_shares_after_the_clients_state_was_lost_in_a_crash(self, summing) -> None:
        """The ledger alone is enough to refuse: its line is written first."""
        path = summing.store(VICTIM).folder / "secure_sums.json"
        before = path.read_bytes()
        assert summing.grid.answer(VICTIM, numbered(ask(seen(summing, "unmask")))).has_content()
        path.write_bytes(before)
        second = self.survivors(summing, 0, 1, 2, 3)
        assert "given for other survivors" in refusal(summing, ask(second))

    def test_a_second_upload_in_the_same_round(self, summing) -> None:
        call = seen(summing, "mask")
        fewer = replace(call, participants=(0, 1, 2, 3))
        assert "answered already" in refusal(summing, ask_masked(summing, fewer))
        assert summing.grid.work.count(VICTIM) == 1

    def test_a_second_key_of_a_colluder(self, summing) -> None:
        call = replace(seen(summing, "prepare"), label=Label(round=1, attempt=0))
        second = own_signed_key(summing, 4, signer=4)
        changed = replace(call, keys={**call.keys, 4: second})
        assert "another key was shown for client 4 before" in refusal(summing, ask(changed))

    def test_another_model_for_the_same_masks(self, summing) -> None:
        call = seen(summing, "mask")
        other = {"model": summing.model + 1}
        assert "answered already" in refusal(summing, ask_masked(summing, call, arrays=other))

    def test_seeds_that_were_used(self, summing) -> None:
        call = replace(seen(summing, "prepare"), label=Label(round=0, attempt=0))
        assert "does not come after" in refusal(summing, ask(call))

    def test_an_old_round(self, summing) -> None:
        old = seen(summing, "unmask")
        summing.start()
        assert summing.sum(1).total is not None
        assert "no upload in round 0" in refusal(summing, ask(old))

    def test_unreadable_bodies_and_unknown_waves(self, summing) -> None:
        message = ask(seen(summing, "unmask"))
        message.content[SUMS] = make_wave_record("unmask", b'{"training": []}')
        assert "not understood" in refusal(summing, message)
        message = ask(seen(summing, "unmask"))
        message.content[SUMS] = make_wave_record("open", b"{}")
        assert "none that it answers" in refusal(summing, message)


def numbered(message: Any) -> Any:
    message.metadata.__dict__["_message_id"] = "question"
    return message


class TestOldCopies:
    """Where the file of seeds and shares alone is put back, the ledger refuses what it forgot."""

    @pytest.fixture(autouse=True)
    def begun(self, summing) -> None:
        summing.grid.lost = lambda client, wave: wave == "mask"
        summing.sum(0)
        summing.grid.lost = lambda client, wave: False

    def answer_and_restore(self, summing: Summing) -> MaskCall:
        """The victim's upload leaves; then the file is as it was when its seeds were unused."""
        path = summing.store(VICTIM).folder / "secure_sums.json"
        before = path.read_bytes()
        call = seen(summing, "mask")
        assert summing.grid.answer(VICTIM, numbered(ask_masked(summing, call))).has_content()
        path.write_bytes(before)
        # Computed again it would have other noise, and the difference of both would be in the open.
        summing.vectors[VICTIM] = summing.vectors[VICTIM] + 1000
        return call

    @pytest.mark.parametrize("participants", [(0, 1, 2, 3, 4), (0, 1, 2, 3)])
    def test_a_second_upload_under_the_same_masks(self, summing, participants) -> None:
        call = self.answer_and_restore(summing)
        again = replace(call, participants=participants)
        assert "has left in round 0" in refusal(summing, ask_masked(summing, again, attempt=1))
        assert summing.grid.work.count(VICTIM) == 1

    def test_the_line_stands_in_the_ledger_with_its_attempt(self, summing) -> None:
        self.answer_and_restore(summing)
        lines = [event for event in summing.store(VICTIM).events if isinstance(event, Answered)]
        assert [(line.round, line.attempt) for line in lines] == [(0, 0)]

    def test_a_second_preparation_for_a_label_that_was_used(self, summing) -> None:
        path = summing.store(VICTIM).folder / "secure_sums.json"
        before = path.read_bytes()
        summing.start()
        assert summing.sum(0).total is not None
        path.write_bytes(before)
        used = Label(round=0, attempt=1)
        call = replace(seen(summing, "prepare"), label=used)
        assert "does not come after" in refusal(summing, ask(call))

    def test_the_training_goes_on_with_the_next_round(self, summing) -> None:
        self.answer_and_restore(summing)
        summing.start()
        opened = summing.sum(1)
        np.testing.assert_array_equal(opened.total, summing.true_sum(range(5)))


class TestConfirmation:
    """Where many may be left out, a list of survivors needs the signatures of the threshold."""

    @pytest.fixture
    def summing(self, tmp_path) -> Summing:
        summing = Summing(tmp_path, summed_plan(threshold=3))
        summing.grid.lost = lambda client, wave: wave == "unmask"
        summing.sum(0)
        summing.grid.lost = lambda client, wave: False
        return summing

    def test_a_list_that_too_few_have_confirmed(self, summing) -> None:
        call = seen(summing, "unmask")
        few = {client: call.confirmations[client] for client in (1, 2)}
        changed = replace(call, confirmations=few)
        assert "2 survivors have confirmed" in refusal(summing, ask(changed))

    def test_a_second_list(self, summing) -> None:
        call = seen(summing, "confirm")
        fewer = {client: call.survivors[client] for client in (0, 1, 2, 3)}
        reason = refusal(summing, ask(replace(call, survivors=fewer)))
        assert "another list of survivors was confirmed" in reason

    def test_the_list_that_was_signed_stands_in_the_ledger(self, summing) -> None:
        """So an old copy of the file with seeds and shares cannot forget it."""
        lines = [one for one in summing.store(0).events if isinstance(one, SurvivorsConfirmed)]
        assert [(line.round, line.attempt, line.survivors) for line in lines] == [
            (0, 0, (0, 1, 2, 3, 4))
        ]

    def test_confirmations_of_another_list(self, summing) -> None:
        call = seen(summing, "unmask")
        fewer = {client: call.survivors[client] for client in (0, 1, 2, 3)}
        changed = replace(call, survivors=fewer)
        assert "list of survivors of client 0 is not signed" in refusal(summing, ask(changed))


def test_a_server_that_asks_clients_different_things_opens_nothing(summing) -> None:
    """One client gets another model: its signature is over another request, and the rest refuse it."""
    genuine = summing.grid.answer

    def deviate(client: int, message: Any) -> Any:
        if client == VICTIM and message.metadata.message_type == "train":
            request = read_request(message)
            other = replace(request, arrays={"model": request.arrays["model"] + 1})
            name = message.metadata.message_id
            message = request_message(other, node=1000, ttl=60)
            message.metadata.__dict__["_message_id"] = name
        return genuine(client, message)

    summing.grid.answer = deviate
    opened = summing.sum(0)
    # The coordinator's own code notices; one that did not would be refused by the other clients.
    assert "not signed" in opened.absent[VICTIM]
    np.testing.assert_array_equal(opened.total, summing.true_sum([1, 2, 3, 4]))
    assert summing.store(VICTIM).rounds_paid == [0]


class TestCrashes:
    """A client that was restarted never has two uploads under one key, and forgets no charge."""

    @pytest.fixture(autouse=True)
    def begun(self, summing) -> None:
        summing.grid.lost = lambda client, wave: wave == "mask"
        summing.sum(0)
        summing.grid.lost = lambda client, wave: False

    def crash_at(self, monkeypatch, place: Any, name: str) -> None:
        def crash(*_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(place, name, crash)

    @pytest.mark.parametrize(
        "moment", ["before it is kept", "before it is noted", "before it is sent"]
    )
    def test_after_a_crash_one_upload_leaves_and_one_charge_is_made(
        self, summing, monkeypatch, moment
    ) -> None:
        from sordino.flower import guard as guarding
        from sordino.flower.client_store import ClientStore
        from sordino.flower.kept_answers import KeptAnswers

        message = ask_masked(summing, seen(summing, "mask"))
        places = {
            "before it is kept": (KeptAnswers, "write"),
            "before it is noted": (ClientStore, "note_answer"),
            "before it is sent": (guarding, "find_mask_signature"),
        }
        with monkeypatch.context() as patch:
            self.crash_at(patch, *places[moment])
            with pytest.raises(KeyboardInterrupt):
                summing.grid.answer(VICTIM, numbered(message))
        again = ask_masked(summing, seen(summing, "mask"), attempt=1)
        reply = summing.grid.answer(VICTIM, numbered(again))
        assert reply.has_content(), reply.error
        store = summing.store(VICTIM)
        assert store.rounds_paid == [0]
        # What was kept is what is sent: another computation would have had other noise.
        kept = store.answers.read(0).vector
        np.testing.assert_array_equal(reply.content["upload"]["vector"].numpy(), kept)
        computed = 2 if moment == "before it is kept" else 1
        assert summing.grid.work.count(VICTIM) == computed
        fewer = replace(seen(summing, "mask"), participants=(0, 1, 2, 3))
        assert "answered already" in refusal(summing, ask_masked(summing, fewer, attempt=2))

    def test_the_same_request_again_gets_the_same_bytes(self, summing) -> None:
        replies = []
        for attempt in range(2):
            message = ask_masked(summing, seen(summing, "mask"), attempt=attempt)
            replies.append(summing.grid.answer(VICTIM, numbered(message)))
        first, second = (reply.content["upload"]["vector"].numpy() for reply in replies)
        np.testing.assert_array_equal(first, second)
        assert replies[0].content[SUMS]["body"] == replies[1].content[SUMS]["body"]
        assert len(first) == SIZE
        assert first.dtype == np.uint64


def test_a_lost_round_is_tried_again_with_fresh_noise_and_charged_again(summing) -> None:
    summing.grid.lost = lambda client, wave: wave == "unmask" and client in (3, 4)
    lost = summing.sum(0)
    assert lost.total is None
    assert "stayed under masks" in lost.absent[0]
    summing.grid.lost = lambda client, wave: False
    opened = summing.sum(0)
    np.testing.assert_array_equal(opened.total, summing.true_sum(range(5)))
    assert summing.store(VICTIM).rounds_paid == [0, 0]
    assert [(one.round, one.attempt) for one in summing.store(VICTIM).shares_given] == [
        (0, 0),
        (0, 1),
    ]


def test_a_coordinator_that_was_killed_goes_on_with_a_new_attempt(summing) -> None:
    assert summing.sum(0).total is not None
    summing.grid.lost = lambda client, wave: wave == "unmask"
    assert summing.sum(1).total is None
    summing.grid.lost = lambda client, wave: False
    summing.start()
    np.testing.assert_array_equal(summing.sum(1).total, summing.true_sum(range(5)))
    assert summing.store(VICTIM).rounds_paid == [0, 1, 1]


def test_an_earlier_round_that_is_tried_again_is_kept_to_be_sent_again(summing) -> None:
    """A run that is resumed at an earlier checkpoint asks for rounds that the client is past."""
    for round_index in range(3):
        assert summing.sum(round_index).total is not None
    summing.start()
    summing.grid.unheard = lambda client, wave: client == VICTIM and wave == "mask"
    assert set(summing.sum(0).absent) == {VICTIM}
    summing.grid.unheard = lambda client, wave: False
    again = ask_masked(summing, seen(summing, "mask"), attempt=1)
    reply = summing.grid.answer(VICTIM, numbered(again))
    assert reply.has_content(), reply.error
    assert summing.store(VICTIM).answers.rounds in ([0, 2], [2, 0])
    assert summing.store(VICTIM).rounds_paid == [0, 1, 2, 0]


def test_rounds_that_are_tried_again_count_against_what_was_agreed(tmp_path) -> None:
    summing = Summing(tmp_path, summed_plan(rounds=2))
    summing.grid.lost = lambda client, wave: wave == "unmask"
    for _ in range(2):
        assert summing.sum(0).total is None
    summing.grid.lost = lambda client, wave: False
    opened = summing.sum(0)
    assert opened.total is None
    assert "allows 2 rounds, and they are spent" in opened.absent[0]
    assert summing.store(VICTIM).rounds_paid == [0, 0]


def test_clients_that_are_drawn_by_chance_prepare_while_they_are_idle(summing) -> None:
    assert summing.sum(0, [0, 1, 2, 3]).total is not None
    summing.grid.waves.clear()
    opened = summing.sum(1, [0, 1, 2, 4])
    np.testing.assert_array_equal(opened.total, summing.true_sum([0, 1, 2, 4]))
    assert "prepare" not in [wave for client, wave in summing.grid.waves if client == 4]


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"clients": None}, "must know its own key"),
        ({"clients": ("a", "b")}, "2 keys of clients were given"),
        ({"clients": ("a", "b", "c", "d", "e")}, "another key in the list"),
        # One party that stands on the list as two clients would count twice.
        ({"clients": (*fingerprints(4), fingerprints(2)[1])}, "expected every name once"),
    ],
)
def test_an_agreement_that_does_not_say_with_whom_is_refused(tmp_path, terms, words) -> None:
    from sordino import UserError

    with pytest.raises(UserError, match=words):
        Summing(tmp_path, summed_plan(), **terms)


def test_a_threshold_at_which_two_sums_could_be_opened_is_refused(tmp_path) -> None:
    from sordino.protocol import InvalidValue

    with pytest.raises(InvalidValue, match="2 threshold > clients"):
        Summing(tmp_path, summed_plan(clients=4, threshold=2))


class TestLaterRounds:
    """What was played in one round, or before the coordinator was killed, is played again."""

    @pytest.fixture(autouse=True)
    def begun(self, summing) -> None:
        assert summing.sum(0).total is not None

    def test_another_threshold_for_a_later_round(self, summing) -> None:
        summing.grid.lost = lambda client, wave: wave == "mask"
        summing.sum(1)
        lower = "federation.channel={secure-aggregation={threshold=3}}"
        weaker = dumps(override_keys(summing.protocol, [lower]))
        call = seen(summing, "mask")
        assert "protocol was changed" in refusal(
            summing, ask_masked(summing, call, protocol=weaker)
        )

    def test_keys_of_another_training_once_one_is_paid_for(self, summing) -> None:
        call = replace(seen(summing, "key"), training="two")
        assert "for one training" in refusal(summing, ask(call))

    def test_messages_of_an_earlier_attempt_after_the_coordinator_was_killed(self, summing) -> None:
        summing.grid.lost = lambda client, wave: wave == "unmask"
        assert summing.sum(1).total is None
        masked, unmask = seen(summing, "mask"), seen(summing, "unmask")
        summing.grid.lost = lambda client, wave: False
        summing.start()
        assert summing.sum(1).total is not None
        # With another model, since the very same request gets the very same bytes.
        other = {"model": np.ones(SIZE, np.float32)}
        reason = refusal(summing, ask_masked(summing, masked, attempt=7, arrays=other))
        assert "round 1 was answered already" in reason
        assert "no upload in round 1, attempt 0" in refusal(summing, ask(unmask))


def test_a_client_that_says_it_has_used_up_all_labels_is_named_and_left_out(
    summing, monkeypatch
) -> None:
    """Labels go on after the last one that a client knows, and end somewhere."""
    genuine = sum_answers.give_key

    def boast(store: Any, call: Any) -> Any:
        reply = genuine(store, call)
        if store.agreement.client == 4:
            reply = replace(reply, attempt=LARGEST_NUMBER)
        return reply

    monkeypatch.setattr(
        sum_answers, "ANSWERS", {**sum_answers.ANSWERS, sum_messages.KeyCall: boast}
    )
    opened = summing.sum(0)
    assert "has prepared for attempt 9,007,199,254,740,992" in opened.absent[4]
    np.testing.assert_array_equal(opened.total, summing.true_sum(range(4)))

"""Store tests of batches, stored bytes and many callers (S2, S3, S8, S9)."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from oncekey.core.commands import (
    Busy,
    Claimed,
    Command,
    Done,
    Finish,
    Look,
    Lost,
    Mismatched,
    Renew,
    Replay,
    SaveStep,
    Seen,
)
from oncekey.core.errors import ConfigurationError
from oncekey.testing.contract.store_case import (
    FINGERPRINT,
    KEEP,
    LEASE,
    OTHER_FINGERPRINT,
    SUCCEEDED,
    StoreCase,
    claim,
    token,
)

BATCH = 256
CROWD = 16


class Batches:
    def test_s2_no_commands_no_replies(self, case: StoreCase) -> None:
        assert case.store.apply([]) == []

    def test_s2_a_batch_keeps_its_order_within_an_id(self, case: StoreCase) -> None:
        id, owner, now = token("id"), token("own"), case.now()
        replies = case.send_all(
            claim(id, owner),
            claim(id, token("riv")),
            claim(id, token("riv"), fingerprint=OTHER_FINGERPRINT),
            SaveStep(id, owner, now, "pay", False, b"intent"),
            SaveStep(id, owner, now, "pay", True, b"result"),
            Renew(id, owner, now, LEASE * 2),
            claim(id, token("riv")),
            Finish(id, owner, now, SUCCEEDED, b"out"),
            Renew(id, owner, now, LEASE),
            claim(id, token("riv")),
        )
        assert replies == [
            Claimed(now, 1, ()), Busy(LEASE), Mismatched(1), Done(), Done(), Done(),
            Busy(LEASE * 2), Done(), Lost(), Replay(SUCCEEDED, b"out", 1, now, KEEP),
        ]  # fmt: skip

    def test_s2_what_follows_a_claim_in_its_batch_sees_it(self, case: StoreCase) -> None:
        """Even in a batch of claims and looks, which a store might answer from a snapshot."""
        id, owner, now = token("id"), token("own"), case.now()
        before, claimed, after, rival = case.send_all(
            Look(id), claim(id, owner), Look(id), claim(id, token("riv"))
        )
        assert (before, claimed, rival) == (Seen(None, now), Claimed(now, 1, ()), Busy(LEASE))
        assert isinstance(after, Seen)
        assert after.record is not None
        assert after.record.owner == owner

    def test_s2_a_takeover_and_its_finish_in_one_batch(self, case: StoreCase) -> None:
        held = case.claimed(retry_safe=True)
        case.wait(LEASE)
        now, rival = case.now(), held.rival(retry_safe=True, keep=KEEP * 2)
        finish = Finish(held.id, rival.owner, now, SUCCEEDED, b"theirs")
        assert case.send_all(rival, finish) == [Claimed(now, 2, (), taken_over=True), Done()]
        record = case.record(held.id)
        assert (record.owner, record.fence, record.attempt) == (rival.owner, now, 2)
        assert (record.keep, record.body, record.state) == (KEEP * 2, b"theirs", SUCCEEDED)

    def test_s2_256_commands_in_any_order_get_their_own_replies(self, case: StoreCase) -> None:
        shuffle = random.Random(7).shuffle
        helds = [case.claimed() for _ in range(BATCH // 4)]
        commands: list[Command] = []
        for number, held in enumerate(helds):
            body = b"answer %d" % number
            commands += [held.finish(body=body), claim(token("id"), token("own"))]
            commands += [held.rival(fingerprint=OTHER_FINGERPRINT), Look(token("none"))]
        shuffle(commands)
        replies = case.store.apply(commands)
        now = case.now()
        expected = {Finish: Done(), Look: Seen(None, now)}
        for command, reply in zip(commands, replies, strict=True):
            if type(command) in expected:
                assert reply == expected[type(command)]
            else:
                assert isinstance(reply, Claimed | Mismatched)
        for number, held in enumerate(helds):
            assert case.record(held.id).body == b"answer %d" % number

    def test_s2_256_claims_of_one_key_grant_one(self, case: StoreCase) -> None:
        id = token("id")
        replies = case.send_all(*(claim(id, token("own")) for _ in range(BATCH)))
        assert replies == [Claimed(case.now(), 1, ())] + [Busy(LEASE)] * (BATCH - 1)

    def test_s2_a_refused_command_leaves_its_neighbours_alone(self, case: StoreCase) -> None:
        held, other = case.claimed(), case.claimed()
        stale = Finish(held.id, token("str"), held.fence, SUCCEEDED, b"stolen")
        replies = case.send_all(stale, other.finish(), held.finish(body=b"mine"))
        assert replies == [Lost(), Done(), Done()]
        assert case.record(held.id).body == b"mine"

    def test_i9_a_whole_batch_sent_twice(self, case: StoreCase) -> None:
        helds = [case.claimed() for _ in range(20)]
        batch = [held.finish(body=b"%d" % n) for n, held in enumerate(helds)]
        assert case.store.apply(batch) == [Done()] * 20
        assert case.unchanged_by(*batch) == [Done()] * 20

    def test_s3_one_decision_reads_one_time(self, case: StoreCase) -> None:
        """All times of a record agree, and the reply has the fence that is stored, even if the
        clock moves at every reading."""
        real = case.clock.wall
        held = case.claimed()

        def restless() -> int:
            case.clock.advance(1)
            return real()

        case.clock.wall = restless  # type: ignore[method-assign]
        id = token("id")
        claimed, _ = case.store.apply([claim(id, token("own"), retry_safe=True), held.finish()])
        assert isinstance(claimed, Claimed)
        record = case.record(id)
        assert claimed.fence == record.fence == record.created_at == record.lease_until - LEASE
        case.clock.advance(LEASE)
        taken = case.expect(Claimed, claim(id, token("own"), retry_safe=True))
        record = case.record(id)
        assert taken.fence == record.fence == record.lease_until - LEASE
        lone = case.claimed()
        record = case.record(lone.id)
        assert lone.fence == record.fence == record.created_at == record.lease_until - LEASE


class BytesStored:
    """What a store is given is what it returns."""

    @pytest.mark.parametrize(
        "body",
        [b"", b"\x00", bytes(range(256)), b"\xff\xfe\x00' OR 1=1; --\r\n", b"\x00" * 1000],
        ids=["empty", "nul", "every-byte", "sql", "zeros"],
    )
    def test_i3_odd_bytes_come_back_as_they_were(self, case: StoreCase, body: bytes) -> None:
        held = case.key_in(SUCCEEDED, body=body)
        assert case.expect(Replay, held.rival()).body == body

    def test_i3_a_megabyte_comes_back_as_it_was(self, case: StoreCase) -> None:
        body = random.Random(1).randbytes(1024 * 1024)
        held = case.key_in(SUCCEEDED, body=body)
        assert case.expect(Replay, held.rival()).body == body

    def test_ids_owners_and_fingerprints_are_any_bytes(self, case: StoreCase) -> None:
        ids = [b"\x00" * 16, b"\xff" * 16, b"\x00" * 15 + b"\x01", b"'" * 16, b"\x80" * 16]
        for id in ids:
            case.expect(Claimed, claim(id, id, fingerprint=id + id))
        for id in ids:
            record = case.record(id)
            assert (record.id, record.owner, record.fingerprint) == (id, id, id + id)

    @pytest.mark.parametrize(
        "text",
        ["", "x" * 255, "Zürich", "支払い" * 85, "🎉" * 255, "a'b\"c;--", "%s {0} \\n", "שלום"],
        ids=["empty", "long", "latin", "cjk", "emoji", "quotes", "formats", "rtl"],
    )
    def test_labels_are_any_text(self, case: StoreCase, text: str) -> None:
        held = case.claimed(scope=text, label=text[:100], key=text)
        record = case.record(held.id)
        assert (record.scope, record.operation, record.key) == (text, text[:100], text)

    def test_a_note_is_any_text(self, case: StoreCase) -> None:
        held = case.claimed()
        case.wait(LEASE)
        note = "änne: »bank« says 🎉'\"; " * 40
        case.expect(Done, held.resolve(note=note))
        assert case.record(held.id).note == note

    def test_the_longest_durations_fit(self, case: StoreCase) -> None:
        ten_years, day = 10 * 366 * 86_400_000_000, 86_400_000_000
        if case.limits.terms_max:
            with pytest.raises(ConfigurationError, match="shorten"):
                case.claimed(lease=day, keep=ten_years, audit=ten_years)
            return
        held = case.claimed(lease=day, keep=ten_years, audit=ten_years, keep_unknown=ten_years)
        record = case.record(held.id)
        assert record.audit_until == case.now() + day + ten_years * 2
        assert record.retry_safe is False
        assert type(record.state).__name__ == "State"

    def test_the_shortest_durations_end(self, case: StoreCase) -> None:
        shortest = case.limits.lease_min or 1
        if shortest > 1:
            with pytest.raises(ConfigurationError, match="longer"):
                case.claimed(lease=shortest - 1)
        held = case.claimed(lease=shortest, keep=1, audit=0, keep_unknown=1)
        case.wait(shortest + 1)
        case.wait_for_sweeper()
        assert case.store.sweep() == 1
        assert case.seen(held.id).record is None


class ManyKeys:
    def test_s8_bind_takes_the_first_check_value_and_no_other(self, case: StoreCase) -> None:
        assert case.store.bind(b"first check") == Seen(None, case.now())
        case.store.bind(b"first check")
        with pytest.raises(ConfigurationError, match="secret"):
            case.store.bind(b"other check")
        case.store.bind(b"first check")

    def test_s9_many_threads_claim_one_key_and_one_gets_it(self, case: StoreCase) -> None:
        id, barrier = token("id"), threading.Barrier(CROWD)

        def one(_: int) -> object:
            command = claim(id, token("own"))
            barrier.wait(30)
            return case.send(command)

        with ThreadPoolExecutor(CROWD) as pool:
            replies = list(pool.map(one, range(CROWD)))
        # A store that locks keys may know only that somebody is claiming this one.
        assert sum(isinstance(reply, Busy) for reply in replies) == CROWD - 1
        assert sum(isinstance(reply, Claimed) for reply in replies) == 1

    def test_s9_many_threads_batch_sweep_and_bind_at_once(self, case: StoreCase) -> None:
        barrier = threading.Barrier(CROWD)

        def one(number: int) -> int:
            barrier.wait(30)
            done = 0
            for _ in range(5):
                held = case.claimed(keep=KEEP, fingerprint=FINGERPRINT)
                done += case.store.apply([held.step(), held.finish(body=b"%d" % number)]) == [
                    Done(),
                    Done(),
                ]
                case.store.sweep(10)
                case.store.bind(b"check")
                done += case.record(held.id).body == b"%d" % number
            return done

        with ThreadPoolExecutor(CROWD) as pool:
            assert list(pool.map(one, range(CROWD))) == [10] * CROWD

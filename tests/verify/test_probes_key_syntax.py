"""The probes of malformed, long, missing and doubled keys."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.verify.guarded_api import (
    SOON,
    Asked,
    GuardedAPI,
    Refused,
    Reply,
    assert_faults,
    assert_holds,
    assert_not_observable,
    verdict_on,
)

from oncekey.verify.probes.key_syntax import KeySyntax, MissingKey
from oncekey.verify.profile import IETF, ONCEKEY, STRIPE, Profile
from oncekey.verify.verdict import Fault


class AcceptsAnything(GuardedAPI):
    """Takes one line as it is."""

    def valid_key(self, line: bytes) -> bytes:
        return line


class JoinsLines(GuardedAPI):
    """A pair of lines is a key, as in WSGI; a comma in one line is refused."""

    def key(self, lines: Sequence[bytes]) -> bytes:
        return b", ".join(lines) if len(lines) > 1 else super().key(lines)


class JoinsEqualLines(GuardedAPI):
    def key(self, lines: Sequence[bytes]) -> bytes:
        if len(lines) > 1 and len(set(lines)) == 1:
            return b", ".join(lines)
        return super().key(lines)


class TakesOneOfEqualLines(GuardedAPI):
    def key(self, lines: Sequence[bytes]) -> bytes:
        return super().key(list(dict.fromkeys(lines)))


class TakesFirstLine(GuardedAPI):
    def key(self, lines: Sequence[bytes]) -> bytes:
        return super().key(lines[:1])


class TakesLastLine(GuardedAPI):
    def key(self, lines: Sequence[bytes]) -> bytes:
        return super().key(lines[-1:])


class RunsTwoLinesUnguarded(GuardedAPI):
    async def respond(self, asked: Asked) -> Reply:
        if len(asked.key_lines) > 1:
            return await self.operate(asked)
        return await super().respond(asked)


class EmptyIsAKey(GuardedAPI):
    def valid_key(self, line: bytes) -> bytes:
        return line if not line else super().valid_key(line)


class EmptyWasUsedBefore(EmptyIsAKey):
    """Another verification has used the empty key."""

    def fingerprint(self, account: str, asked: Asked) -> object:
        used = super().fingerprint(account, asked)
        return used if asked.key_lines[0] else "used before"

    async def guard(self, account: str, key: bytes, asked: Asked) -> Reply:
        return self.mismatch(key) if not key else await super().guard(account, key, asked)


class EmptyIsUnguarded(GuardedAPI):
    async def respond(self, asked: Asked) -> Reply:
        if asked.key_lines == (b"",):
            return await self.operate(asked)
        return await super().respond(asked)


class KeyIsOptional(GuardedAPI):
    """No key, or an empty one, means no protection."""

    async def respond(self, asked: Asked) -> Reply:
        if asked.key_lines in ((), (b"",)):
            return await self.operate(asked)
        return await super().respond(asked)


class Only64Characters(GuardedAPI):
    def valid_key(self, line: bytes) -> bytes:
        if len(line) > 64:
            raise Refused(400, "at most 64 characters")
        return super().valid_key(line)


class Truncates(GuardedAPI):
    def valid_key(self, line: bytes) -> bytes:
        return super().valid_key(line[:255])


class TakesLongKeys(GuardedAPI):
    def valid_key(self, line: bytes) -> bytes:
        return line if len(line) > 255 else super().valid_key(line)


class TakesAnyCharacters(GuardedAPI):
    def valid_key(self, line: bytes) -> bytes:
        return line if not line.isascii() else super().valid_key(line)


class FailsOnCharacters(GuardedAPI):
    def valid_key(self, line: bytes) -> bytes:
        if not line.isascii():
            raise Refused(500, "UnicodeDecodeError")
        return super().valid_key(line)


class QuotesCount(GuardedAPI):
    """The header's value is the key, quotes included."""

    def valid_key(self, line: bytes) -> bytes:
        super().valid_key(line)
        return line


class BareOnly(GuardedAPI):
    def valid_key(self, line: bytes) -> bytes:
        if line.startswith(b'"'):
            raise Refused(400, "no quotes")
        return super().valid_key(line)


class Says422(GuardedAPI):
    """Refuses malformed and missing keys as a framework refuses bad input."""

    def key(self, lines: Sequence[bytes]) -> bytes:
        try:
            return super().key(lines)
        except Refused as refused:
            raise Refused(422, str(refused)) from None


class BusyWithOddKeys(GuardedAPI):
    patience = SOON

    def key(self, lines: Sequence[bytes]) -> bytes:
        if len(lines) != 1 or len(lines[0]) != 36:
            raise Refused(429, "slow down")
        return super().key(lines)


class AlwaysTheSame(GuardedAPI):
    """Accepts long keys, and its responses do not tell runs apart."""

    def valid_key(self, line: bytes) -> bytes:
        return line if len(line) > 255 else super().valid_key(line)

    def success(self, asked: Asked, number: int) -> Reply:
        return Reply(200, b'{"ok": true}')

    def replay(self, reply: Reply) -> Reply:
        return reply


@pytest.mark.parametrize(
    ("server", "profile"),
    [
        (GuardedAPI, IETF),
        (GuardedAPI, ONCEKEY),
        (GuardedAPI, STRIPE),
        (Only64Characters, IETF),  # the draft says nothing about lengths
        (TakesLongKeys, IETF),
        (TakesOneOfEqualLines, IETF),
        (QuotesCount, IETF),
        (BareOnly, ONCEKEY),  # one form only has one meaning
        (KeyIsOptional, IETF),  # which is what the probe of missing keys names
        (KeyIsOptional, STRIPE),
        (Says422, IETF),
        (TakesFirstLine, STRIPE),  # nothing is said about two lines there
        (TakesAnyCharacters, STRIPE),
        (AlwaysTheSame, IETF),
    ],
)
def test_keys_with_one_meaning_hold(server: type[GuardedAPI], profile: Profile) -> None:
    assert_holds(verdict_on(server, KeySyntax(), profile))


@pytest.mark.parametrize(
    ("server", "profile", "fault"),
    [
        (JoinsLines, IETF, Fault.HEADER_LINES_JOINED),
        (JoinsLines, STRIPE, Fault.HEADER_LINES_JOINED),
        (JoinsEqualLines, IETF, Fault.HEADER_LINES_JOINED),
        (TakesFirstLine, IETF, Fault.KEY_ACCEPTED),
        (TakesLastLine, IETF, Fault.KEY_ACCEPTED),
        (RunsTwoLinesUnguarded, IETF, Fault.KEY_ACCEPTED),
        (EmptyIsAKey, IETF, Fault.KEY_ACCEPTED),
        (EmptyIsAKey, STRIPE, Fault.KEY_ACCEPTED),
        (EmptyWasUsedBefore, IETF, Fault.KEY_ACCEPTED),
        (EmptyIsUnguarded, IETF, Fault.KEY_ACCEPTED),
        (Only64Characters, ONCEKEY, Fault.KEY_REFUSED),
        (Truncates, IETF, Fault.KEY_TRUNCATED),
        (Truncates, ONCEKEY, Fault.KEY_TRUNCATED),
        (TakesLongKeys, ONCEKEY, Fault.KEY_ACCEPTED),
        (TakesAnyCharacters, IETF, Fault.KEY_ACCEPTED),
        (FailsOnCharacters, IETF, Fault.SERVER_FAILED),
        (QuotesCount, ONCEKEY, Fault.KEY_FORMS_DIFFER),
        (Says422, ONCEKEY, Fault.WRONG_STATUS),
    ],
)
def test_keys_with_two_meanings_are_named(
    server: type[GuardedAPI], profile: Profile, fault: Fault
) -> None:
    assert_faults(verdict_on(server, KeySyntax(), profile), fault)


def test_joined_lines_are_seen_by_ids_in_responses_too() -> None:
    verdict = verdict_on(JoinsLines, KeySyntax(), effects=None)
    assert_faults(verdict, Fault.HEADER_LINES_JOINED)


def test_keys_in_quotes_are_tried_bare() -> None:
    assert_holds(verdict_on(GuardedAPI, KeySyntax(), ONCEKEY, quoted_key=True))
    verdict = verdict_on(QuotesCount, KeySyntax(), ONCEKEY, quoted_key=True)
    assert_faults(verdict, Fault.KEY_FORMS_DIFFER)


def test_responses_that_tell_nothing_leave_it_open() -> None:
    verdict = verdict_on(AlwaysTheSame, KeySyntax(), effects=None)
    assert "what a key of 256 characters means" in verdict.unseen


def test_a_server_that_is_busy_with_odd_keys_is_not_accused() -> None:
    assert_not_observable(verdict_on(BusyWithOddKeys, KeySyntax()), "two lines: 429")


# --- no key at all ------------------------------------------------------------------------------


class BusyWithoutKey(GuardedAPI):
    patience = SOON

    async def respond(self, asked: Asked) -> Reply:
        return await super().respond(asked) if asked.key_lines else Reply(503)


class FailsWithoutKey(GuardedAPI):
    async def respond(self, asked: Asked) -> Reply:
        return await super().respond(asked) if asked.key_lines else Reply(500)


def test_a_missing_key_that_is_refused_holds() -> None:
    assert_holds(verdict_on(GuardedAPI, MissingKey()))


@pytest.mark.parametrize(
    ("server", "fault"),
    [
        (KeyIsOptional, Fault.KEY_NOT_REQUIRED),
        (Says422, Fault.WRONG_STATUS),
        (FailsWithoutKey, Fault.SERVER_FAILED),
    ],
)
def test_a_missing_key_that_is_not_refused_is_named(server: type[GuardedAPI], fault: Fault) -> None:
    assert_faults(verdict_on(server, MissingKey()), fault)


def test_a_server_that_is_busy_without_a_key_is_not_accused() -> None:
    assert_not_observable(verdict_on(BusyWithoutKey, MissingKey()), "503")

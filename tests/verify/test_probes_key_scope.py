"""The probes of a key on another path, by another caller, and by strangers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.verify.guarded_api import (
    TOKENS,
    VARIANTS,
    Asked,
    GuardedAPI,
    Reply,
    assert_faults,
    assert_holds,
    assert_not_observable,
    template,
    verdict_on,
)

from oncekey.verify.probes.key_scope import BadCredentials, OtherCaller, OtherPath
from oncekey.verify.target import Caller, Variant
from oncekey.verify.verdict import Fault


class AlwaysTheSame(GuardedAPI):
    """Its responses do not tell runs apart."""

    def success(self, asked: Asked, number: int) -> Reply:
        return Reply(200, b'{"ok": true}')

    def replay(self, reply: Reply) -> Reply:
        return reply


# --- another path -------------------------------------------------------------------------------


class PathIsPartOfKey(GuardedAPI):
    def place(self, account: str, key: bytes, asked: Asked) -> object:
        return account, key, asked.path


class PathNotCompared(GuardedAPI):
    def fingerprint(self, account: str, asked: Asked) -> object:
        return asked.body


class PathNotComparedNorMarked(PathNotCompared):
    def replay(self, reply: Reply) -> Reply:
        return reply


class AlikeOnAllPaths(AlwaysTheSame, PathIsPartOfKey):
    pass


class RefusedPath(GuardedAPI):
    async def operate(self, asked: Asked) -> Reply:
        return Reply(404) if asked.path == "/refunds" else await super().operate(asked)


@pytest.mark.parametrize("server", [GuardedAPI, PathIsPartOfKey])
def test_another_path_that_refuses_the_key_or_has_its_own_holds(server: type[GuardedAPI]) -> None:
    assert_holds(verdict_on(server, OtherPath()))


@pytest.mark.parametrize("server", [PathNotCompared, PathNotComparedNorMarked])
def test_another_path_that_gets_the_first_response_is_named(server: type[GuardedAPI]) -> None:
    assert_faults(verdict_on(server, OtherPath()), Fault.PATH_NOT_COMPARED)


def test_paths_that_answer_alike_are_not_observable() -> None:
    assert_not_observable(verdict_on(AlikeOnAllPaths, OtherPath()), "answer alike")


def test_without_another_path_nothing_is_seen() -> None:
    verdict = verdict_on(GuardedAPI, OtherPath(), variants={Variant.MAIN: template()})
    assert_not_observable(verdict, "no other path")


def test_another_path_that_is_the_same_is_not_observable() -> None:
    variants = {**VARIANTS, Variant.OTHER_PATH: template(kind="other")}
    assert_not_observable(verdict_on(GuardedAPI, OtherPath(), variants=variants), "the same one")


def test_another_path_that_does_not_exist_is_not_observable() -> None:
    assert_not_observable(verdict_on(RefusedPath, OtherPath()), "404")


# --- another caller -----------------------------------------------------------------------------


class Unscoped(GuardedAPI):
    def place(self, account: str, key: bytes, asked: Asked) -> object:
        return key


class UnscopedAndUnmarked(Unscoped):
    def replay(self, reply: Reply) -> Reply:
        return reply


class CallerInFingerprintOnly(Unscoped):
    """Another caller is told that the key was used."""

    def fingerprint(self, account: str, asked: Asked) -> object:
        return account, asked.body


class OtherCallerReplaces(Unscoped):
    """Another caller's request is run, and its outcome takes the place of the first one's."""

    async def guard(self, account: str, key: bytes, asked: Asked) -> Reply:
        record = self.records.get(key)
        if record is not None and record.fingerprint != (account, asked.body):
            del self.records[key]
        return await super().guard(account, key, asked)

    def fingerprint(self, account: str, asked: Asked) -> object:
        return account, asked.body


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_key_of_another_caller_is_run_on_its_own(is_counted: bool) -> None:
    counted: dict[str, Any] = {} if is_counted else {"effects": None}
    assert_holds(verdict_on(GuardedAPI, OtherCaller(), **counted))


@pytest.mark.parametrize(
    "server", [Unscoped, UnscopedAndUnmarked, CallerInFingerprintOnly, OtherCallerReplaces]
)
@pytest.mark.parametrize("is_counted", [True, False])
def test_keys_that_callers_share_are_named(server: type[GuardedAPI], is_counted: bool) -> None:
    counted: dict[str, Any] = {} if is_counted else {"effects": None}
    assert_faults(verdict_on(server, OtherCaller(), **counted), Fault.UNSCOPED)


def test_equal_responses_hold_if_effects_are_counted() -> None:
    assert_holds(verdict_on(AlwaysTheSame, OtherCaller()))


def test_equal_responses_are_not_observable_without_a_counter() -> None:
    verdict = verdict_on(AlwaysTheSame, OtherCaller(), effects=None)
    assert_not_observable(verdict, "the same bytes")


def test_equal_responses_that_are_marked_as_replays_are_named() -> None:
    class Marked(Unscoped):
        def success(self, asked: Asked, number: int) -> Reply:
            return Reply(200, b'{"ok": true}')

    assert_faults(verdict_on(Marked, OtherCaller(), effects=None), Fault.UNSCOPED)


def test_without_another_caller_nothing_is_seen() -> None:
    verdict = verdict_on(GuardedAPI, OtherCaller(), other_caller=None)
    assert_not_observable(verdict, "only one caller")


def test_another_caller_that_nobody_knows_is_not_observable() -> None:
    stranger = Caller("carol", (("Authorization", "Bearer carol"),))
    verdict = verdict_on(GuardedAPI, OtherCaller(), other_caller=stranger)
    assert_not_observable(verdict, "401 also under a key of its own")


# --- strangers ----------------------------------------------------------------------------------


class ReplaysToAnyone(GuardedAPI):
    """Looks for the record before it looks at the token."""

    async def respond(self, asked: Asked) -> Reply:
        key = self.key(asked.key_lines)
        record = self.records.get(("alice", key))
        if record is not None and record.reply is not None and asked.token.startswith("Bearer a"):
            return self.replay(record.reply)
        return await super().respond(asked)


class ComparesBeforeAuthentication(GuardedAPI):
    """Strangers get no response, but learn whether a key was used."""

    async def respond(self, asked: Asked) -> Reply:
        place = "alice", self.key(asked.key_lines)
        record = self.records.get(place)
        if record is not None and record.fingerprint != self.fingerprint("alice", asked):
            return self.mismatch(place)
        return await super().respond(asked)


class FailsForStrangers(GuardedAPI):
    async def respond(self, asked: Asked) -> Reply:
        known = ("alice", self.key(asked.key_lines)) in self.records
        if known and asked.token != "Bearer alice-4711":
            return Reply(500, b"no account")
        return await super().respond(asked)


class RemembersRefusals(GuardedAPI):
    """Strangers have keys of their own, all of them together, and a 401 is stored as any answer."""

    def account(self, asked: Asked) -> str:
        return TOKENS.get(asked.token, "stranger")

    async def operate(self, asked: Asked) -> Reply:
        if asked.token not in TOKENS:
            return Reply(401, b"unknown caller")
        return await super().operate(asked)


class Open(GuardedAPI):
    def account(self, asked: Asked) -> str:
        return "everybody"


def test_strangers_that_are_refused_for_used_and_unused_keys_hold() -> None:
    verdict = verdict_on(GuardedAPI, BadCredentials())
    assert_holds(verdict)
    assert verdict.n == 2  # spoiled credentials, and none
    assert_holds(verdict_on(GuardedAPI, BadCredentials(), bad_caller=Caller("mallory")))


@pytest.mark.parametrize(
    ("server", "fault"),
    [
        (ReplaysToAnyone, Fault.REPLAY_BEFORE_AUTH),
        (ComparesBeforeAuthentication, Fault.REPLAY_BEFORE_AUTH),
        (FailsForStrangers, Fault.SERVER_FAILED),
    ],
)
def test_strangers_that_learn_something_are_named(server: type[GuardedAPI], fault: Fault) -> None:
    assert_faults(verdict_on(server, BadCredentials()), fault)


def test_strangers_that_learn_what_they_did_themselves_learn_nothing() -> None:
    verdict = verdict_on(RemembersRefusals, BadCredentials(), bad_caller=Caller("mallory"))
    assert_holds(verdict)


def test_a_report_does_not_show_spoiled_credentials() -> None:
    verdict = verdict_on(ReplaysToAnyone, BadCredentials())
    shown = [e.request for violation in verdict.violations for e in violation.exchanges]
    tokens = {value for request in shown for value in request.header_lines("authorization")}
    assert len(tokens) == 2
    assert all(dict(r.secrets).keys() >= set(r.header_lines("authorization")) for r in shown)


def test_an_api_that_refuses_no_credentials_is_not_observable() -> None:
    assert_not_observable(verdict_on(Open, BadCredentials()), "no credentials are refused")


def test_an_api_without_credentials_is_not_observable() -> None:
    verdict = verdict_on(Open, BadCredentials(), caller=Caller("anybody"))
    assert_not_observable(verdict, "without credentials")

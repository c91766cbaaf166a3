"""Checks the invariants over the logs of all workers, key by key, after the run.

Each rule yields violations as text. It relies only on which commands were sent, which replies came
and when, never on the store: two leases overlap if two owners could rightly believe that they hold
the key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.support.hammer.command_log import BODY, RAISED, RESULT, Entry
from tests.support.hammer.key_history import FINAL, Grant, KeyHistory, histories

from oncekey.core.record import decision, lines

# The store reads the wall clock and the logs a monotonic one; NTP may slew one against the other.
TOLERANCE_US = 1_500
OWNER_VERBS = ("Finish", "Renew", "SaveStep", "Release", "Resolve")


@dataclass(frozen=True, slots=True)
class HammerReport:
    """The result of a run: what was counted, and which invariants were violated."""

    counts: dict[str, int]
    violations: list[str]


Rule = Callable[[KeyHistory, int], Iterator[str]]


def check(entries: Iterable[Entry], counts: dict[str, int], keep: int) -> HammerReport:
    """Check every rule for every key."""
    everything = list(entries)
    keys = histories(everything, keep)
    violations = [
        f"{rule.__name__} {history.key[:8]}: {words}"
        for history in keys
        for rule in (RULES if history.certain else CERTAIN_RULES)
        for words in rule(history, keep)
    ]
    return HammerReport({**_counts(everything, keys), **counts}, violations)


def i6_fences_are_unique_and_grow(history: KeyHistory, keep: int) -> Iterator[str]:
    for fence, owners in Counter(grant.fence for grant in history.grants).items():
        if owners > 1:
            yield f"fence {fence} was granted to {owners} owners"
    for grant, overtaken in _with_next_came(history.grants):
        if overtaken is not None and overtaken < grant.sent:
            yield f"fence {grant.fence} was claimed after a higher one had been granted"


def i2_one_outcome_per_generation(history: KeyHistory, keep: int) -> Iterator[str]:
    last = {grant.generation: grant.fence for grant in history.grants}
    seen: Counter[int] = Counter()
    for fence, some in history.outcomes.items():
        grant = history.grant(fence)
        if grant is None:
            yield f"fence {fence} has an outcome but was never granted"
            continue
        seen[grant.generation] += len(some)
        if last[grant.generation] != fence:
            yield f"fence {fence} has an outcome, but {last[grant.generation]} was granted later"
    for generation, number in seen.items():
        if number > 1:
            yield f"generation {generation} has {number} outcomes"


def i2_the_overtaken_are_refused(history: KeyHistory, keep: int) -> Iterator[str]:
    came_after = {grant.fence: came for grant, came in _with_next_came(history.grants)}
    for entry in history.entries:
        if entry.verb in OWNER_VERBS and entry.reply == "Done" and entry.fence:
            overtaken = came_after.get(entry.fence)
            if overtaken is not None and overtaken < entry.sent:
                yield f"{entry.verb} of fence {entry.fence} was done after it was overtaken"


def i5_leases_never_overlap(history: KeyHistory, keep: int) -> Iterator[str]:
    for grant, overtaken in _with_next_came(history.grants):
        if overtaken is None or overtaken >= grant.until - TOLERANCE_US:
            continue
        if grant.closing_sent is None or grant.closing_sent > overtaken:
            early = grant.until - overtaken
            yield f"fence {grant.fence} was overtaken {early} us before its lease ended"


def i5_owners_count_from_the_sending(history: KeyHistory, keep: int) -> Iterator[str]:
    """An attempt believes in its lease until its claim or renewal was sent plus the lease at most,
    so that its owner stops before the store lets anybody take over."""
    for body in history.bodies:
        until = history.leases.get(body.fence)
        if until is not None and body.deadline > until:
            late = body.deadline - until
            yield f"fence {body.fence} believed in its lease for {late} us too long"


def i1_an_error_frees_only_what_is_retry_safe(history: KeyHistory, keep: int) -> Iterator[str]:
    for body in history.bodies:
        if body.reply != RAISED or body.retry_safe:
            continue
        for entry in history.entries:
            freed = entry.verb == "Release" and entry.reply == "Done"
            if freed and entry.fence == body.fence and entry.sent >= body.came:
                yield f"fence {body.fence} was freed though its body raised and is not retry-safe"


def i1_every_run_has_its_reason(history: KeyHistory, keep: int) -> Iterator[str]:
    """Within a generation, the next owner took over (both retry-safe), or the key was freed."""
    safe = False
    for before, after in pairwise([None, *history.grants]):
        assert after is not None
        if before is None or before.generation != after.generation:
            safe = after.retry_safe
            continue
        if after.attempt != before.attempt + 1:
            yield f"attempt {after.attempt} follows attempt {before.attempt}"
        if after.taken_over:
            if not (safe and after.retry_safe):
                yield f"fence {after.fence} took over what is not retry-safe"
            if after.fingerprint != before.fingerprint:
                yield f"fence {after.fence} took over another request"
        elif before.fence not in history.freed:
            yield f"fence {after.fence} ran again though nobody freed fence {before.fence}"
        else:
            safe = after.retry_safe


def i12_a_fresh_start_only_after_expiry(history: KeyHistory, keep: int) -> Iterator[str]:
    for before, after in pairwise(history.grants):
        if before.generation == after.generation:
            continue
        some = history.outcomes.get(before.fence)
        if some:
            since = min(outcome.sent for outcome in some)
        elif before.fence in history.freed:
            since = history.freed[before.fence]
        elif before.fence in history.unknown:
            since = history.unknown[before.fence]
        else:
            since = before.until
        if after.came < since + keep - TOLERANCE_US:
            early = since + keep - after.came
            yield f"fence {after.fence} started anew {early} us before its predecessor expired"


def i3_replays_are_what_was_stored(history: KeyHistory, keep: int) -> Iterator[str]:
    for entry in history.entries:
        if entry.reply != "Replay":
            continue
        some = history.outcomes.get(entry.given_fence, [])
        if not any(s.state == entry.given_state and s.body == entry.given_body for s in some):
            yield f"a replay of fence {entry.given_fence} is not what was stored"
        grant = history.grant(entry.given_fence)
        if grant is not None and grant.fingerprint != entry.fingerprint:
            yield f"another request got the outcome of fence {entry.given_fence}"


def i4_what_was_stored_stays(history: KeyHistory, keep: int) -> Iterator[str]:
    claims = sorted((e for e in history.entries if e.verb == "Claim"), key=lambda e: e.sent)
    times = [entry.sent for entry in claims]
    for fence, some in history.outcomes.items():
        outcome = some[0]
        expiry = outcome.sent + keep - TOLERANCE_US
        after = bisect_right(times, outcome.came)
        for entry in claims[after : bisect_left(times, expiry)]:
            right = entry.reply == "Replay" and entry.given_fence == fence
            if not right and entry.reply != "Mismatched" and entry.came < expiry:
                yield f"after fence {fence} was stored a claim got {entry.reply}"


def i7_mismatch_exactly_when_it_differs(history: KeyHistory, keep: int) -> Iterator[str]:
    for entry in history.entries:
        if entry.reply == "Unknown" and entry.given_fingerprint != entry.fingerprint:
            yield "another request got unknown instead of mismatch"
        if entry.reply in ("Mismatched", "Busy"):
            holders = history.holders(entry.sent, entry.came)
            same = [grant.fingerprint == entry.fingerprint for grant in holders]
            if entry.reply == "Mismatched" and all(same):
                yield "a claim got a mismatch though no other request held the key"
            if entry.reply == "Busy" and not any(same):
                yield "a claim got busy though only another request held the key"


def i7_rejections_leave_no_note(history: KeyHistory, keep: int) -> Iterator[str]:
    """A note has the lines of those who decided the key, and nothing else."""
    for entry in history.entries:
        for line in lines(entry.given_note):
            written = decision(line)  # the first line of a long note is cut off at its beginning
            if not any(note.endswith(written) for note in history.notes):
                yield f"nobody has decided the key, but its note says {line!r}"


def i13_results_are_stored_first(history: KeyHistory, keep: int) -> Iterator[str]:
    for result in history.results:
        stored = history.outcomes.get(result.fence, [])
        # A replay may come before the reply to the finish itself.
        if not any(outcome.sent <= result.came for outcome in stored):
            yield f"a caller got the result of fence {result.fence} before it was stored"


def i9_repeats_get_the_same_reply(history: KeyHistory, keep: int) -> Iterator[str]:
    claimed: dict[str, Entry] = {}
    finished: dict[tuple[str, int, int, str], Entry] = {}
    closing: dict[str, int] = {}
    for grant in history.grants:
        if grant.closing_sent is not None:
            earlier = closing.get(grant.owner, grant.closing_sent)
            closing[grant.owner] = min(earlier, grant.closing_sent)
    for entry in history.entries:
        if entry.verb == "Claim":
            first = claimed.get(entry.owner)
            if first is not None:
                in_time = entry.came < first.sent + first.lease - TOLERANCE_US
                still = closing.get(entry.owner, entry.came + 1) > entry.came
                same = entry.given_fence == first.given_fence and entry.reply == "Claimed"
                if entry.sent > first.came and in_time and still and not same:
                    yield f"a repeated claim of fence {first.given_fence} was {entry.reply}"
            if entry.reply == "Claimed":
                claimed[entry.owner] = entry
        elif entry.verb == "Finish" and entry.state in FINAL:
            what = (entry.owner, entry.fence, entry.state, entry.body)
            done = finished.get(what)
            if done is None:
                if entry.reply == "Done":
                    finished[what] = entry
            elif entry.reply not in ("Done", "error"):
                in_time = entry.came < done.sent + keep - TOLERANCE_US
                if entry.sent > done.came and in_time:
                    yield f"a repeated finish of fence {entry.fence} was {entry.reply}"


def i14_a_living_owner_is_accepted(history: KeyHistory, keep: int) -> Iterator[str]:
    """An owner whose lease is not over and who has not ended it holds the key: it is not Lost."""
    closing = {(grant.owner, grant.fence): grant.closing_sent for grant in history.grants}
    alive: dict[tuple[str, int], tuple[int, int]] = {}  # known since, at least until
    for entry in history.entries:
        if entry.verb == "Claim" and entry.reply == "Claimed":
            alive[entry.owner, entry.given_fence] = entry.came, entry.sent + entry.lease
        elif entry.verb == "Renew" and entry.reply == "Done":
            alive[entry.owner, entry.fence] = entry.came, entry.sent + entry.lease
        elif entry.verb in OWNER_VERBS and entry.reply == "Lost":
            since, until = alive.get((entry.owner, entry.fence), (entry.sent, entry.sent))
            ended = closing.get((entry.owner, entry.fence))
            in_time = since <= entry.sent and entry.came < until - TOLERANCE_US
            is_first = ended is None or ended == entry.sent or ended > entry.came
            if in_time and is_first:
                early = until - entry.came
                yield f"{entry.verb} of fence {entry.fence} was lost {early} us too early"


def _with_next_came(grants: Sequence[Grant]) -> Iterator[tuple[Grant, int | None]]:
    """Each grant, and when the owner of a grant with a higher fence first knew of it."""
    came: int | None = None
    for grant in reversed(grants):
        yield grant, came
        came = grant.came if came is None else min(came, grant.came)


# Rules that hold also for keys of which some commands failed and may have been applied.
CERTAIN_RULES: tuple[Rule, ...] = (
    i6_fences_are_unique_and_grow,
    i2_the_overtaken_are_refused,
    i5_leases_never_overlap,
    i5_owners_count_from_the_sending,
    i7_rejections_leave_no_note,
)
RULES: tuple[Rule, ...] = (
    *CERTAIN_RULES,
    i2_one_outcome_per_generation,
    i1_every_run_has_its_reason,
    i1_an_error_frees_only_what_is_retry_safe,
    i12_a_fresh_start_only_after_expiry,
    i3_replays_are_what_was_stored,
    i4_what_was_stored_stays,
    i7_mismatch_exactly_when_it_differs,
    i9_repeats_get_the_same_reply,
    i13_results_are_stored_first,
    i14_a_living_owner_is_accepted,
)


def _counts(entries: Sequence[Entry], keys: Sequence[KeyHistory]) -> dict[str, int]:
    verbs = Counter((entry.verb, entry.reply) for entry in entries)
    return {
        "commands": sum(n for (verb, _), n in verbs.items() if verb not in (BODY, RESULT)),
        "bodies": sum(n for (verb, _), n in verbs.items() if verb == BODY),
        "results": sum(n for (verb, _), n in verbs.items() if verb == RESULT),
        "claims": sum(n for (verb, _), n in verbs.items() if verb == "Claim"),
        "grants": sum(len(history.grants) for history in keys),
        "takeovers": sum(g.taken_over for history in keys for g in history.grants),
        "give-ups": sum(len(history.unknown) for history in keys),
        "fenced zombies": verbs["Finish", "Lost"] + verbs["Renew", "Lost"],
        "replays": verbs["Claim", "Replay"],
        "mismatches": verbs["Claim", "Mismatched"],
        "in flight": verbs["Claim", "Busy"],
        "renewals": verbs["Renew", "Done"],
        "releases": verbs["Release", "Done"],
        "resolved": verbs["Resolve", "Done"],
        "finishes": verbs["Finish", "Done"],
        "generations": sum(h.grants[-1].generation for h in keys if h.grants),
        "store errors": sum(n for (_, reply), n in verbs.items() if reply == "error"),
        "uncertain keys": sum(not history.certain for history in keys),
    }

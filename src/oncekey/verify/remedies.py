"""How each fault is mended, for whoever owns the API, whatever it is written in."""

from __future__ import annotations

from collections.abc import Mapping

from oncekey.verify.verdict import Fault

REMEDIES: Mapping[Fault, str] = {
    Fault.RACE: (
        "Claim the key with one atomic write before the handler runs: INSERT ... ON CONFLICT DO "
        "NOTHING, SET NX, or a conditional put. Only who wins that write may run."
    ),
    Fault.STALE_RESET: (
        "Let the owner of a running key renew its claim while it works, and take over only what "
        "was not renewed. Give each claim a growing number, and refuse writes of an older one."
    ),
    Fault.FAILURE_CLOBBERS_SUCCESS: (
        "Write an outcome only if the key still has this attempt's claim: UPDATE ... WHERE key = ? "
        "AND claim = ? AND state = 'running'. Check that one row was changed."
    ),
    Fault.MISMATCH_DESTROYS_RECORD: (
        "Compare the request before anything else, and return the refusal without touching the "
        "record; keep it out of the error handling that marks a key as failed."
    ),
    Fault.UNSCOPED: (
        "Store and look up keys by the authenticated account together with the key, in one unique "
        "index."
    ),
    Fault.BODY_NOT_COMPARED: (
        "Store a hash of method, path and body with the key, and refuse a request whose hash "
        "differs."
    ),
    Fault.IN_FLIGHT_BEFORE_MISMATCH: (
        "Store the hash of the request with the claim, not with the outcome, and compare it before "
        "answering that the first request is still running."
    ),
    Fault.RERUN_ON_NO_CONTENT: (
        "Decide by the state of the record whether there is an outcome, not by whether its body is "
        "empty: `is None` is not `not body`."
    ),
    Fault.RERUN_ON_LARGE: (
        "Keep the key as finished also when its response is too large to store, and tell a retry "
        "that the operation is done and where to read the result."
    ),
    Fault.REPLAY_BEFORE_AUTH: (
        "Put authentication and authorization before the lookup of keys, and check them for every "
        "retry too."
    ),
    Fault.LOST_ON_DISCONNECT: (
        "Run the handler so that a client that leaves does not cancel it, and store the outcome "
        "before the response is sent. Do not store what only the broken connection made fail."
    ),
    Fault.STATUS_LOST: "Store the status with the body, and send both.",
    Fault.COOKIES_REPLAYED: (
        "Leave Set-Cookie out of the record, and other headers that belong to one connection."
    ),
    Fault.HEADER_LINES_JOINED: (
        "Refuse a request with more than one line of the key header with 400. Many frameworks join "
        "lines by a comma: ask for the list of values, or refuse a key with a comma."
    ),
    Fault.KEY_IGNORED: (
        "Check that the key's middleware covers this method and path, and reads this header. The "
        "retry was run as if it had no key."
    ),
    Fault.RERUN_AFTER_LOST_RESPONSE: (
        "Store the outcome, durably, before the first byte of the response is sent."
    ),
    Fault.RERUN_AFTER_FAILURE: (
        "Remove the key after a failure only where nothing can have happened. Else keep the "
        "failure, or the fact that the outcome is not known, and answer retries with it."
    ),
    Fault.BODY_CHANGED: (
        "Store the body as the bytes that were sent, and send these; do not parse and write them "
        "again. Do not let a proxy or middleware change replays alone."
    ),
    Fault.HEADERS_LOST: (
        "Store the headers that describe the response: Content-Type, Location, ETag, Link, and "
        "those of your own that clients read."
    ),
    Fault.KEY_ACCEPTED: (
        "Check the header before it is used: one line, a limited length, visible ASCII; answer "
        "anything else with 400."
    ),
    Fault.KEY_FORMS_DIFFER: (
        "Parse the header as a String of RFC 9651 where it is quoted, and use what is inside the "
        "quotes, so that both forms are one key."
    ),
    Fault.KEY_NOT_REQUIRED: (
        "Answer a request without its key with 400. If the key is optional here by intent, leave "
        "the check out: --skip missing-key."
    ),
    Fault.WRONG_STATUS: (
        "Answer with the status of the profile, or run with the profile that the API follows."
    ),
    Fault.NEVER_ANSWERED: (
        "Make sure that the first request's outcome is stored, and that a claim whose owner died "
        "ends: a lease, not a flag that nobody resets."
    ),
    Fault.SERVER_FAILED: (
        "Look at the server's log for this request. What is wrong about a request must be refused "
        "with a 4xx before it reaches the store."
    ),
    Fault.OTHER_BODY_RUN: (
        "Store keys by caller and key alone, and the hash of the request beside them as a value to "
        "compare; do not make it a part of what is looked up."
    ),
    Fault.PATH_NOT_COMPARED: (
        "Take method and path into the hash of the request that is stored with the key, or into "
        "what the key is looked up by."
    ),
    Fault.SUCCESS_WITHOUT_EFFECT: (
        "Commit before the outcome is stored: in the handler, or in a hook that runs inside of the "
        "code that stores the outcome. Frameworks commit late in the exit of a dependency, in a "
        "hook after the request, and in a transaction that is opened around the handler."
    ),
    Fault.FAILURE_NOT_KEPT: (
        "Store a 5xx of the handler like any other outcome, and replay it; a client that wants "
        "another try sends a new key."
    ),
    Fault.REPLAY_UNMARKED: "Send the profile's header with every replayed response.",
    Fault.KEY_REFUSED: "Accept keys up to the length that the profile says, in header and column.",
    Fault.KEY_TRUNCATED: (
        "Refuse a key that is longer than its column with 400; store long keys by a hash of the "
        "whole key."
    ),
    Fault.KEY_CASE_IGNORED: (
        "Store keys in a column that compares bytes: a binary collation, or a hash of the key."
    ),
    Fault.REFUSED_BUT_RUN: (
        "Check key and request before anything else, and end there if they are refused: the "
        "handler must not have begun."
    ),
    Fault.EXPIRED_EARLY: (
        "Keep keys for as long as is published: look at the eviction policy of the cache, the "
        "clean-up job, and from when the time is counted."
    ),
}


def remedy(fault: Fault) -> str:
    """Return how the fault is mended."""
    return REMEDIES.get(fault, f"{fault.cause[0].upper()}{fault.cause[1:]}.")

"""Who may see the dashboard: its token, the cookie of a sign-in, one-time codes, and the tokens
that its forms carry against cross-site requests.

Everything that is signed is signed with keys that are derived from the token, so that several
processes of one app accept each other's cookies and forms. Which cookies were signed out is known
to the process that did it, and to no other. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from oncekey.core.errors import ConfigurationError

TOKEN_MIN_CHARS: Final = 16
TOKEN_MAX_CHARS: Final = 512
SIGN_IN_SECONDS: Final = 8 * 3_600
CODE_SECONDS: Final = 600
CODES_MAX: Final = 16
WRONG_TOKENS_MAX: Final = 10
WRONG_TOKENS_SECONDS: Final = 60
ADDRESSES_MAX: Final = 1_000
PAUSE_SECONDS: Final = 1  # before a wrong token is refused that is one of too many
HELD_MAX: Final = 32  # answers that wait so at once
REVOKED_MAX: Final = 10_000

_NONCE_BYTES: Final = 16
_COOKIE_MAX_CHARS: Final = 200


class TooManyTries(Exception):
    """A wrong token from an address that has sent too many of them."""


class Access:
    """The token, and all that follows from it. `clock` gives seconds, as `time.time` does."""

    def __init__(self, token: str, clock: Callable[[], float] = time.time) -> None:
        if not isinstance(token, str) or not TOKEN_MIN_CHARS <= len(token) <= TOKEN_MAX_CHARS:
            raise ConfigurationError(
                f"token= must be a text of {TOKEN_MIN_CHARS} to {TOKEN_MAX_CHARS} characters; "
                "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
            )
        self._token = token.encode("utf-8", "surrogatepass")
        self._clock = clock
        self._codes: OrderedDict[str, float] = OrderedDict()
        self._wrong = WrongTokens(clock)
        self._revoked: dict[str, int] = {}  # when each ends by itself
        self._refused_until = 0  # cookies that end by then are refused
        # Cookies do not tell ports apart: two dashboards on one host need two names.
        self.cookie_name = f"oncekey_dashboard_{self._sign('name', '')[:8]}"

    def sign_in(self, token: str, address: str) -> str | None:
        """The cookie for who has the token, however many wrong ones have come from the address:
        others may be behind it. None for a wrong token; raises TooManyTries for one too many."""
        given = token[: TOKEN_MAX_CHARS + 1].encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(_digest(given), _digest(self._token)):
            self._wrong.add(address)
            return None
        return self.new_cookie()

    def new_code(self) -> str:
        """A code that signs in once, within CODE_SECONDS, in this process."""
        code = secrets.token_urlsafe(24)
        self._codes[code] = self._clock() + CODE_SECONDS
        while len(self._codes) > CODES_MAX:
            self._codes.popitem(last=False)
        return code

    def redeem(self, code: str, address: str) -> str | None:
        """The cookie for who has a code that was not used yet; else as `sign_in`."""
        ends = self._codes.pop(code, 0.0)
        if ends <= self._clock():
            self._wrong.add(address)
            return None
        return self.new_cookie()

    def new_cookie(self) -> str:
        head = f"{int(self._clock()) + SIGN_IN_SECONDS}.{secrets.token_hex(_NONCE_BYTES)}"
        return f"{head}.{self._sign('cookie', head)}"

    def is_cookie(self, cookie: str) -> bool:
        """True if this is a cookie of ours that has not run out."""
        head, _, signature = cookie[:_COOKIE_MAX_CHARS].rpartition(".")
        if not _is_same(signature, self._sign("cookie", head)) or head in self._revoked:
            return False
        return _end_of(head) > max(self._clock(), self._refused_until)

    def revoke(self, cookie: str) -> None:
        """End a cookie, also for whoever has a copy of it. If there are more than REVOKED_MAX, the
        oldest are forgotten, and every cookie that is as old as these is refused."""
        if not self.is_cookie(cookie):
            return
        head = cookie.rpartition(".")[0]
        self._revoked[head] = _end_of(head)
        if len(self._revoked) > REVOKED_MAX:
            self._forget(int(self._clock()))  # those that have run out need no memory
        if len(self._revoked) > REVOKED_MAX:
            self._refused_until = min(self._revoked.values())
            self._forget(self._refused_until)

    def _forget(self, end: int) -> None:
        self._revoked = {head: at for head, at in self._revoked.items() if at > end}

    def form_token(self, cookie: str) -> str:
        """What a form on a page carries that was sent to the bearer of this cookie."""
        return self._sign("form", cookie)

    def is_form_token(self, cookie: str, given: str) -> bool:
        return _is_same(given, self.form_token(cookie))

    def _sign(self, purpose: str, text: str) -> str:
        key = hmac.digest(self._token, f"oncekey dashboard {purpose}".encode(), "sha256")
        return hmac.new(key, text.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


class WrongTokens:
    """Counts wrong tokens by address, for the last WRONG_TOKENS_SECONDS; of many addresses those
    with the oldest tries are forgotten. The right token is never counted and never refused: what a
    guesser cannot get over is the token, which is long and random."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tries: OrderedDict[str, list[float]] = OrderedDict()

    def add(self, address: str) -> None:
        """Count a wrong token. Raises TooManyTries if there were too many before it."""
        now = self._clock()
        tries = [at for at in self._tries.pop(address, ()) if at > now - WRONG_TOKENS_SECONDS]
        self._tries[address] = [*tries, now][-WRONG_TOKENS_MAX:]
        while len(self._tries) > ADDRESSES_MAX:
            self._tries.popitem(last=False)
        if len(tries) >= WRONG_TOKENS_MAX:
            raise TooManyTries


class HeldAnswers:
    """Holds back the refusal of wrong tokens that come too often, so that a guesser has to wait for
    each. Of many at once only HELD_MAX wait, or guessers would take all of a server's
    connections."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._sleep = sleep
        self._held = 0

    async def pause(self) -> None:
        if self._held >= HELD_MAX:
            return
        self._held += 1
        try:
            await self._sleep(PAUSE_SECONDS)
        finally:
            self._held -= 1


def _end_of(head: str) -> int:
    """When a cookie of ours ends: the beginning of its head."""
    return int(head.partition(".")[0])


def _digest(text: bytes) -> bytes:
    # Of equal length whatever was sent, so that the comparison does not tell the token's length.
    return hashlib.sha256(text).digest()


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())

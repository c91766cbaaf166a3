"""Cookies replayed: the stored response contains the Set-Cookie of the first one.

What is wrong: all headers are stored. A cookie is not part of the answer but of the session of the
client that got it first.
Where it comes from: "cache the exact HTTP response", taken at its word.
What it costs: a retry, which may come from another device or a worker of the same account, gets a
session that it never signed in to, or one that was ended meanwhile and now lives again.
How the verifier shows it: it looks for Set-Cookie in a replay.
"""

from __future__ import annotations

from examples.broken.guard import Guard
from starlette.responses import Response


class CookiesReplayed(Guard):
    def stored_headers(self, response: Response) -> list[tuple[str, str]]:
        return [item for item in response.headers.items() if item[0] != "content-length"]

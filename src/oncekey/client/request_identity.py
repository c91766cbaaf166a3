"""What matters of a request beside how a library holds it: what is asked, and the key's field.

Owns the digest that tells two requests apart, the form of a key in a header (an RFC 9651 String,
or bare), and what of a URL may be shown. Knows no HTTP library.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import http_sf

from oncekey.core.errors import InvalidKey
from oncekey.core.identity import KEY_MAX_CHARS

HIDDEN: Final = "_oncekey_field"  # on a request: the key's field, taken off before a redirect
REPLAYED_HEADERS: Final = ("X-Idempotency-Replayed", "Idempotent-Replayed")

_ASKED_PERSON: Final = b"oncekey-asked-v1"
_TAG_PERSON: Final = b"oncekey-tag-v1"
_TAG_CHARS: Final = 12
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_BOUNDARY: Final = re.compile(r'multipart/.*;\s*boundary=(?:"([^"]+)"|([^\s;]+))', re.I | re.S)


class Asked(NamedTuple):
    """One request, whole, and on whose behalf it is sent, where the client was told."""

    method: str
    url: str
    content_type: str
    body: bytes
    account: str = ""

    @property
    def digest(self) -> bytes:
        """The same for the same request, also in another process."""
        digest = blake2b(digest_size=32, person=_ASKED_PERSON)
        parts = urlsplit(self.url)
        url = parts._replace(path=parts.path or "/", fragment="").geturl()
        texts = (self.account, self.method, url)
        for part in (*(text.encode("utf-8", "surrogatepass") for text in texts), self._content()):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()

    def _content(self) -> bytes:
        """The body; a multipart form's without its boundary, which is drawn anew each time."""
        found = _BOUNDARY.match(self.content_type)
        if not found:
            return self.body
        return self.body.replace(b"--" + (found[1] or found[2]).encode("latin-1"), b"--")

    @property
    def shown(self) -> str:
        """The URL without query, fragment and user, where secrets are."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def tag_of(key: str) -> str:
    """A short name of a key for messages and logs."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16, person=_TAG_PERSON)
    return digest.hexdigest()[:_TAG_CHARS]


# --- the key's field -----------------------------------------------------------------------------


def field_of(key: str, *, quoted: bool) -> str:
    """The header's value for a key. Raises InvalidKey."""
    if not isinstance(key, str) or not _VISIBLE.fullmatch(key) or len(key) > KEY_MAX_CHARS:
        raise InvalidKey(
            f"a key that travels in a header is text of 1 to {KEY_MAX_CHARS} visible ASCII "
            "characters; nothing was sent"
        )
    return http_sf.ser(key) if quoted else key


def key_in(lines: Sequence[str], header: str) -> str | None:
    """The key that the caller has put into the header; None where there is none.

    What a provider takes for a key is its own business, so anything but nothing is accepted.
    """
    if not lines:
        return None
    value = lines[0].strip()
    if len(lines) > 1 or not value:
        found = f"{len(lines)} times" if len(lines) > 1 else "without a value"
        raise InvalidKey(f"{header} is set {found}; set it once, or leave it to oncekey")
    if value.startswith('"'):
        try:
            parsed = http_sf.parse(value.encode("latin-1"), tltype="item")
        except ValueError:
            return value
        item = parsed[0] if isinstance(parsed, tuple) else parsed
        return item if type(item) is str and item else value
    return value

"""What identifies a request and its key, whatever library sends it.

`RequestIdentity` has the digest that tells two requests apart. The functions below it read and
write a key in a header, as an RFC 9651 String or bare, and name it in messages.
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

# The attribute of a library's request that has the key's header, removed before a redirect.
REMOVED_KEY: Final = "_oncekey_removed_key"

_REQUEST_PERSON: Final = b"oncekey-asked-v1"
_TAG_PERSON: Final = b"oncekey-tag-v1"
_TAG_CHARS: Final = 12
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_BOUNDARY: Final = re.compile(r'multipart/.*;\s*boundary=(?:"([^"]+)"|([^\s;]+))', re.I | re.S)


class RequestIdentity(NamedTuple):
    """A whole request, and the account on whose behalf it is sent, if the client has one."""

    method: str
    url: str
    content_type: str
    body: bytes
    account: str = ""

    @property
    def digest(self) -> bytes:
        """A hash that is the same for the same request, in another process too."""
        digest = blake2b(digest_size=32, person=_REQUEST_PERSON)
        parts = urlsplit(self.url)
        url = parts._replace(path=parts.path or "/", fragment="").geturl()
        texts = (self.account, self.method, url)
        for part in (*(text.encode("utf-8", "surrogatepass") for text in texts), self._content()):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()

    def _content(self) -> bytes:
        """The body; that of a multipart form without its boundary, which is random each time."""
        found = _BOUNDARY.match(self.content_type)
        if not found:
            return self.body
        return self.body.replace(b"--" + (found[1] or found[2]).encode("latin-1"), b"--")

    @property
    def display_url(self) -> str:
        """The URL without its query, fragment and user, which may be secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def tag_of(key: str) -> str:
    """A short name of a key, for messages and logs."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16, person=_TAG_PERSON)
    return digest.hexdigest()[:_TAG_CHARS]


# --- the key's header ----------------------------------------------------------------------------


def key_header_value(key: str, *, quoted: bool) -> str:
    """The value of the header that carries a key. Raises InvalidKey."""
    if not isinstance(key, str) or not _VISIBLE.fullmatch(key) or len(key) > KEY_MAX_CHARS:
        raise InvalidKey(
            f"a key that travels in a header is text of 1 to {KEY_MAX_CHARS} visible ASCII "
            "characters; nothing was sent"
        )
    return http_sf.ser(key) if quoted else key


def key_from_header(values: Sequence[str], header: str) -> str | None:
    """The key that the caller put into the header; None if there is none.

    What a provider accepts as a key is its own business, so any value but an empty one will do.
    """
    if not values:
        return None
    value = values[0].strip()
    if len(values) > 1 or not value:
        found = f"{len(values)} times" if len(values) > 1 else "without a value"
        raise InvalidKey(f"{header} is set {found}; set it once, or leave it to oncekey")
    if value.startswith('"'):
        try:
            parsed = http_sf.parse(value.encode("latin-1"), tltype="item")
        except ValueError:
            return value
        item = parsed[0] if isinstance(parsed, tuple) else parsed
        return item if type(item) is str and item else value
    return value

"""URLs of etcd stores: a password is never shown, whatever is wrong with the URL."""

from __future__ import annotations

import pytest

from oncekey import Once
from oncekey.core.errors import ConfigurationError
from oncekey.stores.etcd.options import split_url


@pytest.mark.parametrize(
    "url",
    [
        "etcd://user:part1/part2@host:2379/prefix",
        "etcd://user:1234/part2@host:2379/prefix",
        "etcd://user:part1?part2@host:2379/prefix",
        "etcd://user:part1@host:port/prefix",
        "etcd://user:part1@host:1,:2/prefix",
        "etcd://user:part1@host:2379/prefix?bucket=x",
        "etcd://user:part1@host:2379/prefix?other=x",
    ],
)
def test_an_error_about_a_url_does_not_show_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Once(url)
    shown = f"{caught.value!r} {caught.value}"
    assert not any(part in shown for part in ("part1", "part2", "1234"))


def test_options_do_not_show_their_password() -> None:
    addresses, options = split_url("etcd://user:p%40rt%2F1@host/prefix%40x")
    assert (addresses, options.prefix, options.password) == (["host:2379"], "prefix@x", "p@rt/1")
    assert "rt/1" not in repr(options)

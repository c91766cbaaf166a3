"""The options of an etcd store, and the URL that gives them.

    etcd://[user:password@]host:port,host:port,host:port/prefix?option=value
    etcds://...                                          the same over TLS

This module checks values and knows no client library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError

PORT_DEFAULT: Final = 2379
PREFIX_DEFAULT: Final = "oncekey"
PREFIX_MAX_BYTES: Final = 255
# etcd grants leases of whole seconds, ends none earlier than after two, and looks for ended ones
# twice a second.
LEASE_MIN_US: Final = 2_000_000
# The servers' own defaults: --max-txn-ops and --max-request-bytes.
TXN_OPS_DEFAULT: Final = 128
TXN_OPS_MIN: Final = 16
REQUEST_BYTES_DEFAULT: Final = 1_572_864
REQUEST_BYTES_MIN: Final = 65_536
REQUEST_BYTES_MAX: Final = 64 * 1024 * 1024
NESTED_OPS_MAX: Final = 5  # operations of the largest nested transaction
COMPARES_MAX: Final = 4  # of the outer transaction, besides one for each command
# What a request has besides the value of a record: its index entries, keys and protocol.
REQUEST_OVERHEAD_BYTES: Final = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a store works; every value has a default.

    prefix          all keys of the store begin with it
    call_timeout    how long a call may take in all
    try_timeout     how long one member may take; then another member is asked
    bucket          records whose audit ends within the same span of this length are removed
                    together: they share an etcd lease
    txn_ops         the servers' --max-txn-ops
    request_bytes   the servers' --max-request-bytes
    ca, cert, key   PEM files, with etcds:// only: the authority, and the client's certificate
    user, password  given before the hosts: user:password@host
    clock           replaces the clocks, in tests only
    lease_min       replaces the shortest lease, in tests with a clock of their own only
    """

    prefix: str = PREFIX_DEFAULT
    call_timeout: Duration = "5s"
    try_timeout: Duration = "2s"
    bucket: Duration = "10m"
    txn_ops: int = TXN_OPS_DEFAULT
    request_bytes: int = REQUEST_BYTES_DEFAULT
    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    clock: Callable[[], int] | None = None
    lease_min: int = LEASE_MIN_US

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) or not self.prefix.strip("/"):
            raise ConfigurationError(f"prefix={self.prefix!r} must be text that is not empty")
        if len(self.prefix.encode()) > PREFIX_MAX_BYTES:
            raise ConfigurationError(f"prefix={self.prefix!r} is over {PREFIX_MAX_BYTES} bytes")
        for name in ("call_timeout", "try_timeout", "bucket"):
            if self.us(name) < 1_000:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be 1ms or longer")
        self._check_number("txn_ops", TXN_OPS_MIN, 10_000)
        self._check_number("request_bytes", REQUEST_BYTES_MIN, REQUEST_BYTES_MAX)
        if bool(self.cert) != bool(self.key):
            raise ConfigurationError("cert= and key= belong together: give both or none")
        if (self.ca or self.cert) and not self.tls:
            raise ConfigurationError("ca=, cert= and key= are for TLS; write etcds://")
        if self.password and not self.user:
            raise ConfigurationError("a password without a user; write user:password@host")

    def _check_number(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if type(value) is not int or not least <= value <= most:
            raise ConfigurationError(f"{name}={value!r} must be a number from {least} to {most}")

    def us(self, name: str) -> int:
        """One of the durations in microseconds."""
        return microseconds(getattr(self, name), name=name)

    def seconds(self, name: str) -> float:
        """One of the durations in seconds."""
        return self.us(name) / 1_000_000

    @property
    def root(self) -> str:
        """What all keys begin with: the prefix between single slashes."""
        return f"/{self.prefix.strip('/')}/"

    @property
    def operations_max(self) -> int:
        """How many operations a transaction of nested ones may have. The servers count those of the
        largest nested one against the same limit, and the comparisons."""
        return self.txn_ops - NESTED_OPS_MAX - COMPARES_MAX

    @property
    def value_max(self) -> int:
        """How many bytes a record may have."""
        return self.request_bytes - REQUEST_OVERHEAD_BYTES


def split_url(url: str) -> tuple[list[str], Options]:
    """The members' addresses and the options in a URL. ConfigurationError if it says something
    that cannot be."""
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    hosts, _, prefix = rest.partition("/")
    if "@" in prefix + query:  # else a part of the password would be taken for a host or an option
        raise ConfigurationError(
            "the store's URL has an @ after a / or ?; in a user, a password or a prefix write "
            "/ as %2F, ? as %3F and @ as %40"
        )
    login, at, addresses = hosts.rpartition("@")
    given: dict[str, Any] = {"tls": scheme == "etcds"}
    if at:
        user, _, password = login.partition(":")
        given.update(user=unquote(user), password=unquote(password))
    if prefix.strip("/"):
        given["prefix"] = unquote(prefix)
    not_in_query = {"prefix", "user", "password", "tls", "clock", "lease_min"}
    known = {one.name: one for one in fields(Options) if one.name not in not_in_query}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise ConfigurationError(
                f"{name!r} is no option of an etcd store; known are {', '.join(known)}"
            )
        if name in given:
            raise ConfigurationError(f"the option {name!r} is given twice in the store's URL")
        is_number = isinstance(known[name].default, int)
        if is_number and not value.isdecimal():
            raise ConfigurationError(f"{name}={value!r} must be a number")
        given[name] = int(value) if is_number else value
    return [_address(host) for host in addresses.split(",")], Options(**given)


def _address(host: str) -> str:
    """An address with its port."""
    name, colon, port = host.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        name, colon, port = host, "", ""
    if not colon:
        name, port = host, str(PORT_DEFAULT)
    if not name or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigurationError(
            f"{host!r} is not an address; write etcd://host:port,host:port,host:port/prefix"
        )
    return f"{name}:{port}"

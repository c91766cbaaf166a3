"""`etcd://host:port,host:port,host:port/prefix`: the store that survives losing a machine.

What is acknowledged is on the disks of a majority of the members. Claims are kept alive by leases
that the servers end, so no host's clock decides who may run. It is for few and precious keys: etcd
holds some gigabytes. Both stores need aetcd, which is not imported before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncekey.core.errors import ConfigurationError
from oncekey.stores.etcd.etcd_url import Options, split_url

if TYPE_CHECKING:
    from oncekey.stores.etcd.etcd_store import AsyncEtcdStore, EtcdStore

__all__ = [
    "AsyncEtcdStore",
    "EtcdStore",
    "Options",
    "open_async",
    "open_blocking",
]

_NEEDS = "the etcd store needs aetcd: pip install 'oncekey[etcd]'"


def open_blocking(url: str) -> EtcdStore:
    addresses, options = split_url(url)
    store: EtcdStore = _load("etcd_store").EtcdStore(addresses, **_as_dict(options))
    return store


def open_async(url: str) -> AsyncEtcdStore:
    addresses, options = split_url(url)
    store: AsyncEtcdStore = _load("etcd_store").AsyncEtcdStore(addresses, **_as_dict(options))
    return store


def __getattr__(name: str) -> Any:
    """The store classes, imported on first access, because they need their client library."""
    if name in ("AsyncEtcdStore", "EtcdStore"):
        return getattr(_load("etcd_store"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _load(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"oncekey.stores.etcd.{name}")
    except ImportError as error:
        raise ConfigurationError(_NEEDS) from error


def _as_dict(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in Options.__dataclass_fields__}

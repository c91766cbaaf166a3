"""`etcd://host:port,host:port,host:port/prefix`: the store that survives losing a machine.

What is acknowledged is on the disks of a majority of the members. Claims are kept alive by leases
that the servers end, so no host's clock decides who may run. It is for few and precious keys: etcd
holds some gigabytes. Both stores need aetcd, which is not imported before it is needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from oncekey.core.errors import ConfigurationError
from oncekey.stores.etcd.options import Options, split_url

if TYPE_CHECKING:
    from oncekey.stores.etcd.etcd_store import AsyncEtcdStore, EtcdStore
    from oncekey.stores.inspection import Checkup, Inspection

__all__ = [
    "AsyncEtcdStore",
    "EtcdStore",
    "Options",
    "checkup",
    "inspect",
    "is_same_store",
    "migrate",
    "migration_script",
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


def inspect(url: str) -> Inspection:
    """Read what is below the prefix."""
    found: Inspection = _load("cluster_checks").inspect(url)
    return found


def migrate(url: str) -> None:
    """Make a store below the prefix, if there is none."""
    _load("cluster_checks").migrate(url)


def migration_script(url: str) -> str:
    """Raises ConfigurationError: etcd has no tables."""
    script: str = _load("cluster_checks").migration_script(url)
    return script


def checkup(url: str) -> Checkup:
    """Check the health of the cluster and of the prefix, read-only."""
    found: Checkup = _load("cluster_checks").checkup(url)
    return found


def is_same_store(url: str, store: object) -> bool | None:
    """Whether a store object has its records where this URL says."""
    same: bool | None = _load("cluster_checks").is_same_store(url, store)
    return same


def __getattr__(name: str) -> Any:
    """The store classes and the checks, imported on first access, because they need their client
    library."""
    if name in ("AsyncEtcdStore", "EtcdStore"):
        return getattr(_load("etcd_store"), name)
    if name == "CHECKS":
        return _load("cluster_checks").CHECKS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _load(name: str) -> Any:
    try:
        return importlib.import_module(f"oncekey.stores.etcd.{name}")
    except ImportError as error:
        raise ConfigurationError(_NEEDS) from error


def _as_dict(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in Options.__dataclass_fields__}

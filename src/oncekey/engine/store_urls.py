"""Opens stores by URL. The engine knows no store: the scheme of a URL names the store's module.

Other packages add schemes with an entry point in the group "oncekey.stores": scheme = module.
A store module has `open_blocking(url)` and `open_async(url)`, and for the command line
`inspect(url)`, `migrate(url)` and `migration_script(url)` (see oncekey.stores.inspection), and
`checkup(url)` (see oncekey.stores.inspection).

moving://OLD,NEW names two stores, while keys move from the first to the second: the scheme of each
names its own module, and oncekey.stores.move makes one store of them.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from oncekey.core.errors import ConfigurationError
from oncekey.core.store import AsyncStore, Store

BUILT_IN = {
    "memory": "oncekey.stores.memory",
    "sqlite": "oncekey.stores.sqlite",
    "postgresql": "oncekey.stores.postgres",
    "postgres": "oncekey.stores.postgres",
    "redis": "oncekey.stores.redis",
    "rediss": "oncekey.stores.redis",
    "redis+sentinel": "oncekey.stores.redis",
    "rediss+sentinel": "oncekey.stores.redis",
    "redis+cluster": "oncekey.stores.redis",
    "rediss+cluster": "oncekey.stores.redis",
    "etcd": "oncekey.stores.etcd",
    "etcds": "oncekey.stores.etcd",
    "moving": "oncekey.stores.move",
}
GROUP = "oncekey.stores"
MOVING = "moving"
# A comma may be in a URL (three hosts of a cluster); one before a scheme begins the next URL.
_NEXT_URL = re.compile(r",(?=[a-z][a-z0-9+.-]*://)")


def blocking_store(store: Store | str) -> Store:
    if not isinstance(store, str):
        _check_store(store, is_async=False)
        return store
    pair = moving_urls(store)
    if pair is not None:
        old, new = (blocking_store(url) for url in pair)
        dual: Store = _dual("DualStore", old, new)
        return dual
    opened: Store = store_module(store).open_blocking(store)
    return opened


def async_store(store: AsyncStore | str) -> AsyncStore:
    if not isinstance(store, str):
        _check_store(store, is_async=True)
        return store
    pair = moving_urls(store)
    if pair is not None:
        old, new = (async_store(url) for url in pair)
        dual: AsyncStore = _dual("AsyncDualStore", old, new)
        return dual
    opened: AsyncStore = store_module(store).open_async(store)
    return opened


def _dual(name: str, old: Any, new: Any) -> Any:
    return getattr(importlib.import_module(BUILT_IN[MOVING]), name)(old, new)


def moving_urls(url: str) -> tuple[str, str] | None:
    """The URLs of the old and the new store in moving://OLD,NEW; None for the URL of one store."""
    scheme, _, rest = url.partition("://")
    if scheme != MOVING:
        return None
    urls = _NEXT_URL.split(rest)
    if len(urls) != 2 or not all("://" in one for one in urls):
        raise ConfigurationError(
            f"{MOVING}:// needs the old and the new store, such as "
            f"{MOVING}://sqlite:///payments.db,postgresql://app@db/shop"
        )
    old, new = urls
    if old == new or MOVING in (old.partition("://")[0], new.partition("://")[0]):
        raise ConfigurationError(f"{MOVING}:// needs two different stores that do not move")
    return old, new


def _check_store(store: object, *, is_async: bool) -> None:
    if store is None:
        raise ConfigurationError(
            "the store is None; if its URL comes from the environment, that variable is not set. "
            "Give a URL such as sqlite:///payments.db, or a Store object"
        )
    apply = getattr(store, "apply", None)
    if not callable(apply):
        raise ConfigurationError(
            f"a {type(store).__name__} is no store; give a URL such as sqlite:///payments.db, or a "
            "Store object"
        )
    if not is_async and inspect.iscoroutinefunction(apply):
        raise ConfigurationError(f"a {type(store).__name__} is async; give it to AsyncOnce")


def store_module(url: str) -> Any:
    """The module for the URL's scheme; raises ConfigurationError if there is none."""
    scheme, separator, _ = url.partition("://")
    moving_urls(url)  # a wrong one is an error now
    if not url:
        raise ConfigurationError(
            "the store's URL is empty; if it comes from the environment, that variable is set to "
            "nothing. Try sqlite:///payments.db"
        )
    if not separator:
        raise ConfigurationError(f"{url!r} is not a store URL; try sqlite:///payments.db")
    name = BUILT_IN.get(scheme)
    if name is None:
        # A tenth of the time that `import oncekey` takes, and few need it.
        from importlib.metadata import entry_points

        added = {point.name: point.value for point in entry_points(group=GROUP)}
        plain, plus, driver = scheme.partition("+")
        if scheme not in added and plus and plain in {*BUILT_IN, *added}:
            raise ConfigurationError(
                f"no store for {scheme}://: that is how SQLAlchemy names a driver. Drop "
                f"+{driver} and write {plain}://...; oncekey chooses its driver itself"
            )
        if scheme not in added:
            known = ", ".join(sorted({*BUILT_IN, *added}))
            raise ConfigurationError(f"no store for {scheme}://; known are {known}")
        name = added[scheme]
    return importlib.import_module(name)

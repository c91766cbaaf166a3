"""A store on an etcd with authentication: a user that may use its prefix, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aetcd import rpc
from tests.support.servers.etcd_cluster import EtcdCluster
from tests.support.servers.requirements import require

from oncekey import Once
from oncekey.core.errors import ConfigurationError
from oncekey.stores.etcd import checkup, open_blocking
from oncekey.testing.contract.store_case import claim, token

USER = "app:secret"


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdCluster]:
    own = require(lambda: EtcdCluster(1))
    with own:
        asyncio.run(_enable(own.addresses))
        yield own


async def _enable(address: str) -> None:
    async with rpc.insecure_channel(address) as channel:
        auth = rpc.AuthStub(channel)
        for name, password in (("root", "root"), ("app", "secret"), ("stranger", "secret")):
            await auth.UserAdd(rpc.AuthUserAddRequest(name=name, password=password))
        for role in ("root", "payments"):
            await auth.RoleAdd(rpc.AuthRoleAddRequest(name=role))
        allowed = rpc.Permission(
            permType=rpc.Permission.READWRITE, key=b"/payments/", range_end=b"/payments0"
        )
        await auth.RoleGrantPermission(
            rpc.AuthRoleGrantPermissionRequest(name="payments", perm=allowed)
        )
        for user, role in (("root", "root"), ("app", "payments")):
            await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=user, role=role))
        await auth.AuthEnable(rpc.AuthEnableRequest())


def url(cluster: EtcdCluster, user: str = USER, prefix: str = "payments") -> str:
    return f"etcd://{user}@{cluster.addresses}/{prefix}" if user else cluster.url(prefix)


def test_a_user_with_rights_on_the_prefix_is_enough(guarded: EtcdCluster) -> None:
    with Once(url(guarded)) as once:
        assert once.run("op", "k", lambda attempt: "done").value == "done"
        once.sweep()
        assert once.guarantee.level.label == "fenced"
        assert once._store.measure().claims >= 1
    assert {one.check for one in checkup(url(guarded)).findings} >= {"etcd.members", "etcd.records"}


def test_a_token_that_etcd_has_forgotten_is_replaced(guarded: EtcdCluster) -> None:
    store = open_blocking(url(guarded))
    store.apply([claim(token("id"), token("own"))])
    cluster: Any = store._cluster
    cluster.members._token = "forgotten.1"
    store.apply([claim(token("id"), token("own"))])
    store.close()


@pytest.mark.parametrize(
    ("user", "prefix", "words"),
    [
        ("app:wrong", "payments", "refused the user or the password"),
        ("", "payments", "asks for a user"),
        (USER, "elsewhere", "readwrite on the prefix"),
        ("stranger:secret", "payments", "readwrite on the prefix"),
    ],
)
def test_who_may_not_is_told_what_is_missing(
    guarded: EtcdCluster, user: str, prefix: str, words: str
) -> None:
    store = open_blocking(url(guarded, user, prefix))
    with pytest.raises(ConfigurationError, match=words):
        store.apply([claim(token("id"), token("own"))])
    store.close()

"""etcd clusters start, lose members, are cut apart and recover as tests rely on."""

from __future__ import annotations

import base64
import urllib.error
from collections.abc import Iterator

import pytest
from tests.support import etcd_stores
from tests.support.servers import processes, require
from tests.support.servers.etcd_cluster import EtcdCluster, EtcdMember


@pytest.fixture(scope="module")
def cluster() -> Iterator[EtcdCluster]:
    with require(EtcdCluster) as running:
        yield running


def text(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def put(member: EtcdMember, key: str, value: str) -> None:
    member.post("/v3/kv/put", {"key": text(key), "value": text(value)})


def get(member: EtcdMember, key: str) -> list[str]:
    answer = member.post("/v3/kv/range", {"key": text(key)})
    return [base64.b64decode(pair["value"]).decode() for pair in answer.get("kvs", [])]


def takes_writes(member: EtcdMember) -> bool:
    try:
        put(member, "probe", "1")
    except (OSError, urllib.error.URLError):
        return False
    return True


def test_one_member_keeps_its_data_when_it_is_killed() -> None:
    with require(lambda: EtcdCluster(1)) as cluster:
        (member,) = cluster.members
        put(member, "key", "kept")
        pid, folder = member.pid, member.directory
        member.kill()
        member.start()
        assert get(member, "key") == ["kept"]
        assert cluster.url("shop") == f"etcd://127.0.0.1:{member.port}/shop"
    assert not processes.is_running(pid)
    assert not folder.exists()


def test_a_killed_leader_is_replaced_and_rejoins(cluster: EtcdCluster) -> None:
    leader = cluster.leader()
    put(leader, "key", "before")
    leader.kill()
    second = cluster.leader()
    assert second is not leader
    processes.wait_until(lambda: takes_writes(second), "the others take writes")
    put(second, "key", "after")
    leader.start()
    cluster.wait_until_whole()
    assert get(leader, "key") == ["after"]


def test_a_paused_member_does_not_stop_the_others(cluster: EtcdCluster) -> None:
    leader, follower = cluster.leader(), cluster.follower()
    follower.pause()
    put(leader, "key", "written without it")
    follower.resume()
    processes.wait_until(lambda: takes_writes(follower), "it takes part again")
    assert get(follower, "key") == ["written without it"]


def test_an_isolated_leader_takes_no_writes_until_it_is_healed(cluster: EtcdCluster) -> None:
    cluster.wait_until_whole()
    old = cluster.leader()
    cluster.isolate(old)
    processes.wait_until(lambda: cluster.leader() is not old, "the majority has a leader")
    put(cluster.leader(), "key", "by the majority")
    assert not takes_writes(old)
    cluster.heal()
    processes.wait_until(lambda: takes_writes(old), "it takes part again")
    assert get(old, "key") == ["by the majority"]


def test_the_shared_cluster_has_three_members_in_its_url() -> None:
    assert etcd_stores.etcd().url().count(":") == 1 + 3
    assert etcd_stores.etcd_alone().url().count(":") == 1 + 1

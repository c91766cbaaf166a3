"""AWS client tokens, sent by the real boto3 to a fake AWS on the loopback that records them.

Three services, three protocols: ECS and DynamoDB speak JSON, EC2 forms and XML.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from tests.client.fake_aws import FakeAws

from oncekey import AsyncOnce, Once
from oncekey.client.boto3 import use_child_tokens
from oncekey.client.errors import NotSent
from oncekey.core.errors import ConfigurationError
from oncekey.core.identity import child_uuid

PUT = {"Put": {"TableName": "t", "Item": {"id": {"S": "1"}}}}
TASK = {"cluster": "c", "taskDefinition": "d"}


@pytest.fixture(scope="module")
def session() -> Iterator[boto3.Session]:
    """A session that ignores the AWS settings of the host."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        yield boto3.Session("AKIDEXAMPLE", "not a secret", region_name="eu-west-1")


@pytest.fixture
def fake_aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda seconds: None))
    made = FakeAws()
    yield made
    made.close()


Clients = Callable[[str], Any]


@pytest.fixture
def client(session: boto3.Session, fake_aws: FakeAws) -> Clients:
    def make(service: str) -> Any:
        config = Config(retries={"mode": "standard", "max_attempts": 4}, max_pool_connections=20)
        return use_child_tokens(session.client(service, endpoint_url=fake_aws.url, config=config))

    return make


@pytest.fixture
def once() -> Iterator[Once]:
    with Once("memory://") as made:
        yield made


CALLS: dict[str, Callable[[Any], Any]] = {
    "ecs": lambda ecs: ecs.run_task(**TASK),
    "dynamodb": lambda dynamodb: dynamodb.transact_write_items(TransactItems=[PUT]),
    "ec2": lambda ec2: ec2.run_instances(ImageId="ami-1", MinCount=1, MaxCount=1),
}
TOKEN = {"ecs": "clientToken", "dynamodb": "ClientRequestToken", "ec2": "ClientToken"}
every_service = pytest.mark.parametrize("service", CALLS)


# --- which token ----------------------------------------------------------------------------------


@every_service
def test_a_step_sends_its_child_uuid(
    service: str, client: Clients, fake_aws: FakeAws, once: Once
) -> None:
    aws = client(service)

    def body(attempt: Any) -> None:
        attempt.step("aws", lambda key: CALLS[service](aws))

    once.run("order", "k", body, scope="acct", retry_safe=True)
    assert fake_aws.tokens == [str(child_uuid("k", "aws", scope="acct", operation="order"))]
    assert len(fake_aws.tokens[0] or "") == 36


@every_service
def test_botocore_makes_a_token_per_call_outside_of_attempts(
    service: str, client: Clients, fake_aws: FakeAws
) -> None:
    aws = client(service)
    CALLS[service](aws)
    CALLS[service](aws)
    assert len({uuid.UUID(token).version for token in fake_aws.tokens}) == 1
    assert len(set(fake_aws.tokens)) == 2


@every_service
def test_a_retry_safe_body_may_not_call_outside_of_its_steps(
    service: str, client: Clients, fake_aws: FakeAws, once: Once
) -> None:
    aws = client(service)
    with pytest.raises(NotSent, match=r"attempt\.step.*" + TOKEN[service] + ".*Nothing was sent"):
        once.run("order", "k", lambda attempt: CALLS[service](aws), retry_safe=True)
    assert fake_aws.tokens == []


def test_a_body_that_runs_once_may_call_outside_of_its_steps(
    client: Clients, fake_aws: FakeAws, once: Once
) -> None:
    aws = client("ecs")
    once.run("order", "k", lambda attempt: aws.run_task(**TASK))
    assert len(fake_aws.tokens) == 1
    assert fake_aws.tokens != [str(child_uuid("k", "aws", operation="order"))]


def test_a_call_without_a_token_is_left_alone(
    client: Clients, fake_aws: FakeAws, once: Once
) -> None:
    aws = client("ecs")

    def body(attempt: Any) -> None:
        aws.list_clusters()
        attempt.step("run", lambda key: (aws.list_clusters(), aws.run_task(**TASK)))

    once.run("order", "k", body, retry_safe=True)
    assert fake_aws.tokens == [None, None, str(child_uuid("k", "run", operation="order"))]


def test_a_token_that_the_caller_gives_is_left_alone(
    client: Clients, fake_aws: FakeAws, once: Once
) -> None:
    aws = client("ecs")

    def body(attempt: Any) -> None:
        aws.run_task(**TASK, clientToken="mine-1")
        attempt.step("run", lambda key: aws.run_task(**TASK, clientToken="mine-2"))

    once.run("order", "k", body, retry_safe=True)
    assert fake_aws.tokens == ["mine-1", "mine-2"]


def test_a_handler_of_the_caller_may_give_a_token(
    client: Clients, fake_aws: FakeAws, once: Once
) -> None:
    aws = client("ecs")

    def give(params: dict[str, Any], **_: Any) -> None:
        params["clientToken"] = "from a handler"

    aws.meta.events.register("before-parameter-build.ecs.RunTask", give)
    once.run("order", "k", lambda attempt: aws.run_task(**TASK), retry_safe=True)
    assert fake_aws.tokens == ["from a handler"]


def test_other_clients_are_left_alone(
    client: Clients, session: boto3.Session, fake_aws: FakeAws, once: Once
) -> None:
    client("ecs")
    plain = session.client("ecs", endpoint_url=fake_aws.url)
    once.run("order", "k", lambda attempt: plain.run_task(**TASK), retry_safe=True)
    assert len(fake_aws.tokens) == 1


# --- one call per step ----------------------------------------------------------------------------


def test_a_second_call_in_a_step_is_refused_and_the_same_again_is_not(
    client: Clients, fake_aws: FakeAws, once: Once
) -> None:
    aws, other = client("ecs"), client("dynamodb")

    def body(attempt: Any) -> None:
        def call(key: str) -> None:
            aws.run_task(cluster="c", taskDefinition="d", overrides={"cpu": "1", "memory": "2"})
            aws.run_task(overrides={"memory": "2", "cpu": "1"}, taskDefinition="d", cluster="c")
            with pytest.raises(NotSent, match="not the first call of step 'run'"):
                aws.run_task(cluster="another", taskDefinition="d")
            with pytest.raises(NotSent, match="not the first call of step 'run'"):
                other.transact_write_items(TransactItems=[PUT])
            aws.run_task(cluster="another", taskDefinition="d", clientToken="mine")

        attempt.step("run", call)

    once.run("order", "k", body, retry_safe=True)
    token = str(child_uuid("k", "run", operation="order"))
    assert fake_aws.tokens == [token, token, "mine"]


def test_the_same_call_in_another_region_is_refused(
    session: boto3.Session, client: Clients, fake_aws: FakeAws, once: Once
) -> None:
    here = client("ecs")
    there = use_child_tokens(
        session.client("ecs", endpoint_url=fake_aws.url, region_name="us-east-1")
    )

    def body(attempt: Any) -> None:
        attempt.step("run", lambda key: (here.run_task(**TASK), there.run_task(**TASK)))

    with pytest.raises(NotSent):
        once.run("order", "k", body, retry_safe=True)
    assert len(fake_aws.tokens) == 1


def test_a_second_call_is_refused_if_the_caller_sent_the_steps_token(
    client: Clients, fake_aws: FakeAws, once: Once
) -> None:
    aws = client("ecs")

    def body(attempt: Any) -> None:
        def call(key: str) -> None:
            aws.run_task(**TASK, clientToken=str(attempt.child_uuid("run")))
            aws.run_task(**TASK)
            with pytest.raises(NotSent):
                aws.run_task(cluster="another", taskDefinition="d")

        attempt.step("run", call)

    once.run("order", "k", body, retry_safe=True)
    assert fake_aws.tokens == [str(child_uuid("k", "run", operation="order"))] * 2


def test_a_call_that_cannot_be_compared_is_refused(
    client: Clients, fake_aws: FakeAws, once: Once
) -> None:
    secrets = client("secretsmanager")

    def call(binary: Any) -> Any:
        return lambda key: secrets.create_secret(Name="n", SecretBinary=binary)

    def body(attempt: Any) -> None:
        with pytest.raises(NotSent, match="give its bytes"):
            attempt.step("file", call(io.BytesIO(b"s3cret")))
        attempt.step("bytes", call(b"s3cret"))

    once.run("order", "k", body, retry_safe=True)
    assert fake_aws.tokens == [str(child_uuid("k", "bytes", operation="order"))]


# --- retries and re-runs --------------------------------------------------------------------------


@every_service
def test_botocores_own_retries_keep_the_token(
    service: str, client: Clients, fake_aws: FakeAws, once: Once
) -> None:
    aws = client(service)
    fake_aws.failing = [500, 0, 503]

    def body(attempt: Any) -> None:
        attempt.step("aws", lambda key: CALLS[service](aws))

    once.run("order", "k", body, retry_safe=True)
    assert fake_aws.tokens == [str(child_uuid("k", "aws", operation="order"))] * 4


@every_service
def test_a_rerun_sends_the_same_token(
    service: str, client: Clients, fake_aws: FakeAws, tmp_path: Path
) -> None:
    """The re-run uses another engine and another client, as after a crash."""
    url = f"sqlite:///{tmp_path}/keys.db"
    first, second = client(service), client(service)

    def body(aws: Any) -> Callable[[Any], None]:
        return lambda attempt: attempt.step("aws", lambda key: CALLS[service](aws))

    fake_aws.failing = [400]
    with Once(url) as once, pytest.raises(ClientError):
        once.run("order", "k", body(first), retry_safe=True)
    with Once(url) as once:
        once.run("order", "k", body(second), retry_safe=True)
        once.run("order", "k", body(second), retry_safe=True)  # a replay: nothing is sent
    assert fake_aws.tokens == [str(child_uuid("k", "aws", operation="order"))] * 2


# --- threads and tasks ----------------------------------------------------------------------------


def test_each_thread_sends_the_token_of_its_own_step(
    client: Clients, fake_aws: FakeAws, once: Once
) -> None:
    aws = client("ecs")
    sent: dict[str, str] = {}

    def record(params: Any, **_: Any) -> None:
        call = json.loads(params["body"])
        sent[call["cluster"]] = call["clientToken"]

    aws.meta.events.register("before-call.ecs.RunTask", record)

    def body(attempt: Any) -> None:
        def call(name: str) -> Callable[[str], None]:
            target = f"{attempt.key} {name}"
            return lambda key: aws.run_task(cluster=target, taskDefinition="d")

        with attempt.parallel() as steps:
            for name in ("a", "b", "c"):
                steps.step(name, call(name))

    with ThreadPoolExecutor(8) as pool:
        for key in map(str, range(8)):
            pool.submit(once.run, "order", key, body, retry_safe=True)
        for number in range(8):
            pool.submit(aws.run_task, cluster=f"nobody {number}", taskDefinition="d")
    expected = {
        f"{key} {name}": str(child_uuid(str(key), name, operation="order"))
        for key in range(8)
        for name in ("a", "b", "c")
    }
    assert {name: token for name, token in sent.items() if "nobody" not in name} == expected
    assert len(sent) == len(set(sent.values())) == len(set(fake_aws.tokens)) == 32


def test_a_thread_started_by_an_async_step_sends_its_token(
    client: Clients, fake_aws: FakeAws
) -> None:
    aws = client("ecs")

    async def main() -> None:
        async with AsyncOnce("memory://") as once:

            async def call(key: str) -> None:
                await asyncio.to_thread(aws.run_task, **TASK)

            async def body(attempt: Any) -> None:
                with pytest.raises(NotSent):
                    await asyncio.to_thread(aws.run_task, **TASK)
                await attempt.step("run", call)

            await once.run("order", "k", body, retry_safe=True)

    asyncio.run(main())
    assert fake_aws.tokens == [str(child_uuid("k", "run", operation="order"))]


# --- what people are shown ------------------------------------------------------------------------


def test_an_unfinished_step_is_shown_with_the_token_that_it_has_sent(
    client: Clients, fake_aws: FakeAws, once: Once
) -> None:
    aws = client("ecs")

    def call(key: str) -> None:
        aws.run_task(**TASK)
        raise TimeoutError("perhaps it arrived")

    with pytest.raises(TimeoutError):
        once.run("order", "k", lambda attempt: attempt.step("run", call), retry_safe=True)
    status = once.get("order", "k")
    assert status is not None
    assert [step.child_uuid for step in status.steps] == fake_aws.tokens


# --- setting up -----------------------------------------------------------------------------------


def test_use_child_tokens_may_be_called_twice(
    client: Clients, fake_aws: FakeAws, once: Once
) -> None:
    aws = client("ecs")
    assert use_child_tokens(aws) is aws
    once.run(
        "order",
        "k",
        lambda attempt: attempt.step("run", lambda key: aws.run_task(**TASK)),
        retry_safe=True,
    )
    assert fake_aws.tokens == [str(child_uuid("k", "run", operation="order"))]


def test_use_child_tokens_takes_clients_only(session: boto3.Session, fake_aws: FakeAws) -> None:
    with pytest.raises(ConfigurationError, match="not a Session"):
        use_child_tokens(session)
    resource = session.resource("dynamodb", endpoint_url=fake_aws.url)
    with pytest.raises(ConfigurationError, match=r"resource\.meta\.client"):
        use_child_tokens(resource)
    assert use_child_tokens(resource.meta.client) is resource.meta.client

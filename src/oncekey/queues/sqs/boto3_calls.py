"""Runs programs of calls with a client of boto3.

A client of boto3 may be used by several threads at once, so nothing is locked here.
"""

from __future__ import annotations

from typing import Any, TypeVar

from oncekey.core.errors import ConfigurationError
from oncekey.queues.sqs.sqs_calls import Program, failure_of, making_client

T = TypeVar("T")


class Boto3Calls:
    """A client that was given, or one that is made when it is first needed."""

    def __init__(self, client: Any) -> None:
        """`client` is `boto3.client("sqs")`, or None."""
        if client is not None and not hasattr(client, "receive_message"):
            raise ConfigurationError(
                f"client must be boto3.client('sqs'), not a {type(client).__name__}"
            )
        self._given = client
        self._made: Any = None

    def run(self, program: Program[T]) -> T:
        """Run a program of calls."""
        client = self._client()
        answer: Any = None
        while True:
            try:
                call = program.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                answer = getattr(client, call.operation)(**call.arguments)
            except Exception as error:
                answer = failure_of(error)
                if not answer.is_known:
                    self.close()  # the next program makes another client

    def close(self) -> None:
        """Close the client, if it was made here."""
        made, self._made = self._made, None
        if made is not None:
            made.close()

    def _client(self) -> Any:
        if self._given is not None:
            return self._given
        made = self._made
        if made is None:
            import boto3

            with making_client():
                made = self._made = boto3.client("sqs")
        return made

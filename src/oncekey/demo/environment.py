"""Everything one demo consists of: the API, the provider behind it, the page, and the workers.

Owns every resource. However the run ends, leaving the environment kills the worker processes, stops
the servers and closes the stores.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from oncekey.demo.api.database import PaymentsDatabase
from oncekey.demo.api.payment_routes import Shop
from oncekey.demo.api.payments_app import open_keys, payments_api
from oncekey.demo.api.provider_client import ProviderClient
from oncekey.demo.data_dir import DataDir
from oncekey.demo.handlers import Handler
from oncekey.demo.naive.naive_app import NaiveShop, add_naive_handler
from oncekey.demo.naive.naive_database import NaiveDatabase
from oncekey.demo.page.views import add_page
from oncekey.demo.provider.ledger import ProviderLedger
from oncekey.demo.provider.provider_app import Provider
from oncekey.demo.request_log import RequestLog, RequestLogMiddleware
from oncekey.demo.scenario_result import ScenarioResult
from oncekey.demo.scenarios.scenario import Scenario, ScenarioTools
from oncekey.demo.scenarios.scenario_client import Client, OnProgress
from oncekey.demo.server import Server, bind
from oncekey.demo.web_runner import WebRunner
from oncekey.demo.workers import Workers
from oncekey.engine.port import AsyncPort


class Environment:
    """An async context manager. `port=None` means the usual port if it is free, else any."""

    def __init__(self, folder: Path, *, store_url: str | None = None, port: int | None = 0) -> None:
        self.data_dir = DataDir(folder)
        self.store_url = store_url or self.data_dir.store_url
        self.request_log = RequestLog()
        self.ledger = ProviderLedger(self.data_dir.provider)
        self.database = PaymentsDatabase(self.data_dir.payments)
        self.naive_database = NaiveDatabase(self.data_dir.naive_payments)
        self.web_runner = WebRunner(self)
        self._port = port
        self._open = AsyncExitStack()

    @property
    def url(self) -> str:
        return self._api.url

    async def play(
        self, scenario: Scenario, handler: Handler, on_progress: OnProgress
    ) -> ScenarioResult:
        client = self._clients[handler]
        tools = ScenarioTools(client, self.ledger, self._workers, self.data_dir.queue, on_progress)
        return await scenario.run(tools)

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._open.aclose()

    async def _start(self) -> None:
        data_dir, enter = self.data_dir, self._open
        listening = bind(self._port)
        enter.callback(listening.close)
        once = open_keys(self.store_url)
        enter.push_async_callback(once.close)
        await AsyncPort(once).ready()  # an unreachable store fails here, not at the first request
        provider = Provider(self.ledger, data_dir.provider_secret)
        provider_server = Server(provider.app, bind())
        await provider_server.start()
        enter.push_async_callback(provider_server.stop)
        client = ProviderClient(provider_server.url, data_dir.provider_secret)
        app = payments_api(Shop(data_dir, self.database, client), once)
        add_naive_handler(app, NaiveShop(data_dir, self.naive_database, client))
        add_page(app, self)
        log = self.request_log.put
        logged = RequestLogMiddleware(app, server="main", data_dir=data_dir, put=log)
        self._api = Server(logged, listening)
        await self._api.start()
        enter.push_async_callback(self._api.stop)
        enter.callback(provider.stop_waiting)
        self._workers = Workers(
            folder=data_dir.folder,
            store_url=self.store_url,
            provider_url=provider_server.url,
            request_log=self.request_log,
        )
        enter.push_async_callback(self._workers.end)
        token = data_dir.scenario_account.token
        self._clients = {one: Client(self._api.url, token, one) for one in Handler}
        for each in self._clients.values():
            enter.push_async_callback(each.close)
        enter.push_async_callback(self.web_runner.stop)

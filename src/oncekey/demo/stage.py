"""All of one demo, put together: the API, the provider behind it, the page, and their end.

Owns every resource: whatever ends the run, processes are dead, servers stopped and stores closed
when the stage is left.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from oncekey.demo.api.app import open_keys, payments_api
from oncekey.demo.api.paying import Paying
from oncekey.demo.api.routes import Shop
from oncekey.demo.api.rows import Rows
from oncekey.demo.crew import Crew
from oncekey.demo.feed import Feed, Watch
from oncekey.demo.keeping import Keeping
from oncekey.demo.page.routes import add_page
from oncekey.demo.player import Player
from oncekey.demo.provider.app import Provider
from oncekey.demo.provider.books import Books
from oncekey.demo.scenarios.client import Client, Tell
from oncekey.demo.scenarios.scenario import Scenario, Set
from oncekey.demo.scene import Scene
from oncekey.demo.serving import Served, bind


class Stage:
    """Use as an async context manager. `port` None: the usual one if it is free, else any."""

    def __init__(self, folder: Path, *, store_url: str | None = None, port: int | None = 0) -> None:
        self.keeping = Keeping(folder)
        self.store_url = store_url or self.keeping.store_url
        self.feed = Feed()
        self.books = Books(self.keeping.provider)
        self.rows = Rows(self.keeping.payments)
        self.player = Player(self)
        self._port = port
        self._open = AsyncExitStack()

    @property
    def url(self) -> str:
        return self._api.url

    async def play(self, scenario: Scenario, tell: Tell) -> Scene:
        return await scenario.run(Set(self._client, self.books, self._crew, tell))

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
        keeping, enter = self.keeping, self._open
        listening = bind(self._port)
        enter.callback(listening.close)
        once = open_keys(self.store_url)
        enter.push_async_callback(once.close)
        await once.__aenter__()  # a store that cannot be reached is found now
        provider = Provider(self.books, keeping.provider_secret)
        behind = Served(provider.app, bind())
        await behind.start()
        enter.push_async_callback(behind.stop)
        paying = Paying(behind.url, keeping.provider_secret)
        app = payments_api(Shop(keeping, self.rows, paying), once)
        add_page(app, self)
        watched = Watch(app, server="main", keeping=keeping, put=self.feed.put)
        self._api = Served(watched, listening)
        await self._api.start()
        enter.push_async_callback(self._api.stop)
        enter.callback(provider.let_go)
        self._crew = Crew(
            folder=keeping.folder,
            store_url=self.store_url,
            provider_url=behind.url,
            feed=self.feed,
        )
        enter.push_async_callback(self._crew.end)
        self._client = Client(self._api.url, keeping.player.token)
        enter.push_async_callback(self._client.close)
        enter.push_async_callback(self.player.stop)

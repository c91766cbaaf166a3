"""Connections that end with their event loop, even if nobody closed the store.

`asyncio.run` and the like close the async generators of their loop at its end. So whatever one
event loop has open holds a generator that closes it. This module knows no driver.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator


class ClosedWithLoop:
    """What one event loop has open: a subclass says how to close it."""

    def __init__(self) -> None:
        self._closer = self._close_with_the_loop()

    async def close_all(self) -> None:
        raise NotImplementedError

    async def begin(self) -> None:
        """Start the generator, in the loop whose end closes everything."""
        await anext(self._closer)

    async def _close_with_the_loop(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.close_all()

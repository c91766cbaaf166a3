"""Draws exchanges as bars over time: when each was sent, when it was answered, and how.

It computes figures only; the page's template writes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from oncekey.verify.profile import Profile
from oncekey.verify.recorded_exchange import Exchange

WIDTH = 1000
ROW = 10
ROWS_MAX = 120
_BAR_MIN = 6

# Kind of a bar -> what it means, in the order of a legend.
KINDS = {
    "ran": "the first success",
    "replayed": "the same response again",
    "again": "another success: it ran again",
    "busy": "refused: the first is still running",
    "refused": "refused otherwise",
    "failed": "a server error, or no response",
    "left": "the client left on purpose",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One exchange: where it is drawn, how it ended, and what to say about it."""

    x: float
    y: int
    width: float
    kind: str
    label: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Bars, one per row.

    seconds   what the whole width stands for
    left_out  how many exchanges there were beyond ROWS_MAX
    """

    bars: tuple[Bar, ...]
    seconds: float
    left_out: int

    @property
    def height(self) -> int:
        return ROW * len(self.bars)

    @property
    def kinds(self) -> list[str]:
        """The kinds that occur, in the order of the legend."""
        found = {bar.kind for bar in self.bars}
        return [kind for kind in KINDS if kind in found]

    @property
    def span(self) -> str:
        """What the whole width stands for, in words."""
        return f"{self.seconds * 1000:.0f} ms" if self.seconds < 10 else f"{self.seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class Share:
    """How many exchanges ended in one way."""

    kind: str
    count: int

    @property
    def label(self) -> str:
        return f"{self.count}: {KINDS[self.kind]}"


def shares(exchanges: Sequence[Exchange], profile: Profile) -> list[Share]:
    """Return how many exchanges ended in which way, in the order of the legend."""
    counts = Counter(kind for _, kind in _kinds(exchanges, profile))
    return [Share(kind, counts[kind]) for kind in KINDS if counts[kind]]


def draw(exchanges: Sequence[Exchange], profile: Profile) -> Drawing:
    """Return the drawing of these exchanges, in the order they were answered."""
    kinds = {id(exchange): kind for exchange, kind in _kinds(exchanges, profile)}
    ordered = sorted(exchanges, key=lambda exchange: exchange.answered_at)
    shown = ordered[:ROWS_MAX]
    if not shown:
        return Drawing((), 0.0, 0)
    began = min(exchange.sent_at for exchange in shown)
    seconds = max(max(one.answered_at for one in shown) - began, 0.001)
    bars = []
    for row, exchange in enumerate(shown):
        x = WIDTH * (exchange.sent_at - began) / seconds
        width = max(WIDTH * (exchange.answered_at - exchange.sent_at) / seconds, _BAR_MIN)
        x = min(x, WIDTH - _BAR_MIN)
        took = (exchange.answered_at - exchange.sent_at) * 1000
        label = f"{exchange.note or 'request'}: {exchange.outcome()}, after {took:.0f} ms"
        kind = kinds[id(exchange)]
        bars.append(Bar(round(x, 1), row * ROW, round(min(width, WIDTH - x), 1), kind, label))
    return Drawing(tuple(bars), seconds, len(ordered) - len(shown))


def largest_round(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Return the most requests that were equal, and on their way at the same time."""
    rounds: list[list[Exchange]] = []
    for exchange in sorted(exchanges, key=lambda exchange: exchange.sent_at):
        last = rounds[-1] if rounds else None
        if (
            last is not None
            and last[0].request == exchange.request
            and exchange.sent_at < max(one.answered_at for one in last)
        ):
            last.append(exchange)
        else:
            rounds.append([exchange])
    largest = max(rounds, key=len, default=[])
    return largest if len(largest) > 1 else []


def _kinds(exchanges: Sequence[Exchange], profile: Profile) -> Iterator[tuple[Exchange, str]]:
    """Yield each exchange with its kind, in the order they were answered."""
    firsts: dict[object, bytes] = {}
    for exchange in sorted(exchanges, key=lambda exchange: exchange.answered_at):
        response, status = exchange.response, exchange.status
        if "the client left" in exchange.failure:
            yield exchange, "left"
        elif response is None or status is None or status >= 500:
            yield exchange, "failed"
        elif exchange.is_success:
            first = firsts.setdefault(exchange.request, b"\0")
            if first == b"\0":
                firsts[exchange.request] = response.body
                yield exchange, "ran"
            else:
                yield exchange, "replayed" if response.body == first else "again"
        else:
            yield exchange, "busy" if status in profile.in_flight else "refused"

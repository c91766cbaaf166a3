"""One request for a page: who asks, where the keys are, and how its page is rendered.

Pages are functions of this value; they know neither cookies nor routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from oncekey.dashboard import display
from oncekey.dashboard.dashboard_keys import DashboardKeys
from oncekey.dashboard.live_rates import LiveRates, RateCurve

_TEMPLATES: Final = Environment(
    loader=PackageLoader("oncekey.dashboard", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
# What a redirect may ask the next page to say. Nothing else in the address is shown.
_DONE: Final = {
    "resolved": "Your decision is stored.",
    "released": "The key is free: the next call runs it.",
    "returned": "The parked messages are back in their queue.",
    "none-parked": "There are no parked messages.",
}
_TEMPLATES.filters.update(display.FILTERS)
_TEMPLATES.globals["signs"] = display.SIGNS
_TEMPLATES.globals["between"] = display.between


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """What the dashboard may show and do.

    read_only     no key can be decided
    bodies        stored answers, arguments and the values of steps are shown
    by            the name that decisions are noted under; "" asks for it
    stuck_after   from how many seconds on a pending key is shown as stuck
    """

    read_only: bool
    bodies: bool
    by: str
    stuck_after: float


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request of a reader who may see the dashboard.

    reader       the name the app's own authentication gave, or ""
    form_token   what the forms of the page carry
    form         the fields of a form that was sent
    calls        the calls of this process; None without an engine
    consumers    those whose parked messages can be returned
    """

    request: Request
    keys: DashboardKeys
    options: DashboardOptions
    reader: str
    form_token: str
    can_sign_out: bool
    form: Mapping[str, str]
    calls: LiveRates | None
    curve: RateCurve
    consumers: tuple[Any, ...]

    @property
    def by(self) -> str:
        """The name for a decision's note, if it is not the operator's to type."""
        return self.reader or self.options.by

    @property
    def done(self) -> str:
        """What to say after a decision that has led to this page."""
        return _DONE.get(self.request.query_params.get("done", ""), "")

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        return render(
            self.request,
            template,
            status,
            signed_in=True,
            form_token=self.form_token,
            can_sign_out=self.can_sign_out,
            read_only=self.options.read_only,
            bodies=self.options.bodies,
            store=self.keys.name,
            **values,
        )

    def redirect(self, path: str) -> Response:
        return RedirectResponse(base_of(self.request) + path, 303)


def render(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """A page. Links begin with the path that the dashboard is mounted at."""
    text = _TEMPLATES.get_template(template).render(base=base_of(request), **values)
    return HTMLResponse(text, status)


def base_of(request: Request) -> str:
    base: str = request.scope.get("root_path", "")
    return base.rstrip("/")

"""A Flask app, guarded view by view, or by rules around all of it (`GUARDED_KIND=rules`)."""

from __future__ import annotations

import os
import time
from typing import Any

from flask import Blueprint, Flask, Response, abort, g, request
from tests.http.wsgi_apps import handlers
from tests.http.wsgi_apps.plain_app import RULES, caller

from oncekey.http.flask import Idempotency, current_attempt, idempotent
from oncekey.http.rules import Rule


def response_of(response: handlers.HandlerResponse) -> Response:
    converted = Response(response.body, response.status, response.headers)
    for cookie in response.cookies:
        converted.headers.add("Set-Cookie", cookie)
    return converted


def view_of(name: str) -> Any:
    handler = handlers.HANDLERS[name]

    def view(argument: str = "") -> Response:
        return response_of(handler(argument, request.get_data(), current_attempt()))

    view.__name__ = name.replace("/{}", "")
    return view


class OutOfStock(Exception):
    """The app has a handler for it."""


def add_views(app: Flask | Blueprint) -> None:
    for name in handlers.HANDLERS:
        view = idempotent(**handlers.options(name))(view_of(name))
        path = f"/{name}".replace("{}", "<argument>")
        app.add_url_rule(path, view_func=view, methods=["POST"])

    @app.get("/read")
    def read() -> Response:
        return response_of(handlers.read())

    @app.post("/refuses/<how>")
    @idempotent()
    def refuses(how: str) -> Any:
        handlers.effect("refuses")
        if how == "handled":
            raise OutOfStock
        abort(404 if how == "abort" else 429)

    @app.post("/returns")
    @idempotent()
    def returns() -> Any:
        return {"number": handlers.effect("returns")}, 202, {"Location": "/r"}

    @app.post("/form")
    @idempotent(ignore=["csrf"])
    def form() -> Any:
        return {"number": handlers.effect("form"), "name": request.form["name"]}

    @app.post("/clock")
    @idempotent()
    def clock() -> Any:
        return {"at": time.monotonic_ns()}


def finish(app: Flask) -> Flask:
    app.register_error_handler(OutOfStock, lambda error: ({"why": "out of stock"}, 409))

    @app.after_request
    def later(response: Response) -> Response:
        response.headers["X-Later"] = "1"
        return response

    return app


def by_views() -> Flask:
    app = Flask("shop")
    views = Blueprint("views", __name__)
    add_views(views)

    @app.before_request
    def who() -> Any:
        if request.method == "POST" and request.path == "/form":
            assert "name" in request.form  # as those do that look for a token in a form
        if request.headers.get("Authorization") == "Bearer banned":
            return {"why": "banned"}, 403
        g.account = handlers.CALLERS.get(request.headers.get("Authorization", ""))
        return None

    extension = Idempotency(once=handlers.engine(), caller=lambda: g.account, policy_url="/policy")
    extension.init_app(app)
    app.register_blueprint(views)
    return finish(app)


def by_rules() -> Flask:
    app = Flask("shop")
    add_views(app)
    Idempotency(
        app,
        once=handlers.engine(),
        caller=caller,
        rules=[*RULES, Rule()],
        policy_url="/policy",
    )
    return finish(app)


app = by_rules() if os.environ.get("GUARDED_KIND") == "rules" else by_views()

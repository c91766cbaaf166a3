"""Checks of an app: its guards, routes, callers and options, against the store that it should use.

They look at the app as `oncekey policy` does, by its attributes. Nothing of it is called, and no
request is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from oncekey.core.duration import human
from oncekey.core.errors import ConfigurationError
from oncekey.core.guarantees import Guarantee, Level
from oncekey.core.policy import Policy
from oncekey.core.record import FOREVER_US
from oncekey.core.store import StoreLimits
from oncekey.doctor.commit_checks import COMMITS, commit_findings
from oncekey.doctor.handler_code import is_constant, mentions_attempt
from oncekey.http.inspection.guarded_views import guarded_view_of
from oncekey.http.inspection.route_table import routes_of
from oncekey.stores.inspection import Check, Finding

_KEYED_METHODS: Final = frozenset(("POST", "PATCH"))
_SHOWN_MAX: Final = 10  # of the routes that a finding names

GUARDS: Final = Check(
    "app.guards",
    "whether the app has a guard, and every guarded function a route that runs it guarded",
    "a guard above @app.post has no effect: the route runs the bare function",
    "put the guard directly above the function, below the decorator of the route",
)
ROUTES: Final = Check(
    "app.unguarded-routes",
    "whether routes that take POST or PATCH are guarded",
    "a client that retries there is carried out twice; with a key it even believes to be protected",
    "guard them, or say that it is meant: Rule(path, guarded=False), guard(guarded=False)",
)
SCOPE: Final = Check(
    "app.scope",
    "whether caller= looks at the request",
    "if every caller is the same one, a key of one customer gives another one's answer",
    "return the verified id of the account from the request; leave it if there is one client only",
)
STORE: Final = Check(
    "app.store",
    "whether the app keeps its keys in the store that was checked",
    "the findings about another store say nothing about this app; two hosts with two stores run "
    "everything twice",
    "give doctor the URL that the app has, and all hosts the same one",
)
LEVEL: Final = Check(
    "app.level",
    "the levels that routes and operations require, against those they get",
    "what requires more than it gets is refused at every call; what requires nothing goes on when "
    "the store guarantees less than today",
    "require at_most_once with retry_safe=False, fenced with retry_safe=True, transactional in a "
    "transaction",
)
RETRY_SAFE: Final = Check(
    "app.retry-safe",
    "whether handlers with retry_safe=True use steps, child keys or the fence",
    "after a crash such a handler is run again from its start; without these its effects happen "
    "twice",
    "call other services in attempt.step(...), send attempt.child_key(...) or check attempt.fence, "
    "and else leave retry_safe=False",
)
KEEP: Final = Check(
    "app.keep",
    "keep and keep_unknown of every route and operation against the retry horizon",
    "a key that expires while its client still retries is a second execution",
    "set keep= to the longest time after which a client may still retry; leave keep_unknown unset",
)
RETENTION: Final = Check(
    "app.retention",
    "whether lease, keep and audit fit into the ring of the app's store",
    "longer ones are refused at every claim",
    "give the store more ring_slots or a longer ring_period, or shorten keep and audit",
)
STORE_DOWN: Final = Check(
    "app.store-down",
    "whether routes go on without the store",
    "with store_down='run' a retry during an outage of the store is carried out again",
    "leave store_down='refuse' where a second effect costs more than a 503",
)
KEYS: Final = Check(
    "app.optional-keys",
    "whether routes run requests without a key",
    "a client that forgets its key is not protected, and learns nothing of it",
    "leave required=True where clients can send keys",
)
UNKNOWN: Final = Check(
    "app.unknown-keys",
    "whether somebody decides keys whose owner died",
    "without recover= such a key stays unknown, and its client gets errors until a person decides",
    "give recover= to the route, or once.recover_with(...), and watch the event `unknown`",
)
APP_CHECKS: Final = (
    GUARDS, ROUTES, SCOPE, STORE, LEVEL, RETRY_SAFE, KEEP, RETENTION, STORE_DOWN, KEYS, UNKNOWN,
    COMMITS,
)  # fmt: skip


class _Guarded(NamedTuple):
    """A route or a registered operation with the policy that holds for it."""

    name: str
    policy: Policy
    view: Any
    is_transactional: bool
    store_down: str = "refuse"
    required: bool = True


def app_findings(
    app: Any, store_module: Any, url: str, promised: Guarantee | None, horizon: int
) -> Iterator[Finding]:
    """The checks of an app; without one, that nothing was checked. `horizon` in microseconds."""
    if app is None:
        yield GUARDS.info("not checked: no app was given", "name it with --app MODULE:APP")
        return
    from oncekey.http.inspection.policy_discovery import find_policy  # needs oncekey[http]

    routes = list(routes_of(app))
    try:
        found = find_policy(app)
    except ConfigurationError as error:
        yield GUARDS.broken(str(error))
        return
    guarded = [*_guarded_routes(found, routes), *_operations(found.once)]
    yield GUARDS.ok(f"guarded: {_some([one.name for one in guarded])}")
    yield _unguarded_routes(found, routes)
    yield from _scopes(found.callers)
    store = getattr(found.once, "_store", None)
    yield store_finding(store_module, url, store)
    yield from _levels(guarded, promised)
    yield _retry_safe(guarded, promised)
    yield _keep(guarded, horizon)
    yield _retention(guarded, StoreLimits.of(store).terms_max)
    yield _listed(
        STORE_DOWN, [one.name for one in guarded if one.store_down == "run"], "run unprotected"
    )
    optional = [one.name for one in guarded if not one.required]
    yield KEYS.info(f"no key is required: {_some(optional)}") if optional else KEYS.ok("required")
    yield _unknown_keys(guarded, found)
    yield from commit_findings(app, routes)


# --- what is guarded ------------------------------------------------------------------------------


def _guarded_routes(found: Any, routes: list[Any]) -> Iterator[_Guarded]:
    for methods, path, rule in found.routes:
        options = {name: value for name, value in rule.options.items() if name != "max_bytes"}
        views = [r.view for r in routes if r.path == path and set(r.methods) & set(methods)]
        view = views[0] if views else None
        guard = getattr(view, "__oncekey_guard__", None)
        yield _Guarded(
            f"{' '.join(sorted(methods))} {path}",
            found.policy.with_options(**options),
            view,
            found.in_transaction or getattr(guard, "session", None) is not None,
            rule.store_down,
            rule.required,
        )


def _operations(once: Any) -> Iterator[_Guarded]:
    registry = getattr(once, "_registry", None)
    for name, registered in getattr(registry, "operations", {}).items():
        if registered.body is not None:
            policy = once.policy.with_options(**registered.options)
            yield _Guarded(f"operation {name!r}", policy, registered.body, False)


def _unguarded_routes(found: Any, routes: list[Any]) -> Finding:
    if not routes:
        return ROUTES.info(
            "not checked: the app does not list its routes", "compare its URLs with the rules"
        )
    guarded = {(path, method) for methods, path, _ in found.routes for method in methods}
    bare = []
    for route in routes:
        if hasattr(route.view, "__oncekey_guard__") or guarded_view_of(route.view) is not None:
            continue  # guarded, or unguarded on purpose
        for method in sorted(_KEYED_METHODS & set(route.methods)):
            on_purpose = found.rules is not None and found.rules.excludes(method, route.path)
            if (route.path, method) not in guarded and not on_purpose:
                bare.append(f"{method} {route.path}")
    return _listed(ROUTES, bare, "not guarded")


# --- checks ---------------------------------------------------------------------------------------


def _scopes(callers: tuple[Any, ...]) -> Iterator[Finding]:
    constant = [caller for caller in callers if is_constant(caller)]
    if constant:
        names = ", ".join(getattr(caller, "__qualname__", repr(caller)) for caller in constant)
        yield SCOPE.warning(f"caller= returns the same for every request: {names}")
    elif not callers or any(is_constant(caller) is None for caller in callers):
        yield SCOPE.info(
            "not checked: caller= is no plain function", "see that it looks at the request"
        )
    else:
        yield SCOPE.ok("caller= looks at the request")


def store_finding(module: Any, url: str, store: Any) -> Finding:
    """Whether an engine's store is the one that was checked."""
    kind = type(store).__name__
    compare = getattr(module, "is_same_store", None)
    is_same = None if compare is None else compare(url, store)
    if is_same is False:
        return STORE.broken(f"the app's {kind} is another store than the URL's")
    if is_same is None:
        return STORE.info(f"not checked: it cannot be told where the app's {kind} keeps its keys")
    return STORE.ok(f"the app's {kind} is the URL's")


def _levels(guarded: list[_Guarded], promised: Guarantee | None) -> Iterator[Finding]:
    if promised is None:
        yield LEVEL.info("not checked: it is not known what the store guarantees")
        return
    refused = []
    for one in guarded:
        gets = promised.effective(
            retry_safe=one.policy.retry_safe, transactional=one.is_transactional
        )
        needs = one.policy.required_level
        if gets < needs:
            refused.append(f"{one.name} requires {needs.label} and gets {gets.label}")
    unstated = [one.name for one in guarded if one.policy.required_level is Level.BEST_EFFORT]
    if refused:
        yield LEVEL.broken(f"always refused: {_some(refused)}")
    elif unstated and promised.level is Level.BEST_EFFORT:
        yield LEVEL.warning(f"run at best effort, and nothing refuses it: {_some(unstated)}")
    elif unstated:
        yield LEVEL.info(
            f"no level is required: {_some(unstated)}",
            "Policy(require='at_most_once') refuses to run on a server that guarantees less",
        )
    else:
        yield LEVEL.ok("each gets the level that it requires")


def _retry_safe(guarded: list[_Guarded], promised: Guarantee | None) -> Finding:
    safe = [one for one in guarded if one.policy.retry_safe and not one.is_transactional]
    if not safe:
        return RETRY_SAFE.ok("nothing is run again")
    if promised is not None and promised.level is Level.BEST_EFFORT:
        names = _some([one.name for one in safe])
        return RETRY_SAFE.warning(f"on a store that can lose a fence: {names}")
    bare = [one.name for one in safe if mentions_attempt(one.view) is False]
    if bare:
        names = _some(bare)
        return RETRY_SAFE.warning(
            f"retry_safe=True without a step, a child key or the fence: {names}"
        )
    unread = [one.name for one in safe if mentions_attempt(one.view) is None]
    if unread:
        return RETRY_SAFE.info(
            f"not checked: the code of these is not found: {_some(unread)}",
            "see that they use attempt.step(...), attempt.child_key(...) or attempt.fence",
        )
    names = _some([one.name for one in safe])
    return RETRY_SAFE.ok(f"each uses a step, a child key or the fence: {names}")


def _keep(guarded: list[_Guarded], horizon: int) -> Finding:
    short = []
    for one in guarded:
        times = one.policy.times
        if times.keep < horizon:
            short.append(f"{one.name} keeps {human(times.keep)}")
        if times.keep_unknown < min(horizon, FOREVER_US) and not times.retry_safe:
            short.append(f"{one.name} keeps unknown keys {human(times.keep_unknown)}")
    if short:
        return KEEP.warning(f"shorter than the retry horizon of {human(horizon)}: {_some(short)}")
    return KEEP.ok(f"the retry horizon of {human(horizon)} is covered")


def _retention(guarded: list[_Guarded], terms_max: int) -> Finding:
    if not terms_max:
        return RETENTION.ok("the store is no ring")
    long = []
    for one in guarded:
        times = one.policy.times
        if times.lease + times.keep + times.audit > terms_max:
            long.append(one.name)
    if long:
        return RETENTION.broken(f"longer than the ring's {human(terms_max)}: {_some(long)}")
    return RETENTION.ok(f"all fit into the ring's {human(terms_max)}")


def _unknown_keys(guarded: list[_Guarded], found: Any) -> Finding:
    covered = found.operation in getattr(found.once, "operations", ())
    undecided = [
        one.name
        for one in guarded
        if not one.policy.retry_safe
        and not one.is_transactional
        and one.policy.recover is None
        and not (covered and not one.name.startswith("operation "))
    ]
    if undecided:
        return UNKNOWN.info(f"nobody but a person: {_some(undecided)}")
    return UNKNOWN.ok("recover= or a retry decides them")


def _listed(check: Check, names: list[str], text: str) -> Finding:
    """A warning that names what the text says about them; ok if there is nothing to name."""
    return check.warning(f"{text}: {_some(names)}") if names else check.ok("none")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN_MAX])
    rest = len(names) - _SHOWN_MAX
    return f"{shown} and {rest} more" if rest > 0 else shown

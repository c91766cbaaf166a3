"""The dashboard: pages for people who look after a store, to be served alone or inside an app."""

from oncekey.http.missing_dependency import MissingDependency

try:
    from oncekey.dashboard.dashboard_app import Dashboard
except ModuleNotFoundError as error:
    if (error.name or "oncekey").partition(".")[0] == "oncekey":
        raise  # a bug of this package, not a missing one
    raise MissingDependency(
        f"the dashboard needs {error.name}, which is not installed: "
        "pip install 'oncekey[dashboard]'",
        name=error.name,
    ) from error

__all__ = ["Dashboard"]

"""The dashboard: pages for people who look after a store, to be served alone or inside an app."""

from oncekey.dashboard.dashboard_app import Dashboard

__all__ = ["Dashboard"]

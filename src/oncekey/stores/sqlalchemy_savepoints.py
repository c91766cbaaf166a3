"""Savepoints on SQLAlchemy's sessions and connections, for stores in a caller's transaction.

SQLAlchemy's own savepoints are used, so that a rollback also restores what a session remembers:
objects that are not flushed yet. While a savepoint is set, a body that tries to commit the caller's
transaction is refused, because the record of its operation is not written yet.

Sessions and connections are recognized by the names of their classes; SQLAlchemy is imported only
if the caller uses it. This module knows no database.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from oncekey.core.errors import ConfigurationError


def is_a(connection: Any, module: str, *names: str) -> bool:
    """True if one of the object's classes is defined in this package under one of these names."""
    return _descends(type(connection), module, names)  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _descends(kind: type, module: str, names: tuple[str, ...]) -> bool:
    return any(
        one.__module__.partition(".")[0] == module and one.__name__ in names for one in kind.__mro__
    )


def is_sync(connection: Any) -> bool:
    return is_a(connection, "sqlalchemy", "Session", "scoped_session", "Connection")


def is_async(connection: Any) -> bool:
    names = ("AsyncSession", "async_scoped_session", "AsyncConnection")
    return is_a(connection, "sqlalchemy", *names)


def unscoped(connection: Any) -> Any:
    """The session itself, if a scoped session was given."""
    return connection() if hasattr(connection, "registry") else connection


def sync_part_of(connection: Any) -> Any:
    """The sync Session or Connection inside an async one."""
    is_session = hasattr(connection, "sync_session")
    inner = connection.sync_session if is_session else connection.sync_connection
    if inner is None:
        raise ConfigurationError(
            "this AsyncConnection is not open yet: `async with engine.connect() as connection:`"
        )
    return inner


def is_session(subject: Any) -> bool:
    return hasattr(subject, "flush")


def connection_of(subject: Any) -> Any:
    """The SQLAlchemy Connection of a Session or Connection. A session begins its transaction, and
    sends a pending SAVEPOINT, only when its connection is requested."""
    return subject.connection() if is_session(subject) else subject


class Savepoint(NamedTuple):
    """A nested transaction of a Session or Connection, and the listener that refuses a commit of
    the transaction around it."""

    subject: Any
    nested: Any
    target: Any
    event: str
    refusal: Any

    def end(self, *, keep: bool) -> None:
        """Release the savepoint and keep what was done since, or roll back to it."""
        from sqlalchemy import event, exc

        event.remove(self.target, self.event, self.refusal)
        of_session = is_session(self.subject)
        if not of_session and self.nested.is_active:
            # End the nested transactions that the body left open; a session does so by itself.
            while (inner := self.subject.get_nested_transaction()) is not self.nested:
                inner.commit() if keep else inner.rollback()
        if keep:
            self.nested.commit()
        elif of_session or self.nested.is_active:
            try:
                self.nested.rollback()
            except exc.ResourceClosedError:
                pass  # the savepoint ended with its transaction


def set_savepoint(subject: Any) -> Savepoint:
    """Set a savepoint. Until it ends, a commit of the transaction around it is refused."""
    from sqlalchemy import event

    of_session = is_session(subject)
    nested = subject.begin_nested()
    bound = connection_of(subject)

    def refuse(_: object) -> None:
        if not of_session:
            # Whatever is raised here, SQLAlchemy considers the transaction ended.
            bound.connection.dbapi_connection.rollback()
        elif subject.get_nested_transaction() is not nested:
            return  # the event is also sent for nested commits: this one is the body's own
        raise ConfigurationError(
            "the body of an operation must not commit the transaction it runs in: its record "
            "would be missing. Leave that to whoever began the transaction, after the run"
        )

    target, name = (subject, "before_commit") if of_session else (bound, "commit")
    event.listen(target, name, refuse)
    return Savepoint(subject, nested, target, name, refuse)

"""Sets savepoints on SQLAlchemy's sessions and connections, for stores in a caller's transaction.

Their own savepoints are used, so that what they remember goes back together with the rows: objects
of a session that are not flushed yet. And where they would let a body commit the caller's
transaction, half of which is still to come, they are told not to.

Known by the names of their classes; SQLAlchemy is imported only for who has such an object. Must
not know any database.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from oncekey.core.errors import ConfigurationError


def is_a(connection: Any, module: str, *names: str) -> bool:
    """Whether one of the object's classes is of this module and has one of these names."""
    return any(
        kind.__module__.partition(".")[0] == module and kind.__name__ in names
        for kind in type(connection).__mro__
    )


def is_blocking(connection: Any) -> bool:
    return is_a(connection, "sqlalchemy", "Session", "scoped_session", "Connection")


def is_async(connection: Any) -> bool:
    names = ("AsyncSession", "async_scoped_session", "AsyncConnection")
    return is_a(connection, "sqlalchemy", *names)


def unscoped(connection: Any) -> Any:
    """The session itself, where a scoped one was given."""
    return connection() if hasattr(connection, "registry") else connection


def inner_of(connection: Any) -> Any:
    """The blocking Session or Connection inside of one of asyncio's."""
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
    sends a SAVEPOINT that it owes, only when it is asked for this."""
    return subject.connection() if is_session(subject) else subject


class Savepoint(NamedTuple):
    """A nested transaction of a Session's or Connection's, and who refuses a commit meanwhile."""

    subject: Any
    nested: Any
    target: Any
    event: str
    refusal: Any

    def end(self, *, keep: bool) -> None:
        """Drop it, keeping what was done since; or go back to it."""
        from sqlalchemy import event, exc

        event.remove(self.target, self.event, self.refusal)
        of_session = is_session(self.subject)
        if not of_session and self.nested.is_active:
            # Those the body has left open; a session sees to that by itself.
            while (inner := self.subject.get_nested_transaction()) is not self.nested:
                inner.commit() if keep else inner.rollback()
        if keep:
            self.nested.commit()
        elif of_session or self.nested.is_active:
            try:
                self.nested.rollback()
            except exc.ResourceClosedError:
                pass  # it ended with its transaction


def set_savepoint(subject: Any) -> Savepoint:
    """Set one; until it ends, a commit of the transaction around it is refused."""
    from sqlalchemy import event

    of_session = is_session(subject)
    nested = subject.begin_nested()
    bound = connection_of(subject)

    def refuse(_: object) -> None:
        if not of_session:
            # Whatever is raised now, SQLAlchemy takes the transaction for ended.
            bound.connection.dbapi_connection.rollback()
        elif subject.get_nested_transaction() is not nested:
            return  # a session tells of nested commits too: this is one of the body's own
        raise ConfigurationError(
            "the body of an operation must not commit the transaction it runs in: its record "
            "would be missing. Leave that to whoever began the transaction, after the run"
        )

    target, name = (subject, "before_commit") if of_session else (bound, "commit")
    event.listen(target, name, refuse)
    return Savepoint(subject, nested, target, name, refuse)

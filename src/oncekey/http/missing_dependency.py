"""Reports a missing optional package together with the pip line that installs it."""

from __future__ import annotations

from types import TracebackType

from oncekey.core.errors import ConfigurationError


class MissingDependency(ConfigurationError, ModuleNotFoundError):
    """A package is not installed. The message has the pip line that installs it."""

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class needs:  # noqa: N801, used like a statement
    """`with needs("http"): import ...` raises MissingDependency naming the extra to install."""

    def __init__(self, extra: str) -> None:
        self._extra = extra

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, ModuleNotFoundError) or isinstance(error, MissingDependency):
            return
        if (error.name or "oncekey").partition(".")[0] == "oncekey":
            return  # a bug of this package, not a missing one
        raise MissingDependency(
            f"this part of oncekey needs {error.name}, which is not installed: "
            f"pip install 'oncekey[{self._extra}]'",
            name=error.name,
        ) from error

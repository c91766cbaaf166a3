"""Gives the API reference our docstrings as Markdown: a griffe extension for mkdocstrings."""

from __future__ import annotations

from typing import Any

from griffe import Docstring, Extension, Object

from docs_build.option_lists import as_markdown


class OptionLists(Extension):
    """A griffe extension: it is applied to every docstring that is collected."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring = Docstring(
                as_markdown(obj.docstring.value),
                lineno=obj.docstring.lineno,
                endlineno=obj.docstring.endlineno,
                parent=obj,
                parser=obj.docstring.parser,
                parser_options=obj.docstring.parser_options,
            )

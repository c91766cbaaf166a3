"""The page at /docs: the API's OpenAPI document as plain HTML.

The usual documentation pages load scripts from other hosts, and the demo loads nothing from
elsewhere. Owns the markup; knows no route.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

_HEAD = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>{title} API</title>
  <link rel="icon" href="/demo/static/icon.svg" type="image/svg+xml">
  <link rel="stylesheet" href="/demo/static/page.css">
</head>
<body class="reference">
<header><div class="brand"><div><h1>{title} API</h1><p>{description}</p></div></div></header>
<nav aria-label="Pages"><a href="/">The demo</a> <a href="/openapi.json">openapi.json</a></nav>
<main>
"""
_TAIL = "</main>\n</body>\n</html>\n"
_LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "{} or more characters",
    "maxLength": "{} characters at most",
    "pattern": "matches {}",
    "default": "{} by default",
}


def api_reference(document: dict[str, Any]) -> str:
    """The whole page."""
    info = document["info"]
    title, description = escape(info["title"]), escape(info.get("description", ""))
    parts = [_HEAD.format(title=title, description=description)]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.extend(_operation(method.upper(), path, operation))
    parts.append("<section><h2>Schemas</h2>\n")
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        parts.append(f'<h3 id="{escape(name)}">{escape(name)}</h3>\n')
        parts.extend(_schema(name, schema))
    return "".join([*parts, "</section>\n", _TAIL])


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    name = escape(f"{method} {path}")
    yield f'<section><h2 class="mono">{name}</h2>\n'
    yield f"<p>{escape(operation.get('description', operation.get('summary', '')))}</p>\n"
    sent = [
        (one["name"], one["in"], _type(one["schema"]), _about(one, one["schema"], one))
        for one in operation.get("parameters", ())
    ]
    if sent:
        yield from _table(f"Parameters of {name}", ("Parameter", "In", "Type", "Meaning"), sent)
    body = operation.get("requestBody", {}).get("content", {})
    for media_type, content in body.items():
        yield f"<p>Body, {escape(media_type)}: {_type(content['schema'])}</p>\n"
    answers = [
        (status, escape(one["description"]), _answer(one.get("content", {})))
        for status, one in operation["responses"].items()
    ]
    yield from _table(f"Responses of {name}", ("Status", "Meaning", "Body"), answers)
    yield "</section>\n"


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    if "description" in schema:
        yield f"<p>{escape(schema['description'])}</p>\n"
    if "enum" in schema:
        yield f"<p>One of {_codes(schema['enum'])}.</p>\n"
    required = schema.get("required", ())
    rows = [
        (member, _type(one), _about(one, one, {"required": member in required}))
        for member, one in schema.get("properties", {}).items()
    ]
    if rows:
        yield from _table(f"Members of {escape(name)}", ("Member", "Type", "Meaning"), rows)


def _table(label: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """A table with a name. The first cell of a row is text, the others are markup."""
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">\n'
    yield "<table><thead><tr>"
    yield from (f'<th scope="col">{head}</th>' for head in heads)
    yield "</tr></thead>\n<tbody>"
    for first, *others in rows:
        yield f'<tr><td class="mono">{escape(first)}</td>'
        yield from (f"<td>{cell}</td>" for cell in others)
        yield "</tr>\n"
    yield "</tbody></table></div>\n"


def _answer(content: dict[str, Any]) -> str:
    return ", ".join(_type(one.get("schema", {})) for one in content.values())


def _type(schema: dict[str, Any]) -> str:
    """The type of a schema as markup, with links to named ones."""
    if "$ref" in schema:
        name = escape(str(schema["$ref"]).rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if "enum" in schema:
        return _codes(schema["enum"])
    return escape(str(schema.get("type", "any")))


def _about(described: dict[str, Any], schema: dict[str, Any], needed: dict[str, Any]) -> str:
    """What a parameter or member is for, and its limits."""
    known = {name: schema[name] for name in _LIMITS if schema.get(name) is not None}
    limits = [_LIMITS[name].format(_number(limit)) for name, limit in known.items()]
    must = ["required"] if needed.get("required") else []
    told = described.get("description", "").rstrip(".")
    return escape("; ".join(filter(None, [told, *must, *limits])))


def _number(value: Any) -> Any:
    """A whole number without its decimal point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _codes(values: list[Any]) -> str:
    return ", ".join(f"<code>{escape(str(value))}</code>" for value in values)

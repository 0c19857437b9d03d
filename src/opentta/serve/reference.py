"""The page of the HTTP interface, /docs, made of the OpenAPI description without any script."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


def reference_page(api: Mapping[str, Any]) -> str:
    """HTML with every route of ``api``; it needs nothing from anywhere.

    Example:
        >>> api = {"info": {"title": "opentta", "version": "1", "description": ""}, "paths": {}}
        >>> "<h1>opentta 1</h1>" in reference_page(api)
        True
    """
    calls = [
        {"path": path, "method": method.upper(), **said}
        for path, methods in api["paths"].items()
        for method, said in methods.items()
    ]
    schemas = api.get("components", {}).get("schemas", {})
    shown = {
        name: {
            field: {"type": type_of(said), "description": said.get("description", "")}
            for field, said in schema.get("properties", {}).items()
        }
        for name, schema in schemas.items()
    }
    return _template().render(info=api["info"], calls=calls, schemas=shown, type_of=type_of)


def type_of(schema: Mapping[str, Any]) -> str:
    """A JSON schema in a few words.

    Example:
        >>> type_of({"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "null"}]}})
        'list of number or null'
    """
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(type_of(option) for option in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    if schema.get("format") == "binary":
        return "file"
    return str(schema.get("const") or schema.get("type") or "anything")


@cache
def _template() -> Template:
    loader = PackageLoader("opentta.serve", ".")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(
        "reference.html.j2"
    )

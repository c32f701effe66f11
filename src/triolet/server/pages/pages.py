"""The pages: playground, debug tree and API notes. Static, offline, without a build step."""

from __future__ import annotations

from importlib import resources
from typing import Final

from quart import Blueprint, Response

PAGE_PATHS: Final = frozenset({"/", "/playground", "/debug", "/docs", "/openapi.json"})

_TYPES: Final = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "json": "application/json",
}

_SECURITY: Final = {
    # Nothing from elsewhere is loaded, and no other site may frame the page.
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

pages = Blueprint("pages", __name__)


def _load() -> dict[str, bytes]:
    """Every static file, by its path under /static/; a few kilobytes, read once."""
    root = resources.files("triolet.server") / "static"
    return {
        f"{folder.name}/{file.name}": file.read_bytes()
        for folder in root.iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in _TYPES
    }


_FILES: Final = _load()


def _file(name: str) -> Response:
    body = _FILES.get(name)
    if body is None:
        return Response("not found", status=404, content_type="text/plain", headers=_SECURITY)
    content_type = f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8"
    return Response(body, content_type=content_type, headers=_SECURITY)


@pages.get("/")
@pages.get("/playground")
async def playground() -> Response:
    """Chat in the browser, with a stop button and a timeline of tokens."""
    return _file("playground/index.html")


@pages.get("/debug")
async def debug() -> Response:
    """The actor tree, refreshed."""
    return _file("pages/debug.html")


@pages.get("/docs")
async def docs() -> Response:
    """Every endpoint with its fields, on one page made from the OpenAPI document."""
    return _file("pages/docs.html")


@pages.get("/openapi.json")
async def openapi() -> Response:
    """The API for programs; written from the protocol's classes by tests/support/openapi.py."""
    return _file("api/openapi.json")


@pages.get("/static/<path:name>")
async def static_file(name: str) -> Response:
    """Scripts and styles of the pages."""
    return _file(name)

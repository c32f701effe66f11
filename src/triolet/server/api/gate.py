"""What every request passes before it reaches a route: host, CORS, keys and ids. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping

import attrs

from triolet.config import ServerConfig
from triolet.errors import ConfigError, Rejected
from triolet.protocol.json_body import clip
from triolet.protocol.sampling import valid_label
from triolet.server.api.error_response import Headers, HttpRefused, Response

PUBLIC_PATHS = frozenset({"/health", "/ready", "/ping", "/version"})
"""Open without a key, besides the static pages; every other path needs one when keys are set."""

KEYS_FILE_BYTES_MAX = 1 << 20

_EXPOSED = b"x-request-id, x-triolet-request-id, x-triolet-ignored, retry-after, x-should-retry"
_HEADER_LIST = re.compile(r"[A-Za-z0-9_\-, ]{1,1000}")
_PREFLIGHT_MAX_AGE_S = b"600"


class Unauthorized(Rejected):
    """No key, or one that is not known."""

    code = "invalid_api_key"
    http_status = 401


@attrs.frozen
class Caller:
    """Who sends a request, as far as keys tell.

    Attributes:
        tenant: Name of the key for limits and logs, never the key; None without keys.
        salt: Secret that keeps this caller's cached prefixes apart from others'.
    """

    tenant: str | None = None
    salt: str | None = None

    def cache_salt(self, own: str | None) -> str | None:
        """Salt of a request: the server's part cannot be chosen by the client."""
        if self.salt is None:
            return own
        return self.salt if own is None else f"{self.salt}:{own}"


class Keys:
    """The API keys of a server; none means that everybody may come in."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    @classmethod
    def of(cls, config: ServerConfig) -> Keys:
        """Keys of a configuration, those of its file included.

        Raises:
            ConfigError: The file cannot be read, or holds none.
        """
        keys = list(config.api_keys)
        path = config.api_keys_file
        if path is not None:
            try:
                lines = path.read_text("utf-8")[:KEYS_FILE_BYTES_MAX].splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"api_keys_file cannot be read: {error}", param="api_keys_file"
                ) from error
            found = [line.strip() for line in lines if line.strip() and line[0] != "#"]
            if not found:
                raise ConfigError("api_keys_file holds no key", param="api_keys_file")
            keys += found
        return cls(keys)

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who a request is from.

        Raises:
            Unauthorized: Keys are set and the request carries none of them.
        """
        if not self._digests:
            return Caller()
        given = _credential(headers)
        if given is None:
            raise Unauthorized("send an API key: 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        # Digests have one length, and every one is compared: time tells nothing about a key.
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise Unauthorized("the API key is not known to this server")
        name = hashlib.sha256(b"triolet tenant" + digest).hexdigest()
        return Caller(tenant=f"key-{name[:12]}", salt=name[12:44])


def _credential(headers: Mapping[str, str]) -> str | None:
    scheme, _, rest = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and rest.strip():
        return rest.strip()
    return headers.get("x-api-key", "").strip() or None


class Hosts:
    """Names that the server answers to; none means any.

    A page of another origin whose name an attacker resolves to this machine (DNS rebinding) is
    of the same origin for its browser; only the Host header tells.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = frozenset(name.strip("[]").lower() for name in names)

    def check(self, request_headers: Mapping[str, str]) -> None:
        """Refuse a request for another host.

        Raises:
            HttpRefused: 421, which tells a client not to ask here.
        """
        if not self._names:
            return
        host = request_headers.get("host", "").strip().lower()
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name not in self._names:
            raise HttpRefused(
                421,
                f"this server does not answer for the host {clip(host)} (allowed_hosts)",
                "host_not_allowed",
            )


class Cors:
    """Cross-origin rules; off when no origin is allowed."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.rstrip("/") for origin in origins)

    def headers(self, request_headers: Mapping[str, str]) -> Headers:
        """Headers for an answer, errors included; empty where the origin is not allowed."""
        origin = request_headers.get("origin")
        if origin is None or not (self._any or origin in self._origins):
            return ()
        allowed = b"*" if self._any else origin.encode("latin-1")
        return (
            (b"access-control-allow-origin", allowed),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"origin"),
        )

    def preflight(self, method: str, request_headers: Mapping[str, str]) -> Response | None:
        """The answer to a pre-flight, which carries no key by the standard; None if it is none."""
        if method != "OPTIONS" or "access-control-request-method" not in request_headers:
            return None
        if not self.headers(request_headers):
            return None
        # Whatever header a client of an allowed origin sends may be sent: SDKs have their own.
        asked = request_headers.get("access-control-request-headers", "")
        allowed = asked if _HEADER_LIST.fullmatch(asked) else "authorization, content-type"
        return Response(
            204,
            b"",
            headers=(
                (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
                (b"access-control-allow-headers", allowed.encode("ascii")),
                (b"access-control-max-age", _PREFLIGHT_MAX_AGE_S),
            ),
        )


def client_label(headers: Mapping[str, str]) -> str | None:
    """The client's own X-Request-Id, if it is short and plain enough to be repeated."""
    label = headers.get("x-request-id")
    return label if label is not None and valid_label(label) else None

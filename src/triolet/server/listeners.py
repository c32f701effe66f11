"""Sockets to listen on: TCP or a Unix socket, with or without TLS."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from pathlib import Path

import attrs
import trio

from triolet.config import ServerConfig
from triolet.errors import ConfigError

BACKLOG = 1024
"""Connections that wait to be accepted; more than arrive while one step holds the loop."""

Listener = trio.SocketListener | trio.SSLListener[trio.SocketStream]


@attrs.frozen
class Listening:
    """Open listeners and where they are.

    Attributes:
        listeners: At least one.
        url: Where clients find the server, the chosen port included.
    """

    listeners: tuple[Listener, ...]
    url: str


async def open_listeners(config: ServerConfig) -> Listening:
    """Listen as configured. A checkpoint.

    Raises:
        ConfigError: The port is taken or forbidden, the host is unknown, or the certificate
            cannot be used.
    """
    context = _tls_context(config)
    if config.uds is not None:
        sockets = [await _open_unix(config.uds)]
        url = f"unix:{config.uds}"
    else:
        sockets = await _open_tcp(config.host, config.port)
        port = sockets[0].socket.getsockname()[1]
        shown = f"[{config.host}]" if ":" in config.host else config.host
        url = f"{'http' if context is None else 'https'}://{shown}:{port}"
    if context is None:
        return Listening(tuple(sockets), url)
    return Listening(
        tuple(trio.SSLListener(sock, context, https_compatible=True) for sock in sockets), url
    )


async def _open_tcp(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(_tcp_reason(host, port, error), param="port") from error


def _tcp_reason(host: str, port: int, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the host {host!r} is not known: {error.strerror}"
    # trio raises a bare OSError from the ones of each address family.
    numbers = {error.errno, getattr(error.__cause__, "errno", None)}
    if isinstance(error.__cause__, BaseExceptionGroup):
        numbers |= {getattr(e, "errno", None) for e in error.__cause__.exceptions}
    if errno.EADDRINUSE in numbers:
        return f"port {port} on {host} is taken by another program; choose another with --port"
    if errno.EACCES in numbers or errno.EPERM in numbers:
        return f"port {port} may not be opened by this user; choose one above 1023"
    return f"cannot listen on {host} port {port}: {error}"


async def _open_unix(path: Path) -> trio.SocketListener:
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        await _remove_stale(path)
        await sock.bind(str(path))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror}", param="uds") from error
    except ConfigError:
        sock.close()
        raise
    return trio.SocketListener(sock)


async def _remove_stale(path: Path) -> None:
    """Remove a socket file that nobody listens on; refuse one that somebody does."""
    if not await trio.Path(path).is_socket():
        return
    try:
        stream = await trio.open_unix_socket(str(path))
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            await trio.Path(path).unlink()
        return
    await stream.aclose()
    raise ConfigError(f"another program listens on {path}", param="uds")


def _tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    if config.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificate cannot be used: {error}", param="ssl_certfile"
        ) from error
    context.set_alpn_protocols(["http/1.1"])
    return context

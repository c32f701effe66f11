"""serve(): from the first byte to the exit status, with signals, failures and both sockets."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import pytest
import trio
from typing_extensions import override

from support.live_server import (
    PATIENCE_S,
    STREAM,
    WHOLE,
    RawClient,
    live_server,
    post,
    wait_until,
)
from triolet.config import EngineConfig, ServerConfig
from triolet.engine.client import EngineClient, Health
from triolet.errors import ConfigError, EngineDead
from triolet.server.serve import serve
from triolet.testing.fake_engine import FakeEngine, Gate, Script

pytestmark = pytest.mark.e2e


class Served:
    """A running serve() and what it said."""

    def __init__(self) -> None:
        self.url = ""
        self.ready = trio.Event()
        self.listening = trio.Event()
        self.exit_status: int | None = None
        self.error: Exception | None = None
        self.shutdown = trio.Event()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def on_listening(self, url: str) -> None:
        self.url = url
        self.listening.set()

    def on_ready(self, url: str, engine: EngineClient) -> None:
        assert url == self.url
        assert engine.facts.name == "fake-model"
        self.ready.set()

    async def connect(self) -> RawClient:
        return RawClient(await trio.open_tcp_stream("127.0.0.1", self.port))


Factory = Callable[[EngineConfig], FakeEngine]


@asynccontextmanager
async def served(
    engine: FakeEngine, *, signals: bool = False, **settings: object
) -> AsyncGenerator[Served]:
    """serve() beside the test; leaving waits for it to end."""
    state = Served()
    config = ServerConfig(port=0, **settings)  # type: ignore[arg-type]  # any setting

    async def run() -> None:
        try:
            state.exit_status = await serve(
                EngineConfig(),
                config,
                engine_factory=lambda _: engine,
                on_ready=state.on_ready,
                on_listening=state.on_listening,
                handle_signals=signals,
                shutdown=state.shutdown,
            )
        except Exception as error:  # what serve raises is the subject of a test
            state.error = error

    with trio.fail_after(2 * PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await state.listening.wait()
            yield state


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_first_signal_drains_and_exits_0(number: int) -> None:
    gate = Gate()
    async with served(FakeEngine(gate=gate), signals=True) as server:
        await server.ready.wait()
        async with await server.connect() as busy, await server.connect() as idle:
            await idle.send(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")
            assert (await idle.answer()).status == 200
            await busy.send(post(STREAM))
            gate.release()
            await busy.read_until(b'"text":"Hello"')
            signal.raise_signal(number)
            await idle.wait_closed()
            with pytest.raises(OSError, match=r"refused|failed"):
                await server.connect()
            gate.release(3)
            await busy.read_until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            await busy.wait_closed()
    assert server.exit_status == 0


async def test_a_request_that_was_arriving_when_the_server_drained_is_answered_503() -> None:
    gate = Gate()
    engine = FakeEngine(gate=gate)
    async with served(engine) as server:
        await server.ready.wait()
        async with await server.connect() as busy, await server.connect() as late:
            await busy.send(post(STREAM))
            await wait_until(lambda: engine.live)
            await late.send(post(WHOLE)[:20])
            await trio.sleep(0.02)
            server.shutdown.set()
            await trio.sleep(0.02)
            await late.send(post(WHOLE)[20:])
            answer = await late.answer()
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            await late.wait_closed()
            gate.release(4)
            await busy.read_until(b"data: [DONE]\n\n")
    assert server.exit_status == 0


async def test_after_the_grace_streams_end_with_an_error_event() -> None:
    engine = FakeEngine(gate=Gate())
    async with served(engine, shutdown_grace_s=0.05) as server:
        await server.ready.wait()
        async with await server.connect() as stream, await server.connect() as whole:
            await stream.send(post(STREAM))
            await whole.send(post(WHOLE))
            await wait_until(lambda: len(engine.live) == 2)
            server.shutdown.set()
            got = await stream.read_to_end()
            assert b'"code":"not_serving"' in got
            assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert (await whole.answer()).status == 503
    assert server.exit_status == 0
    assert engine.live == []


@pytest.mark.slow
async def test_a_client_that_never_reads_cannot_delay_the_exit() -> None:
    engine = FakeEngine(Script(pieces=("x" * 4000,) * 3000))
    async with served(engine, shutdown_grace_s=0.05, write_stall_timeout_s=1000.0) as server:
        await server.ready.wait()
        async with await server.connect() as client:
            await client.send(post({**STREAM, "max_tokens": 10**8}))
            await wait_until(lambda: engine.requests)
            started = trio.current_time()
            server.shutdown.set()
            await wait_until(lambda: server.exit_status is not None)
            assert trio.current_time() - started < 3.5
    assert server.exit_status == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_second_signal_ends_at_once(number: int, status: int) -> None:
    engine = FakeEngine(gate=Gate())
    async with served(engine, signals=True, shutdown_grace_s=1000.0) as server:
        await server.ready.wait()
        async with await server.connect() as client:
            await client.send(post(STREAM))
            await wait_until(lambda: engine.live)
            signal.raise_signal(signal.SIGTERM)
            await trio.sleep(0.02)
            assert engine.live
            signal.raise_signal(number)
            await client.wait_closed()
    assert server.exit_status == status
    assert engine.live == []


class SlowEngine(FakeEngine):
    """Loads for as long as it is not cancelled."""

    @override
    async def __aenter__(self) -> Self:
        await trio.sleep_forever()
        raise AssertionError


async def test_while_the_model_loads_health_answers_and_a_signal_ends_it() -> None:
    async with served(SlowEngine()) as server:
        async with await server.connect() as client:
            for path, status in (("/health", 200), ("/ready", 503), ("/v1/models", 503)):
                await client.send(f"GET {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode())
                assert (await client.answer()).status == status
        assert not server.ready.is_set()
        server.shutdown.set()
    assert server.exit_status == 0


class BrokenEngine(FakeEngine):
    """Cannot be loaded."""

    @override
    async def __aenter__(self) -> Self:
        raise ConfigError("no such model", param="model")


async def test_a_model_that_cannot_be_loaded_is_the_error_of_serve() -> None:
    async with served(BrokenEngine()) as server:
        pass
    assert isinstance(server.error, ConfigError)
    assert server.error.param == "model"


class DyingEngine(FakeEngine):
    """Dies when told to: its block is cancelled and raises."""

    def __init__(self) -> None:
        super().__init__(gate=Gate())
        self.die = trio.Event()

    @override
    async def __aenter__(self) -> Self:
        await super().__aenter__()
        assert self._nursery is not None
        self._nursery.start_soon(self._wait)
        return self

    async def _wait(self) -> None:
        await self.die.wait()
        self.script = Script(admission_error=EngineDead("gone"))
        raise EngineDead("the runner is gone")


@pytest.mark.slow
async def test_an_engine_that_dies_ends_the_server_with_its_error() -> None:
    engine = DyingEngine()
    async with served(engine) as server:
        await server.ready.wait()
        async with await server.connect() as client:
            await client.send(post(WHOLE))
            await wait_until(lambda: engine.live)
            engine.die.set()
            assert (await client.answer()).status == 503
    assert isinstance(server.error, EngineDead)


@pytest.mark.slow
async def test_an_engine_that_says_it_is_dead_ends_the_server() -> None:
    engine = FakeEngine()
    async with served(engine) as server:
        await server.ready.wait()
        engine.health = Health.DEAD
        async with await server.connect() as client:
            await client.send(post(WHOLE) + b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")
            for _ in range(2):
                assert (await client.answer()).status == 503
    assert isinstance(server.error, EngineDead)


async def test_a_taken_port_is_a_config_error_before_anything_is_loaded() -> None:
    loaded: list[EngineConfig] = []

    def factory(config: EngineConfig) -> FakeEngine:
        loaded.append(config)
        return FakeEngine()

    async with live_server() as other:
        with pytest.raises(ConfigError) as caught:
            await serve(
                EngineConfig(),
                ServerConfig(port=other.port),
                engine_factory=factory,
                handle_signals=False,
            )
    assert caught.value.param == "port"
    assert "taken" in caught.value.message
    assert loaded == []


async def test_an_unknown_host_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"host|listen"):
        await serve(
            EngineConfig(),
            ServerConfig(host="no-such-host.invalid", port=0),
            engine_factory=lambda _: FakeEngine(),
            handle_signals=False,
        )


async def test_serving_twice_leaves_no_thread_and_no_file_descriptor() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def once() -> None:
        async with served(FakeEngine()) as server:
            await server.ready.wait()
            async with await server.connect() as client:
                await client.send(post(WHOLE))
                assert (await client.answer()).status == 200
            server.shutdown.set()
        assert server.exit_status == 0

    await once()
    before = descriptors(), threading.active_count()
    await once()
    assert (descriptors(), threading.active_count()) == before


async def test_unix_socket_is_served_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "triolet.sock"
    for _ in range(2):
        async with served(FakeEngine(), uds=path) as server:
            await server.ready.wait()
            assert server.url == f"unix:{path}"
            async with RawClient(await trio.open_unix_socket(str(path))) as client:
                await client.send(post(STREAM))
                await client.read_until(b"data: [DONE]\n\n")
            server.shutdown.set()
        assert not path.exists()


async def test_a_stale_unix_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "triolet.sock"
    stale = trio.socket.socket(trio.socket.AF_UNIX)
    await stale.bind(str(path))
    stale.close()
    async with served(FakeEngine(), uds=path) as server:
        await server.ready.wait()
        with pytest.raises(ConfigError, match="another program listens"):
            await serve(
                EngineConfig(),
                ServerConfig(uds=path),
                engine_factory=lambda _: FakeEngine(),
                handle_signals=False,
            )
        server.shutdown.set()


@pytest.mark.slow
async def test_tls_is_served_and_streams(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    outputs = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *subject, *outputs], check=True, capture_output=True)
    async with served(FakeEngine(), ssl_certfile=cert, ssl_keyfile=key) as server:
        await server.ready.wait()
        assert server.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(cert))
        transport = await trio.open_tcp_stream("127.0.0.1", server.port)
        stream = trio.SSLStream(
            transport, context, server_hostname="localhost", https_compatible=True
        )
        await stream.send_all(post(STREAM, more="Connection: close\r\n"))
        got = b""
        while data := await stream.receive_some():
            got += data
        assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert json.loads(got.split(b"data: ")[1].split(b"\n\n")[0])["model"] == "fake-model"
        await stream.aclose()
        async with await server.connect() as plain:
            await plain.send(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
            await plain.wait_closed()
        server.shutdown.set()
    assert server.exit_status == 0


async def test_a_missing_certificate_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        await serve(
            EngineConfig(),
            ServerConfig(port=0, ssl_certfile=tmp_path / "a", ssl_keyfile=tmp_path / "b"),
            engine_factory=lambda _: FakeEngine(),
            handle_signals=False,
        )
    assert caught.value.param == "ssl_certfile"


async def test_background_responses_are_owned_by_the_server_and_end_with_it() -> None:
    gate = Gate()
    engine = FakeEngine(gate=gate)
    async with served(engine) as state, await state.connect() as client:
        await client.send(post({"input": "hi", "background": True}, path="/v1/responses"))
        answer = await client.answer()
        assert (answer.status, answer.json()["status"]) == (200, "queued")
        await wait_until(lambda: engine.live)
        state.shutdown.set()
    assert state.exit_status == 0
    assert engine.live == []

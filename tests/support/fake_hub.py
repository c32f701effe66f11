"""A Hugging Face hub on loopback: as much of its HTTP API as a snapshot download needs."""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import attrs
from typing_extensions import override

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@attrs.define
class FakeHub:
    """Repository "owner/name" with some files; "owner/gated" is gated, others do not exist.

    Attributes:
        files: Path -> content.
        url: For HF_ENDPOINT.
        fetched: Paths whose content was sent, in order.
    """

    files: Mapping[str, bytes]
    url: str = ""
    fetched: list[str] = attrs.field(factory=list)


@contextmanager
def serve_hub(files: Mapping[str, bytes]) -> Iterator[FakeHub]:
    hub = FakeHub(files)

    class Handler(http.server.BaseHTTPRequestHandler):
        @override
        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the tests look at `fetched`."""

        def do_HEAD(self) -> None:
            self.answer(send_body=False)

        def do_GET(self) -> None:
            self.answer(send_body=True)

        def answer(self, *, send_body: bool) -> None:
            path = self.path.partition("?")[0].strip("/")
            name = path.rpartition(f"/resolve/{COMMIT}/")[2]
            body, headers, status = b"", {}, 200
            if path in (f"api/models/owner/name/revision/{ref}" for ref in ("main", COMMIT)):
                siblings = [{"rfilename": file} for file in hub.files]
                body = json.dumps(
                    {"id": "owner/name", "sha": COMMIT, "siblings": siblings}
                ).encode()
            elif path == f"api/models/owner/name/tree/{COMMIT}":
                body = json.dumps(
                    [
                        {"type": "file", "path": file, "size": len(content), "oid": _etag(content)}
                        for file, content in hub.files.items()
                    ]
                ).encode()
            elif path.startswith("owner/name/resolve/") and name in hub.files:
                body = hub.files[name]
                headers = {"ETag": f'"{_etag(body)}"', "X-Repo-Commit": COMMIT}
                if send_body:
                    hub.fetched.append(name)
            elif "owner/name" in path:
                status, headers = 404, {"X-Error-Code": "RevisionNotFound"}
            elif "owner/gated" in path:
                status, headers = 403, {"X-Error-Code": "GatedRepo"}
            else:
                status, headers = 404, {"X-Error-Code": "RepoNotFound"}
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if send_body:
                self.wfile.write(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

"""A package index on the loopback interface, and wheels made for it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def make_wheel(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@dataclass
class FakeIndex:
    """Serves /simple/<project>/ and /files/<wheel>. Requests are counted by path."""

    as_json: bool = True
    password: str | None = None
    truncate: bool = False
    declared_sha256: str | None = None
    wheels: dict[str, dict[str, bytes]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def add(self, project: str, filename: str, members: dict[str, bytes]) -> None:
        self.wheels.setdefault(project, {})[filename] = make_wheel(members)

    def page(self, project: str) -> tuple[str, bytes]:
        links = {
            name: self.declared_sha256 or hashlib.sha256(content).hexdigest()
            for name, content in self.wheels[project].items()
        }
        if self.as_json:
            files = [
                {"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": digest}}
                for name, digest in links.items()
            ]
            return "application/vnd.pypi.simple.v1+json", json.dumps({"files": files}).encode()
        anchors = "".join(
            f'<a href="../../files/{name}#sha256={d}">{name}</a><br>' for name, d in links.items()
        )
        return "text/html", f"<!DOCTYPE html><html><body>{anchors}</body></html>".encode()


def _handler(index: FakeIndex) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            index.requests.append(self.path)
            expected = base64.b64encode(f"user:{index.password}".encode()).decode()
            if (
                index.password is not None
                and self.headers.get("Authorization") != f"Basic {expected}"
            ):
                self.send_error(401)
                return
            kind, _, name = self.path.strip("/").partition("/")
            if kind == "simple" and name in index.wheels:
                self.answer(*index.page(name))
                return
            for files in index.wheels.values():
                if kind == "files" and name in files:
                    self.answer("application/zip", files[name], cut=index.truncate)
                    return
            self.send_error(404)

        def answer(self, content_type: str, body: bytes, *, cut: bool = False) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if cut else body)

    return Handler


@contextmanager
def serving(index: FakeIndex) -> Iterator[FakeIndex]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(index))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

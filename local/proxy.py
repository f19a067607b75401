"""A proxy before the local cloud, for tests: it changes answers, and sends a signal to its client at a request."""

import contextlib
import http.client
import re
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Exchange:
    """A request of a service of AWS, with its answer."""

    operation: str  # as CreateTable; for S3 the method
    status: int
    body: bytes


def unchanged(exchange: Exchange) -> bytes:
    return exchange.body


def nothing(_: str) -> None:
    """Does nothing at a request."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Says nothing of clients that were killed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(*_)


@dataclass
class Proxy:
    """A running proxy: its work at a request, and the operations that passed it."""

    url: str = ""
    # The body that the client gets.
    change: Callable[[Exchange], bytes] = unchanged
    # Called with the operation, before the request is forwarded and after it was.
    before: Callable[[str], None] = nothing
    after: Callable[[str], None] = nothing
    operations: list[str] = field(default_factory=list)


def operation(method: str, path: str, headers: Any, body: bytes) -> str:
    if target := headers.get("X-Amz-Target"):
        return str(target).rsplit(".", 1)[-1]
    if found := re.search(rb"(?:^|&)Action=(\w+)", body):
        return found[1].decode()
    return f"{method} {urllib.parse.urlsplit(path).path}"


@contextlib.contextmanager
def serve(endpoint: str) -> Iterator[Proxy]:
    """A proxy on a free port of the loopback interface."""
    target = urllib.parse.urlsplit(endpoint)
    proxy = Proxy()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self._body()
            name = operation(self.command, self.path, self.headers, body)
            proxy.operations.append(name)
            proxy.before(name)
            assert target.hostname
            upstream = http.client.HTTPConnection(target.hostname, target.port, timeout=60)
            skipped = ("host", "content-length", "transfer-encoding", "connection", "expect")
            headers = {k: v for k, v in self.headers.items() if k.lower() not in skipped}
            upstream.request(self.command, self.path, body, headers)
            response = upstream.getresponse()
            answer = response.read()
            proxy.after(name)
            answer = proxy.change(Exchange(name, response.status, answer)) if self.command != "HEAD" else answer
            # The client may have been killed meanwhile.
            with contextlib.suppress(ConnectionError):
                self.send_response(response.status)
                for key, value in response.getheaders():
                    if key.lower() not in ("content-length", "transfer-encoding", "connection", "x-amz-crc32"):
                        self.send_header(key, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer)
            upstream.close()

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = forward

        def log_message(self, *_: Any) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        proxy.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield proxy
        finally:
            server.shutdown()

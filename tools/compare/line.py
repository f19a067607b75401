"""A line between a function and the table: a proxy that loses an answer, goes silent, or is slow."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self


@dataclass
class Connection:
    client: socket.socket
    server: socket.socket
    last_request: float = 0.0
    silent: bool = False
    """Bytes still arrive, and nobody forwards them: neither end sees the connection close."""

    def close(self) -> None:
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@dataclass
class Line:
    endpoint: str
    loses_first_answer: bool = False
    delay: float = 0.0
    """Seconds between a request and its answer."""
    connections: list[Connection] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def to(cls, upstream: str, *, loses_first_answer: bool = False, delay: float = 0.0) -> Iterator[Self]:
        host, port = upstream.removeprefix("http://").split(":")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            line = cls(f"http://127.0.0.1:{listener.getsockname()[1]}", loses_first_answer, delay)
            accept = threading.Thread(target=line._accept, args=(listener, (host, int(port))), daemon=True)
            accept.start()
            yield line

    def silence(self) -> None:
        """Silences the open connections, as a NAT that has forgotten them does. New connections work."""
        for connection in self.connections:
            connection.silent = True

    def close(self) -> None:
        """Closes the open connections, as a server that found them idle does. New connections work."""
        for connection in self.connections:
            connection.close()

    def _accept(self, listener: socket.socket, upstream: tuple[str, int]) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = listener.accept()
                connection = Connection(client, socket.create_connection(upstream))
                loses_answer = self.loses_first_answer and not self.connections
                self.connections.append(connection)
                threading.Thread(target=self._requests, args=(connection,), daemon=True).start()
                threading.Thread(target=self._answers, args=(connection, loses_answer), daemon=True).start()

    def _requests(self, line: Connection) -> None:
        with _both_closed(line):
            while chunk := line.client.recv(65536):
                if not line.silent:
                    line.last_request = time.monotonic()
                    line.server.sendall(chunk)

    def _answers(self, line: Connection, loses_answer: bool) -> None:
        with _both_closed(line):
            while (chunk := line.server.recv(65536)) and not loses_answer:
                time.sleep(max(0.0, line.last_request + self.delay - time.monotonic()))
                if not line.silent:
                    line.client.sendall(chunk)


@contextlib.contextmanager
def _both_closed(line: Connection) -> Iterator[None]:
    """Closes both ends when one of them has closed."""
    try:
        with contextlib.suppress(OSError):
            yield
    finally:
        line.close()

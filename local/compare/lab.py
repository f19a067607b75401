"""The functions that scenarios run against, and their tables. function.py documents their protocol."""

import contextlib
import itertools
import json
import socket
import subprocess
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import cloud

Json = dict[str, Any]

PATIENCE = 60.0
# Every setting of a function, with its documented value.
DOCUMENTED = {
    "key": "powertools_json(body).orderId",
    "lambda_context": True,
    "key_required": False,
    "validation": False,
    "in_turn": False,
}


@dataclass(frozen=True)
class Library:
    name: str
    version: str
    command: list[str]
    directory: Path
    settings: dict[str, str]
    """The settings of DOCUMENTED that the library has, with their names in the library."""


@dataclass
class Ended:
    """The outcome of an invocation. A function that was killed reported no failures."""

    ran: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    outputs: Json = field(default_factory=dict)
    errors: Json = field(default_factory=dict)


class Function:
    """One execution environment of a function."""

    def __init__(self, name: str, command: list[str], directory: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors: list[str] = []
        self.reader = threading.Thread(target=self._read_errors, daemon=True)
        self.reader.start()
        self.watchdog = threading.Timer(PATIENCE, self.process.kill)
        self.watchdog.daemon = True
        self.watchdog.start()
        self.hello = self._hear()

    def deliver(
        self, *records: Json, remaining_ms: int = 60_000, does: Callable[[str], Json | None] | None = None
    ) -> Ended:
        """Invokes the function. `does` returns how the handler ends, by message id; None if it killed the function."""
        ended = Ended()
        self._tell({"event": {"Records": records}, "remaining_ms": remaining_ms})
        while "handle" in (heard := self._hear()):
            ended.ran.append(heard["handle"])
            answer = does(heard["handle"]) if does else {"return": "done"}
            if self.process.poll() is not None:
                print(f"    {self.name} was killed, ran {ended.ran}")
                return ended
            self._tell(answer)
        ended.failed, ended.outputs, ended.errors = heard["failed"], heard["outputs"], heard["errors"]
        print(f"    {self.name} ended, {textwrap.shorten(str(vars(ended)), 200)}")
        return ended

    def kill(self) -> None:
        """Ends the function as a crash does."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.watchdog.cancel()
        self.kill()

    def _tell(self, message: Json | None) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def _hear(self) -> Json:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.reader.join(5)
            raise RuntimeError("the function ended:\n" + "".join(self.errors))
        message: Json = json.loads(line)
        return message

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)


class Environment:
    """One library with some settings, and a table for both."""

    def __init__(self, up: cloud.Cloud, table: str, library: Library, settings: dict[str, bool]) -> None:
        self.up, self.table, self.library, self.settings = up, table, library, settings
        self.running = contextlib.ExitStack()
        self.number = itertools.count(1)
        cloud.create_table(up, table)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.running.close()

    def function(self, endpoint: str | None = None, **settings: str | bool) -> Function:
        environment = self.up.environment() | {
            "AWS_ENDPOINT_URL": endpoint or self.up.endpoint,
            "AWS_LAMBDA_FUNCTION_NAME": "payments",
            "IDEMPOTENCY_TABLE": self.table,
            "NO_PROXY": "127.0.0.1",
        }
        told = json.dumps(DOCUMENTED | settings | self.settings)
        command = [*self.library.command, told]
        function = Function(f"function {next(self.number)}", command, self.library.directory, environment)
        self.running.callback(function.close)
        return function

    def records(self) -> list[Json]:
        """Every item of the table, in the JSON of DynamoDB."""
        items: list[Json] = self.up.client("dynamodb").scan(TableName=self.table, ConsistentRead=True)["Items"]
        return items

    def loses_first_answer(self) -> "LossyLine":
        return self.running.enter_context(LossyLine.to(self.up.endpoint))


class Lab:
    def __init__(self, up: cloud.Cloud) -> None:
        self.up = up
        self.number = itertools.count(1)

    def environment(self, library: Library, settings: dict[str, bool]) -> Environment:
        return Environment(self.up, f"compare-{next(self.number)}", library, settings)

    def library(self, command: list[str], directory: Path, settings: dict[str, dict[str, str]]) -> Library:
        """Asks the function for the name and version of its library."""
        nameless = Library("", "", command, directory, {})
        with self.environment(nameless, {}) as environment:
            hello = environment.function().hello
        name = hello["library"]
        return Library(name, hello["version"], command, directory, settings[name])


@dataclass
class LossyLine:
    """A proxy of an endpoint that loses the response to the first request."""

    endpoint: str
    connections: int = 0

    @classmethod
    @contextlib.contextmanager
    def to(cls, upstream: str) -> Iterator["LossyLine"]:
        host, port = upstream.removeprefix("http://").split(":")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            line = cls(f"http://127.0.0.1:{listener.getsockname()[1]}")
            accept = threading.Thread(target=line._accept, args=(listener, (host, int(port))), daemon=True)
            accept.start()
            yield line

    def _accept(self, listener: socket.socket, upstream: tuple[str, int]) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = listener.accept()
                self.connections += 1
                server = socket.create_connection(upstream)
                lossy = self.connections == 1
                threading.Thread(target=_pump, args=(client, server), daemon=True).start()
                threading.Thread(target=_pump, args=(server, client, lossy), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, lost: bool = False) -> None:
    """Forwards bytes from source to sink. If `lost`, closes both at the first bytes instead."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            if lost:
                break
            sink.sendall(chunk)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

"""Functions to try scenarios on: processes that speak the lines of function.py, and their tables."""

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

import cloud

PATIENCE = 60.0
# Every setting that a function takes, as the documentation has it.
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
    """The settings of DOCUMENTED that the library has, by its own names."""


@dataclass
class Ended:
    """What became of an invocation; `failed` is None if the function was killed in it."""

    ran: list[str] = field(default_factory=list)
    failed: list[str] | None = None
    outputs: dict = field(default_factory=dict)
    errors: dict = field(default_factory=dict)


class Function:
    """One execution environment of a function."""

    def __init__(self, name: str, command: list[str], directory: Path, environment: dict):
        self.name = name
        self.process = subprocess.Popen(
            command, cwd=directory, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        self.complaints: list[str] = []
        self.reader = threading.Thread(target=lambda: self.complaints.extend(self.process.stderr), daemon=True)
        self.reader.start()
        self.watchdog = threading.Timer(PATIENCE, self.process.kill)
        self.watchdog.daemon = True
        self.watchdog.start()
        self.hello = self._hear()

    def deliver(self, *records: dict, remaining_ms: int = 60_000, does: Callable[[str], dict] | None = None) -> Ended:
        """One invocation. `does` says what the handler does with a message, by its id."""
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
        """As a crash does: nothing runs in it any more."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.watchdog.cancel()
        self.kill()

    def _tell(self, what: dict) -> None:
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def _hear(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            self.reader.join(5)
            raise RuntimeError("the function ended:\n" + "".join(self.complaints))
        return json.loads(line)


class Environment:
    """One library and setting, with a table of their own."""

    def __init__(self, up: cloud.Cloud, table: str, library: Library, settings: dict):
        self.up, self.table, self.library, self.settings = up, table, library, settings
        self.running = contextlib.ExitStack()
        self.number = itertools.count(1)
        cloud.create_table(up, table)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.running.close()

    def function(self, endpoint: str | None = None, **settings) -> Function:
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

    def records(self) -> list[dict]:
        """Everything in the table, as DynamoDB writes it."""
        return self.up.client("dynamodb").scan(TableName=self.table, ConsistentRead=True)["Items"]

    def loses_first_answer(self) -> "LossyLine":
        return self.running.enter_context(LossyLine.to(self.up.endpoint))


class Lab:
    def __init__(self, up: cloud.Cloud):
        self.up = up
        self.number = itertools.count(1)

    def environment(self, library: Library, settings: dict) -> Environment:
        return Environment(self.up, f"compare-{next(self.number)}", library, settings)

    def library(self, command: list[str], directory: Path, settings: dict[str, dict]) -> Library:
        """Asks the function which library it is on."""
        nameless = Library("", "", command, directory, {})
        with self.environment(nameless, {}) as environment:
            hello = environment.function().hello
        name = hello["library"]
        return Library(name, hello["version"], command, directory, settings[name])


@dataclass
class LossyLine:
    """An endpoint before another: the first request arrives there, its answer does not come back."""

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
    """Carries what comes on to the other side; or cuts both off when something comes, if it is `lost`."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            if lost:
                break
            sink.sendall(chunk)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

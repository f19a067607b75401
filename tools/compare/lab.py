"""The functions that scenarios run against, and their tables. function.py documents their protocol."""

import contextlib
import itertools
import json
import signal
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import cloud
from cloud import Json
from line import Line

Setting = str | bool

PATIENCE = 60.0
# The last message of a function that was killed before it ended.
KILLED: Json = {}
# Every setting of a function, with its documented value.
DOCUMENTED: dict[str, Setting] = {
    "key": "powertools_json(body).orderId",
    "lambda_context": True,
    "key_required": False,
    "validation": "",
    "in_turn": False,
    "short_timeout": False,
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
    answered: bool = False
    failed: list[str] = field(default_factory=list)
    outputs: Json = field(default_factory=dict)
    errors: Json = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        return self.answered and not self.failed


class Function:
    """One execution environment of a function."""

    def __init__(self, name: str, command: list[str], directory: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.killed = False
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
                break
            self._tell(answer)
        else:
            if heard != KILLED:
                ended.answered = True
                ended.failed, ended.outputs, ended.errors = heard["failed"], heard["outputs"], heard["errors"]
        how = "ended" if ended.answered else "was killed"
        print(f"    {self.name} {how}, {textwrap.shorten(str(vars(ended)), 200)}")
        return ended

    def deliver_until(self, timeout_ms: int, *records: Json) -> Ended:
        """Invokes the function, and kills it at its timeout, as Lambda does."""
        deadline = threading.Timer(timeout_ms / 1000, self.kill)
        started = time.monotonic()
        deadline.start()
        ended = self.deliver(*records, remaining_ms=timeout_ms)
        deadline.cancel()
        print(f"    after {time.monotonic() - started:.1f} s")
        return ended

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends the function as a crash does."""
        self.killed = True
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
        if not line and self.killed:
            return KILLED
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

    def __init__(self, up: cloud.Cloud, table: str, library: Library, settings: dict[str, Setting]) -> None:
        self.up, self.table, self.library, self.settings = up, table, library, settings
        self.running = contextlib.ExitStack()
        self.number = itertools.count(1)
        cloud.create_table(up, table)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.running.close()

    def function(self, endpoint: str | None = None, **settings: Setting) -> Function:
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

    def line(self, *, loses_first_answer: bool = False, delay: float = 0.0) -> Line:
        """A line to the table, for the endpoint of a function."""
        line = Line.to(self.up.endpoint, loses_first_answer=loses_first_answer, delay=delay)
        return self.running.enter_context(line)


class Lab:
    def __init__(self, up: cloud.Cloud) -> None:
        self.up = up
        self.number = itertools.count(1)

    def environment(self, library: Library, settings: dict[str, Setting]) -> Environment:
        return Environment(self.up, f"compare-{next(self.number)}", library, settings)

    def library(self, command: list[str], directory: Path, settings: dict[str, dict[str, str]]) -> Library:
        """Asks the function for the name and version of its library."""
        nameless = Library("", "", command, directory, {})
        with self.environment(nameless, {}) as environment:
            hello = environment.function().hello
        name = hello["library"]
        return Library(name, hello["version"], command, directory, settings[name])

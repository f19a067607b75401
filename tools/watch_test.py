"""Tests of local runs: `cargo lambda watch` and `make watch`, on the consumer itself.

    python tools/watch_test.py [-v] [TEST...]     a part of `make test`

They build the consumer for `cargo lambda watch`, in the profile `dev` without the features of the tests.
"""

import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator, Mapping
from typing import Any

from cloud import ROOT, STATE, Cloud, free_port, group, ministack, unwind_on_signals
from output import Output

PATIENCE = 60.0  # reached only when a test fails
# Other `make watch` of this checkout do not matter.
OWN_STATE = STATE / "watch-test"
NEW_ORDERS = "events/new-orders.json"
THREE = ["completed"] * 3
THREE_DUPLICATES = ["duplicate"] * 3


def without_settings() -> dict[str, str]:
    """The environment of a developer who has set nothing, not even credentials of AWS."""
    prefixes = ("AWS_", "CONSUMER_", "IDEMPOTENCY_", "PAYMENT_", "SECONDS_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
    none = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    return kept | none | {"AWS_EC2_METADATA_DISABLED": "true", "SQS_ONCE_STATE": str(OWN_STATE)}


class Terminal(Output):
    """The output of a command that runs beside the test."""

    def line(self, words: str) -> str:
        """Waits for a line with these words."""
        return self._wait_for(lambda: [line for line in self.lines if words in line], 1, words)[0]

    def no_line(self, words: str) -> None:
        with self.arrived:
            assert not any(words in line for line in self.lines), "\n".join(self.lines)

    def outcomes(self, count: int) -> list[str]:
        """Waits for the outcomes of so many messages. Removes all output until now."""
        outcomes = self._wait_for(self._outcomes, count, f"{count} outcomes")
        with self.arrived:
            self.lines.clear()
        return outcomes

    def _outcomes(self) -> list[str]:
        logged = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [line["outcome"] for line in logged if line["message"] == "message processed"]

    def _wait_for(self, find: Any, count: int, wanted: str) -> list[str]:
        with self.arrived:
            found = self.arrived.wait_for(lambda: len(find()) >= count or self.ended, PATIENCE)
            if not found or len(find()) < count:
                raise AssertionError(f"no {wanted!r} in\n" + "\n".join(self.lines))
            lines: list[str] = find()
            return lines


@contextlib.contextmanager
def terminal(command: list[str], environment: Mapping[str, str]) -> Iterator[Terminal]:
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with group(command, env=dict(environment), cwd=ROOT, **output) as process:
        yield Terminal(process)


def run(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    options: dict[str, Any] = {"cwd": ROOT, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run(command, env=dict(environment), timeout=PATIENCE, check=False, **options)


class PlainWatch(unittest.TestCase):
    """`cargo lambda watch` and `cargo lambda invoke` as typed, without a setting."""

    @contextlib.contextmanager
    def watch(self, **settings: str) -> Iterator[tuple[Terminal, list[str]]]:
        """Runs the watch. Yields its terminal, and the command that invokes its function."""
        # The default address is every interface.
        address = ["-A", "127.0.0.1", "-P", str(free_port())]
        with terminal(["cargo", "lambda", "watch", *address], without_settings() | settings) as watch:
            watch.line("starting Runtime server")
            yield watch, ["cargo", "lambda", "invoke", *address]

    def answer(self, invoke: list[str], event: str) -> dict[str, Any]:
        ended = run([*invoke, "--data-file", event], without_settings())
        assert ended.returncode == 0, ended.stderr
        response: dict[str, Any] = json.loads(ended.stdout)
        return response

    def test_plain_watch_remembers_in_memory(self) -> None:
        with self.watch(AWS_EC2_METADATA_DISABLED="false") as (watch, invoke):
            assert self.answer(invoke, NEW_ORDERS) == {"batchItemFailures": []}
            warning = watch.line("records are in memory")
            assert "no record survives a restart" in warning
            watch.no_line("IMDS")  # a request that takes seconds on a machine outside AWS
            assert watch.outcomes(3) == THREE
            assert self.answer(invoke, NEW_ORDERS) == {"batchItemFailures": []}
            assert watch.outcomes(3) == THREE_DUPLICATES
            declined = self.answer(invoke, "events/declined.json")
            assert len(declined["batchItemFailures"]) == 1
            assert watch.outcomes(1) == ["permanent_failure"]

    def test_function_with_name_needs_settings(self) -> None:
        with (
            self.watch() as (watch, invoke),
            # Never answered, since the consumer exits.
            terminal([*invoke, "consumer", "--data-file", NEW_ORDERS], without_settings()),
        ):
            error = watch.line("could not start")
            for variable in ("IDEMPOTENCY_TABLE_NAME", "IDEMPOTENCY_NAMESPACE", "PAYMENT_GATEWAY_URL"):
                assert f"{variable} is not set" in error
            assert "make watch" in error

    def test_watch_on_a_table_needs_a_gateway(self) -> None:
        with (
            self.watch(IDEMPOTENCY_TABLE_NAME="records") as (watch, invoke),
            terminal([*invoke, "--data-file", NEW_ORDERS], without_settings()),
        ):
            assert "PAYMENT_GATEWAY_URL is not set" in watch.line("could not start")


class MakeWatch(unittest.TestCase):
    """`make watch`."""

    up: Cloud
    running: contextlib.ExitStack

    @classmethod
    def setUpClass(cls) -> None:
        cls.running = contextlib.ExitStack()
        cls.addClassCleanup(cls.running.close)
        cls.up = cls.running.enter_context(ministack("watch-test"))

    def environment(self, **settings: str) -> dict[str, str]:
        # A table for each test.
        table = {"IDEMPOTENCY_TABLE_NAME": re.sub(r"[^\w.-]", "-", self.id())}
        return without_settings() | {"AWS_ENDPOINT_URL": self.up.endpoint} | table | settings

    @contextlib.contextmanager
    def watch(self, *arguments: str, **settings: str) -> Iterator[Terminal]:
        command = [sys.executable, "tools/watch.py", *arguments]
        with terminal(command, self.environment(**settings)) as watch:
            watch.line("starting Runtime server")
            yield watch

    def failures(self, event: str) -> int:
        """Number of failed messages of an event, which is sent as `make invoke` does."""
        port = (OWN_STATE / "watch.port").read_text()
        ended = run(
            ["cargo", "lambda", "invoke", "-A", "127.0.0.1", "-P", port, "--data-file", event], without_settings()
        )
        assert ended.returncode == 0, ended.stderr
        return len(json.loads(ended.stdout)["batchItemFailures"])

    def test_new_and_duplicate_and_declined(self) -> None:
        with self.watch() as watch:
            assert self.failures(NEW_ORDERS) == 0
            assert watch.outcomes(3) == THREE
            assert self.failures(NEW_ORDERS) == 0
            assert watch.outcomes(3) == THREE_DUPLICATES
            assert self.failures("events/declined.json") == 1
            assert watch.outcomes(1) == ["permanent_failure"]

    def test_example_runs_on_its_tables(self) -> None:
        with self.watch("create_user") as watch:
            assert self.failures("events/create-user.json") == 0
            assert "completed" in watch.outcomes(1)

    def test_example_runs_on_a_server_of_its_own(self) -> None:
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        command = [sys.executable, "tools/watch.py", "place_order_postgres"]
        with group(command, env=self.environment(), cwd=ROOT, **output) as process:
            watch = Terminal(process)
            url = watch.line("tables at postgres://")
            watch.line("starting Runtime server")
            assert self.failures("events/place-order.json") == 0
            # Two of its messages are the same order.
            assert sorted(watch.outcomes(3)) == ["completed", "completed", "duplicate"]
            assert self.failures("events/place-order.json") == 0
            assert watch.outcomes(3) == THREE_DUPLICATES
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)
        port = int(url.split(":")[-1].split("/")[0])
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED

    def test_endpoint_without_scheme_is_refused(self) -> None:
        environment = self.environment(AWS_ENDPOINT_URL="127.0.0.1:4566")
        for command in (["tools/watch.py"], ["tools/cloud.py", "run", "--", "true"]):
            ended = run([sys.executable, *command], environment)
            assert ended.returncode == 1
            assert "AWS_ENDPOINT_URL=127.0.0.1:4566 must begin with http://" in ended.stderr


def main() -> int:
    unwind_on_signals()
    OWN_STATE.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    # One command, so that the packages have the same features.
    programs = ["--package", "programs", "--bin"]
    for program in (
        ["--bin", "consumer"],
        [*programs, "create_user"],
        [*programs, "place_order_postgres", "--features", "postgres"],
    ):
        subprocess.run(["cargo", "build", "--locked", *program], cwd=ROOT, check=True)
    print(f"built in {time.monotonic() - start:.0f} s", flush=True)
    return 0 if unittest.main(exit=False).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())

"""Tests of local runs: `cargo lambda watch` and `make dev`, on the consumer itself.

    python tools/watch_test.py [-v] [TEST...]     a part of `make test`

They build the consumer for `cargo lambda watch`, in the profile `dev` without the features of the tests.
"""

import contextlib
import errno
import json
import os
import re
import socket
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator, Mapping
from typing import Any

from cloud import ROOT, STATE, free_port, group, unwind_on_signals
from driven_dev import Dev, started
from output import Output

PATIENCE = 60.0  # reached only when a test fails
# We ignore any other `make dev` of this checkout.
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
        """Waits for this many outcomes. Removes all output so far."""
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
            # Lambda never answers this, because the consumer exits.
            terminal([*invoke, "consumer", "--data-file", NEW_ORDERS], without_settings()),
        ):
            error = watch.line("could not start")
            for variable in ("IDEMPOTENCY_TABLE_NAME", "IDEMPOTENCY_NAMESPACE", "PAYMENT_GATEWAY_URL"):
                assert f"{variable} is not set" in error
            assert "make dev" in error

    def test_watch_on_a_table_needs_a_gateway(self) -> None:
        with (
            self.watch(IDEMPOTENCY_TABLE_NAME="records") as (watch, invoke),
            terminal([*invoke, "--data-file", NEW_ORDERS], without_settings()),
        ):
            assert "PAYMENT_GATEWAY_URL is not set" in watch.line("could not start")


class MakeDev(unittest.TestCase):
    """`make dev` of this checkout, once its programs are built."""

    @contextlib.contextmanager
    def dev(self, *arguments: str) -> Iterator[Dev]:
        variables = without_settings() | {"PAYMENT_GATEWAY_URL": "sandbox"}
        with started([sys.executable, "tools/dev.py", *arguments], ROOT, variables) as dev:
            yield dev

    def shows(self, dev: Dev, first: dict[str, int]) -> None:
        """The outcomes of a sample event, then its duplicates, and the end."""
        dev.wait_for(first, "back to the queue", within=PATIENCE)
        line = len(dev.lines)
        dev.enter()
        dev.wait_for({"duplicate": 3}, "back to the queue", line, PATIENCE)
        dev.interrupt()

    def test_sample_runs_on_the_template(self) -> None:
        with self.dev("watch", "consumer", NEW_ORDERS) as dev:
            self.shows(dev, {"completed": 3})

    def test_example_runs_on_its_tables(self) -> None:
        with self.dev("example", "create_user") as dev:
            self.shows(dev, {"completed": 2, "duplicate": 1})

    def test_example_runs_on_a_server_of_its_own(self) -> None:
        with self.dev("example", "place_order_postgres") as dev:
            self.shows(dev, {"completed": 2, "duplicate": 1})
            [port] = re.findall(r"tables at postgres://\S+:(\d+)/", "\n".join(dev.lines))
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", int(port))) == errno.ECONNREFUSED

    def test_unknown_example_is_refused(self) -> None:
        ended = run([sys.executable, "tools/dev.py", "example", "nope"], without_settings())
        assert ended.returncode == 1
        assert "EXAMPLE is one of create_user" in ended.stderr


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

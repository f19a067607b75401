"""Runs the test suites that Cargo built, several at a time: a part of `make test`.

    python local/suites.py [SUITE...]     all suites, or the named ones

`cargo test` runs the same suites one after the other. Most of them wait for timeouts and for other
processes, so that two processors are idle for most of that time.
"""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from cloud import ROOT, unwind_on_signals

AT_ONCE = 3
# Suites that take longest start first. The others follow in any order.
LONGEST = ("explore", "faults", "modes", "chaos", "store_conformance")
# Most tests wait, so that more threads than processors run them.
THREADS = "4"


@dataclass(frozen=True)
class Suite:
    name: str
    command: str


@dataclass(frozen=True)
class Result:
    suite: Suite
    seconds: float
    status: int
    output: str

    @property
    def counts(self) -> tuple[int, int, int] | None:
        """Number of tests that passed, failed and were ignored. None if the harness reported none."""
        line = re.search(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", self.output, re.MULTILINE)
        return (int(line[1]), int(line[2]), int(line[3])) if line else None

    @property
    def passed(self) -> bool:
        return self.status == 0 and self.counts is not None


def build() -> list[Suite]:
    """Builds the suites, and returns those with tests in the order of their start."""
    command = ["cargo", "test", "--locked", "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if built.returncode != 0:
        sys.exit(built.returncode)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    suites = [
        Suite(message["target"]["name"], message["executable"])
        for message in messages
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]
    ]
    return sorted(suites, key=lambda suite: LONGEST.index(suite.name) if suite.name in LONGEST else len(LONGEST))


def run(suite: Suite) -> Result:
    environment = {"RUST_TEST_THREADS": THREADS} | os.environ
    start = time.monotonic()
    ended = subprocess.run(
        [suite.command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return Result(suite, time.monotonic() - start, ended.returncode, ended.stdout)


def report(result: Result) -> None:
    """Prints one line for a suite that passed, and the whole output of a suite that failed."""
    counts = result.counts or (0, 0, 0)
    ignored = f", {counts[2]} ignored" * bool(counts[2])
    word = "ok    " if result.passed else "FAILED"
    print(f"{word}  {result.suite.name:18} {counts[0]:4} passed{ignored}  {result.seconds:5.1f} s", flush=True)
    if not result.passed:
        print(f"\n---- output of {result.suite.name}, which exited with status {result.status} ----")
        print(result.output, flush=True)


def main() -> int:
    unwind_on_signals()
    names = sys.argv[1:]
    suites = [suite for suite in build() if not names or suite.name in names]
    if unknown := set(names) - {suite.name for suite in suites}:
        sys.exit(f"local/suites.py: there is no suite {', '.join(sorted(unknown))}")
    start = time.monotonic()
    results: list[Result] = []
    with ThreadPoolExecutor(AT_ONCE) as executor:
        try:
            for future in as_completed([executor.submit(run, suite) for suite in suites]):
                results.append(future.result())
                report(results[-1])
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise
    passed = sum(result.counts[0] for result in results if result.counts)
    failed = sum(result.counts[1] for result in results if result.counts)
    broken = [result.suite.name for result in results if not result.passed]
    print(f"\n{len(suites)} suites in {time.monotonic() - start:.0f} s")
    for name in broken:
        print(f"FAILED: {name}, repeat it with `cargo test --test {name}`")
    # A suite that ended early reported no counts.
    print(f"{passed} passed, {max(failed, len(broken))} failed")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

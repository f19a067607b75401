"""Runs the test suites that Cargo built and the tests of the local tools, several at a time: a part of `make test`.

    python tools/suites.py [--build]      builds all suites, and without `--build` runs them

The suites use the cloud at AWS_ENDPOINT_URL, or a new MiniStack if the variable is not set. `cargo test` runs the
same suites one after the other. Most of them wait for timeouts and for other processes, so that two processors
are idle for most of that time.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from cloud import ROOT, Unavailable, cloud, unwind_on_signals

# Suites that compute run side by side, so that the last long test of one leaves no processor idle. The others mostly
# wait, but for timeouts of some hundred milliseconds, so they run three at a time with the higher priority. In both
# lists, the longest come first.
COMPUTING = ("model", "simulation")
WAITING_AT_ONCE = 3
LONGEST = ("process", "wire", "postgres", "cli", "outbox", "cloud")
# Scripts that build nothing, some of which start clouds. They run one at a time beside the suites.
SCRIPTS = ("before_deploy_test", "policies_test", "demo_test", "cloud_test")

# One compilation serves all packages.
FEATURES = "sqs-once-outbox/postgres"
CARGO_TEST = ("cargo", "test", "--locked", "--workspace", "--features", FEATURES)


@dataclass(frozen=True)
class Suite:
    name: str
    kind: str  # lib, bin, test, script
    command: tuple[str, ...]

    @property
    def again(self) -> str:
        """The command that runs this suite alone."""
        match self.kind:
            case "script":
                return f"python tools/{self.name}.py"
            case "lib":
                return " ".join([*CARGO_TEST, "--lib"])
            case kind:
                return " ".join([*CARGO_TEST, f"--{kind}", self.name])


@dataclass(frozen=True)
class Result:
    suite: Suite
    seconds: float
    processor_seconds: float
    status: int
    output: str

    @property
    def counts(self) -> tuple[int, int, int] | None:
        """Number of tests that passed, failed and were ignored. `None` if the harness printed no result."""
        if self.suite.kind == "script":
            return self._counts_of_unittest()
        line = re.search(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", self.output, re.MULTILINE)
        return (int(line[1]), int(line[2]), int(line[3])) if line else None

    def _counts_of_unittest(self) -> tuple[int, int, int] | None:
        ran = re.search(r"^Ran (\d+) tests? in", self.output, re.MULTILINE)
        if not ran:
            return None
        _, _, result = self.output[ran.end() :].partition("\n")
        numbers = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", result)}
        failed = numbers.get("failures", 0) + numbers.get("errors", 0)
        skipped = numbers.get("skipped", 0)
        return int(ran[1]) - failed - skipped, failed, skipped

    @property
    def passed(self) -> bool:
        return self.status == 0 and self.counts is not None


def built(*arguments: str, environment: Mapping[str, str] = os.environ) -> list[Suite]:
    """Builds the suites that the arguments of `cargo test` select."""
    command = [*CARGO_TEST, *arguments, "--no-run", "--message-format=json-render-diagnostics"]
    cargo = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if cargo.returncode != 0:
        sys.exit(cargo.returncode)
    messages = [json.loads(line) for line in cargo.stdout.splitlines()]
    return [
        Suite(message["target"]["name"], message["target"]["kind"][0], (message["executable"],))
        for message in messages
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]
    ]


def build() -> list[Suite]:
    """Builds all suites, and returns them in the order of their start."""
    # Without `--tests` Cargo would also link each example, which tests/cloud/examples.rs compiles anyway.
    suites = built("--tests")
    suites += [Suite(name, "script", (sys.executable, f"tools/{name}.py")) for name in SCRIPTS]
    order = COMPUTING + LONGEST + SCRIPTS
    return sorted(suites, key=lambda suite: order.index(suite.name) if suite.name in order else len(order))


def run(suite: Suite, environment: Mapping[str, str]) -> Result:
    priority = ["nice", "-n", "19"] if suite.name in COMPUTING else []
    start = time.monotonic()
    started = subprocess.Popen(
        [*priority, *suite.command],
        cwd=ROOT,
        # Scripts start clouds, and refuse to run against another.
        env=os.environ if suite.kind == "script" else environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert started.stdout is not None
    output = started.stdout.read()
    _, status, usage = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    of_processor = usage.ru_utime + usage.ru_stime
    return Result(suite, time.monotonic() - start, of_processor, started.returncode, output)


def report(result: Result) -> None:
    """Prints one line for a suite that passed, and the whole output of a suite that failed."""
    counts = result.counts or (0, 0, 0)
    ignored = f", {counts[2]} ignored" * bool(counts[2])
    word = "ok    " if result.passed else "FAILED"
    line = f"{word}  {result.suite.name:30} {counts[0]:4} passed{ignored}  {result.seconds:5.1f} s"
    print(f"{line}, {result.processor_seconds:.0f} s of a processor", flush=True)
    if not result.passed:
        print(f"\n---- output of {result.suite.name}, which exited with status {result.status} ----")
        print(result.output, flush=True)


def main() -> int:
    unwind_on_signals()
    suites = build()
    if sys.argv[1:] == ["--build"]:
        return 0
    start = time.monotonic()
    results: list[Result] = []
    with (
        cloud("cloud") as up,
        ThreadPoolExecutor(len(COMPUTING)) as computing,
        ThreadPoolExecutor(WAITING_AT_ONCE) as waiting,
        ThreadPoolExecutor(1) as scripts,
    ):

        def pool(suite: Suite) -> ThreadPoolExecutor:
            if suite.kind == "script":
                return scripts
            return computing if suite.name in COMPUTING else waiting

        try:
            environment = up.environment()
            for future in as_completed([pool(suite).submit(run, suite, environment) for suite in suites]):
                results.append(future.result())
                report(results[-1])
        except BaseException:
            for stopped in (computing, waiting, scripts):
                stopped.shutdown(wait=False, cancel_futures=True)
            raise
    passed = sum(result.counts[0] for result in results if result.counts)
    failed = sum(result.counts[1] for result in results if result.counts)
    broken = [result.suite for result in results if not result.passed]
    print(f"\n{len(suites)} suites in {time.monotonic() - start:.0f} s")
    for suite in broken:
        print(f"FAILED: {suite.name}. `{suite.again}` runs it again.")
    # A suite that ended early reported no counts.
    print(f"{passed} passed, {max(failed, len(broken))} failed")
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as problem:
        sys.exit(str(problem))

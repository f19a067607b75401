"""A `make dev`, driven as a user drives it: for tools/starter.py and tools/watch_test.py."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from cloud import ROOT, Cloud
from output import Output

COLD = 600  # seconds
ENDS_WITHIN = 20


class Failed(Exception):
    """A project breaks a promise of docs/getting-started.md."""


def check(holds: bool, problem: str) -> None:
    if not holds:
        raise Failed(problem)


def environment() -> dict[str, str]:
    """That of a user's shell, who has neither credentials nor the tools of this checkout."""
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not p.startswith(str(ROOT)))
    hidden = ("AWS_", "MAKE", "MFLAGS", "CONSUMER_", "IDEMPOTENCY_", "SQS_ONCE_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    return kept | {"PATH": path, "CARGO_TARGET_DIR": str(ROOT / "target/starter")}


class Dev(Output):
    """A running `make dev`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process)
        self.process = process

    def outcomes(self, first: int) -> Counter[str]:
        """Outcomes shown from this line on."""
        words = (line.split() for line in self.lines[first:] if line.startswith("    "))
        return Counter(word[0] for word in words if word and word[0].islower())

    def wait_for(self, outcomes: dict[str, int], text: str = "", first: int = 0, within: float = COLD) -> float:
        """Waits until exactly these outcomes and the text were shown from this line on. Returns the seconds."""
        since = time.monotonic()

        def shown() -> bool:
            return self.outcomes(first) == outcomes and any(text in line for line in self.lines[first:])

        with self.arrived:
            self.arrived.wait_for(lambda: shown() or self.ended, within)
            output = "\n".join(self.lines[-40:])
            check(shown(), f"`make dev` did not show {outcomes} and {text!r} within {within:.0f} s:\n{output}")
        return time.monotonic() - since

    def cloud(self) -> Cloud:
        """The local cloud of this `make dev`."""
        found = re.search(r"AWS_ENDPOINT_URL=(\S+)", "\n".join(self.lines))
        check(found is not None, "make dev did not name its local cloud")
        return Cloud(found[1] if found else "")

    def enter(self) -> None:
        assert self.process.stdin
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def interrupt(self) -> float:
        """Ends `make dev` as Ctrl-C does. Returns the seconds until all of its processes ended."""
        running = psutil.Process(self.process.pid).children(recursive=True)
        names = {process.name() for process in running}
        check({"cargo-lambda", "python"} <= names and len(running) >= 3, f"make dev runs {names} only")
        since = time.monotonic()
        os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            raise Failed("make dev did not end on Ctrl-C") from None
        _, alive = psutil.wait_procs(running, timeout=ENDS_WITHIN)
        check(not alive, f"make dev left {[process.name() for process in alive]}")
        check("==> ended" in self.lines, "make dev did not say that it ended")
        return time.monotonic() - since


@contextlib.contextmanager
def make_dev(project: Path) -> Iterator[Dev]:
    with started(["make", "dev"], project, environment()) as dev:
        yield dev


@contextlib.contextmanager
def started(command: list[str], project: Path, variables: Mapping[str, str]) -> Iterator[Dev]:
    process = subprocess.Popen(
        command,
        cwd=project,
        env=variables,
        process_group=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    dev = Dev(process)
    try:
        yield dev
    finally:
        if process.poll() is None:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
        process.wait()

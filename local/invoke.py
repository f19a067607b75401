"""`make invoke EVENT=FILE`: invokes the consumer that `make watch` runs."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
from cloud import ROOT
from rich.console import Console
from watch import Watch, watches

# The template's function timeout. A build of a changed source is not counted.
LIMIT = float(os.environ.get("SECONDS_TO_WAIT", "30"))
# cargo-lambda starts the consumer at the first invocation.
START = 5.0
BUILDING = {"cargo", "rustc", "cc", "ld"}


def newest_watch() -> Watch:
    for watch in reversed(watches()):
        try:
            socket.create_connection(("127.0.0.1", watch.port), timeout=2).close()
        except OSError:
            continue
        return watch
    sys.exit("make invoke: no consumer is running; start one with `make watch` in another terminal")


def event_file(argument: str) -> Path:
    file = Path(argument)
    try:
        json.loads(file.read_text())
    except OSError as problem:
        known = ", ".join(str(f.relative_to(ROOT)) for f in sorted((ROOT / "events").glob("*.json")))
        sys.exit(f"make invoke: cannot read {argument!r} ({problem.strerror}); the samples are {known}")
    except ValueError as problem:
        sys.exit(f"make invoke: {argument} is not JSON: {problem}")
    return file


def state_of(watch: Watch) -> str:
    """`building`, `running` or `stopped`: the consumer of a `make watch`."""
    try:
        children = psutil.Process(watch.pid).children(recursive=True)
        programs = {Path(child.exe()).name: Path(child.exe()) for child in children}
    except psutil.Error:  # a process has just ended
        return "running"
    # `cargo lambda watch` is a program of cargo-lambda and not named cargo.
    if BUILDING & programs.keys():
        return "building"
    built = (ROOT / "target").as_posix()
    return "running" if any(path.as_posix().startswith(built) for path in programs.values()) else "stopped"


def invoke(watch: Watch, file: Path) -> subprocess.CompletedProcess[str]:
    """Invokes the consumer. Exits if it does not run, or does not answer in time."""
    command = ["cargo", "lambda", "invoke", "-A", "127.0.0.1", "-P", str(watch.port), "--output-format", "json"]
    process = subprocess.Popen([*command, "--data-file", str(file)], stdout=subprocess.PIPE, text=True)
    seen, left, tick = time.monotonic(), LIMIT, 0.5
    while True:
        try:
            output, _ = process.communicate(timeout=tick)
            return subprocess.CompletedProcess(process.args, process.returncode, output)
        except subprocess.TimeoutExpired:
            state = state_of(watch)
        if state == "building":
            seen = time.monotonic()
            continue
        left -= tick
        problem = None
        if state == "running":
            seen = time.monotonic()
        elif time.monotonic() - seen > START:
            problem = "the consumer does not run: it may have exited at start"
        if left <= 0:
            problem = f"no response within {LIMIT:.0f} s (SECONDS_TO_WAIT)"
        if problem:
            process.kill()
            process.wait()
            sys.exit(f"make invoke: {problem}; the terminal of `make watch` shows why")


def main() -> int:
    if len(sys.argv) != 2 or not sys.argv[1]:
        sys.exit("make invoke: name an event file, for example `make invoke EVENT=events/new-orders.json`")
    file = event_file(sys.argv[1])
    invocation = invoke(newest_watch(), file)
    try:
        Console().print_json(invocation.stdout)
    except ValueError:
        print(invocation.stdout, end="")
    return invocation.returncode


if __name__ == "__main__":
    sys.exit(main())

"""`make invoke EVENT=FILE`: invokes the consumer that `make watch` runs."""

import json
import socket
import subprocess
import sys
from pathlib import Path

from cloud import ROOT
from rich.console import Console
from watch import PORT_FILE


def port_of_watch() -> int:
    try:
        port = int(PORT_FILE.read_text())
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except (OSError, ValueError):
        sys.exit("make invoke: no consumer is running; start one with `make watch` in another terminal")
    return port


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


def main() -> int:
    if len(sys.argv) != 2 or not sys.argv[1]:
        sys.exit("make invoke: name an event file, for example `make invoke EVENT=events/new-orders.json`")
    file = event_file(sys.argv[1])
    port = port_of_watch()
    invoke = ["cargo", "lambda", "invoke", "-A", "127.0.0.1", "-P", str(port), "--output-format", "json"]
    invocation = subprocess.run([*invoke, "--data-file", str(file)], stdout=subprocess.PIPE, text=True)
    try:
        Console().print_json(invocation.stdout)
    except ValueError:
        print(invocation.stdout, end="")
    return invocation.returncode


if __name__ == "__main__":
    sys.exit(main())

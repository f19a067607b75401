"""`make test-localstack`: runs a command against LocalStack, or against the emulator at AWS_ENDPOINT_URL.

    python local/localstack.py check             exit with the reason if there is neither Docker nor an emulator
    python local/localstack.py run -- COMMAND    run COMMAND with AWS_ENDPOINT_URL set to a LocalStack in Docker

An AWS_ENDPOINT_URL that is already set stays, and Docker is not used.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from cloud import Cloud, Unavailable, cloud, run, uninterrupted, unwind_on_signals

# The last release that starts without an account of LocalStack.
IMAGE = "localstack/localstack:4.14.0"
READY_WITHIN = 120.0


def docker(*arguments: str) -> str:
    """Runs a command of Docker, and returns its output."""
    if not shutil.which("docker"):
        raise Unavailable("Docker is not installed; install it, or set AWS_ENDPOINT_URL to an emulator that runs")
    ended = subprocess.run(["docker", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ended.returncode != 0:
        reason = ended.stderr.strip()
        raise Unavailable(f"`docker {arguments[0]}` failed: {reason} (without Docker, set AWS_ENDPOINT_URL)")
    return ended.stdout.strip()


@contextlib.contextmanager
def localstack() -> Iterator[Cloud]:
    """Starts LocalStack on a free port of the loopback interface, and removes it at the end."""
    options = ["--rm", "--detach", "--publish", "127.0.0.1::4566", "--env", "SERVICES=dynamodb,sqs"]
    container = docker("run", *options, IMAGE)
    try:
        # Docker answers with one line for each address.
        endpoint = f"http://{docker('port', container, '4566/tcp').splitlines()[0]}"
        deadline = time.monotonic() + READY_WITHIN
        while not _healthy(endpoint):
            if time.monotonic() > deadline:
                log = docker("logs", "--tail", "15", container)
                raise Unavailable(f"LocalStack was not ready within {READY_WITHIN:.0f} s; the end of its log:\n{log}")
            time.sleep(0.5)
        yield Cloud(endpoint)
    finally:
        with uninterrupted():
            docker("stop", container)


def _healthy(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(f"{endpoint}/_localstack/health", timeout=2) as response:
            healthy: bool = response.status == 200
            return healthy
    except (urllib.error.URLError, OSError):
        return False


def emulator() -> contextlib.AbstractContextManager[Cloud]:
    return cloud("localstack") if os.environ.get("AWS_ENDPOINT_URL") else localstack()


def main() -> int:
    unwind_on_signals()
    match sys.argv[1:]:
        case ["check"] if os.environ.get("AWS_ENDPOINT_URL"):
            with cloud("localstack"):
                return 0
        case ["check"]:
            docker("info")
            return 0
        case ["run", "--", *command] if command:
            with emulator() as up:
                return run(command, up.environment())
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as problem:
        sys.exit(f"make test-localstack: {problem}")

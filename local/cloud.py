"""A local cloud: MiniStack on a free port of the loopback interface, gone when its user is done.

    python local/cloud.py run -- COMMAND...     COMMAND with AWS_ENDPOINT_URL set to it

An AWS_ENDPOINT_URL that is already set is used as it is, and nothing is started.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import boto3
import psutil
from samcli.yamlhelper import yaml_parse

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".local"
REGION = "us-east-1"
READY_WITHIN = 30.0
STOP_WITHIN = 5.0

# What makes the tools talk to the local cloud and to nothing else: no profile, no instance role.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": REGION,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Unavailable(Exception):
    """There is no local cloud to work with; the message says why."""


@dataclass(frozen=True)
class Cloud:
    """An endpoint that speaks AWS, and the id of its process if we started it."""

    endpoint: str
    pid: int | None = None

    def client(self, service: str):
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )

    def environment(self) -> dict[str, str]:
        """This process's environment, pointed at the cloud."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        return inherited | CREDENTIALS | {"AWS_ENDPOINT_URL": self.endpoint}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def ministack(name: str) -> Iterator[Cloud]:
    """A MiniStack of our own; its output goes to .local/NAME.log."""
    STATE.mkdir(exist_ok=True)
    log = STATE / f"{name}.log"
    scratch = Path(tempfile.mkdtemp(prefix="cloud-", dir=STATE))
    try:
        with log.open("wb") as output, contextlib.ExitStack() as running:
            yield _start(scratch, output, log, running)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _start(scratch: Path, output, log: Path, running: contextlib.ExitStack) -> Cloud:
    # A free port can be taken before MiniStack has it: then it gives up, and the next port is tried.
    for _ in range(3):
        port = free_port()
        endpoint = f"http://127.0.0.1:{port}"
        # Otherwise empty, because the functions it runs inherit all of it.
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "AWS_ENDPOINT_URL": endpoint,
            "GATEWAY_PORT": str(port),
            "BIND_HOST": "127.0.0.1",
            "IOT_MTLS_ENABLED": "0",  # would listen on a fixed port
            "SFTP_ENABLED": "0",
            # At its start and end it stops containers it takes for its own: let it find no Docker.
            "DOCKER_HOST": f"unix://{scratch}/none.sock",
        }
        process = running.enter_context(
            group([sys.executable, "-m", "ministack"], env=environment, cwd=scratch, stdout=output, stderr=output)
        )
        deadline = time.monotonic() + READY_WITHIN
        while process.poll() is None and time.monotonic() < deadline:
            if _listens(process.pid, port) and _healthy(endpoint):
                return Cloud(endpoint, process.pid)
            time.sleep(0.1)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise Unavailable(f"MiniStack did not start; the end of {log.relative_to(ROOT)}:\n{tail}")


def _listens(pid: int, port: int) -> bool:
    """Whether the port is held by our process, and not by someone who took it first."""
    with contextlib.suppress(psutil.Error):
        sockets = psutil.Process(pid).net_connections("tcp4")
        return any(s.status == psutil.CONN_LISTEN and s.laddr.port == port for s in sockets)
    return False


def _healthy(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(f"{endpoint}/_ministack/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def cloud(name: str) -> Iterator[Cloud]:
    """What AWS_ENDPOINT_URL names, or a MiniStack started for us where it names nothing."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        try:
            urllib.request.urlopen(endpoint, timeout=5).close()
        except urllib.error.HTTPError:
            pass  # an answer, whatever it says
        except (urllib.error.URLError, OSError, ValueError) as problem:
            raise Unavailable(f"nothing answers at AWS_ENDPOINT_URL={endpoint}: {problem}") from None
        yield Cloud(endpoint)
    else:
        with ministack(name) as own:
            yield own


@contextlib.contextmanager
def group(command: list[str], **options) -> Iterator[subprocess.Popen]:
    """A command in a process group of its own, gone at the end to its last descendant."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, **options)
    try:
        yield process
    finally:
        with uninterrupted():
            _end(process)


def _end(process: subprocess.Popen) -> None:
    # cargo-lambda gives the functions it watches groups of their own, and ends them if it gets to.
    descendants = []
    with contextlib.suppress(psutil.Error):
        descendants = psutil.Process(process.pid).children(recursive=True)
    # The group outlives its leader while a descendant does, so its number cannot have been reused.
    for deadly in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + STOP_WITHIN
        try:
            os.killpg(process.pid, deadly)
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.05)
        except (ProcessLookupError, PermissionError):
            break
    process.wait()
    for descendant in descendants:
        with contextlib.suppress(psutil.Error):
            descendant.kill()


def run(command: list[str], environment: Mapping[str, str], **options) -> int:
    with group(command, env=dict(environment), cwd=ROOT, **options) as process:
        return process.wait()


def create_table(cloud: Cloud, name: str) -> bool:
    """Creates the idempotency table as template.yaml describes it; False if it was there."""
    template = yaml_parse((ROOT / "template.yaml").read_text())
    properties = template["Resources"]["IdempotencyTable"]["Properties"]
    dynamodb = cloud.client("dynamodb")
    schema = {k: properties[k] for k in ("AttributeDefinitions", "KeySchema", "BillingMode")}
    try:
        dynamodb.create_table(TableName=name, **schema)
    except dynamodb.exceptions.ResourceInUseException:
        return False
    dynamodb.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
    dynamodb.update_time_to_live(
        TableName=name, TimeToLiveSpecification=properties["TimeToLiveSpecification"]
    )
    return True


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def unwind_on_signals() -> None:
    """Lets every signal that ends us run the clean-ups on its way out."""

    def leave(number, _frame):
        sys.exit(128 + number)

    for number in STOPPING:
        signal.signal(number, leave)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not cut a clean-up short."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> int:
    match sys.argv[1:]:
        case ["run", "--", *command] if command:
            unwind_on_signals()
            with cloud("cloud") as up:
                return run(command, up.environment())
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as problem:
        sys.exit(str(problem))

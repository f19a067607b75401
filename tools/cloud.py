"""A local cloud: MiniStack on a free port of the loopback interface, stopped at the end of its use."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

import boto3
import psutil
import yaml

ROOT = Path(__file__).resolve().parent.parent
STATE = Path(os.environ.get("SQS_ONCE_STATE", ROOT / ".local"))
REGION = "us-east-1"
Json = dict[str, Any]
READY_WITHIN = 120.0  # as long as a busy machine may take
STOP_WITHIN = 5.0

# Restricts the tools to the local cloud: they read no profile and no instance role.
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
    """No local cloud can be used; the message gives the reason."""


@dataclass(frozen=True)
class Cloud:
    """An endpoint with the APIs of AWS."""

    endpoint: str

    def client(self, service: str) -> Any:
        """A boto3 client, whose methods exist only at run time."""
        create: Any = boto3.client
        client = create(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )
        return with_whole_calls(client)

    def environment(self) -> dict[str, str]:
        """The environment of this process, with the endpoint and credentials of this cloud."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        return inherited | CREDENTIALS | {"AWS_ENDPOINT_URL": self.endpoint}


@dataclass(frozen=True)
class MiniStack(Cloud):
    """A MiniStack that this process started."""

    pid: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def ministack(name: str) -> Iterator[MiniStack]:
    """Starts a MiniStack, and stops it at the end. Its output goes to .local/NAME.log."""
    STATE.mkdir(exist_ok=True)
    log = STATE / f"{name}.log"
    scratch = Path(tempfile.mkdtemp(prefix="cloud-", dir=STATE))
    try:
        with log.open("wb") as output, contextlib.ExitStack() as running:
            yield _start(scratch, output, log, running)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _start(scratch: Path, output: IO[bytes], log: Path, running: contextlib.ExitStack) -> MiniStack:
    # Another process can take a free port before MiniStack does. MiniStack then exits.
    for _ in range(3):
        port = free_port()
        endpoint = f"http://127.0.0.1:{port}"
        # Nothing else, because the functions of MiniStack inherit all of it.
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "AWS_ENDPOINT_URL": endpoint,
            "GATEWAY_PORT": str(port),
            "BIND_HOST": "127.0.0.1",
            "IOT_MTLS_ENABLED": "0",  # it would listen on a fixed port
            "SFTP_ENABLED": "0",
            # At its start and end MiniStack stops containers that look like its own. Hide Docker from it.
            "DOCKER_HOST": f"unix://{scratch}/none.sock",
        }
        process = running.enter_context(
            group([sys.executable, "-m", "ministack"], env=environment, cwd=scratch, stdout=output, stderr=output)
        )
        deadline = time.monotonic() + READY_WITHIN
        while process.poll() is None and time.monotonic() < deadline:
            if _listens(process.pid, port) and _healthy(endpoint):
                return MiniStack(endpoint, process.pid)
            time.sleep(0.1)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise Unavailable(f"MiniStack did not start; the end of {log}:\n{tail}")


def _listens(pid: int, port: int) -> bool:
    """Tells if this process listens on the port, rather than another that took the port first."""
    with contextlib.suppress(psutil.Error):
        sockets = psutil.Process(pid).net_connections("tcp4")
        return any(s.status == psutil.CONN_LISTEN and s.laddr.port == port for s in sockets)
    return False


def _healthy(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(f"{endpoint}/_ministack/health", timeout=2) as response:
            healthy: bool = response.status == 200
            return healthy
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def cloud(name: str) -> Iterator[Cloud]:
    """The cloud at AWS_ENDPOINT_URL, or a new MiniStack if the variable is not set."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        if not endpoint.startswith(("http://", "https://")):
            raise Unavailable(f"AWS_ENDPOINT_URL={endpoint} must begin with http:// or https://")
        try:
            # LocalStack's first response takes seconds.
            urllib.request.urlopen(endpoint, timeout=READY_WITHIN).close()
        except urllib.error.HTTPError:
            pass  # any response will do
        except (urllib.error.URLError, OSError, ValueError) as problem:
            raise Unavailable(f"no response from AWS_ENDPOINT_URL={endpoint}: {problem}") from None
        yield Cloud(endpoint)
    else:
        with ministack(name) as started:
            yield started


@contextlib.contextmanager
def group(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command in its own process group, and ends it with all its descendants."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, **options)
    try:
        yield process
    finally:
        with uninterrupted():
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    # cargo-lambda runs its functions in other process groups, and may not live to end them.
    descendants: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        descendants = psutil.Process(process.pid).children(recursive=True)
    # The group lives as long as one of its processes, so its number cannot have been reused.
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


def run(command: list[str], environment: Mapping[str, str], cwd: Path = ROOT, **options: Any) -> int:
    """Runs a command, at the root of the repository by default, and returns its exit status."""
    with group(command, env=dict(environment), cwd=cwd, **options) as process:
        return process.wait()


class Template(yaml.CSafeLoader):
    """Reads the intrinsic functions of CloudFormation in their long form: `!Ref A` as {"Ref": "A"}."""


def _intrinsic(loader: Template, name: str, node: yaml.Node) -> Json:
    match node:
        case yaml.ScalarNode():
            value: Any = loader.construct_scalar(node)
        case yaml.SequenceNode():
            value = loader.construct_sequence(node, deep=True)
        case _:
            value = loader.construct_mapping(node, deep=True)  # type: ignore[arg-type]
    if name == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {name if name in ("Ref", "Condition") else f"Fn::{name}": value}


Template.add_multi_constructor("!", _intrinsic)


def create_table(cloud: Cloud, name: str) -> bool:
    """Creates the idempotency table of template.yaml. Returns False if the table exists."""
    template = yaml.load((ROOT / "template.yaml").read_text(), Loader=Template)
    properties = template["Resources"]["IdempotencyTable"]["Properties"]
    dynamodb = cloud.client("dynamodb")
    schema = {k: properties[k] for k in ("AttributeDefinitions", "KeySchema")}
    try:
        dynamodb.create_table(TableName=name, BillingMode="PAY_PER_REQUEST", **schema)
    except dynamodb.exceptions.ResourceInUseException:
        return False
    dynamodb.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
    dynamodb.update_time_to_live(TableName=name, TimeToLiveSpecification=properties["TimeToLiveSpecification"])
    return True


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_calls = 0  # calls of AWS under way in the main thread, the only one that handles signals
_stopped_by: int | None = None


def unwind_on_signals() -> None:
    """Turns the signals that stop this process into SystemExit, so that clean-ups run."""

    def leave(number: int, _frame: FrameType | None) -> None:
        global _stopped_by
        # The second signal waits for nothing.
        if not _calls or _stopped_by is not None:
            sys.exit(128 + number)
        _stopped_by = number

    for number in STOPPING:
        signal.signal(number, leave)


def with_whole_calls(client: Any) -> Any:
    """The client, whose calls a signal doesn't interrupt: the process leaves at the end of its call.

    A SystemExit raised inside the AWS client is now and then swallowed, or leaves a lock that the client's own
    clean-up waits for: 5 of 653 signals did not end their process.
    """

    # All calls go through this method, those of waiters and paginators too.
    call: Callable[..., Any] = client._make_api_call

    def made(*arguments: Any) -> Any:
        global _calls, _stopped_by
        if threading.current_thread() is not threading.main_thread():
            return call(*arguments)
        _calls += 1
        try:
            return call(*arguments)
        finally:
            _calls -= 1
            if _stopped_by is not None and not _calls:
                number, _stopped_by = _stopped_by, None
                sys.exit(128 + number)

    client._make_api_call = made
    return client


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores the stopping signals, so that a second Ctrl-C does not end a clean-up."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

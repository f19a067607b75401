"""`make dev`: the function under `cargo lambda watch`, with its queue and its tables on a local cloud.

    python tools/dev.py watch PROGRAM [EVENT...]          sends the messages of these files, and shows their outcomes
    python tools/dev.py example NAME [EVENT...]           the same with a program of examples/, and its sample event
    python tools/dev.py run PROGRAM -- COMMAND...         runs COMMAND with the function's environment

Runs in the folder of a project, here or elsewhere. Queues, tables and variables are those of the function in its
template.yaml, or those that tools/examples.py has for an example. Without EVENT, all of events/*.json.
A parameter without a default takes its value from the environment: PaymentGatewayUrl from PAYMENT_GATEWAY_URL.
"""

import base64
import contextlib
import json
import os
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from cloud import REGION, Cloud, Json, Unavailable, free_port, group, ministack, run, unwind_on_signals
from deployment import console, depth, say
from rich.markup import escape
from stack import Function, Stack, deploy

import examples

START = 10.0  # seconds for the start of a function that is built
BUILDING = {"cargo", "rustc", "cc", "ld"}

# ---- messages ----------------------------------------------------------------------------------


def records(file: Path) -> list[Json]:
    """Messages of an event file, which has the form in which Lambda delivers a batch."""
    try:
        found: list[Json] = json.loads(file.read_text())["Records"]
        return found
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise Unavailable(f"{file} is not an event of SQS: {problem!r}") from None


def to_send(record: Json, fifo: bool, number: int) -> Json:
    """The arguments of `send_message` for a message of an event file."""
    attributes = record.get("attributes", {})
    message: Json = {"MessageBody": record["body"], "MessageAttributes": {}}
    for name, value in record.get("messageAttributes", {}).items():
        attribute = {"DataType": value["dataType"]}
        if value.get("binaryValue"):
            attribute["BinaryValue"] = base64.b64decode(value["binaryValue"])
        else:
            attribute["StringValue"] = value["stringValue"]
        message["MessageAttributes"][name] = attribute
    if fifo:
        message["MessageGroupId"] = attributes.get("MessageGroupId", "1")
        # SQS drops a message with the deduplication id of the last five minutes.
        message["MessageDeduplicationId"] = f"{attributes.get('MessageDeduplicationId', '')}-{number}"
    return message


def to_deliver(message: Json, queue_arn: str) -> Json:
    """A received message as Lambda delivers it."""
    attributes = {}
    for name, value in message.get("MessageAttributes", {}).items():
        attribute = {"dataType": value["DataType"]}
        if "StringValue" in value:
            attribute["stringValue"] = value["StringValue"]
        if "BinaryValue" in value:
            attribute["binaryValue"] = base64.b64encode(value["BinaryValue"]).decode()
        attributes[name] = attribute
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message.get("Attributes", {}),
        "messageAttributes": attributes,
        "md5OfBody": message["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": queue_arn,
        "awsRegion": REGION,
    }


def failures(answer: Any, sent: list[str]) -> list[str]:
    """Message ids that go back to the queue: all of them, unless the response has the form that Lambda accepts."""
    match answer:
        case None | {"batchItemFailures": None | []}:
            return []
        case {"batchItemFailures": list(items)}:
            ids: list[Any] = [item.get("itemIdentifier") for item in items if isinstance(item, dict)]
            return ids if len(ids) == len(items) and set(ids) <= set(sent) else sent
        case _:
            return sent


# ---- output ------------------------------------------------------------------------------------

COLOURS = {
    "completed": "green",
    "reconciled": "green",
    "duplicate": "cyan",
    "ignored": "cyan",
    "conflict": "yellow",
    "not_started": "yellow",
}
LEVELS = {"WARN": "yellow", "ERROR": "red"}


def show(line: str) -> None:
    """Prints a line of the function or of cargo: an outcome in one short line, and no line of a batch."""
    try:
        log = json.loads(line)
    except ValueError:
        log = None
    if not isinstance(log, dict) or "level" not in log:
        # cargo-lambda logs its own start and end at INFO.
        if line.strip() and not re.match(r"\s*(\x1b\[\d+m)*\s*INFO\b", line):
            console.print(line.rstrip(), markup=False)
        return
    message = str(log.get("message", ""))
    if message == "message processed":
        outcome = str(log["outcome"])
        colour = COLOURS.get(outcome, LEVELS.get(log["level"], "yellow"))
        key = log.get("key") or log["message_id"]
        receives = f", receive {log['receive_count']}" if log["receive_count"] != 1 else ""
        detail = f"  {log['detail']}" if log.get("detail") else ""
        text = f"{key}  {log['duration_ms']:.0f} ms{receives}{detail}"
        console.print(f"    [{colour}]{outcome:18}[/] {escape(text)}")
    elif message not in ("batch processed", "further values of a batch"):
        hidden = ("timestamp", "level", "target", "message", "span", "spans")
        fields = " ".join(f"{name}={value}" for name, value in log.items() if name not in hidden)
        colour = LEVELS.get(log["level"], "dim")
        console.print(f"    [{colour}]{log['level']:5}[/] {escape(f'{message} {fields}'.rstrip())}")


# ---- the loop ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Project:
    """What is built and run: the program, where its function is described, and what it gets."""

    program: str
    target: list[str]  # options of cargo that choose the program
    function: Function
    files: list[Path]
    fill: Callable[[Stack], None] = lambda _: None  # puts into empty tables what the messages need


@dataclass
class Watch:
    """`cargo lambda watch`, and in place of Lambda's event source mapping the loop that feeds it."""

    process: subprocess.Popen[bytes]
    port: int
    project: Project
    stack: Stack
    function: int | None = None  # its process id
    sent: int = 0
    dead: int = 0
    keyboard: bool = True

    def __post_init__(self) -> None:
        self.sqs = self.stack.cloud.client("sqs")

    def programs(self) -> dict[str, int]:
        """Running programs of `cargo lambda watch`, with their process ids."""
        found: dict[str, int] = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found[Path(child.exe()).name.removesuffix(" (deleted)")] = child.pid
        return found

    def run(self) -> int:
        self.project.fill(self.stack)
        self.send(self.project.files)
        while self.process.poll() is None:
            if self.reloaded():
                say("reloaded: tables and queues are empty again")
                self.stack.clear()
                self.project.fill(self.stack)
                self.dead = 0
                self.send(self.project.files)
            self.read_keyboard()
            self.receive()
            self.count_dead_letters()
        return self.process.returncode

    def reloaded(self) -> bool:
        """Tells if the function runs in another process than before."""
        before, now = self.function, self.programs().get(self.project.program)
        self.function = now or before
        return before is not None and now is not None and now != before

    def read_keyboard(self) -> None:
        if not self.keyboard or not select.select([sys.stdin], [], [], 0)[0]:
            return
        line = sys.stdin.readline()
        self.keyboard = bool(line)
        if line:
            try:
                self.send([Path(name) for name in line.split()] or self.project.files)
            except Unavailable as problem:
                say(escape(str(problem)))

    def send(self, files: list[Path]) -> None:
        fifo = self.stack.queue.endswith(".fifo")
        for file in files:
            found = records(file)
            say(f"{len(found)} messages of {escape(file.as_posix())}")
            for record in found:
                self.sent += 1
                self.sqs.send_message(QueueUrl=self.stack.queue, **to_send(record, fifo, self.sent))

    def receive(self) -> None:
        """Receives a batch, invokes the function, and deletes the messages that are done."""
        messages = self.sqs.receive_message(
            QueueUrl=self.stack.queue,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=1,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        ).get("Messages", [])
        if not messages:
            return
        ids = [message["MessageId"] for message in messages]
        answer = self.invoke({"Records": [to_deliver(message, self.stack.queue_arn) for message in messages]})
        back = failures(answer, ids)
        for message in messages:
            if message["MessageId"] not in back:
                self.sqs.delete_message(QueueUrl=self.stack.queue, ReceiptHandle=message["ReceiptHandle"])
        say(f"[dim]batch of {len(ids)}: {len(ids) - len(back)} deleted, {len(back)} back to the queue[/]")

    def invoke(self, event: Json) -> Any:
        """The response of the function, or an error in the form of Lambda. Waits while the function is built."""
        program = self.project.program
        url = f"http://127.0.0.1:{self.port}/2015-03-31/functions/{program}/invocations"
        request = urllib.request.Request(url, json.dumps(event).encode(), {"Content-Type": "application/json"})
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def post() -> None:
            try:
                with urllib.request.urlopen(request) as response:
                    answers.put(json.load(response))
            except (OSError, ValueError) as problem:
                answers.put({"errorMessage": str(problem)})

        threading.Thread(target=post, daemon=True).start()
        running, since, warned = self.function, time.monotonic(), False
        while self.process.poll() is None:
            with contextlib.suppress(queue.Empty):
                return answers.get(timeout=0.5)
            programs = self.programs()
            if program in programs or BUILDING & programs.keys():
                since = time.monotonic()
            if running and programs.get(program) != running:
                say("the function ended; its messages are received again after the queue's visibility timeout")
                break
            if time.monotonic() - since > START and not warned:
                say("the function does not run, the lines above say why; it starts again when you save a change")
                warned = True
        return {"errorMessage": "the function ended"}

    def count_dead_letters(self) -> None:
        if not self.stack.dead_letters:
            return
        dead, _ = depth(self.stack.cloud, self.stack.dead_letters)
        if dead != self.dead:
            self.dead = dead
            say(f"messages in the dead-letter queue: {dead}")


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.1)


def watch(up: Cloud, project: Project) -> int:
    stack = deploy(up, project.function)
    say(f"queue, {len(stack.tables)} tables: AWS_ENDPOINT_URL={up.endpoint}")
    port = free_port()
    command = ["cargo", "lambda", "watch", *project.target, "-A", "127.0.0.1", "-P", str(port)]
    environment = stack.environment(project.program)
    output: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with group(command, env=environment, **output) as process:

        def show_all() -> None:
            for line in process.stdout or ():
                show(line.decode(errors="replace"))

        threading.Thread(target=show_all, daemon=True).start()
        wait_for(port, process)
        say("save a change: builds, and sends the messages to empty tables. Enter: sends them again. Ctrl-C: ends")
        return Watch(process, port, project, stack).run()


def build_and_watch(project: Project) -> int:
    for file in project.files:
        records(file)
    # Builds now, so that an error ends this command.
    if status := run(["cargo", "build", *(project.target or ["--bin", project.program])], os.environ, Path.cwd()):
        return status
    try:
        with ministack("dev") as up:
            return watch(up, project)
    except SystemExit as stop:
        if stop.code != 128 + signal.SIGINT:
            raise
        say("ended")
        return 0


def main() -> int:
    unwind_on_signals()
    match sys.argv[1:]:
        case ["watch", program, *events]:
            files = [Path(event) for event in events] or sorted(Path("events").glob("*.json"))
            return build_and_watch(Project(program, [], Function.read(), files))
        case ["example", name, *events]:
            if name not in examples.TABLES:
                raise Unavailable(f"EXAMPLE is one of {', '.join(examples.TABLES)}")
            # Programs of tests/programs: cargo-lambda runs no examples.
            target = ["--package", "programs", "--bin", name]
            target += ["--features", "postgres"] * (name == examples.ON_POSTGRES)
            sample = name.removesuffix("_postgres").replace("_", "-")
            files = [Path(event) for event in events] or [Path(f"events/{sample}.json")]
            with examples.filling(name) as fill:
                return build_and_watch(Project(name, target, examples.function(name), files, fill))
        case ["run", program, "--", *command] if command:
            function = Function.read()
            with ministack("test") as up:
                environment = deploy(up, function).environment(program)
                return run(command, environment | {"AWS_LAMBDA_RUNTIME_API": "unused"}, Path.cwd())
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as problem:
        sys.exit(f"make dev: {problem}")

"""Deploys a stack to a local cloud, and reads its queues, tables and logs."""

import contextlib
import json
import platform
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml
from cloud import STATE, Cloud, Json, run
from rich.console import Console

# The attribute with a message's name.
NAME = "Name"
ARCHITECTURE = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}

console = Console(highlight=False, soft_wrap=True)
if not console.is_terminal:
    console = Console(highlight=False, soft_wrap=True, width=120)


class Failed(Exception):
    """A stack cannot be deployed or used; the message gives the reason."""


def say(text: str) -> None:
    console.print(f"[bold]==>[/] {text}")


def architecture() -> str:
    machine = platform.machine().lower()
    if machine not in ARCHITECTURE:
        raise Failed(f"Lambda has no {machine} processors, so a build for this machine cannot be deployed")
    return ARCHITECTURE[machine]


# ---- deploy ------------------------------------------------------------------------------------


def sam(*arguments: str, environment: dict[str, str]) -> None:
    # SAM CLI polls the state of the stack often, and sends no telemetry.
    environment = environment | {"SAM_CLI_POLL_DELAY": "0.5", "SAM_CLI_TELEMETRY": "0"}
    log = STATE / "sam.log"
    with log.open("wb") as output:
        status = run(["sam", *arguments], environment, stdout=output, stderr=output)
    if status != 0:
        raise Failed(f"`sam {arguments[0]}` failed with status {status}:\n{log.read_text(errors='replace')}")


def parameters(**values: str) -> list[str]:
    return ["--parameter-overrides", *(f"ParameterKey={k},ParameterValue={v}" for k, v in values.items())]


def of_type(template: Json, kind: str) -> Iterator[Json]:
    """The properties of each resource of this type."""
    return (r["Properties"] for r in template["Resources"].values() if r["Type"] == kind)


def adapt(built: Path, visibility_timeout: int | None = None, variables: Json | None = None) -> list[str]:
    """Changes a template, as `sam build` wrote it, for MiniStack. Returns what it changed; on AWS nothing is changed.

    With a visibility timeout in seconds, also replaces the queues' own. Functions get these variables.
    """
    template = yaml.safe_load(built.read_text())
    changed = []
    for mapping in of_type(template, "AWS::Lambda::EventSourceMapping"):
        match mapping["ScalingConfig"]:
            case {"MaximumConcurrency": {"Ref": parameter}} as scaling:
                scaling["MaximumConcurrency"] = template["Parameters"][parameter]["Default"]
                changed.append(f"MaximumConcurrency, by the default of {parameter}: MiniStack's poller needs a number")
    if visibility_timeout is not None:
        for queue in of_type(template, "AWS::SQS::Queue"):
            if "VisibilityTimeout" in queue:
                queue["VisibilityTimeout"] = visibility_timeout
        changed.append(f"the visibility timeout, by {visibility_timeout} s: killed workers hold messages that long")
    for function in of_type(template, "AWS::Serverless::Function"):
        function["Environment"]["Variables"] |= variables or {}
    changed += [f"{name}, which is {value}" for name, value in (variables or {}).items()]
    built.write_text(yaml.safe_dump(template, sort_keys=False))
    return changed


def deploy(cloud: Cloud, name: str, *options: str, **values: str) -> dict[str, str]:
    """Deploys with these parameters, for the processor of this machine. Returns the outputs of the template."""
    sam(
        *("deploy", "--stack-name", name, "--no-confirm-changeset", "--no-progressbar", *options),
        *parameters(Architecture=architecture(), **values),
        environment=cloud.environment(),
    )
    described = cloud.client("cloudformation").describe_stacks(StackName=name)["Stacks"][0]
    return {o["OutputKey"]: o["OutputValue"] for o in described["Outputs"]}


# ---- queues ------------------------------------------------------------------------------------


def send(cloud: Cloud, queue: str, bodies: list[str], names: list[str] | None = None) -> list[str]:
    """Sends messages in this order, each with its name as an attribute. Returns the ids that SQS gave them."""
    sqs = cloud.client("sqs")
    ids: list[str] = []
    for start in range(0, len(bodies), 10):
        entries: list[Json] = [{"Id": str(i), "MessageBody": b} for i, b in enumerate(bodies[start : start + 10])]
        for entry, name in zip(entries, (names or [])[start:], strict=False):
            entry["MessageAttributes"] = {NAME: {"DataType": "String", "StringValue": name}}
        response = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
        if response.get("Failed"):
            raise Failed(f"SQS refused messages: {response['Failed']}")
        given = {entry["Id"]: entry["MessageId"] for entry in response["Successful"]}
        ids += [given[entry["Id"]] for entry in entries]
    return ids


def depth(cloud: Cloud, queue: str) -> tuple[int, int]:
    """Number of visible messages, and number of messages in flight."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = cloud.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return int(attributes[names[0]]), int(attributes[names[1]])


def depths(cloud: Cloud, queue: str, dead_letters: str) -> tuple[int, int, int]:
    """The `depth` of a queue, and the number of messages in its dead-letter queue."""
    while True:
        dead, _ = depth(cloud, dead_letters)
        waiting, in_flight = depth(cloud, queue)
        # If a message was moved between the two reads, we read again, because we would count it twice or not at all.
        if depth(cloud, dead_letters)[0] == dead:
            return waiting, in_flight, dead


def received(cloud: Cloud, queue: str) -> Iterator[Json]:
    """All messages of a queue. The caller may delete each. Those that it leaves are visible again at the end."""
    sqs = cloud.client("sqs")
    receipts: list[str] = []
    options = {"MaxNumberOfMessages": 10, "VisibilityTimeout": 600, "MessageAttributeNames": ["All"]}
    while batch := sqs.receive_message(QueueUrl=queue, **options).get("Messages"):
        for message in batch:
            yield message
            receipts.append(message["ReceiptHandle"])
    for receipt in receipts:
        # A message that was deleted in the meantime has no visibility.
        with contextlib.suppress(sqs.exceptions.ClientError):
            sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=receipt, VisibilityTimeout=0)


def name_of(message: Json) -> str:
    """The name with which a message was sent, or else its id."""
    name: str = message.get("MessageAttributes", {}).get(NAME, {}).get("StringValue", message["MessageId"])
    return name


def dead_letters(cloud: Cloud, queue: str) -> Counter[str]:
    """The names of the messages in a dead-letter queue, and how often each is there."""
    return Counter(name_of(message) for message in received(cloud, queue))


def take(cloud: Cloud, queue: str, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Names and bodies of the wanted messages. Each is deleted after its use, and the others stay in the queue."""
    for message in received(cloud, queue):
        if (name := name_of(message)) in wanted:
            yield name, message["Body"]
            cloud.client("sqs").delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


# ---- tables and logs ---------------------------------------------------------------------------


def items(cloud: Cloud, table: str) -> list[Json]:
    pages = cloud.client("dynamodb").get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
    return [item for page in pages for item in page["Items"]]


def log_lines(cloud: Cloud, group: str) -> Iterator[Json]:
    """The lines that the consumer logged."""
    pages = cloud.client("logs").get_paginator("filter_log_events").paginate(logGroupName=group)
    for event in (event for page in pages for event in page["events"]):
        try:
            line = json.loads(event["message"])
        except ValueError:
            continue  # START, END and REPORT of the platform
        if isinstance(line, dict):
            yield line


def deliveries(lines: Iterable[Json]) -> Counter[str]:
    """Number of deliveries by message id: the highest receive count in the log."""
    counts: Counter[str] = Counter()
    for line in lines:
        match line:
            case {"message_id": str(id), "receive_count": int(received)}:
                counts[id] = max(counts[id], received)
    return counts


# ---- the verdict -------------------------------------------------------------------------------


def verdict(promises: dict[str, list[str]]) -> bool:
    """Prints each promise with its violations. Returns True if all promises were kept."""
    for promise, violations in promises.items():
        console.print(f"[red]BROKEN[/]  {promise}" if violations else f"[green]kept[/]    {promise}")
        for violation in violations[:10]:
            console.print(f"          {violation}")
        if more := len(violations[10:]):
            console.print(f"          and {more} more")
    return not any(promises.values())

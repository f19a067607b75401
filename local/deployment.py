"""A stack that a demo deploys to a local cloud: how it gets there, and what is read from it."""

import json
import platform
from collections import Counter
from collections.abc import Iterable, Iterator

from rich.console import Console

from cloud import STATE, Cloud, run

ARCHITECTURE = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}

console = Console(highlight=False, soft_wrap=True)
if not console.is_terminal:
    console = Console(highlight=False, soft_wrap=True, width=120)


class Failed(Exception):
    """The demo could not be carried out; the message says why."""


def say(text: str) -> None:
    console.print(f"[bold]==>[/] {text}")


def architecture() -> str:
    machine = platform.machine().lower()
    if machine not in ARCHITECTURE:
        raise Failed(f"Lambda knows no {machine} processor, so nothing can be built for this machine")
    return ARCHITECTURE[machine]


# ---- deploy ------------------------------------------------------------------------------------


def sam(*arguments: str, environment: dict[str, str]) -> None:
    # Asks often whether the stack is up, and tells nobody about it.
    environment = environment | {"SAM_CLI_POLL_DELAY": "0.5", "SAM_CLI_TELEMETRY": "0"}
    log = STATE / "sam.log"
    with log.open("wb") as output:
        status = run(["sam", *arguments], environment, stdout=output, stderr=output)
    if status != 0:
        raise Failed(f"`sam {arguments[0]}` failed with status {status}:\n{log.read_text(errors='replace')}")


def parameters(**values: str) -> list[str]:
    return ["--parameter-overrides", *(f"ParameterKey={k},ParameterValue={v}" for k, v in values.items())]


def deploy(cloud: Cloud, name: str, *options: str, **values: str) -> dict[str, str]:
    """Deploys with these parameters, for this machine's processor; answers the template's outputs."""
    sam(
        *("deploy", "--stack-name", name, "--no-confirm-changeset", "--no-progressbar", *options),
        *parameters(Architecture=architecture(), **values),
        environment=cloud.environment(),
    )
    described = cloud.client("cloudformation").describe_stacks(StackName=name)["Stacks"][0]
    return {o["OutputKey"]: o["OutputValue"] for o in described["Outputs"]}


# ---- queues ------------------------------------------------------------------------------------


def send(cloud: Cloud, queue: str, bodies: list[str]) -> list[str]:
    """Sends them in this order, and answers the ids that SQS gave them."""
    sqs, ids = cloud.client("sqs"), []
    for start in range(0, len(bodies), 10):
        entries = [{"Id": str(i), "MessageBody": body} for i, body in enumerate(bodies[start : start + 10])]
        answer = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
        if answer.get("Failed"):
            raise Failed(f"SQS refused messages: {answer['Failed']}")
        given = {entry["Id"]: entry["MessageId"] for entry in answer["Successful"]}
        ids += [given[entry["Id"]] for entry in entries]
    return ids


def depth(cloud: Cloud, queue: str) -> tuple[int, int]:
    """Messages that can be received, and messages hidden by an earlier receive."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = cloud.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return int(attributes[names[0]]), int(attributes[names[1]])


def depths(cloud: Cloud, queue: str, dead_letters: str) -> tuple[int, int, int]:
    """The queue's `depth`, and the messages in its dead-letter queue."""
    while True:
        dead, _ = depth(cloud, dead_letters)
        waiting, in_flight = depth(cloud, queue)
        # Otherwise a message moved between the two reads would be counted twice or not at all.
        if depth(cloud, dead_letters)[0] == dead:
            return waiting, in_flight, dead


def dead_letters(cloud: Cloud, queue: str) -> Counter[str]:
    """Message ids."""
    sqs, found = cloud.client("sqs"), Counter()
    while batch := sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, VisibilityTimeout=60).get("Messages"):
        found.update(m["MessageId"] for m in batch)
    return found


def take(cloud: Cloud, queue: str, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Ids and bodies of the wanted messages, each deleted once it was used; the others stay."""
    sqs, others = cloud.client("sqs"), []
    while batch := sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, VisibilityTimeout=60).get("Messages"):
        for message in batch:
            if message["MessageId"] not in wanted:
                others.append(message["ReceiptHandle"])
                continue
            yield message["MessageId"], message["Body"]
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    for receipt in others:
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=receipt, VisibilityTimeout=0)


# ---- tables and logs ---------------------------------------------------------------------------


def items(cloud: Cloud, table: str) -> list[dict]:
    pages = cloud.client("dynamodb").get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
    return [item for page in pages for item in page["Items"]]


def log_lines(cloud: Cloud, group: str) -> Iterator[dict]:
    """The consumer's own lines."""
    pages = cloud.client("logs").get_paginator("filter_log_events").paginate(logGroupName=group)
    for event in (event for page in pages for event in page["events"]):
        try:
            line = json.loads(event["message"])
        except ValueError:
            continue  # the platform's own START, END and REPORT
        if isinstance(line, dict):
            yield line


def deliveries(lines: Iterable[dict]) -> Counter[str]:
    """The highest receive count logged for a message is the number of its deliveries."""
    counts: Counter[str] = Counter()
    for line in lines:
        match line:
            case {"message_id": str(id), "receive_count": int(received)}:
                counts[id] = max(counts[id], received)
    return counts


# ---- the verdict -------------------------------------------------------------------------------


def verdict(kept: dict[str, list[str]]) -> bool:
    """Prints each promise, with what broke it; says whether all were kept."""
    for promise, broken in kept.items():
        console.print(f"[red]BROKEN[/]  {promise}" if broken else f"[green]kept[/]    {promise}")
        for what in broken[:10]:
            console.print(f"          {what}")
        if more := len(broken[10:]):
            console.print(f"          and {more} more")
    return not any(kept.values())

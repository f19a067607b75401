"""SQS: visibility timeouts, the way to a dead-letter queue and back, and FIFO queues."""

import json
import secrets
import time
from typing import Any

from verify_aws.check import Seen, check
from verify_aws.checks.writes import refusal
from verify_aws.scratch import Scratch

Json = dict[str, Any]

NOT_MOVED = "the message was not moved within a minute"
LONGEST = 41_400  # seconds: 11.5 hours, the longest visibility timeout that the consumer sets


def receive(scratch: Scratch, url: str, wait: int = 5, **options: Any) -> list[Json]:
    asked: Json = {"MaxNumberOfMessages": 10, "WaitTimeSeconds": wait, "MessageSystemAttributeNames": ["All"]}
    answer = scratch.client("sqs").receive_message(QueueUrl=url, **(asked | options))
    return list(answer.get("Messages", []))


def pair(scratch: Scratch, suffix: str, receives: int, **attributes: str) -> tuple[str, str, str, str]:
    """A queue with a dead-letter queue: the URL and the ARN of each."""
    end = ".fifo" if attributes.get("FifoQueue") else ""
    dead, dead_arn = scratch.make_queue(f"{suffix}-dead{end}", **attributes)
    policy = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": str(receives)})
    url, arn = scratch.make_queue(f"{suffix}{end}", RedrivePolicy=policy, VisibilityTimeout="60", **attributes)
    return url, arn, dead, dead_arn


def moved(scratch: Scratch, url: str, dead: str) -> Json | None:
    """Receives the one message of a queue for the last time. Returns it as the dead-letter queue has it, or None if SQS
    did not move it within a minute."""
    for message in receive(scratch, url):
        scratch.client("sqs").change_message_visibility(
            QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
        )

    def read() -> list[Json]:
        receive(scratch, url, wait=1)
        return receive(scratch, dead, wait=1)

    found = scratch.eventually(read, bool, within=60)
    return found[0] if found else None


@check(needs_stack=False)
def visibility_timeout_of_zero_returns_a_message(scratch: Scratch) -> Seen:
    """A message whose visibility timeout is set to 0 is received again at once, and counts a second receive. SQS takes
    11.5 hours, the longest time that the consumer sets.

    Where:
    docs/operations.md: ChangeMessageVisibilityBatch
    crates/sqs-once/src/sqs/visibility/delay.rs: LONGEST
    """
    url, _ = scratch.make_queue("visibility", VisibilityTimeout="60")
    sqs = scratch.client("sqs")
    sqs.send_message(QueueUrl=url, MessageBody="{}")
    first = receive(scratch, url)
    receipts = [
        {"Id": str(i), "ReceiptHandle": m["ReceiptHandle"], "VisibilityTimeout": 0} for i, m in enumerate(first)
    ]
    if not first:
        return Seen(False, "the message was not received")
    sqs.change_message_visibility_batch(QueueUrl=url, Entries=receipts)
    start = time.monotonic()
    again = receive(scratch, url)
    seconds = time.monotonic() - start
    counts = [message["Attributes"]["ApproximateReceiveCount"] for message in again]
    if not again:
        return Seen(False, "the message did not return at once")
    longest = {"QueueUrl": url, "ReceiptHandle": again[0]["ReceiptHandle"], "VisibilityTimeout": LONGEST}
    code, _ = refusal(sqs.change_message_visibility, **longest)
    return Seen(counts == ["2"] and code == "none", f"back after {seconds:.0f} s, receive {counts[0]}; 11.5 h: {code}")


LATEST = 5.0  # seconds after its visibility timeout


@check(needs_stack=False)
def visibility_timeout_delays_a_message(scratch: Scratch) -> Seen:
    """A message whose visibility timeout is changed, as the consumer does for a back-off, is received again when that
    time has passed: never earlier, and at most five seconds later.

    Where:
    docs/operations.md: The **back-off** is
    crates/sqs-once/src/sqs/visibility/delay.rs: fn seconds
    """
    # Back-offs of the first receives. The queue's own timeout is longer.
    waits = (2, 4) if scratch.emulated else (5, 20)
    url, _ = scratch.make_queue("backoff", VisibilityTimeout="60")
    sqs = scratch.client("sqs")
    sqs.send_message(QueueUrl=url, MessageBody="{}")
    found = receive(scratch, url)
    late = []
    for wait in waits:
        if not found:
            return Seen(False, "the message was not received")
        asked = scratch.clock()
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=found[0]["ReceiptHandle"], VisibilityTimeout=wait)
        # Until that change the message was hidden, so it cannot be received before it.
        found = scratch.eventually(lambda: receive(scratch, url), bool, within=wait + 3 * LATEST, pause=0)
        late.append(scratch.clock() - asked - wait)
    if not found:
        return Seen(False, f"the message did not return {3 * LATEST:.0f} s after its time")
    seen = ", ".join(f"{wait} s: {by:+.1f} s" for wait, by in zip(waits, late, strict=True))
    return Seen(all(0 <= by <= LATEST for by in late), f"received again, by the timeout that was set: {seen}")


@check(needs_stack=False)
def last_receive_moves_a_message_with_its_id(scratch: Scratch) -> Seen:
    """After its last receive SQS moves a message to the dead-letter queue. It keeps its id, and names its source.

    Where:
    docs/operations.md: ## The dead-letter queue
    crates/sqs-once/src/sqs/message.rs: DeadLetterQueueSourceArn
    """
    url, arn, dead, _ = pair(scratch, "receives", 1)
    sent = scratch.client("sqs").send_message(QueueUrl=url, MessageBody="{}")["MessageId"]
    if not (letter := moved(scratch, url, dead)):
        return Seen(False, NOT_MOVED)
    source = letter["Attributes"].get("DeadLetterQueueSourceArn")
    same = letter["MessageId"] == sent
    # MiniStack does not name the source.
    holds = same and (source == arn or scratch.emulated)
    return Seen(holds, f"{'the same' if same else 'another'} id, {'with' if source == arn else 'without'} its source")


TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"


@check(needs_stack=False)
def trace_header_of_the_producer_arrives(scratch: Scratch) -> Seen:
    """A message brings the system attribute AWSTraceHeader of its producer, also in the dead-letter queue.

    Where:
    docs/traces.md: AWSTraceHeader
    """
    url, _, dead, _ = pair(scratch, "trace", 1)
    header = {"AWSTraceHeader": {"StringValue": TRACE, "DataType": "String"}}
    scratch.client("sqs").send_message(QueueUrl=url, MessageBody="{}", MessageSystemAttributes=header)
    first = receive(scratch, url, VisibilityTimeout=0)
    letter = moved(scratch, url, dead)
    arrived = [
        message["Attributes"].get("AWSTraceHeader") == TRACE for message in [*first, *([letter] if letter else [])]
    ]
    text = f"{arrived.count(True)} of {len(arrived)} receives have it"
    return Seen(arrived == [True, True], text if letter else f"{text}; {NOT_MOVED}")


@check(needs_stack=False, only_aws="MiniStack has no StartMessageMoveTask")
def copies_return_only_to_a_named_queue(scratch: Scratch) -> Seen:
    """StartMessageMoveTask returns messages that were sent to a dead-letter queue directly if the destination is named.
    Without one, such a message stays.

    Where:
    docs/runbook.md: start-message-move-task
    docs/operations.md: ## Direct dead-lettering
    """
    url, arn, dead, dead_arn = pair(scratch, "move", 5)
    sqs = scratch.client("sqs")
    sqs.send_message(QueueUrl=dead, MessageBody="{}")

    def tried(**destination: str) -> str:
        code, _ = refusal(sqs.start_message_move_task, SourceArn=dead_arn, **destination)
        if code != "none":
            return code

        def state() -> str:
            results = sqs.list_message_move_tasks(SourceArn=dead_arn, MaxResults=1)["Results"]
            return str(results[0]["Status"]) if results else "RUNNING"

        scratch.eventually(state, lambda now: now not in ("RUNNING", "CANCELLING"), within=90)
        return "moved" if receive(scratch, url, VisibilityTimeout=0) else "not moved"

    without = tried()
    named = tried(DestinationArn=arn)
    return Seen(without != "moved" and named == "moved", f"without destination: {without}; with destination: {named}")


@check(needs_stack=False)
def fifo_queue_drops_a_second_deduplication_id(scratch: Scratch) -> Seen:
    """SendMessage with a deduplication id of the last five minutes succeeds, and the message is dropped.

    Where:
    docs/keys.md: The deduplication interval of a FIFO queue
    """
    url, _ = scratch.make_queue("dedup.fifo", FifoQueue="true", VisibilityTimeout="60")
    for body in ("first", "second"):
        sent = {"MessageGroupId": "group", "MessageDeduplicationId": "same"}
        scratch.client("sqs").send_message(QueueUrl=url, MessageBody=body, **sent)
    found = receive(scratch, url)
    return Seen(len(found) == 1, f"two sent under one id, {len(found)} received")


@check(needs_stack=False)
def fifo_group_waits_for_its_first_message(scratch: Scratch) -> Seen:
    """While a message of a group is in flight, SQS delivers no later one of that group, but those of other groups. Once
    it is visible again it comes first.

    Where:
    docs/operations.md: A message group of a FIFO queue waits behind its failed message
    """
    url, _ = scratch.make_queue("order.fifo", FifoQueue="true", VisibilityTimeout="60")
    sqs = scratch.client("sqs")
    for group, body in (("a", "a1"), ("a", "a2"), ("b", "b1")):
        sent = {"MessageGroupId": group, "MessageDeduplicationId": secrets.token_hex(8)}
        sqs.send_message(QueueUrl=url, MessageBody=body, **sent)
    first = receive(scratch, url, MaxNumberOfMessages=1)
    while_in_flight = receive(scratch, url)
    for message in first:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    again = receive(scratch, url)
    seen = [[message["Body"] for message in batch] for batch in (first, while_in_flight, again)]
    holds = seen[0] == ["a1"] and seen[1] == ["b1"] and seen[2][:1] == ["a1"]
    return Seen(holds, f"received {seen[0]}, then {seen[1]}, and after the first was given back {seen[2]}")


@check(needs_stack=False, only_aws="MiniStack keeps the deduplication id")
def fifo_dead_letter_has_another_deduplication_id(scratch: Scratch) -> Seen:
    """SQS replaces the deduplication id of a FIFO message by its message id when it moves it to the dead-letter queue.

    Where:
    docs/operations.md: SqsOnceDeduplicationId
    """
    url, _, dead, _ = pair(scratch, "fifo", 1, FifoQueue="true")
    sent = {"MessageGroupId": "group", "MessageDeduplicationId": "of-the-producer"}
    id = scratch.client("sqs").send_message(QueueUrl=url, MessageBody="{}", **sent)["MessageId"]
    if not (letter := moved(scratch, url, dead)):
        return Seen(False, NOT_MOVED)
    deduplication = letter["Attributes"].get("MessageDeduplicationId")
    same = "its message id" if deduplication == id else "not its message id"
    return Seen(deduplication == id, f"the deduplication id in the dead-letter queue is {same}")

"""A stack with FIFO queues: the messages of a group behind a permanent failure."""

import dataclasses
import itertools
from typing import Any

from verify_aws.check import NotChecked, Seen, check
from verify_aws.checks.messages import DECLINED, SETTLED, ended, fresh, key_of, lines, order, record
from verify_aws.checks.queues import receive
from verify_aws.functions import change_variables
from verify_aws.scratch import DeployFailed, Scratch, finish_stack

Json = dict[str, Any]


def time(item: Json, name: str) -> int:
    return int(item.get(name, {}).get("N", 0))


BEHIND = 3  # messages behind the declined one
# Without a topic, so that `sqs-once doctor` finds alarms that notify nobody.
FIFO = ("fifo", {"Fifo": "on", "AlarmTopicArn": ""})


def outputs_of_fifo(scratch: Scratch) -> dict[str, str]:
    """Waits for the FIFO stack. Returns its outputs."""
    return finish_stack(scratch, f"{scratch.name}-{FIFO[0]}")


def send_group(fifo: Scratch, group: str, bodies: list[str]) -> None:
    entries = [
        {"Id": str(i), "MessageBody": body, "MessageGroupId": group, "MessageDeduplicationId": f"of-{group}-{i}"}
        for i, body in enumerate(bodies)
    ]
    fifo.client("sqs").send_message_batch(QueueUrl=fifo.outputs["QueueUrl"], Entries=entries)


def runs(fifo: Scratch, number: str) -> list[tuple[str, str]]:
    """The invocation and the outcome of each receive of an order, by the log."""
    key = key_of(fifo, number)
    return [
        (line["span"]["requestId"], line["outcome"])
        for line in lines(fifo)
        if line.get("key") == key and "outcome" in line
    ]


@check(stack=FIFO)
def fifo_group_goes_on_behind_a_permanent_failure(scratch: Scratch) -> Seen:
    """In a stack with Fifo=on, the messages of a group run one after the other, also behind a declined one. That one
    is copied to the dead-letter queue with its group, and its own deduplication id is an attribute.

    Where:
    docs/operations.md: SqsOnceDeduplicationId
    template.yaml: ConsumerFifoAfterPermanent
    """
    try:
        outputs = outputs_of_fifo(scratch)
    except DeployFailed as failed:
        return Seen(False, f"the stack was not created: {failed}")
    fifo = dataclasses.replace(scratch, outputs=outputs)
    first, declined, last = fresh("first"), fresh("declined"), fresh("last")
    bodies = (order(first), order(declined, DECLINED), order(last))
    send_group(fifo, "group", list(bodies))
    states = [ended(fifo, first, "COMPLETED"), ended(fifo, declined, "FAILED"), ended(fifo, last, "COMPLETED")]
    records = [record(fifo, number) for number in (first, declined, last)]
    if not all(records):
        raise NotChecked(f"records {states}")
    in_order = all(
        time(later, "created_at") >= time(earlier, "updated_at") for earlier, later in itertools.pairwise(records)
    )

    def read() -> list[Json]:
        return receive(scratch, outputs["DeadLetterQueueUrl"], MessageAttributeNames=["All"])

    letters = scratch.eventually(read, bool, within=60)
    kept = [
        (
            letter["Attributes"].get("MessageGroupId"),
            letter.get("MessageAttributes", {}).get("SqsOnceDeduplicationId", {}).get("StringValue"),
        )
        for letter in letters
    ]
    holds = states == ["COMPLETED", "FAILED", "COMPLETED"] and in_order and kept == [("group", "of-group-1")]
    text = f"{', '.join(states)}, {'in order' if in_order else 'not in order'}; {len(letters)} dead letter"
    return Seen(holds, f"{text} {'with' if kept == [('group', 'of-group-1')] else 'without'} its group and id")


STOP = {"CONSUMER_FIFO_AFTER_PERMANENT": "stop"}


@check(stack=FIFO)
def fifo_group_stops_behind_a_permanent_failure(scratch: Scratch) -> Seen:
    """With CONSUMER_FIFO_AFTER_PERMANENT=stop, the messages behind a declined one are not started in its batch. They
    return, and run in order.

    Where:
    docs/operations.md: CONSUMER_FIFO_AFTER_PERMANENT=stop
    docs/settings.md: `CONSUMER_FIFO_AFTER_PERMANENT`
    """
    try:
        outputs = outputs_of_fifo(scratch)
    except DeployFailed as failed:
        return Seen(False, f"the stack was not created: {failed}")
    fifo = dataclasses.replace(scratch, outputs=outputs)
    declined, *behind = fresh("stops"), *(fresh(f"behind-{number}") for number in range(BEHIND))
    before = change_variables(scratch, outputs["FunctionName"], **STOP)
    try:
        send_group(fifo, "stops", [order(declined, DECLINED), *map(order, behind)])
        ended(fifo, declined, "FAILED")
        states = [ended(fifo, number, "COMPLETED") for number in behind]
        records = [record(fifo, number) for number in behind]
        declined_in, _ = scratch.eventually(lambda: runs(fifo, declined), bool, within=SETTLED)[0]
        of_batch = [outcome for number in behind for batch, outcome in runs(fifo, number) if batch == declined_in]
    finally:
        change_variables(scratch, outputs["FunctionName"], **before)
    if not of_batch:
        raise NotChecked("Lambda put the declined message into a separate batch")
    in_order = all(
        time(later, "created_at") >= time(earlier, "updated_at") for earlier, later in itertools.pairwise(records)
    )
    done = states.count("COMPLETED")
    holds = set(of_batch) == {"not_started"} and done == BEHIND and in_order
    text = f"in the batch of the declined message: {', '.join(of_batch)}"
    return Seen(holds, f"{text}; then {done} of {BEHIND} completed, {'in order' if in_order else 'not in order'}")

"""A stack with FIFO queues: the order of a group behind a permanent failure."""

import dataclasses
import itertools
from typing import Any

from verify_aws.check import NotChecked, Seen, check
from verify_aws.checks.messages import DECLINED, ended, fresh, order, record
from verify_aws.checks.queues import receive
from verify_aws.scratch import DeployFailed, Scratch, finish_stack

Json = dict[str, Any]


def time(item: Json, name: str) -> int:
    return int(item.get(name, {}).get("N", 0))


# Without a topic, so that `sqs-once doctor` finds alarms that notify nobody.
FIFO = ("fifo", {"Fifo": "on", "AlarmTopicArn": ""})


def outputs_of_fifo(scratch: Scratch) -> dict[str, str]:
    """Waits for the FIFO stack. Returns its outputs."""
    return finish_stack(scratch, f"{scratch.name}-{FIFO[0]}")


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
    entries = [
        {"Id": str(i), "MessageBody": body, "MessageGroupId": "group", "MessageDeduplicationId": f"of-message-{i}"}
        for i, body in enumerate(bodies)
    ]
    scratch.client("sqs").send_message_batch(QueueUrl=outputs["QueueUrl"], Entries=entries)
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
    holds = states == ["COMPLETED", "FAILED", "COMPLETED"] and in_order and kept == [("group", "of-message-1")]
    text = f"{', '.join(states)}, {'in order' if in_order else 'not in order'}; {len(letters)} dead letter"
    return Seen(holds, f"{text} {'with' if kept == [('group', 'of-message-1')] else 'without'} its group and id")

"""Answers to `checks/fifo.py`."""

import datetime
from typing import Any

from verify_aws.answers.stub import NAME, OUTPUTS, Given, ok, pair

Json = dict[str, Any]

STACK: Json = {
    "StackName": f"{NAME}-fifo",
    "StackStatus": "CREATE_COMPLETE",
    "CreationTime": datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC),
    "Outputs": [{"OutputKey": name, "OutputValue": value} for name, value in OUTPUTS.items()],
}
described = ok("cloudformation.describe_stacks", Stacks=[STACK])


def item(status: str, created: int, updated: int) -> Given:
    times = {"created_at": {"N": str(created)}, "updated_at": {"N": str(updated)}}
    return ok("dynamodb.get_item", Item={"status": {"S": status}} | times)


def run(last_begins: int) -> list[Given]:
    records = [item("COMPLETED", 10, 20), item("FAILED", 20, 30), item("COMPLETED", last_begins, 50)]
    letter = {
        "Attributes": {"MessageGroupId": "group"},
        "MessageAttributes": {"SqsOnceDeduplicationId": {"StringValue": "of-message-1", "DataType": "String"}},
    }
    return [
        *[described] * 2,
        ok("sqs.send_message_batch", Successful=[], Failed=[]),
        *records,
        *records,
        ok("sqs.receive_message", Messages=[letter]),
    ]


pair("fifo_group_goes_on_behind_a_permanent_failure", holds=run(30), differs=run(25))

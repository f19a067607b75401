"""Answers to `checks/fifo.py`."""

import datetime
from typing import Any

from verify_aws.answers.messages import line, logged
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
        "MessageAttributes": {"SqsOnceDeduplicationId": {"StringValue": "of-group-1", "DataType": "String"}},
    }
    return [
        *[described] * 2,
        ok("sqs.send_message_batch", Successful=[], Failed=[]),
        *records,
        *records,
        ok("sqs.receive_message", Messages=[letter]),
    ]


pair("fifo_group_goes_on_behind_a_permanent_failure", holds=run(30), differs=run(25))


changed: list[Given] = [
    ok("lambda.get_function_configuration", Environment={"Variables": {"CONSUMER_FIFO_AFTER_PERMANENT": "continue"}}),
    ok("lambda.update_function_configuration"),
    ok("lambda.get_function", Configuration={"LastUpdateStatus": "Successful"}),
]


def stops(outcome: str) -> list[Given]:
    behind = [item("COMPLETED", begins, begins + 5) for begins in (30, 40, 50)]
    log = logged(
        line("stops", "permanent_failure"),
        *(line(f"behind-{number}", outcome) for number in range(3)),
        *(line(f"behind-{number}", "completed") | {"span": {"requestId": "r-2"}} for number in range(3)),
    )
    return [
        *[described] * 2,
        *changed,
        ok("sqs.send_message_batch", Successful=[], Failed=[]),
        item("FAILED", 10, 20),
        *behind,
        *behind,
        *[log] * 4,
        *changed,
    ]


pair("fifo_group_stops_behind_a_permanent_failure", holds=stops("not_started"), differs=stops("completed"))

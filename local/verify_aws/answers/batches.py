"""Answers to `checks/batches.py`."""

import json
from typing import Any

from verify_aws.answers.permissions import ROLE
from verify_aws.answers.queues import queue
from verify_aws.answers.stub import RANDOM, Given, ok, pair

Json = dict[str, Any]

create: list[Given] = [
    ok("iam.create_role", Role=ROLE),
    ok("iam.put_role_policy"),
    ok("lambda.create_function"),
    ok("lambda.get_function", Configuration={"State": "Active"}),
    ok("lambda.create_event_source_mapping"),
]
made: list[Given] = [*queue("batches-seen"), *queue("batches"), *create]
sent = ok("sqs.send_message_batch", Successful=[], Failed=[])


def seen(case: str, neighbour: list[int]) -> Given:
    """The reports of the function: the message of a case twice, its neighbour as often as here."""
    case = f"{case} {RANDOM}"
    reports: list[Json] = [{"body": case, "count": count, "batch": f"b-{count}"} for count in (1, 2)]
    reports += [{"body": f"good beside {case}", "count": count, "batch": f"b-{count}"} for count in neighbour]
    return ok("sqs.receive_message", Messages=[{"Body": json.dumps(report)} for report in reports])


none = ok("sqs.receive_message", Messages=[])


def run(unknown: list[int]) -> list[Given]:
    return [*made, sent, seen("fails", [1]), none, sent, seen("unknown", unknown), sent, seen("exits", [1, 2])]


pair("failed_batches_return_as_the_response_says", holds=run([1, 2]), differs=run([1]))

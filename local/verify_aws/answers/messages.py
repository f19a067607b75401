"""Answers to `checks/messages.py`."""

import datetime
import json
from typing import Any

from verify_aws.answers.stub import OUTPUTS, RANDOM, Given, ok, pair

Json = dict[str, Any]
NOW = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)

sent = ok("sqs.send_message_batch", Successful=[], Failed=[])
put = ok("dynamodb.put_item")


def record(status: str, attempts: int = 1) -> Given:
    return ok("dynamodb.get_item", Item={"status": {"S": status}, "attempts": {"N": str(attempts)}})


def logged(*lines: Json) -> Given:
    return ok("logs.filter_log_events", events=[{"message": json.dumps(line)} for line in lines])


def line(prefix: str, outcome: str) -> Json:
    key = f"{OUTPUTS['FunctionName']}#{prefix}-{RANDOM}"
    return {"level": "INFO", "timestamp": "t", "key": key, "outcome": outcome, "span": {"requestId": "r-1"}}


pair(
    "orders_are_completed",
    holds=[sent, sent, *[record("COMPLETED")] * 40],
    differs=[sent, sent, *[record("COMPLETED")] * 19, record("IN_PROGRESS"), *[record("COMPLETED")] * 20],
)
pair(
    "repeated_order_is_a_duplicate",
    holds=[
        sent,
        record("COMPLETED"),
        sent,
        logged(line("twice", "completed"), line("twice", "duplicate")),
        record("COMPLETED"),
    ],
    differs=[
        sent,
        record("COMPLETED"),
        sent,
        logged(line("twice", "completed"), line("twice", "completed")),
        record("COMPLETED", 2),
    ],
)


def letters(*reasons: str) -> Given:
    attributes = [{"SqsOnceReason": {"StringValue": reason, "DataType": "String"}} for reason in reasons]
    return ok("sqs.receive_message", Messages=[{"MessageAttributes": one} for one in attributes])


ends = [sent, *[record("COMPLETED")] * 8, record("FAILED")]
pair(
    "only_failed_messages_become_dead_letters",
    holds=[*ends, letters("permanent_failure", "invalid")],
    differs=[*ends, letters("permanent_failure")],
)


def metric(*sums: float) -> list[Given]:
    return [sent, ok("cloudwatch.get_metric_statistics", Datapoints=[{"Sum": value} for value in sums])]


pair("metrics_arrive_in_cloudwatch", holds=metric(21.0), differs=metric())


def report(init: float) -> list[Given]:
    metrics = {"durationMs": 20.0, "maxMemoryUsedMB": 30, "initDurationMs": init}
    return [sent, logged({"type": "platform.report", "record": {"status": "success", "metrics": metrics}})]


pair("platform_lines_are_json", holds=report(90.0), differs=report(2400.0))
pair(
    "every_line_is_json",
    holds=[logged(line("o", "completed"), {"type": "platform.start"})],
    differs=[logged(line("o", "completed"), {})],
)

"""Messages through the deployed consumer: once, with its records, its dead letters, its logs and its metrics."""

import datetime
import json
import secrets
from typing import Any

from verify_aws.check import Seen, check
from verify_aws.scratch import Scratch

Json = dict[str, Any]

SETTLED = 120.0  # seconds until a message that was sent must have ended
DECLINED = "tok_chargeDeclined"


def order(number: str, token: str = "tok_visa") -> str:
    return json.dumps({"orderId": number, "amount": 99.99, "currency": "EUR", "paymentToken": token})


def fresh(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(4)}"


def send(scratch: Scratch, bodies: list[str]) -> None:
    entries = [{"Id": str(i), "MessageBody": body} for i, body in enumerate(bodies)]
    for start in range(0, len(entries), 10):
        scratch.client("sqs").send_message_batch(
            QueueUrl=scratch.outputs["QueueUrl"], Entries=entries[start : start + 10]
        )


def key_of(scratch: Scratch, number: str) -> str:
    return f"{scratch.outputs['FunctionName']}#{number}"


def record(scratch: Scratch, number: str) -> Json:
    key = scratch.key(key_of(scratch, number))
    table = scratch.outputs["TableName"]
    read: Json = scratch.client("dynamodb").get_item(TableName=table, Key=key, ConsistentRead=True)
    item: Json = read.get("Item", {})
    return item


def status(scratch: Scratch, number: str) -> str:
    return str(record(scratch, number).get("status", {}).get("S", "no record"))


def ended(scratch: Scratch, number: str, wanted: str) -> str:
    return scratch.eventually(lambda: status(scratch, number), lambda now: now == wanted, within=SETTLED)


def lines(scratch: Scratch) -> list[Json]:
    """The lines of the log group; one that is no JSON is empty."""
    pages = (
        scratch.client("logs").get_paginator("filter_log_events").paginate(logGroupName=scratch.outputs["LogGroupName"])
    )
    found = []
    for event in (event for page in pages for event in page["events"]):
        try:
            line = json.loads(event["message"])
        except ValueError:
            line = {}
        found.append(line if isinstance(line, dict) else {})
    return found


def outcomes(scratch: Scratch, number: str, wanted: int) -> list[str]:
    """The outcomes of an order's messages, in the order of the log."""

    def read() -> list[str]:
        key = key_of(scratch, number)
        return [line["outcome"] for line in lines(scratch) if line.get("key") == key and "outcome" in line]

    return scratch.eventually(read, lambda found: len(found) >= wanted, within=SETTLED)


@check()
def orders_are_completed(scratch: Scratch) -> Seen:
    """The deployed function starts, receives twenty orders, and records each as completed after one attempt.

    Where:
    docs/getting-started.md: make deploy
    docs/promises.md: # Promises
    """
    numbers = [fresh("o") for _ in range(20)]
    send(scratch, [order(number) for number in numbers])
    states = [ended(scratch, number, "COMPLETED") for number in numbers]
    attempts = {record(scratch, number).get("attempts", {}).get("N") for number in numbers}
    done = states.count("COMPLETED")
    return Seen(done == len(numbers) and attempts == {"1"}, f"{done} of {len(numbers)} completed")


@check()
def repeated_order_is_a_duplicate(scratch: Scratch) -> Seen:
    """An order that is sent twice runs once; the second message is a duplicate.

    Where:
    docs/promises.md: # Promises
    docs/logs.md: duplicate
    """
    number = fresh("twice")
    send(scratch, [order(number)])
    ended(scratch, number, "COMPLETED")
    send(scratch, [order(number)])
    found = outcomes(scratch, number, 2)
    attempts = record(scratch, number).get("attempts", {}).get("N")
    return Seen(found == ["completed", "duplicate"] and attempts == "1", f"outcomes {found}, {attempts} attempt")


@check()
def only_failed_messages_become_dead_letters(scratch: Scratch) -> Seen:
    """Of a batch with a declined order and a body that is not JSON, only these two reach the dead-letter queue, with
    their reasons, and the others are deleted.

    Where:
    docs/operations.md: SqsOnceReason
    docs/logs.md: permanent_failure
    """
    good, declined = [fresh("good") for _ in range(8)], fresh("declined")
    send(scratch, [*(order(number) for number in good), order(declined, DECLINED), "no JSON"])
    done = [ended(scratch, number, "COMPLETED") for number in good].count("COMPLETED")
    ended(scratch, declined, "FAILED")
    url = scratch.outputs["DeadLetterQueueUrl"]
    found: list[str] = []

    def read() -> list[str]:
        asked = {"MaxNumberOfMessages": 10, "WaitTimeSeconds": 5, "VisibilityTimeout": 60}
        answer = scratch.client("sqs").receive_message(QueueUrl=url, MessageAttributeNames=["All"], **asked)
        for message in answer.get("Messages", []):
            attribute = message.get("MessageAttributes", {}).get("SqsOnceReason", {})
            found.append(attribute.get("StringValue", "moved_by_sqs"))
        return found

    letters = scratch.eventually(read, lambda now: len(now) >= 2, within=60)
    reasons = sorted(letters)
    holds = done == len(good) and reasons == ["invalid", "permanent_failure"]
    return Seen(holds, f"{done} of {len(good)} completed, dead letters: {', '.join(reasons) or 'none'}")


@check(only_aws="emulators make no metrics of log lines")
def metrics_arrive_in_cloudwatch(scratch: Scratch) -> Seen:
    """CloudWatch makes metrics of the consumer's log lines: namespace sqs-once, dimension service.

    Where:
    docs/metrics.md: Namespace: `sqs-once`. Dimension: `service`
    template.yaml: CONSUMER_METRICS
    """
    send(scratch, [order(fresh("metric"))])

    def read() -> float:
        now = datetime.datetime.now(datetime.UTC)
        answer = scratch.client("cloudwatch").get_metric_statistics(
            Namespace="sqs-once",
            MetricName="Completed",
            Dimensions=[{"Name": "service", "Value": scratch.outputs["FunctionName"]}],
            StartTime=now - datetime.timedelta(hours=2),
            EndTime=now + datetime.timedelta(minutes=1),
            Period=3600,
            Statistics=["Sum"],
        )
        return float(sum(point["Sum"] for point in answer["Datapoints"]))

    total = scratch.eventually(read, lambda value: value >= 1, within=300, pause=15)
    return Seen(total >= 1, f"Completed = {total:g}")


@check(only_aws="MiniStack writes no platform lines")
def platform_lines_are_json(scratch: Scratch) -> Seen:
    """Lambda reports each invocation in a line platform.report, with status, duration and memory, and a cold start of
    less than a second.

    Where:
    docs/runbook.md: platform.report
    template.yaml: SystemLogLevel: INFO
    """
    send(scratch, [order(fresh("report"))])

    def read() -> list[Json]:
        found = [line["record"] for line in lines(scratch) if line.get("type") == "platform.report"]
        return [report for report in found if {"durationMs", "maxMemoryUsedMB"} <= set(report.get("metrics", {}))]

    reports = scratch.eventually(read, bool, within=SETTLED)
    starts = [report["metrics"]["initDurationMs"] for report in reports if "initDurationMs" in report["metrics"]]
    memory = max((report["metrics"]["maxMemoryUsedMB"] for report in reports), default=0)
    slowest = max(starts, default=0)
    text = f"{len(reports)} reports, slowest start {slowest:.0f} ms, {memory} MB at most"
    return Seen(bool(reports) and slowest < 1000 and all("status" in report for report in reports), text)


@check()
def every_line_is_json(scratch: Scratch) -> Seen:
    """Every line of the log group is JSON, and each line of the consumer has level and timestamp.

    Where:
    docs/logs.md: one JSON object per line
    template.yaml: LogFormat: JSON
    """
    found = scratch.eventually(lambda: lines(scratch), lambda now: any("level" in line for line in now), within=SETTLED)
    own = [line for line in found if "level" in line]
    whole = [line for line in own if "timestamp" in line]
    # MiniStack writes the START and END of an invocation as text.
    other = 0 if scratch.emulated else found.count({})
    text = f"{len(whole)} of {len(own)} lines have level and timestamp, {other} lines are no JSON"
    return Seen(bool(own) and len(whole) == len(own) and not other, text)

"""Checks that wait for alarms or for a queue to fall asleep: with `SLOW=1`, or by name."""

import datetime
from typing import Any

from verify_aws.check import Seen, check
from verify_aws.checks import batches
from verify_aws.checks.messages import fresh, key_of, lines, order, send
from verify_aws.checks.writes import refusal
from verify_aws.functions import change_variables
from verify_aws.scratch import Scratch

Json = dict[str, Any]

HOUR = 3600.0


def highest(scratch: Scratch, namespace: str, metric: str, dimension: tuple[str, str], minutes: int) -> float | None:
    """The highest value of a metric in the last minutes; `None` without data."""
    now = datetime.datetime.now(datetime.UTC)
    answer = scratch.client("cloudwatch").get_metric_statistics(
        Namespace=namespace,
        MetricName=metric,
        Dimensions=[{"Name": dimension[0], "Value": dimension[1]}],
        StartTime=now - datetime.timedelta(minutes=minutes),
        EndTime=now,
        Period=60,
        Statistics=["Maximum"],
    )
    return max((float(point["Maximum"]) for point in answer["Datapoints"]), default=None)


@check(slow=True, only_aws="emulators have no metrics of queues")
def outage_shows_in_the_consumers_own_metrics(scratch: Scratch) -> Seen:
    """In an outage in which messages fail fast, ApproximateAgeOfOldestMessage of a standard queue stays below the
    alarm's five minutes, and the consumer's OldestMessageAge exceeds it. Takes 20 minutes.

    Where:
    docs/runbook.md: ### OldestMessageTooOld
    template.yaml: ApproximateAgeOfOldestMessage
    """
    function = scratch.outputs["FunctionName"]
    # A closed port, which refuses at once.
    before = change_variables(scratch, function, PAYMENT_GATEWAY_URL="http://127.0.0.1:9")
    try:
        for _ in range(20):
            send(scratch, [order(fresh("outage")) for _ in range(10)])
            scratch.rest(60)
        queue = scratch.outputs["QueueUrl"].rsplit("/", 1)[-1]
        of_queue = highest(scratch, "AWS/SQS", "ApproximateAgeOfOldestMessage", ("QueueName", queue), 10)
        own = highest(scratch, "sqs-once", "OldestMessageAge", ("service", function), 10)
    finally:
        change_variables(scratch, function, **before)
    holds = of_queue is not None and own is not None and of_queue < 300 < own
    return Seen(holds, f"oldest message: {of_queue} s for SQS, {own} s for the consumer")


@check(slow=True, only_aws="emulators throttle nothing")
def throttled_message_uses_up_few_receives(scratch: Scratch) -> Seen:
    """While the function is throttled, a message uses up one receive per visibility timeout, not one per refusal. Takes
    15 minutes.

    Where:
    docs/runbook.md: ### FunctionThrottles
    """
    functions, name = scratch.client("lambda"), scratch.outputs["FunctionName"]
    functions.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)
    number = fresh("throttled")
    try:
        send(scratch, [order(number)])
        scratch.rest(800)  # two visibility timeouts of 360 s, and a little
    finally:
        functions.delete_function_concurrency(FunctionName=name)

    def counts() -> list[int]:
        key = key_of(scratch, number)
        return [line["receive_count"] for line in lines(scratch) if line.get("key") == key and "outcome" in line]

    found = scratch.eventually(counts, bool, within=600)
    last = max(found, default=0)
    return Seen(2 <= last <= 4, f"receive {last} after 13 minutes of throttling")


@check(slow=True, only_aws="emulators have no metrics of queues")
def sleeping_queue_reports_its_first_message_late(scratch: Scratch) -> Seen:
    """After six hours without use, the metric of a dead-letter queue shows the first message up to 15 minutes late.
    Takes 7 hours.

    Where:
    docs/runbook.md: ### DeadLettersArriving
    """
    url, _ = scratch.make_queue("asleep")
    name = url.rsplit("/", 1)[-1]
    scratch.rest(6.5 * HOUR)
    scratch.client("sqs").send_message(QueueUrl=url, MessageBody="{}")
    sent = datetime.datetime.now(datetime.UTC)

    def shown() -> float:
        return highest(scratch, "AWS/SQS", "ApproximateNumberOfMessagesVisible", ("QueueName", name), 20) or 0.0

    seen = scratch.eventually(shown, lambda value: value >= 1, within=20 * 60, pause=30)
    minutes = (datetime.datetime.now(datetime.UTC) - sent).total_seconds() / 60
    text = f"first seen after {minutes:.0f} minutes" if seen else "not seen within 20 minutes"
    return Seen(bool(seen) and minutes <= 16, text)


@check(needs_stack=False, slow=True, only_aws="emulators have no provisioned pollers")
def provisioned_pollers_stay_until_they_are_switched_off(scratch: Scratch) -> Seen:
    """An event source mapping with provisioned pollers keeps them when an update leaves them out, and takes no
    MaximumConcurrency beside them. An empty ProvisionedPollerConfig switches them off. Costs pollers for
    some minutes.

    Where:
    docs/template.md: --provisioned-poller-config '{}'
    """
    seen_url, seen = scratch.make_queue("pollers-seen")
    _, arn = scratch.make_queue("pollers", VisibilityTimeout="20")
    name, functions = batches.make_reporter(scratch, "pollers", arn, seen_url, seen), scratch.client("lambda")
    uuid = functions.list_event_source_mappings(FunctionName=name)["EventSourceMappings"][0]["UUID"]

    def settled() -> Json:
        def read() -> Json:
            mapping: Json = functions.get_event_source_mapping(UUID=uuid)
            return mapping

        return scratch.eventually(read, lambda now: now["State"] in ("Enabled", "Disabled"), within=300)

    settled()
    pollers = {"MinimumPollers": 2, "MaximumPollers": 2}
    functions.update_event_source_mapping(UUID=uuid, ScalingConfig={}, ProvisionedPollerConfig=pollers)
    settled()
    both, _ = refusal(functions.update_event_source_mapping, UUID=uuid, ScalingConfig={"MaximumConcurrency": 2})
    kept = bool(settled().get("ProvisionedPollerConfig"))
    functions.update_event_source_mapping(UUID=uuid, ProvisionedPollerConfig={})
    off = not settled().get("ProvisionedPollerConfig")
    text = f"MaximumConcurrency beside them: {'accepted' if both == 'none' else both}; left out: "
    text += f"{'kept' if kept else 'gone'}; empty: {'off' if off else 'still on'}"
    return Seen(both != "none" and kept and off, text)

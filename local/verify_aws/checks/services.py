"""EventBridge and SNS, as the outbox and the alarms use them."""

import json
from typing import Any

from verify_aws.check import Seen, check
from verify_aws.checks.deployed import resources
from verify_aws.checks.queues import receive
from verify_aws.checks.writes import refusal
from verify_aws.scratch import Scratch

Json = dict[str, Any]


@check(needs_stack=False, only_aws="no emulator models the entry errors of PutEvents")
def events_to_a_missing_bus_are_confirmed(scratch: Scratch) -> Seen:
    """EventBridge confirms events to a bus that does not exist, and drops them; DescribeEventBus tells that there is no
    bus.

    Where:
    docs/outbox.md: event bus
    """
    events, bus = scratch.client("events"), f"{scratch.name}-missing"
    entry = {"Source": "sqs-once.verify", "DetailType": "test", "Detail": "{}", "EventBusName": bus}
    answer = events.put_events(Entries=[entry])
    described, _ = refusal(events.describe_event_bus, Name=bus)
    confirmed = answer["FailedEntryCount"] == 0
    text = f"PutEvents: {'confirmed' if confirmed else 'refused'}; DescribeEventBus: {described}"
    return Seen(confirmed and described == "ResourceNotFoundException", text)


@check(only_aws="emulators evaluate no alarm")
def alarm_reaches_a_topic(scratch: Scratch) -> Seen:
    """An alarm that set-alarm-state sets sends its notification to a topic of SNS, and from there to a subscriber.

    Where:
    docs/runbook.md: set-alarm-state
    """
    sns, cloudwatch = scratch.client("sns"), scratch.client("cloudwatch")
    url, arn = scratch.make_queue("alarms")
    caller = scratch.client("sts").get_caller_identity()
    partition, region = arn.split(":")[1], arn.split(":")[3]
    topic = f"arn:{partition}:sns:{region}:{caller['Account']}:{scratch.name}-alarms"
    scratch.journal.intends("topic", topic)
    sns.create_topic(Name=f"{scratch.name}-alarms", Tags=scratch.tag_list)
    allow = {
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": topic}},
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
    scratch.client("sqs").set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    alarm = resources(scratch)["FunctionThrottles"]
    described = cloudwatch.describe_alarms(AlarmNames=[alarm])["MetricAlarms"][0]
    kept = {"MetricName", "Namespace", "Statistic", "Dimensions", "Period", "EvaluationPeriods", "DatapointsToAlarm"}
    kept |= {"Threshold", "ComparisonOperator", "TreatMissingData"}
    # The same alarm under a name of its own would outlive the run; this one goes with the stack.
    cloudwatch.put_metric_alarm(
        AlarmName=alarm, AlarmActions=[topic], **{name: value for name, value in described.items() if name in kept}
    )
    scratch.rest(20)  # until SNS knows the subscription, and SQS the policy
    cloudwatch.set_alarm_state(AlarmName=alarm, StateValue="ALARM", StateReason="test of the notification")

    def read() -> list[Json]:
        return [json.loads(json.loads(message["Body"])["Message"]) for message in receive(scratch, url)]

    states = [message["NewStateValue"] for message in scratch.eventually(read, bool, within=60)]
    return Seen("ALARM" in states, f"states received: {', '.join(states) or 'none'}")

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
def alarm_notifies_its_topic(scratch: Scratch) -> Seen:
    """An alarm of the template that set-alarm-state sets notifies the topic of AlarmTopicArn when it begins and when it
    ends, and SNS its subscriber.

    Where:
    docs/runbook.md: set-alarm-state
    template.yaml: AlarmTopicArn
    """
    alarm = resources(scratch)["FunctionThrottles"]
    url = scratch.client("sqs").get_queue_url(QueueName=f"{scratch.name}-alarms")["QueueUrl"]
    reason = "test of the notification"
    states: set[str] = set()

    def read() -> set[str]:
        found = [json.loads(json.loads(message["Body"])["Message"]) for message in receive(scratch, url)]
        states.update(one["NewStateValue"] for one in found if one.get("AlarmName") == alarm)
        return states

    for state in ("ALARM", "OK"):
        scratch.client("cloudwatch").set_alarm_state(AlarmName=alarm, StateValue=state, StateReason=reason)
        scratch.eventually(read, lambda now, state=state: state in now, within=60)  # type: ignore[misc]
    return Seen(states >= {"ALARM", "OK"}, f"states received: {', '.join(sorted(states)) or 'none'}")

"""Answers to `checks/services.py`."""

import json

from verify_aws.answers.deployed import made
from verify_aws.answers.stub import NAME, URL, Given, ok, pair, refused

pair(
    "events_to_a_missing_bus_are_confirmed",
    holds=[
        ok("events.put_events", FailedEntryCount=0, Entries=[{"EventId": "e-1"}]),
        refused("events.describe_event_bus", "ResourceNotFoundException"),
    ],
    differs=[
        ok("events.put_events", FailedEntryCount=1, Entries=[{"ErrorCode": "ResourceNotFound"}]),
        refused("events.describe_event_bus", "ResourceNotFoundException"),
    ],
)


def notified(*states: str) -> list[Given]:
    name = f"{NAME}-FunctionThrottles"
    messages = [{"AlarmName": name, "NewStateValue": state} for state in states]
    bodies = [[json.dumps({"Message": json.dumps(message)})] for message in messages]
    return [
        made(),
        ok("sqs.get_queue_url", QueueUrl=f"{URL}{NAME}-alarms"),
        *[ok("cloudwatch.set_alarm_state")] * 2,
        *(ok("sqs.receive_message", Messages=[{"Body": body} for body in one]) for one in bodies),
    ]


pair("alarm_notifies_its_topic", holds=notified("ALARM", "OK"), differs=notified("ALARM", "ALARM"))

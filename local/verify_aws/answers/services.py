"""Answers to `checks/services.py`."""

import json

from verify_aws.answers.deployed import alarm, made
from verify_aws.answers.queues import queue
from verify_aws.answers.stub import ACCOUNT, NAME, REGION, Given, ok, pair, refused

TOPIC = f"arn:aws:sns:{REGION}:{ACCOUNT}:{NAME}-alarms"

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
    bodies = [json.dumps({"Message": json.dumps({"NewStateValue": state})}) for state in states]
    described = alarm("FunctionThrottles") | {
        "Namespace": "AWS/Lambda",
        "Statistic": "Sum",
        "Period": 60,
        "EvaluationPeriods": 5,
        "Threshold": 0.0,
        "ComparisonOperator": "GreaterThanThreshold",
    }
    return [
        *queue("alarms"),
        ok("sts.get_caller_identity", Account=ACCOUNT),
        ok("sns.create_topic", TopicArn=TOPIC),
        ok("sqs.set_queue_attributes"),
        ok("sns.subscribe"),
        made(),
        ok("cloudwatch.describe_alarms", MetricAlarms=[described]),
        ok("cloudwatch.put_metric_alarm"),
        ok("cloudwatch.set_alarm_state"),
        ok("sqs.receive_message", Messages=[{"Body": body} for body in bodies]),
    ]


pair("alarm_reaches_a_topic", holds=notified("ALARM"), differs=notified())

"""Answers to `checks/slow.py`."""

from verify_aws.answers.batches import made
from verify_aws.answers.messages import line, logged, sent
from verify_aws.answers.queues import queue
from verify_aws.answers.stub import Given, ok, pair, refused


def highest(*values: float) -> Given:
    return ok("cloudwatch.get_metric_statistics", Datapoints=[{"Maximum": value} for value in values])


gateway: list[Given] = [
    ok("lambda.get_function_configuration", Environment={"Variables": {"A": "b"}}),
    ok("lambda.update_function_configuration"),
    ok("lambda.get_function", Configuration={"LastUpdateStatus": "Successful"}),
]
pair(
    "outage_shows_in_the_consumers_own_metrics",
    holds=[*gateway, *[sent] * 20, highest(30.0, 42.0), highest(900.0), *gateway],
    differs=[*gateway, *[sent] * 20, highest(1100.0), highest(900.0), *gateway],
)


def throttled(receives: int) -> list[Given]:
    return [
        ok("lambda.put_function_concurrency"),
        sent,
        ok("lambda.delete_function_concurrency"),
        logged(line("throttled", "completed") | {"receive_count": receives}),
    ]


pair("throttled_message_uses_up_few_receives", holds=throttled(3), differs=throttled(40))

asleep = [*queue("asleep"), ok("sqs.send_message", MessageId="m-1")]
pair(
    "sleeping_queue_reports_its_first_message_late",
    holds=[*asleep, highest(1.0)],
    differs=[*asleep, highest()],
)


def mapping(pollers: bool) -> Given:
    config = {"ProvisionedPollerConfig": {"MinimumPollers": 2, "MaximumPollers": 2}} if pollers else {}
    return ok("lambda.get_event_source_mapping", State="Enabled", **config)


def provisioned(kept: bool) -> list[Given]:
    return [
        *made,
        ok("lambda.list_event_source_mappings", EventSourceMappings=[{"UUID": "0c0c0c0c-0000-4000-8000-000000000000"}]),
        mapping(False),
        ok("lambda.update_event_source_mapping"),
        mapping(True),
        refused("lambda.update_event_source_mapping", "InvalidParameterValueException"),
        mapping(kept),
        ok("lambda.update_event_source_mapping"),
        mapping(False),
    ]


pair("provisioned_pollers_stay_until_they_are_switched_off", holds=provisioned(True), differs=provisioned(False))

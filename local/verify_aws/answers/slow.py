"""Answers to `checks/slow.py`."""

from verify_aws.answers.messages import line, logged, sent
from verify_aws.answers.queues import queue
from verify_aws.answers.stub import Given, ok, pair


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

"""Answers to `checks/queues.py`."""

from typing import Any

from verify_aws.answers.stub import ARN, NAME, URL, Given, Time, ok, pair, refused
from verify_aws.checks.queues import TRACE

Json = dict[str, Any]


def queue(suffix: str) -> list[Given]:
    name = f"{NAME}-{suffix}"
    return [
        ok("sqs.create_queue", QueueUrl=f"{URL}{name}"),
        ok("sqs.get_queue_attributes", Attributes={"QueueArn": f"{ARN}{name}"}),
    ]


def sent(message: str = "m-1") -> Given:
    return ok("sqs.send_message", MessageId=message)


def received(*bodies: str, message: str = "m-1", **attributes: str) -> Given:
    found = [
        {"MessageId": message, "ReceiptHandle": "receipt", "Body": body, "Attributes": dict(attributes)}
        for body in bodies
    ]
    return ok("sqs.receive_message", Messages=found)


def visible() -> Given:
    return ok("sqs.change_message_visibility")


def returned(*, longest: Given) -> list[Given]:
    return [
        *queue("visibility"),
        sent(),
        received("{}", ApproximateReceiveCount="1"),
        ok("sqs.change_message_visibility_batch", Successful=[], Failed=[]),
        received("{}", ApproximateReceiveCount="2"),
        longest,
    ]


pair(
    "visibility_timeout_of_zero_returns_a_message",
    holds=returned(longest=visible()),
    differs=returned(longest=refused("sqs.change_message_visibility", "InvalidParameterValue")),
)


def delayed(*seconds: float) -> list[Given]:
    """A message that returns so many seconds after each of two changes."""
    given: list[Given] = [*queue("backoff"), sent(), received("{}")]
    for after in seconds:
        given += [Time(100.0), visible(), received("{}"), Time(100.0 + after)]
    return given


pair("visibility_timeout_delays_a_message", holds=delayed(5.4, 21.0), differs=delayed(5.4, 17.0))


def moved(end: str, last: Given) -> list[Given]:
    start = [*queue(f"receives-dead{end}"), *queue(f"receives{end}")]
    return [*start, sent(), received("{}"), visible(), received(), last]


pair(
    "last_receive_moves_a_message_with_its_id",
    holds=moved("", received("{}", DeadLetterQueueSourceArn=f"{ARN}{NAME}-receives")),
    differs=moved("", received("{}", message="m-2")),
)
pair(
    "fifo_dead_letter_has_another_deduplication_id",
    holds=moved(".fifo", received("{}", MessageDeduplicationId="m-1")),
    differs=moved(".fifo", received("{}", MessageDeduplicationId="of-the-producer")),
)


def traced(in_dead_letters: str) -> list[Given]:
    arrived = received("{}", AWSTraceHeader=TRACE)
    letter = received("{}", AWSTraceHeader=in_dead_letters)
    return [*queue("trace-dead"), *queue("trace"), sent(), arrived, received(), received(), letter]


pair("trace_header_of_the_producer_arrives", holds=traced(TRACE), differs=traced("none"))


def task(status: str) -> list[Given]:
    return [
        ok("sqs.start_message_move_task", TaskHandle="task"),
        ok("sqs.list_message_move_tasks", Results=[{"Status": status}]),
    ]


made = [*queue("move-dead"), *queue("move"), sent()]
pair(
    "copies_return_only_to_a_named_queue",
    holds=[*made, *task("FAILED"), received(), *task("COMPLETED"), received("{}")],
    differs=[*made, *task("COMPLETED"), received("{}"), *task("COMPLETED"), received("{}")],
)
pair(
    "fifo_queue_drops_a_second_deduplication_id",
    holds=[*queue("dedup.fifo"), sent(), sent(), received("first")],
    differs=[*queue("dedup.fifo"), sent(), sent(), received("first", "second")],
)


def group(while_in_flight: Given) -> list[Given]:
    return [
        *queue("order.fifo"),
        *[sent()] * 3,
        received("a1"),
        while_in_flight,
        visible(),
        received("a1", "a2"),
    ]


pair(
    "fifo_group_waits_for_its_first_message",
    holds=group(received("b1")),
    differs=group(received("a2", "b1")),
)

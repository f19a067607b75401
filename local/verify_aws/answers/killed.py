"""Answers to `checks/killed.py`."""

from verify_aws.answers.batches import create
from verify_aws.answers.queues import queue
from verify_aws.answers.stub import ARN, Given, ok, pair


def item(status: str, attempts: int) -> Given:
    return ok("dynamodb.get_item", Item={"status": {"S": status}, "attempts": {"N": str(attempts)}})


def dies(attempts: int) -> list[Given]:
    """A batch whose worker dies; its order is completed after so many attempts."""
    batch = ok("sqs.send_message_batch", Successful=[], Failed=[])
    return [batch, item("IN_PROGRESS", 1), item("COMPLETED", attempts), *[item("COMPLETED", 1)] * 3]


def run(last: int) -> list[Given]:
    return [
        *queue("killed"),
        ok("lambda.get_function_configuration", Environment={"Variables": {"A": "b"}}),
        ok("dynamodb.describe_table", Table={"TableArn": f"{ARN}table"}),
        *create,
        ok("sqs.send_message", MessageId="m-1"),
        item("COMPLETED", 1),
        *dies(2),
        *dies(last),
    ]


pair("killed_workers_message_is_taken_over", holds=run(2), differs=run(1))

"""A Lambda function with Powertools for AWS Lambda (Python), set up as documented for SQS batches.

compare.py runs this function, and tells it how the handler ends. Each line is one JSON document:

    stdout   {"library": ..., "version": ...}                       the function is ready
    stdin    {"event": ..., "remaining_ms": ...}                    an invocation
    stdout   {"handle": MESSAGE_ID}                                 the handler runs
    stdin    {"return": ...}, {"raise": ...}, {"body": ..., ...}    how the handler ends; `body` changes the message
    stdout   {"failed": [...], "outputs": {...}, "errors": {...}}   the end of the invocation, by message
"""

import importlib.metadata
import json
import os
import sys
from typing import Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.batch.exceptions import BatchProcessingError
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from botocore.config import Config

settings = json.loads(sys.argv[1])
processor = BatchProcessor(event_type=EventType.SQS)
dynamodb = DynamoDBPersistenceLayer(
    table_name=os.environ["IDEMPOTENCY_TABLE"],
    boto_config=Config(read_timeout=1) if settings["short_timeout"] else None,
)
config = IdempotencyConfig(
    event_key_jmespath=settings["key"],
    raise_on_no_idempotency_key=settings["key_required"],
    payload_validation_jmespath=settings["validation"],
)


class Context:
    def __init__(self, remaining_ms: int) -> None:
        self.remaining_ms = remaining_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms


def tell(**message: Any) -> None:
    print(json.dumps(message), flush=True)


@idempotent_function(data_keyword_argument="record", config=config, persistence_store=dynamodb)
def handle(record: SQSRecord) -> Any:
    tell(handle=record.message_id)
    end = json.loads(sys.stdin.readline())
    if "body" in end:
        record.raw_event["body"] = end["body"]
    if "raise" in end:
        raise ValueError(end["raise"])
    return end["return"]


outputs: dict[str, Any] = {}
errors: dict[str, str] = {}


def record_handler(record: SQSRecord) -> None:
    """Notes the output of the idempotent function."""
    try:
        outputs[record.message_id] = handle(record=record)
    except Exception as error:
        errors[record.message_id] = type(error).__name__
        raise


tell(library="Powertools Python", version=importlib.metadata.version("aws-lambda-powertools"))
while line := sys.stdin.readline():
    invocation = json.loads(line)
    outputs.clear()
    errors.clear()
    context = Context(invocation["remaining_ms"])
    if settings["lambda_context"]:
        config.register_lambda_context(context)
    event = invocation["event"]
    try:
        response = process_partial_response(
            event=event, record_handler=record_handler, processor=processor, context=context
        )
        failed = [failure["itemIdentifier"] for failure in response["batchItemFailures"]]
    except BatchProcessingError:  # every message failed
        failed = [record["messageId"] for record in event["Records"]]
    tell(failed=failed, outputs=outputs, errors=errors)

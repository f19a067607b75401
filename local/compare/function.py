"""A Lambda function on Powertools for AWS Lambda (Python), as its documentation has it for SQS batches.

compare.py runs it, and says what each message's handler does. One JSON document a line, both ways:

    it prints   {"library": ..., "version": ...}                       once it is up
    it reads    {"event": ..., "remaining_ms": ...}                    an invocation
    it prints   {"handle": MESSAGE_ID}                                 the handler runs
    it reads    {"return": ...}, {"raise": ...}, {"body": ..., ...}    what it does; `body`: it changes the message
    it prints   {"failed": [...], "outputs": {...}, "errors": {...}}   the invocation's end, by message
"""

import importlib.metadata
import json
import os
import sys

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.batch.exceptions import BatchProcessingError
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)

settings = json.loads(sys.argv[1])
processor = BatchProcessor(event_type=EventType.SQS)
dynamodb = DynamoDBPersistenceLayer(table_name=os.environ["IDEMPOTENCY_TABLE"])
config = IdempotencyConfig(
    event_key_jmespath=settings["key"],
    raise_on_no_idempotency_key=settings["key_required"],
    payload_validation_jmespath="body" if settings["validation"] else "",
)


class Context:
    def __init__(self, remaining_ms):
        self.remaining_ms = remaining_ms

    def get_remaining_time_in_millis(self):
        return self.remaining_ms


def tell(**what):
    print(json.dumps(what), flush=True)


@idempotent_function(data_keyword_argument="record", config=config, persistence_store=dynamodb)
def handle(record: SQSRecord):
    tell(handle=record.message_id)
    does = json.loads(sys.stdin.readline())
    if "body" in does:
        record.raw_event["body"] = does["body"]
    if "raise" in does:
        raise ValueError(does["raise"])
    return does["return"]


outputs, errors = {}, {}


def record_handler(record: SQSRecord):
    """Only notes what the idempotent function answers."""
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
    except BatchProcessingError:  # all of them
        failed = [record["messageId"] for record in event["Records"]]
    tell(failed=failed, outputs=outputs, errors=errors)

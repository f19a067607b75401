"""A Lambda function with Powertools for AWS Lambda (Python), set up as documented for SQS batches.

`make bench` measures it. It speaks the Lambda Runtime API itself, over one connection.
"""

import http.client
import json
import os
import time
from typing import Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)

processor = BatchProcessor(event_type=EventType.SQS)
dynamodb = DynamoDBPersistenceLayer(table_name=os.environ["IDEMPOTENCY_TABLE"])
config = IdempotencyConfig(event_key_jmespath="messageId")


class Context:
    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.deadline_ms - int(time.time() * 1000)


@idempotent_function(data_keyword_argument="record", config=config, persistence_store=dynamodb)
def handle(record: SQSRecord) -> Any:
    return {"id": f"sandbox:payments#{record.message_id}", "status": "succeeded"}


def record_handler(record: SQSRecord) -> Any:
    return handle(record=record)


api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
while True:
    api.request("GET", "/2018-06-01/runtime/invocation/next")
    answer = api.getresponse()
    event = json.loads(answer.read())
    context = Context(int(answer.headers["lambda-runtime-deadline-ms"]))
    config.register_lambda_context(context)
    response = process_partial_response(
        event=event, record_handler=record_handler, processor=processor, context=context
    )
    id = answer.headers["lambda-runtime-aws-request-id"]
    api.request("POST", f"/2018-06-01/runtime/invocation/{id}/response", json.dumps(response))
    api.getresponse().read()

"""One delivery of an SQS record to a function that Powertools makes idempotent.

Takes the order as a JSON argument and prints the outcome as JSON. See tests/process/powertools.
"""

import json
import os
import sys
from typing import Any

import boto3
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)


class Context:
    def __init__(self, remaining_ms: int) -> None:
        self.remaining_ms = remaining_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms


order = json.loads(sys.argv[1])
layer = DynamoDBPersistenceLayer(
    table_name="idempotency",
    boto3_client=boto3.client("dynamodb", endpoint_url=order["endpoint"]),
    **order.get("layer", {}),
)
config = IdempotencyConfig(
    event_key_jmespath="powertools_json(body).orderId",
    raise_on_no_idempotency_key=True,
    **order.get("config", {}),
)
if order["remaining_ms"] is not None:
    config.register_lambda_context(Context(order["remaining_ms"]))

ran = False


@idempotent_function(
    data_keyword_argument="record", config=config, persistence_store=layer, **order.get("function", {})
)
def charge(record: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001, its key is in the record
    global ran
    ran = True
    if order["end"] == "die":
        print(json.dumps({"ran": True}), flush=True)
        os._exit(0)  # the claim stays
    if order["end"] == "raise":
        raise ValueError("declined")
    return {"chargedBy": "python", "é": [1.5, None]}


answer = error = None
try:
    answer = charge(record=order["record"])
except Exception as exception:
    error = type(exception).__name__
print(json.dumps({"ran": ran, "answer": answer, "error": error}))

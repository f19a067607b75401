"""Answers to `checks/writes.py`."""

from typing import Any

from verify_aws.answers.stub import NAME, RANDOM, Given, ok, pair, refused

CONDITION = "ConditionalCheckFailedException"


def stored(prefix: str) -> dict[str, Any]:
    return {"id": {"S": f"{prefix}-{RANDOM}"}, "owner": {"S": "first"}}


for operation, check in (
    ("update_item", "refused_update_returns_the_item"),
    ("put_item", "refused_put_returns_the_item"),
):
    pair(
        check,
        holds=[ok("dynamodb.put_item"), refused(f"dynamodb.{operation}", CONDITION, Item=stored(operation))],
        differs=[ok("dynamodb.put_item"), refused(f"dynamodb.{operation}", CONDITION)],
    )

deleted = refused("dynamodb.delete_item", CONDITION, Item=stored("delete_item"))
pair(
    "refused_delete_returns_the_item",
    holds=[ok("dynamodb.put_item"), deleted, refused("dynamodb.delete_item", CONDITION)],
    differs=[ok("dynamodb.put_item"), deleted, ok("dynamodb.delete_item")],
)


def cancelled(*codes: str, item: bool) -> Given:
    reasons: list[dict[str, Any]] = [{"Code": code} for code in codes]
    if item:
        reasons[-1]["Item"] = stored("transaction")
    return refused("dynamodb.transact_write_items", "TransactionCanceledException", CancellationReasons=reasons)


pair(
    "cancelled_transaction_returns_reasons_in_order",
    holds=[ok("dynamodb.put_item"), cancelled("None", "ConditionalCheckFailed", item=True)],
    differs=[ok("dynamodb.put_item"), cancelled("ConditionalCheckFailed", item=True)],
)


def conflict(batched: str) -> list[Given]:
    """A round without a conflict, and one with three."""
    free = ok("dynamodb.transact_write_items")
    return [
        ok("dynamodb.put_item"),
        *(free, ok("dynamodb.update_item"), ok("dynamodb.batch_execute_statement", Responses=[{}]), free),
        cancelled("TransactionConflict", item=False),
        refused("dynamodb.update_item", "TransactionConflictException"),
        ok("dynamodb.batch_execute_statement", Responses=[{"Error": {"Code": batched}}]),
        free,
    ]


pair(
    "writes_during_a_transaction_conflict",
    holds=conflict("TransactionConflict"),
    differs=conflict("ThrottlingError"),
)

sent = [ok("dynamodb.transact_write_items")] * 2
mismatch = refused("dynamodb.transact_write_items", "IdempotentParameterMismatchException")


def total(number: str) -> Given:
    return ok("dynamodb.get_item", Item={"total": {"N": number}})


pair(
    "repeated_transaction_is_applied_once",
    holds=[*sent, mismatch, total("1")],
    differs=[*sent, mismatch, total("2")],
)


def units(single: float, double: float) -> list[Given]:
    return [
        ok("dynamodb.put_item", ConsumedCapacity={"CapacityUnits": single}),
        ok("dynamodb.transact_write_items", ConsumedCapacity=[{"CapacityUnits": double}]),
    ]


pair("write_units_are_those_of_the_costs", holds=units(1.0, 2.0), differs=units(1.0, 1.0))

made = [ok("dynamodb.create_table"), ok("dynamodb.describe_table", Table={"TableStatus": "ACTIVE", "TableName": NAME})]
pair(
    "new_table_takes_no_ttl_yet",
    holds=[
        made[0],
        refused("dynamodb.update_time_to_live", "ResourceInUseException"),
        made[1],
        ok("dynamodb.update_time_to_live"),
    ],
    differs=[made[0], ok("dynamodb.update_time_to_live"), made[1], ok("dynamodb.update_time_to_live")],
)

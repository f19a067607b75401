"""Answers to `checks/expressions.py`."""

import recorded

from verify_aws.answers.stub import Given, ok, pair, refused
from verify_aws.checks.expressions import form

METHODS = {"DeleteItem": "delete_item", "GetItem": "get_item", "PutItem": "put_item", "UpdateItem": "update_item"}
CONDITION = "ConditionalCheckFailed"


def understood(operation: str) -> Given:
    """An answer to a request that was understood."""
    if operation == "Statement":
        return ok("dynamodb.batch_execute_statement", Responses=[{"Error": {"Code": CONDITION}}])
    if operation.startswith("Transact"):
        reasons = [{"Code": CONDITION}]
        return refused("dynamodb.transact_write_items", "TransactionCanceledException", CancellationReasons=reasons)
    if operation == "UpdateItem":
        return refused("dynamodb.update_item", "ConditionalCheckFailedException")
    return ok(f"dynamodb.{METHODS[operation]}")


def misunderstood(operation: str) -> Given:
    if operation == "Statement":
        return ok("dynamodb.batch_execute_statement", Responses=[{"Error": {"Code": "ValidationError"}}])
    if operation.startswith("Transact"):
        return refused("dynamodb.transact_write_items", "ValidationException")
    return refused(f"dynamodb.{METHODS[operation]}", "ValidationException")


OPERATIONS = [form(line)[0] for line in recorded.FILE.read_text().splitlines()]
tables = [ok("dynamodb.create_table")] * 2 + [ok("dynamodb.describe_table", Table={"TableStatus": "ACTIVE"})] * 2
pair(
    "expressions_are_understood",
    holds=[*tables, *map(understood, OPERATIONS)],
    differs=[*tables, *map(understood, OPERATIONS[:-1]), misunderstood(OPERATIONS[-1])],
)

"""Answers to `checks/batched.py`."""

from typing import Any

from verify_aws.answers.stub import RANDOM, Given, ok, pair, refused

KEY = {"id": {"S": f"batched-{RANDOM}"}}


def batch(*codes: str, **more: Any) -> Given:
    """An answer with one error for each statement; `none` is a success."""
    responses: list[dict[str, Any]] = [{} if code == "none" else {"Error": {"Code": code}} for code in codes]
    if "item" in more:
        responses[-1]["Error"]["Item"] = more.pop("item")
    return ok("dynamodb.batch_execute_statement", Responses=responses, **more)


pair(
    "batched_claim_of_a_taken_key_is_a_duplicate_item",
    holds=[batch("none"), batch("none", "DuplicateItem")],
    differs=[batch("none"), batch("none", "ConditionalCheckFailed")],
)
pair(
    "refused_batched_settlement_returns_the_item",
    holds=[batch("none"), batch("ConditionalCheckFailed", item=KEY | {"owner": {"S": "first"}})],
    differs=[batch("none"), batch("ConditionalCheckFailed")],
)
pair(
    "batched_update_creates_no_item",
    holds=[batch("ConditionalCheckFailed")],
    differs=[batch("none")],
)
pair(
    "set_add_creates_a_missing_set",
    holds=[batch("none"), batch("none"), ok("dynamodb.get_item", Item=KEY | {"failed": {"SS": ["m-1"]}})],
    differs=[batch("none"), batch("ValidationError"), ok("dynamodb.get_item", Item=KEY)],
)
pair(
    "one_key_twice_refuses_the_batch",
    holds=[refused("dynamodb.batch_execute_statement", "ValidationException")],
    differs=[batch("none", "none")],
)
pair(
    "batched_writes_take_the_units_of_single_ones",
    holds=[batch("none", "none", ConsumedCapacity=[{"CapacityUnits": 2.0}])],
    differs=[batch("none", "none", ConsumedCapacity=[{"CapacityUnits": 4.0}])],
)

table = [ok("dynamodb.create_table"), ok("dynamodb.describe_table", Table={"TableStatus": "ACTIVE"})]
throttled = batch("none", "ThrottlingError", "ThrottlingError", "ThrottlingError", "ThrottlingError")
whole = refused("dynamodb.batch_execute_statement", "ThrottlingException")
pair(
    "batched_writes_are_throttled_one_by_one",
    holds=[*table, *[throttled] * 4],
    differs=[*table, throttled, *[whole] * 3],
)

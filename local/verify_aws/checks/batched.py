"""Batched writes by PartiQL: the answers by which the consumer tells how each claim ended."""

import secrets
from typing import Any

from verify_aws.check import NotChecked, Seen, check
from verify_aws.checks.writes import refusal
from verify_aws.scratch import Scratch

Json = dict[str, Any]

# So large that one batch exceeds the units that a table of one unit a second has saved up.
LARGE = 200 * 1024
THROTTLED = {"ProvisionedThroughputExceeded", "RequestLimitExceeded", "ThrottlingError"}


def insert(scratch: Scratch, key: str, **texts: str) -> Json:
    names = "".join(f", '{name}': ?" for name in texts)
    values = [{"S": key}, *({"S": text} for text in texts.values())]
    return {"Statement": f"INSERT INTO \"{scratch.table}\" VALUE {{'id': ?{names}}}", "Parameters": values}


def update(scratch: Scratch, key: str, change: str, condition: str = "", *values: Json) -> Json:
    statement = f'UPDATE "{scratch.table}" {change} WHERE "id" = ?{condition}'
    return {
        "Statement": statement,
        "Parameters": [*values[:1], {"S": key}, *values[1:]],
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def send(scratch: Scratch, *statements: Json, **options: Any) -> Json:
    answer: Json = scratch.client("dynamodb").batch_execute_statement(Statements=list(statements), **options)
    return answer


def fresh() -> str:
    return f"batched-{secrets.token_hex(4)}"


def codes(answer: Json) -> list[str]:
    return [response.get("Error", {}).get("Code", "none") for response in answer["Responses"]]


@check(needs_stack=False)
def batched_claim_of_a_taken_key_is_a_duplicate_item(scratch: Scratch) -> Seen:
    """In one batch, an INSERT of an existing item answers DuplicateItem, and the others are applied.

    Where:
    crates/dynamodb/src/store/batched/response.rs: DuplicateItem
    """
    taken, new = fresh(), fresh()
    send(scratch, insert(scratch, taken))
    found = codes(send(scratch, insert(scratch, new), insert(scratch, taken)))
    return Seen(found == ["none", "DuplicateItem"], f"errors {found}")


@check(needs_stack=False)
def refused_batched_settlement_returns_the_item(scratch: Scratch) -> Seen:
    """An UPDATE whose condition fails answers ConditionalCheckFailed with the item, inside of a success.

    Where:
    crates/dynamodb/src/store/batched/response.rs: ConditionalCheckFailed
    """
    key = fresh()
    send(scratch, insert(scratch, key, owner="first"))
    answer = send(scratch, update(scratch, key, 'SET "owner" = ?', ' AND "owner" = ?', {"S": "third"}, {"S": "second"}))
    error = answer["Responses"][0].get("Error", {})
    whole = error.get("Item") == {"id": {"S": key}, "owner": {"S": "first"}}
    text = f"{error.get('Code', 'no error')}, {'with the item' if whole else 'without the item'}"
    return Seen(error.get("Code") == "ConditionalCheckFailed" and whole, text)


@check(needs_stack=False)
def batched_update_creates_no_item(scratch: Scratch) -> Seen:
    """An UPDATE of an item that does not exist answers ConditionalCheckFailed, without an item.

    Where:
    crates/dynamodb/src/store/batched/response.rs: ConditionalCheckFailed
    """
    error = send(scratch, update(scratch, fresh(), 'SET "owner" = ?', "", {"S": "third"}))["Responses"][0].get(
        "Error", {}
    )
    code = error.get("Code", "no error")
    return Seen(code == "ConditionalCheckFailed" and "Item" not in error, code)


@check(needs_stack=False)
def set_add_creates_a_missing_set(scratch: Scratch) -> Seen:
    """`set_add` on an attribute that the item does not have creates the set.

    Where:
    crates/dynamodb/src/store/batched/statement.rs: set_add
    """
    key = fresh()
    member = {"SS": ["m-1"]}
    send(scratch, insert(scratch, key))
    found = codes(send(scratch, update(scratch, key, 'SET "failed" = set_add("failed", ?)', "", member)))
    read = scratch.client("dynamodb").get_item(TableName=scratch.table, Key=scratch.key(key), ConsistentRead=True)
    created = read.get("Item", {}).get("failed") == member
    return Seen(created, f"error {found[0]}, the set {'was created' if created else 'was not created'}")


@check(needs_stack=False, only_aws="MiniStack takes one key twice")
def one_key_twice_refuses_the_batch(scratch: Scratch) -> Seen:
    """A batch that names one item twice is refused as a whole, so a batch never has two writes of one key.

    Where:
    crates/dynamodb/src/store/batched/queue.rs: same
    """
    key = fresh()
    code, _ = refusal(
        scratch.client("dynamodb").batch_execute_statement,
        Statements=[insert(scratch, key), update(scratch, key, 'SET "owner" = ?', "", {"S": "x"})],
    )
    return Seen(code == "ValidationException", f"the batch answered {code}")


@check(needs_stack=False)
def batched_writes_take_the_units_of_single_ones(scratch: Scratch) -> Seen:
    """Two small statements of one batch take two units.

    Where:
    docs/costs.md: Units are those of single writes
    """
    answer = send(scratch, insert(scratch, fresh()), insert(scratch, fresh()), ReturnConsumedCapacity="TOTAL")
    units = sum(consumed.get("CapacityUnits", 0) for consumed in answer.get("ConsumedCapacity", []))
    return Seen(units == 2, f"{units:g} units")


@check(needs_stack=False, only_aws="no emulator throttles")
def batched_writes_are_throttled_one_by_one(scratch: Scratch) -> Seen:
    """A throttled statement is an error inside of a success, so the SDK does not repeat it.

    Where:
    crates/dynamodb/src/store/batched/response.rs: hrottl
    """
    name = f"{scratch.name}-slow"
    one = {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1}
    scratch.make_table(name, BillingMode="PROVISIONED", ProvisionedThroughput=one)
    scratch.wait_for_table(name)
    found: list[str] = []
    # Each batch has a thousand units, and the table saves up three hundred.
    for _ in range(4):
        statements = [insert(scratch, fresh(), text="x" * LARGE) for _ in range(5)]
        for statement in statements:
            statement["Statement"] = statement["Statement"].replace(scratch.table, name)
        code, answer = "none", {}
        try:
            answer = send(scratch, *statements)
        except scratch.client("dynamodb").exceptions.ClientError as error:
            code = error.response["Error"]["Code"]
        found += codes(answer) if answer else [f"whole batch: {code}"]
    kinds = sorted(set(found) - {"none"})
    if not kinds:
        raise NotChecked(f"the table took {len(found)} large statements without throttling")
    return Seen(set(kinds) <= THROTTLED, f"errors {kinds} in {len(found)} statements")

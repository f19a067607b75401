"""Single writes and transactions of DynamoDB: the shapes of refused ones, and their cost."""

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.exceptions import ClientError

from verify_aws.check import NotChecked, Seen, check
from verify_aws.scratch import Scratch

Json = dict[str, Any]


def refusal(call: Any, **arguments: Any) -> tuple[str, Json]:
    """The code and the whole answer of a refused request; `none` if it was not refused."""
    try:
        call(**arguments)
    except ClientError as error:
        return str(error.response["Error"]["Code"]), dict(error.response)
    return "none", {}


def refused_with_item(scratch: Scratch, operation: str, **arguments: Any) -> Seen:
    """Writes an item, and then sends a request whose condition that item does not meet."""
    dynamodb = scratch.client("dynamodb")
    item = scratch.key(f"{operation}-{secrets.token_hex(4)}") | {"owner": {"S": "first"}}
    dynamodb.put_item(TableName=scratch.table, Item=item)
    subject = {"Item": item} if operation == "put_item" else {"Key": {"id": item["id"]}}
    code, answer = refusal(
        getattr(dynamodb, operation),
        TableName=scratch.table,
        ConditionExpression="#owner = :second",
        ExpressionAttributeNames={"#owner": "owner"},
        ExpressionAttributeValues={":second": {"S": "second"}} | arguments.pop("values", {}),
        ReturnValuesOnConditionCheckFailure="ALL_OLD",
        **subject,
        **arguments,
    )
    whole = answer.get("Item") == item
    text = f"{code}, {'with the item' if whole else 'without the whole item'}"
    return Seen(code == "ConditionalCheckFailedException" and whole, text)


@check(needs_stack=False)
def refused_update_returns_the_item(scratch: Scratch) -> Seen:
    """A refused UpdateItem returns the item as it is, so that a refused claim needs no read.

    Where:
    crates/dynamodb/src/store/expressions/builder.rs: ReturnValuesOnConditionCheckFailure
    docs/costs.md: 1 `UpdateItem`, condition failed
    """
    values = {":now": {"N": "1"}}
    return refused_with_item(scratch, "update_item", UpdateExpression="SET updated_at = :now", values=values)


@check(needs_stack=False)
def refused_put_returns_the_item(scratch: Scratch) -> Seen:
    """A refused PutItem returns the item as it is.

    Where:
    crates/dynamodb/src/store/expressions/claims.rs: put_over
    """
    return refused_with_item(scratch, "put_item")


@check(needs_stack=False)
def refused_delete_returns_the_item(scratch: Scratch) -> Seen:
    """A refused DeleteItem returns the item as it is, and a conditional one of no item is refused.

    Where:
    crates/dynamodb/src/store/expressions/settlements.rs: fn delete
    """
    seen = refused_with_item(scratch, "delete_item")
    code, answer = refusal(
        scratch.client("dynamodb").delete_item,
        TableName=scratch.table,
        Key=scratch.key("none"),
        ConditionExpression="attribute_exists(id)",
        ReturnValuesOnConditionCheckFailure="ALL_OLD",
    )
    absent = code == "ConditionalCheckFailedException" and "Item" not in answer
    return Seen(seen.holds and absent, f"{seen.text}; of no item: {code}")


@check(needs_stack=False)
def cancelled_transaction_returns_reasons_in_order(scratch: Scratch) -> Seen:
    """A cancelled transaction has one reason for each write, in order, and the item of the one that was refused.

    Where:
    crates/dynamodb/src/store/transaction/mod.rs: cancellation_reasons
    """
    dynamodb = scratch.client("dynamodb")
    item = scratch.key(f"transaction-{secrets.token_hex(4)}") | {"owner": {"S": "first"}}
    dynamodb.put_item(TableName=scratch.table, Item=item)
    new = {"TableName": scratch.table, "Item": scratch.key(f"new-{secrets.token_hex(4)}")}
    again = {
        "TableName": scratch.table,
        "Item": item,
        "ConditionExpression": "attribute_not_exists(id)",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    code, answer = refusal(dynamodb.transact_write_items, TransactItems=[{"Put": new}, {"Put": again}])
    reasons = answer.get("CancellationReasons", [])
    codes = [reason.get("Code") for reason in reasons]
    whole = bool(reasons) and reasons[-1].get("Item") == item
    holds = code == "TransactionCanceledException" and codes == ["None", "ConditionalCheckFailed"] and whole
    return Seen(holds, f"{code}, reasons {codes}, {'with the item' if whole else 'without the item'}")


ROUNDS = 100
CONFLICT = "TransactionConflict"


def together(requests: list[Callable[[], str]]) -> list[str]:
    """The results of requests that are sent at the same time. The tests replace it."""
    with ThreadPoolExecutor(len(requests)) as threads:
        return [running.result() for running in [threads.submit(request) for request in requests]]


@check(needs_stack=False, only_aws="no emulator has conflicts of transactions")
def writes_during_a_transaction_conflict(scratch: Scratch) -> Seen:
    """A write of an item that a transaction is writing is refused: another transaction with the reason
    TransactionConflict, an UpdateItem with TransactionConflictException, a statement of a batch with
    TransactionConflict inside of a success. Provoked by requests at the same time, up to a hundred times.

    Where:
    crates/dynamodb/src/explain.rs: TransactionConflictException
    crates/dynamodb/src/store/transaction/cancellation.rs: TransactionConflict
    crates/dynamodb/src/store/batched/response.rs: TransactionConflict
    """
    dynamodb = scratch.client("dynamodb")
    key = scratch.key(f"conflict-{secrets.token_hex(4)}")
    dynamodb.put_item(TableName=scratch.table, Item=key)
    add = {"UpdateExpression": "ADD total :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
    update = {"TableName": scratch.table, "Key": key} | add
    text = f'UPDATE "{scratch.table}" SET "touched" = ? WHERE "id" = ?'
    statement = {"Statement": text, "Parameters": [{"N": "1"}, key["id"]]}

    def transaction() -> str:
        code, answer = refusal(dynamodb.transact_write_items, TransactItems=[{"Update": update}])
        return f"{code} {answer['CancellationReasons'][0].get('Code')}" if "CancellationReasons" in answer else code

    def single() -> str:
        return refusal(dynamodb.update_item, **update)[0]

    def batched() -> str:
        answer = dynamodb.batch_execute_statement(Statements=[statement])
        return str(answer["Responses"][0].get("Error", {}).get("Code", "none"))

    requests = {"transaction": transaction, "single": single, "batched": batched}
    wanted = {
        "transaction": f"TransactionCanceledException {CONFLICT}",
        "single": f"{CONFLICT}Exception",
        "batched": CONFLICT,
    }
    # Twice as many transactions, since only they make the others conflict.
    names = [*requests, "transaction"]
    seen: dict[str, set[str]] = {name: set() for name in requests}
    for _ in range(ROUNDS):
        for name, code in zip(names, together([requests[name] for name in names]), strict=True):
            seen[name] |= {code} - {"none"}
        if all(seen.values()):
            break
    if missing := [name for name, codes in seen.items() if not codes]:
        raise NotChecked(f"no conflict in {ROUNDS} rounds: {', '.join(missing)}")
    text = "; ".join(f"{name}: {', '.join(sorted(codes))}" for name, codes in seen.items())
    return Seen(all(codes == {wanted[name]} for name, codes in seen.items()), text)


@check(needs_stack=False, only_aws="MiniStack ignores the token of a transaction")
def repeated_transaction_is_applied_once(scratch: Scratch) -> Seen:
    """A transaction that is sent again with its token succeeds and is applied once; other writes under the token are
    refused.

    Where:
    crates/dynamodb/src/store/transaction/mod.rs: client_request_token
    """
    dynamodb = scratch.client("dynamodb")
    key, token = scratch.key(f"token-{secrets.token_hex(4)}"), secrets.token_hex(16)

    def add(number: int) -> list[Json]:
        values = {":n": {"N": str(number)}}
        update = {"UpdateExpression": "ADD total :n", "ExpressionAttributeValues": values}
        return [{"Update": {"TableName": scratch.table, "Key": key} | update}]

    for _ in range(2):
        dynamodb.transact_write_items(TransactItems=add(1), ClientRequestToken=token)
    code, _ = refusal(dynamodb.transact_write_items, TransactItems=add(2), ClientRequestToken=token)
    read = dynamodb.get_item(TableName=scratch.table, Key=key, ConsistentRead=True)
    total = read.get("Item", {}).get("total", {}).get("N")
    holds = total == "1" and code == "IdempotentParameterMismatchException"
    return Seen(holds, f"applied {total} times; other writes: {code}")


@check(needs_stack=False)
def write_units_are_those_of_the_costs(scratch: Scratch) -> Seen:
    """A write of up to 1 KB takes one unit, and one in a transaction two.

    Where:
    docs/costs.md: A transaction costs twice the units
    """
    dynamodb = scratch.client("dynamodb")
    put = {"TableName": scratch.table, "Item": scratch.key(f"units-{secrets.token_hex(4)}")}
    single = dynamodb.put_item(**put, ReturnConsumedCapacity="TOTAL")["ConsumedCapacity"]["CapacityUnits"]
    answer = dynamodb.transact_write_items(TransactItems=[{"Put": put}], ReturnConsumedCapacity="TOTAL")
    double = sum(consumed["CapacityUnits"] for consumed in answer["ConsumedCapacity"])
    return Seen((single, double) == (1, 2), f"{single:g} for a write, {double:g} in a transaction")


@check(needs_stack=False, only_aws="emulators create a table at once")
def new_table_takes_no_ttl_yet(scratch: Scratch) -> Seen:
    """A table that is still being created takes no TTL, so the commands of the page wait for it.

    Where:
    docs/settings.md: wait table-exists
    """
    name = f"{scratch.name}-new"
    scratch.make_table(name)
    ttl = {"Enabled": True, "AttributeName": "expires_at"}
    update = scratch.client("dynamodb").update_time_to_live
    early, _ = refusal(update, TableName=name, TimeToLiveSpecification=ttl)
    scratch.wait_for_table(name)
    late, _ = refusal(update, TableName=name, TimeToLiveSpecification=ttl)
    return Seen(early != "none" and late == "none", f"at once: {early}; once the table is active: {late}")

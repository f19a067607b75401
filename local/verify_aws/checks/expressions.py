"""Every expression and every transaction that this project sends, in the forms that its tests recorded."""

import copy
import json
import secrets
from collections.abc import Callable
from typing import Any

import recorded
from botocore.exceptions import ClientError

from verify_aws.check import NotChecked, Seen, check
from verify_aws.checks.writes import refusal
from verify_aws.scratch import Scratch

Json = dict[str, Any]

# An item that is absent, or not as the condition wants it: the request itself was understood.
UNDERSTOOD = {"none", "ConditionalCheckFailedException", "ConditionalCheckFailed", "DuplicateItem", "None"}


def table_of(scratch: Scratch, key: list[str]) -> str:
    return scratch.table if key == ["id"] else f"{scratch.name}-{'-'.join(key)}"


def make_tables(scratch: Scratch) -> None:
    names = []
    for key in map(list, recorded.SENT):
        if key != ["id"]:
            names.append(table_of(scratch, key))
            scratch.make_table(
                names[-1],
                AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in key],
                KeySchema=[
                    {"AttributeName": name, "KeyType": kind} for name, kind in zip(key, ("HASH", "RANGE"), strict=False)
                ],
            )
    for name in names:
        scratch.wait_for_table(name)


def form(line: str) -> tuple[str, list[str], Json]:
    read = json.loads(line)
    return read["operation"], read["key"], read["request"]


def answered(scratch: Scratch, operation: str, key: list[str], request: Json) -> tuple[set[str], str]:
    """Sends a form on a new item. Returns the codes of the answer, and its message."""
    dynamodb, table = scratch.client("dynamodb"), table_of(scratch, key)
    request = copy.deepcopy(request)
    for item in filter(None, (request.get("Key"), request.get("Item"))):
        item.update({name: {"S": secrets.token_hex(8)} for name in key})
    if operation == "Statement":
        request["Statement"] = request["Statement"].replace('"idempotency"', f'"{table}"', 1)
        try:
            response = dynamodb.batch_execute_statement(Statements=[request])["Responses"][0]
        except ClientError as error:
            return {error.response["Error"]["Code"]}, error.response["Error"].get("Message", "")
        return {response.get("Error", {}).get("Code", "none")}, response.get("Error", {}).get("Message", "")
    if operation.startswith("Transact"):
        write = {operation.removeprefix("Transact"): request | {"TableName": table}}
        code, answer = refusal(dynamodb.transact_write_items, TransactItems=[write])
        reasons = answer.get("CancellationReasons", [])
        codes = {reason.get("Code", "none") for reason in reasons} if reasons else {code}
        return codes, answer.get("Error", {}).get("Message", "")
    methods: dict[str, Callable[..., Any]] = {
        "DeleteItem": dynamodb.delete_item,
        "GetItem": dynamodb.get_item,
        "PutItem": dynamodb.put_item,
        "UpdateItem": dynamodb.update_item,
    }
    code, answer = refusal(methods[operation], TableName=table, **request)
    return {code}, answer.get("Error", {}).get("Message", "")


@check(needs_stack=False)
def expressions_are_understood(scratch: Scratch) -> Seen:
    """DynamoDB understands every expression, statement and transaction that the tests of this project send, in three
    layouts of the table. It refuses redundant parentheses and unused names, which emulators may accept.

    Where:
    crates/dynamodb/src/store/expressions/mod.rs: All condition expressions on records are in this folder
    crates/dynamodb/src/store/batched/statement.rs: PartiQL statements
    """
    make_tables(scratch)
    problems, sent = [], 0
    for line in recorded.FILE.read_text().splitlines():
        operation, key, request = form(line)
        codes, message = answered(scratch, operation, key, request)
        sent += 1
        if codes - UNDERSTOOD:
            problems.append(f"{operation} with the key {'+'.join(key)}: {', '.join(sorted(codes))}: {message[:120]}")
    if not problems and scratch.emulated:
        raise NotChecked(f"MiniStack accepts expressions that DynamoDB refuses; it took all {sent}")
    more = f"; and {len(problems) - 3} more" * (len(problems) > 3)
    return Seen(not problems, "; ".join(problems[:3]) + more if problems else f"{sent} forms, each understood")

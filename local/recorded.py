"""The requests to DynamoDB that the tests recorded, one for each form: local/verify_aws/requests.jsonl has them.

    python local/recorded.py             compares the recording of the last `make test` with the file
    python local/recorded.py --write     adds the new ones to the file

`make verify-aws` sends each to AWS. The tests of `TESTS` record: the conformance of a store in each layout, and the
modes with their transactions.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cloud import ROOT, STATE

Json = dict[str, Any]

FILE = ROOT / "local" / "verify_aws" / "requests.jsonl"
RECORDING = STATE / "requests.txt"
SUITE, TESTS = "wire", ("store_conformance::", "modes::")

# The tables of the tests by their primary keys, and those whose layouts cover all forms: the others only rename.
TABLES = (("PK", "SK"), ("id", "sk"), ("size",), ("pk",), ("id",))
# Tests of the limits of an expression have longer ones.
LONGEST = 4000
SENT = (("id", "sk"), ("size",), ("id",))
KEPT = (
    "ConditionExpression",
    "UpdateExpression",
    "ProjectionExpression",
    "ReturnValuesOnConditionCheckFailure",
    "ReturnValues",
    "ConsistentRead",
)
SAMPLE: Json = {"S": "x", "N": "1", "B": "eA==", "BOOL": True, "NULL": True, "SS": ["x"], "NS": ["1"], "BS": ["eA=="]}


def sample(value: Json) -> Json:
    """A value of the same type."""
    ((kind, content),) = value.items()
    if kind == "L":
        return {"L": [sample(one) for one in content[:1]]}
    if kind == "M":
        return {"M": {name: sample(one) for name, one in sorted(content.items())}}
    return {kind: SAMPLE[kind]}


def of_write(request: Json) -> Json:
    form: Json = {name: request[name] for name in KEPT if name in request}
    for name in ("Key", "Item", "ExpressionAttributeValues"):
        if name in request:
            form[name] = {attribute: sample(value) for attribute, value in sorted(request[name].items())}
    if names := request.get("ExpressionAttributeNames"):
        # An attribute that is named as an idempotency key differs in each test.
        form["ExpressionAttributeNames"] = {p: "a key" if "#" in name else name for p, name in sorted(names.items())}
    return form


def key_of(form: Json) -> tuple[str, ...]:
    """The primary key of the form's table; empty if it has none of them, as a test of refused items."""
    text = form.get("Statement", "")
    attributes = form.get("Key") or form.get("Item") or {}
    for key in TABLES:
        if all(name in attributes or f'"{name}"' in text or f"'{name}'" in text for name in key):
            return key
    return ()


def forms(operation: str, request: Json) -> Iterator[tuple[str, Json, str]]:
    """The forms of a request, with their tables: of each write of a transaction, and of each statement of a batch."""
    match operation:
        case "TransactWriteItems":
            for item in request["TransactItems"]:
                ((kind, write),) = item.items()
                yield f"Transact{kind}", of_write(write), write["TableName"]
        case "BatchExecuteStatement":
            for statement in request["Statements"]:
                parameters = [sample(value) for value in statement.get("Parameters", [])]
                yield "Statement", {"Statement": statement["Statement"], "Parameters": parameters}, ""
        case "UpdateItem" | "PutItem" | "DeleteItem" | "GetItem":
            yield operation, of_write(request), request["TableName"]


def same(operation: str, form: Json) -> str:
    """Requests with one such text differ in their values only."""
    texts = {name: value for name, value in form.items() if name not in ("Item", "Parameters")}
    texts["values"] = sorted(texts.pop("ExpressionAttributeValues", {}))
    return json.dumps([operation, list(key_of(form)), texts], sort_keys=True)


def ours(form: Json, table: str) -> bool:
    """Tells if the library wrote the expressions. The tests have writes of their own, some of them wrong on purpose."""
    text = json.dumps(form)
    return len(text) <= LONGEST and (table in ("idempotency", "") or "sqs_once" in text)


def recorded(recording: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in recording.read_text().splitlines():
        operation, _, body = line.partition(" ")
        for kind, form, table in forms(operation, json.loads(body)):
            if ours(form, table) and (key := key_of(form)) in SENT:
                text = json.dumps({"operation": kind, "key": list(key), "request": form}, separators=(",", ":"))
                found.setdefault(same(kind, form), text)
    return found


def kept() -> dict[str, str]:
    """The lines of the file."""
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    return {same(one["operation"], one["request"]): text for text in lines for one in [json.loads(text)]}


def main(words: list[str]) -> int:
    known, new = kept(), recorded(RECORDING)
    if words == ["--write"]:
        FILE.write_text("".join(text + "\n" for text in sorted((new | known).values())))
        return 0
    missing = [text for form, text in new.items() if form not in known]
    for text in missing[:5]:
        print(text[:300])
    print(f"{len(new)} forms recorded, {len(missing)} of them not in {FILE.relative_to(ROOT)}")
    if missing:
        print("After a look at them: python local/recorded.py --write")
    return int(bool(missing) or not new)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

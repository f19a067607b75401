"""The examples of examples/*.rs for `make dev EXAMPLE=NAME`: a template for each, and what their sample events need."""

import contextlib
import os
from collections.abc import Callable, Iterator

from cloud import ROOT, Json
from deployment import say
from postgres import server
from stack import Function, Stack

STOCK = [
    {"product": {"S": "cup"}, "quantity": {"N": "10"}},
    {"product": {"S": "teapot"}, "quantity": {"N": "2"}},
]

# The example on PostgreSQL, and its tables with what its sample event needs.
ON_POSTGRES = "place_order_postgres"
FILLED = """\
TRUNCATE sqs_once_records, sqs_once_outbox, stock, orders, order_lines;
INSERT INTO stock VALUES ('cup', 10), ('teapot', 2);"""

# By example and environment variable: the partition key of the table, and its items.
TABLES: dict[str, dict[str, tuple[str, list[Json]]]] = {
    "create_user": {"USERS_TABLE_NAME": ("email", [])},
    "add_order_item": {
        "ORDERS_TABLE_NAME": ("orderId", [{"orderId": {"S": "ord-2026-000061"}, "status": {"S": "open"}}]),
    },
    "place_order": {
        "IDEMPOTENCY_TABLE_NAME": ("id", []),
        "ORDERS_TABLE_NAME": ("orderId", []),
        "STOCK_TABLE_NAME": ("product", STOCK),
    },
    "gzip": {"ORDERS_TABLE_NAME": ("orderId", [])},
    "order_events": {"ORDERS_TABLE_NAME": ("orderId", [])},
    "debit_account": {
        "ACCOUNTS_TABLE_NAME": ("accountId", [{"accountId": {"S": "acc-0001"}, "balance": {"N": "10000"}}]),
    },
    ON_POSTGRES: {},
}


def function(example: str) -> Function:
    """The example in a template with its queue and its tables."""
    fifo: Json = {"FifoQueue": True} if example == "order_events" else {}
    failed = {"deadLetterTargetArn": {"Fn::GetAtt": ["DeadLetters", "Arn"]}, "maxReceiveCount": 3}
    tables = {variable: variable.title().replace("_", "") for variable in TABLES[example]}
    consumer = {
        "Environment": {"Variables": {variable: {"Ref": table} for variable, table in tables.items()}},
        "Events": {"Messages": {"Type": "SQS", "Properties": {"Queue": {"Fn::GetAtt": ["Messages", "Arn"]}}}},
    }
    resources = {
        "Consumer": {"Type": "AWS::Serverless::Function", "Properties": consumer},
        "DeadLetters": {"Type": "AWS::SQS::Queue", "Properties": fifo},
        # Some examples leave the pause before a retry to the queue.
        "Messages": {
            "Type": "AWS::SQS::Queue",
            "Properties": {"VisibilityTimeout": 10, "RedrivePolicy": failed, **fifo},
        },
    }
    for variable, (key, _) in TABLES[example].items():
        properties = {
            "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": key, "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        }
        resources[tables[variable]] = {"Type": "AWS::DynamoDB::Table", "Properties": properties}
    return Function({"Resources": resources}, "Consumer")


@contextlib.contextmanager
def filling(example: str) -> Iterator[Callable[[Stack], None]]:
    """Yields a function that fills an example's empty tables. Starts a PostgreSQL server if the example needs it."""
    if example != ON_POSTGRES:
        yield lambda stack: put_items(example, stack)
        return
    with server() as postgres:
        postgres.start()
        postgres.run_sql(sql_of_tables())
        os.environ["DATABASE_URL"] = postgres.url
        say(f"tables at {postgres.url}")
        yield lambda _: postgres.run_sql(FILLED)


def put_items(example: str, stack: Stack) -> None:
    for variable, (_, items) in TABLES[example].items():
        for item in items:
            stack.cloud.client("dynamodb").put_item(TableName=stack.variables[variable], Item=item)


def sql_of_tables() -> str:
    """The migration, and the tables of the PostgreSQL example, from its documentation."""
    lines = (ROOT / f"examples/{ON_POSTGRES}.rs").read_text().splitlines()
    tables = [line.removeprefix("//! ") for line in lines if line.startswith("//! CREATE TABLE")]
    return "\n".join([(ROOT / "crates/postgres/migrations/1_sqs_once.sql").read_text(), *tables])

"""The tables of examples/*.rs, with the items that their sample events need, for `make watch EXAMPLE=NAME`."""

from cloud import ROOT, Cloud

Item = dict[str, dict[str, str]]

STOCK = [
    {"product": {"S": "cup"}, "quantity": {"N": "10"}},
    {"product": {"S": "teapot"}, "quantity": {"N": "2"}},
]

# By example and environment variable: the partition key of the table, and its items.
TABLES: dict[str, dict[str, tuple[str, list[Item]]]] = {
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
}

# The example on PostgreSQL, and the rows that its sample event needs.
ON_POSTGRES = "place_order_postgres"
ROWS = "INSERT INTO stock VALUES ('cup', 10), ('teapot', 2);"


def sql_of_tables() -> str:
    """The migration, the tables of the example on PostgreSQL, from its documentation, and their rows."""
    lines = (ROOT / f"examples/{ON_POSTGRES}.rs").read_text().splitlines()
    tables = [line.removeprefix("//! ") for line in lines if line.startswith("//! CREATE TABLE")]
    migration = (ROOT / "crates/postgres/migrations/1_sqs_once.sql").read_text()
    return "\n".join([migration, *tables, ROWS])


def create_tables(cloud: Cloud, example: str) -> dict[str, str]:
    """Creates the tables that do not exist yet. Returns the name of each table, by its variable."""
    dynamodb = cloud.client("dynamodb")
    names: dict[str, str] = {}
    for variable, (key, items) in TABLES[example].items():
        names[variable] = name = f"{example}-{variable.removesuffix('_TABLE_NAME').lower()}"
        try:
            dynamodb.create_table(
                TableName=name,
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
                KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
                BillingMode="PAY_PER_REQUEST",
            )
        except dynamodb.exceptions.ResourceInUseException:
            continue
        dynamodb.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
        for item in items:
            dynamodb.put_item(TableName=name, Item=item)
    return names

"""Sends orders to SQS once: a producer for a consumer with IDEMPOTENCY_KEY=attribute:idempotencyKey.

The producer stores a message with its key in its own database before it sends the message. After a crash or a lost
response, it sends the message again with the same key, so that the consumer recognizes a duplicate.

    QUEUE_URL=https://sqs... python examples/send_order.py o-1 9999
"""

import json
import os
import secrets
import sqlite3
import sys
import time
import uuid

import boto3


def uuid7() -> str:
    """UUID that begins with its time (RFC 9562), so that keys sort by age. From Python 3.14 on, `uuid.uuid7`."""
    bits = time.time_ns() // 1_000_000 << 80 | secrets.randbits(80)
    bits = bits & ~(0xF << 76 | 0x3 << 62) | 0x7 << 76 | 0x2 << 62  # version and variant
    return str(uuid.UUID(int=bits))


def place(db: sqlite3.Connection, order_id: str, cents: int) -> None:
    """Stores the order and its message in one transaction. Does nothing if the order is already stored."""
    body = json.dumps({"orderId": order_id, "amountCents": cents, "currency": "EUR"})
    with db:
        if db.execute("INSERT OR IGNORE INTO orders VALUES (?, ?)", (order_id, cents)).rowcount:
            db.execute("INSERT INTO outbox VALUES (?, ?, ?)", (uuid7(), order_id, body))


def send_pending(db: sqlite3.Connection, queue_url: str) -> None:
    """Sends each stored message, oldest first, and deletes it after SQS has confirmed it."""
    sqs = boto3.client("sqs")
    for key, order_id, body in db.execute("SELECT key, order_id, body FROM outbox ORDER BY key").fetchall():
        fifo = {"MessageGroupId": order_id, "MessageDeduplicationId": key} if queue_url.endswith(".fifo") else {}
        sqs.send_message(
            QueueUrl=queue_url,
            MessageBody=body,
            MessageAttributes={"idempotencyKey": {"DataType": "String", "StringValue": key}},
            **fifo,
        )
        with db:
            db.execute("DELETE FROM outbox WHERE key = ?", (key,))


if __name__ == "__main__":
    database = sqlite3.connect(os.environ.get("ORDERS_DATABASE", "orders.sqlite"))
    database.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, cents INTEGER)")
    database.execute("CREATE TABLE IF NOT EXISTS outbox (key TEXT PRIMARY KEY, order_id TEXT, body TEXT)")
    place(database, sys.argv[1], int(sys.argv[2]))
    send_pending(database, os.environ["QUEUE_URL"])

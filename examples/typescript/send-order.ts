/**
 * Sends orders to SQS once: a producer for a consumer with IDEMPOTENCY_KEY=attribute:idempotencyKey.
 *
 * The key of a message is stored with the message, in the producer's own database, before the message is sent. After a
 * crash or a lost answer the message is sent again with the same key, so that the consumer recognizes a duplicate.
 */
import { SendMessageCommand, type SQSClient } from "@aws-sdk/client-sqs";
import { v7 as uuidv7 } from "uuid";

/** PostgreSQL, as the `Client` of node-postgres. */
export interface Database {
  query(sql: string, values?: unknown[]): Promise<{ rows: Record<string, string>[] }>;
}

/** Stores the order and its message in one statement. Does nothing for an order that is stored. */
export async function place(db: Database, orderId: string, cents: number): Promise<void> {
  const body = JSON.stringify({ orderId, amountCents: cents, currency: "EUR" });
  await db.query(
    `WITH placed AS (INSERT INTO orders (id, cents) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING id)
     INSERT INTO outbox (key, order_id, body) SELECT $3, id, $4 FROM placed`,
    [orderId, cents, uuidv7(), body], // a UUIDv7 begins with its time, so that keys sort by age
  );
}

/** Sends each stored message, oldest first, and deletes it after SQS has confirmed it. */
export async function sendPending(db: Database, sqs: SQSClient, queueUrl: string): Promise<void> {
  const { rows } = await db.query("SELECT key, order_id, body FROM outbox ORDER BY key");
  for (const { key, order_id, body } of rows) {
    const fifo = queueUrl.endsWith(".fifo") ? { MessageGroupId: order_id, MessageDeduplicationId: key } : {};
    const attributes = { idempotencyKey: { DataType: "String", StringValue: key } };
    await sqs.send(
      new SendMessageCommand({ QueueUrl: queueUrl, MessageBody: body, MessageAttributes: attributes, ...fifo }),
    );
    await db.query("DELETE FROM outbox WHERE key = $1", [key]);
  }
}

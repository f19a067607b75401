// A Lambda function on Powertools for AWS Lambda (TypeScript), as its documentation has it for SQS
// batches. `make bench` measures it. It speaks the Lambda Runtime API itself, over one connection.

import http from 'node:http';
import { BatchProcessor, EventType, processPartialResponse } from '@aws-lambda-powertools/batch';
import { IdempotencyConfig, makeIdempotent } from '@aws-lambda-powertools/idempotency';
import { DynamoDBPersistenceLayer } from '@aws-lambda-powertools/idempotency/dynamodb';

const processor = new BatchProcessor(EventType.SQS);
const persistenceStore = new DynamoDBPersistenceLayer({ tableName: process.env.IDEMPOTENCY_TABLE });
const config = new IdempotencyConfig({ eventKeyJmesPath: 'messageId' });
const handle = makeIdempotent(
  async (record) => ({ id: `sandbox:payments#${record.messageId}`, status: 'succeeded' }),
  { persistenceStore, config },
);

const [host, port] = process.env.AWS_LAMBDA_RUNTIME_API.split(':');
const agent = new http.Agent({ keepAlive: true });

const call = (method, path, body) =>
  new Promise((resolve, reject) => {
    const url = `/2018-06-01/runtime/invocation/${path}`;
    const request = http.request({ agent, host, port, method, path: url }, async (response) => {
      const chunks = [];
      for await (const chunk of response) chunks.push(chunk);
      resolve({ headers: response.headers, body: Buffer.concat(chunks).toString() });
    });
    request.on('error', reject).end(body);
  });

for (;;) {
  const { headers, body } = await call('GET', 'next');
  const deadline = Number(headers['lambda-runtime-deadline-ms']);
  const context = { getRemainingTimeInMillis: () => deadline - Date.now() };
  config.registerLambdaContext(context);
  const response = await processPartialResponse(JSON.parse(body), handle, processor, { context });
  await call('POST', `${headers['lambda-runtime-aws-request-id']}/response`, JSON.stringify(response));
}

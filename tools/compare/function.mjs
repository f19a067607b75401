// A Lambda function on Powertools for AWS Lambda (TypeScript), as its documentation has it for SQS
// batches. compare.py runs it as it runs function.py, which says what is read and printed.

import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import {
  BatchProcessor,
  EventType,
  FullBatchFailureError,
  processPartialResponse,
} from '@aws-lambda-powertools/batch';
import { IdempotencyConfig, makeIdempotent } from '@aws-lambda-powertools/idempotency';
import { DynamoDBPersistenceLayer } from '@aws-lambda-powertools/idempotency/dynamodb';

const settings = JSON.parse(process.argv[2]);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const hear = async () => {
  const { value, done } = await lines.next();
  return done ? undefined : JSON.parse(value);
};
const tell = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);

const processor = new BatchProcessor(EventType.SQS);
const persistenceStore = new DynamoDBPersistenceLayer({
  tableName: process.env.IDEMPOTENCY_TABLE,
  ...(settings.short_timeout && {
    clientConfig: { requestHandler: { requestTimeout: 1000, throwOnRequestTimeout: true } },
  }),
});
const config = new IdempotencyConfig({
  eventKeyJmesPath: settings.key,
  throwOnNoIdempotencyKey: settings.key_required,
  ...(settings.validation && { payloadValidationJmesPath: settings.validation }),
});

// Records are handled in parallel; what their handlers are told comes in the order they asked.
const handle = makeIdempotent(
  async (record) => {
    tell({ handle: record.messageId });
    const does = await hear();
    if ('body' in does) record.body = does.body;
    if ('raise' in does) throw new Error(does.raise);
    return does.return;
  },
  { persistenceStore, config },
);

let outputs;
let errors;

// Only notes what the idempotent function answers.
const recordHandler = async (record) => {
  try {
    outputs[record.messageId] = await handle(record);
  } catch (error) {
    errors[record.messageId] = error.name;
    throw error;
  }
};

const version = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`, 'utf8')).version;
tell({ library: 'Powertools TypeScript', version: version('@aws-lambda-powertools/idempotency') });
for (let invocation = await hear(); invocation !== undefined; invocation = await hear()) {
  const { event, remaining_ms } = invocation;
  [outputs, errors] = [{}, {}];
  const context = { getRemainingTimeInMillis: () => remaining_ms };
  if (settings.lambda_context) config.registerLambdaContext(context);
  let failed;
  try {
    const response = await processPartialResponse(event, recordHandler, processor, {
      context,
      ...(settings.in_turn && { processInParallel: false }),
    });
    failed = response.batchItemFailures.map((failure) => failure.itemIdentifier);
  } catch (error) {
    if (!(error instanceof FullBatchFailureError)) throw error; // else all of them
    failed = event.Records.map((record) => record.messageId);
  }
  tell({ failed, outputs, errors });
}
process.exit(0);

/**
 * The consumer with AWS CDK: queue, dead-letter queue, idempotency table, function and two alarms. The settings and
 * permissions are those of template.yaml.
 *
 *     make dist                                                       # builds the function's zip
 *     cd examples/typescript && npm ci && npx cdk deploy
 */
import { App, Aws, Duration, RemovalPolicy, Stack, type StackProps, aws_cloudwatch as cloudwatch } from "aws-cdk-lib";
import { aws_dynamodb as dynamodb, aws_iam as iam, aws_lambda as lambda, aws_logs as logs, aws_sqs as sqs } from "aws-cdk-lib";
import type { Construct } from "constructs";

interface ConsumerProps extends StackProps {
  /** The zip with the file `bootstrap`, as `make dist` writes it. */
  readonly zip: string;
  /** Settings of the consumer beside the table's name. */
  readonly environment: Record<string, string>;
}

class ConsumerStack extends Stack {
  constructor(scope: Construct, id: string, props: ConsumerProps) {
    super(scope, id, props);
    const timeout = Duration.seconds(30);

    const deadLetters = new sqs.Queue(this, "OrdersDeadLetterQueue", {
      retentionPeriod: Duration.days(14),
      encryption: sqs.QueueEncryption.SQS_MANAGED,
      enforceSSL: true,
      removalPolicy: RemovalPolicy.RETAIN, // its messages are nowhere else
    });
    const queue = new sqs.Queue(this, "OrdersQueue", {
      visibilityTimeout: Duration.seconds(360), // at least six times the timeout; for one above 60 s, see template.yaml
      retentionPeriod: Duration.days(4),
      encryption: sqs.QueueEncryption.SQS_MANAGED,
      enforceSSL: true,
      deadLetterQueue: { queue: deadLetters, maxReceiveCount: 130 }, // an outage of 12 hours uses up less
    });

    // Without these records, every message still in flight would run a second time.
    const table = new dynamodb.Table(this, "IdempotencyTable", {
      partitionKey: { name: "id", type: dynamodb.AttributeType.STRING },
      billingMode: dynamodb.BillingMode.PAY_PER_REQUEST,
      timeToLiveAttribute: "expires_at",
      encryption: dynamodb.TableEncryption.AWS_MANAGED,
      pointInTimeRecoverySpecification: { pointInTimeRecoveryEnabled: true },
      deletionProtection: true,
      removalPolicy: RemovalPolicy.RETAIN,
    });

    const logGroup = new logs.LogGroup(this, "ConsumerLogGroup", { retention: logs.RetentionDays.ONE_MONTH });
    const allow = (actions: string[], resource: string) =>
      new iam.PolicyStatement({ actions, resources: [resource] });
    const role = new iam.Role(this, "ConsumerRole", {
      assumedBy: new iam.ServicePrincipal("lambda.amazonaws.com"),
      inlinePolicies: {
        "process-once": new iam.PolicyDocument({
          statements: [
            allow(["dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem", "dynamodb:GetItem"], table.tableArn),
            allow(["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"], queue.queueArn), // event source
            allow(["sqs:GetQueueUrl", "sqs:ChangeMessageVisibility"], queue.queueArn), // back-off of failed messages
            allow(["sqs:GetQueueUrl", "sqs:SendMessage"], deadLetters.queueArn), // permanent failures
            allow(["logs:CreateLogStream", "logs:PutLogEvents"], logGroup.logGroupArn),
          ],
        }),
      },
    });

    // CDK would add an AWS-managed policy to a role of its own, and wider permissions with `grant` methods.
    const consumer = new lambda.Function(this, "Consumer", {
      functionName: `${Aws.STACK_NAME}-consumer`, // prefixes every idempotency key: a replacement keeps it
      runtime: lambda.Runtime.PROVIDED_AL2023,
      architecture: lambda.Architecture.ARM_64,
      handler: "bootstrap",
      code: lambda.Code.fromAsset(props.zip),
      memorySize: 256,
      timeout,
      role: role.withoutPolicyUpdates(),
      logGroup,
      loggingFormat: lambda.LoggingFormat.JSON,
      applicationLogLevelV2: lambda.ApplicationLogLevel.INFO,
      systemLogLevelV2: lambda.SystemLogLevel.INFO,
      environment: { IDEMPOTENCY_TABLE_NAME: table.tableName, ...props.environment },
    });
    new lambda.EventSourceMapping(this, "OrdersEventSource", {
      target: consumer,
      eventSourceArn: queue.queueArn,
      batchSize: 10,
      maxBatchingWindow: Duration.seconds(0),
      maxConcurrency: 10,
      reportBatchItemFailures: true, // without it, Lambda deletes failed messages too
    });

    new cloudwatch.Alarm(this, "DeadLettersArriving", {
      alarmDescription: "An order moved to the dead-letter queue",
      metric: deadLetters.metricApproximateNumberOfMessagesVisible({ period: Duration.minutes(1), statistic: "Maximum" }),
      threshold: 0,
      comparisonOperator: cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
      evaluationPeriods: 1,
      treatMissingData: cloudwatch.TreatMissingData.NOT_BREACHING,
    });
    new cloudwatch.Alarm(this, "OldestMessageTooOld", {
      alarmDescription: "An order waits for more than 5 minutes",
      metric: queue.metricApproximateAgeOfOldestMessage({ period: Duration.minutes(1), statistic: "Maximum" }),
      threshold: 300,
      comparisonOperator: cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
      evaluationPeriods: 1,
      treatMissingData: cloudwatch.TreatMissingData.NOT_BREACHING,
    });
  }
}

const app = new App();
new ConsumerStack(app, "orders", {
  zip: process.env.BOOTSTRAP_ZIP ?? "../../target/dist/consumer-arm64.zip",
  environment: {
    IDEMPOTENCY_KEY: "body:/orderId",
    PAYMENT_GATEWAY_URL: "sandbox", // of the shipped sample; charges nothing
  },
});
app.synth();

/**
 * The consumer with AWS CDK: queue, dead-letter queue, idempotency table, function and alarms. The settings and
 * permissions are those of template.yaml.
 *
 *     make dist                                                       # builds the function's zip
 *     cd examples/typescript && npm ci && npx cdk deploy
 */
import { App, Aws, CfnOutput, Duration, RemovalPolicy, Stack, type StackProps } from "aws-cdk-lib";
import { aws_cloudwatch as cloudwatch } from "aws-cdk-lib";
import { aws_cloudwatch_actions as actions, aws_sns as sns } from "aws-cdk-lib";
import { aws_dynamodb as dynamodb, aws_iam as iam, aws_lambda as lambda, aws_logs as logs, aws_sqs as sqs } from "aws-cdk-lib";
import type { Construct } from "constructs";

interface ConsumerProps extends StackProps {
  /** The zip with the file `bootstrap`, as `make dist` writes it. */
  readonly zip: string;
  /** Settings of the consumer beside the table's name. */
  readonly environment: Record<string, string>;
  /** SNS topic that the alarms notify; without one, nobody is told. */
  readonly alarmTopicArn?: string;
}

class ConsumerStack extends Stack {
  constructor(scope: Construct, id: string, props: ConsumerProps) {
    super(scope, id, props);
    const timeout = Duration.seconds(30);

    // Named, so that the dead-letter queue can name it as its only source before it exists.
    const queueName = `${Aws.STACK_NAME}-orders`;
    const source = this.formatArn({ service: "sqs", resource: queueName });
    const deadLetters = new sqs.Queue(this, "OrdersDeadLetterQueue", {
      retentionPeriod: Duration.days(14),
      encryption: sqs.QueueEncryption.SQS_MANAGED,
      enforceSSL: true,
      removalPolicy: RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE, // its messages are nowhere else
      redriveAllowPolicy: {
        redrivePermission: sqs.RedrivePermission.BY_QUEUE,
        sourceQueues: [sqs.Queue.fromQueueArn(this, "OrdersSource", source)],
      },
    });
    const queue = new sqs.Queue(this, "OrdersQueue", {
      queueName,
      visibilityTimeout: Duration.seconds(420), // six timeouts and a batching window of 60 s; for more, see template.yaml
      retentionPeriod: Duration.days(4),
      encryption: sqs.QueueEncryption.SQS_MANAGED,
      enforceSSL: true,
      deadLetterQueue: { queue: deadLetters, maxReceiveCount: 130 }, // an outage of 12 hours uses up less
      removalPolicy: RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE, // also if it is replaced, as by a change of `fifo`
    });
    for (const kept of [queue, deadLetters]) {
      kept.addToResourcePolicy(
        new iam.PolicyStatement({
          effect: iam.Effect.DENY,
          principals: [new iam.AnyPrincipal()],
          actions: ["sqs:PurgeQueue"],
          resources: [kept.queueArn],
        }),
      );
      (kept.node.findChild("Policy") as sqs.QueuePolicy).applyRemovalPolicy(RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE);
    }

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

    const logGroup = new logs.LogGroup(this, "ConsumerLogGroup", {
      retention: logs.RetentionDays.ONE_MONTH,
      removalPolicy: RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
    });
    const allow = (actions: string[], resource: string) =>
      new iam.PolicyStatement({ actions, resources: [resource] });
    const role = new iam.Role(this, "ConsumerRole", {
      assumedBy: new iam.ServicePrincipal("lambda.amazonaws.com"),
      inlinePolicies: {
        "process-once": new iam.PolicyDocument({
          statements: [
            allow(["dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:GetItem"], table.tableArn),
            allow(["dynamodb:PartiQLInsert", "dynamodb:PartiQLUpdate"], table.tableArn), // the same writes in batches
            allow(["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"], queue.queueArn), // event source
            allow(["sqs:GetQueueUrl", "sqs:ChangeMessageVisibility"], queue.queueArn), // backoff of failed messages
            allow(["sqs:GetQueueUrl", "sqs:SendMessage"], deadLetters.queueArn), // permanent failures
            allow(["logs:CreateLogStream", "logs:PutLogEvents"], logGroup.logGroupArn),
          ],
        }),
      },
    });

    // CDK would add an AWS-managed policy to a role of its own, and wider permissions with `grant` methods.
    const consumer = new lambda.Function(this, "Consumer", {
      functionName: `${Aws.STACK_NAME}-consumer`,
      runtime: lambda.Runtime.PROVIDED_AL2023,
      architecture: lambda.Architecture.ARM_64, // that of the zip: with another one the function never starts
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
    const mapping = new lambda.EventSourceMapping(this, "OrdersEventSource", {
      target: consumer,
      eventSourceArn: queue.queueArn,
      batchSize: 10,
      maxBatchingWindow: Duration.seconds(0),
      maxConcurrency: 10,
      reportBatchItemFailures: true, // without it, Lambda deletes failed messages too
    });

    const topic = props.alarmTopicArn && sns.Topic.fromTopicArn(this, "AlarmTopic", props.alarmTopicArn);
    const alarm = (name: string, metric: cloudwatch.Metric, more: Partial<cloudwatch.AlarmProps>) => {
      const made = new cloudwatch.Alarm(this, name, {
        metric,
        threshold: 0,
        comparisonOperator: cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
        evaluationPeriods: 1,
        treatMissingData: cloudwatch.TreatMissingData.NOT_BREACHING,
        ...more,
      });
      if (topic) {
        made.addAlarmAction(new actions.SnsAction(topic));
        // One event, such as a crash, begins an alarm on the sum of one minute. Its end says nothing: nothing is repaired.
        const ofEvent = metric.statistic === "Sum" && (more.evaluationPeriods ?? 1) === 1;
        if (!ofEvent) made.addOkAction(new actions.SnsAction(topic));
      }
    };
    // docs/runbook.md reads these, by the names of the template's outputs.
    const outputs = {
      QueueUrl: queue.queueUrl,
      QueueArn: queue.queueArn,
      DeadLetterQueueUrl: deadLetters.queueUrl,
      DeadLetterQueueArn: deadLetters.queueArn,
      TableName: table.tableName,
      FunctionName: consumer.functionName,
      EventSourceMappingId: mapping.eventSourceMappingId,
      LogGroupName: logGroup.logGroupName,
      AlarmTopicArn: props.alarmTopicArn ?? "NONE - set ALARM_TOPIC_ARN",
    };
    for (const [name, value] of Object.entries(outputs)) new CfnOutput(this, name, { value });
    const period = Duration.minutes(1);
    alarm("DeadLettersArriving", deadLetters.metricApproximateNumberOfMessagesVisible({ period, statistic: "Maximum" }), {
      alarmDescription: "Messages are in the dead-letter queue",
      treatMissingData: cloudwatch.TreatMissingData.IGNORE, // SQS reports nothing for a queue that rested for six hours
    });
    alarm("OldestMessageTooOld", queue.metricApproximateAgeOfOldestMessage({ period, statistic: "Maximum" }), {
      threshold: 300,
      alarmDescription: "Backlog or paused consumer: an order waits for more than 5 minutes",
    });
    alarm("FunctionErrors", consumer.metricErrors({ period }), {
      alarmDescription: "An invocation crashed, timed out, or found DynamoDB unavailable for its whole batch",
    });

    // The consumer's own metrics, with the minutes that begin an alarm, of how many. They are those of template.yaml. In an
    // outage of the downstream system, only OldestMessageAge grows: SQS's own age leaves out messages received three times.
    const own: Record<string, { threshold?: number; statistic?: string; minutes?: [number, number] }> = {
      CompletionsUnrecorded: {},
      DeadLettersNotSent: { minutes: [1, 20] },
      DuplicatesOfOtherQueue: {},
      LeasesLost: {},
      OldestMessageAge: { threshold: 300, statistic: "Maximum", minutes: [1, 20] },
      StoreUnavailable: { minutes: [3, 5] },
    };
    for (const [metricName, { threshold = 0, statistic = "Sum", minutes = [1, 1] }] of Object.entries(own)) {
      const dimensionsMap = { service: consumer.functionName };
      alarm(metricName, new cloudwatch.Metric({ namespace: "sqs-once", metricName, dimensionsMap, period, statistic }), {
        alarmDescription: `Metric ${metricName} of the consumer: docs/runbook.md`,
        threshold,
        datapointsToAlarm: minutes[0],
        evaluationPeriods: minutes[1],
      });
    }
  }
}

const app = new App();
new ConsumerStack(app, "orders", {
  alarmTopicArn: process.env.ALARM_TOPIC_ARN,
  zip: process.env.BOOTSTRAP_ZIP ?? "../../target/dist/consumer-arm64.zip",
  environment: {
    IDEMPOTENCY_NAMESPACE: "payments", // first part of every key: it never changes
    IDEMPOTENCY_KEY: "body:/orderId",
    PAYMENT_GATEWAY_URL: "sandbox", // of the shipped sample; charges nothing
  },
});
app.synth();

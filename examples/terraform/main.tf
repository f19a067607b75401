# The consumer with Terraform: queue, dead-letter queue, idempotency table, function and alarms. Values and permissions are
# those of template.yaml, and so are the names of the outputs, which docs/runbook.md reads. It leaves out overlays, a KMS key, an
# existing table, services as producers, and the gateway's API key (docs/settings.md).
#
#     make dist      # builds the function's zip
#     cd examples/terraform && terraform init && terraform apply -var payment_gateway_url=sandbox      # for a first try
#
# docs/deploying.md says how to keep the variables.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = { source = "hashicorp/aws", version = ">= 5.100, < 7.0" }
  }
}

variable "name" {
  description = "First part of the names of all resources"
  type        = string
  default     = "orders"
}

variable "architecture" {
  description = "Processor of the function, arm64 or x86_64. Must be that of the zip, or the function never starts"
  type        = string
  default     = "arm64"
}

variable "zip" {
  description = "The zip with the file `bootstrap`, as cargo-lambda writes it; empty for that of `make dist`"
  type        = string
  default     = ""
}

variable "payment_gateway_url" {
  description = "Payment gateway of the shipped sample; \"sandbox\" charges nothing"
  type        = string
}

variable "function_timeout" {
  description = "Timeout of the function in seconds: 10, 30, 60, 120, 300 or 900. Other values follow from it"
  type        = number
  default     = 30
}

variable "alarm_email" {
  description = "Email address that the alarms notify, once its owner has clicked the link in the email from AWS; empty for nobody"
  type        = string
  default     = ""
}

locals {
  # The values for each function timeout, in seconds (`long_duration` in milliseconds). template.yaml explains them.
  of_timeout = {
    "10"  = { visibility_timeout = 420, max_receive_count = 130, backoff_cap = "15m", long_duration = 8000 }
    "30"  = { visibility_timeout = 420, max_receive_count = 130, backoff_cap = "15m", long_duration = 24000 }
    "60"  = { visibility_timeout = 420, max_receive_count = 130, backoff_cap = "15m", long_duration = 48000 }
    "120" = { visibility_timeout = 780, max_receive_count = 130, backoff_cap = "15m", long_duration = 96000 }
    "300" = { visibility_timeout = 1860, max_receive_count = 130, backoff_cap = "15m", long_duration = 240000 }
    "900" = { visibility_timeout = 5460, max_receive_count = 47, backoff_cap = "40m", long_duration = 720000 }
  }
  follows = local.of_timeout[tostring(var.function_timeout)]
  zip     = var.zip == "" ? "${path.module}/../../target/dist/consumer-${var.architecture}.zip" : var.zip
}

# ---- queues and table: their messages and records are nowhere else, so Terraform refuses to delete them ----

resource "aws_sqs_queue" "orders" {
  name                       = "${var.name}-orders"
  visibility_timeout_seconds = local.follows.visibility_timeout
  message_retention_seconds  = 345600 # 4 days
  sqs_managed_sse_enabled    = true
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letters.arn
    maxReceiveCount     = local.follows.max_receive_count
  })

  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_sqs_queue" "dead_letters" {
  name                      = "${var.name}-dead-letters"
  message_retention_seconds = 1209600 # 14 days, the longest that SQS takes
  sqs_managed_sse_enabled   = true

  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_sqs_queue_redrive_allow_policy" "dead_letters" {
  queue_url            = aws_sqs_queue.dead_letters.url
  redrive_allow_policy = jsonencode({ redrivePermission = "byQueue", sourceQueueArns = [aws_sqs_queue.orders.arn] })
}

data "aws_iam_policy_document" "queue" {
  for_each = { orders = aws_sqs_queue.orders.arn, dead_letters = aws_sqs_queue.dead_letters.arn }

  statement {
    sid       = "NoPurge"
    effect    = "Deny"
    actions   = ["sqs:PurgeQueue"]
    resources = [each.value]
    principals {
      type        = "*"
      identifiers = ["*"]
    }
  }

  statement {
    sid       = "TlsOnly"
    effect    = "Deny"
    actions   = ["sqs:*"]
    resources = [each.value]
    principals {
      type        = "*"
      identifiers = ["*"]
    }
    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

resource "aws_sqs_queue_policy" "orders" {
  queue_url = aws_sqs_queue.orders.url
  policy    = data.aws_iam_policy_document.queue["orders"].json
}

resource "aws_sqs_queue_policy" "dead_letters" {
  queue_url = aws_sqs_queue.dead_letters.url
  policy    = data.aws_iam_policy_document.queue["dead_letters"].json
}

# Without these records, every message still in flight would run a second time.
resource "aws_dynamodb_table" "idempotency" {
  #checkov:skip=CKV_AWS_119:A KMS key is left out; AWS's own encrypts the table
  name                        = "${var.name}-idempotency"
  billing_mode                = "PAY_PER_REQUEST"
  deletion_protection_enabled = true
  hash_key                    = "id"

  attribute {
    name = "id"
    type = "S"
  }
  ttl {
    attribute_name = "expires_at"
    enabled        = true
  }
  server_side_encryption {
    enabled = true
  }
  point_in_time_recovery {
    enabled = true
  }

  lifecycle {
    prevent_destroy = true
  }
}

# ---- the function ----

resource "aws_cloudwatch_log_group" "consumer" {
  #checkov:skip=CKV_AWS_158:A KMS key is left out
  #checkov:skip=CKV_AWS_338:The retention of template.yaml
  name              = "${var.name}-consumer"
  retention_in_days = 30
  skip_destroy      = true
}

data "aws_iam_policy_document" "assumed_by_lambda" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["lambda.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "consumer" {
  statement {
    sid = "Records"
    actions = [
      "dynamodb:PutItem",
      "dynamodb:UpdateItem",
      "dynamodb:GetItem",       # opens the connection at start
      "dynamodb:PartiQLInsert", # the same writes in batches
      "dynamodb:PartiQLUpdate",
    ]
    resources = [aws_dynamodb_table.idempotency.arn]
  }

  statement {
    sid = "Queue"
    actions = [
      "sqs:ReceiveMessage",
      "sqs:DeleteMessage",
      "sqs:GetQueueAttributes",
      "sqs:GetQueueUrl",
      "sqs:ChangeMessageVisibility",
    ]
    resources = [aws_sqs_queue.orders.arn]
  }

  statement {
    sid       = "DeadLetters"
    actions   = ["sqs:GetQueueUrl", "sqs:SendMessage"]
    resources = [aws_sqs_queue.dead_letters.arn]
  }

  statement {
    sid       = "Logs"
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents"]
    resources = ["${aws_cloudwatch_log_group.consumer.arn}:*"]
  }
}

resource "aws_iam_role" "consumer" {
  name               = "${var.name}-consumer"
  assume_role_policy = data.aws_iam_policy_document.assumed_by_lambda.json
}

resource "aws_iam_role_policy" "consumer" {
  name   = "charge-orders-once"
  role   = aws_iam_role.consumer.id
  policy = data.aws_iam_policy_document.consumer.json
}

resource "aws_lambda_function" "consumer" {
  #checkov:skip=CKV_AWS_50:docs/telemetry.md describes traces
  #checkov:skip=CKV_AWS_115:The event source mapping limits concurrency
  #checkov:skip=CKV_AWS_116:The queue has the dead-letter queue
  #checkov:skip=CKV_AWS_117:DynamoDB and SQS need no VPC
  #checkov:skip=CKV_AWS_173:A KMS key is left out; Lambda's own encrypts the variables
  #checkov:skip=CKV_AWS_272:Code signing needs a profile of your own
  function_name    = "${var.name}-consumer"
  description      = "Charges each order once"
  filename         = local.zip
  source_code_hash = filebase64sha256(local.zip)
  runtime          = "provided.al2023"
  handler          = "bootstrap"
  architectures    = [var.architecture]
  memory_size      = 256
  timeout          = var.function_timeout
  role             = aws_iam_role.consumer.arn

  logging_config {
    log_format            = "JSON"
    application_log_level = "INFO" # metrics are in lines at INFO
    system_log_level      = "INFO"
    log_group             = aws_cloudwatch_log_group.consumer.name
  }

  environment {
    variables = { # more settings: docs/settings.md
      IDEMPOTENCY_TABLE_NAME = aws_dynamodb_table.idempotency.name
      IDEMPOTENCY_NAMESPACE  = "payments" # first part of every key: it never changes
      IDEMPOTENCY_KEY        = "body:/orderId"
      CONSUMER_ENVELOPE      = "none" # "auto" unwraps messages from SNS, EventBridge and S3
      CONSUMER_BACKOFF_CAP   = local.follows.backoff_cap
      PAYMENT_GATEWAY_URL    = var.payment_gateway_url
    }
  }

  depends_on = [aws_iam_role_policy.consumer]
}

resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.consumer.function_name
  batch_size              = 10
  function_response_types = ["ReportBatchItemFailures"] # without it, Lambda deletes failed messages too

  scaling_config {
    maximum_concurrency = 10
  }
}

# ---- alarms: docs/runbook.md says what each means and what to do ----

resource "aws_sns_topic" "alarms" {
  #checkov:skip=CKV_AWS_26:CloudWatch can't use SNS's key, and alarms get lost if a key of yours denies it
  name = "${var.name}-alarms"
}

resource "aws_sns_topic_subscription" "email" {
  count     = var.alarm_email == "" ? 0 : 1
  topic_arn = aws_sns_topic.alarms.arn
  protocol  = "email"
  endpoint  = var.alarm_email
}

locals {
  subjects = {
    queue        = { namespace = "AWS/SQS", dimensions = { QueueName = aws_sqs_queue.orders.name } }
    dead_letters = { namespace = "AWS/SQS", dimensions = { QueueName = aws_sqs_queue.dead_letters.name } }
    function     = { namespace = "AWS/Lambda", dimensions = { FunctionName = aws_lambda_function.consumer.function_name } }
    consumer     = { namespace = "sqs-once", dimensions = { service = aws_lambda_function.consumer.function_name } }
  }
  # An alarm begins when `breaching` of `minutes` are above the threshold. Without `all_clear`, nobody is notified when it ends:
  # it is about a single event, such as a crash, and its end a minute later repairs nothing.
  alarms = {
    # SQS reports nothing for an idle queue, so without data the alarm keeps its state.
    DeadLettersArriving = {
      text    = "Messages are in the dead-letter queue"
      of      = "dead_letters", metric = "ApproximateNumberOfMessagesVisible", statistic = "Maximum", threshold = 0
      minutes = 1, breaching = 1, without_data = "ignore", all_clear = true
    }
    DeadLettersNotSent = {
      text    = "A permanent failure couldn't be sent to the dead-letter queue"
      of      = "consumer", metric = "DeadLettersNotSent", statistic = "Sum", threshold = 0
      minutes = 20, breaching = 1, without_data = "notBreaching", all_clear = true
    }
    OldestMessageTooOld = {
      text    = "Backlog or paused consumer - a message waits for over 5 minutes"
      of      = "queue", metric = "ApproximateAgeOfOldestMessage", statistic = "Maximum", threshold = 300
      minutes = 1, breaching = 1, without_data = "notBreaching", all_clear = true
    }
    FunctionErrors = {
      text    = "An invocation crashed, timed out, or found DynamoDB unavailable for its whole batch"
      of      = "function", metric = "Errors", statistic = "Sum", threshold = 0
      minutes = 1, breaching = 1, without_data = "notBreaching", all_clear = false
    }
    FunctionThrottles = {
      text    = "Lambda throttled invocations in 3 of 5 minutes"
      of      = "function", metric = "Throttles", statistic = "Sum", threshold = 0
      minutes = 5, breaching = 3, without_data = "notBreaching", all_clear = true
    }
    DurationNearTimeout = {
      text    = "An invocation took over 80% of FunctionTimeout in 3 of 5 minutes"
      of      = "function", metric = "Duration", statistic = "Maximum", threshold = local.follows.long_duration
      minutes = 5, breaching = 3, without_data = "notBreaching", all_clear = true
    }
    # SQS's own age leaves out messages that were received three times; this metric doesn't.
    ReceivedMessageTooOld = {
      text    = "A received message was sent more than 5 minutes ago"
      of      = "consumer", metric = "OldestMessageAge", statistic = "Maximum", threshold = 300
      minutes = 20, breaching = 1, without_data = "notBreaching", all_clear = true
    }
    CompletionsUnrecorded = {
      text    = "A charge succeeded without a record and may be repeated"
      of      = "consumer", metric = "CompletionsUnrecorded", statistic = "Sum", threshold = 0
      minutes = 1, breaching = 1, without_data = "notBreaching", all_clear = false
    }
    LeasesLost = {
      text    = "Before the outcome was recorded, another worker took over, or the record was deleted"
      of      = "consumer", metric = "LeasesLost", statistic = "Sum", threshold = 0
      minutes = 1, breaching = 1, without_data = "notBreaching", all_clear = false
    }
    DuplicatesOfOtherQueue = {
      text    = "A duplicate of another queue's message; two consumers may share a namespace"
      of      = "consumer", metric = "DuplicatesOfOtherQueue", statistic = "Sum", threshold = 0
      minutes = 1, breaching = 1, without_data = "notBreaching", all_clear = false
    }
    StoreUnavailable = {
      text    = "DynamoDB was unavailable for messages in 3 of 5 minutes"
      of      = "consumer", metric = "StoreUnavailable", statistic = "Sum", threshold = 0
      minutes = 5, breaching = 3, without_data = "notBreaching", all_clear = true
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "consumer" {
  for_each = local.alarms

  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = "${each.value.text} - https://github.com/sqs-once/sqs-once/blob/main/docs/runbook.md#${lower(each.key)}"
  namespace           = local.subjects[each.value.of].namespace
  metric_name         = each.value.metric
  dimensions          = local.subjects[each.value.of].dimensions
  statistic           = each.value.statistic
  period              = 60
  evaluation_periods  = each.value.minutes
  datapoints_to_alarm = each.value.breaching
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.threshold
  treat_missing_data  = each.value.without_data
  alarm_actions       = [aws_sns_topic.alarms.arn]
  ok_actions          = each.value.all_clear ? [aws_sns_topic.alarms.arn] : []
}

# ---- outputs: those that docs/runbook.md reads have the names of the template's ----

output "QueueUrl" { value = aws_sqs_queue.orders.url }
output "QueueArn" { value = aws_sqs_queue.orders.arn }
output "DeadLetterQueueUrl" { value = aws_sqs_queue.dead_letters.url }
output "DeadLetterQueueArn" { value = aws_sqs_queue.dead_letters.arn }
output "TableName" { value = aws_dynamodb_table.idempotency.name }
output "FunctionName" { value = aws_lambda_function.consumer.function_name }
output "EventSourceMappingId" { value = aws_lambda_event_source_mapping.orders.uuid }
output "LogGroupName" { value = aws_cloudwatch_log_group.consumer.name }
output "AlarmTopicArn" { value = aws_sns_topic.alarms.arn }

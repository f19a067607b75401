# The consumer with Terraform: queue, dead-letter queue, idempotency table, function and alarms. The settings and
# permissions are those of template.yaml.
#
#     make dist                                          # builds the function's zip
#     cd examples/terraform && terraform init && terraform apply

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.0"
    }
  }
}

variable "name" {
  description = "Prefix of the resources' names. The function's name prefixes every idempotency key"
  type        = string
  default     = "orders"
}

variable "zip" {
  description = "Zip with the file bootstrap, as make dist writes it"
  type        = string
  default     = "../../target/dist/consumer-arm64.zip"
}

variable "environment" {
  description = "Settings of the consumer beside the table's name. The gateway is that of the shipped sample, and charges nothing"
  type        = map(string)
  default = {
    IDEMPOTENCY_KEY     = "body:/orderId"
    PAYMENT_GATEWAY_URL = "sandbox"
  }
}

variable "alarm_topic_arns" {
  description = "SNS topics that the alarms notify; without one, nobody is told"
  type        = list(string)
  default     = []
}

locals {
  function_timeout = 30
}

# ---- queues --------------------------------------------------------------------------------------

resource "aws_sqs_queue" "dead_letters" {
  name                      = "${var.name}-dead-letters"
  message_retention_seconds = 1209600 # 14 days, the longest SQS offers
  sqs_managed_sse_enabled   = true
}

resource "aws_sqs_queue" "orders" {
  name                       = "${var.name}-orders"
  visibility_timeout_seconds = 360    # at least six times the function timeout; for one above 60 s, see template.yaml
  message_retention_seconds  = 345600 # 4 days
  sqs_managed_sse_enabled    = true
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letters.arn
    maxReceiveCount     = 130 # with the visibility timeout and the back-off, an outage of 12 hours uses up less
  })
}

resource "aws_sqs_queue_redrive_allow_policy" "dead_letters" {
  queue_url = aws_sqs_queue.dead_letters.id
  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [aws_sqs_queue.orders.arn]
  })
}

data "aws_iam_policy_document" "tls_only" {
  for_each = { orders = aws_sqs_queue.orders.arn, dead_letters = aws_sqs_queue.dead_letters.arn }
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
  queue_url = aws_sqs_queue.orders.id
  policy    = data.aws_iam_policy_document.tls_only["orders"].json
}

resource "aws_sqs_queue_policy" "dead_letters" {
  queue_url = aws_sqs_queue.dead_letters.id
  policy    = data.aws_iam_policy_document.tls_only["dead_letters"].json
}

# ---- table ---------------------------------------------------------------------------------------

# Without these records, every message still in flight would run a second time.
resource "aws_dynamodb_table" "idempotency" {
  # checkov:skip=CKV_AWS_119:encrypted by a KMS key that AWS manages; name your own in kms_key_arn
  name                        = "${var.name}-idempotency"
  billing_mode                = "PAY_PER_REQUEST"
  hash_key                    = "id"
  deletion_protection_enabled = true

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

# ---- function ------------------------------------------------------------------------------------

resource "aws_cloudwatch_log_group" "consumer" {
  # checkov:skip=CKV_AWS_158:encrypted by CloudWatch Logs; name a key of your own in kms_key_id
  # checkov:skip=CKV_AWS_338:30 days, as in template.yaml
  name              = "/aws/lambda/${var.name}-consumer"
  retention_in_days = 30
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
      "dynamodb:DeleteItem",
      "dynamodb:GetItem",
      "dynamodb:PartiQLInsert", # the same writes in batches
      "dynamodb:PartiQLUpdate",
    ]
    resources = [aws_dynamodb_table.idempotency.arn]
  }
  statement {
    sid       = "EventSource"
    actions   = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"]
    resources = [aws_sqs_queue.orders.arn]
  }
  statement {
    sid       = "Visibility"
    actions   = ["sqs:GetQueueUrl", "sqs:ChangeMessageVisibility"]
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
  name   = "process-once"
  role   = aws_iam_role.consumer.id
  policy = data.aws_iam_policy_document.consumer.json
}

resource "aws_lambda_function" "consumer" {
  # checkov:skip=CKV_AWS_50:traces are off; docs/traces.md has an example
  # checkov:skip=CKV_AWS_115:maximum_concurrency of the event source limits it without reserving concurrency of the account
  # checkov:skip=CKV_AWS_116:failed messages move to the dead-letter queue of the queue; that of a function is for asynchronous invocations
  # checkov:skip=CKV_AWS_117:uses DynamoDB and the gateway over TLS, and no resource in a VPC
  # checkov:skip=CKV_AWS_173:encrypted by a KMS key that AWS manages; name your own in kms_key_arn
  # checkov:skip=CKV_AWS_272:code signing needs a signing profile of the account
  function_name    = "${var.name}-consumer"
  filename         = var.zip
  source_code_hash = filebase64sha256(var.zip)
  runtime          = "provided.al2023"
  handler          = "bootstrap"
  architectures    = ["arm64"]
  memory_size      = 256
  timeout          = local.function_timeout
  role             = aws_iam_role.consumer.arn

  environment {
    variables = merge({ IDEMPOTENCY_TABLE_NAME = aws_dynamodb_table.idempotency.name }, var.environment)
  }
  logging_config {
    log_format            = "JSON"
    application_log_level = "INFO"
    system_log_level      = "INFO"
    log_group             = aws_cloudwatch_log_group.consumer.name
  }
}

resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn                   = aws_sqs_queue.orders.arn
  function_name                      = aws_lambda_function.consumer.arn
  batch_size                         = 10
  maximum_batching_window_in_seconds = 0
  function_response_types            = ["ReportBatchItemFailures"] # without it, Lambda deletes failed messages too
  scaling_config {
    maximum_concurrency = 10
  }
  metrics_config {
    metrics = ["EventCount"]
  }
  depends_on = [aws_iam_role_policy.consumer] # Lambda checks the permissions when it makes the mapping
}

# ---- alarms --------------------------------------------------------------------------------------

# SQS reports nothing for a queue that rested for six hours, so the alarm keeps its state without data.
resource "aws_cloudwatch_metric_alarm" "dead_letters" {
  alarm_name          = "${var.name}-dead-letters"
  alarm_description   = "Messages are in the dead-letter queue"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.dead_letters.name }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "ignore"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
}

resource "aws_cloudwatch_metric_alarm" "oldest_message" {
  alarm_name          = "${var.name}-oldest-message"
  alarm_description   = "Backlog or paused consumer: an order waits for more than 5 minutes"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateAgeOfOldestMessage"
  dimensions          = { QueueName = aws_sqs_queue.orders.name }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 300
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
}

resource "aws_cloudwatch_metric_alarm" "function_errors" {
  alarm_name          = "${var.name}-function-errors"
  alarm_description   = "An invocation crashed, timed out, or found DynamoDB unavailable for its whole batch"
  namespace           = "AWS/Lambda"
  metric_name         = "Errors"
  dimensions          = { FunctionName = aws_lambda_function.consumer.function_name }
  statistic           = "Sum"
  period              = 60
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
}

# Alarms on the consumer's own metrics, each with its limit and the minutes that begin it. They are those of template.yaml.
# An outage of the called system begins OldestMessageAge and RetryableFailures: SQS leaves messages that were received three
# times out of its own age.
locals {
  consumer_alarms = {
    CircuitOpen           = { statistic = "Sum", threshold = 0, datapoints = 1, periods = 5 }
    CompletionsUnrecorded = { statistic = "Sum", threshold = 0, datapoints = 1, periods = 1 }
    Crashed               = { statistic = "Sum", threshold = 0, datapoints = 1, periods = 1 }
    DeadLettered          = { statistic = "Sum", threshold = 0, datapoints = 1, periods = 1 }
    LeasesLost            = { statistic = "Sum", threshold = 0, datapoints = 1, periods = 1 }
    OldestMessageAge      = { statistic = "Maximum", threshold = 300, datapoints = 1, periods = 20 }
    RetryableFailures     = { statistic = "Sum", threshold = 0, datapoints = 3, periods = 5 }
    StoreUnavailable      = { statistic = "Sum", threshold = 0, datapoints = 3, periods = 5 }
  }
}

resource "aws_cloudwatch_metric_alarm" "consumer" {
  for_each            = local.consumer_alarms
  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = "Metric ${each.key} of the consumer: docs/runbook.md"
  namespace           = "sqs-once"
  metric_name         = each.key
  dimensions          = { service = aws_lambda_function.consumer.function_name }
  statistic           = each.value.statistic
  period              = 60
  evaluation_periods  = each.value.periods
  datapoints_to_alarm = each.value.datapoints
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.threshold
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
}

output "alarm_notifications" {
  description = "SNS topics that the alarms notify"
  value       = length(var.alarm_topic_arns) > 0 ? join(" ", var.alarm_topic_arns) : "NONE - set alarm_topic_arns"
}

output "queue_url" {
  description = "Queue for new orders"
  value       = aws_sqs_queue.orders.id
}

"""Compares examples/terraform/main.tf with template.yaml: each value, action, alarm and output.

python tools/terraform_test.py [-v] [TEST...]     a part of `make lint`
"""

import json
import subprocess
import unittest
from typing import Any

import yaml
from cloud import ROOT, Json, Template

HCL_TO_JSON = ROOT / ".venv-lint" / "bin" / "hcl2tojson"  # of checkov
TEMPLATE: Json = yaml.load((ROOT / "template.yaml").read_text(), Loader=Template)
MAIN_TF = ROOT / "examples" / "terraform" / "main.tf"
MAIN: Json = json.loads(
    subprocess.check_output([HCL_TO_JSON, MAIN_TF], stderr=subprocess.DEVNULL)
)  # it prints the name

# The template's resources, in Terraform's terms.
ARNS = {
    "IdempotencyTable": "${aws_dynamodb_table.idempotency.arn}",
    "OrdersQueue": "${aws_sqs_queue.orders.arn}",
    "OrdersDeadLetterQueue": "${aws_sqs_queue.dead_letters.arn}",
    # Terraform's ARN lacks the end that stands for the log streams.
    "ConsumerLogGroup": "${aws_cloudwatch_log_group.consumer.arn}:*",
}
# What an alarm watches, by its dimension: a resource of the template, a subject of main.tf, and its name there.
DIMENSIONS = {
    ("QueueName", "OrdersQueue"): ("queue", "${aws_sqs_queue.orders.name}"),
    ("QueueName", "OrdersDeadLetterQueue"): ("dead_letters", "${aws_sqs_queue.dead_letters.name}"),
    ("FunctionName", "Consumer"): ("function", "${aws_lambda_function.consumer.function_name}"),
    ("service", "Consumer"): ("consumer", "${aws_lambda_function.consumer.function_name}"),
}
FOLLOWS = {
    "VisibilityTimeout": "visibility_timeout",
    "MaxReceiveCount": "max_receive_count",
    "BackoffCap": "backoff_cap",
    "LongDuration": "long_duration",
}

VARIABLES = {
    "FunctionTimeout": "function_timeout",
    "PaymentGatewayUrl": "payment_gateway_url",
    "Architecture": "architecture",
    "AlarmEmail": "alarm_email",
}


def block(kind: str, *labels: str) -> Json:
    """A block as the parser has it: an attribute is a list of its value, and inner blocks are a list under a name."""
    found: list[Json] = MAIN[kind]
    for label in labels:
        found = [labelled[label] for labelled in found if label in labelled]
    [only] = found
    return only


def first(parsed: Json) -> Json:
    """The attributes of a block, and the inner blocks that occur once."""
    return {name: values[0] for name, values in parsed.items() if not name.startswith("__")}


def made(kind: str, name: str) -> Json:
    return first(block("resource", kind, name))


def inner(parsed: Json, name: str) -> Json:
    return first(parsed[name])


def statements(document: str) -> list[Json]:
    return [first(statement) for statement in block("data", "aws_iam_policy_document", document)["statement"]]


def local(name: str) -> Any:
    return next(locals_[name][0] for locals_ in MAIN["locals"] if name in locals_)


def resource(name: str) -> Json:
    properties: Json = TEMPLATE["Resources"][name]["Properties"]
    return properties


def of_template(value: Any) -> Any:
    """A value of the template with the defaults of its parameters, in Terraform's terms."""
    match value:
        case {"Fn::FindInMap": ["OfTimeout", {"Ref": "FunctionTimeout"}, name]}:
            return "${local.follows." + FOLLOWS[name] + "}"
        case {"Fn::If": [("HasKmsKey" | "HasNamespace"), _, otherwise]}:
            return of_template(otherwise)
        case {"Ref": ("FunctionTimeout" | "PaymentGatewayUrl" | "Architecture") as name}:
            return "${var." + VARIABLES[name] + "}"
        case {"Ref": "ConsumerLogGroup"}:
            return "${aws_cloudwatch_log_group.consumer.name}"
        case {"Ref": name}:
            return TEMPLATE["Parameters"][name]["Default"]
    return value


def members(policy: Json, sid: str, resources: dict[str, str]) -> set[tuple[str, str]]:
    """Pairs of an action and the ARN that a statement of the template is about."""
    statement = next(s for s in policy["Statement"] if s.get("Sid") == sid)
    actions = statement["Action"]
    about = statement["Resource"]
    if "Fn::If" in about:
        about = about["Fn::If"][1]  # a table of its own
    return {(a, resources[about["Fn::GetAtt"][0]]) for a in ([actions] if isinstance(actions, str) else actions)}


def assert_same(found: Json, expected: Json) -> None:
    other = {k: (found.get(k), expected.get(k)) for k in found.keys() | expected.keys()}
    other = {k: values for k, values in other.items() if values[0] != values[1]}
    assert not other, f"main.tf and template.yaml differ: {other}"


class Main(unittest.TestCase):
    def test_values_follow_from_the_timeout_as_in_the_template(self) -> None:
        expected = TEMPLATE["Mappings"]["OfTimeout"]
        found = local("of_timeout")
        renamed = {t: {FOLLOWS[name]: value for name, value in row.items()} for t, row in expected.items()}
        assert_same(found, renamed)
        assert local("follows") == "${local.of_timeout[tostring(var.function_timeout)]}"
        assert sorted(found) == sorted(TEMPLATE["Parameters"]["FunctionTimeout"]["AllowedValues"])

    def test_variables_have_the_defaults_of_the_template(self) -> None:
        for parameter, variable in VARIABLES.items():
            default = first(block("variable", variable)).get("default")
            expected = TEMPLATE["Parameters"][parameter].get("Default")
            assert (None if default is None else str(default)) == expected, variable

    def test_resources_have_the_values_of_the_template(self) -> None:
        queue, dead_letters = (made("aws_sqs_queue", name) for name in ("orders", "dead_letters"))
        table = made("aws_dynamodb_table", "idempotency")
        function = made("aws_lambda_function", "consumer")
        mapping = made("aws_lambda_event_source_mapping", "orders")
        logs = made("aws_cloudwatch_log_group", "consumer")
        redrive = resource("OrdersQueue")["RedrivePolicy"]["maxReceiveCount"]
        assert of_template(redrive).strip("${}") in queue["redrive_policy"]
        allow = made("aws_sqs_queue_redrive_allow_policy", "dead_letters")["redrive_allow_policy"]
        permission = resource("OrdersDeadLetterQueue")["RedriveAllowPolicy"]["redrivePermission"]
        assert permission in allow
        assert "aws_sqs_queue.orders.arn" in allow
        logging = inner(function, "logging_config")
        key, of_table = inner(table, "attribute"), resource("IdempotencyTable")
        of_function, of_mapping = resource("Consumer"), resource("OrdersEventSource")
        of_logging = of_function["LoggingConfig"]
        pairs = {
            "visibility timeout": (queue["visibility_timeout_seconds"], resource("OrdersQueue")["VisibilityTimeout"]),
            "retention": (queue["message_retention_seconds"], resource("OrdersQueue")["MessageRetentionPeriod"]),
            "retention of dead letters": (
                dead_letters["message_retention_seconds"],
                resource("OrdersDeadLetterQueue")["MessageRetentionPeriod"],
            ),
            "encryption": (queue["sqs_managed_sse_enabled"], resource("OrdersQueue")["SqsManagedSseEnabled"]),
            "encryption of dead letters": (
                dead_letters["sqs_managed_sse_enabled"],
                resource("OrdersDeadLetterQueue")["SqsManagedSseEnabled"],
            ),
            "billing": (table["billing_mode"], of_table["BillingMode"]),
            "deletion protection": (table["deletion_protection_enabled"], of_table["DeletionProtectionEnabled"]),
            "partition key": (table["hash_key"], of_table["KeySchema"][0]["AttributeName"]),
            "attribute": (
                [{"AttributeName": key["name"], "AttributeType": key["type"]}],
                of_table["AttributeDefinitions"],
            ),
            "TTL": (
                {"AttributeName": inner(table, "ttl")["attribute_name"], "Enabled": inner(table, "ttl")["enabled"]},
                of_table["TimeToLiveSpecification"],
            ),
            "encryption of the table": (
                inner(table, "server_side_encryption")["enabled"],
                of_table["SSESpecification"]["SSEEnabled"],
            ),
            "recovery": (
                inner(table, "point_in_time_recovery")["enabled"],
                of_table["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"],
            ),
            "log retention": (logs["retention_in_days"], resource("ConsumerLogGroup")["RetentionInDays"]),
            "description": (function["description"], of_function["Description"]),
            "runtime": (function["runtime"], of_function["Runtime"]),
            "handler": (function["handler"], of_function["Handler"]),
            "processor": (function["architectures"][0], of_function["Architectures"][0]),
            "memory": (function["memory_size"], of_function["MemorySize"]),
            "timeout": (function["timeout"], of_function["Timeout"]),
            "log format": (logging["log_format"], of_logging["LogFormat"]),
            "log level": (logging["application_log_level"], of_logging["ApplicationLogLevel"]),
            "log level of Lambda": (logging["system_log_level"], of_logging["SystemLogLevel"]),
            "log group": (logging["log_group"], of_logging["LogGroup"]),
            "batch size": (mapping["batch_size"], of_mapping["BatchSize"]),
            "response types": (mapping["function_response_types"], of_mapping["FunctionResponseTypes"]),
            "concurrency": (
                inner(mapping, "scaling_config")["maximum_concurrency"],
                of_mapping["ScalingConfig"]["MaximumConcurrency"],
            ),
        }
        found = {what: of_main for what, (of_main, _) in pairs.items()}
        assert_same(found, {what: of_template(value) for what, (_, value) in pairs.items()})

    def test_function_has_the_variables_of_the_template(self) -> None:
        variables = dict(resource("Consumer")["Environment"]["Variables"])
        del variables["PAYMENT_GATEWAY_API_KEY"]  # of a secret that CloudFormation reads
        expected = {name: of_template(value) for name, value in variables.items()}
        expected["IDEMPOTENCY_TABLE_NAME"] = "${aws_dynamodb_table.idempotency.name}"
        environment = inner(made("aws_lambda_function", "consumer"), "environment")
        assert_same(environment["variables"], expected)

    def test_role_allows_the_actions_of_the_template(self) -> None:
        [policy] = resource("ConsumerRole")["Policies"]
        sids = [s["Sid"] for s in policy["PolicyDocument"]["Statement"] if "Sid" in s]  # without that of a KMS key
        expected = set().union(*(members(policy["PolicyDocument"], sid, ARNS) for sid in sids))
        allowed = statements("consumer")
        assert {(a, r) for s in allowed for a in s["actions"] for r in s["resources"]} == expected
        for statement in allowed:
            assert set(statement) == {"sid", "actions", "resources"}, "the effect is Allow, without conditions"
        [trust] = statements("assumed_by_lambda")
        [of_role] = resource("ConsumerRole")["AssumeRolePolicyDocument"]["Statement"]
        assert trust["actions"] == [of_role["Action"]]
        assert inner(trust, "principals")["identifiers"] == [of_role["Principal"]["Service"]]
        given = {kind for r in MAIN["resource"] for kind in r if kind.startswith("aws_iam")}
        assert given == {"aws_iam_role", "aws_iam_role_policy"}

    def test_queues_deny_what_the_template_denies(self) -> None:
        arns = {"orders": ARNS["OrdersQueue"], "dead_letters": ARNS["OrdersDeadLetterQueue"]}
        assert first(block("data", "aws_iam_policy_document", "queue"))["for_each"] == arns
        found = {}
        for statement in statements("queue"):
            assert inner(statement, "principals")["identifiers"] == ["*"]
            assert statement["resources"] == ["${each.value}"]
            condition = inner(statement, "condition") if "condition" in statement else None
            tests = {condition["test"]: {condition["variable"]: condition["values"][0]}} if condition else {}
            found[statement["sid"]] = (statement["effect"], statement["actions"], tests)
        for name, queue in (("OrdersQueuePolicy", "orders"), ("OrdersDeadLetterQueuePolicy", "dead_letters")):
            denied = [s for s in resource(name)["PolicyDocument"]["Statement"] if "Sid" in s]  # without a producer's
            assert_same(found, {s["Sid"]: (s["Effect"], [s["Action"]], s.get("Condition", {})) for s in denied})
            policy = made("aws_sqs_queue_policy", queue)
            assert policy["queue_url"] == f"${{aws_sqs_queue.{queue}.url}}"
            assert f'queue["{queue}"]' in policy["policy"].replace("\\", "")

    def test_alarms_are_those_of_the_template(self) -> None:
        expected = {}
        for name, properties in TEMPLATE["Resources"].items():
            if properties["Type"] == "AWS::CloudWatch::Alarm":
                alarm = properties["Properties"]
                [dimension] = alarm["Dimensions"]
                about = dimension["Value"].get("Ref") or dimension["Value"]["Fn::GetAtt"][0]
                text, _, link = alarm["AlarmDescription"].rpartition(" - ")
                assert link.endswith(f"/docs/runbook.md#{name.lower()}"), link
                assert (alarm["Period"], alarm["ComparisonOperator"]) == (60, "GreaterThanThreshold")
                expected[name] = {
                    "text": text,
                    "of": DIMENSIONS[dimension["Name"], about][0],
                    "metric": alarm["MetricName"],
                    "statistic": alarm["Statistic"],
                    "threshold": of_template(alarm["Threshold"]),
                    "minutes": alarm["EvaluationPeriods"],
                    "breaching": alarm.get("DatapointsToAlarm", alarm["EvaluationPeriods"]),
                    "without_data": alarm["TreatMissingData"],
                    "all_clear": "OKActions" in alarm,
                }
                subject = local("subjects")[expected[name]["of"]]
                named = {dimension["Name"]: DIMENSIONS[dimension["Name"], about][1]}
                assert subject == {"namespace": alarm["Namespace"], "dimensions": named}
        assert_same(local("alarms"), expected)
        alarms = made("aws_cloudwatch_metric_alarm", "consumer")
        assert (alarms["period"], alarms["comparison_operator"]) == (60, "GreaterThanThreshold")
        assert alarms["for_each"] == "${local.alarms}"
        assert "docs/runbook.md#${lower(each.key)}" in alarms["alarm_description"]

    def test_messages_and_records_are_kept(self) -> None:
        for kind, name in (("sqs_queue", "orders"), ("sqs_queue", "dead_letters"), ("dynamodb_table", "idempotency")):
            kept = inner(made(f"aws_{kind}", name), "lifecycle")
            assert kept == {"prevent_destroy": True}, name
        assert made("aws_cloudwatch_log_group", "consumer")["skip_destroy"]

    def test_outputs_have_the_names_that_the_runbook_reads(self) -> None:
        found = {name for output in MAIN["output"] for name in output}
        assert found == set(TEMPLATE["Outputs"]) - {"AlarmNotifications", "Overlays"}


if __name__ == "__main__":
    unittest.main()

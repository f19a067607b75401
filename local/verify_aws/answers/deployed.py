"""Answers to `checks/deployed.py`."""

import datetime
import json
from typing import Any

from verify_aws.answers.stub import ARN, NAME, Given, ok, pair, refused
from verify_aws.checks.deployed import REFUSED, read_template

Json = dict[str, Any]
NOW = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)


def stack(status: str) -> Given:
    found = {
        "StackName": NAME,
        "StackStatus": status,
        "CreationTime": NOW,
        "Parameters": [{"ParameterKey": "MemorySize", "ParameterValue": "256"}],
    }
    return ok("cloudformation.describe_stacks", Stacks=[found])


pair(
    "default_deployment_completes",
    holds=[stack("CREATE_COMPLETE")],
    differs=[stack("ROLLBACK_COMPLETE")],
)


def body_bytes(value: str) -> Given:
    return ok("lambda.get_function_configuration", Environment={"Variables": {"CONSUMER_MAX_BODY_BYTES": value}})


pair(
    "number_parameter_arrives_as_written",
    holds=[body_bytes("2097152")],
    differs=[body_bytes("2.097152E6")],
)

ALARMS = {
    name: resource["Properties"]
    for name, resource in read_template()["Resources"].items()
    if resource["Type"] == "AWS::CloudWatch::Alarm"
}


def made() -> Given:
    """The resources of the stack, alarms only."""
    found = [
        {
            "LogicalResourceId": name,
            "PhysicalResourceId": f"{NAME}-{name}",
            "ResourceType": "AWS::CloudWatch::Alarm",
            "LastUpdatedTimestamp": NOW,
            "ResourceStatus": "CREATE_COMPLETE",
        }
        for name in ALARMS
    ]
    return ok("cloudformation.list_stack_resources", StackResourceSummaries=found)


def alarm(name: str) -> Json:
    written = ALARMS[name]
    answer: Json = {"AlarmName": f"{NAME}-{name}"}
    if "MetricName" in written:
        answer["MetricName"] = written["MetricName"]
    if "Metrics" in written:
        answer["Metrics"] = [
            {"Id": metric["Id"]} | ({"Expression": metric["Expression"]} if "Expression" in metric else {})
            for metric in written["Metrics"]
        ]
    return answer


pair(
    "alarms_exist_as_written",
    holds=[made(), ok("cloudwatch.describe_alarms", MetricAlarms=[alarm(name) for name in ALARMS])],
    differs=[made(), ok("cloudwatch.describe_alarms", MetricAlarms=[alarm(name) for name in list(ALARMS)[1:]])],
)


def mapping(*types: str, state: str = "Enabled") -> Given:
    scaling = {"MaximumConcurrency": 2}
    return ok("lambda.get_event_source_mapping", FunctionResponseTypes=list(types), ScalingConfig=scaling, State=state)


pair(
    "event_source_is_as_written",
    holds=[mapping("ReportBatchItemFailures")],
    differs=[mapping()],
)


def queues(allowed: str) -> list[Given]:
    dead, source = f"{ARN}{NAME}-dead", f"{ARN}{NAME}-orders"
    allow = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [allowed]})
    redrive = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": "130"})
    return [
        ok("sqs.get_queue_attributes", Attributes={"QueueArn": dead, "RedriveAllowPolicy": allow}),
        ok("sqs.get_queue_attributes", Attributes={"QueueArn": source, "RedrivePolicy": redrive}),
    ]


pair(
    "dead_letter_queue_names_a_later_source",
    holds=queues(f"{ARN}{NAME}-orders"),
    differs=queues(f"{ARN}other"),
)


def table(ttl: str) -> list[Given]:
    recovery = {"PointInTimeRecoveryStatus": "ENABLED"}
    return [
        ok("dynamodb.describe_time_to_live", TimeToLiveDescription={"TimeToLiveStatus": ttl}),
        ok(
            "dynamodb.describe_continuous_backups",
            ContinuousBackupsDescription={
                "ContinuousBackupsStatus": "ENABLED",
                "PointInTimeRecoveryDescription": recovery,
            },
        ),
        ok("dynamodb.describe_table", Table={"DeletionProtectionEnabled": True}),
    ]


pair("table_is_as_written", holds=table("ENABLED"), differs=table("DISABLED"))


def rules(accepts_last: bool) -> list[Given]:
    accepted = [
        ok("cloudformation.create_change_set"),
        ok("cloudformation.describe_change_set", Status="CREATE_COMPLETE"),
        ok("cloudformation.delete_change_set"),
    ]
    given: list[Given] = [stack("CREATE_COMPLETE"), *accepted]
    for number in range(len(REFUSED)):
        given.append(stack("CREATE_COMPLETE"))
        if accepts_last and number == len(REFUSED) - 1:
            given += accepted
        else:
            given.append(refused("cloudformation.create_change_set", "ValidationError"))
    return given


pair("rules_refuse_settings_that_contradict", holds=rules(False), differs=rules(True))


def paused(reason: str) -> list[Given]:
    status = {"Status": "FAILED", "StatusReason": reason} if reason else {"Status": "CREATE_COMPLETE"}
    return [
        ok("lambda.update_event_source_mapping"),
        mapping(state="Disabled"),
        stack("CREATE_COMPLETE"),
        ok("cloudformation.create_change_set"),
        ok("cloudformation.describe_change_set", **status),
        ok("cloudformation.delete_change_set"),
        mapping(state="Disabled"),
        ok("lambda.update_event_source_mapping"),
        mapping(state="Enabled"),
    ]


UNCHANGED = "The submitted information didn't contain changes. Submit different information to create a change set."
pair("unchanged_deployment_does_not_resume", holds=paused(UNCHANGED), differs=paused(""))

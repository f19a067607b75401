"""The default deployment: the stack that CloudFormation and Lambda make of template.yaml."""

import json
import secrets
from typing import Any

import yaml
from botocore.exceptions import ClientError, WaiterError
from cloud import ROOT, Template

from verify_aws.check import NotChecked, Seen, check
from verify_aws.scratch import CAPABILITIES, PARAMETERS, Scratch

Json = dict[str, Any]

REPLACED = "local/deployment.py replaces parts of the template for the emulator"


def read_template() -> Json:
    read: Json = yaml.load((ROOT / "template.yaml").read_text(), Loader=Template)
    return read


def resources(scratch: Scratch) -> dict[str, str]:
    """The physical ids of the stack's resources, by their names in the template."""
    pages = scratch.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=scratch.name)
    found = [resource for page in pages for resource in page["StackResourceSummaries"]]
    return {resource["LogicalResourceId"]: resource["PhysicalResourceId"] for resource in found}


@check(only_aws=REPLACED)
def default_deployment_completes(scratch: Scratch) -> Seen:
    """CloudFormation creates the stack of template.yaml with default parameters.

    Where:
    template.yaml: Transform: AWS::Serverless-2016-10-31
    docs/getting-started.md: make deploy
    """
    stack = scratch.client("cloudformation").describe_stacks(StackName=scratch.name)["Stacks"][0]
    return Seen(stack["StackStatus"] == "CREATE_COMPLETE", stack["StackStatus"])


@check()
def number_parameter_arrives_as_written(scratch: Scratch) -> Seen:
    """CloudFormation hands a number of seven digits or more to the function as it is written, not as 1.048576E7. The
    consumer exits on a number that it cannot read.

    Where:
    template.yaml: CONSUMER_MAX_BODY_BYTES
    """
    function = scratch.outputs["FunctionName"]
    configuration = scratch.client("lambda").get_function_configuration(FunctionName=function)
    value = configuration["Environment"]["Variables"].get("CONSUMER_MAX_BODY_BYTES", "absent")
    wanted = str(read_template()["Parameters"]["ConsumerMaxBodyBytes"]["Default"])
    return Seen(value == wanted, f"CONSUMER_MAX_BODY_BYTES={value}")


@check(only_aws=REPLACED)
def alarms_exist_as_written(scratch: Scratch) -> Seen:
    """CloudWatch takes each alarm of template.yaml, with its metrics and its expressions.

    Where:
    template.yaml: AWS::CloudWatch::Alarm
    docs/template.md: ## Alarms
    """
    made = resources(scratch)
    wanted = {
        made.get(name, name): resource["Properties"]
        for name, resource in read_template()["Resources"].items()
        if resource["Type"] == "AWS::CloudWatch::Alarm" and name in made
    }
    pages = scratch.client("cloudwatch").get_paginator("describe_alarms").paginate(AlarmNames=sorted(wanted))
    found = {alarm["AlarmName"]: alarm for page in pages for alarm in page["MetricAlarms"]}
    problems = [f"{name} is missing" for name in sorted(set(wanted) - set(found))]
    for name, alarm in found.items():
        expressions = [metric["Expression"] for metric in wanted[name].get("Metrics", []) if "Expression" in metric]
        got = [metric["Expression"] for metric in alarm.get("Metrics", []) if "Expression" in metric]
        if expressions != got or wanted[name].get("MetricName") != alarm.get("MetricName"):
            problems.append(f"{name} watches something else")
    return Seen(not problems and bool(found), "; ".join(problems) or f"{len(found)} alarms")


@check()
def event_source_is_as_written(scratch: Scratch) -> Seen:
    """The event source mapping reports failures message by message, and stays within its concurrency.

    Where:
    template.yaml: ReportBatchItemFailures
    docs/sizing.md: MaximumConcurrency
    """
    uuid = scratch.outputs["EventSourceMappingId"]
    mapping = scratch.client("lambda").get_event_source_mapping(UUID=uuid)
    types = mapping.get("FunctionResponseTypes", [])
    most = mapping.get("ScalingConfig", {}).get("MaximumConcurrency")
    holds = "ReportBatchItemFailures" in types and (scratch.emulated or str(most) == PARAMETERS["MaximumConcurrency"])
    return Seen(holds, f"{types}, MaximumConcurrency {most}, {mapping['State']}")


@check()
def dead_letter_queue_names_a_later_source(scratch: Scratch) -> Seen:
    """The dead-letter queue may allow a source queue that does not exist yet, and the source may name the
    dead-letter queue afterwards.

    Where:
    template.yaml: redrivePermission: byQueue
    """
    sqs = scratch.client("sqs")
    names = ["RedriveAllowPolicy", "QueueArn"]
    dead = sqs.get_queue_attributes(QueueUrl=scratch.outputs["DeadLetterQueueUrl"], AttributeNames=names)["Attributes"]
    names = ["RedrivePolicy", "QueueArn"]
    source = sqs.get_queue_attributes(QueueUrl=scratch.outputs["QueueUrl"], AttributeNames=names)["Attributes"]
    allowed = json.loads(dead.get("RedriveAllowPolicy", "{}")).get("sourceQueueArns", [])
    target = json.loads(source.get("RedrivePolicy", "{}")).get("deadLetterTargetArn")
    holds = allowed == [source["QueueArn"]] and target == dead["QueueArn"]
    return Seen(holds, f"{len(allowed)} source allowed, {'each names the other' if holds else 'they do not match'}")


@check(only_aws="MiniStack ignores the TTL and the backups of a template")
def table_is_as_written(scratch: Scratch) -> Seen:
    """The table has TTL, point-in-time recovery and deletion protection.

    Where:
    template.yaml: PointInTimeRecoveryEnabled
    """
    dynamodb, name = scratch.client("dynamodb"), scratch.outputs["TableName"]
    ttl = dynamodb.describe_time_to_live(TableName=name)["TimeToLiveDescription"]["TimeToLiveStatus"]
    backups = dynamodb.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
    recovery = backups.get("PointInTimeRecoveryDescription", {}).get("PointInTimeRecoveryStatus", "absent")
    protected = dynamodb.describe_table(TableName=name)["Table"].get("DeletionProtectionEnabled", False)
    holds = ttl in ("ENABLED", "ENABLING") and recovery == "ENABLED" and protected
    return Seen(holds, f"TTL {ttl}, recovery {recovery}, deletion protection {'on' if protected else 'off'}")


def change_set(scratch: Scratch, **changed: str) -> str:
    """The reason for which CloudFormation refuses a change of the stack; empty if it would make the change."""
    cloudformation, name = scratch.client("cloudformation"), f"{scratch.name}-{secrets.token_hex(4)}"
    stack = cloudformation.describe_stacks(StackName=scratch.name)["Stacks"][0]
    kept = [p["ParameterKey"] for p in stack["Parameters"] if p["ParameterKey"] not in changed]
    try:
        cloudformation.create_change_set(
            StackName=scratch.name,
            ChangeSetName=name,
            UsePreviousTemplate=True,
            Parameters=[{"ParameterKey": key, "UsePreviousValue": True} for key in kept]
            + [{"ParameterKey": key, "ParameterValue": value} for key, value in changed.items()],
            Capabilities=CAPABILITIES,
        )
    except ClientError as refused:
        return str(refused.response["Error"]["Message"])
    try:
        cloudformation.get_waiter("change_set_create_complete").wait(StackName=scratch.name, ChangeSetName=name)
    except WaiterError as failed:
        return str(failed.last_response.get("StatusReason", failed))
    finally:
        cloudformation.delete_change_set(StackName=scratch.name, ChangeSetName=name)
    return ""


ALLOWED = {"MemorySize": "512"}
REFUSED = (
    {"BatchSize": "100"},
    {"Fifo": "on", "BatchingWindow": "1"},
    {"IdempotencyLayout": "powertools"},
    {"LogLevel": "WARN"},
)


@check(only_aws="MiniStack checks no rules of a template")
def rules_refuse_settings_that_contradict(scratch: Scratch) -> Seen:
    """CloudFormation checks the rules of template.yaml before it changes anything.

    Where:
    template.yaml: LargeBatchNeedsWindow
    docs/template.md: ## Parameters
    """
    # One that is allowed, since a refusal for any other reason would look the same.
    if reason := change_set(scratch, **ALLOWED):
        return Seen(False, f"MemorySize=512 was refused: {reason}")
    accepted = [
        " and ".join(f"{k}={v}" for k, v in values.items()) for values in REFUSED if not change_set(scratch, **values)
    ]
    return Seen(
        not accepted, f"accepted: {'; '.join(accepted)}" if accepted else f"{len(REFUSED)} combinations refused"
    )


@check(only_aws="MiniStack has no notion of an unchanged deployment")
def unchanged_deployment_does_not_resume(scratch: Scratch) -> Seen:
    """A deployment of the same template changes nothing, so a consumer that was paused by hand stays paused.

    Where:
    docs/runbook.md: ### Pause and resume the consumer
    """
    client, uuid = scratch.client("lambda"), scratch.outputs["EventSourceMappingId"]

    def state() -> str:
        return str(client.get_event_source_mapping(UUID=uuid)["State"])

    client.update_event_source_mapping(UUID=uuid, Enabled=False)
    scratch.eventually(state, lambda now: now == "Disabled", within=120)
    try:
        reason = change_set(scratch)
        after = state()
    finally:
        client.update_event_source_mapping(UUID=uuid, Enabled=True)
    resumed = scratch.eventually(state, lambda now: now == "Enabled", within=120)
    if resumed != "Enabled":
        raise NotChecked(f"the mapping is {resumed} after it was enabled again")
    unchanged = "didn't contain changes" in reason or "No updates" in reason
    return Seen(unchanged and after == "Disabled", f"change set: {reason or 'changes'}; the mapping was {after}")

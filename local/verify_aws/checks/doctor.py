"""`sqs-once doctor` on a clean stack, and with each fault that one request makes."""

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from verify_aws.check import NotChecked, Seen, check
from verify_aws.checks.fifo import FIFO, outputs_of_fifo
from verify_aws.functions import change_variables
from verify_aws.scratch import DeployFailed, Scratch

Json = dict[str, Any]

# MiniStack ignores the TTL of a template.
SKIPPED_HERE = ("--skip", "ttl")
# A finding that comes with another: a short visibility timeout shortens the way to the dead-letter queue.
BESIDE = {"visibility-timeout": {"receives"}}


def findings(scratch: Scratch, stack: str = "") -> list[str]:
    """The checks of `sqs-once doctor` that found something."""
    skipped = SKIPPED_HERE if scratch.emulated else ()
    ended = scratch.tool("doctor", stack or scratch.name, "--output", "json", *skipped)
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        raise NotChecked(f"sqs-once doctor ended with {ended.returncode}: {ended.stderr.strip()[-300:]}") from None
    return sorted({finding["check"] for finding in answer["findings"]})


@check()
def doctor_finds_nothing_in_a_clean_stack(scratch: Scratch) -> Seen:
    """`sqs-once doctor` has no finding in a stack of template.yaml.

    Where:
    docs/cli.md: ## Doctor
    """
    found = findings(scratch)
    return Seen(not found, ", ".join(found) or "no findings")


def without(document: Json, action: str) -> Json:
    """A policy that does not allow an action."""
    changed = copy.deepcopy(document)
    for statement in changed["Statement"]:
        if isinstance(statement["Action"], list) and action in statement["Action"]:
            statement["Action"].remove(action)
    return changed


@dataclass(frozen=True)
class Fault:
    """A check of doctor, with the request that makes its fault and the one that corrects it."""

    check: str
    make: Callable[[], Any]
    correct: Callable[[], Any]


def of_variables(scratch: Scratch) -> Iterator[Fault]:
    function = scratch.outputs["FunctionName"]
    configuration = scratch.client("lambda").get_function_configuration(FunctionName=function)
    now = configuration["Environment"]["Variables"]

    def fault(check: str, name: str, value: str) -> Fault:
        return Fault(
            check,
            lambda: change_variables(scratch, function, **{name: value}),
            lambda: change_variables(scratch, function, **{name: now.get(name)}),
        )

    yield fault("settings", "CONSUMER_CONCURRENCY", "many")
    yield fault("unknown-variables", "CONSUMER_CONCURENCY", "10")
    yield fault("time-to-start", "CONSUMER_MIN_TIME_TO_START", "30s")
    yield fault("crash-waits", "CONSUMER_CRASH_ISOLATION", "off")
    yield fault("record-retention", "IDEMPOTENCY_RETENTION", "1d")
    yield fault("table", "IDEMPOTENCY_TABLE_NAME", f"{scratch.name}-missing")
    yield fault("key-schema", "IDEMPOTENCY_ATTRIBUTES", "id=PK")
    if not scratch.emulated:
        yield fault("ttl", "IDEMPOTENCY_ATTRIBUTES", "expires_at=ttl")

    def log(level: str) -> None:
        client = scratch.client("lambda")
        logging = configuration["LoggingConfig"] | {"ApplicationLogLevel": level}
        client.update_function_configuration(FunctionName=function, LoggingConfig=logging)
        client.get_waiter("function_updated_v2").wait(FunctionName=function)

    yield Fault("log-level", lambda: log("WARN"), lambda: log("INFO"))


def of_queues(scratch: Scratch) -> Iterator[Fault]:
    sqs = scratch.client("sqs")

    def fault(check: str, queue: str, attribute: str, value: str) -> Fault:
        url = scratch.outputs[queue]
        now = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[attribute])["Attributes"][attribute]
        return Fault(
            check,
            lambda: sqs.set_queue_attributes(QueueUrl=url, Attributes={attribute: value}),
            lambda: sqs.set_queue_attributes(QueueUrl=url, Attributes={attribute: now}),
        )

    source = scratch.outputs["QueueUrl"]
    redrive = sqs.get_queue_attributes(QueueUrl=source, AttributeNames=["RedrivePolicy"])["Attributes"]["RedrivePolicy"]
    yield fault("visibility-timeout", "QueueUrl", "VisibilityTimeout", "60")
    yield fault("receives", "QueueUrl", "RedrivePolicy", json.dumps(json.loads(redrive) | {"maxReceiveCount": "3"}))
    yield fault("dead-letter-queue", "QueueUrl", "RedrivePolicy", "")
    yield fault("queue-retention", "QueueUrl", "MessageRetentionPeriod", "86400")
    yield fault("dead-letter-retention", "DeadLetterQueueUrl", "MessageRetentionPeriod", "86400")


def of_the_mapping(scratch: Scratch) -> Iterator[Fault]:
    functions, uuid = scratch.client("lambda"), scratch.outputs["EventSourceMappingId"]

    def fault(check: str, now: Json, wrong: Json) -> Fault:
        def change(values: Json) -> None:
            functions.update_event_source_mapping(UUID=uuid, **values)
            settled = ("Enabled", "Disabled")
            scratch.eventually(
                lambda: functions.get_event_source_mapping(UUID=uuid)["State"],
                lambda state: state in settled,
                within=120,
            )

        return Fault(check, lambda: change(wrong), lambda: change(now))

    reports, pattern = "FunctionResponseTypes", '{"body": {"a": ["b"]}}'
    yield fault("mapping-enabled", {"Enabled": True}, {"Enabled": False})
    yield fault("partial-responses", {reports: ["ReportBatchItemFailures"]}, {reports: []})
    yield fault("filter-criteria", {"FilterCriteria": {}}, {"FilterCriteria": {"Filters": [{"Pattern": pattern}]}})


def of_the_role(scratch: Scratch) -> Iterator[Fault]:
    iam, role = scratch.client("iam"), scratch.outputs["RoleArn"].rsplit("/", 1)[-1]
    name = iam.list_role_policies(RoleName=role)["PolicyNames"][0]
    document = iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]

    def put(allowed: Json) -> None:
        iam.put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=json.dumps(allowed))

    yield Fault("permissions", lambda: put(without(document, "dynamodb:DeleteItem")), lambda: put(document))


@check(stack=FIFO)
def doctor_finds_each_fault(scratch: Scratch) -> Seen:
    """`sqs-once doctor` finds each fault that one request can make, alone, and nothing once it is corrected. Four of
    its checks have no such request: a stack without a mapping, pollers beside MaximumConcurrency, which Lambda refuses,
    a table in another Region, and a global table.

    Where:
    docs/cli.md: `partial-responses`
    """
    faults = [*of_variables(scratch), *of_queues(scratch), *of_the_mapping(scratch), *of_the_role(scratch)]
    problems = []
    for fault in faults:
        only = {fault.check} | BESIDE.get(fault.check, set())

        def alone(found: list[str], check: str = fault.check, only: set[str] = only) -> bool:
            return check in found and set(found) <= only

        fault.make()
        try:
            # SQS shows a changed attribute within a minute, that of the fault before too.
            found = scratch.eventually(lambda: findings(scratch), alone, within=90)
        finally:
            fault.correct()
        problems += [f"{fault.check}: found {', '.join(found) or 'nothing'}"] * (not alone(found))
    left = scratch.eventually(lambda: findings(scratch), lambda found: not found, within=90)
    problems += [f"corrected: found {', '.join(left)}"] * bool(left)
    try:
        fifo = dataclasses.replace(scratch, outputs=outputs_of_fifo(scratch))
        silent = findings(fifo, f"{scratch.name}-{FIFO[0]}")
    except DeployFailed as failed:
        raise NotChecked(f"the stack without a topic was not created: {failed}") from None
    problems += [f"alarm-actions: found {', '.join(silent) or 'nothing'}"] * (silent != ["alarm-actions"])
    return Seen(not problems, "; ".join(problems) or f"{len(faults) + 1} faults, each found alone")

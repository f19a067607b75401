"""The tools of the person on call: `sqs-once doctor`, and the queries of the runbook."""

import copy
import json
import re
import time
from collections.abc import Callable
from typing import Any

from cloud import ROOT

from verify_aws.check import NotChecked, Seen, check
from verify_aws.scratch import Scratch

Json = dict[str, Any]

QUERY = re.compile(r"^```insights\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The scratch stack has no AlarmEmail: its alarms notify nobody.
SKIPPED = ("--skip", "alarm-actions")
# MiniStack ignores the TTL of a template.
SKIPPED_HERE = ("--skip", "ttl")


def findings(scratch: Scratch) -> list[str]:
    """The checks of `sqs-once doctor` that found something."""
    skipped = SKIPPED_HERE if scratch.emulated else ()
    ended = scratch.tool("doctor", scratch.name, "--output", "json", *SKIPPED, *skipped)
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


@check()
def doctor_finds_each_fault(scratch: Scratch) -> Seen:
    """`sqs-once doctor` finds a disabled mapping, a mapping without partial responses or with a filter, a role that
    lacks an action, a short visibility timeout and a short retention of dead letters: each alone, and nothing once
    it is corrected.

    Where:
    docs/cli.md: `partial-responses`
    """
    sqs, functions = scratch.client("sqs"), scratch.client("lambda")
    uuid = scratch.outputs["EventSourceMappingId"]

    def mapping(**changed: Any) -> None:
        functions.update_event_source_mapping(UUID=uuid, **changed)
        settled = ("Enabled", "Disabled")
        scratch.eventually(
            lambda: functions.get_event_source_mapping(UUID=uuid)["State"], lambda now: now in settled, within=120
        )

    def attribute(queue: str, name: str, value: str) -> None:
        sqs.set_queue_attributes(QueueUrl=scratch.outputs[queue], Attributes={name: value})

    def visibility(value: str) -> None:
        attribute("QueueUrl", "VisibilityTimeout", value)

    def retention(value: str) -> None:
        attribute("DeadLetterQueueUrl", "MessageRetentionPeriod", value)

    iam = scratch.client("iam")
    role = scratch.outputs["RoleArn"].rsplit("/", 1)[-1]
    policy = iam.list_role_policies(RoleName=role)["PolicyNames"][0]
    document = iam.get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]

    def permissions(allowed: Json) -> None:
        iam.put_role_policy(RoleName=role, PolicyName=policy, PolicyDocument=json.dumps(allowed))

    faults: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "mapping-enabled": (lambda: mapping(Enabled=False), lambda: mapping(Enabled=True)),
        "partial-responses": (
            lambda: mapping(FunctionResponseTypes=[]),
            lambda: mapping(FunctionResponseTypes=["ReportBatchItemFailures"]),
        ),
        "filter-criteria": (
            lambda: mapping(FilterCriteria={"Filters": [{"Pattern": '{"body": {"a": ["b"]}}'}]}),
            lambda: mapping(FilterCriteria={}),
        ),
        "permissions": (lambda: permissions(without(document, "dynamodb:DeleteItem")), lambda: permissions(document)),
        "visibility-timeout": (lambda: visibility("60"), lambda: visibility("360")),
        "dead-letter-retention": (lambda: retention("86400"), lambda: retention("1209600")),
    }
    problems = []
    for wanted, (break_it, correct_it) in faults.items():
        break_it()
        try:
            # SQS shows a changed attribute within a minute.
            found = scratch.eventually(lambda: findings(scratch), bool, within=60)
        finally:
            correct_it()
        # A short visibility timeout also shortens the way to the dead-letter queue.
        if wanted not in found or set(found) - {wanted, "receives", "record-retention"}:
            problems.append(f"{wanted}: found {', '.join(found) or 'nothing'}")
        left = scratch.eventually(lambda: findings(scratch), lambda found: not found, within=90)
        problems += [f"{wanted}, corrected: found {', '.join(left)}"] * bool(left)
    return Seen(not problems, "; ".join(problems) or f"{len(faults)} faults, each found alone")


@check(only_aws="MiniStack ignores the filters of a query")
def queries_of_the_runbook_run(scratch: Scratch) -> Seen:
    """CloudWatch Logs Insights runs each query of the runbook, and the one of outcomes has rows.

    Where:
    docs/runbook.md: ## Queries
    """
    logs, now = scratch.client("logs"), int(time.time())
    page = (ROOT / "docs" / "runbook.md").read_text()
    problems, rows = [], 0
    for number, query in enumerate(QUERY.findall(page), 1):
        started = logs.start_query(
            logGroupName=scratch.outputs["LogGroupName"], startTime=now - 7200, endTime=now + 60, queryString=query
        )

        def read(query_id: str = started["queryId"]) -> Json:
            answer: Json = logs.get_query_results(queryId=query_id)
            return answer

        answer = scratch.eventually(read, lambda got: got["status"] not in ("Scheduled", "Running"), within=60)
        if answer["status"] != "Complete":
            problems.append(f"query {number} is {answer['status']}")
        rows = max(rows, len(answer.get("results", [])))
    if not rows:
        problems.append("no query has a row")
    return Seen(not problems, "; ".join(problems) or f"{number} queries, at most {rows} rows")

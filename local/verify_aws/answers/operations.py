"""Answers to `checks/operations.py`."""

import json

from cloud import ROOT

from verify_aws.answers.deployed import mapping
from verify_aws.answers.stub import Given, Tool, ok, pair
from verify_aws.checks.operations import QUERY


def found(*checks: str) -> Tool:
    return Tool(json.dumps({"findings": [{"check": check} for check in checks]}))


pair("doctor_finds_nothing_in_a_clean_stack", holds=[found()], differs=[found("permissions")])

changed: list[Given] = [ok("lambda.update_event_source_mapping"), mapping("ReportBatchItemFailures")]
attribute = ok("sqs.set_queue_attributes")


def faults(second: Tool) -> list[Given]:
    return [
        ok("iam.list_role_policies", PolicyNames=["charge-orders-once"]),
        ok(
            "iam.get_role_policy",
            RoleName="consumer",
            PolicyName="charge-orders-once",
            PolicyDocument=json.dumps({"Statement": [{"Action": ["dynamodb:DeleteItem"]}]}),
        ),
        *[ok("iam.put_role_policy")] * 2,
        *changed * 6,
        *[attribute] * 4,
        *(found("mapping-enabled"), found()),
        *(second, found()),
        *(found("filter-criteria"), found()),
        *(found("permissions"), found()),
        *(found("visibility-timeout", "receives"), found()),
        *(found("dead-letter-retention"), found()),
    ]


pair("doctor_finds_each_fault", holds=faults(found("partial-responses")), differs=faults(found()))

NUMBER = len(QUERY.findall((ROOT / "docs" / "runbook.md").read_text()))


def queries(status: str) -> list[Given]:
    given: list[Given] = []
    for number in range(NUMBER):
        given += [
            ok("logs.start_query", queryId=f"q-{number}"),
            ok(
                "logs.get_query_results",
                status=status if number == 0 else "Complete",
                results=[[{"field": "messages", "value": "1"}]],
            ),
        ]
    return given


pair("queries_of_the_runbook_run", holds=queries("Complete"), differs=queries("Failed"))

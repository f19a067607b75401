"""Answers to `checks/operations.py`."""

from cloud import ROOT

from verify_aws.answers.stub import Given, ok, pair
from verify_aws.checks.operations import QUERY

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

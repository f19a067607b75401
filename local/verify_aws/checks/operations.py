"""The queries of the runbook."""

import re
import time
from typing import Any

from cloud import ROOT

from verify_aws.check import Seen, check
from verify_aws.scratch import Scratch

Json = dict[str, Any]

QUERY = re.compile(r"^```insights\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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

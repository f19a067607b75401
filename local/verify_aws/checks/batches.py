"""Lambda and SQS: which messages of a batch return to the queue. A small function in Python stands for the consumer."""

import functools
import json
import secrets
from typing import Any

from verify_aws.check import NotChecked, Seen, check
from verify_aws.checks.queues import receive
from verify_aws.functions import archive, make_function
from verify_aws.scratch import Scratch

Json = dict[str, Any]

RETURNS = 20  # seconds: the visibility timeout of the queue
GATHERS = 5  # seconds in which Lambda gathers a batch, so that both messages of a case are in one

# It reports each message, with its receive and its invocation, and behaves as the message says at the first receive.
SOURCE = """\
import json, os
import boto3

sqs = boto3.client("sqs")

def handler(event, context):
    failed, ends = [], False
    for record in event["Records"]:
        count = int(record["attributes"]["ApproximateReceiveCount"])
        seen = {"body": record["body"], "count": count, "batch": context.aws_request_id}
        sqs.send_message(QueueUrl=os.environ["SEEN"], MessageBody=json.dumps(seen))
        what = record["body"].split(" ")[0] if count == 1 else "done"
        if what == "fails":
            failed.append({"itemIdentifier": record["messageId"]})
        elif what == "unknown":
            failed.append({"itemIdentifier": "no-such-message"})
        elif what == "exits":
            ends = True
    if ends:
        os._exit(1)
    return {"batchItemFailures": failed}
"""


def make_reporter(scratch: Scratch, suffix: str, source: str, seen_url: str, seen: str) -> str:
    """Creates a function that reads one queue and reports to the other. Returns the function's name."""
    return make_function(
        scratch,
        suffix,
        source,
        [{"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": seen}],
        window=GATHERS,
        Runtime="python3.13",
        Handler="function.handler",
        Code={"ZipFile": archive({"function.py": SOURCE})},
        Timeout=3,
        Environment={"Variables": {"SEEN": seen_url}},
    )


def counts(found: list[Json], case: str) -> tuple[list[int], list[int]]:
    """The receives of the message of a case, and those of its good neighbour."""
    of_case = sorted(one["count"] for one in found if one["body"] == case)
    return of_case, sorted(one["count"] for one in found if one["body"] == f"good beside {case}")


def as_expected(case: str, neighbour: list[int], found: list[Json]) -> bool:
    return counts(found, case) == ([1, 2], neighbour)


@check(needs_stack=False, only_aws="MiniStack takes an unknown id for a success")
def failed_batches_return_as_the_response_says(scratch: Scratch) -> Seen:
    """A message that the response names returns alone. The whole batch returns if the response names an unknown
    message, and if the process exits. Messages that return have not been deleted, and count one receive more.

    Where:
    template.yaml: FunctionResponseTypes: [ReportBatchItemFailures]
    docs/operations.md: worker was killed
    """
    seen_url, seen = scratch.make_queue("batches-seen")
    url, arn = scratch.make_queue("batches", VisibilityTimeout=str(RETURNS))
    make_reporter(scratch, "batches", arn, seen_url, seen)
    found: list[Json] = []

    def read() -> list[Json]:
        for message in receive(scratch, seen_url, VisibilityTimeout=600):
            found.append(json.loads(message["Body"]))
        return found

    observed, problems = [], []
    for what, neighbour in (("fails", [1]), ("unknown", [1, 2]), ("exits", [1, 2])):
        case = f"{what} {secrets.token_hex(4)}"
        bodies = (case, f"good beside {case}")
        entries = [{"Id": str(i), "MessageBody": body} for i, body in enumerate(bodies)]
        scratch.client("sqs").send_message_batch(QueueUrl=url, Entries=entries)
        # Until everything has returned that will, and the neighbour that must not.
        within = 180 if what == "fails" else RETURNS + 60
        scratch.eventually(read, functools.partial(as_expected, case, neighbour), within)
        if what == "fails":
            scratch.rest(RETURNS + GATHERS)
            read()
        batches = {one["batch"] for one in found if case in one["body"] and one["count"] == 1}
        if len(batches) > 1:
            raise NotChecked("Lambda put the two messages of a case into different batches")
        got = counts(found, case)
        observed.append(f"{what}: receives {got[0]}, its neighbour {got[1]}")
        if got != ([1, 2], neighbour):
            problems.append(what)
    return Seen(not problems, "; ".join(observed))

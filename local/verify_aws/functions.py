"""Functions beside the stack: their code, their role and their event source."""

import io
import zipfile
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from verify_aws.check import NotChecked
from verify_aws.scratch import Scratch

Json = dict[str, Any]

# Lambda's least for an event source. The checks run one after the other, so an account with ten executions is enough.
CONCURRENCY = 2
READS = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"]


def archive(files: dict[str, str | Path]) -> bytes:
    """A zip of these files, each of which can be executed: a text, or the path of a file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o755 << 16
            file.writestr(info, content if isinstance(content, str) else content.read_bytes())
    return buffer.getvalue()


def make_function(scratch: Scratch, suffix: str, source: str, allowed: list[Json], window: int, **options: Any) -> str:
    """Creates a function that reads a queue, and whose role has these statements too. Returns its name."""
    name, functions = f"{scratch.name}-{suffix}", scratch.client("lambda")
    # The role may write no logs, but MiniStack asks no role. First, so that the function is deleted before its logs.
    scratch.journal.intends("log-group", name)
    logging = {"LogGroup": name}
    reads = {"Effect": "Allow", "Action": READS, "Resource": source}
    role = scratch.make_role(name, {"Service": "lambda.amazonaws.com"}, reads, *allowed)
    scratch.journal.intends("function", name)

    def create() -> str:
        try:
            functions.create_function(FunctionName=name, Role=role, Tags=scratch.tags, LoggingConfig=logging, **options)
        except ClientError as refused:
            return str(refused.response["Error"]["Message"])
        return ""

    # IAM needs some seconds until Lambda can assume a new role.
    if refused := scratch.eventually(create, lambda reason: not reason, within=60, pause=5):
        raise NotChecked(f"the function was not created: {refused}")
    functions.get_waiter("function_active_v2").wait(FunctionName=name)
    functions.create_event_source_mapping(
        EventSourceArn=source,
        FunctionName=name,
        BatchSize=10,
        MaximumBatchingWindowInSeconds=window,
        FunctionResponseTypes=["ReportBatchItemFailures"],
        ScalingConfig={"MaximumConcurrency": CONCURRENCY},
    )
    return name


def change_variables(scratch: Scratch, name: str, **changed: str | None) -> dict[str, str]:
    """Changes variables of a function, or removes one whose value is None. Returns the variables as they were."""
    functions = scratch.client("lambda")
    before: dict[str, str] = functions.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
    after = {name: value for name, value in (before | changed).items() if value is not None}
    functions.update_function_configuration(FunctionName=name, Environment={"Variables": after})
    functions.get_waiter("function_updated_v2").wait(FunctionName=name)
    return before

"""`make test-aws`: runs suites on AWS or on a local cloud, deploys template.yaml there, and deletes all of it.

On the stack it runs the tool, and reads whether a deployment ends a pause of the consumer.

    python tools/test_aws.py ACCOUNT REGION COMMAND...       COMMAND runs the suites
    python tools/test_aws.py ACCOUNT REGION --delete RUN     deletes what a killed run left

It writes only if ACCOUNT is the account of the credentials. 000000000000 is that of the emulator at AWS_ENDPOINT_URL,
or else of a new MiniStack.
"""

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import cloud as local_cloud
import demo
import deployment
from botocore.exceptions import BotoCoreError, ClientError
from cloud import ROOT, STATE, Cloud, MiniStack, Unavailable, uninterrupted, unwind_on_signals, with_whole_calls
from deployment import Failed, say

EMULATED = "0" * 12
NAME = "sqs-once-test-"
SETTLE_WITHIN = 180.0
TOOL = ROOT / "target" / "debug" / "sqs-once"
PARAMETERS = {
    "PaymentGatewayUrl": "sandbox",
    "LogRetentionDays": "1",
    "MaximumConcurrency": "2",  # the least: an account may have ten concurrent executions
}


@dataclass(frozen=True)
class Aws(Cloud):
    """AWS itself, with the credentials of the shell."""

    session: Any

    def client(self, service: str) -> Any:
        return with_whole_calls(self.session.client(service))

    def environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        keys = self.session.get_credentials().get_frozen_credentials()
        names = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        region = self.session.region_name
        values = (region, region, keys.access_key, keys.secret_key, keys.token or "")
        return inherited | {name: value for name, value in zip(names, values, strict=True) if value}


@contextlib.contextmanager
def services(account: str, region: str) -> Iterator[Cloud]:
    """The services of this account, after a comparison with the account of the credentials."""
    with contextlib.ExitStack() as running:
        if account == EMULATED:
            cloud = running.enter_context(local_cloud.cloud("test-aws"))
        elif redirected := sorted(name for name in os.environ if name.startswith("AWS_ENDPOINT_URL")):
            raise Unavailable(f"ACCOUNT={account} is one of AWS, and {', '.join(redirected)} names another endpoint")
        else:
            cloud = Aws("", boto3.Session(region_name=region))
        try:
            caller = cloud.client("sts").get_caller_identity()["Account"]
        except (BotoCoreError, ClientError) as problem:
            raise Unavailable(f"no account to compare with ACCOUNT={account}: {problem}") from None
        if caller != account:
            raise Unavailable(f"the credentials are those of account {caller}, not of ACCOUNT={account}")
        yield cloud


# ---- the deployed template ---------------------------------------------------------------------


def deployed(cloud: Cloud, run: str) -> list[str]:
    """Deploys the template, sends orders, and returns how their outcomes differ from the expected ones.

    Skips an emulator at AWS_ENDPOINT_URL, because it may run functions in containers that are too old for this build.
    """
    say("deploying template.yaml, and sending orders")
    if isinstance(cloud, Aws):
        architecture = deployment.parameters(Architecture=deployment.architecture())
        deployment.sam("build", *architecture, environment=dict(os.environ))
    else:
        demo.build()
    s3, region = cloud.client("s3"), cloud.client("s3").meta.region_name
    # S3 refuses the name of this one Region.
    where = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    s3.create_bucket(Bucket=run, **where)
    outputs = deployment.deploy(cloud, run, "--no-resolve-s3", "--s3-bucket", run, **PARAMETERS)

    paid = json.dumps({"orderId": "paid", "amount": 1, "currency": "EUR", "paymentToken": "tok_visa"})
    declined = json.dumps({"orderId": "declined", "amount": 1, "currency": "EUR", "paymentToken": "tok_chargeDeclined"})
    deployment.send(cloud, outputs["QueueUrl"], [paid, paid, declined, "not JSON"])
    expected = {
        "records": {("paid", "COMPLETED", "1"), ("declined", "FAILED", "1")},
        "dead letters": {(declined, "permanent_failure"), ("not JSON", "invalid")},
        "left in the queue": {0},
    }
    letters: set[tuple[str, str]] = set()  # SQS does not show all messages to each receive
    deadline = time.monotonic() + SETTLE_WITHIN
    while True:
        for letter in deployment.received(cloud, outputs["DeadLetterQueueUrl"]):
            reason = letter.get("MessageAttributes", {}).get("SqsOnceReason", {}).get("StringValue", "moved_by_sqs")
            letters.add((letter["Body"], reason))
        records = deployment.items(cloud, outputs["TableName"])
        found = {
            "records": {
                (r["id"]["S"].split("#")[-1], r["status"]["S"], r.get("attempts", {"N": "1"})["N"]) for r in records
            },
            "dead letters": letters,
            "left in the queue": {sum(deployment.depth(cloud, outputs["QueueUrl"]))},
        }
        if found == expected or time.monotonic() > deadline:
            break
        time.sleep(1)
    problems = [
        f"{what}: {found[what]}, expected {expected[what]}" for what in expected if found[what] != expected[what]
    ]
    return problems + with_tool(cloud, run, outputs) + paused(cloud, run, outputs)


def with_tool(cloud: Cloud, stack: str, outputs: dict[str, str]) -> list[str]:
    """Returns where the tool fails to find what is there."""
    say("running sqs-once doctor, dlq list and dlq redrive --dry-run")
    # MiniStack ignores TTL in a template, and does not know whose dead-letter queue a queue is.
    skipped, to = ((), ()) if isinstance(cloud, Aws) else (("--skip", "ttl"), ("--to", outputs["QueueUrl"]))
    dead_letters, problems = outputs["DeadLetterQueueUrl"], []
    for words in (
        ("doctor", stack, *skipped),
        ("dlq", "list", dead_letters),
        ("dlq", "redrive", dead_letters, "--all", "--dry-run", *to),
    ):
        ended = subprocess.run([TOOL, *words], env=cloud.environment(), capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            problems.append(f"sqs-once {' '.join(words)}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return problems


def paused(cloud: Cloud, stack: str, outputs: dict[str, str]) -> list[str]:
    """Returns an error if a deployment that changes the mapping resumes a consumer that somebody has paused."""
    say("pausing the consumer, and deploying another MaximumConcurrency")
    functions, mapping = cloud.client("lambda"), outputs["EventSourceMappingId"]
    functions.update_event_source_mapping(UUID=mapping, Enabled=False)
    settled(functions, mapping)
    deployment.deploy(cloud, stack, "--no-resolve-s3", "--s3-bucket", stack, **PARAMETERS | {"MaximumConcurrency": "3"})
    state = settled(functions, mapping)
    return [] if state == "Disabled" else [f"a deployment made the paused mapping {state}"]


def settled(functions: Any, mapping: str) -> str:
    deadline = time.monotonic() + SETTLE_WITHIN
    while True:
        state: str = functions.get_event_source_mapping(UUID=mapping)["State"]
        if state in ("Enabled", "Disabled") or time.monotonic() > deadline:
            return state
        time.sleep(1)


# ---- the end of a run --------------------------------------------------------------------------


def delete(cloud: Cloud, run: str) -> None:
    """Deletes all that has the name of the run in its own. A failure does not keep the rest from being deleted."""
    left = []
    # The function of the stack uses the others, which the stack leaves behind.
    for step in (delete_stack, delete_tables, delete_queues, delete_log_groups, delete_bucket):
        try:
            step(cloud, run)
        except (BotoCoreError, ClientError) as problem:
            left.append(f"{step.__name__}: {problem}")
    if left:
        raise Failed(f"what has {run} in its name is left, in part. Run it with --delete {run}\n" + "\n".join(left))
    if isinstance(cloud, Aws):
        say("DynamoDB keeps a backup of each deleted table for 35 days. It costs nothing, and deletes itself")


def delete_stack(cloud: Cloud, run: str) -> None:
    cloudformation = cloud.client("cloudformation")
    cloudformation.delete_stack(StackName=run)
    waiter = cloudformation.get_waiter("stack_delete_complete")
    waiter.wait(StackName=run, WaiterConfig={"Delay": 2, "MaxAttempts": 450})


def delete_tables(cloud: Cloud, run: str) -> None:
    dynamodb = cloud.client("dynamodb")
    pages = dynamodb.get_paginator("list_tables").paginate()
    for name in [name for page in pages for name in page["TableNames"] if name.startswith(run)]:
        with contextlib.suppress(dynamodb.exceptions.ResourceNotFoundException):
            while (table := dynamodb.describe_table(TableName=name)["Table"])["TableStatus"] != "DELETING":
                if table["TableStatus"] != "ACTIVE":
                    time.sleep(1)
                elif table.get("DeletionProtectionEnabled"):
                    dynamodb.update_table(TableName=name, DeletionProtectionEnabled=False)
                else:
                    dynamodb.delete_table(TableName=name)


def delete_queues(cloud: Cloud, run: str) -> None:
    sqs = cloud.client("sqs")
    for url in sqs.list_queues(QueueNamePrefix=run).get("QueueUrls", []):
        # SQS lists a deleted queue for up to a minute.
        with contextlib.suppress(sqs.exceptions.QueueDoesNotExist):
            sqs.delete_queue(QueueUrl=url)


def delete_log_groups(cloud: Cloud, run: str) -> None:
    logs = cloud.client("logs")
    pages = logs.get_paginator("describe_log_groups").paginate(logGroupNamePattern=run)
    for name in [group["logGroupName"] for page in pages for group in page["logGroups"]]:
        if run in name:
            logs.delete_log_group(logGroupName=name)


def delete_bucket(cloud: Cloud, run: str) -> None:
    s3 = cloud.client("s3")
    with contextlib.suppress(s3.exceptions.NoSuchBucket):
        for item in s3.list_objects_v2(Bucket=run).get("Contents", []):
            s3.delete_object(Bucket=run, Key=item["Key"])
        s3.delete_bucket(Bucket=run)


# ------------------------------------------------------------------------------------------------


def main() -> int:
    unwind_on_signals()
    STATE.mkdir(exist_ok=True)
    match sys.argv[1:]:
        case [account, region, "--delete", run] if re.fullmatch(NAME + "[0-9a-f]{8}", run):
            with services(account, region) as cloud:
                delete(cloud, run)
            return 0
        case [account, region, program, *arguments] if re.fullmatch("[0-9]{12}", account) and region:
            pass
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    run = NAME + secrets.token_hex(4)
    with services(account, region) as cloud:
        say(f"{run} in account {account}")
        say(f"after a kill -9: .venv/bin/python tools/test_aws.py {account} {region} --delete {run}")
        try:
            variables = {"SQS_ONCE_TEST_ACCOUNT": account, "SQS_ONCE_TEST_RUN": run}
            status = local_cloud.run([program, *arguments], cloud.environment() | variables)
            problems = deployed(cloud, run) if isinstance(cloud, Aws | MiniStack) else []
        finally:
            with uninterrupted():
                delete(cloud, run)
    for problem in problems:
        print(f"the deployed template: {problem}", file=sys.stderr)
    return status or bool(problems)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, Unavailable) as problem:
        sys.exit(f"make test-aws: {problem}")

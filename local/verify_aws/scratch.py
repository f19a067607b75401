"""The resources on which the checks work: the stack of template.yaml, a table and a queue beside it.

Each is noted in the journal before it is created, has the run in its name, and has the run's tag.
"""

import io
import json
import secrets
import subprocess
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import deployment
import yaml
from botocore.exceptions import ClientError, WaiterError
from cloud import ROOT, STATE, Cloud, Template

from verify_aws import account
from verify_aws.journal import Journal

TAG = "sqs-once-verify"
BOOTSTRAP = ROOT / "target" / "lambda" / "consumer" / "bootstrap"
TOOL = ROOT / "target" / "debug" / "sqs-once"
KEY = "body:/orderId"

# An account has at least ten concurrent executions. Lambda's least for an event source is two.
PARAMETERS = {
    "PaymentGatewayUrl": "sandbox",
    "IdempotencyKey": KEY,
    "MaximumConcurrency": "2",
    "ConsumerMetricsWriteUnits": "on",
    "LogRetentionDays": "1",
}
CAPABILITIES = ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]

T = TypeVar("T")
Json = dict[str, Any]


class DeployFailed(Exception):
    """CloudFormation did not create the stack; the message has its reasons."""


def new_run() -> str:
    return secrets.token_hex(4)


def name_of(run: str) -> str:
    """The name of the run's stack, and of everything else that belongs to the run."""
    return f"{TAG}-{run}"


@dataclass
class Scratch:
    """The cloud, the journal and the resources for a check."""

    cloud: Cloud
    journal: Journal
    emulated: bool
    architecture: str
    outputs: Mapping[str, str] = field(default_factory=dict)
    topic: str = ""  # of the alarms
    postgres: str = ""  # the URL of a database, by choice
    used: set[str] = field(default_factory=set)
    # The tests make this 0, so that each answer is read once.
    patience: float = 1.0
    clock: Callable[[], float] = time.monotonic
    _clients: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return name_of(self.journal.run)

    @property
    def table(self) -> str:
        """A table with the key of template.yaml's, for requests without the consumer."""
        return f"{self.name}-table"

    @property
    def tags(self) -> dict[str, str]:
        return {TAG: self.journal.run}

    @property
    def tag_list(self) -> list[dict[str, str]]:
        return [{"Key": TAG, "Value": self.journal.run}]

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = account.watch(self.cloud.client(service), self.used)
        return self._clients[service]

    def key(self, value: str) -> Json:
        return {"id": {"S": value}}

    def eventually(self, read: Callable[[], T], done: Callable[[T], bool], within: float, pause: float = 2.0) -> T:
        """Reads until it is done, or the time is over. Returns the last value."""
        deadline = time.monotonic() + within * self.patience
        while not done(value := read()) and time.monotonic() < deadline:
            time.sleep(pause)
        return value

    def rest(self, seconds: float) -> None:
        time.sleep(seconds * self.patience)

    def tool(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs `sqs-once`, without variables that name another table or database."""
        variables = self.cloud.environment().items()
        return subprocess.run(
            [str(TOOL), *words],
            env={name: value for name, value in variables if not name.startswith("IDEMPOTENCY_")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    # ---- creation --------------------------------------------------------------------------------

    def make_table(self, name: str, **options: Any) -> None:
        self.journal.intends("table", name)
        dynamodb = self.client("dynamodb")
        schema: Json = {
            "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "Tags": self.tag_list,
        }
        dynamodb.create_table(TableName=name, **({"BillingMode": "PAY_PER_REQUEST"} | schema | options))

    def wait_for_table(self, name: str) -> None:
        self.client("dynamodb").get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})

    def make_queue(self, suffix: str, **attributes: str) -> tuple[str, str]:
        """Creates a queue, and returns its URL and its ARN."""
        name = f"{self.name}-{suffix}"
        self.journal.intends("queue", name)
        sqs = self.client("sqs")
        url = sqs.create_queue(QueueName=name, Attributes=attributes, tags=self.tags)["QueueUrl"]
        got = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
        return str(url), str(got["QueueArn"])

    def make_role(self, name: str, principal: Json, *allowed: Json) -> str:
        """Creates a role that the principal can assume, with the allowed statements. Returns its ARN."""
        self.journal.intends("role", name)
        iam = self.client("iam")
        trust = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
        role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=policy(trust), Tags=self.tag_list)["Role"]
        iam.put_role_policy(RoleName=name, PolicyName="allowed", PolicyDocument=policy(*allowed))
        return str(role["Arn"])


def policy(*statements: Json) -> str:
    """A document of IAM."""
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


# ---- the topic -----------------------------------------------------------------------------------


def notify(scratch: Scratch) -> str:
    """Creates a topic for the alarms, and a queue that receives its notifications. Returns the topic's ARN."""
    url, queue = scratch.make_queue("alarms")
    sns, name = scratch.client("sns"), f"{scratch.name}-alarms"
    scratch.journal.intends("topic", name)
    topic = str(sns.create_topic(Name=name, Tags=scratch.tag_list)["TopicArn"])
    allow = {
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue,
        "Condition": {"ArnEquals": {"aws:SourceArn": topic}},
    }
    scratch.client("sqs").set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy(allow)})
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue)
    return topic


# ---- the stack -----------------------------------------------------------------------------------


def template(bootstrap_key: str, bucket: str) -> str:
    """template.yaml with the uploaded function in the place of its sources."""
    read = yaml.load((ROOT / "template.yaml").read_text(), Loader=Template)
    read["Resources"]["Consumer"]["Properties"]["CodeUri"] = f"s3://{bucket}/{bootstrap_key}"
    return yaml.safe_dump(read, sort_keys=False)


def zipped(bootstrap: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(bootstrap, "bootstrap")
    return buffer.getvalue()


def prepare(scratch: Scratch) -> None:
    """Creates the bucket of the deployment, and the table."""
    s3 = scratch.client("s3")
    scratch.journal.intends("bucket", scratch.name)
    region = s3.meta.region_name
    # us-east-1 is the one Region that S3 refuses to hear named.
    where = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    s3.create_bucket(Bucket=scratch.name, **where)
    s3.put_bucket_tagging(Bucket=scratch.name, Tagging={"TagSet": scratch.tag_list})
    scratch.make_table(scratch.table)
    scratch.wait_for_table(scratch.table)


def deploy(scratch: Scratch, others: list[tuple[str, dict[str, str]]]) -> None:
    """Deploys template.yaml as it is, or on an emulator with the replacements of local/deployment.py.

    The other stacks are created at the same time, and their checks wait for them.
    """
    upload(scratch)
    scratch.topic = notify(scratch)
    begin_stack(scratch, scratch.name)
    for suffix, changed in dict(others).items():
        begin_stack(scratch, f"{scratch.name}-{suffix}", **changed)
    scratch.outputs = finish_stack(scratch, scratch.name)


def upload(scratch: Scratch) -> None:
    """Uploads the function and the template."""
    s3, name = scratch.client("s3"), scratch.name
    s3.put_object(Bucket=name, Key="bootstrap.zip", Body=zipped(BOOTSTRAP))
    body = template("bootstrap.zip", name)
    if scratch.emulated:
        body = adapted(body)
    s3.put_object(Bucket=name, Key="template.yaml", Body=body.encode())


def begin_stack(scratch: Scratch, name: str, **changed: str) -> None:
    """Begins the creation of a stack of the uploaded template."""
    values = {"Architecture": scratch.architecture, "AlarmTopicArn": scratch.topic} | PARAMETERS | changed
    scratch.journal.intends("stack", name)
    scratch.client("cloudformation").create_stack(
        StackName=name,
        TemplateURL=f"{scratch.client('s3').meta.endpoint_url}/{scratch.name}/template.yaml",
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in values.items()],
        Capabilities=CAPABILITIES,
        Tags=scratch.tag_list,
    )


def finish_stack(scratch: Scratch, name: str) -> dict[str, str]:
    """Waits for a stack. Returns its outputs."""
    cloudformation = scratch.client("cloudformation")
    try:
        cloudformation.get_waiter("stack_create_complete").wait(
            StackName=name, WaiterConfig={"Delay": 1 if scratch.emulated else 5, "MaxAttempts": 240}
        )
    except WaiterError as ended:
        raise DeployFailed(reasons(cloudformation, name) or str(ended)) from None
    described = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
    return {o["OutputKey"]: o["OutputValue"] for o in described["Outputs"]}


def adapted(body: str) -> str:
    file = STATE / "verify-aws" / f"adapted-{secrets.token_hex(4)}.yaml"
    file.write_text(body)
    try:
        deployment.adapt(file)
        return file.read_text()
    finally:
        file.unlink()


def reasons(cloudformation: Any, name: str) -> str:
    """Why CloudFormation could not create resources of the stack."""
    found = []
    try:
        for page in cloudformation.get_paginator("describe_stack_events").paginate(StackName=name):
            for event in page["StackEvents"]:
                if event["ResourceStatus"].endswith("FAILED") and "cancelled" not in event.get(
                    "ResourceStatusReason", ""
                ):
                    found.append(f"{event['LogicalResourceId']}: {event.get('ResourceStatusReason')}")
    except ClientError as problem:
        return str(problem)
    return "; ".join(reversed(found))

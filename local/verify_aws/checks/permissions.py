"""Least privilege: which action of IAM each request of the consumer needs.

A role that this account may assume has the actions of template.yaml on scratch resources. The requests are sent under a
session policy that leaves out one action: session policies take effect at once, changes of a role within minutes.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.exceptions import ClientError
from policies import resolved

from verify_aws.account import DENIED
from verify_aws.check import NotChecked, Seen, check
from verify_aws.checks.deployed import read_template
from verify_aws.scratch import Scratch, policy

Json = dict[str, Any]

ENFORCED = "MiniStack enforces no policy"
LATER = 60.0  # seconds until a new role can be assumed everywhere
# They need a customer key, which only the slow checks have.
WITH_A_KEY = {"kms:Decrypt", "kms:GenerateDataKey"}

# The client of a service under assumed credentials; the tests replace it.
connect: Callable[..., Any] = boto3.client


def actions_of_the_template() -> set[str]:
    """The actions of the consumer's role, those of every option included."""
    role = resolved(read_template()["Resources"]["ConsumerRole"], 0)
    found: set[str] = set()
    for statement in role["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]:
        named = statement["Action"]
        found.update([named] if isinstance(named, str) else named)
    return found


@dataclass(frozen=True)
class Places:
    """Scratch resources in the place of the template's."""

    table: str
    queue: str  # its URL, as of the next
    dead_letters: str
    bucket: str
    log_group: str


PRESENT, STREAM = "results/present", "stream"
NO_RECEIPT = "none"


@dataclass(frozen=True)
class Request:
    """A request of the consumer, or of Lambda with the consumer's role, and the actions that it needs."""

    service: str
    method: str
    arguments: Json
    needs: frozenset[str]


def requests(at: Places) -> dict[str, Request]:
    """Requests for each action. They find nothing to change, or change nothing that matters."""
    key, absent = {"id": {"S": "no-such-item"}}, {"ConditionExpression": "attribute_exists(id)"}
    update = {"UpdateExpression": "SET touched = :t", "ExpressionAttributeValues": {":t": {"N": "1"}}} | absent
    insert = f"INSERT INTO \"{at.table}\" VALUE {{'id': ?}}"
    change = f'UPDATE "{at.table}" SET "touched" = ? WHERE "id" = ?'
    new = [{"S": secrets.token_hex(4)}]
    receipts = [{"Id": "0", "ReceiptHandle": NO_RECEIPT, "VisibilityTimeout": 0}]
    line = [{"timestamp": int(time.time() * 1000), "message": "{}"}]
    of_table, in_bucket = {"TableName": at.table}, {"Bucket": at.bucket}
    of_queue, of_dead = {"QueueUrl": at.queue}, {"QueueUrl": at.dead_letters}
    stream = {"logGroupName": at.log_group, "logStreamName": STREAM}
    found: dict[str, Request] = {}

    def add(name: str, service: str, method: str, arguments: Json, *needs: str) -> None:
        found[name] = Request(service, method, arguments, frozenset(f"{service}:{action}" for action in needs))

    def write(name: str, kind: str, arguments: Json, action: str) -> None:
        add(
            f"{name} in a transaction",
            "dynamodb",
            "transact_write_items",
            {"TransactItems": [{kind: arguments}]},
            action,
        )

    add("PutItem", "dynamodb", "put_item", of_table | {"Item": key} | absent, "PutItem")
    write("PutItem", "Put", of_table | {"Item": key} | absent, "PutItem")
    add("UpdateItem", "dynamodb", "update_item", of_table | {"Key": key} | update, "UpdateItem")
    write("UpdateItem", "Update", of_table | {"Key": key} | update, "UpdateItem")
    add("DeleteItem", "dynamodb", "delete_item", of_table | {"Key": key} | absent, "DeleteItem")
    add("GetItem", "dynamodb", "get_item", of_table | {"Key": key}, "GetItem")
    for name, text, values in (("Insert", insert, new), ("Update", change, [{"N": "1"}, key["id"]])):
        statements = {"Statements": [{"Statement": text, "Parameters": values}]}
        add(f"PartiQL{name}", "dynamodb", "batch_execute_statement", statements, f"PartiQL{name}")
    add("ReceiveMessage", "sqs", "receive_message", of_queue, "ReceiveMessage")
    add("DeleteMessage", "sqs", "delete_message", of_queue | {"ReceiptHandle": NO_RECEIPT}, "DeleteMessage")
    attributes = of_queue | {"AttributeNames": ["QueueArn"]}
    add("GetQueueAttributes", "sqs", "get_queue_attributes", attributes, "GetQueueAttributes")
    for which, url in (("queue", at.queue), ("dead-letter queue", at.dead_letters)):
        add(f"GetQueueUrl of the {which}", "sqs", "get_queue_url", {"QueueName": url.rsplit("/", 1)[-1]}, "GetQueueUrl")
    batch = of_queue | {"Entries": receipts}
    add("ChangeMessageVisibility", "sqs", "change_message_visibility_batch", batch, "ChangeMessageVisibility")
    add("SendMessage", "sqs", "send_message", of_dead | {"MessageBody": "{}"}, "SendMessage")
    add("PutObject", "s3", "put_object", in_bucket | {"Key": "results/new"}, "PutObject")
    add("GetObject", "s3", "get_object", in_bucket | {"Key": PRESENT}, "GetObject")
    # Without s3:ListBucket, a missing object looks like a missing permission.
    add("GetObject without an object", "s3", "get_object", in_bucket | {"Key": "results/no"}, "GetObject", "ListBucket")
    add("CreateLogStream", "logs", "create_log_stream", stream, "CreateLogStream")
    add("PutLogEvents", "logs", "put_log_events", stream | {"logEvents": line}, "PutLogEvents")
    return found


def denied(client: Any, request: Request) -> bool:
    """Tells if a request is denied, as a whole or in its only statement or entry."""
    try:
        answer = getattr(client, request.method)(**request.arguments)
    except ClientError as error:
        return error.response["Error"]["Code"] in DENIED
    errors = [response.get("Error", {}).get("Code") for response in answer.get("Responses", [])]
    errors += [entry.get("Code") for entry in answer.get("Failed", [])]
    return any(error in DENIED for error in errors)


def assume(scratch: Scratch, arn: str, allowed: list[str]) -> Callable[[str], Any]:
    """Makes clients that may use these actions only."""
    answer = scratch.client("sts").assume_role(
        RoleArn=arn,
        RoleSessionName=scratch.name,
        Policy=policy({"Effect": "Allow", "Action": allowed, "Resource": "*"}),
    )
    given, clients = answer["Credentials"], {}

    def client(service: str) -> Any:
        if service not in clients:
            clients[service] = connect(
                service,
                region_name=scratch.client("sqs").meta.region_name,
                aws_access_key_id=given["AccessKeyId"],
                aws_secret_access_key=given["SecretAccessKey"],
                aws_session_token=given["SessionToken"],
            )
        return clients[service]

    return client


def make_role(scratch: Scratch, every: list[str]) -> tuple[str, Places]:
    """Makes the resources, and a role with these actions on them that this account may assume."""
    url, queue = scratch.make_queue("permissions")
    dead_url, dead = scratch.make_queue("permissions-dead")
    group = f"{scratch.name}-permissions"
    scratch.journal.intends("log-group", group)
    scratch.client("logs").create_log_group(logGroupName=group, tags=scratch.tags)
    scratch.client("s3").put_object(Bucket=scratch.name, Key=PRESENT)
    caller = scratch.client("sts").get_caller_identity()
    partition, account = caller["Arn"].split(":")[1], caller["Account"]
    here = f"{scratch.client('sqs').meta.region_name}:{account}"
    bucket = f"arn:{partition}:s3:::{scratch.name}"
    resources = [
        f"arn:{partition}:dynamodb:{here}:table/{scratch.table}",
        *(queue, dead, bucket, f"{bucket}/results/*"),
        f"arn:{partition}:logs:{here}:log-group:{group}:*",
    ]
    role = scratch.make_role(
        f"{scratch.name}-permissions",
        {"AWS": f"arn:{partition}:iam::{account}:root"},
        {"Effect": "Allow", "Action": every, "Resource": resources},
    )
    return role, Places(scratch.table, url, dead_url, scratch.name, group)


@check(needs_stack=False, only_aws=ENFORCED)
def role_without_one_action_is_denied_its_requests(scratch: Scratch) -> Seen:
    """With all actions of template.yaml's role, no request of the consumer is denied. Without one of them, the requests
    that need it are denied, and no others. A batch of visibility timeouts needs the action of a single one, a batch of
    statements those of PartiQL, a transaction those of its writes, and a read of a missing object s3:ListBucket.

    Where:
    template.yaml: PolicyName: charge-orders-once
    SECURITY.md: `ChangeMessageVisibility`
    """
    every = sorted(actions_of_the_template() - WITH_A_KEY)
    role, places = make_role(scratch, every)
    wanted = requests(places)
    scratch.rest(LATER)

    def refused(allowed: list[str]) -> set[str]:
        client = assume(scratch, role, allowed)
        return {name for name, request in wanted.items() if denied(client(request.service), request)}

    # A new role is known everywhere only after a while.
    too_few = scratch.eventually(lambda: refused(every), lambda found: not found, within=60, pause=10)
    if len(too_few) == len(wanted):
        raise NotChecked("the new role had no permission after two minutes")
    problems = [f"denied with all actions: {', '.join(sorted(too_few))}"] * bool(too_few)
    for action in every:
        found = refused([other for other in every if other != action])
        needing = {name for name, request in wanted.items() if action in request.needs}
        problems += [f"without {action}, allowed: {name}" for name in sorted(needing - found)]
        problems += [f"without {action}, denied: {name}" for name in sorted(found - needing - too_few)]
    return Seen(not problems, "; ".join(problems) or f"{len(every)} actions left out, {len(wanted)} requests each time")


@check(only_aws=ENFORCED)
def deployed_role_is_denied_nothing(scratch: Scratch) -> Seen:
    """The consumer is denied nothing with the role of template.yaml.

    Where:
    template.yaml: ConsumerRole
    SECURITY.md: and nothing else
    """
    pages = scratch.client("logs").get_paginator("filter_log_events")
    group = scratch.outputs["LogGroupName"]
    found = [e for page in pages.paginate(logGroupName=group, filterPattern='"AccessDenied"') for e in page["events"]]
    return Seen(not found, f"{len(found)} lines of the log name AccessDenied")

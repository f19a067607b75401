"""Least privilege: which action of IAM each request of the consumer needs.

A role that this account may assume has the actions of template.yaml on the scratch table and a scratch queue. Each
request is sent under a session policy that leaves out one action: session policies take effect at once, changes of a
role within minutes.
"""

import secrets
from collections.abc import Callable
from typing import Any

import boto3
from botocore.exceptions import ClientError

from verify_aws.account import DENIED
from verify_aws.check import NotChecked, Seen, check
from verify_aws.scratch import Scratch, policy

Json = dict[str, Any]

ENFORCED = "MiniStack enforces no policy"
LATER = 60.0  # seconds until a new role can be assumed everywhere

# The client of a service under assumed credentials; the tests replace it.
connect: Callable[..., Any] = boto3.client


def requests(scratch: Scratch, url: str) -> dict[str, tuple[str, str, Json]]:
    """One request for each action: service, method and arguments. They find nothing to change."""
    key, table = scratch.key("no-such-item"), scratch.table
    absent = {"ConditionExpression": "attribute_exists(id)"}
    update = {"UpdateExpression": "SET touched = :t", "ExpressionAttributeValues": {":t": {"N": "1"}}}
    insert = {"Statement": f"INSERT INTO \"{table}\" VALUE {{'id': ?}}", "Parameters": [{"S": secrets.token_hex(4)}]}
    change = {"Statement": f'UPDATE "{table}" SET "touched" = ? WHERE "id" = ?', "Parameters": [{"N": "1"}, key["id"]]}
    transaction = [{"Update": {"TableName": table, "Key": key} | update | absent}]
    receipts = [{"Id": "0", "ReceiptHandle": "none", "VisibilityTimeout": 0}]
    return {
        "dynamodb:PutItem": ("dynamodb", "put_item", {"TableName": table, "Item": key} | absent),
        "dynamodb:UpdateItem": ("dynamodb", "update_item", {"TableName": table, "Key": key} | update | absent),
        "dynamodb:UpdateItem in a transaction": ("dynamodb", "transact_write_items", {"TransactItems": transaction}),
        "dynamodb:DeleteItem": ("dynamodb", "delete_item", {"TableName": table, "Key": key} | absent),
        "dynamodb:GetItem": ("dynamodb", "get_item", {"TableName": table, "Key": key}),
        "dynamodb:PartiQLInsert": ("dynamodb", "batch_execute_statement", {"Statements": [insert]}),
        "dynamodb:PartiQLUpdate": ("dynamodb", "batch_execute_statement", {"Statements": [change]}),
        "sqs:GetQueueUrl": ("sqs", "get_queue_url", {"QueueName": url.rsplit("/", 1)[-1]}),
        "sqs:GetQueueAttributes": ("sqs", "get_queue_attributes", {"QueueUrl": url, "AttributeNames": ["QueueArn"]}),
        "sqs:ChangeMessageVisibility": (
            "sqs",
            "change_message_visibility_batch",
            {"QueueUrl": url, "Entries": receipts},
        ),
        "sqs:SendMessage": ("sqs", "send_message", {"QueueUrl": url, "MessageBody": "{}"}),
    }


def denied(client: Any, method: str, arguments: Json) -> bool:
    """Tells if a request is denied, as a whole or in its only statement or entry."""
    try:
        answer = getattr(client, method)(**arguments)
    except ClientError as error:
        return error.response["Error"]["Code"] in DENIED
    errors = [response.get("Error", {}).get("Code") for response in answer.get("Responses", [])]
    errors += [entry.get("Code") for entry in answer.get("Failed", [])]
    return any(error in DENIED for error in errors)


def assume(scratch: Scratch, arn: str, allowed: list[str]) -> Callable[[str], Any]:
    """Makes clients that may use these actions only."""
    allow = {"Effect": "Allow", "Action": allowed or ["sts:GetCallerIdentity"], "Resource": "*"}
    answer = scratch.client("sts").assume_role(
        RoleArn=arn,
        RoleSessionName=scratch.name,
        Policy=policy(allow),
    )
    given = answer["Credentials"]

    def client(service: str) -> Any:
        return connect(
            service,
            region_name=scratch.client("sqs").meta.region_name,
            aws_access_key_id=given["AccessKeyId"],
            aws_secret_access_key=given["SecretAccessKey"],
            aws_session_token=given["SessionToken"],
        )

    return client


@check(needs_stack=False, only_aws=ENFORCED)
def each_request_needs_its_one_action(scratch: Scratch) -> Seen:
    """Each request of the consumer is allowed with the actions of template.yaml, and denied without the one that the
    table of permissions names for it. A batch of visibility timeouts needs the action of a single one, a batch of
    statements those of PartiQL, and a transaction those of its writes.

    Where:
    template.yaml: PolicyName: charge-orders-once
    SECURITY.md: `ChangeMessageVisibility`
    """
    url, queue = scratch.make_queue("permissions")
    wanted = requests(scratch, url)
    every = sorted({name.split(" ")[0] for name in wanted})
    caller = scratch.client("sts").get_caller_identity()
    partition = caller["Arn"].split(":")[1]
    table = (
        f"arn:{partition}:dynamodb:{scratch.client('sqs').meta.region_name}:{caller['Account']}:table/{scratch.table}"
    )
    role = scratch.make_role(
        f"{scratch.name}-permissions",
        {"AWS": f"arn:{partition}:iam::{caller['Account']}:root"},
        {"Effect": "Allow", "Action": every, "Resource": [table, queue]},
    )
    scratch.rest(LATER)

    def refused_with_all() -> list[str]:
        client = assume(scratch, role, every)
        return [action for action, (service, method, given) in wanted.items() if denied(client(service), method, given)]

    # A new role is known everywhere only after a while.
    too_few = scratch.eventually(refused_with_all, lambda found: not found, within=60, pause=10)
    if len(too_few) == len(wanted):
        raise NotChecked("the new role had no permission after two minutes")
    too_many = []
    for action, (service, method, given) in wanted.items():
        without = [other for other in every if other != action.split(" ")[0]]
        if not denied(assume(scratch, role, without)(service), method, given):
            too_many.append(action)
    problems = [f"denied with all actions: {', '.join(too_few)}"] * bool(too_few)
    problems += [f"allowed without it: {', '.join(too_many)}"] * bool(too_many)
    return Seen(not problems, "; ".join(problems) or f"{len(wanted)} requests, each with its action")


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

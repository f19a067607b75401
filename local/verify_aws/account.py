"""The account in which a run works: its clients, the caller, and the actions that the caller needs."""

import os
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from cloud import Cloud

PAGE = "docs/verify-aws.md#the-least-policy"
DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError", "Forbidden", "403")

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

# IAM's prefix of a service, and its action for an operation, where they are not those of botocore.
PREFIXES = {"resourcegroupstaggingapi": "tag"}
ACTIONS = {
    "s3:DeleteObjects": ["s3:DeleteObject"],
    "s3:HeadBucket": ["s3:ListBucket"],
    "s3:HeadObject": ["s3:GetObject"],
    "s3:ListObjectsV2": ["s3:ListBucket"],
    "dynamodb:BatchExecuteStatement": ["dynamodb:PartiQLInsert", "dynamodb:PartiQLUpdate"],
    "dynamodb:TransactWriteItems": ["dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:ConditionCheckItem"],
    "sqs:ChangeMessageVisibilityBatch": ["sqs:ChangeMessageVisibility"],
    "sqs:SendMessageBatch": ["sqs:SendMessage"],
    "sqs:DeleteMessageBatch": ["sqs:DeleteMessage"],
}


class Denied(Exception):
    """The caller may not use an action."""


class Refused(Exception):
    """The run does not start; the message gives the reason."""


@dataclass(frozen=True)
class Aws(Cloud):
    """AWS itself, with the credentials of this shell."""

    region: str

    def client(self, service: str) -> Any:
        create: Any = boto3.Session(region_name=self.region).client
        return create(service, config=Config(retries={"mode": "standard", "max_attempts": 5}))

    def environment(self) -> dict[str, str]:
        """For other programs: with the credentials themselves, since `sqs-once` does not read every kind of profile."""
        variables = {name: value for name, value in os.environ.items() if name not in ("AWS_PROFILE", *KEYS)}
        variables |= {"AWS_REGION": self.region, "AWS_DEFAULT_REGION": self.region}
        if credentials := boto3.Session().get_credentials():
            variables |= {
                name: value for name, value in zip(KEYS, credentials.get_frozen_credentials(), strict=False) if value
            }
        return variables


def actions(service: str, operation: str) -> list[str]:
    """The actions of IAM that an operation needs."""
    action = f"{PREFIXES.get(service, service)}:{operation}"
    return ACTIONS.get(action, [action])


def watch(client: Any, used: set[str]) -> Any:
    """Notes the actions that a client uses, and names the one that the caller may not use."""

    def note(model: Any, **_: Any) -> None:
        used.update(actions(model.service_model.service_name, model.name))

    def judge(parsed: Any, model: Any, **_: Any) -> None:
        error = parsed.get("Error", {}) if isinstance(parsed, dict) else {}
        if error.get("Code") in DENIED:
            names = " or ".join(actions(model.service_model.service_name, model.name))
            raise Denied(f"the caller may not use {names}, which {PAGE} lists. AWS says: {error.get('Message')}")

    client.meta.events.register("before-parameter-build", note)
    client.meta.events.register("after-call", judge)
    return client


def require(cloud: Cloud, account: str) -> None:
    """Refuses another account than the one on the command line."""
    caller = watch(cloud.client("sts"), set()).get_caller_identity()["Account"]
    if caller != account:
        raise Refused(f"the credentials belong to the account {caller}, not to ACCOUNT={account}")

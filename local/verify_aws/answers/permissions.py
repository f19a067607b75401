"""Answers to `checks/permissions.py`."""

from verify_aws.answers.queues import queue
from verify_aws.answers.stub import ACCOUNT, ASSUMED, NAME, Given, ok, pair, refused
from verify_aws.checks.permissions import requests

ROLE = {
    "Path": "/",
    "RoleName": f"{NAME}-permissions",
    "RoleId": "AROA0000000000000000",
    "Arn": f"arn:aws:iam::{ACCOUNT}:role/{NAME}-permissions",
    "CreateDate": "2026-11-01T00:00:00Z",
}
KEYS = {
    "AccessKeyId": "AKIA000000000000",
    "SecretAccessKey": "secret",
    "SessionToken": "token",
    "Expiration": "2026-11-01T00:00:00Z",
}
assumed = ok("sts.assume_role", Credentials=KEYS)


class Names:
    """As much of a scratch as the requests need."""

    table = f"{NAME}-table"

    @staticmethod
    def key(value: str) -> dict[str, dict[str, str]]:
        return {"id": {"S": value}}


CALLS = [
    (f"{ASSUMED}{service}.{method}", method)
    for service, method, _ in requests(Names(), "https://queue/name").values()  # type: ignore[arg-type]
]


def allowed(call: str, method: str) -> Given:
    """An answer to a request that was allowed: most of them find nothing, and are refused for that."""
    match method:
        case "put_item" | "update_item" | "delete_item":
            return refused(call, "ConditionalCheckFailedException")
        case "transact_write_items":
            return refused(call, "TransactionCanceledException")
        case "batch_execute_statement":
            return ok(call, Responses=[{}])
        case "change_message_visibility_batch":
            entry = {"Id": "0", "SenderFault": True, "Code": "ReceiptHandleIsInvalid"}
            return ok(call, Successful=[], Failed=[entry])
        case "get_queue_url":
            return ok(call, QueueUrl="https://queue/name")
        case _:
            return ok(call)


def denied(call: str, method: str) -> Given:
    if method == "batch_execute_statement":
        return ok(call, Responses=[{"Error": {"Code": "AccessDenied"}}])
    return refused(call, "AccessDenied" if ":sqs." in call else "AccessDeniedException")


def run(last: Given) -> list[Given]:
    return [
        *queue("permissions"),
        ok("sts.get_caller_identity", Account=ACCOUNT, Arn=f"arn:aws:iam::{ACCOUNT}:user/tester"),
        ok("iam.create_role", Role=ROLE),
        ok("iam.put_role_policy"),
        *[assumed] * (1 + len(CALLS)),
        *(allowed(*call) for call in CALLS),
        *(denied(*call) for call in CALLS[:-1]),
        last,
    ]


pair(
    "each_request_needs_its_one_action",
    holds=run(denied(*CALLS[-1])),
    differs=run(allowed(*CALLS[-1])),
)
pair(
    "deployed_role_is_denied_nothing",
    holds=[ok("logs.filter_log_events", events=[])],
    differs=[ok("logs.filter_log_events", events=[{"message": "AccessDenied"}])],
)

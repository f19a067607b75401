"""Answers to `checks/permissions.py`."""

from verify_aws.answers.queues import queue
from verify_aws.answers.stub import ACCOUNT, ASSUMED, NAME, Given, ok, pair, refused
from verify_aws.checks.permissions import WITH_A_KEY, Places, Request, actions_of_the_template, requests

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
REQUESTS = list(requests(Places("table", "https://queue/name", "https://queue/dead", NAME, "group")).values())
# The answers to those that are allowed: most of them find nothing, and are refused for that.
NOTHING = {
    "put_item": "ConditionalCheckFailedException",
    "update_item": "ConditionalCheckFailedException",
    "delete_item": "ConditionalCheckFailedException",
    "transact_write_items": "TransactionCanceledException",
    "delete_message": "ReceiptHandleIsInvalid",
    "create_log_stream": "ResourceAlreadyExistsException",
}


def call(request: Request) -> str:
    return f"{ASSUMED}{request.service}.{request.method}"


def allowed(request: Request) -> Given:
    if code := NOTHING.get(request.method):
        return refused(call(request), code)
    match request.method:
        case "get_object" if len(request.needs) > 1:
            return refused(call(request), "NoSuchKey")
        case "batch_execute_statement":
            return ok(call(request), Responses=[{}])
        case "change_message_visibility_batch":
            entry = {"Id": "0", "SenderFault": True, "Code": "ReceiptHandleIsInvalid"}
            return ok(call(request), Successful=[], Failed=[entry])
        case "get_queue_url":
            return ok(call(request), QueueUrl="https://queue/name")
    return ok(call(request))


def denied(request: Request) -> Given:
    if request.method == "batch_execute_statement":
        return ok(call(request), Responses=[{"Error": {"Code": "AccessDenied"}}])
    return refused(call(request), "AccessDenied" if request.service in ("sqs", "s3") else "AccessDeniedException")


def run(but: str) -> list[Given]:
    """Every request is denied without its actions, but for those that need this one."""
    every = sorted(actions_of_the_template() - WITH_A_KEY)
    given: list[Given] = [
        *queue("permissions"),
        *queue("permissions-dead"),
        ok("logs.create_log_group"),
        ok("s3.put_object"),
        ok("sts.get_caller_identity", Account=ACCOUNT, Arn=f"arn:aws:iam::{ACCOUNT}:user/tester"),
        ok("iam.create_role", Role=ROLE),
        ok("iam.put_role_policy"),
        *[assumed] * (1 + len(every)),
        *map(allowed, REQUESTS),
    ]
    for action in every:
        given += [denied(one) if action in one.needs and action != but else allowed(one) for one in REQUESTS]
    return given


pair("role_without_one_action_is_denied_its_requests", holds=run(""), differs=run("s3:ListBucket"))
pair(
    "deployed_role_is_denied_nothing",
    holds=[ok("logs.filter_log_events", events=[])],
    differs=[ok("logs.filter_log_events", events=[{"message": "AccessDenied"}])],
)

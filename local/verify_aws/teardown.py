"""The removal of a run's resources: those of its journal, then all others with its tag.

Each remover succeeds if there is nothing to remove, so that a removal that was interrupted runs again. It returns once
the resource is gone; of a queue, once SQS accepted its deletion, which takes up to a minute.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from botocore.exceptions import ClientError

from verify_aws.account import Denied
from verify_aws.journal import Entry
from verify_aws.scratch import TAG, Scratch, name_of

MISSING = ("ResourceNotFoundException", "NoSuchEntity", "NoSuchBucket", "404", "NotFound", "NotFoundException")


def code(error: ClientError) -> str:
    return str(error.response["Error"]["Code"])


# ---- one resource --------------------------------------------------------------------------------


def remove_stack(scratch: Scratch, name: str) -> None:
    """Deletes the stacks of this name, and the resources that CloudFormation retains of them."""
    cloudformation = scratch.client("cloudformation")
    pages = cloudformation.get_paginator("list_stacks").paginate()
    stacks = [s for page in pages for s in page["StackSummaries"] if s["StackName"] == name]
    for stack in stacks:
        id = stack["StackId"]
        # Noted before the deletion, which may be the last thing that this process does, and after it: a stack that
        # was still being created has more of them then.
        note(scratch, id)
        if stack["StackStatus"] != "DELETE_COMPLETE":
            cloudformation.delete_stack(StackName=id)
            delay = 1 if scratch.emulated else 5
            waiter = cloudformation.get_waiter("stack_delete_complete")
            waiter.wait(StackName=id, WaiterConfig={"Delay": delay, "MaxAttempts": 360})
        note(scratch, id)


def begin_removal(scratch: Scratch, names: set[str]) -> None:
    """Begins to delete the stacks of these names, so that CloudFormation deletes them at the same time."""
    cloudformation = scratch.client("cloudformation")
    for page in cloudformation.get_paginator("list_stacks").paginate():
        for stack in page["StackSummaries"]:
            if stack["StackName"] in names and not stack["StackStatus"].startswith("DELETE_"):
                note(scratch, stack["StackId"])
                cloudformation.delete_stack(StackName=stack["StackId"])


def note(scratch: Scratch, stack: str) -> None:
    """Notes the resources that CloudFormation retains of a stack."""
    for kind, resource in sorted(set(retained(scratch.client("cloudformation"), stack))):
        scratch.journal.intends(kind, resource)


# The resources that template.yaml retains, and the last one that no template names: Lambda makes it.
RETAINED = {
    "AWS::DynamoDB::Table": "table",
    "AWS::SQS::Queue": "queue",
    "AWS::Logs::LogGroup": "log-group",
    "AWS::S3::Bucket": "bucket",
}


def retained(cloudformation: Any, stack: str) -> Iterator[tuple[str, str]]:
    try:
        for page in cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack):
            for resource in page["StackResourceSummaries"]:
                kind = RETAINED.get(resource["ResourceType"])
                if kind and (id := resource.get("PhysicalResourceId")):
                    yield kind, id.rsplit("/", 1)[-1] if kind == "queue" else id
    except ClientError as problem:
        if code(problem) != "ValidationError":  # no such stack
            raise


def remove_table(scratch: Scratch, name: str) -> None:
    dynamodb = scratch.client("dynamodb")
    try:
        table = dynamodb.describe_table(TableName=name)["Table"]
        if table["TableStatus"] == "CREATING":
            dynamodb.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
        if table.get("DeletionProtectionEnabled"):
            dynamodb.update_table(TableName=name, DeletionProtectionEnabled=False)
            dynamodb.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
        if table["TableStatus"] != "DELETING":
            dynamodb.delete_table(TableName=name)
    except dynamodb.exceptions.ResourceNotFoundException:
        return
    dynamodb.get_waiter("table_not_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 300})


def remove_queue(scratch: Scratch, name: str) -> None:
    sqs = scratch.client("sqs")
    try:
        sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"])
    except sqs.exceptions.QueueDoesNotExist:
        return


def remove_log_group(scratch: Scratch, name: str) -> None:
    logs = scratch.client("logs")
    try:
        logs.delete_log_group(logGroupName=name)
    except logs.exceptions.ResourceNotFoundException:
        return


def remove_bucket(scratch: Scratch, name: str) -> None:
    s3 = scratch.client("s3")
    try:
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name):
            if found := page.get("Contents"):
                s3.delete_objects(Bucket=name, Delete={"Objects": [{"Key": o["Key"]} for o in found]})
        s3.delete_bucket(Bucket=name)
    except ClientError as problem:
        if code(problem) not in MISSING:
            raise


def remove_role(scratch: Scratch, name: str) -> None:
    iam = scratch.client("iam")
    try:
        for page in iam.get_paginator("list_role_policies").paginate(RoleName=name):
            for policy in page["PolicyNames"]:
                iam.delete_role_policy(RoleName=name, PolicyName=policy)
        iam.delete_role(RoleName=name)
    except iam.exceptions.NoSuchEntityException:
        return


def remove_function(scratch: Scratch, name: str) -> None:
    """Deletes a function, and the event source mappings of it."""
    functions = scratch.client("lambda")
    try:
        for page in functions.get_paginator("list_event_source_mappings").paginate(FunctionName=name):
            for mapping in page["EventSourceMappings"]:
                if mapping["State"] != "Deleting":
                    functions.delete_event_source_mapping(UUID=mapping["UUID"])
        functions.delete_function(FunctionName=name)
    except functions.exceptions.ResourceNotFoundException:
        return


def remove_topic(scratch: Scratch, name: str) -> None:
    """Deletes a topic, and its subscriptions with it."""
    sns = scratch.client("sns")
    for page in sns.get_paginator("list_topics").paginate():
        for topic in page["Topics"]:
            if topic["TopicArn"].endswith(f":{name}"):
                sns.delete_topic(TopicArn=topic["TopicArn"])


def remove_key(scratch: Scratch, name: str) -> None:
    """Has a key deleted as early as KMS allows, by its id or its alias."""
    kms = scratch.client("kms")
    try:
        key = kms.describe_key(KeyId=name)["KeyMetadata"]
        if key["KeyState"] != "PendingDeletion":
            kms.schedule_key_deletion(KeyId=key["KeyId"], PendingWindowInDays=7)
        if name.startswith("alias/"):
            kms.delete_alias(AliasName=name)
    except kms.exceptions.NotFoundException:
        return


REMOVERS: dict[str, Callable[[Scratch, str], None]] = {
    "stack": remove_stack,
    "table": remove_table,
    "queue": remove_queue,
    "log-group": remove_log_group,
    "bucket": remove_bucket,
    "role": remove_role,
    "topic": remove_topic,
    "function": remove_function,
    "key": remove_key,
}


# ---- the run -------------------------------------------------------------------------------------


def tagged(tagging: Any, run: str | None = None) -> Iterator[tuple[str, str]]:
    """The ARNs that have the tag of a run, or of any run, each with its run."""
    wanted = {"Key": TAG} | ({"Values": [run]} if run else {})
    pages = tagging.get_paginator("get_resources").paginate(TagFilters=[wanted])
    for page in pages:
        for resource in page["ResourceTagMappingList"]:
            runs = [tag["Value"] for tag in resource["Tags"] if tag["Key"] == TAG]
            yield resource["ResourceARN"], runs[0] if runs else ""


def entry_of(arn: str) -> Entry | None:
    """The resource of an ARN, if a run creates such resources outside of its stack or its stack retains them."""
    _, _, service, _, _, rest = arn.split(":", 5)
    match service:
        case "dynamodb" if rest.startswith("table/"):
            return Entry("table", rest.removeprefix("table/"))
        case "sqs":
            return Entry("queue", rest)
        case "logs" if rest.startswith("log-group:"):
            return Entry("log-group", rest.removeprefix("log-group:").removesuffix(":*"))
        case "s3":
            return Entry("bucket", rest)
        case "lambda" if rest.startswith("function:"):
            return Entry("function", rest.removeprefix("function:"))
        case "kms" if rest.startswith("key/"):
            return Entry("key", rest.removeprefix("key/"))
        case "sns":
            return Entry("topic", rest)
        case "iam" if rest.startswith("role/"):
            return Entry("role", rest.rsplit("/", 1)[-1])
        case "cloudformation":
            return Entry("stack", rest.split("/")[1])
    return None


def tear_down(scratch: Scratch) -> list[str]:
    """Removes everything of the run. Returns the resources that could not be removed, each with the reason."""
    run, journal = scratch.journal.run, scratch.journal
    problems: list[str] = []
    tried: set[Entry] = set()

    def remove(entry: Entry) -> None:
        tried.add(entry)
        try:
            REMOVERS[entry.kind](scratch, entry.name)
            journal.removed(entry.kind, entry.name)
        except Exception as problem:  # one that cannot be removed must not keep the others
            reason = str(problem) if isinstance(problem, Denied) else f"{type(problem).__name__}: {problem}"
            problems.append(f"{entry.kind} {entry.name}: {reason}")

    with contextlib.suppress(ClientError, Denied):  # which the removal of each stack reports
        begin_removal(scratch, {name_of(run), *(entry.name for entry in journal.left() if entry.kind == "stack")})
    # The stack has its name from the run, so a run without a journal has one too. It comes first: its function
    # would write to the log group after that was deleted.
    remove(Entry("stack", name_of(run)))
    while rest := [entry for entry in journal.left() if entry not in tried]:
        remove(rest[0])
    try:
        for arn in sorted({arn for arn, _ in tagged(scratch.client("resourcegroupstaggingapi"), run)}):
            if (entry := entry_of(arn)) and entry not in tried:
                remove(entry)
    except (ClientError, Denied) as problem:
        problems.append(f"resources with the tag {TAG}={run}: {problem}")
    return problems

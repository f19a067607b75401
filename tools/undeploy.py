"""`make undeploy`: deletes a stack with the queues, tables and logs that outlive it, after a question that names them.

python tools/undeploy.py [STACK]     by default the stack of samconfig.toml
"""

import sys
from typing import Any

from before_deploy import Aws, Unknown, count, target
from botocore.exceptions import BotoCoreError, ClientError
from cloud import Json

# Service, operation and argument that delete what a stack keeps.
KEPT = {
    "AWS::SQS::Queue": ("sqs", "delete_queue", "QueueUrl"),
    "AWS::DynamoDB::Table": ("dynamodb", "delete_table", "TableName"),
    "AWS::Logs::LogGroup": ("logs", "delete_log_group", "logGroupName"),
}
BUCKET = """\
SAM's bucket for programs stays, because every stack of SAM in this account and Region uses it. If no other does, empty
it, and delete the stack aws-sam-cli-managed-default. A table that the stack did not make (ExistingTableName) stays too.
For 35 days, DynamoDB keeps a backup of each deleted table."""


def contents(aws: Aws, kind: str, name: str) -> str:
    match kind:
        case "AWS::SQS::Queue":
            read = aws.read("sqs", "GetQueueAttributes", QueueUrl=name, AttributeNames=["All"])
            return f", with about {count(read['Attributes'])} messages"
        case "AWS::DynamoDB::Table":
            return f", with about {aws.read('dynamodb', 'DescribeTable', TableName=name)['Table']['ItemCount']} items"
    return ""


def delete(aws: Aws, stack: str, kept: list[Json]) -> None:
    cloudformation: Any = aws.session.client("cloudformation")
    cloudformation.delete_stack(StackName=stack)
    cloudformation.get_waiter("stack_delete_complete").wait(StackName=stack)
    for resource in kept:
        service, operation, argument = KEPT[resource["ResourceType"]]
        client, name = aws.session.client(service), resource["PhysicalResourceId"]
        try:
            if service == "dynamodb":
                client.update_table(TableName=name, DeletionProtectionEnabled=False)
                client.get_waiter("table_exists").wait(TableName=name)
            getattr(client, operation)(**{argument: name})
        except ClientError as problem:
            code = problem.response["Error"]["Code"]
            if not any(gone in code for gone in ("NotFound", "NonExistent", "DoesNotExist")):
                raise
        print(f"deleted {name}")


def main(words: list[str]) -> int:
    aws, of_config = target()
    stack = words[0] if words else of_config
    resources = aws.read("cloudformation", "ListStackResources", StackName=stack)["StackResourceSummaries"]
    kept = [r for r in resources if r["ResourceType"] in KEPT and "PhysicalResourceId" in r]
    print(f"make undeploy: this deletes the stack {stack} for good, and what would outlive it:")
    for resource in kept:
        name = resource["PhysicalResourceId"]
        print(f"  {name}{contents(aws, resource['ResourceType'], name)}")
    print(BUCKET)
    try:
        answer = input(f"To delete all of this, type {stack}: ")
    except (EOFError, KeyboardInterrupt):
        answer = ""
    if answer.strip() != stack:
        print("Nothing was deleted.")
        return 1
    delete(aws, stack, kept)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (Unknown, BotoCoreError, ClientError) as problem:
        sys.exit(f"make undeploy: {problem}")

"""Answers to `checks/failed.py`."""

from typing import Any

from verify_aws.answers.deployed import NOW
from verify_aws.answers.stub import NAME, Given, ok, pair

Json = dict[str, Any]

stack: Json = {"StackName": f"{NAME}-failed", "StackStatus": "ROLLBACK_COMPLETE", "CreationTime": NOW}
described = ok("cloudformation.describe_stacks", Stacks=[stack])
event: Json = {
    "StackId": "s",
    "EventId": "e",
    "StackName": f"{NAME}-failed",
    "Timestamp": NOW,
    "LogicalResourceId": "Consumer",
    "ResourceStatus": "CREATE_FAILED",
    "ResourceStatusReason": "the variables are too long",
}


def run(*left: str) -> list[Given]:
    found = [
        {
            "LogicalResourceId": kind.rsplit(":", 1)[-1],
            "ResourceType": kind,
            "LastUpdatedTimestamp": NOW,
            "ResourceStatus": "DELETE_SKIPPED" if kind in left else "DELETE_COMPLETE",
        }
        for kind in ("AWS::DynamoDB::Table", "AWS::SQS::Queue", "AWS::Lambda::Function")
    ]
    return [
        described,
        ok("cloudformation.describe_stack_events", StackEvents=[event]),
        described,
        ok("cloudformation.list_stack_resources", StackResourceSummaries=found),
    ]


pair(
    "failed_first_deployment_leaves_only_the_table",
    holds=run("AWS::DynamoDB::Table"),
    differs=run("AWS::DynamoDB::Table", "AWS::SQS::Queue"),
)

"""A first deployment that fails: the state of the stack, and the resources that it leaves."""

from verify_aws.check import NotChecked, Seen, check
from verify_aws.scratch import DeployFailed, Scratch, finish_stack

# So long that the variables of the function exceed Lambda's limit: the function is created after nearly all else.
TOO_LONG = "body:/" + "x" * 4000
SUFFIX = "failed"


@check(only_aws="MiniStack has no limit for the variables of a function", stack=(SUFFIX, {"IdempotencyKey": TOO_LONG}))
def failed_first_deployment_leaves_only_the_table(scratch: Scratch) -> Seen:
    """A first deployment that fails is rolled back: the stack is ROLLBACK_COMPLETE, and only the protected table is
    left of it. The dead-letter queue and the log group are not, since their DeletionPolicy is RetainExceptOnCreate.

    Where:
    docs/template.md: ## The first deployment failed
    template.yaml: RetainExceptOnCreate
    """
    name, cloudformation = f"{scratch.name}-{SUFFIX}", scratch.client("cloudformation")
    try:
        finish_stack(scratch, name)
        raise NotChecked("the deployment did not fail")
    except DeployFailed:
        status = cloudformation.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"]
    pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=name)
    left = sorted(
        resource["ResourceType"]
        for page in pages
        for resource in page["StackResourceSummaries"]
        if resource["ResourceStatus"] == "DELETE_SKIPPED"
    )
    holds = status == "ROLLBACK_COMPLETE" and left == ["AWS::DynamoDB::Table"]
    return Seen(holds, f"{status}; left: {', '.join(left) or 'nothing'}")

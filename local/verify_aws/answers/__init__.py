"""Possible answers of AWS to each check: once so that the assumption holds, and once so that it differs.

botocore's Stubber gives the answers, and checks requests and answers against AWS's own model of each service.
local/verify_aws_test.py runs every check with both.
"""

from verify_aws.answers import (
    batched,
    batches,
    commands,
    deployed,
    expressions,
    failed,
    fifo,
    messages,
    operations,
    permissions,
    queues,
    services,
    slow,
    writes,
)
from verify_aws.answers.stub import PAIRS

__all__ = [
    "PAIRS",
    "batched",
    "batches",
    "commands",
    "deployed",
    "expressions",
    "failed",
    "fifo",
    "messages",
    "operations",
    "permissions",
    "queues",
    "services",
    "slow",
    "writes",
]

"""The checks, in the order of the report: that of these imports, in the order of value, the slow ones last."""

# isort: off
from verify_aws.check import CHECKS
from verify_aws.checks import (
    deployed,
    messages,
    writes,
    expressions,
    batched,
    permissions,
    queues,
    batches,
    fifo,
    operations,
    commands,
    services,
    failed,
    slow,
)

__all__ = [
    "CHECKS",
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

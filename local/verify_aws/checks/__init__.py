"""The checks, one module a subject."""

from importlib import import_module

from verify_aws.check import CHECKS

# In the order of the report: that of value, the slow ones last.
SUBJECTS = (
    "deployed",
    "messages",
    "killed",
    "costs",
    "writes",
    "expressions",
    "batched",
    "permissions",
    "queues",
    "batches",
    "fifo",
    "doctor",
    "operations",
    "commands",
    "services",
    "failed",
    "slow",
    "choice",
)

for subject in SUBJECTS:
    import_module(f"{__name__}.{subject}")

__all__ = ["CHECKS", "SUBJECTS"]

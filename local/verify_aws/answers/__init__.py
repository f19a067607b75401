"""Possible answers of AWS to each check: once so that the assumption holds, and once so that it differs.

botocore's Stubber gives the answers, and checks requests and answers against AWS's own model of each service.
local/verify_aws_test.py runs every check with both.
"""

from importlib import import_module

from verify_aws.answers.stub import PAIRS
from verify_aws.checks import SUBJECTS

for subject in SUBJECTS:
    import_module(f"{__name__}.{subject}")

__all__ = ["PAIRS"]

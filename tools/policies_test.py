"""Compares the policies of docs/policies.md with the actions that deploying, being on call and sending need.

python tools/policies_test.py [-v] [TEST...]     a part of `make test`

The schemas of cfn-lint, which the services publish, say what CloudFormation needs for a resource.
"""

import fnmatch
import json
import logging
import os
import re
import sys
import unittest
from pathlib import Path
from typing import Any

import botocore.session
import cfnlint  # type: ignore[import-untyped]
import overlay
import runbook
from botocore import xform_name
from cloud import ROOT, Json

DATA = Path(cfnlint.__file__).parent / "data"
# An action in the tool's source.
ACTION = re.compile(r'"([a-z]+:[A-Z]\w+)"')
# Actions for properties that the template doesn't set, or for the deletion of resources that outlive the stack.
NOT_NEEDED = {
    "tables imported, replicated or streamed": r"dynamodb:(DescribeImport|ImportTable|(Create|Associate)TableReplica"
    r"|(Enable|Disable|Update)KinesisStreamingDestination|UpdateContributorInsights|(Put|Delete)ResourcePolicy|Scan|Query"
    r"|BatchWriteItem|(Get|Put|Update|Delete)Item)|kinesis:.*|iam:CreateServiceLinkedRole",
    "the table is kept": "dynamodb:DeleteTable",
    "a key of one's own is in the text": "kms:.*",
    "code signing, layers, files, reserved concurrency": r"lambda:((Put|Delete)FunctionConcurrency|GetLayerVersion"
    r"|(Put|Delete)FunctionCodeSigningConfig|GetCodeSigningConfig|PutRuntimeManagementConfig|PutFunctionRecursionConfig"
    r"|PutFunctionScalingConfig|PassCapacityProvider|(Put|Delete)ProvisionedConcurrencyConfig)|elasticfilesystem:.*|s3files:.*",
    "users and groups": r"iam:\w+(User|Group)Policy",
    "a boundary is in the text": r"iam:(Put|Delete)RolePermissionsBoundary",
    "logs and topics delivered elsewhere, masked, indexed": r"logs:(\w+DataProtectionPolicy|CreateLogDelivery"
    r"|\w+IndexPolicy|(Put|Delete)ResourcePolicy|PutBearerTokenAuthentication|PutLogGroupDeletionProtection"
    r"|CreateLogStream|PutLogEvents|DescribeLogStreams)|firehose:.*|sns:PutDataProtectionPolicy|s3:REST.PUT.OBJECT",
    "the function's code has no version in S3": "s3:(GetObjectVersion|GetObjectMetadata)",
    "servers": "codedeploy:RegisterOnPremisesInstance",
}
# The page says that these are for administrators, or for the owner of the subscribed address.
NOT_ON_CALL = (
    r"dynamodb:(ListBackups|RestoreTableFromBackup|UpdateTimeToLive|UpdateContinuousBackups|UpdateTable)"
    r"|sns:ConfirmSubscription|kms:.*|s3:.*|events:.*"
)


def actions_of(heading: str) -> set[str]:
    """The actions of the policy below a heading."""
    section = (ROOT / "docs/policies.md").read_text().partition(f"\n## {heading}\n")[2]
    policy: Json = json.loads(section.partition("```json\n")[2].partition("```")[0])
    return {action for statement in policy["Statement"] for action in statement["Action"]}


def missing(needed: set[str], heading: str, but: str) -> list[str]:
    allowed = actions_of(heading)
    return sorted(
        action
        for action in needed
        if not re.fullmatch(but, action) and not any(fnmatch.fnmatchcase(action, pattern) for pattern in allowed)
    )


def schema(kind: str) -> Json:
    names = json.loads((DATA / "schemas/providers/us-east-1.json").read_text())
    read: Json = json.loads((DATA / f"schemas/resources/{names[kind]}.json").read_text())
    return read


def kinds() -> set[str]:
    """The types of resources that SAM makes of the template and its overlays."""
    over: Any = {}
    for path in (ROOT / "overlays").glob("*.yaml"):
        over = overlay.merge(over, overlay.read(path))
    own = {resource["Type"] for resource in over["Resources"].values() if "Type" in resource}
    return own | {resource["Type"] for resource in overlay.transformed("1763900001").values()}


class Policies(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        logging.disable(logging.WARNING)
        os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

    def test_actions_exist(self) -> None:
        known = json.loads((DATA / "AdditionalSpecs/Policies.json").read_text())
        for heading in ("Deploy", "On call", "Send"):
            for action in actions_of(heading):
                service, _, name = action.partition(":")
                assert name.lower() in known[service]["Actions"], action

    def test_deployer_may_do_what_the_handlers_do(self) -> None:
        needed: set[str] = set()
        for kind in kinds():
            handlers = schema(kind)["handlers"]
            for verb in ("create", "read", "update", "delete"):
                needed.update(handlers.get(verb, {}).get("permissions", []))
        assert len(needed) > 100, needed
        assert missing(needed, "Deploy", "|".join(NOT_NEEDED.values())) == []

    def test_deployer_may_do_what_the_check_before_does(self) -> None:
        source = (ROOT / "tools/before_deploy.py").read_text()
        needed = {f"{service}:{name}" for service, name in re.findall(r'aws\.read\(\s*"(\w+)", "(\w+)"', source)}
        assert len(needed) >= 7, needed
        assert missing(needed, "Deploy", "") == []

    def test_on_call_may_do_what_the_runbook_does(self) -> None:
        session = botocore.session.get_session()
        needed: set[str] = set()
        text = "\n".join(block.text for block in runbook.blocks(runbook.PAGE.read_text()))
        for service, name in re.findall(r"\baws ([a-z0-9]+) ([a-z-]+) ", text):
            names = session.get_service_model(service).operation_names
            needed.update(f"{service}:{operation}" for operation in names if xform_name(operation, "-") == name)
        assert len(needed) >= 15, needed
        assert missing(needed, "On call", NOT_ON_CALL) == []

    def test_on_call_may_do_what_the_tool_does(self) -> None:
        # The other files of `doctor` name what the function's role needs.
        source = ROOT / "crates/cli/src"
        files = [*source.glob("*.rs"), *source.glob("record/*.rs"), source / "doctor/account.rs"]
        needed = {action for file in files for action in ACTION.findall(file.read_text())}
        needed.update(f"dynamodb:{action}" for action in ("GetItem", "UpdateItem", "DeleteItem"))
        assert len(needed) >= 20, needed
        assert missing(needed, "On call", NOT_ON_CALL) == []

    def test_page_has_the_permissions_of_the_doctor(self) -> None:
        section = (ROOT / "docs/cli.md").read_text().partition("`doctor` alone needs")[2]
        documented = set()
        for line in section.splitlines():
            service = None
            for found, action in re.findall(r"`(?:([a-z]+):)?([A-Z]\w+)`", line):
                service = found or service
                documented.add(f"{service}:{action}")
        named = set(ACTION.findall((ROOT / "crates/cli/src/doctor/account.rs").read_text()))
        assert documented >= named, named - documented

    def test_sender_may_send_and_nothing_else(self) -> None:
        assert actions_of("Send") == {"sqs:SendMessage"}


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False).result.wasSuccessful() else 1)

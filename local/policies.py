"""Runs checkov's checks of permissions on the roles of templates, also where a statement has a condition.

    python local/policies.py CHECKOV TEMPLATE...
    python local/policies.py --self-test CHECKOV

checkov skips these checks, without a word, for a policy that has `!If` in its statements. So this script gives it each
template twice: once with the first branch of every `!If`, once with the second.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from cloud import Template

Json = dict[str, Any]

# Credentials, exfiltration, management of permissions, escalation, and writes without constraints.
CHECKS = {"CKV_AWS_107", "CKV_AWS_108", "CKV_AWS_109", "CKV_AWS_110", "CKV_AWS_111"}
NO_VALUE = {"Ref": "AWS::NoValue"}


def resolved(part: Any, branch: int) -> Any:
    """A part of a template with this branch of every `!If`."""
    match part:
        case {"Fn::If": [_, *branches]}:
            return resolved(branches[branch], branch)
        case dict():
            values = {name: resolved(value, branch) for name, value in part.items()}
            return {name: value for name, value in values.items() if value != NO_VALUE}
        case list():
            return [value for value in (resolved(item, branch) for item in part) if value != NO_VALUE]
    return part


def roles(template: Json) -> set[str]:
    return {name for name, resource in template["Resources"].items() if resource["Type"] == "AWS::IAM::Role"}


def problems(checkov: str, templates: dict[str, Json]) -> list[str]:
    """The roles of these templates that a check did not pass, or did not look at."""
    wanted = set()
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, template) in enumerate(templates.items()):
            for branch in (0, 1):
                changed = template | {"Resources": resolved(template["Resources"], branch)}
                file = Path(folder) / f"{number}-{branch}.yaml"
                file.write_text(yaml.safe_dump(changed, sort_keys=False))
                wanted |= {(file.name, f"{name}, branch {branch + 1} of each !If", role) for role in roles(template)}
        command = [checkov, "--framework", "cloudformation", "--skip-download", "--output", "json"]
        command += ["--check", ",".join(sorted(CHECKS)), "--file", *map(str, sorted(Path(folder).iterdir()))]
        ended = subprocess.run(command, capture_output=True, text=True)
    passed = {
        (Path(check["file_path"]).name, check["resource"].rsplit(".", 1)[-1], check["check_id"])
        for check in json.loads(ended.stdout).get("results", {}).get("passed_checks", [])
    }
    found = []
    for file_name, where, role in sorted(wanted):
        missing = sorted(check for check in CHECKS if (file_name, role, check) not in passed)
        if missing:
            found.append(f"{where}: {role} did not pass {', '.join(missing)}")
    return found


def self_test(checkov: str) -> int:
    """A statement that allows too much is found in either branch."""

    def of(*statements: Any) -> Json:
        policy = {"PolicyName": "p", "PolicyDocument": {"Version": "2012-10-17", "Statement": list(statements)}}
        role = {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": {}, "Policies": [policy]}}
        return {"AWSTemplateFormatVersion": "2010-09-09", "Resources": {"Role": role}}

    good = {"Effect": "Allow", "Action": ["sqs:SendMessage"], "Resource": "arn:aws:sqs:us-east-1:123456789012:q"}
    bad = {"Effect": "Allow", "Action": ["iam:*"], "Resource": "*"}
    templates = {
        "good": of(good),
        "first": of(good, {"Fn::If": ["A", bad, NO_VALUE]}),
        "second": of(good, {"Fn::If": ["A", good, bad]}),
    }
    found = [problem.split(" of each")[0] for problem in problems(checkov, templates)]
    if found != ["first, branch 1", "second, branch 2"]:
        print(f"self-test: found {found}", file=sys.stderr)
        return 1
    return 0


def main(words: list[str]) -> int:
    if words[0] == "--self-test":
        return self_test(words[1])
    checkov, *files = words
    found = problems(checkov, {file: yaml.load(Path(file).read_text(), Loader=Template) for file in files})
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

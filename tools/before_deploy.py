"""Asks before `make deploy` drops an overlay of the running stack. If messages wait in the queues, it also asks before
the deployment changes how a consumer recognizes them, their table, or the key or receives of the queues, and before it
replaces the queues. Stops if a program in `.aws-sam/build` was built for another processor than its function has.

    python tools/before_deploy.py [PARAMETER=VALUE ...]     takes the parameters of `sam deploy`, besides samconfig.toml

It prints nothing if there is no stack yet, or if nothing of that kind changes. Without a terminal, the deployment stops
here, unless MESSAGES_MAY_RUN_AGAIN is set. `sam deploy` alone does not run this check.
"""

import json
import os
import shlex
import sys
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
import yaml
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from cloud import Json, Template

PAGE = "https://github.com/sqs-once/sqs-once/blob/main/docs/operations.md#changing-a-deployed-consumer"
ALLOW = "MESSAGES_MAY_RUN_AGAIN"

NOT_FOUND = """\
The consumer does not find the records of these messages any more. It runs the handler again for those
    that it processed before: an order that was charged is charged again."""
UNREADABLE = """\
The consumer reads these messages in the new form. Those that it cannot read fail permanently. Others may
    get a different key, and then the handler runs again."""
NOT_LOOKED_UP = """\
Nobody looks for the charge of an attempt that died before: without idempotency keys, the order is charged again."""
NOT_COMPARED = """\
The consumer does not compare the payloads of these messages with those in the records, so it misses
    keys that were reused."""

REPLACED = """\
The stack gets new queues. Messages stay in the old ones, and so do those of producers that keep the old URL: no
    function reads them, no alarm watches them, and they expire."""

SEALED = """\
SQS doesn't encrypt these messages again, and the consumer may use the new key only. It can't receive them, and they
    expire. SQS doesn't raise an error."""
FEWER = """\
At its next receive, SQS moves every message that was received more often than that to the dead-letter queue."""

DROPPED = """\
The running stack was deployed with OVERLAYS="{running}", and this deployment would leave out {dropped}.
    CloudFormation keeps no overlay, as it keeps parameters: it takes the template without it."""

MOVED = """\
CodeDeploy would refuse to move it from there, and this deployment would fail and roll back. Deploy without
    the overlay gradual, or first move the alias back."""

COMPUTED = "a value that CloudFormation computes"

BUILD = Path(".aws-sam/build")
# The function's architecture for each `e_machine` of a program.
PROCESSORS = {0x3E: "x86_64", 0xB7: "arm64"}

# The settings by which a consumer finds and compares a message's record: their defaults, and the effect of a change.
SETTINGS = {
    "IDEMPOTENCY_TABLE_NAME": ("", NOT_FOUND),
    "IDEMPOTENCY_KEY": ("message-id", NOT_FOUND),
    "IDEMPOTENCY_NAMESPACE": ("", NOT_FOUND),
    "IDEMPOTENCY_ATTRIBUTES": ("", NOT_FOUND),
    "IDEMPOTENCY_SORT_KEY": ("", NOT_FOUND),
    "CONSUMER_ENVELOPE": ("none", UNREADABLE),
    "PAYMENT_GATEWAY_RECONCILE": ("off", NOT_LOOKED_UP),
    "IDEMPOTENCY_FINGERPRINT": ("body", NOT_COMPARED),
}


# Names that a deployment may drop: the one for no overlay, and the one that each deployment chooses anew.
FREE = {"none", "gradual"}


class Unknown(Exception):
    """The deployment cannot be compared with the deployed function; the message gives the reason."""


class Refused(Exception):
    """The function could never start; the message says why, and what to do."""


@dataclass(frozen=True)
class Aws:
    """The account and Region that `sam deploy` uses: those of samconfig.toml, else those of this shell."""

    profile: str | None
    region: str | None

    @cached_property
    def session(self) -> Any:
        return boto3.Session(profile_name=self.profile, region_name=self.region)

    def read(self, service: str, operation: str, **arguments: Any) -> Json:
        """All pages of an answer."""
        name = xform_name(operation)
        config = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "max_attempts": 3})
        try:
            client = self.session.client(service, config=config)
            if client.can_paginate(name):
                answer: Json = client.get_paginator(name).paginate(**arguments).build_full_result()
            else:
                answer = getattr(client, name)(**arguments)
        except ClientError as problem:
            # A server that is not AWS may answer without a code.
            denied = problem.response.get("Error", {}).get("Code", "").startswith("AccessDenied")
            raise Unknown(f"your credentials need {service}:{operation}. {problem}" if denied else problem) from problem
        except (BotoCoreError, ResponseParserError) as problem:
            raise Unknown(f"no answer to {service}:{operation}. {problem}") from problem
        return answer


def given(words: list[str]) -> dict[str, str]:
    """The values of parameters on the command line. SAM CLI splits each word once more, and removes quotes."""
    values = {}
    try:
        for word in shlex.split(" ".join(words)):
            name, equals, values[name] = word.partition("=")
            if not equals or name == "ParameterKey":
                raise Unknown("write each parameter as NAME=VALUE")
    except ValueError as problem:
        raise Unknown(f"the parameters have {str(problem).lower()}") from problem
    return values


def text(value: Any, template: Json, parameters: dict[str, str]) -> str:
    """A value of the template as text, with these values of the parameters and of the stack's resources."""
    match value:
        case {"Ref": "AWS::NoValue"}:
            return ""
        case {"Ref": str(name)} if name in parameters:
            return parameters[name]
        case {"Fn::FindInMap": [str(name), row, str(column)]}:
            found = template["Mappings"][name].get(text(row, template, parameters), {})
            return str(found.get(column, COMPUTED))
        case {"Fn::If": [condition, yes, no]}:
            match template["Conditions"][condition]:
                case {"Fn::Not": [{"Fn::Equals": [{"Ref": str(name)}, ""]}]} if name in parameters:
                    return text(yes if parameters[name] else no, template, parameters)
                case {"Fn::Equals": [{"Ref": str(name)}, ""]} if name in parameters:
                    return text(no if parameters[name] else yes, template, parameters)
            return COMPUTED
        case dict():
            return COMPUTED
    return str(value)


def planned(template: Json, function: Json, parameters: dict[str, str]) -> dict[str, str]:
    """The variables that the template gives to a function."""
    variables: Json = {}
    for part in (template.get("Globals", {}).get("Function", {}), function["Properties"]):
        variables |= part.get("Environment", {}).get("Variables", {})
    return {name: text(value, template, parameters) for name, value in variables.items()}


def check_processors(template: Json, parameters: dict[str, str]) -> None:
    """Compares each built program with its function. With a wrong one, the stack deploys, but nothing starts."""
    for name, function in template["Resources"].items():
        if function["Type"] != "AWS::Serverless::Function":
            continue
        properties = template.get("Globals", {}).get("Function", {}) | function["Properties"]
        program = BUILD / str(properties.get("CodeUri", ".")) / "bootstrap"
        if not program.exists():
            continue
        with program.open("rb") as file:
            header = file.read(20)
        built = PROCESSORS.get(int.from_bytes(header[18:20], "little")) if header[:4] == b"\x7fELF" else None
        wanted = text(properties.get("Architectures", ["x86_64"])[0], template, parameters)
        if built and built != wanted:
            raise Refused(
                f"the program of {name} was built for {built}, and the function would be {wanted}: it would never "
                "start. Build and deploy with one ARCH, and without an Architecture in PARAMETERS."
            )


def changes(aws: Aws, name: str, planned: dict[str, str]) -> list[str]:
    """The settings of the deployed function that would change."""
    environment = aws.read("lambda", "GetFunctionConfiguration", FunctionName=name).get("Environment", {})
    if error := environment.get("Error"):
        raise Unknown(f"Lambda hides the variables of {name}. You may need kms:Decrypt. {error.get('Message', '')}")
    lines = []
    for setting, (default, effect) in SETTINGS.items():
        old, new = (values.get(setting) or default for values in (environment.get("Variables", {}), planned))
        if old != new:
            lines.append(f"  {setting} is {old!r}, and would be {new!r}.\n    {effect}")
    return lines


def count(attributes: dict[str, str]) -> int:
    """How many messages a queue has, including those in flight or delayed."""
    return sum(int(attributes[f"ApproximateNumberOfMessages{state}"]) for state in ("", "NotVisible", "Delayed"))


def queue_changes(aws: Aws, resources: list[Json], template: Json, values: dict[str, str]) -> list[str]:
    """The queues with messages that the consumer could not receive any more, or that SQS would move."""
    lines = []
    for resource in resources:
        planned = template["Resources"].get(resource["LogicalResourceId"], {}).get("Properties", {})
        if resource["ResourceType"] != "AWS::SQS::Queue" or not planned:
            continue
        url = resource["PhysicalResourceId"]
        attributes = aws.read("sqs", "GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
        key, new_key = attributes.get("KmsMasterKeyId", ""), text(planned.get("KmsMasterKeyId", ""), template, values)
        receives = str(json.loads(attributes.get("RedrivePolicy", "{}")).get("maxReceiveCount", ""))
        fewer = text((planned.get("RedrivePolicy") or {}).get("maxReceiveCount", ""), template, values)
        changed = []
        if key and new_key not in (key, COMPUTED):
            changed.append(f"  KmsMasterKeyId is {key!r}, and would be {new_key!r}.\n    {SEALED}")
        if receives.isdigit() and fewer.isdigit() and int(fewer) < int(receives):
            changed.append(f"  maxReceiveCount is {receives!r}, and would be {fewer!r}.\n    {FEWER}")
        if changed and (messages := count(attributes)):
            lines += [f"make deploy: {url.split('/')[-1]} holds about {messages} messages.", *changed]
    return lines


def held(aws: Aws, name: str, mappings: list[str]) -> list[str]:
    """The number of messages in each queue of a function, and in its dead-letter queue; empty queues are left out."""
    counts: dict[str, int] = {}
    for mapping in (aws.read("lambda", "GetEventSourceMapping", UUID=id) for id in mappings):
        arn = mapping["EventSourceArn"]
        # A mapping can invoke an alias of the function.
        if f":function:{name}:" not in f"{mapping['FunctionArn']}:" or ":sqs:" not in arn:
            continue
        while arn and arn not in counts:
            *_, account, queue = arn.split(":")
            url = aws.read("sqs", "GetQueueUrl", QueueName=queue, QueueOwnerAWSAccountId=account)["QueueUrl"]
            attributes = aws.read("sqs", "GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
            counts[arn] = count(attributes)
            arn = json.loads(attributes.get("RedrivePolicy", "{}")).get("deadLetterTargetArn")
    if not counts:
        raise Unknown(f"the stack has no event source mapping of {name} that names a queue")
    return [f"  {arn.split(':')[-1]} holds about {held} of these messages." for arn, held in counts.items() if held]


def moved_alias(aws: Aws, resources: list[Json], template: Json) -> list[str]:
    """The aliases that somebody has moved by hand since the stack's last deployment, if CodeDeploy would move them."""
    functions = (r["Properties"] for r in template["Resources"].values() if r["Type"] == "AWS::Serverless::Function")
    if not any("DeploymentPreference" in function for function in functions):
        return []
    versions = [r["PhysicalResourceId"] for r in resources if r["ResourceType"] == "AWS::Lambda::Version"]
    lines = []
    for alias in (r["PhysicalResourceId"] for r in resources if r["ResourceType"] == "AWS::Lambda::Alias"):
        function, _, name = alias.rpartition(":")
        at = aws.read("lambda", "GetAlias", FunctionName=function, Name=name)["FunctionVersion"]
        if versions and f"{function}:{at}" not in versions:
            made = " or ".join(version.rpartition(":")[2] for version in versions)
            lines.append(
                f"make deploy: the alias {name} is at version {at}, and the stack left it at {made}.\n    {MOVED}"
            )
    return lines


def other_kind(resources: list[Json], template: Json) -> list[str]:
    """The queues that would become FIFO queues, or would no longer be FIFO queues."""
    names = []
    for resource in resources:
        planned = template["Resources"].get(resource["LogicalResourceId"])
        if planned and resource["ResourceType"] == "AWS::SQS::Queue":
            fifo = planned["Properties"].get("FifoQueue", False)
            if fifo is not resource["PhysicalResourceId"].endswith(".fifo") and isinstance(fifo, bool):
                names.append(resource["LogicalResourceId"])
    return sorted(names)


def target() -> tuple[Aws, str]:
    """Where `sam deploy` deploys, and the name of the stack, as samconfig.toml has them."""
    config = tomllib.loads(Path("samconfig.toml").read_text()).get("default", {})
    options: Json = {}
    for command in ("global", "deploy"):
        options |= config.get(command, {}).get("parameters", {})
    return Aws(options.get("profile"), options.get("region")), options["stack_name"]


def warning(words: list[str]) -> str:
    """The warning before a deployment that drops an overlay or changes the meaning of messages, or an empty string."""
    aws, stack = target()
    try:
        template = yaml.load((BUILD / "template.yaml").read_text(), Loader=Template)
    except FileNotFoundError as problem:
        raise Refused(f"{problem.filename} does not exist. Run `make package` first.") from problem
    parameters = {name: str(p["Default"]) for name, p in template.get("Parameters", {}).items() if "Default" in p}
    try:
        (described,) = aws.read("cloudformation", "DescribeStacks", StackName=stack)["Stacks"]
    except Unknown as problem:
        if f"Stack with id {stack} does not exist" not in str(problem):
            raise
        check_processors(template, parameters | given(words))
        return ""
    # A parameter that the command line leaves out keeps its deployed value.
    deployed = {p["ParameterKey"]: p.get("ResolvedValue", p["ParameterValue"]) for p in described.get("Parameters", [])}
    parameters |= deployed | given(words)
    check_processors(template, parameters)
    summaries = aws.read("cloudformation", "ListStackResources", StackName=stack)["StackResourceSummaries"]
    gone = ("DELETE_COMPLETE", "DELETE_SKIPPED")  # deleted, or left behind
    resources = [r for r in summaries if "PhysicalResourceId" in r and r["ResourceStatus"] not in gone]
    values = parameters | {r["LogicalResourceId"]: r["PhysicalResourceId"] for r in resources}
    mappings = [r["PhysicalResourceId"] for r in resources if r["ResourceType"] == "AWS::Lambda::EventSourceMapping"]

    outputs = {output["OutputKey"]: output["OutputValue"] for output in described.get("Outputs", [])}
    running = outputs.get("Overlays", "none")
    merged = template.get("Outputs", {}).get("Overlays", {}).get("Value", "none")
    dropped = [name for name in running.split() if name not in FREE.union(merged.split())]
    lines = [f"make deploy: {DROPPED.format(running=running, dropped=' and '.join(dropped))}"] if dropped else []
    settings, fifo = queue_changes(aws, resources, template, values), other_kind(resources, template)
    lines += [*settings, *moved_alias(aws, resources, template)]
    if fifo:
        lines.append(f"make deploy: {' and '.join(fifo)} would be replaced.\n    {REPLACED}")
    for resource in resources:
        name, function = resource["PhysicalResourceId"], template["Resources"].get(resource["LogicalResourceId"])
        if function and resource["ResourceType"] == "AWS::Lambda::Function":
            changed = changes(aws, name, planned(template, function, values))
            if (changed or fifo) and (messages := held(aws, name, mappings)):
                settings = [f"make deploy: {name} would treat messages in its queues differently.", *changed, *messages]
                lines += settings
    if settings:
        lines.append(
            "To be safe, stop the producers, let the consumer empty the queue, and redrive or delete dead letters:"
        )
    return "\n".join(lines)


def confirmed() -> bool:
    if os.environ.get(ALLOW):
        print(f"Deploying nevertheless, because {ALLOW} is set.", file=sys.stderr)
        return True
    if not sys.stdin.isatty():
        print(f"Not deployed, because nobody can answer here. {ALLOW}=1 deploys nevertheless.", file=sys.stderr)
        return False
    try:
        return input("Deploy nevertheless? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print()
        return False


def main(words: list[str]) -> int:
    try:
        question = warning(words)
    except Refused as problem:
        print(f"make deploy: {problem}", file=sys.stderr)
        return 1
    except Unknown as problem:
        question = f"make deploy: cannot compare the settings with those of the deployed function: {problem}"
    if not question:
        return 0
    print(f"{question}\n{PAGE}", file=sys.stderr)
    return 0 if confirmed() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The queue, the tables and the variables of the function in the current folder's template.yaml, on a local cloud."""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from botocore.exceptions import ClientError, WaiterError
from cloud import Cloud, Json, Template, Unavailable

NAME = "dev"


def references(node: Any) -> Iterator[str]:
    """Names that this part of a template refers to."""
    match node:
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), *_]}:
            yield name
        case dict():
            for value in node.values():
                yield from references(value)
        case list():
            for value in node:
                yield from references(value)
        case str():
            yield from re.findall(r"\$\{(\w+)", node)


@dataclass(frozen=True)
class Function:
    """The function of template.yaml, with its event source and its variables."""

    template: Json
    name: str

    @classmethod
    def read(cls) -> "Function":
        template = yaml.load(Path("template.yaml").read_text(), Loader=Template)
        resources = template["Resources"].items()
        names = [name for name, resource in resources if resource["Type"] == "AWS::Serverless::Function"]
        if len(names) != 1:
            raise Unavailable(f"template.yaml has {len(names)} functions; `make dev` runs a template with one")
        return cls(template, names[0])

    @property
    def properties(self) -> Json:
        properties: Json = self.template["Resources"][self.name]["Properties"]
        return properties

    @property
    def variables(self) -> Json:
        variables: Json = self.properties.get("Environment", {}).get("Variables", {})
        return variables

    def queue(self) -> str:
        """Name of the queue in the template: the event source of the function."""
        events = [e["Properties"] for e in self.properties.get("Events", {}).values() if e["Type"] == "SQS"]
        mappings = [
            resource["Properties"]
            for resource in self.template["Resources"].values()
            if resource["Type"] == "AWS::Lambda::EventSourceMapping"
        ]
        sources = [event["Queue"] for event in events] + [mapping["EventSourceArn"] for mapping in mappings]
        for name in references(sources):
            return name
        raise Unavailable(f"template.yaml has no queue as event source of {self.name}")

    def stack(self) -> Json:
        """The template of the queue, and of all resources that the queue and the variables refer to."""
        resources = self.template["Resources"]
        needed: dict[str, Json] = {}
        names = [self.queue(), *references(self.variables)]
        while names:
            name = names.pop()
            if name in resources and name not in needed and name != self.name:
                needed[name] = resources[name]
                names += references(resources[name])
        outputs: Json = {"Queue": {"Value": {"Ref": self.queue()}}}
        for number, value in enumerate(self.variables.values()):
            text = value if isinstance(value, dict) else str(value)
            outputs[f"Variable{number}"] = {"Value": {"Fn::Join": ["", ["=", text]]}}  # no output may be empty
        kept = {k: v for k, v in self.template.items() if k in ("Parameters", "Mappings", "Conditions")}
        return kept | {"Resources": needed, "Outputs": outputs}

    def parameters(self) -> list[dict[str, str]]:
        """Values of the parameters that have no default, from the environment."""
        values = []
        for name, parameter in self.template.get("Parameters", {}).items():
            if "Default" not in parameter:
                variable = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
                if variable not in os.environ:
                    raise Unavailable(f"set {variable}, the value of the parameter {name} of template.yaml")
                values.append({"ParameterKey": name, "ParameterValue": os.environ[variable]})
        return values


@dataclass(frozen=True)
class Stack:
    """The deployed queue, tables and variables."""

    cloud: Cloud
    queue: str
    queue_arn: str
    dead_letters: str | None
    tables: list[str]
    variables: dict[str, str]

    def environment(self, program: str) -> dict[str, str]:
        """The environment of the function. Variables of the shell take precedence over those of the template."""
        of_dev = {
            "AWS_LAMBDA_FUNCTION_NAME": program,
            "CONSUMER_BACKOFF_BASE": "1s",
            "CONSUMER_BACKOFF_CAP": "5s",
            "CONSUMER_METRICS": "off",
        }
        return self.variables | of_dev | self.cloud.environment()

    def clear(self) -> None:
        """Deletes all messages and items."""
        sqs, dynamodb = self.cloud.client("sqs"), self.cloud.client("dynamodb")
        for url in filter(None, (self.queue, self.dead_letters)):
            sqs.purge_queue(QueueUrl=url)
        for table in self.tables:
            schema = dynamodb.describe_table(TableName=table)["Table"]["KeySchema"]
            keys = [key["AttributeName"] for key in schema]
            for page in dynamodb.get_paginator("scan").paginate(TableName=table):
                for item in page["Items"]:
                    dynamodb.delete_item(TableName=table, Key={key: item[key] for key in keys})


def deploy(cloud: Cloud, function: Function) -> Stack:
    """Creates the resources of the function, but not the function."""
    cloudformation = cloud.client("cloudformation")
    body = json.dumps(function.stack(), default=str)
    try:
        cloudformation.create_stack(StackName=NAME, TemplateBody=body, Parameters=function.parameters())
    except ClientError as problem:
        raise Unavailable(f"MiniStack refuses template.yaml: {problem}") from None
    with contextlib.suppress(WaiterError):
        cloudformation.get_waiter("stack_create_complete").wait(StackName=NAME, WaiterConfig={"Delay": 1})
    created = cloudformation.describe_stacks(StackName=NAME)["Stacks"][0]
    if created["StackStatus"] != "CREATE_COMPLETE":
        raise Unavailable(f"MiniStack cannot create template.yaml: {created.get('StackStatusReason', created)}")
    values = {output["OutputKey"]: output["OutputValue"] for output in created["Outputs"]}
    variables = {name: values[f"Variable{number}"][1:] for number, name in enumerate(function.variables)}
    queue_url = values["Queue"]
    sqs = cloud.client("sqs")
    answer = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn", "RedrivePolicy"])
    attributes = answer["Attributes"]
    dead_letters = None
    if policy := json.loads(attributes.get("RedrivePolicy", "{}")):
        name = policy["deadLetterTargetArn"].rsplit(":", 1)[1]
        dead_letters = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    tables = cloud.client("dynamodb").list_tables()["TableNames"]
    return Stack(cloud, queue_url, attributes["QueueArn"], dead_letters, tables, variables)

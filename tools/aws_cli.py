"""A stand-in for the AWS CLI, for the commands of docs/runbook.md: `aws SERVICE OPERATION [OPTION ...]`.

Service, operation and options are those of botocore, on which the AWS CLI is built. An unknown name is an
error, as in the AWS CLI. With AWS_CLI_CHECK=1 the names are checked, and nothing is sent.
"""

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import botocore.session
import jmespath  # type: ignore[import-untyped]
from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

OUTPUTS = ("json", "text")
# Services that have a different name in the AWS CLI.
NAMES = {"deploy": "codedeploy"}


class Usage(Exception):
    """The command line is wrong."""


def value(shape: Any, words: list[str]) -> Any:
    """The value of an option, from JSON, from shorthand (NAME=VALUE,...), or from the words themselves."""
    if shape.type_name in ("structure", "map", "list") and words[0].startswith(("[", "{")):
        return json.loads(" ".join(words))
    if shape.type_name in ("structure", "map"):
        pairs = dict(pair.split("=", 1) for pair in words[0].split(","))
        return {name: value(member(shape, name), [text]) for name, text in pairs.items()}
    if shape.type_name == "list":
        return [value(shape.member, [word]) for word in words]
    if len(words) != 1:
        raise Usage(f"one value expected, not {words}")
    if shape.type_name in ("integer", "long", "timestamp"):
        return int(words[0])
    if shape.type_name in ("float", "double"):
        return float(words[0])
    if (allowed := getattr(shape, "enum", None)) and words[0] not in allowed:
        raise Usage(f"{words[0]!r} is not one of {', '.join(allowed)}")
    return words[0]


def member(shape: Any, name: str) -> Any:
    if shape.type_name == "map":
        return shape.value
    if name not in shape.members:
        raise Usage(f"no member {name}; there are {', '.join(shape.members)}")
    return shape.members[name]


def options(words: list[str]) -> dict[str, list[str]]:
    """The options with their words."""
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            found[word] = []
        elif not found:
            raise Usage(f"unexpected {word!r}")
        else:
            found[list(found)[-1]].append(word)
    return found


def parameters(operation: Any, given: dict[str, list[str]]) -> dict[str, Any]:
    shapes = operation.input_shape.members if operation.input_shape else {}
    names = {f"--{xform_name(name, '-')}": name for name in shapes}
    result: dict[str, Any] = {}
    for option, words in given.items():
        flag = option.replace("--no-", "--", 1)
        name = names.get(option) or names.get(flag)
        if name is None:
            raise Usage(f"no option {option}; there are {', '.join(names)}")
        if shapes[name].type_name == "boolean":
            if words:
                raise Usage(f"{option} has no value")
            result[name] = option in names
        elif not words:
            raise Usage(f"{option} needs a value")
        else:
            result[name] = value(shapes[name], words)
    if operation.input_shape:
        missing = set(operation.input_shape.required_members) - set(result)
        if missing:
            raise Usage(f"missing: {', '.join(sorted(missing))}")
    return result


def shown(answer: Any, form: str) -> str:
    if form == "json":
        return json.dumps(answer, indent=4, default=str)
    if isinstance(answer, list):
        flat = not any(isinstance(item, list) for item in answer)
        return ("\t" if flat else "\n").join(shown(item, form) for item in answer)
    return str(answer)


@dataclass(frozen=True)
class Command:
    """A command line whose names are those of AWS."""

    service: str
    call: str  # operation, or waiter
    waits: bool
    arguments: dict[str, Any]
    form: str
    query: Any


def parse(words: list[str]) -> Command:
    try:
        service, name, *rest = words
        waits = name == "wait"
        if waits:
            name, *rest = rest
    except ValueError:
        raise Usage("aws SERVICE OPERATION") from None
    given = options(rest)
    form = given.pop("--output", ["json"])[0]
    if form not in OUTPUTS:
        raise Usage(f"--output {form} is not one of {', '.join(OUTPUTS)}")
    query = given.pop("--query", None)
    compiled = jmespath.compile(query[0]) if query else None
    session = botocore.session.get_session()
    service = NAMES.get(service, service)
    if service not in session.get_available_services():
        raise Usage(f"no service {service}")
    model = session.get_service_model(service)
    if waits:
        waiters = session.get_waiter_model(service)
        operations = {xform_name(waiter, "-"): waiters.get_waiter(waiter).operation for waiter in waiters.waiter_names}
    else:
        operations = {xform_name(operation, "-"): operation for operation in model.operation_names}
    if name not in operations:
        raise Usage(f"{service} has no {'waiter' if waits else 'operation'} {name}")
    arguments = parameters(model.operation_model(operations[name]), given)
    return Command(service, name.replace("-", "_"), waits, arguments, form, compiled)


def main(words: list[str]) -> int:
    command = parse(words)
    if os.environ.get("AWS_CLI_CHECK"):
        return 0
    client = botocore.session.get_session().create_client(command.service)
    if command.waits:
        client.get_waiter(command.call).wait(**command.arguments)
        return 0
    answer = getattr(client, command.call)(**command.arguments)
    answer.pop("ResponseMetadata", None)
    if command.query:
        answer = command.query.search(answer)
    if answer:
        print(shown(answer, command.form))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (Usage, ValueError, jmespath.exceptions.ParseError) as problem:
        print(f"aws: {problem}", file=sys.stderr)
        sys.exit(252)
    except (BotoCoreError, ClientError) as problem:
        print(f"aws: {problem}", file=sys.stderr)
        sys.exit(254)

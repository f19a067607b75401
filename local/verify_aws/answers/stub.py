"""A cloud whose services give answers that a test prepared."""

import contextlib
import copy
import secrets
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import boto3
from botocore.stub import Stubber
from cloud import Cloud

from verify_aws.check import Check
from verify_aws.checks import permissions, writes
from verify_aws.journal import Journal
from verify_aws.report import Row
from verify_aws.scratch import Scratch

Json = dict[str, Any]

REGION = "us-east-1"
ACCOUNT = "123456789012"
RUN = "0" * 8
# Before the name of a service: its client with the credentials of a role.
ASSUMED = "assumed:"
NAME = f"sqs-once-verify-{RUN}"
URL = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/"
ARN = f"arn:aws:sqs:{REGION}:{ACCOUNT}:"
# In the place of random names, so that answers can repeat them.
RANDOM = "f" * 8
OUTPUTS = {
    "QueueUrl": f"{URL}{NAME}-orders",
    "DeadLetterQueueUrl": f"{URL}{NAME}-dead",
    "FunctionName": f"{NAME}-consumer",
    "TableName": f"{NAME}-records",
    "EventSourceMappingId": "0c0c0c0c-0000-4000-8000-000000000000",
    "LogGroupName": f"{NAME}-logs",
    "RoleArn": f"arn:aws:iam::{ACCOUNT}:role/{NAME}-role",
}


TOPIC = f"arn:aws:sns:{REGION}:{ACCOUNT}:{NAME}-alarms"


@dataclass(frozen=True)
class Answer:
    service: str
    method: str
    body: Json
    error: str = ""


@dataclass(frozen=True)
class Tool:
    """The output of a program: of `sqs-once`, or of a shell."""

    text: str
    status: int = 0


@dataclass(frozen=True)
class Time:
    """A reading of the clock."""

    seconds: float


Given = Answer | Tool | Time


def ok(call: str, **body: Any) -> Answer:
    """A success: `ok("sqs.send_message", MessageId="m")`."""
    service, method = call.split(".")
    return Answer(service, method, body)


def refused(call: str, error: str, **fields: Any) -> Answer:
    """An error, with the fields that AWS's model has for it."""
    service, method = call.split(".")
    return Answer(service, method, fields, error)


@dataclass(frozen=True)
class Pair:
    holds: list[Given]
    differs: list[Given]


PAIRS: dict[str, Pair] = {}


def pair(check: str, holds: list[Given], differs: list[Given]) -> None:
    """The answers of a check, by its name. Both lists are in the order of the requests to each service."""
    assert check not in PAIRS, check
    PAIRS[check] = Pair(holds, differs)


@dataclass(frozen=True)
class Stubbed(Cloud):
    """Each service gives the prepared answers in their order, and no others."""

    given: list[Given] = field(default_factory=list)
    stubbers: dict[str, Stubber] = field(default_factory=dict)
    clients: dict[str, Any] = field(default_factory=dict)

    def client(self, service: str) -> Any:
        if service not in self.clients:
            create: Any = boto3.client
            keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
            client = create(service.removeprefix(ASSUMED), region_name=REGION, **keys)
            stubber = Stubber(client)
            for answer in self.given:
                if isinstance(answer, Answer) and answer.service == service:
                    add(stubber, answer)
            stubber.activate()
            self.stubbers[service], self.clients[service] = stubber, client
        return self.clients[service]

    def assumed(self, service: str, **_: Any) -> Any:
        """The client of a service with the credentials of a role."""
        return self.client(ASSUMED + service)

    def environment(self) -> dict[str, str]:
        return {}

    def unused(self) -> list[str]:
        """The services that were given answers for which nobody asked."""
        found = []
        for service in {answer.service for answer in self.given if isinstance(answer, Answer)}:
            try:
                self.client(service)
                self.stubbers[service].assert_no_pending_responses()
            except AssertionError:
                found.append(service)
        return sorted(found)


def add(stubber: Stubber, answer: Answer) -> None:
    if answer.error:
        stubber.add_client_error(
            answer.method,
            service_error_code=answer.error,
            service_message="refused by the test",
            http_status_code=400,
            modeled_fields=answer.body or None,
        )
    else:
        # botocore decodes policies in place.
        stubber.add_response(answer.method, copy.deepcopy(answer.body))


@contextlib.contextmanager
def scratch(given: list[Given], folder: Path) -> Iterator[Scratch]:
    """The scratch of a check with these answers. No wait is longer than one look."""
    cloud = Stubbed("", given=given)
    journal = Journal.open(RUN, folder)
    assert journal
    tools = [answer for answer in given if isinstance(answer, Tool)]

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        answer = tools.pop(0) if tools else Tool("", 1)
        return subprocess.CompletedProcess(command, answer.status, answer.text, "")

    times = [answer.seconds for answer in given if isinstance(answer, Time)]

    def in_order(requests: list[Callable[[], str]]) -> list[str]:
        return [request() for request in requests]

    with (
        mock.patch.object(writes, "together", in_order),
        mock.patch.object(secrets, "token_hex", lambda size=4: RANDOM[:8] * (size // 4)),
        mock.patch.object(permissions, "connect", cloud.assumed),
        mock.patch.object(subprocess, "run", run),
    ):
        yield Scratch(
            cloud,
            journal,
            False,
            "x86_64",
            OUTPUTS,
            TOPIC,
            "postgres://user@host/orders",
            patience=0,
            clock=lambda: times.pop(0),
        )
    journal.end()


def run(check: Check, given: list[Given], folder: Path, used: set[str]) -> tuple[Row, list[str]]:
    """The row of a check with these answers, and the services whose answers it did not ask for."""
    from verify_aws.__main__ import judged

    with scratch(given, folder) as prepared:
        row = judged(check, prepared, "")
        used |= prepared.used
        assert isinstance(prepared.cloud, Stubbed)
        return row, prepared.cloud.unused()

"""`make runbook`: runs the commands of docs/runbook.md against a stack on a local cloud.

The stack gets messages that succeed, that fail permanently and that cannot be read, so that each command
has something to show or to change. A command with the comment `not run` is only checked by the AWS CLI, which sends
nothing.
Before that, the sections of the page are compared with the alarms and the outcomes.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import demo
import deployment
import gateway
import suites
import yaml
from cases import body_of
from cloud import ROOT, STATE, Cloud, Json, Template, Unavailable, ministack, run, unwind_on_signals
from deployment import Failed, say
from gateway import Trouble

PAGE = ROOT / "docs" / "runbook.md"
TOOL = ROOT / "target" / "debug" / "sqs-once"
STACK = "orders"
PARAMETERS = {
    "FunctionTimeout": "10",
    "AlarmEmail": "on-call@example.com",
}
WITHIN = 60.0
PLACEHOLDER = "KEY='payments#o-1'"

# Commands that ask, unless they have `--yes`. Here nobody answers.
ASKS = re.compile(r"^(sqs-once (?:record (?:decline|delete|release)|dlq redrive) (?!.*--dry-run).*)$", re.MULTILINE)


# `aws` fails unless it would have sent the command; `git` and `make` do nothing.
NOT_SENT = """
git() { :; }; make() { :; }
export AWS_MAX_ATTEMPTS=1
aws() {
  local said; said=$(command aws "$@" --endpoint-url http://127.0.0.1:1 2>&1 > /dev/null) || :
  [[ $said == *"Could not connect to the endpoint URL"* ]] || { echo "aws $*: $said" >&2; return 1; }
}
"""


# ---- the page ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Shell commands under a heading."""

    heading: str
    line: int
    text: str
    not_run: str | None

    @property
    def name(self) -> str:
        return f"{PAGE.relative_to(ROOT)}:{self.line}  {self.heading}"


def headings(page: str, level: int, within: str = "") -> list[str]:
    """The headings of a level, all of them or those of one chapter."""
    chapter = re.search(rf"^## {within}$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL) if within else None
    return re.findall(rf"^{'#' * level} (.+)$", chapter[1] if chapter else page, re.MULTILINE)


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    heading, not_run, start, text = "", None, 0, [""]
    for number, line in enumerate(page.split("\n"), 1):
        bare = line.strip()
        if start and bare == "```":
            if text[0] == "sh":
                found.append(Block(heading, start, textwrap.dedent("\n".join(text[1:])), not_run))
            start, not_run = 0, None
        elif start:
            text.append(line)
        elif bare.startswith("```"):
            start, text = number, [bare.removeprefix("```")]
        elif title := re.match(r"#+ (.+)", line):
            heading = title[1]
        elif comment := re.match(r"<!-- not run: (.+) -->", bare):
            not_run = comment[1]
    return found


def missing_sections(page: str) -> list[str]:
    """Alarms and outcomes without a section, sections without one, and alarms that do not name theirs.

    An outcome needs a section only if its row links one. Otherwise the row says what to do.
    """
    template, overlay = (
        yaml.load((ROOT / file).read_text(), Loader=Template) for file in ("template.yaml", "overlays/dashboard.yaml")
    )
    resources = (template["Resources"] | overlay["Resources"]).items()
    alarms = {name: r["Properties"] for name, r in resources if r["Type"] == "AWS::CloudWatch::Alarm"}
    table = page.partition("\n## Outcomes\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (?:`(\w+)`|\[`(\w+)`\]\(#\2\)) \|.*\| *(.*?) *\|$", table, re.MULTILINE)
    problems = [f"the row of {plain or linked} does not say what to do" for plain, linked, do in rows if not do]
    # The unit test `runbook_has_the_facts_of_every_outcome` says that each outcome has a row.
    if len(rows) != len(re.findall(r"^\| \[?`", table, re.MULTILINE)) or not rows:
        problems.append("a row of the table of outcomes has another form")
    outcomes = [linked for _, linked, _ in rows if linked]
    for chapter, expected in (("Alarms", list(alarms)), ("Outcomes", outcomes)):
        sections = headings(page, 3, chapter)
        problems += [f"no section for {name} in the chapter {chapter}" for name in expected if name not in sections]
        problems += [f"the section {name} is about nothing" for name in sections if name not in expected]
    mappings = [r["Properties"] for _, r in resources if r["Type"] == "AWS::Lambda::EventSourceMapping"]
    if len(mappings) != 1 or "Enabled" in mappings[0]:
        problems.append("the page says that a deployment does not resume, but the template sets the mapping's state")
    for name, properties in alarms.items():
        link = f"docs/runbook.md#{name.lower()}"
        if link not in properties["AlarmDescription"]:
            problems.append(f"the description of the alarm {name} does not name {link}")
    return problems


# ---- the stack ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    cloud: Cloud
    ledger: gateway.Gateway
    outputs: dict[str, str]

    def key(self, number: str) -> str:
        return f"payments#{number}"

    def record(self, number: str) -> Json | None:
        answer = self.cloud.client("dynamodb").get_item(
            TableName=self.outputs["TableName"], Key={"id": {"S": self.key(number)}}, ConsistentRead=True
        )
        item: Json | None = answer.get("Item")
        return item

    def prepare(self) -> None:
        """Sends the messages, and claims `stuck` for a worker that does not exist."""
        # MiniStack ignores the TTL of a template.
        self.cloud.client("dynamodb").update_time_to_live(
            TableName=self.outputs["TableName"],
            TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires_at"},
        )
        self.ledger.plan("refused", Trouble.REFUSED)
        bodies = [body_of("done"), body_of("declined", token="tok_chargeDeclined"), body_of("refused"), "no JSON"]
        deployment.send(self.cloud, self.outputs["QueueUrl"], bodies)
        queues = self.outputs["QueueUrl"], self.outputs["DeadLetterQueueUrl"]
        until("three dead letters and an empty queue", lambda: deployment.depths(self.cloud, *queues) == (0, 0, 3))
        self.ledger.accept("refused")
        item = self.record("done") or {}
        claim = {"id": {"S": self.key("stuck")}, "status": {"S": "IN_PROGRESS"}}
        lease = {"lease_until": {"N": str(int(time.time() * 1000) + 3_600_000)}}
        del item["result"]
        self.cloud.client("dynamodb").put_item(TableName=self.outputs["TableName"], Item=item | claim | lease)

    def mapping(self) -> str:
        mapping = self.cloud.client("lambda").get_event_source_mapping(UUID=self.outputs["EventSourceMappingId"])
        return str(mapping["State"])

    def lease_left(self, number: str) -> float:
        record = self.record(number)
        return int(record["lease_until"]["N"]) / 1000 - time.time() if record else 0.0


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN
    while not holds():
        if time.monotonic() > deadline:
            raise Failed(f"not within {WITHIN:.0f} s: {what}")
        time.sleep(0.2)


# The order whose key replaces the page's key, in the sections that name a key.
ORDERS = {
    "Run permanent failures again": "declined",
    "A record stuck in progress": "stuck",
    "Delete a record": "done",
}


def effects(stack: Stack) -> dict[str, tuple[str, Callable[[], bool]]]:
    """The state that the commands of a section must have reached."""
    return {
        "Pause and resume the consumer": ("the mapping is enabled", lambda: stack.mapping() == "Enabled"),
        "Redrive dead letters": ("the refused order is charged", lambda: stack.ledger.charges["refused"] == 1),
        "Delete dead letters": (
            "one dead letter is left",
            lambda: deployment.depth(stack.cloud, stack.outputs["DeadLetterQueueUrl"]) == (0, 1),
        ),
        "Run permanent failures again": (
            "no attempt is open",
            lambda: (stack.record("declined") or {}).get("last_end") == {"S": "no_effect"},
        ),
        "A record stuck in progress": ("the lease has ended", lambda: stack.lease_left("stuck") <= 0),
        "Delete a record": ("the record is deleted", lambda: stack.record("done") is None),
    }


def beginnings(stack: Stack) -> dict[str, tuple[str, Callable[[], bool]]]:
    """The state that the first commands of a section need."""
    queues = stack.outputs["QueueUrl"], stack.outputs["DeadLetterQueueUrl"]
    return {
        # The redriven messages that failed again: a decline, and the body that isn't JSON.
        "Delete dead letters": (
            "two dead letters and an empty queue",
            lambda: deployment.depths(stack.cloud, *queues) == (0, 0, 2),
        ),
    }


# ---- the commands ------------------------------------------------------------------------------


def environment(cloud: Cloud, programs: Path) -> dict[str, str]:
    """The environment of the commands, with `sqs-once`, the AWS CLI of .venv, and the endpoint of the local cloud."""
    # For SQS, the AWS CLI ignores AWS_ENDPOINT_URL.
    cli = Path(sys.executable).parent / "aws"
    (programs / "aws").write_text(f'#!/bin/sh\nexec "{cli}" --endpoint-url "$AWS_ENDPOINT_URL" "$@"\n')
    (programs / "aws").chmod(0o755)
    shutil.copy(TOOL, programs / "sqs-once")
    variables = cloud.environment()
    return variables | {"PATH": f"{programs}:{variables['PATH']}"}


def shell(
    script: str, directory: Path, variables: dict[str, str], within: float = WITHIN
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=within,
    )


def variables_of(block: Block, directory: Path, variables: dict[str, str]) -> str:
    """The variables and functions that a block defines, as the shell prints them."""
    names = re.findall(r"^(?:export )?(\w+)=", block.text, re.MULTILINE)
    ended = shell(f"{block.text}\ndeclare -p {' '.join(names)}\ndeclare -f", directory, variables)
    if ended.returncode:
        raise Failed(f"{block.name}: exit code {ended.returncode}\n{ended.stdout}")
    return ended.stdout


def try_commands(stack: Stack, page: str, directory: Path, variables: dict[str, str]) -> bool:
    """Runs the blocks in the order of the page, with the variables of the first two. Returns False if one failed."""
    first, outputs, *found = blocks(page)
    defined = variables_of(replace(first, text=f"{first.text}\n{outputs.text}"), directory, variables)
    expected, ready = effects(stack), beginnings(stack)
    passed = True
    for position, block in enumerate(found):
        text = ASKS.sub(r"\1 --yes", block.text)
        if block.heading in ORDERS:
            text = text.replace(PLACEHOLDER, f"KEY='{stack.key(ORDERS[block.heading])}'")
        if PLACEHOLDER in text:
            raise Failed(f"{block.name}: no order is chosen for its key")
        before = NOT_SENT if block.not_run else ""
        start = time.monotonic()
        if block.heading in ready:
            until(*ready.pop(block.heading))
        ended = shell("\n".join([defined, before, text]), directory, variables)
        problem = f"exit code {ended.returncode}" if ended.returncode else None
        if problem is None and text.lstrip().startswith("insights ") and not ended.stdout.strip():
            problem = "the query prints nothing"
        last = [b.heading for b in found[position + 1 :]].count(block.heading) == 0
        if problem is None and last and block.heading in expected:
            try:
                until(*expected[block.heading])
            except Failed as failed:
                problem = str(failed)
        seconds = time.monotonic() - start
        word = "FAILED" if problem else "checked" if block.not_run else "ran"
        deployment.console.print(f"  {word:8} {seconds:4.1f} s  {block.name}")
        if block.not_run:
            deployment.console.print(f"           not run: {block.not_run}")
        if problem:
            passed = False
            deployment.console.print(f"{textwrap.indent(text, '    ')}\n{problem}\n{ended.stdout}", markup=False)
    return passed


def main() -> int:
    unwind_on_signals()
    STATE.mkdir(exist_ok=True)
    page = PAGE.read_text()
    if problems := missing_sections(page):
        raise Failed("\n".join(problems))
    say("building the consumer and sqs-once")
    demo.build()
    # The command of the test suites, so that both share one build.
    if run([*suites.CARGO_TEST, "--no-run", "--test", "cli"], os.environ) != 0:
        raise Failed("sqs-once does not compile")
    with ministack("runbook") as cloud, gateway.serve(workers_of=cloud.pid) as ledger, contextlib.ExitStack() as files:
        programs = Path(files.enter_context(tempfile.TemporaryDirectory(dir=STATE)))
        variables = environment(cloud, programs)
        say(f"sam deploy to MiniStack at {cloud.endpoint}")
        outputs = deployment.deploy(cloud, STACK, **PARAMETERS, PaymentGatewayUrl=ledger.url)
        stack = Stack(cloud, ledger, outputs)
        stack.prepare()
        say("running the commands of docs/runbook.md")
        return 0 if try_commands(stack, page, programs, variables) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, Unavailable) as problem:
        sys.exit(f"make runbook: {problem}")

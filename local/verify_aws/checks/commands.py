"""The commands of the runbook, on the deployed stack."""

import dataclasses
import functools
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import runbook
from cloud import ROOT

from verify_aws.check import Seen, check
from verify_aws.checks.messages import DECLINED, ended, fresh, key_of, order, record, send
from verify_aws.scratch import TOOL, Scratch

Json = dict[str, Any]

WITHIN = 180.0  # seconds for the commands of one block
LEASE = 3600  # seconds that a record stays in progress, for the commands about such a record


def prepare(scratch: Scratch) -> dict[str, str]:
    """Sends orders that the commands can show. Returns the order of each section that names a key."""
    done, declined, stuck = fresh("done"), fresh("declined"), fresh("stuck")
    send(scratch, [order(done), order(declined, DECLINED)])
    ended(scratch, done, "COMPLETED")
    ended(scratch, declined, "FAILED")
    claim = {
        "status": {"S": "IN_PROGRESS"},
        "lease_until": {"N": str(int((time.time() + LEASE) * 1000))},
    }
    item = {name: value for name, value in record(scratch, done).items() if name != "result"}
    item |= scratch.key(key_of(scratch, stuck)) | claim
    scratch.client("dynamodb").put_item(TableName=scratch.outputs["TableName"], Item=item)
    return {name: {"done": done, "declined": declined, "stuck": stuck}[which] for name, which in runbook.ORDERS.items()}


def environment(scratch: Scratch, programs: Path) -> dict[str, str]:
    """With `sqs-once`, and the stand-in for the AWS CLI, so that no version of the CLI is needed."""
    (programs / "aws").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/local/aws_cli.py" "$@"\n')
    (programs / "aws").chmod(0o755)
    variables = scratch.cloud.environment()
    return variables | {"PATH": f"{programs}:{TOOL.parent}:{variables.get('PATH', '')}"}


def ran(defined: str, text: str, folder: Path, variables: dict[str, str]) -> bool:
    """Tells if the commands ended with 0, and printed something if they are a query."""
    try:
        ended = runbook.shell(f"{defined}\n{text}", folder, variables, WITHIN)
    except subprocess.TimeoutExpired:
        return False
    silent = text.lstrip().startswith("insights ") and not ended.stdout.strip()
    return ended.returncode == 0 and not silent


@check(only_aws="`make runbook` runs them on a local cloud")
def commands_of_the_runbook_run(scratch: Scratch) -> Seen:
    """Every command of the runbook ends with 0 on the deployed stack, in the order of the page.

    Where:
    docs/runbook.md: # Runbook
    """
    page = runbook.PAGE.read_text()
    first, *blocks = runbook.blocks(page)
    orders = prepare(scratch)
    problems, number = [], 0
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        variables = environment(scratch, folder)
        start = dataclasses.replace(first, text=first.text.replace("STACK=orders", f"STACK={scratch.name}"))
        defined = runbook.variables_of(start, folder, variables)
        for block in (block for block in blocks if not block.not_run):
            text = runbook.ASKS.sub(r"\1 --yes", block.text)
            if block.heading in orders:
                key = key_of(scratch, orders[block.heading])
                text = text.replace(runbook.PLACEHOLDER, f"KEY='{key}'")
            number += 1
            # The log group shows lines after some seconds.
            if not scratch.eventually(
                functools.partial(ran, defined, text, folder, variables), bool, within=60, pause=10
            ):
                problems.append(f"line {block.line} ({block.heading})")
    return Seen(not problems, f"failed: {', '.join(problems)}" if problems else f"{number} blocks of commands")

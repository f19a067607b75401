"""Answers to `checks/commands.py`."""

import runbook

from verify_aws.answers.messages import put, record, sent
from verify_aws.answers.stub import Given, Tool, pair

NUMBER = len([block for block in runbook.blocks(runbook.PAGE.read_text())[1:] if not block.not_run])


def run(last: Tool) -> list[Given]:
    prepared: list[Given] = [sent, record("COMPLETED"), record("FAILED"), record("COMPLETED"), put]
    return [*prepared, Tool("STACK=s"), *[Tool("rows")] * (NUMBER - 1), last]


pair("commands_of_the_runbook_run", holds=run(Tool("rows")), differs=run(Tool("", status=254)))

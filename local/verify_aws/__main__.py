"""The command line of `make verify-aws`, and the frame of a run: question, deployment, checks, teardown, report."""

import argparse
import contextlib
import datetime
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import deployment
from botocore.exceptions import BotoCoreError, ClientError
from cloud import ROOT, STATE, Cloud, Unavailable, cloud, uninterrupted, unwind_on_signals
from deployment import Failed, console, say

from verify_aws import account, teardown
from verify_aws.account import Aws, Denied, Refused
from verify_aws.check import Check, NotChecked, Verdict
from verify_aws.checks import CHECKS
from verify_aws.checks.deployed import default_deployment_completes
from verify_aws.journal import FOLDER, RUN, Journal
from verify_aws.report import Report, Row, row
from verify_aws.scratch import PARAMETERS, DeployFailed, Scratch, deploy, name_of, new_run, prepare

REPORT = ROOT / "target" / "verify-aws"
RESOURCES = """\
  three stacks of template.yaml, one with FIFO queues, one that fails on purpose; each with a function, an event source
  mapping, two queues, a table, a log group, a role, alarms and a dashboard
  a bucket for the deployment, a topic for the alarms; for single requests tables, queues, roles, functions
Everything has the name {name} or the tag sqs-once-verify={run}, and is removed at the end.
Cost: less than a dollar, most of it the alarms, which AWS bills by the hour.
Time: 20 to 40 minutes{slow}."""


def options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make verify-aws", description=__doc__)
    parser.add_argument("--account", default="", help="the account, which must be the caller's")
    parser.add_argument("--region", default="")
    parser.add_argument("--only", default="", help="names or subjects of checks, separated by commas")
    parser.add_argument("--slow", action="store_true", help="the slow checks too")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="against the local cloud")
    parser.add_argument("--clean", default="", help="remove what earlier runs left: 1, or the id of a run")
    parser.add_argument("--postgres", default="", help="URL of a database of RDS with records")
    parser.add_argument("--architecture", default="", help="arm64 or x86_64; this machine's if absent")
    parser.add_argument("--list", action="store_true", help="list the checks")
    return parser.parse_args(words)


# ---- which cloud ---------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(given: argparse.Namespace) -> Iterator[tuple[Cloud, str, str]]:
    """The cloud, with its account and Region. Refuses an account that is not the caller's."""
    if given.dry_run:
        with cloud("verify-aws") as local:
            yield local, local.client("sts").get_caller_identity()["Account"], local.client("sts").meta.region_name
        return
    if os.environ.get("AWS_ENDPOINT_URL"):
        raise Refused("AWS_ENDPOINT_URL is set: unset it, or use DRY_RUN=1")
    if not re.fullmatch(r"\d{12}", given.account) or not given.region:
        raise Refused("name the account and the Region: make verify-aws ACCOUNT=123456789012 REGION=eu-west-1")
    aws = Aws("", given.region)
    account.require(aws, given.account)
    yield aws, given.account, given.region


def confirmed(given: argparse.Namespace, run: str, account_id: str, region: str) -> bool:
    say(f"verify-aws {run}: account {account_id}, Region {region}, {architecture(given)}")
    slow = "; with SLOW=1, up to 12 hours more, provisioned pollers, and a key of KMS for a week" if given.slow else ""
    console.print(RESOURCES.format(name=name_of(run), run=run, slow=slow))
    console.print("The stack's parameters: " + ", ".join(f"{k}={v}" for k, v in PARAMETERS.items()), markup=False)
    if given.dry_run:
        console.print("Replaced in template.yaml for the local cloud, and not on AWS:")
        deployment.show(deployment.REPLACEMENTS)
    if given.yes or given.dry_run:
        return True
    return input("Go ahead? [y/N] ").strip().lower() in ("y", "yes")


def architecture(given: argparse.Namespace) -> str:
    return given.architecture or deployment.architecture()


def selected(given: argparse.Namespace) -> list[Check]:
    wanted = [word for word in given.only.split(",") if word]
    unknown = [w for w in wanted if not any(w in (check.name, check.subject) for check in CHECKS)]
    if unknown:
        raise Refused(f"there is no check or subject {', '.join(unknown)}; --list shows them")
    if wanted:
        return [check for check in CHECKS if check.name in wanted or check.subject in wanted]
    fast = [check for check in CHECKS if not check.slow]
    return fast + [check for check in CHECKS if check.slow and given.slow]


# ---- the run -------------------------------------------------------------------------------------


def judged(check: Check, scratch: Scratch, undeployed: str) -> Row:
    if scratch.emulated and check.only_aws:
        return row(check, Verdict.NOT_CHECKED, f"not checked here: {check.only_aws}")
    if check.function is default_deployment_completes and undeployed:
        return row(check, Verdict.DIFFERS, undeployed)
    if check.needs_stack and undeployed:
        return row(check, Verdict.NOT_CHECKED, undeployed, failed=True)
    try:
        seen = check.function(scratch)
    except NotChecked as reason:
        return row(check, Verdict.NOT_CHECKED, f"not checked here: {reason}")
    except Denied as denied:
        return row(check, Verdict.NOT_CHECKED, str(denied), failed=True)
    except ClientError as refused:
        error = refused.response["Error"]
        text = f"{refused.operation_name} was refused: {error['Code']}: {error.get('Message', '')}"
        return row(check, Verdict.DIFFERS, text)
    except BotoCoreError as problem:
        return row(check, Verdict.NOT_CHECKED, f"{type(problem).__name__}: {problem}", failed=True)
    except Exception as problem:  # a check that cannot look must not keep the others from looking
        # Without its text, which may quote a message.
        where = traceback.extract_tb(problem.__traceback__)[-1]
        text = f"{type(problem).__name__} in {Path(where.filename).name}, line {where.lineno}"
        return row(check, Verdict.NOT_CHECKED, text, failed=True)
    return row(check, Verdict.HOLDS if seen.holds else Verdict.DIFFERS, seen.text)


def run_checks(chosen: list[Check], scratch: Scratch) -> Iterator[Row]:
    prepare(scratch)
    undeployed = ""
    if any(check.needs_stack for check in chosen):
        say("deploying the stack")
        try:
            deploy(scratch, [c.stack for c in chosen if c.stack and not (scratch.emulated and c.only_aws)])
        except DeployFailed as failed:
            undeployed = f"the stack was not created: {failed}"
            console.print(undeployed, markup=False)
    for check in chosen:
        one = judged(check, scratch, undeployed)
        console.print(f"  {one.verdict.value:12} {check.name}", markup=False)
        scratch.journal.checked(check.name)
        yield one


def verify(given: argparse.Namespace, cloud: Cloud, account_id: str, region: str) -> int:
    chosen = selected(given)
    run = new_run()
    if not confirmed(given, run, account_id, region):
        return 1
    journal = Journal.open(run)
    assert journal, "the run is new"
    journal.place(account_id, region)
    scratch = Scratch(cloud, journal, given.dry_run, architecture(given), postgres=given.postgres)
    rows: list[Row] = []
    problems: list[str] = []
    try:
        rows += run_checks(chosen, scratch)
    finally:
        with uninterrupted():
            say("removing the resources of this run; Ctrl-C has no effect until that has ended")
            problems = removed(scratch)
    report = Report(
        target="MiniStack, an emulator (dry run)" if given.dry_run else "AWS",
        region=region,
        architecture=architecture(given),
        version=version(),
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        rows=[*rows, last_row(problems)],
        actions=sorted(scratch.used),
    )
    console.print(report.table())
    for file in report.write(Path(os.environ.get("VERIFY_AWS_REPORT", REPORT))):
        console.print(f"written: {file}", markup=False)
    console.print(report.sentence)
    return 0 if report.holds else 1


def removed(scratch: Scratch) -> list[str]:
    problems = teardown.tear_down(scratch)
    for problem in problems:
        console.print(f"[red]not removed[/] {problem}")
    if problems:
        console.print(f"Later: make verify-aws CLEAN={scratch.journal.run}, with the same ACCOUNT and REGION")
    else:
        scratch.journal.end()
    return problems


def last_row(problems: list[str]) -> Row:
    return Row(
        check="teardown_leaves_nothing",
        subject="teardown",
        assumption="Everything that a stack of template.yaml leaves behind can be removed with the steps of this page.",
        places=["docs/template.md (## Deleting and re-creating a stack)"],
        seen="; ".join(problems) or "nothing with the name or the tag of the run is left",
        verdict=Verdict.DIFFERS if problems else Verdict.HOLDS,
    )


def version() -> str:
    """The version of the crate, and the commit."""
    crate = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return f"{crate[1] if crate else 'unknown'} ({commit.stdout.strip() or 'no commit'})"


# ---- clean ---------------------------------------------------------------------------------------


def clean(given: argparse.Namespace, cloud: Cloud, account_id: str, region: str) -> int:
    """Removes the resources of earlier runs: those with a journal here, or the one that is named."""
    if given.clean != "1" and not RUN.match(given.clean):
        raise Refused(f"CLEAN={given.clean} must be 1, or the id of a run: eight hexadecimal digits")
    runs = Journal.runs() if given.clean == "1" else [given.clean]
    status = 0
    for run in runs:
        journal = Journal.open(run)
        if journal is None:
            console.print(f"{run}: is running, and left alone")
        elif not journal.is_of(account_id, region):
            console.print(f"{run}: worked in another account or Region, and is left alone")
        else:
            say(f"removing what run {run} left")
            status |= bool(removed(Scratch(cloud, journal, given.dry_run, architecture(given))))
    # But for keys, which are tagged until they are gone, a week after their run.
    tagged = teardown.tagged(cloud.client("resourcegroupstaggingapi"))
    others = {run for arn, run in tagged if ":kms:" not in arn} - set(runs)
    for run in sorted(others):
        console.print(f"{run}: has resources and no journal here. It may be running: CLEAN={run} removes them")
    return status


def main(words: list[str]) -> int:
    given = options(words)
    if given.list:
        for check in CHECKS:
            console.print(
                f"{check.subject:12} {check.name}{' (slow)' * check.slow}\n    {check.assumption}", markup=False
            )
        return 0
    unwind_on_signals()
    STATE.mkdir(exist_ok=True)
    FOLDER.mkdir(exist_ok=True)
    with opened(given) as (where, account_id, region):
        return (clean if given.clean else verify)(given, where, account_id, region)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (Failed, Unavailable, Refused, Denied) as problem:
        sys.exit(f"make verify-aws: {problem}")
    except (BotoCoreError, ClientError) as problem:
        sys.exit(f"make verify-aws: {problem}")

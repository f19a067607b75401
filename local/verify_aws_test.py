"""Tests of `make verify-aws`: each check against prepared answers, and whole runs against a local cloud.

    python local/verify_aws_test.py [TEST...]

VERIFY_AWS_EVERY_STEP=1 kills a run at every request that it makes: `make soak`.
"""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import botocore.session
import commands
import proxy
import runbook
from botocore import xform_name
from cloud import ROOT, Cloud, ministack
from deployment import console
from verify_aws import account, teardown
from verify_aws.__main__ import confirmed, judged, opened, options
from verify_aws.account import Aws, Refused, actions, require, watch
from verify_aws.answers import PAIRS
from verify_aws.answers.stub import ACCOUNT, Answer, Stubbed, ok, run
from verify_aws.answers.stub import scratch as scratch_of
from verify_aws.check import Check, Seen, Verdict
from verify_aws.checks import CHECKS, SUBJECTS, batches, choice, permissions
from verify_aws.journal import Journal
from verify_aws.report import Report, Row
from verify_aws.scratch import PARAMETERS, Scratch, notify, prepare

Json = dict[str, Any]

# One check of the stack, and one of a single request.
FEW = "number_parameter_arrives_as_written,refused_update_returns_the_item"


def policy_of_the_page() -> set[str]:
    """The actions that docs/verify-aws.md gives to the caller."""
    text = re.search(r"^```json\n(.*?)^```", (ROOT / "docs" / "verify-aws.md").read_text(), re.MULTILINE | re.DOTALL)
    assert text
    actions: set[str] = set()
    for statement in json.loads(text[1])["Statement"]:
        named = statement["Action"]
        actions.update([named] if isinstance(named, str) else named)
    return actions


def commands_of_the_runbook() -> set[str]:
    """The actions that the commands of the runbook need. Those of `sqs-once` are not in it."""
    session = botocore.session.get_session()
    found: set[str] = set()
    for block in runbook.blocks(runbook.PAGE.read_text()):
        for words in [] if block.not_run else commands.commands(block.text):
            service, name = words[:2]
            names = session.get_service_model(service).operation_names
            found.update(a for n in names if xform_name(n, "-") == name for a in actions(service, n))
    return found


def actions_of_doctor() -> set[str]:
    """The actions that docs/cli.md gives to `sqs-once doctor`, for a stack without PostgreSQL and managed policies."""
    page = (ROOT / "docs" / "cli.md").read_text()
    text = page[page.index("It needs `cloudformation:") :].split("\n\n")[0]
    text = re.sub(r"For functions that use\s+PostgreSQL .*?\.\s", "", text, flags=re.DOTALL)
    return set(re.findall(r"`(\w+:\w+)`", text)) - {"iam:GetPolicy", "iam:GetPolicyVersion"}


class EachCheck(unittest.TestCase):
    def test_has_both_answers(self) -> None:
        names = [check.name for check in CHECKS]
        assert sorted(names) == sorted(PAIRS)
        assert len(names) == len(set(names))
        for name, answers in PAIRS.items():
            assert answers.holds != answers.differs, name

    def test_page_allows_the_commands_of_the_runbook(self) -> None:
        assert not commands_of_the_runbook() - policy_of_the_page(), "missing in the policy of docs/verify-aws.md"

    def test_page_allows_doctor(self) -> None:
        assert len(actions_of_doctor()) > 10
        assert not actions_of_doctor() - policy_of_the_page(), "missing in the policy of docs/verify-aws.md"

    def test_holds_and_differs(self) -> None:
        used: set[str] = set()
        for check in CHECKS:
            pair = PAIRS[check.name]
            for wanted, given in ((Verdict.HOLDS, pair.holds), (Verdict.DIFFERS, pair.differs)):
                with self.subTest(check.name, verdict=wanted.value), tempfile.TemporaryDirectory() as folder:
                    row, unused = run(check, given, Path(folder), used)
                    assert row.verdict == wanted, row.seen
                    assert unused == [], "answers for which the check did not ask"
        assert not used - policy_of_the_page(), "missing in the policy of docs/verify-aws.md"

    def test_undeployed_stack_is_a_difference_of_the_deployment_alone(self) -> None:
        with tempfile.TemporaryDirectory() as folder, scratch_of([], Path(folder)) as scratch:
            rows = [judged(check, scratch, "the stack was not created") for check in CHECKS if check.needs_stack]
        assert [row.check for row in rows if row.verdict is Verdict.DIFFERS] == ["default_deployment_completes"]
        assert all(row.failed for row in rows if row.verdict is not Verdict.DIFFERS)

    def test_takes_few_executions_of_a_small_account(self) -> None:
        asked: list[tuple[str, Json]] = []

        def watched(client: Any, used: set[str]) -> Any:
            def note(params: Json, model: Any, **_: Any) -> None:
                asked.append((model.name, params))

            client.meta.events.register("before-parameter-build.lambda", note)
            return watch(client, used)

        with mock.patch.object(account, "watch", watched), tempfile.TemporaryDirectory() as folder:
            for check in CHECKS:
                given = PAIRS[check.name].holds
                if any(isinstance(answer, Answer) and answer.service == "lambda" for answer in given):
                    run(check, given, Path(folder), set())
        of_functions = [p["ScalingConfig"] for name, p in asked if name == "CreateEventSourceMapping"]
        reserved = [p["ReservedConcurrentExecutions"] for name, p in asked if name == "PutFunctionConcurrency"]
        most = int(PARAMETERS["MaximumConcurrency"])
        assert of_functions
        assert all(scaling == {"MaximumConcurrency": most} for scaling in of_functions)
        # In a small account nothing can be reserved, but to reserve nothing is a throttle.
        assert set(reserved) == {0}
        # A check uses the stack and one other function, and a second run may be beside it.
        assert 2 * (most + most) <= 10

    def test_that_fails_quotes_no_message(self) -> None:
        def fails(_: Scratch) -> Seen:
            raise ValueError('{"orderId": "o-1"}')

        with tempfile.TemporaryDirectory() as folder, scratch_of([], Path(folder)) as scratch:
            row = judged(Check(fails, False, False, "", None), scratch, "")
        assert row.failed
        assert row.seen.startswith("ValueError in verify_aws_test.py, line "), row.seen
        assert "orderId" not in row.seen

    def test_subject_has_its_row_on_the_page(self) -> None:
        page = (ROOT / "docs" / "verify-aws.md").read_text()
        rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.MULTILINE)
        assert rows == [(name, str(sum(check.subject == name for check in CHECKS))) for name in SUBJECTS]

    def test_of_permissions_has_a_request_for_each_action(self) -> None:
        wanted = permissions.requests(permissions.Places("t", "https://q/n", "https://q/d", "b", "g")).values()
        needed = {action for request in wanted for action in request.needs}
        assert needed | permissions.WITH_A_KEY == permissions.actions_of_the_template()

    def test_names_places_that_exist(self) -> None:
        for check in CHECKS:
            with self.subTest(check.name):
                assert check.assumption.endswith("."), check.assumption
                assert check.places, "no place relies on it"
                for file, text in check.places:
                    assert text in (ROOT / file).read_text(), f"{file} does not contain {text}"


class TheReport(unittest.TestCase):
    def test_has_no_account(self) -> None:
        seen = f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders of {ACCOUNT}, 20 orders, run 123456789012345"
        row = Row("name", "subject", "An assumption.", ["file (text)"], seen, Verdict.DIFFERS)
        report = Report("AWS", "us-east-1", "arm64", "0.1.0", "2026-11-23", [row])
        for text in (report.json(), report.markdown()):
            assert ACCOUNT + ":" not in text
            assert "sqs:us-east-1:ACCOUNT:orders of ACCOUNT, 20 orders, run 123456789012345" in text
        assert json.loads(report.json())["holds"] is False

    def test_holds_only_without_a_difference(self) -> None:
        def of(*rows: Row) -> bool:
            return Report("AWS", "r", "a", "v", "d", list(rows)).holds

        def row(verdict: Verdict, failed: bool = False) -> Row:
            return Row("name", "subject", "An assumption.", [], "", verdict, failed)

        assert of(row(Verdict.HOLDS), row(Verdict.NOT_CHECKED))
        assert not of(row(Verdict.HOLDS), row(Verdict.DIFFERS))
        assert not of(row(Verdict.HOLDS), row(Verdict.NOT_CHECKED, failed=True))


class TheJournal(unittest.TestCase):
    def test_survives_half_a_line(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            journal = Journal.open("0" * 8, path)
            assert journal
            journal.intends("table", "a")
            journal.intends("queue", "b")
            journal.removed("table", "a")
            assert Journal.open("0" * 8, path) is None, "a running run is left alone"
            journal.close()
            with (path / "00000000.jsonl").open("a") as file:
                file.write('{"intends": "ro')
            again = Journal.open("0" * 8, path)
            assert again
            assert [(entry.kind, entry.name) for entry in again.left()] == [("queue", "b")]
            again.end()
            assert Journal.runs(path) == []


class TheAccount(unittest.TestCase):
    def refused(self, *words: str, **variables: str) -> str:
        """The reason for which a command line does not start."""
        cloud = Stubbed("", given=[ok("sts.get_caller_identity", Account=ACCOUNT)])
        clean = {name: value for name, value in os.environ.items() if name != "AWS_ENDPOINT_URL"}
        with (
            mock.patch.dict(os.environ, clean | variables, clear=True),
            mock.patch.object(Aws, "client", lambda _, service: cloud.client(service)),
        ):
            try:
                with opened(options(list(words))):
                    return "it started"
            except Refused as reason:
                return str(reason)

    def test_of_another_caller_is_refused(self) -> None:
        reason = self.refused("--account", "999999999999", "--region", "eu-west-1")
        assert "not to ACCOUNT=999999999999" in reason, reason

    def test_without_a_name_is_refused(self) -> None:
        for words in ([], ["--account", ACCOUNT], ["--region", "eu-west-1"], ["--account", "x", "--region", "r"]):
            assert "name the account and the Region" in self.refused(*words), words

    def test_at_an_endpoint_is_refused(self) -> None:
        reason = self.refused("--account", ACCOUNT, "--region", "r", AWS_ENDPOINT_URL="http://127.0.0.1:1")
        assert "AWS_ENDPOINT_URL is set" in reason, reason

    def test_of_the_caller_is_accepted(self) -> None:
        cloud = Stubbed("", given=[ok("sts.get_caller_identity", Account=ACCOUNT)])
        require(cloud, ACCOUNT)

    def test_environment_has_the_credentials_of_a_profile(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "credentials"
            file.write_text("[tester]\naws_access_key_id = AKIA\naws_secret_access_key = secret\n")
            variables = {"AWS_PROFILE": "tester", "AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_SESSION_TOKEN": "old"}
            with mock.patch.dict(os.environ, variables, clear=True):
                found = Aws("", "eu-west-1").environment()
        assert (found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"]) == ("AKIA", "secret")
        assert found["AWS_REGION"] == "eu-west-1"
        assert "AWS_PROFILE" not in found
        assert "AWS_SESSION_TOKEN" not in found

    def test_is_not_used_without_an_answer(self) -> None:
        given = options(["--account", ACCOUNT, "--region", "eu-west-1"])
        for answer, wanted in (("", False), ("n", False), ("y", True), ("yes", True)):
            with mock.patch("builtins.input", return_value=answer), mock.patch.object(console, "print"):
                assert confirmed(given, "0" * 8, ACCOUNT, "eu-west-1") is wanted, answer

    def test_of_another_journal_is_left_alone(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            journal = Journal.open("0" * 8, Path(folder))
            assert journal
            assert journal.is_of(ACCOUNT, "eu-west-1"), "a run that noted nothing has created nothing"
            journal.place(ACCOUNT, "eu-west-1")
            assert journal.is_of(ACCOUNT, "eu-west-1")
            assert not journal.is_of(ACCOUNT, "us-east-1")
            assert not journal.is_of("999999999999", "eu-west-1")
            journal.end()


# ---- whole runs ----------------------------------------------------------------------------------


def inventory(cloud: Cloud) -> list[str]:
    """Everything in the cloud that a run may create."""
    found = []
    for service, method, member, name in (
        ("sqs", "list_queues", "QueueUrls", None),
        ("dynamodb", "list_tables", "TableNames", None),
        ("s3", "list_buckets", "Buckets", "Name"),
        ("logs", "describe_log_groups", "logGroups", "logGroupName"),
        ("lambda", "list_functions", "Functions", "FunctionName"),
        ("lambda", "list_event_source_mappings", "EventSourceMappings", "UUID"),
        ("iam", "list_roles", "Roles", "RoleName"),
        ("sns", "list_topics", "Topics", "TopicArn"),
        ("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
        ("cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName"),
    ):
        for one in getattr(cloud.client(service), method)().get(member, []):
            found.append(f"{service} {one[name] if name else one}")
    pages = cloud.client("cloudformation").get_paginator("list_stacks").paginate()
    stacks = [stack for page in pages for stack in page["StackSummaries"]]
    found += [f"stack {stack['StackName']}" for stack in stacks if stack["StackStatus"] != "DELETE_COMPLETE"]
    return sorted(found)


def step(left: Iterator[bool], _: str) -> bool:
    return next(left, False)


class WholeRuns(unittest.TestCase):
    cloud: Cloud

    @classmethod
    def setUpClass(cls) -> None:
        cls.cloud = cls.enterClassContext(ministack("verify-aws"))

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.proxy = self.enterContext(proxy.serve(self.cloud.endpoint))
        self.before = inventory(self.cloud)

    def start(self, *words: str, report: Path | None = None) -> subprocess.Popen[str]:
        environment = self.cloud.environment() | {
            "AWS_ENDPOINT_URL": self.proxy.url,
            "SQS_ONCE_STATE": str(self.folder),
            "VERIFY_AWS_REPORT": str(report or self.folder / "report"),
            "PYTHONPATH": str(ROOT / "local"),
        }
        command = [sys.executable, "-B", "-m", "verify_aws", "--dry-run", *words]
        # In `make test` as typed, except that the consumer is not built again while other suites run it.
        if not words and os.environ.get("SQS_ONCE_REQUIRE_ALL"):
            command = ["make", "verify-aws", "DRY_RUN=1", "CONSUMER=:"]
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)

    def ended(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def report(self) -> dict[str, Json]:
        rows = json.loads((self.folder / "report" / "report.json").read_text())["rows"]
        return {row["check"]: row for row in rows}

    def nothing_is_left(self, output: str) -> None:
        assert inventory(self.cloud) == self.before, f"left: {set(inventory(self.cloud)) - set(self.before)}\n{output}"
        assert not list((self.folder / "verify-aws").glob("*.jsonl")), output

    def test_dry_run_holds_and_leaves_nothing(self) -> None:
        status, output = self.ended()
        assert status == 0, output
        rows = self.report()
        assert list(rows)[:-1] == [check.name for check in CHECKS if not check.slow]
        for check in CHECKS:
            if check.only_aws and not check.slow:
                row = rows[check.name]
                assert row["verdict"] == "not checked", row
                assert row["seen"] == f"not checked here: {check.only_aws}", row
        assert rows["teardown_leaves_nothing"]["verdict"] == "holds", output
        for file in ("report.json", "report.md"):
            text = (self.folder / "report" / file).read_text()
            for part in ("orderId", "paymentToken", "tok_", "99.99", "000000000000"):
                assert part not in text, f"{part} in {file}"
        used = json.loads((self.folder / "report" / "report.json").read_text())["actions"]
        assert not set(used) - policy_of_the_page(), "missing in the policy of docs/verify-aws.md"
        self.nothing_is_left(output)

    def test_changed_answer_differs(self) -> None:
        def without_item(exchange: proxy.Exchange) -> bytes:
            if exchange.operation == "UpdateItem" and exchange.status == 400:
                return json.dumps({k: v for k, v in json.loads(exchange.body).items() if k != "Item"}).encode()
            return exchange.body

        self.proxy.change = without_item
        status, output = self.ended("--only", "refused_update_returns_the_item,refused_put_returns_the_item")
        assert status == 1, output
        rows = self.report()
        assert rows["refused_update_returns_the_item"]["verdict"] == "differs", output
        assert rows["refused_put_returns_the_item"]["verdict"] == "holds", output
        self.nothing_is_left(output)

    def test_failed_deployment_is_reported_and_removed(self) -> None:
        def rolled_back(exchange: proxy.Exchange) -> bytes:
            if exchange.operation == "DescribeStacks":
                return exchange.body.replace(b"CREATE_COMPLETE", b"ROLLBACK_COMPLETE")
            return exchange.body

        self.proxy.change = rolled_back
        status, output = self.ended("--only", FEW)
        assert status == 1, output
        rows = self.report()
        assert rows["number_parameter_arrives_as_written"]["verdict"] == "not checked", output
        assert "the stack was not created" in rows["number_parameter_arrives_as_written"]["seen"], output
        assert rows["refused_update_returns_the_item"]["verdict"] == "holds", output
        self.nothing_is_left(output)

    def test_denied_action_is_named(self) -> None:
        def denied(exchange: proxy.Exchange) -> bytes:
            if exchange.operation == "UpdateItem" and exchange.status == 400:
                return json.dumps({"__type": "AccessDeniedException", "message": "no"}).encode()
            return exchange.body

        self.proxy.change = denied
        status, output = self.ended("--only", "refused_update_returns_the_item")
        assert status == 1, output
        row = self.report()["refused_update_returns_the_item"]
        assert row["verdict"] == "not checked", row
        assert "the caller may not use dynamodb:UpdateItem, which docs/verify-aws.md" in row["seen"], row
        self.nothing_is_left(output)

    def interrupted(
        self, deadly: signal.Signals, at: Callable[[str], bool], when: str, only: str = FEW
    ) -> tuple[int, str]:
        """Sends a signal to a run at the first request for which `at` is true. Returns status and output."""
        processes: list[subprocess.Popen[str]] = []

        def hit(operation: str) -> None:
            if processes and at(operation):
                processes.pop().send_signal(deadly)

        setattr(self.proxy, when, hit)
        process = self.start("--only", only)
        processes.append(process)
        output, _ = process.communicate(timeout=300)
        assert not processes, f"the run never came to the request\n{output}"
        setattr(self.proxy, when, proxy.nothing)
        return process.returncode, output

    def test_ctrl_c_removes_everything(self) -> None:
        for operation in ("CreateStack", "UpdateItem"):
            with self.subTest(operation):
                status, output = self.interrupted(signal.SIGINT, operation.__eq__, "after")
                assert status == 128 + signal.SIGINT, output
                self.nothing_is_left(output)

    def test_killed_run_leaves_nothing_after_clean(self) -> None:
        # During the preparation, during the deployment, in a check, and twice during the teardown.
        for operation in ("CreateTable", "CreateStack", "UpdateItem", "DeleteStack", "DeleteTable"):
            with self.subTest(operation):
                status, output = self.interrupted(signal.SIGKILL, operation.__eq__, "after")
                assert status == -signal.SIGKILL, output
                assert inventory(self.cloud) != self.before, f"there is nothing to remove\n{output}"
                status, cleaned = self.ended("--clean", "1")
                assert status == 0, cleaned
                self.nothing_is_left(output + cleaned)

    def test_run_killed_with_a_function_leaves_nothing_after_clean(self) -> None:
        create, only = "POST /2015-03-31/functions", "killed_workers_message_is_taken_over"
        status, output = self.interrupted(signal.SIGKILL, create.__eq__, "after", only)
        assert status == -signal.SIGKILL, output
        assert any("-killed" in one for one in inventory(self.cloud)), output
        status, cleaned = self.ended("--clean", "1")
        assert status == 0, cleaned
        self.nothing_is_left(output + cleaned)

    @unittest.skipUnless(os.environ.get("VERIFY_AWS_EVERY_STEP"), "VERIFY_AWS_EVERY_STEP is not set")
    def test_run_killed_at_every_request_leaves_nothing_after_clean(self) -> None:
        self.ended("--only", FEW)
        requests = len(self.proxy.operations)
        for number in range(requests):
            for when in ("before", "after"):
                with self.subTest(number=number, when=when):
                    left = iter([False] * number + [True])
                    _, output = self.interrupted(signal.SIGKILL, functools.partial(step, left), when)
                    status, cleaned = self.ended("--clean", "1")
                    assert status == 0, cleaned
                    self.nothing_is_left(output + cleaned)

    def test_resource_of_each_kind_is_removed(self) -> None:
        journal = Journal.open("a" * 8, self.folder)
        assert journal
        scratch = Scratch(self.cloud, journal, True, "x86_64")
        prepare(scratch)
        notify(scratch)
        url, arn = scratch.make_queue("of-a-function")
        batches.make_reporter(scratch, "batches", arn, url, arn)
        journal.intends("log-group", f"{scratch.name}-logs")
        scratch.client("logs").create_log_group(logGroupName=f"{scratch.name}-logs")
        choice.make_key(scratch)
        made = {entry.kind for entry in journal.left()} | {"stack"}  # the other tests have stacks
        assert made == set(teardown.REMOVERS)
        assert teardown.tear_down(scratch) == []
        assert teardown.tear_down(scratch) == [], "nothing is there to remove"
        journal.end()
        self.nothing_is_left("")

    def test_two_runs_beside_each_other_hold(self) -> None:
        folders = [self.folder / "report-1", self.folder / "report-2"]
        runs = [self.start("--only", FEW, report=folder) for folder in folders]
        for process in runs:
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 0, output
        self.nothing_is_left("")

    def test_running_run_is_left_alone(self) -> None:
        cleaned: list[tuple[int, str]] = []

        def clean_meanwhile(operation: str) -> None:
            if operation == "UpdateItem" and not cleaned:
                cleaned.append((0, ""))
                cleaned[0] = self.ended("--clean", "1")

        self.proxy.before = clean_meanwhile
        status, output = self.ended("--only", "refused_update_returns_the_item")
        assert cleaned[0][0] == 0, cleaned
        assert "is running, and left alone" in cleaned[0][1], cleaned
        assert status == 0, output
        self.nothing_is_left(output)


if __name__ == "__main__":
    unittest.main(verbosity=2)

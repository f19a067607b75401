"""Tests of tools/before_deploy.py against the template's stack on a local cloud.

python tools/before_deploy_test.py [-v] [TEST...]     a part of `make test`
"""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import before_deploy
import deployment
import overlay
import runbook
import yaml
from cloud import CREDENTIALS, ROOT, STATE, Cloud, Json, ministack, unwind_on_signals

STACK = "sqs-once"
# The values of the first deployment that are not the template's defaults.
DEPLOYED = {
    "PaymentGatewayUrl": "sandbox",
    "IdempotencyKey": "body:/orderId",
    "PaymentGatewaySecret": "payments/gateway",
}
API_KEY = "sk_live_51H8"
NEW_KEY = "IdempotencyKey=body:/tenant,/orderId"
CHANGED = "IDEMPOTENCY_KEY is 'body:/orderId', and would be 'body:/tenant,/orderId'"


OVERLAYS = ("dashboard", "fifo", "large-batches", "s3-bodies", "vpc")
# The required parameters of overlays.
OF_OVERLAYS = {
    "BodiesBucket": ("s3-bodies", "order-bodies"),
    "SubnetIds": ("vpc", "subnet-0a1b2c3d"),
    "SecurityGroupIds": ("vpc", "sg-0a1b2c3d"),
}


def merged(*overlays: str) -> Json:
    """The template with these overlays, as `sam build` leaves it."""
    target = STATE / "before-deploy.yaml"
    files = [str(ROOT / "overlays" / f"{name}.yaml") for name in overlays]
    assert overlay.main(str(ROOT / "template.yaml"), files, str(target)) == 0
    template: Json = yaml.safe_load(target.read_text())
    del template["Resources"]["Consumer"]["Metadata"]  # how to build it
    return template


def deny(request: bytes) -> tuple[int, str]:
    code, message = "AccessDeniedException", "no identity-based policy allows it"
    if request.startswith(b"Action="):
        return 403, f"<Response><Error><Code>AccessDenied</Code><Message>{message}</Message></Error></Response>"
    return 403, json.dumps({"__type": code, "code": code, "message": message})


@contextlib.contextmanager
def answering(answer: Callable[[bytes], tuple[int, str]]) -> Iterator[str]:
    """The URL of a service. `answer` makes the status and body of each response from the body of the request."""

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, body = answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class BeforeDeploy(unittest.TestCase):
    cloud: Cloud
    outputs: dict[str, str]
    folder: Path
    build: Path
    template: Json

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="before-deploy-")))
        cls.build = cls.folder / ".aws-sam" / "build"
        cls.build.mkdir(parents=True)
        cls.cloud = cls.enterClassContext(ministack("before-deploy"))
        cls.template = merged()
        (cls.build / "bootstrap").write_text("")
        cls.write(cls.template)
        deployment.adapt(cls.build / "template.yaml")
        options = ("--template-file", str(cls.build / "template.yaml"), "--capabilities", "CAPABILITY_IAM")
        secrets = cls.cloud.client("secretsmanager")
        secrets.create_secret(Name=DEPLOYED["PaymentGatewaySecret"], SecretString=json.dumps({"apiKey": API_KEY}))
        cls.outputs = deployment.deploy(cls.cloud, STACK, *options, "--resolve-s3", **DEPLOYED)
        # The messages stay in the queue.
        mapping = cls.outputs["EventSourceMappingId"]
        cls.cloud.client("lambda").update_event_source_mapping(UUID=mapping, Enabled=False)

    @classmethod
    def write(cls, template: Json) -> None:
        (cls.build / "template.yaml").write_text(json.dumps(template))

    def setUp(self) -> None:
        self.write(self.template)
        (self.folder / "samconfig.toml").write_text((ROOT / "samconfig.toml").read_text())
        sqs = self.cloud.client("sqs")
        queue, dead_letters = self.outputs["QueueUrl"], self.outputs["DeadLetterQueueUrl"]
        for url in (queue, dead_letters):
            sqs.purge_queue(QueueUrl=url)
        # One in flight, one visible, one delayed, and two dead letters.
        sqs.send_message(QueueUrl=queue, MessageBody="{}")
        sqs.receive_message(QueueUrl=queue, VisibilityTimeout=300)
        sqs.send_message(QueueUrl=queue, MessageBody="{}")
        sqs.send_message(QueueUrl=queue, MessageBody="{}", DelaySeconds=300)
        for _ in range(2):
            sqs.send_message(QueueUrl=dead_letters, MessageBody="{}")

    def check(
        self, *words: str, stdin: int = subprocess.DEVNULL, but: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Runs the check in an environment that `but` changes. Returns its exit status and output."""
        command = [sys.executable, str(ROOT / "tools" / "before_deploy.py"), *words]
        environment = self.cloud.environment()
        environment.pop(before_deploy.ALLOW, None)
        environment |= but or {}
        ended = subprocess.run(command, cwd=self.folder, env=environment, stdin=stdin, capture_output=True, text=True)
        return ended.returncode, ended.stdout + ended.stderr

    def answered(self, answer: str) -> tuple[int, str]:
        """Runs the check with a new key on a terminal, and types this answer."""
        master, slave = pty.openpty()
        os.write(master, f"{answer}\n".encode())
        try:
            return self.check(NEW_KEY, stdin=slave)
        finally:
            os.close(slave)
            os.close(master)

    def test_new_key_without_terminal_stops(self) -> None:
        status, output = self.check(NEW_KEY)
        assert status == 1, output
        assert CHANGED in output
        assert f"{STACK}-orders holds about 3 of these messages." in output, output
        assert re.search(r"OrdersDeadLetterQueue\S* holds about 2 of", output), output
        assert "charged again" in output
        assert "MESSAGES_MAY_RUN_AGAIN=1 deploys nevertheless" in output
        assert before_deploy.PAGE in output
        assert "Traceback" not in output

    def test_dead_letters_alone_stop(self) -> None:
        self.cloud.client("sqs").purge_queue(QueueUrl=self.outputs["QueueUrl"])
        status, output = self.check(NEW_KEY)
        assert status == 1, output
        assert "about 3" not in output
        assert "about 2" in output

    def test_empty_queues_are_silent(self) -> None:
        for url in (self.outputs["QueueUrl"], self.outputs["DeadLetterQueueUrl"]):
            self.cloud.client("sqs").purge_queue(QueueUrl=url)
        assert self.check(NEW_KEY) == (0, "")

    def test_same_settings_are_silent(self) -> None:
        # A parameter that is left out keeps its deployed value, and SAM CLI removes the quotes.
        for words in ([], ["IdempotencyKey=body:/orderId"], ["'IdempotencyKey=body:/orderId' MemorySize=512"]):
            assert self.check(*words) == (0, ""), words

    def test_each_setting_is_compared(self) -> None:
        for words, line in (
            ("IdempotencyNamespace=other", "IDEMPOTENCY_NAMESPACE is 'payments', and would be 'other'"),
            ("ConsumerEnvelope=auto", "CONSUMER_ENVELOPE is 'none', and would be 'auto'"),
        ):
            status, output = self.check(words)
            assert status == 1, words
            assert line in output, output
            assert output.count(", and would be ") == 1, output

    def test_each_variable_of_an_overlay_is_compared(self) -> None:
        for variables, line in (
            ({"IDEMPOTENCY_FINGERPRINT": "off"}, "IDEMPOTENCY_FINGERPRINT is 'body', and would be 'off'"),
            ({"IDEMPOTENCY_ATTRIBUTES": "id=PK"}, "IDEMPOTENCY_ATTRIBUTES is '', and would be 'id=PK'"),
            ({"IDEMPOTENCY_SORT_KEY": "SK"}, "IDEMPOTENCY_SORT_KEY is '', and would be 'SK'"),
            ({"PAYMENT_GATEWAY_RECONCILE": "on"}, "PAYMENT_GATEWAY_RECONCILE is 'off', and would be 'on'"),
        ):
            mine = {"Resources": {"Consumer": {"Properties": {"Environment": {"Variables": variables}}}}}
            self.write(overlay.merge(self.template, mine))
            status, output = self.check()
            assert status == 1, output
            assert line in output, output
            assert output.count(", and would be ") == 1, output

    def test_values_of_the_template_are_compared(self) -> None:
        template = json.loads(json.dumps(self.template))
        variables = template["Resources"]["Consumer"]["Properties"]["Environment"]["Variables"]
        del variables["IDEMPOTENCY_KEY"], variables["CONSUMER_ENVELOPE"]
        variables["IDEMPOTENCY_FINGERPRINT"] = {"Fn::Sub": "body"}
        variables["IDEMPOTENCY_NAMESPACE"] = "payments"
        self.write(template)
        _, output = self.check()
        assert "IDEMPOTENCY_KEY is 'body:/orderId', and would be 'message-id'" in output, output
        assert "IDEMPOTENCY_FINGERPRINT is 'body', and would be 'a value that CloudFormation computes'" in output, (
            output
        )
        assert output.count(", and would be ") == 2, output

    def test_api_key_comes_from_the_secret(self) -> None:
        read = self.cloud.client("lambda").get_function_configuration(FunctionName=f"{STACK}-consumer")
        assert read["Environment"]["Variables"]["PAYMENT_GATEWAY_API_KEY"] == API_KEY

    def test_replaced_queues_stop_though_empty(self) -> None:
        self.write(merged("fifo"))
        status, output = self.check()
        assert status == 1, output
        assert f"{STACK}-orders holds about 3 of these messages." in output, output
        assert "leave out" not in output, output
        for url in (self.outputs["QueueUrl"], self.outputs["DeadLetterQueueUrl"]):
            self.cloud.client("sqs").purge_queue(QueueUrl=url)
        status, output = self.check()
        assert status == 1, output
        assert "OrdersDeadLetterQueue and OrdersQueue would be replaced." in output, output
        assert "producers that keep the old URL" in output, output

    def deploy(self, stack: str, *overlays: str, **parameters: str) -> dict[str, str]:
        """Deploys the template with these overlays, and makes it the stack of the checks. Returns its outputs."""
        self.write(merged(*overlays))
        values = {"PaymentGatewayUrl": "sandbox"} | parameters
        values |= {name: value for name, (of, value) in OF_OVERLAYS.items() if of in overlays}
        deployment.adapt(self.build / "template.yaml")
        options = ("--template-file", str(self.build / "template.yaml"), "--capabilities", "CAPABILITY_IAM")
        outputs = deployment.deploy(self.cloud, stack, *options, "--resolve-s3", **values)
        config = (ROOT / "samconfig.toml").read_text()
        (self.folder / "samconfig.toml").write_text(config.replace(f'"{STACK}"', f'"{stack}"'))
        return outputs

    def test_overlays_deploy_and_are_not_dropped(self) -> None:
        both = ("s3-bodies", "vpc")
        stacks = [*((name,) for name in OVERLAYS), ("fifo", *both), ("large-batches", *both)]
        for number, names in enumerate(stacks):
            outputs = self.deploy(f"overlays-{number}", *names)
            assert outputs["Overlays"] == " ".join(names), outputs
            assert outputs["QueueUrl"].endswith(".fifo") == ("fifo" in names), outputs
            assert self.check() == (0, ""), names
        # The queues of the last one are empty.
        for kept, dropped in (
            ((), "large-batches and s3-bodies and vpc"),
            (("large-batches", "vpc"), "s3-bodies"),
            (("fifo", "s3-bodies", "large-batches"), "vpc"),
        ):
            self.write(merged(*kept))
            status, output = self.check()
            assert status == 1, output
            expected = f'OVERLAYS="large-batches s3-bodies vpc", and this deployment would leave out {dropped}.'
            assert expected in output, output
        self.write(merged("gradual", "vpc", "s3-bodies", "large-batches"))
        assert self.check() == (0, "")

    def test_other_table_stops(self) -> None:
        table = self.outputs["TableName"]
        words = ("ExistingTableName=another", "IdempotencyNamespace=payments")
        status, output = self.check(*words)
        assert status == 1, output
        assert f"IDEMPOTENCY_TABLE_NAME is '{table}', and would be 'another'" in output, output
        assert f"{STACK}-orders holds about 3 of these messages." in output, output
        # The stack then uses its table as an existing one. It gives the table up, and the records stay.
        assert self.check(f"ExistingTableName={table}", "IdempotencyNamespace=payments") == (0, "")

    def test_stack_that_gets_a_table_of_its_own_stops(self) -> None:
        values = {"ExistingTableName": self.outputs["TableName"], "IdempotencyNamespace": "payments"}
        outputs = self.deploy("existing-table", **values)
        self.cloud.client("sqs").send_message(QueueUrl=outputs["DeadLetterQueueUrl"], MessageBody="{}")
        assert self.check() == (0, "")
        status, output = self.check('ExistingTableName=""')
        assert status == 1, output
        before = f"IDEMPOTENCY_TABLE_NAME is '{self.outputs['TableName']}'"
        assert f"{before}, and would be 'a value that CloudFormation computes'" in output, output

    def test_changed_or_removed_key_of_queues_stops(self) -> None:
        key, other = (f"arn:aws:kms:us-east-1:000000000000:key/{name}" for name in ("first", "second"))
        assert self.check(f"KmsKeyArn={key}") == (0, "")  # messages in the clear stay readable
        outputs = self.deploy("with-key", KmsKeyArn=key)
        queues = (outputs["QueueUrl"], outputs["DeadLetterQueueUrl"])
        changes = (f"KmsKeyArn={other}", 'KmsKeyArn=""')
        assert [self.check(word) for word in changes] == [(0, "")] * 2
        for url in queues:
            self.cloud.client("sqs").send_message(QueueUrl=url, MessageBody="{}")
            for word, planned in zip(changes, (other, ""), strict=True):
                status, output = self.check(word)
                assert status == 1, output
                assert f"KmsMasterKeyId is '{key}', and would be '{planned}'" in output, output
                assert f"{url.split('/')[-1]} holds about 1 message" in output, output
            assert self.check(f"KmsKeyArn={key}") == (0, "")
            self.cloud.client("sqs").purge_queue(QueueUrl=url)

    def test_fewer_receives_stop(self) -> None:
        status, output = self.check("FunctionTimeout=900")
        assert status == 1, output
        assert "maxReceiveCount is '130', and would be '47'" in output, output
        assert f"{STACK}-orders holds about 3 messages" in output, output
        assert "OrdersDeadLetterQueue" not in output, output
        assert self.check("FunctionTimeout=60") == (0, "")
        self.cloud.client("sqs").purge_queue(QueueUrl=self.outputs["QueueUrl"])
        assert self.check("FunctionTimeout=900") == (0, "")

    def test_undeploy_asks_and_leaves_nothing(self) -> None:
        outputs = self.deploy("removed")
        self.cloud.client("sqs").send_message(QueueUrl=outputs["DeadLetterQueueUrl"], MessageBody="{}")
        queues = (outputs[name].split("/")[-1] for name in ("QueueUrl", "DeadLetterQueueUrl"))
        names = (*queues, outputs["TableName"], outputs["LogGroupName"])

        def left() -> list[str]:
            found = [url.split("/")[-1] for url in self.cloud.client("sqs").list_queues().get("QueueUrls", [])]
            found += self.cloud.client("dynamodb").list_tables()["TableNames"]
            groups = self.cloud.client("logs").describe_log_groups()["logGroups"]
            return [name for name in names if name in (*found, *(group["logGroupName"] for group in groups))]

        command = [sys.executable, str(ROOT / "tools" / "undeploy.py")]
        environment = self.cloud.environment()
        for answer, status, expected in (("y", 1, list(names)), ("", 1, list(names)), ("removed", 0, [])):
            ended = subprocess.run(
                command, cwd=self.folder, env=environment, input=answer, capture_output=True, text=True
            )
            assert ended.returncode == status, ended.stdout + ended.stderr
            for name in names:
                assert name in ended.stdout, ended.stdout
            assert "with about 1 messages" in ended.stdout, ended.stdout
            assert left() == expected, answer
        stacks = self.cloud.client("cloudformation").list_stacks()["StackSummaries"]
        assert [s["StackStatus"] for s in stacks if s["StackName"] == "removed"] in ([], ["DELETE_COMPLETE"]), stacks

    def test_large_batches_of_a_fifo_queue_are_refused(self) -> None:
        try:
            self.deploy("refused", *OVERLAYS)
            said = "deployed"
        except deployment.Failed as problem:
            said = str(problem)
        assert "A FIFO queue takes no batch of more than 10" in said, said

    def program(self, machine: int) -> None:
        header = b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little")
        (self.build / "bootstrap").write_bytes(header)
        self.addCleanup((self.build / "bootstrap").write_text, "")

    def test_program_for_another_processor_is_refused(self) -> None:
        config = (ROOT / "samconfig.toml").read_text()
        for stack in (STACK, "another"):  # a deployed stack, and a new one
            (self.folder / "samconfig.toml").write_text(config.replace(f'"{STACK}"', f'"{stack}"'))
            for machine, built, other in ((0x3E, "x86_64", "arm64"), (0xB7, "arm64", "x86_64")):
                self.program(machine)
                assert self.check(f"Architecture={built}") == (0, "")
                # The last value counts, as in SAM CLI. No answer allows the deployment.
                words = (f"Architecture={built}", f"Architecture={other}")
                status, output = self.check(*words, but={before_deploy.ALLOW: "1"})
                assert status == 1, output
                assert f"the program of Consumer was built for {built}" in output, output
                assert f"would be {other}" in output, output

    def test_processor_that_is_left_out_is_the_deployed_one(self) -> None:
        deployed = deployment.architecture()
        self.program({"x86_64": 0x3E, "arm64": 0xB7}[deployed])
        assert self.check() == (0, "")

    def test_missing_build_is_refused(self) -> None:
        (self.build / "template.yaml").unlink()
        status, output = self.check(NEW_KEY, but={before_deploy.ALLOW: "1"})
        assert status == 1, output
        assert "Run `make package` first." in output, output
        assert "Traceback" not in output

    def test_missing_stack_is_silent(self) -> None:
        config = (ROOT / "samconfig.toml").read_text().replace('"sqs-once"', '"another"')
        (self.folder / "samconfig.toml").write_text(config)
        assert self.check(NEW_KEY) == (0, "")

    def test_answer_decides(self) -> None:
        for answer, expected in (("y", 0), ("yes", 0), ("n", 1), ("", 1), ("\x04", 1)):
            status, output = self.answered(answer)
            assert status == expected, (answer, output)
            assert "Deploy nevertheless? [y/N]" in output

    def test_allowed_deployment_goes_on(self) -> None:
        status, output = self.check(NEW_KEY, but={before_deploy.ALLOW: "1"})
        assert status == 0
        assert CHANGED in output

    def test_denied_reads_stop(self) -> None:
        with answering(deny) as url:
            for service, action in (
                ("CLOUDFORMATION", "cloudformation:DescribeStacks"),
                ("LAMBDA", "lambda:GetFunctionConfiguration"),
                ("SQS", "sqs:GetQueueAttributes"),
            ):
                status, output = self.check(NEW_KEY, but={f"AWS_ENDPOINT_URL_{service}": url})
                assert status == 1, output
                assert f"your credentials need {action}" in output, output
                assert "Traceback" not in output

    def test_unreachable_cloud_stops(self) -> None:
        status, output = self.check(but={"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
        assert status == 1
        assert "no answer to cloudformation:DescribeStacks" in output, output

    def test_answer_that_is_not_from_aws_stops(self) -> None:
        with answering(lambda _: (404, "<html/>")) as url:
            status, output = self.check(but={"AWS_ENDPOINT_URL": url})
        assert status == 1
        assert "calling the DescribeStacks operation" in output, output
        assert "Traceback" not in output, output

    def test_missing_mapping_stops(self) -> None:
        aws = before_deploy.Aws(None, None)
        try:
            messages = before_deploy.held(aws, "consumer", [])
        except before_deploy.Unknown as problem:
            messages = [str(problem)]
        assert messages == ["the stack has no event source mapping of consumer that names a queue"]

    def test_alias_that_was_moved_by_hand_stops_codedeploy(self) -> None:
        function = "arn:aws:lambda:us-east-1:000000000000:function:orders-consumer"
        resources = [
            {"ResourceType": "AWS::Lambda::Alias", "PhysicalResourceId": f"{function}:live"},
            {"ResourceType": "AWS::Lambda::Version", "PhysicalResourceId": f"{function}:42"},
        ]
        asked = []

        for version, overlays, expected in (
            ("41", ("gradual",), "the alias live is at version 41, and the stack left it at 42."),
            ("42", ("gradual",), ""),
            ("41", (), ""),
        ):

            def answer(request: bytes, at: str = version) -> tuple[int, str]:
                asked.append(request)
                return 200, json.dumps({"Name": "live", "FunctionVersion": at})

            with answering(answer) as url:
                environment = self.cloud.environment() | {"AWS_ENDPOINT_URL": url}
                with mock.patch.dict(os.environ, environment):
                    lines = before_deploy.moved_alias(before_deploy.Aws(None, None), resources, merged(*overlays))
            assert bool(lines) == bool(expected), lines
            assert expected in "".join(lines), lines
        assert len(asked) == 2

    def test_parameters_of_unknown_form_stop(self) -> None:
        for word in ("file://parameters.json", "ParameterKey=IdempotencyKey,ParameterValue=message-id"):
            status, output = self.check(word)
            assert status == 1
            assert "write each parameter as NAME=VALUE" in output, output
        _, output = self.check("IdempotencyKey='body")
        assert "the parameters have no closing quotation" in output, output

    def test_defaults_are_those_of_the_consumer(self) -> None:
        page = (ROOT / "docs/settings.md").read_text()
        for setting, (default, _) in before_deploy.SETTINGS.items():
            row = re.search(rf"^\| `{setting}` \| (?:`(.*?)`)?", page, re.MULTILINE)
            assert row, setting
            assert (row[1] or "") == default, setting


class Pages(unittest.TestCase):
    """Reads the recipes in docs/deploying.md."""

    def test_commands_are_those_of_the_aws_cli(self) -> None:
        page = (ROOT / "docs/deploying.md").read_text()
        commands = [block.text for block in runbook.blocks(page) if "aws " in block.text]
        assert len(commands) >= 6, commands
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        named = dict.fromkeys(("FUNCTION", "MAPPING", "QUEUE", "TABLE"), 36 * "0")  # a UUID is that long
        environment = os.environ | CREDENTIALS | named | {"PATH": path}
        for command in commands:
            script = f"set -e{runbook.NOT_SENT}sleep() {{ :; }}\n{command}"
            ended = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True)
            assert ended.returncode == 0, (command, ended.stderr)


def main() -> int:
    unwind_on_signals()
    return 0 if unittest.main(exit=False).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())

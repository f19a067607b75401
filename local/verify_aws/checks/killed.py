"""Workers that die: the deployed consumer, with a gateway beside it that kills or stops it."""

import functools
import json
import secrets
import time
from typing import Any

from verify_aws.check import NotChecked, Seen, check
from verify_aws.functions import archive, make_function
from verify_aws.scratch import BOOTSTRAP, Scratch

Json = dict[str, Any]

NEIGHBOURS = 3
# Starts the gateway in the environment of the consumer, since only there it can send it a signal. The consumer has the
# process id of this shell. On AWS, Lambda's runtime for Python starts this script instead of its own program.
BOOTSTRAP_SCRIPT = """\
#!/bin/sh
cd "$LAMBDA_TASK_ROOT" || exit 1
export PAYMENT_GATEWAY_URL="http://127.0.0.1:$(python3 gateway.py $$)"
exec ./consumer
"""
# Prints its port, and answers from then on. A token such as tok_SIGKILL_1790000000 asks for that signal until then.
# In the second before the signal, the other orders of the batch end.
GATEWAY = """\
import http.server, json, os, signal, sys, threading, time

consumer = int(sys.argv[1])

class Gateway(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, number, until = order["paymentToken"].split("_")
        if time.time() < int(until):
            time.sleep(1)
            os.kill(consumer, getattr(signal, number))
            time.sleep(60)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
print(server.server_port, flush=True)
if os.fork():
    os._exit(0)
for stream in range(3):
    os.dup2(os.open(os.devnull, os.O_RDWR), stream)
threading.Thread(target=server.serve_forever, daemon=True).start()
try:
    while True:
        os.kill(consumer, 0)
        time.sleep(0.2)
except ProcessLookupError:
    os._exit(0)
"""


def order(number: str, signal: str, until: float) -> str:
    token = f"tok_{signal}_{int(until)}"
    return json.dumps({"orderId": number, "amount": 99.99, "currency": "EUR", "paymentToken": token})


def deploy(scratch: Scratch, source: str, timeout: int) -> str:
    """Creates a function with the deployed consumer and its variables, on the scratch table. Returns its name."""
    configuration = scratch.client("lambda").get_function_configuration(FunctionName=scratch.outputs["FunctionName"])
    variables = configuration["Environment"]["Variables"] | {
        "IDEMPOTENCY_TABLE_NAME": scratch.table,
        "CONSUMER_DIRECT_DEAD_LETTERING": "off",
        "PAYMENT_GATEWAY_TIMEOUT": f"{timeout - 1}s",
        "CONSUMER_MIN_TIME_TO_START": "1s",
        "AWS_LAMBDA_EXEC_WRAPPER": "/var/task/bootstrap",
    }
    code = archive({"bootstrap": BOOTSTRAP_SCRIPT, "gateway.py": GATEWAY, "consumer": BOOTSTRAP})
    table = scratch.client("dynamodb").describe_table(TableName=scratch.table)["Table"]["TableArn"]
    single = ["dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem", "dynamodb:GetItem"]
    writes = [*single, "dynamodb:PartiQLInsert", "dynamodb:PartiQLUpdate"]
    hides = ["sqs:GetQueueUrl", "sqs:ChangeMessageVisibility"]
    return make_function(
        scratch,
        "killed",
        source,
        [
            {"Effect": "Allow", "Action": writes, "Resource": table},
            {"Effect": "Allow", "Action": hides, "Resource": source},
        ],
        window=1,
        # MiniStack runs a bootstrap only for a custom runtime; such a runtime has no Python on AWS.
        Runtime="provided.al2023" if scratch.emulated else "python3.13",
        Architectures=[scratch.architecture],
        Handler="bootstrap",
        Code={"ZipFile": code},
        Timeout=timeout,
        MemorySize=512,
        Environment={"Variables": variables},
    )


def record(scratch: Scratch, function: str, number: str) -> tuple[str, str, str]:
    """Status, attempts and recorded end of the last attempt of an order."""
    key = scratch.key(f"{function}#{number}")
    item = scratch.client("dynamodb").get_item(TableName=scratch.table, Key=key, ConsistentRead=True).get("Item", {})
    status, attempts, end = item.get("status", {}), item.get("attempts", {}), item.get("last_end", {})
    return status.get("S", "no record"), attempts.get("N", "0"), end.get("S", "no end")


@check()
def killed_workers_message_is_taken_over(scratch: Scratch) -> Seen:
    """The consumer dies while a handler runs: killed, and stopped until Lambda kills it at the function's timeout. The
    message returns after the queue's visibility timeout and is taken over as a second attempt. The other orders of its
    batch keep their one attempt.

    Where:
    docs/operations.md: worker was killed
    docs/protocol.md: ## Claim
    """
    timeout, hidden = (3, 8) if scratch.emulated else (6, 30)
    url, arn = scratch.make_queue("killed", VisibilityTimeout=str(hidden))
    function = deploy(scratch, arn, timeout)
    sqs = scratch.client("sqs")

    def ended(number: str, within: float) -> tuple[str, str, str]:
        read = functools.partial(record, scratch, function, number)
        return scratch.eventually(read, lambda now: now[0] == "COMPLETED", within, pause=0.5)

    # The first batch waits for the mapping, and for the start of the function.
    sqs.send_message(QueueUrl=url, MessageBody=order("first", "SIGKILL", 0))
    if ended("first", within=180)[0] != "COMPLETED":
        raise NotChecked("the consumer with a gateway beside it completed no order")
    problems, observed = [], []
    for signal in ("SIGKILL", "SIGSTOP"):
        dies = f"{signal}-{secrets.token_hex(4)}"
        others = [f"{dies}-{number}" for number in range(NEIGHBOURS)]
        until = time.time() + hidden - 2
        bodies = [order(dies, signal, until), *(order(number, signal, 0) for number in others)]
        entries = [{"Id": str(i), "MessageBody": body} for i, body in enumerate(bodies)]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
        # Late enough that the function's timeout has passed, and too early for a second receive.
        scratch.rest(hidden - 2)
        open_attempt = record(scratch, function, dies)
        after = ended(dies, within=2 * hidden + 60)
        beside = [ended(number, within=hidden)[:2] for number in others]
        kept = beside.count(("COMPLETED", "1"))
        observed.append(f"{signal}: {' '.join(open_attempt)}, then {' '.join(after[:2])}; {kept} neighbours once")
        taken_over = open_attempt == ("IN_PROGRESS", "1", "no end") and after[:2] == ("COMPLETED", "2")
        problems += [signal] * (not taken_over or kept != NEIGHBOURS)
    return Seen(not problems, "; ".join(observed))

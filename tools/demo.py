"""`make demo`: deploys the template to a local cloud, sends some forty orders, and checks the promises.

The evidence is independent of the consumer: the ledger of the payment gateway, the table, the queues. Only the number
of deliveries comes from the consumer's log.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import deployment
import gateway
from cases import WAVES, Case, Message, cases
from cloud import ROOT, STATE, Cloud, Json, Unavailable, ministack, run, unwind_on_signals
from deployment import Failed, architecture, console, depth, parameters, sam, say
from rich import box
from rich.table import Table

STACK = "sqs-once"
KEY = "body:/orderId"
# Short times: SQS delivers the messages of a killed worker again after this visibility timeout, in seconds.
VISIBILITY_TIMEOUT = 12
PARAMETERS = {"FunctionTimeout": "10"}  # so that a lease ends before the visibility timeout does
# If a worker misses its timeout while a message runs alone, that looks like a crash: the message waits for 20 minutes.
VARIABLES = {"CONSUMER_CRASH_ISOLATION": "off"}
# Seconds without any progress after which the demo counts what there is. SQS never makes it wait nearly so long.
STUCK_AFTER = 180.0
BUILT = ROOT / ".aws-sam" / "build" / "template.yaml"


# ---- build and deploy --------------------------------------------------------------------------


def build(visibility_timeout: int | None = None, variables: dict[str, str] | None = None) -> list[str]:
    """Builds consumer and template. Returns what was replaced in the template for the local cloud."""
    # A build for this machine needs no zig.
    environment = os.environ | {"CARGO_LAMBDA_COMPILER": "cargo"}
    # `sam build` runs the same command without showing its progress. So does `make test`.
    if run(["cargo", "lambda", "build", "--locked", "--release", "--bin", "consumer"], environment) != 0:
        raise Failed("the consumer does not compile")
    sam("build", *parameters(Architecture=architecture()), environment=environment)
    return deployment.adapt(BUILT, visibility_timeout, variables)


@dataclass(frozen=True)
class Progress:
    sent: int
    waiting: int
    in_flight: int
    dead: int

    @property
    def done(self) -> int:
        return max(0, self.sent - self.waiting - self.in_flight - self.dead)


@dataclass(frozen=True)
class Stack:
    """A deployed stack: the outputs of its template, its gateway and its orders."""

    cloud: Cloud
    ledger: gateway.Gateway
    cases: list[Case]
    queue: str
    dead_letters: str
    table: str
    logs: str

    @cached_property
    def messages(self) -> list[Message]:
        return [message for case in self.cases for message in case.messages]

    def send(self, wave: int) -> None:
        messages = [m for m in self.messages if m.wave == wave]
        ids = deployment.send(self.cloud, self.queue, [m.body for m in messages], [m.name for m in messages])
        for message, id in zip(messages, ids, strict=True):
            message.ids.append(id)

    def redrive(self) -> None:
        """Redrives messages from the dead-letter queue, as an operator does."""
        wanted = {m.name: m for m in self.messages if m.redriven}
        for message in wanted.values():
            self.ledger.accept(str(message.order))
        for name, body in deployment.take(self.cloud, self.dead_letters, set(wanted)):
            # After a response that was lost, there can be a second copy.
            if len(wanted[name].ids) == 1:
                wanted[name].ids += deployment.send(self.cloud, self.queue, [body], [name])

    def progress(self) -> Progress:
        sent = sum(1 for m in self.messages if m.ids)
        return Progress(sent, *deployment.depths(self.cloud, self.queue, self.dead_letters))


def deploy(cloud: Cloud, ledger: gateway.Gateway) -> Stack:
    outputs = deployment.deploy(cloud, STACK, **PARAMETERS, IdempotencyKey=KEY, PaymentGatewayUrl=ledger.url)
    all_cases = cases()
    for case in all_cases:
        for order, troubles in case.troubles.items():
            ledger.plan(order, *troubles)
    return Stack(
        cloud,
        ledger,
        all_cases,
        queue=outputs["QueueUrl"],
        dead_letters=outputs["DeadLetterQueueUrl"],
        table=outputs["TableName"],
        logs=outputs["LogGroupName"],
    )


# ---- send and watch ----------------------------------------------------------------------------


def drive(stack: Stack) -> Iterator[tuple[float, Progress]]:
    """Sends the waves, redrives once, and yields the progress until the queues are empty."""
    start = changed = time.monotonic()
    waves = list(enumerate(WAVES))
    quiet, redriven, before = 0, False, None
    while time.monotonic() - changed < STUCK_AFTER:
        elapsed = time.monotonic() - start
        while waves and waves[0][1] <= elapsed:
            number, _ = waves.pop(0)
            stack.send(number)
        now = stack.progress()
        yield elapsed, now
        state = now, booked(stack.ledger)
        if state != before:
            before, changed = state, time.monotonic()
        quiet = 0 if waves or now.waiting or now.in_flight else quiet + 1
        if quiet == 3 and redriven:
            return
        if quiet == 3:
            stack.redrive()
            quiet, redriven = 0, True
        time.sleep(0.5)


def booked(ledger: gateway.Gateway) -> tuple[int, int, int]:
    """Number of calls, of charges and of killed workers."""
    return sum(ledger.calls.values()), sum(ledger.charges.values()), len(ledger.killed)


def watch(stack: Stack) -> None:
    shown = None
    for elapsed, progress in drive(stack):
        if shown != progress:
            shown = progress
            calls, charges, killed = booked(stack.ledger)
            console.print(
                f"{elapsed:5.1f} s  sent {progress.sent:2}  visible {progress.waiting:2}  in flight "
                f"{progress.in_flight:2}  done {progress.done:2}  dead {progress.dead}  |  gateway: {calls:2} calls, "
                f"{charges:2} charges, {killed} workers killed"
            )


# ---- the evidence ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    left: int  # messages still in the queue
    dead: Counter[str]  # names of the messages in the dead-letter queue: a copy has another id
    records: list[Json]  # items of the table
    deliveries: Counter[str]  # by message id

    def records_of(self, case: Case, order: str | None) -> tuple[str, ...]:
        ids = {id for m in case.messages if m.order == order for id in m.ids}
        found = [r["status"]["S"] for r in self.records if r.get("message_id", {}).get("S") in ids]
        return tuple(sorted(found))


def gather(stack: Stack) -> Evidence:
    return Evidence(
        left=sum(depth(stack.cloud, stack.queue)),
        dead=deployment.dead_letters(stack.cloud, stack.dead_letters),
        records=deployment.items(stack.cloud, stack.table),
        deliveries=deployment.deliveries(deployment.log_lines(stack.cloud, stack.logs)),
    )


# ---- the report --------------------------------------------------------------------------------


def table_of(stack: Stack, evidence: Evidence) -> Table:
    table = Table(box=box.ROUNDED, title=f"IdempotencyKey={KEY}", title_justify="left")
    table.add_column("case", min_width=27)
    for column in ("orders", "messages", "deliveries", "calls", "charges"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("records", "ended"):
        table.add_column(column, no_wrap=True)
    for case in stack.cases:
        orders: list[str | None] = [*case.orders] or [None]
        records = Counter(status for order in orders for status in evidence.records_of(case, order))
        dead = sum(1 for m in case.messages if m.name in evidence.dead)
        done = len(case.messages) - dead
        ends = [f"{done} acknowledged"] * bool(done) + [f"{dead} dead-letter queue"] * bool(dead)
        table.add_row(
            case.title,
            str(len(case.orders)) if case.orders else "",
            str(len(case.messages)),
            str(sum(evidence.deliveries[id] for m in case.messages for id in m.ids)),
            str(sum(stack.ledger.calls[o] for o in case.orders)),
            str(sum(stack.ledger.charges[o] for o in case.orders)),
            "\n".join(f"{n} {status}" for status, n in records.items()) or "none",
            "\n".join(ends),
        )
    return table


def promises(stack: Stack, evidence: Evidence) -> dict[str, list[str]]:
    """Each promise, with its violations."""
    orders = [(case, order) for case in stack.cases for order in case.orders]
    known = {order for _, order in orders}
    sent = {m.name: m for m in stack.messages}
    charges = stack.ledger.charges

    charged = [
        f"{order} ({case.title}): charged {charges[order]} times, not {case.charges}"
        for case, order in orders
        if charges[order] != case.charges
    ]
    recorded = [
        f"{order} ({case.title}): has the records {evidence.records_of(case, order)}, not {case.records}"
        for case, order in orders
        if evidence.records_of(case, order) != case.records
    ]
    recorded += [
        f"{case.title}: has the records {evidence.records_of(case, None)}, without an order"
        for case in stack.cases
        if evidence.records_of(case, None)
    ]
    lost = [f"{evidence.left} messages are still in the queue"] * bool(evidence.left)
    for case in stack.cases:
        for name in dict.fromkeys(m.order or m.body for m in case.messages):
            messages = [m for m in case.messages if name in (m.order, m.body)]
            dead = sum(m.name in evidence.dead for m in messages)
            if dead != (dies := sum(m.dies for m in messages)):
                lost.append(
                    f"{name} ({case.title}): {dead} of {len(messages)} messages in the dead-letter queue, not {dies}"
                )
    extra = [f"charge for {order}, which was not sent" for order in charges if order not in known]
    completed = {r.get("message_id", {}).get("S") for r in evidence.records if r["status"]["S"] == "COMPLETED"}
    for name, copies in evidence.dead.items():
        if name not in sent:
            extra.append(f"message {name} in the dead-letter queue was not sent")
            continue
        if completed & {*sent[name].ids}:
            extra.append(f"{sent[name].order}: message {name} is in the dead-letter queue, and its charge is recorded")
        # A response that comes after the timeout is lost, and SQS delivers the message again.
        if copies > 1 and copies > (deliveries := sum(evidence.deliveries[id] for id in sent[name].ids)):
            extra.append(f"message {name}: {copies} times in the dead-letter queue, after {deliveries} deliveries")
    expected = sum(len(case.records) for case, _ in orders)
    surplus = len(evidence.records) - expected
    extra += [f"{surplus} more records than operations"] * (surplus > 0)
    tested = ["no worker was killed"] * (not stack.ledger.killed)
    tested += [f"{order}: the planned fault of the gateway did not occur" for order in stack.ledger.unmet]
    tested += [f"message {m.id} ({m.order}): not redriven" for m in stack.messages if m.redriven and len(m.ids) != 2]
    return {
        "every order is charged exactly once, and a declined or malformed one never": charged,
        "every outcome is recorded": recorded,
        "no message is lost: each is acknowledged, or in the dead-letter queue if it failed permanently": lost,
        "no charge, record or dead letter without a message": extra,
        "failures occurred: workers were killed, the gateway failed, messages were redriven": tested,
    }


def report(stack: Stack, evidence: Evidence) -> bool:
    console.print(table_of(stack, evidence))
    kept = deployment.verdict(promises(stack, evidence))
    console.print(
        "\nSQS delivers the whole batch of a killed worker again, so that other orders have two deliveries too.\n"
        '"charged, refused, redriven": the gateway books the charge but responds 503, then refuses the order. The\n'
        "message moves to the dead-letter queue, and is redriven from there.\n"
    )
    return kept


def main() -> int:
    unwind_on_signals()
    STATE.mkdir(exist_ok=True)
    say(f"sam build for {architecture()} (the first build compiles every dependency)")
    replaced = build(VISIBILITY_TIMEOUT, VARIABLES)

    with ministack("demo") as cloud, gateway.serve(workers_of=cloud.pid) as ledger:
        say("template.yaml as it is, but for what the local cloud cannot take")
        for part in replaced:
            console.print(f"    replaced  {part}", markup=False)
        say(f"sam deploy to MiniStack at {cloud.endpoint}: IdempotencyKey={KEY}, payment gateway {ledger.url}")
        stack = deploy(cloud, ledger)

        say(
            f"sending {len(stack.messages)} messages. Visibility timeouts: 12 s after a killed worker, "
            "5 to 10 s after a failure of the gateway. It takes about 30 s"
        )
        watch(stack)
        console.print()
        return 0 if report(stack, gather(stack)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, Unavailable) as problem:
        sys.exit(f"make demo: {problem}")

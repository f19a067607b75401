"""`make demo`: deploys the template to a local cloud, sends some forty orders, and checks the promises.

It deploys two stacks: one with the key `message-id`, the library's default, one with the business key,
`body:/orderId`, the template's default. Each stack has its own payment gateway and gets the same kinds of orders.

The evidence is independent of the consumer: the ledgers of the gateways, the tables, the queues. Only
the number of deliveries and the metrics come from the logs of the consumers. The metrics are compared
with the evidence.

`make demo KEEP=1` leaves the local cloud running until Ctrl-C.
"""

import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import deployment
import gateway
from cases import MESSAGE_ID, ORDER_ID, WAVES, Case, Message, cases
from cloud import CREDENTIALS, REGION, ROOT, STATE, Cloud, Unavailable, ministack, run, unwind_on_signals
from deployment import Failed, architecture, console, depth, parameters, sam, say
from rich import box
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

# The name of the stack, the key and the number of the first order.
STACKS = (("sqs-once-by-message", MESSAGE_ID, 1001), ("sqs-once-by-order", ORDER_ID, 2001))
# Short times: SQS delivers the messages of a killed worker again after this visibility timeout, in seconds.
VISIBILITY_TIMEOUT = 12
PARAMETERS = {"FunctionTimeout": "10"}  # so that a lease ends before the visibility timeout does
# A worker that misses its timeout while a message runs alone looks like a crash: the message rests for 20 minutes.
VARIABLES = {"CONSUMER_CRASH_ISOLATION": "off"}
# Seconds without any progress after which the demo counts what there is. All waits for SQS are far shorter.
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
    name: str
    key: str
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


def deploy(cloud: Cloud, name: str, key: str, first: int, ledger: gateway.Gateway) -> Stack:
    outputs = deployment.deploy(cloud, name, **PARAMETERS, IdempotencyKey=key, PaymentGatewayUrl=ledger.url)
    all_cases = cases(key, first)
    for case in all_cases:
        for order, troubles in case.troubles.items():
            ledger.plan(order, *troubles)
    return Stack(
        cloud,
        name,
        key,
        ledger,
        all_cases,
        queue=outputs["QueueUrl"],
        dead_letters=outputs["DeadLetterQueueUrl"],
        table=outputs["TableName"],
        logs=outputs["LogGroupName"],
    )


# ---- send and watch ----------------------------------------------------------------------------


def drive(stacks: list[Stack]) -> Iterator[tuple[float, list[Progress]]]:
    """Sends the waves, redrives once, and yields the progress until the queues are empty."""
    start = changed = time.monotonic()
    waves = list(enumerate(WAVES))
    quiet, redriven, before = 0, False, None
    while time.monotonic() - changed < STUCK_AFTER:
        elapsed = time.monotonic() - start
        while waves and waves[0][1] <= elapsed:
            number, _ = waves.pop(0)
            for stack in stacks:
                stack.send(number)
        now = [stack.progress() for stack in stacks]
        yield elapsed, now
        state = now, [booked(stack.ledger) for stack in stacks]
        if state != before:
            before, changed = state, time.monotonic()
        quiet = 0 if waves or any(p.waiting or p.in_flight for p in now) else quiet + 1
        if quiet == 3 and redriven:
            return
        if quiet == 3:
            for stack in stacks:
                stack.redrive()
            quiet, redriven = 0, True
        time.sleep(0.5)


def booked(ledger: gateway.Gateway) -> tuple[int, int, int]:
    """Number of calls, of charges and of killed workers."""
    return sum(ledger.calls.values()), sum(ledger.charges.values()), len(ledger.killed)


def picture(elapsed: float, now: list[Progress], stacks: list[Stack]) -> Group:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("key")
    for column in ("sent", "visible", "in flight", "done", "dead", "", "calls", "charges", "killed"):
        table.add_column(column, justify="right")
    for stack, progress in zip(stacks, now, strict=True):
        figures = (progress.sent, progress.waiting, progress.in_flight, progress.done, progress.dead)
        table.add_row(stack.key, *map(str, figures), "gateway:", *map(str, booked(stack.ledger)))
    total = sum(len(stack.messages) for stack in stacks)
    ended = sum(progress.done + progress.dead for progress in now)
    return Group(table, ProgressBar(total=total, completed=ended, width=60), f"  {elapsed:.0f} s")


def watch(states: Iterator[tuple[float, list[Progress]]], stacks: list[Stack]) -> None:
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for elapsed, now in states:
                live.update(picture(elapsed, now, stacks), refresh=True)
        return
    shown: dict[str, Progress] = {}
    for elapsed, now in states:
        for stack, progress in zip(stacks, now, strict=True):
            if shown.get(stack.key) != progress:
                shown[stack.key] = progress
                calls, charges, killed = booked(stack.ledger)
                console.print(
                    f"{elapsed:5.1f} s  {stack.key:13}  sent {progress.sent:2}  visible {progress.waiting:2}  "
                    f"in flight {progress.in_flight:2}  done {progress.done:2}  dead {progress.dead}  |  gateway: "
                    f"{calls:2} calls, {charges:2} charges, {killed} workers killed"
                )


# ---- the evidence ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    left: int  # messages still in the queue
    dead: Counter[str]  # names of the messages in the dead-letter queue: a copy has another id
    records: list[deployment.Json]  # items of the table
    deliveries: Counter[str]  # by message id
    metrics: Counter[str]  # sums of the counters in the log
    counted: Counter[str]  # successes by message id, of the batches whose metrics are in the log

    def records_of(self, case: Case, order: str | None) -> tuple[str, ...]:
        ids = {id for m in case.messages if m.order == order for id in m.ids}
        found = [r["status"]["S"] for r in self.records if r.get("message_id", {}).get("S") in ids]
        return tuple(sorted(found))


def gather(stack: Stack) -> Evidence:
    lines = list(deployment.log_lines(stack.cloud, stack.logs))
    return Evidence(
        left=sum(depth(stack.cloud, stack.queue)),
        dead=deployment.dead_letters(stack.cloud, stack.dead_letters),
        records=deployment.items(stack.cloud, stack.table),
        deliveries=deployment.deliveries(lines),
        metrics=deployment.metrics(lines),
        counted=deployment.counted(lines),
    )


# ---- the report --------------------------------------------------------------------------------


def table_of(stack: Stack, evidence: Evidence) -> Table:
    table = Table(box=box.ROUNDED, title=f"IdempotencyKey={stack.key}", title_justify="left")
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
    without_order = [(case, sum(m.order is None for m in case.messages)) for case in stack.cases]
    recorded += [
        f"{case.title}: has the records {evidence.records_of(case, None)}, not {case.records * messages}"
        for case, messages in without_order
        if evidence.records_of(case, None) != case.records * messages
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
    expected += sum(len(case.records) * messages for case, messages in without_order)
    surplus = len(evidence.records) - expected
    extra += [f"{surplus} more records than operations"] * (surplus > 0)
    tested = ["no worker was killed"] * (not stack.ledger.killed)
    tested += [f"{order}: the planned fault of the gateway did not occur" for order in stack.ledger.unmet]
    tested += [f"message {m.id} ({m.order}): not redriven" for m in stack.messages if m.redriven and len(m.ids) != 2]
    once = "order" if stack.key == ORDER_ID else "message"
    return {
        f"every {once} is charged exactly once, and a declined or malformed one never": charged,
        "every outcome is recorded": recorded,
        "no message is lost: each is acknowledged, or in the dead-letter queue if it failed permanently": lost,
        "no charge, record or dead letter without a message": extra,
        "the metrics agree with the queues": [
            f"{row.metric} is {row.sum}, {row.evidence} is {row.number}"
            for row in agreements(stack, evidence)
            if not row.holds
        ],
        "failures occurred: workers were killed, the gateway failed, messages were redriven": tested,
    }


# Counters of the consumer that are not of an outcome.
OTHER_COUNTERS = (
    "BatchSize",
    "BatchedWritesOff",
    "DuplicatesOfOtherQueue",
    "ColdStart",
    "Takeovers",
    "DeadLettered",
    "DeadLettersNotSent",
    "ResultsNotStored",
)


@dataclass(frozen=True)
class Agreement:
    """A sum of metrics, and the number that it must have."""

    metric: str
    sum: int
    evidence: str
    number: int

    @property
    def holds(self) -> bool:
        return self.sum == self.number


def agreements(stack: Stack, evidence: Evidence) -> list[Agreement]:
    """Compares the batches whose metrics are in the log, each as a whole.

    A batch whose worker was killed is in no metric: SQS delivers its messages again, in another batch. MiniStack may
    also miss the end of a log. And a response after the timeout is lost, so a duplicate can follow a success.
    """
    sums, counted = evidence.metrics, evidence.counted
    outcomes = sum(n for name, n in sums.items() if name not in OTHER_COUNTERS)
    acknowledged = {m.id for m in stack.messages if m.name not in evidence.dead}
    successes = sum(counted[id] for id in acknowledged)
    return [
        Agreement(
            "Completed + Duplicates", sums["Completed"] + sums["Duplicates"], "successes of acknowledged", successes
        ),
        Agreement("all outcomes", outcomes, "BatchSize", sums["BatchSize"]),
    ]


def metrics_table(stacks: list[tuple[Stack, Evidence]]) -> Table:
    """The sums of the counters, and the numbers in the queues that they must agree with."""
    table = Table(box=box.ROUNDED, title="Metrics, summed from the log lines", title_justify="left")
    table.add_column("metric")
    for stack, _ in stacks:
        table.add_column(stack.key, justify="right")
    for name in sorted({name for _, evidence in stacks for name in evidence.metrics}):
        table.add_row(name, *(str(evidence.metrics[name]) for _, evidence in stacks))
    table.add_section()
    for rows in zip(*(agreements(stack, evidence) for stack, evidence in stacks), strict=True):
        table.add_row(rows[0].metric, *(str(row.sum) for row in rows))
        table.add_row(f"  {rows[0].evidence}", *(str(row.number) for row in rows))
    return table


def comparison(stacks: list[Stack]) -> Table:
    """The charges of one order with each key, for orders that reach the consumer more than once."""
    table = Table(box=box.ROUNDED, title="Charges of one order", title_justify="left")
    table.add_column("repetition")
    for stack in stacks:
        table.add_column(stack.key, justify="right")
    for title, repetition in (
        ("killed after the charge", "SQS delivers the message again"),
        ("order sent twice", "the producer sends the order in two messages"),
        ("charged, refused, redriven", "the order is redriven, with a new message id"),
    ):
        row = []
        for stack in stacks:
            (case,) = (case for case in stack.cases if case.title == title)
            row.append(max(stack.ledger.charges[order] for order in case.orders))
        table.add_row(repetition, *map(str, row))
    return table


def report(gathered: list[tuple[Stack, Evidence]]) -> bool:
    kept = []
    for stack, evidence in gathered:
        console.print(table_of(stack, evidence))
        kept.append(deployment.verdict(promises(stack, evidence)))
        console.print()
    console.print(
        "SQS delivers the whole batch of a killed worker again, so that other orders have two deliveries too.\n"
        '"charged, refused, redriven": the gateway books the charge but responds 503, then refuses the order. The\n'
        "message moves to the dead-letter queue, and is redriven from there.\n"
    )
    console.print(comparison([stack for stack, _ in gathered]))
    console.print(
        f"{MESSAGE_ID} covers repeated deliveries of one message. {ORDER_ID} also covers an order that\n"
        "is sent twice or redriven, and refuses another payload under the same number. Use the business key of the\n"
        "messages if they have one.\n"
    )
    console.print(metrics_table(gathered))
    return all(kept)


# ---- after the run -----------------------------------------------------------------------------


def look_closer(stack: Stack) -> None:
    """Prints commands for the stack, and waits for Ctrl-C."""
    order = stack.cases[0].orders[0]
    tool = "target/debug/sqs-once"
    say("the local cloud runs until Ctrl-C. To look closer, in another terminal:")
    for line in (
        "cargo build --package sqs-once-cli --bin sqs-once",
        f"export AWS_ENDPOINT_URL={stack.cloud.endpoint} AWS_REGION={REGION}",
        *(f"export {name}={CREDENTIALS[name]}" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
        f"export IDEMPOTENCY_TABLE_NAME={stack.table}",
        f"{tool} record show payments#{order}",
        f"{tool} dlq list {stack.dead_letters} --messages",
        f"{tool} doctor {stack.name}",
    ):
        console.print(f"    {line}", markup=False)
    console.print(
        "The doctor has a finding: MiniStack ignores TTL in a template.\n"
        "docs/runbook.md has the steps for each failure."
    )
    signal.pause()


def main() -> int:
    unwind_on_signals()
    STATE.mkdir(exist_ok=True)
    say(f"sam build for {architecture()} (the first build compiles every dependency)")
    replaced = build(VISIBILITY_TIMEOUT, VARIABLES)

    with ministack("demo") as cloud, contextlib.ExitStack() as gateways:
        say("template.yaml as it is, but for what the local cloud cannot take")
        for part in replaced:
            console.print(f"    replaced  {part}", markup=False)
        stacks = []
        for name, key, first in STACKS:
            ledger = gateways.enter_context(gateway.serve(workers_of=cloud.pid))
            say(f"sam deploy to MiniStack at {cloud.endpoint}: IdempotencyKey={key}, payment gateway {ledger.url}")
            stacks.append(deploy(cloud, name, key, first, ledger))

        say(
            f"sending {len(stacks[0].messages)} messages to each. Visibility timeouts: 12 s after a killed worker, "
            "5 to 10 s after a failure of the gateway. It takes about 30 s"
        )
        watch(drive(stacks), stacks)
        console.print()
        kept = report([(stack, gather(stack)) for stack in stacks])
        if os.environ.get("KEEP"):
            look_closer(stacks[-1])
        else:
            say("to look closer with `sqs-once record show`, `dlq list` and `doctor`: make demo KEEP=1")
        return 0 if kept else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, Unavailable) as problem:
        sys.exit(f"make demo: {problem}")

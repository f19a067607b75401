"""`make demo`: the template deployed to a local cloud, some forty orders, and the promises checked.

It is deployed twice, side by side: with the template's default key, `message-id`, and with the business
key, `body:/orderId`. Each stack has a payment gateway of its own and gets the same kinds of orders.

What is checked is read from where the consumer has no say: the gateways' ledgers, the tables, the
queues. Only the number of deliveries comes from the consumers' own logs.
"""

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rich import box
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

import deployment
import gateway
from cases import MESSAGE_ID, ORDER_ID, WAVES, Case, Message, cases
from cloud import STATE, Cloud, Unavailable, ministack, run, unwind_on_signals
from deployment import Failed, architecture, console, depth, parameters, sam, say

# The name of the stack, the key and the number of the first order.
STACKS = (("sqs-once-by-message", MESSAGE_ID, 1001), ("sqs-once-by-order", ORDER_ID, 2001))
# Small numbers, so that a message whose worker was killed is back soon: 2 s of function are 12 s of invisibility.
PARAMETERS = {
    "FunctionTimeout": "2",
    "PaymentGatewayTimeout": "1s",
    "MaxReceiveCount": "3",
}
SETTLE_WITHIN = 85.0


# ---- build and deploy --------------------------------------------------------------------------


def build() -> None:
    # No zig: the build is for this very machine.
    environment = os.environ | {"CARGO_LAMBDA_COMPILER": "cargo"}
    # `sam build` runs this very command, but shows nothing while it compiles.
    if run(["cargo", "lambda", "build", "--release", "--bin", "consumer"], environment) != 0:
        raise Failed("the consumer does not compile")
    sam("build", *parameters(Architecture=architecture()), environment=environment)


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
    """What was deployed, by the template's outputs, with its gateway and the orders for it."""

    cloud: Cloud
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
        ids = deployment.send(self.cloud, self.queue, [message.body for message in messages])
        for message, id in zip(messages, ids, strict=True):
            message.ids.append(id)

    def redrive(self) -> None:
        """Sends what is to be redriven back from the dead-letter queue, as an operator does."""
        wanted = {m.id: m for m in self.messages if m.redriven}
        for id, body in deployment.take(self.cloud, self.dead_letters, set(wanted)):
            wanted[id].ids += deployment.send(self.cloud, self.queue, [body])

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
    """Sends wave after wave, redrives once, and yields until nothing is left in the queues."""
    start = time.monotonic()
    waves = list(enumerate(WAVES))
    quiet, redriven = 0, False
    while (elapsed := time.monotonic() - start) < SETTLE_WITHIN:
        while waves and waves[0][1] <= elapsed:
            number, _ = waves.pop(0)
            for stack in stacks:
                stack.send(number)
        now = [stack.progress() for stack in stacks]
        yield elapsed, now
        quiet = 0 if waves or any(p.waiting or p.in_flight for p in now) else quiet + 1
        if quiet == 3 and redriven:
            return
        if quiet == 3:
            for stack in stacks:
                stack.redrive()
            quiet, redriven = 0, True
        time.sleep(0.5)


def booked(ledger: gateway.Gateway) -> tuple[int, int, int]:
    return sum(ledger.calls.values()), sum(ledger.charges.values()), len(ledger.killed)


def picture(elapsed: float, now: list[Progress], stacks: list[Stack]) -> Group:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("key")
    for column in ("sent", "in the queue", "in flight or hidden", "done", "dead", "", "calls", "charges", "killed"):
        table.add_column(column, justify="right")
    for stack, its in zip(stacks, now, strict=True):
        figures = (its.sent, its.waiting, its.in_flight, its.done, its.dead)
        table.add_row(stack.key, *map(str, figures), "gateway:", *map(str, booked(stack.ledger)))
    total = sum(len(stack.messages) for stack in stacks)
    ended = sum(its.done + its.dead for its in now)
    return Group(table, ProgressBar(total=total, completed=ended, width=60), f"  {elapsed:.0f} s")


def watch(states: Iterator[tuple[float, list[Progress]]], stacks: list[Stack]) -> None:
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for elapsed, now in states:
                live.update(picture(elapsed, now, stacks), refresh=True)
        return
    shown: dict[str, Progress] = {}
    for elapsed, now in states:
        for stack, its in zip(stacks, now, strict=True):
            if shown.get(stack.key) != its:
                shown[stack.key] = its
                calls, charges, killed = booked(stack.ledger)
                console.print(
                    f"{elapsed:5.1f} s  {stack.key:13}  sent {its.sent:2}  queue {its.waiting:2}  hidden "
                    f"{its.in_flight:2}  done {its.done:2}  dead {its.dead}  |  gateway: "
                    f"{calls:2} calls, {charges:2} charges, {killed} workers killed"
                )


# ---- the evidence ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    left: int  # messages still in the queue
    dead: Counter[str]  # message ids in the dead-letter queue
    records: list[dict]  # the table's items
    deliveries: Counter[str]  # by message id

    def records_of(self, case: Case, order: str) -> tuple[str, ...]:
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
    table = Table(box=box.ROUNDED, title=f"IdempotencyKey={stack.key}", title_justify="left")
    table.add_column("case", min_width=27)
    for column in ("orders", "messages", "deliveries", "calls", "charges"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("records", "ended"):
        table.add_column(column, no_wrap=True)
    for case in stack.cases:
        records = Counter(status for order in case.orders for status in evidence.records_of(case, order))
        dead = sum(1 for m in case.messages if m.id in evidence.dead)
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
    """Each promise, with what broke it."""
    orders = [(case, order) for case in stack.cases for order in case.orders]
    known = {order for _, order in orders}
    named = {id: m.order or m.body for m in stack.messages for id in m.ids}
    charges = stack.ledger.charges

    charged = [
        f"{order} ({case.title}): charged {charges[order]} times, not {case.charges}"
        for case, order in orders
        if charges[order] != case.charges
    ]
    recorded = [
        f"{order} ({case.title}): its records are {evidence.records_of(case, order)}, not {case.records}"
        for case, order in orders
        if evidence.records_of(case, order) != case.records
    ]
    lost = [f"{evidence.left} messages are still in the queue"] * bool(evidence.left)
    lost += [
        f"message {m.id} ({named[m.id]}): {'not in the' if m.dies else 'in the'} dead-letter queue"
        for m in stack.messages
        if m.dies != (m.id in evidence.dead)
    ]
    extra = [f"charge for {order}, which nobody sent" for order in charges if order not in known]
    extra += [f"message {id}: {n} times in the dead-letter queue" for id, n in evidence.dead.items() if n > 1]
    extra += [f"message {id} in the dead-letter queue, which nobody sent" for id in evidence.dead if id not in named]
    surplus = len(evidence.records) - sum(len(case.records) for case, _ in orders)
    extra += [f"{surplus} records more than there are operations"] * (surplus > 0)
    tested = ["no worker was killed"] * (not stack.ledger.killed)
    tested += [f"{order}: the gateway was never in the trouble planned for it" for order in stack.ledger.unmet]
    tested += [f"message {m.id} ({m.order}): not redriven" for m in stack.messages if m.redriven and len(m.ids) != 2]
    once = "order" if stack.key == ORDER_ID else "message"
    return {
        f"every {once} charged exactly once, or not at all where it must not be": charged,
        "every outcome on record": recorded,
        "nothing lost: each message acknowledged, or in the dead-letter queue where it belongs": lost,
        "nothing extra: no charge, record or dead letter without an order": extra,
        "put to the test: workers were killed, the gateway failed, messages were redriven": tested,
    }


def comparison(stacks: list[Stack]) -> Table:
    """The charges of one order by either key, where it reaches the consumer more than once."""
    table = Table(box=box.ROUNDED, title="Charges of one order", title_justify="left")
    table.add_column("repetition")
    for stack in stacks:
        table.add_column(stack.key, justify="right")
    for title, repetition in (
        ("killed after the charge", "SQS delivers its message again"),
        ("order sent twice", "its producer sends it in two messages"),
        ("charged, refused, redriven", "it is redriven, with a new message id"),
    ):
        row = []
        for stack in stacks:
            (case,) = (case for case in stack.cases if case.title == title)
            row.append(max(stack.ledger.charges[order] for order in case.orders))
        table.add_row(repetition, *map(str, row))
    return table


def report(stacks: list[Stack]) -> bool:
    kept = []
    for stack in stacks:
        evidence = gather(stack)
        console.print(table_of(stack, evidence))
        kept.append(deployment.verdict(promises(stack, evidence)))
        console.print()
    console.print(
        "A worker that is killed takes its whole batch down: its other orders were delivered again too.\n"
        '"charged, refused, redriven": the gateway books the charge but answers 503, then refuses the order. Its message\n'
        "goes to the dead-letter queue and is sent back from there.\n"
    )
    console.print(comparison(stacks))
    console.print(
        f"{MESSAGE_ID}, the default, covers repeated deliveries of one message. {ORDER_ID} also covers an order that\n"
        "is sent twice or redriven, and refuses another payload under the same number. Where a message has a business\n"
        "key, use that."
    )
    return all(kept)


def main() -> int:
    unwind_on_signals()
    STATE.mkdir(exist_ok=True)
    say(f"sam build, for {architecture()} (the first time, cargo compiles everything)")
    build()

    with ministack("demo") as cloud, contextlib.ExitStack() as gateways:
        stacks = []
        for name, key, first in STACKS:
            ledger = gateways.enter_context(gateway.serve(workers_of=cloud.pid))
            say(f"sam deploy to MiniStack at {cloud.endpoint}: IdempotencyKey={key}, payment gateway {ledger.url}")
            stacks.append(deploy(cloud, name, key, first, ledger))

        say(
            f"{len(stacks[0].messages)} messages to each; those of a killed worker are visible again after 12 s, an order "
            "that the gateway failed after 5 to 10 s, a permanent failure at once; dead after "
            f"{PARAMETERS['MaxReceiveCount']} receives: half a minute"
        )
        watch(drive(stacks), stacks)
        console.print()
        return 0 if report(stacks) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, Unavailable) as problem:
        sys.exit(f"make demo: {problem}")

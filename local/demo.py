"""`make demo`: the template deployed to a local cloud, some forty orders, and the promise checked.

What is checked is read from where the consumer has no say: the gateway's ledger, the table, the two
queues. Only the number of deliveries comes from the consumer's own log.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

import deployment
import gateway
from cases import WAVES, Case, Message, cases
from cloud import STATE, Cloud, Unavailable, ministack, run, unwind_on_signals
from deployment import Failed, architecture, console, depth, parameters, sam, say

STACK = "sqs-once-demo"
# Small numbers, so that a message whose worker was killed is back soon: 2 s of function are 12 s of invisibility.
PARAMETERS = {
    "FunctionTimeout": "2",
    "PaymentGatewayTimeout": "1s",
    "MaxReceiveCount": "4",
    "IdempotencyKey": "body:/orderId",
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
class Stack:
    """What was deployed, by the template's outputs."""

    queue: str
    dead_letters: str
    table: str
    logs: str


def deploy(cloud: Cloud, gateway_url: str) -> Stack:
    outputs = deployment.deploy(cloud, STACK, **PARAMETERS, PaymentGatewayUrl=gateway_url)
    return Stack(
        queue=outputs["QueueUrl"],
        dead_letters=outputs["DeadLetterQueueUrl"],
        table=outputs["TableName"],
        logs=outputs["LogGroupName"],
    )


# ---- send and watch ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    sent: int
    waiting: int
    in_flight: int
    dead: int

    @property
    def done(self) -> int:
        return max(0, self.sent - self.waiting - self.in_flight - self.dead)


def send(cloud: Cloud, stack: Stack, messages: list[Message]) -> None:
    ids = deployment.send(cloud, stack.queue, [message.body for message in messages])
    for message, id in zip(messages, ids, strict=True):
        message.id = id


def drive(cloud: Cloud, stack: Stack, messages: list[Message]) -> Iterator[tuple[float, Progress]]:
    """Sends wave after wave, and yields until nothing is left in the queue."""
    start = time.monotonic()
    waves = list(enumerate(WAVES))
    sent = quiet = 0
    while quiet < 3 and (elapsed := time.monotonic() - start) < SETTLE_WITHIN:
        while waves and waves[0][1] <= elapsed:
            number, _ = waves.pop(0)
            wave = [m for m in messages if m.wave == number]
            send(cloud, stack, wave)
            sent += len(wave)
        now = Progress(sent, *deployment.depths(cloud, stack.queue, stack.dead_letters))
        quiet = 0 if waves or now.waiting or now.in_flight else quiet + 1
        yield elapsed, now
        time.sleep(0.5)


def picture(elapsed: float, now: Progress, ledger: gateway.Gateway, total: int) -> Group:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("sent", "in the queue", "in flight or hidden", "done", "dead", "", "calls", "charges", "killed"):
        table.add_column(column, justify="right")
    figures = (now.sent, now.waiting, now.in_flight, now.done, now.dead)
    booked = (sum(ledger.calls.values()), sum(ledger.charges.values()), len(ledger.killed))
    table.add_row(*map(str, figures), "gateway:", *map(str, booked))
    return Group(table, ProgressBar(total=total, completed=now.done + now.dead, width=60), f"  {elapsed:.0f} s")


def watch(states: Iterator[tuple[float, Progress]], ledger: gateway.Gateway, total: int) -> None:
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for elapsed, now in states:
                live.update(picture(elapsed, now, ledger, total), refresh=True)
        return
    shown = None
    for elapsed, now in states:
        if now != shown:
            shown = now
            console.print(
                f"{elapsed:5.1f} s  sent {now.sent:2}  in the queue {now.waiting:2}  in flight or hidden "
                f"{now.in_flight:2}  done {now.done:2}  dead {now.dead:2}  |  gateway: "
                f"{sum(ledger.calls.values())} calls, {sum(ledger.charges.values())} charges, "
                f"{len(ledger.killed)} workers killed"
            )


# ---- the evidence ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    left: int  # messages still in the queue
    dead: Counter[str]  # message ids in the dead-letter queue
    records: list[dict]  # the table's items
    deliveries: Counter[str]  # by message id

    def record_of(self, case: Case, order: str) -> str | None:
        ids = {m.id for m in case.messages if m.order == order}
        found = [r["status"]["S"] for r in self.records if r.get("message_id", {}).get("S") in ids]
        return "+".join(sorted(found)) or None


def gather(cloud: Cloud, stack: Stack) -> Evidence:
    return Evidence(
        left=sum(depth(cloud, stack.queue)),
        dead=deployment.dead_letters(cloud, stack.dead_letters),
        records=deployment.items(cloud, stack.table),
        deliveries=deployment.deliveries(deployment.log_lines(cloud, stack.logs)),
    )


# ---- the report --------------------------------------------------------------------------------


def table_of(all_cases: list[Case], evidence: Evidence, ledger: gateway.Gateway) -> Table:
    table = Table(box=box.ROUNDED, title="What became of them", title_justify="left")
    table.add_column("case")
    for column in ("messages", "deliveries", "calls", "charges"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("record", "ended"):
        table.add_column(column, no_wrap=True)
    for case in all_cases:
        records = Counter(evidence.record_of(case, order) or "none" for order in case.orders)
        dead = sum(1 for m in case.messages if m.id in evidence.dead)
        done = len(case.messages) - dead
        ends = [f"{done} acknowledged"] * bool(done) + [f"{dead} dead-letter queue"] * bool(dead)
        table.add_row(
            case.title,
            str(len(case.messages)),
            str(sum(evidence.deliveries[m.id] for m in case.messages)),
            str(sum(ledger.calls[o] for o in case.orders)),
            str(sum(ledger.charges[o] for o in case.orders)),
            "\n".join(f"{n} {status}" for status, n in records.items()) or "none",
            "\n".join(ends),
        )
    return table


def promises(all_cases: list[Case], evidence: Evidence, ledger: gateway.Gateway) -> dict[str, list[str]]:
    """Each promise, with what broke it."""
    orders = [(case, order) for case in all_cases for order in case.orders]
    messages = [message for case in all_cases for message in case.messages]
    known = {order for _, order in orders}
    named = {m.id: m.order or m.body for m in messages}

    charged = [
        f"{order} ({case.title}): charged {ledger.charges[order]} times, not {case.charges}"
        for case, order in orders
        if ledger.charges[order] != case.charges
    ]
    recorded = [
        f"{order} ({case.title}): its record is {evidence.record_of(case, order)}, not {case.record}"
        for case, order in orders
        if evidence.record_of(case, order) != case.record
    ]
    lost = [f"{evidence.left} messages are still in the queue"] * bool(evidence.left)
    lost += [
        f"message {m.id} ({named[m.id]}): {'not in the' if m.dies else 'in the'} dead-letter queue"
        for m in messages
        if m.dies != (m.id in evidence.dead)
    ]
    extra = [f"charge for {order}, which nobody sent" for order in ledger.charges if order not in known]
    extra += [f"message {id}: {n} times in the dead-letter queue" for id, n in evidence.dead.items() if n > 1]
    extra += [f"message {id} in the dead-letter queue, which nobody sent" for id in evidence.dead if id not in named]
    surplus = len(evidence.records) - sum(1 for case, _ in orders if case.record)
    extra += [f"{surplus} records more than there are orders"] * (surplus > 0)
    tested = ["no worker was killed"] * (not ledger.killed)
    tested += [f"{order}: the gateway was never in the trouble planned for it" for order in ledger.unmet]
    return {
        "every order charged exactly once, or not at all where it must not be": charged,
        "every outcome on record": recorded,
        "nothing lost: each message acknowledged, or in the dead-letter queue where it belongs": lost,
        "nothing extra: no charge, record or dead letter without an order": extra,
        "put to the test: workers were killed, the gateway failed": tested,
    }


def report(all_cases: list[Case], evidence: Evidence, ledger: gateway.Gateway) -> bool:
    console.print(table_of(all_cases, evidence, ledger))
    console.print(
        f"{len(ledger.killed)} workers were killed in the middle of a charge, which takes the whole batch down: "
        "the other orders in it were delivered again too."
    )
    console.print()
    return deployment.verdict(promises(all_cases, evidence, ledger))


def main() -> int:
    unwind_on_signals()
    all_cases = cases()
    messages = [message for case in all_cases for message in case.messages]

    STATE.mkdir(exist_ok=True)
    say(f"sam build, for {architecture()} (the first time, cargo compiles everything)")
    build()

    with ministack("demo") as cloud, gateway.serve(workers_of=cloud.pid) as ledger:
        say(f"sam deploy to MiniStack at {cloud.endpoint}; the payment gateway is at {ledger.url}")
        stack = deploy(cloud, ledger.url)
        for case in all_cases:
            for order, troubles in case.troubles.items():
                ledger.plan(order, *troubles)

        say(
            f"{len(messages)} messages; an order is known by its orderId "
            f"(IdempotencyKey={PARAMETERS['IdempotencyKey']}); "
            f"a killed worker's are back after 12 s, what may pass after a back-off of up to 10 s, 20 s, ..., "
            f"what fails for good at once, and dead after {PARAMETERS['MaxReceiveCount']} deliveries: about a minute"
        )
        watch(drive(cloud, stack, messages), ledger, len(messages))
        console.print()
        return 0 if report(all_cases, gather(cloud, stack), ledger) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, Unavailable) as problem:
        sys.exit(f"make demo: {problem}")

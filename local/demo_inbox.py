"""`make demo-inbox`: deploys examples/place_order.rs to a local cloud, with more orders than stock.

    python local/demo_inbox.py [SEED]     the same orders in the same order, and kills at the same intervals

Workers are killed during the demo. The evidence is independent of the function: the two queues and the
three tables. Only the number of deliveries comes from the log of the function.
"""

import contextlib
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import deployment
import psutil
from cloud import STATE, Cloud, Unavailable, ministack, run, unwind_on_signals
from deployment import Failed, console, say
from rich import box
from rich.table import Table

STACK = "place-orders-demo"
TEMPLATE = "examples/place_order.template.yaml"
FUNCTION_TIMEOUT = "2"  # seconds
# Seconds after which SQS delivers the messages of a killed worker again. The template has more.
VISIBILITY_TIMEOUT = "12"
PRODUCT = "teapot"
STOCK = 100
ORDERS = 300  # of one piece each
TWICE = ORDERS // 3  # sent a second time
KILLS = 20
KILL_EVERY = (0.05, 0.35)  # seconds
# A few at a time, so that workers are busy for some seconds and can be killed.
SENT_AT_A_TIME = 25
SETTLE_WITHIN = 120.0


@dataclass
class Message:
    order: str
    id: str  # given by SQS


def build() -> None:
    # The example as a program of tests/programs, which reuses the dependencies that `make demo` compiled.
    command = ["cargo", "lambda", "build", "--locked", "--release", "--package", "programs", "--bin", "place_order"]
    if run(command, os.environ | {"CARGO_LAMBDA_COMPILER": "cargo"}) != 0:
        raise Failed("the example does not compile")


# ---- kill workers ------------------------------------------------------------------------------


def processor_time(pid: int) -> int:
    """Processor time of a process in nanoseconds, 0 if the process has ended."""
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    return 0


@dataclass
class Killer:
    """Kills workers of MiniStack with SIGKILL at random intervals.

    Every fifth time it chooses a worker that is processing a batch, otherwise any worker.
    """

    cloud: int  # process id: only its descendants are killed
    chance: random.Random
    killed: set[int] = field(default_factory=set)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        done = threading.Event()
        thread = threading.Thread(target=self._kill, args=[done])
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _kill(self, done: threading.Event) -> None:
        while len(self.killed) < KILLS and not done.wait(self.chance.uniform(*KILL_EVERY)):
            in_a_batch = len(self.killed) % 5 == 0
            while not (workers := self._workers(in_a_batch)) and not done.wait(0.01):
                pass
            if workers:
                worker = self.chance.choice(workers)
                with contextlib.suppress(psutil.Error):
                    worker.kill()
                    self.killed.add(worker.pid)

    def _workers(self, in_a_batch: bool) -> list[psutil.Process]:
        try:
            workers = [p for p in psutil.Process(self.cloud).children(recursive=True) if p.name() == "bootstrap"]
        except psutil.Error:
            return []
        if not in_a_batch:
            return workers
        # An idle worker uses no processor time.
        before = [processor_time(worker.pid) for worker in workers]
        time.sleep(0.005)
        return [p for p, used in zip(workers, before, strict=True) if processor_time(p.pid) - used > 100_000]


# ---- send and watch ----------------------------------------------------------------------------


def orders(chance: random.Random) -> list[str]:
    """Every order, a third of them twice, in random order."""
    numbers = [f"order-{n}" for n in range(1, ORDERS + 1)]
    sent = numbers + chance.sample(numbers, TWICE)
    chance.shuffle(sent)
    return sent


def body_of(order: str) -> str:
    """The body of an order. Both messages of an order have the same body, and different message ids."""
    return json.dumps({"orderId": order, "customerId": f"customer-of-{order}", "products": {PRODUCT: 1}})


def in_stock(cloud: Cloud, outputs: dict[str, str]) -> int:
    key = {"product": {"S": PRODUCT}}
    get = cloud.client("dynamodb").get_item
    return int(get(TableName=outputs["StockTableName"], Key=key, ConsistentRead=True)["Item"]["quantity"]["N"])


def drive(cloud: Cloud, outputs: dict[str, str], orders: list[str], killer: Killer) -> list[Message]:
    """Sends the orders, and prints the progress until the queue is empty."""
    start = time.monotonic()
    messages: list[Message] = []
    shown, quiet = None, 0
    while quiet < 3 and (elapsed := time.monotonic() - start) < SETTLE_WITHIN:
        wave = orders[len(messages) : len(messages) + SENT_AT_A_TIME]
        ids = deployment.send(cloud, outputs["QueueUrl"], [body_of(order) for order in wave])
        messages += map(Message, wave, ids)
        waiting, in_flight, dead = deployment.depths(cloud, outputs["QueueUrl"], outputs["DeadLetterQueueUrl"])
        gone = len(messages) - waiting - in_flight - dead
        now = (len(messages), waiting, in_flight, gone, dead, in_stock(cloud, outputs), len(killer.killed))
        if now != shown:
            shown = now
            console.print(
                "{:5.1f} s  sent {:3}  visible {:3}  in flight {:3}  done {:3}  dead {}  |  "
                "stock {:3}  workers killed {}".format(elapsed, *now)
            )
        quiet = 0 if wave or waiting or in_flight else quiet + 1
        time.sleep(0.4)
    return messages


# ---- the evidence ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    messages: list[Message]
    left: int  # messages still in the queue
    dead: Counter[str]  # message ids in the dead-letter queue
    stock: int
    placed: Counter[str]  # the orders table: pieces by order
    records: dict[str, deployment.Json]  # by order
    log: list[deployment.Json]  # the outcome of each delivery, unless its worker was killed first

    def orders(self, status: str) -> set[str]:
        """The orders whose record is COMPLETED with this status in its result."""
        completed = {o: r for o, r in self.records.items() if r["status"]["S"] == "COMPLETED"}
        return {o for o, r in completed.items() if json.loads(r["result"]["S"])["status"] == status}


def gather(cloud: Cloud, outputs: dict[str, str], messages: list[Message]) -> Evidence:
    orders = deployment.items(cloud, outputs["OrdersTableName"])
    records = deployment.items(cloud, outputs["IdempotencyTableName"])
    return Evidence(
        messages=messages,
        left=sum(deployment.depth(cloud, outputs["QueueUrl"])),
        dead=deployment.dead_letters(cloud, outputs["DeadLetterQueueUrl"]),
        stock=in_stock(cloud, outputs),
        placed=Counter({o["orderId"]["S"]: int(o["products"]["M"][PRODUCT]["N"]) for o in orders}),
        # The key of a record is "orders#" and the order's id.
        records={r["id"]["S"].removeprefix("orders#"): r for r in records},
        log=[line for line in deployment.log_lines(cloud, outputs["LogGroupName"]) if "outcome" in line],
    )


# ---- the report --------------------------------------------------------------------------------


def table_of(evidence: Evidence, deliveries: Counter[str]) -> Table:
    table = Table(box=box.ROUNDED, title="Outcome of the orders", title_justify="left")
    table.add_column()
    for column in ("orders", "messages", "deliveries", "placed", "declined", "pieces sold"):
        table.add_column(column, justify="right")
    sent = Counter(m.order for m in evidence.messages)
    placed, declined = evidence.orders("placed"), evidence.orders("declined")
    for title, times in (("sent once", 1), ("sent twice", 2)):
        orders = {order for order, n in sent.items() if n == times}
        messages = [m for m in evidence.messages if m.order in orders]
        table.add_row(
            title,
            str(len(orders)),
            str(len(messages)),
            str(sum(deliveries[m.id] for m in messages)),
            str(len(orders & placed)),
            str(len(orders & declined)),
            str(sum(evidence.placed[order] for order in orders)),
        )
    return table


@dataclass(frozen=True)
class Again:
    """Number of messages with more than one delivery, by the commit that the last delivery found."""

    nothing: int  # no commit: the worker was killed before the commit
    own: int  # the commit of the same message: its worker was killed before the response
    other: int  # the commit of the other message of the order

    @staticmethod
    def of(evidence: Evidence, deliveries: Counter[str]) -> "Again":
        committed = {record["message_id"]["S"] for record in evidence.records.values()}
        log = sorted(evidence.log, key=lambda line: line["receive_count"])
        last = {line["message_id"]: line["outcome"] for line in log}
        found = Counter((last[m.id], m.id in committed) for m in evidence.messages if deliveries[m.id] > 1)
        return Again(found["done", True], found["duplicate", True], found["duplicate", False])

    @property
    def all(self) -> int:
        return self.nothing + self.own + self.other


def promises(evidence: Evidence, deliveries: Counter[str], killer: Killer) -> dict[str, list[str]]:
    """Each promise, with its violations."""
    sent = {m.order for m in evidence.messages}
    placed, declined = evidence.orders("placed"), evidence.orders("declined")
    stock = [f"{evidence.stock} pieces of {STOCK} are left"] * (evidence.stock != 0)
    stock += [f"{len(placed)} orders were placed, not {STOCK}"] * (len(placed) != STOCK)
    stock += [f"{len(declined)} orders were declined, not {ORDERS - STOCK}"] * (len(declined) != ORDERS - STOCK)
    table = [f"{order}: recorded as placed, but not in the orders table" for order in placed - set(evidence.placed)]
    table += [f"{order}: in the orders table, but not recorded as placed" for order in set(evidence.placed) - placed]
    table += [f"{order}: {n} pieces, not 1" for order, n in evidence.placed.items() if n != 1]
    lost = [f"{evidence.left} messages are still in the queue"] * bool(evidence.left)
    lost += [f"message {id} is in the dead-letter queue" for id in evidence.dead]
    record = [f"{order}: has no record as placed or declined" for order in sorted(sent - placed - declined)]
    record += [f"{order}: has a record, but was not sent" for order in sorted(set(evidence.records) - sent)]
    tested = [f"{len(killer.killed)} workers were killed, not {KILLS}"] * (len(killer.killed) != KILLS)
    again = Again.of(evidence, deliveries)
    tested += ["no message was delivered again"] * (not again.all)
    return {
        f"nothing is oversold: {STOCK} of {ORDERS} orders placed, {ORDERS - STOCK} declined, the stock is 0": stock,
        "the commit is atomic: the orders table holds the placed orders, each once, and no other": table,
        "every result is recorded: each order has one COMPLETED record, placed or declined": record,
        "no message is lost: the queue and the dead-letter queue are empty": lost,
        "failures occurred: workers were killed, and messages delivered again": tested,
    }


def report(evidence: Evidence, killer: Killer) -> bool:
    deliveries = deployment.deliveries(evidence.log)
    console.print(table_of(evidence, deliveries))
    again = Again.of(evidence, deliveries)
    console.print(
        f"{len(killer.killed)} workers were killed, and {again.all} messages delivered again. {again.nothing} of these "
        f"found no commit: the worker was killed before it. {again.own} found the commit of their first delivery: the "
        f"worker was killed before its response. {again.other} found the commit of the other message of the order."
    )
    console.print(
        "Out of stock is a result, so a declined order is acknowledged. An invalid order, and a message that fails "
        "for half a day, would move to the dead-letter queue."
    )
    console.print()
    return deployment.verdict(promises(evidence, deliveries, killer))


def main() -> int:
    unwind_on_signals()
    match sys.argv[1:]:
        case []:
            seed = random.SystemRandom().randrange(1_000_000)
        case [number] if number.isdecimal():
            seed = int(number)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    chance = random.Random(seed)

    STATE.mkdir(exist_ok=True)
    say("cargo lambda build of place_order (the first build compiles every dependency)")
    build()

    with ministack("demo-inbox") as cloud:
        say(f"sam deploy of {TEMPLATE} to MiniStack at {cloud.endpoint}")
        outputs = deployment.deploy(
            cloud,
            STACK,
            *("--template-file", TEMPLATE, "--capabilities", "CAPABILITY_IAM", "--resolve-s3"),
            FunctionTimeout=FUNCTION_TIMEOUT,
        )
        timeout = {"VisibilityTimeout": VISIBILITY_TIMEOUT}
        cloud.client("sqs").set_queue_attributes(QueueUrl=outputs["QueueUrl"], Attributes=timeout)
        item = {"product": {"S": PRODUCT}, "quantity": {"N": str(STOCK)}}
        cloud.client("dynamodb").put_item(TableName=outputs["StockTableName"], Item=item)
        say(
            f"a stock of {STOCK}, and {ORDERS} orders of one piece, {TWICE} of them sent twice. {KILLS} workers are "
            f"killed at random (SEED={seed} repeats orders and intervals). SQS delivers their messages again after 12 s"
        )
        killer = Killer(cloud.pid, chance)
        sent = orders(chance)
        with killer.at_work():
            messages = drive(cloud, outputs, sent, killer)
        console.print()
        return 0 if report(gather(cloud, outputs, messages), killer) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, Unavailable) as problem:
        sys.exit(f"make demo-inbox: {problem}")

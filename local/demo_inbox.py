"""`make demo-inbox`: examples/place_order.rs on a local cloud, more orders than stock, workers killed.

    python local/demo_inbox.py [SEED]     the same orders in the same order, and kills at the same intervals

What is checked is read from where the function has no say: the two queues, and what is in the three
tables. Only how often a message was delivered comes from the function's own log.
"""

import contextlib
import json
import os
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich import box
from rich.table import Table

import deployment
from cloud import ROOT, STATE, Cloud, Unavailable, ministack, run, unwind_on_signals
from deployment import Failed, architecture, console, say

STACK = "place-orders-demo"
TEMPLATE = "examples/place_order.template.yaml"
# 2 s of function are 12 s of invisibility: the messages of a killed worker are back soon.
FUNCTION_TIMEOUT = "2"
PRODUCT = "teapot"
STOCK = 100
ORDERS = 300  # of one piece each
TWICE = ORDERS // 3  # sent a second time
# Few enough that no message is received eight times, after which it would be dead.
KILLS = 20
KILL_EVERY = (0.05, 0.35)  # seconds
# A few at a time, so that there is something to watch, and to kill, for some seconds.
SENT_AT_A_TIME = 25
SETTLE_WITHIN = 120.0


@dataclass
class Message:
    order: str
    id: str  # given by SQS


def build() -> None:
    # As `cargo lambda build --release --example place_order` does, with what `make test` has compiled.
    command = ["cargo", "build", "--locked", "--release", "--example", "place_order"]
    if run(command, os.environ) != 0:
        raise Failed("the example does not compile")
    target = ROOT / "target" / "lambda" / "place_order"
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "target" / "release" / "examples" / "place_order", target / "bootstrap")


# ---- trouble -----------------------------------------------------------------------------------


def processor_time(pid: int) -> int:
    """Nanoseconds that the threads of a process have run, 0 for one that is gone."""
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    return 0


@dataclass
class Killer:
    """Ends a worker of MiniStack's with kill -9, now and then: each fifth time one that is in the middle
    of a batch, otherwise any."""

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
        # An idle one waits for a batch, and does not use the processor.
        before = [processor_time(worker.pid) for worker in workers]
        time.sleep(0.005)
        return [p for p, used in zip(workers, before, strict=True) if processor_time(p.pid) - used > 100_000]


# ---- send and watch ----------------------------------------------------------------------------


def orders(chance: random.Random) -> list[str]:
    """Every order, a third of them twice, in any order."""
    numbers = [f"order-{n}" for n in range(1, ORDERS + 1)]
    sent = numbers + chance.sample(numbers, TWICE)
    chance.shuffle(sent)
    return sent


def body_of(order: str) -> str:
    """The same body each time: what differs is the id that SQS gives the message."""
    return json.dumps({"orderId": order, "customerId": f"customer-of-{order}", "products": {PRODUCT: 1}})


def in_stock(cloud: Cloud, outputs: dict[str, str]) -> int:
    key = {"product": {"S": PRODUCT}}
    get = cloud.client("dynamodb").get_item
    return int(get(TableName=outputs["StockTableName"], Key=key, ConsistentRead=True)["Item"]["quantity"]["N"])


def drive(cloud: Cloud, outputs: dict[str, str], orders: list[str], killer: Killer) -> list[Message]:
    """Sends them, and shows how it goes until nothing is left in the queue."""
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
                "{:5.1f} s  sent {:3}  in the queue {:3}  in flight or hidden {:3}  done {:3}  dead {}  |  "
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
    records: dict[str, dict]  # by order
    log: list[dict]  # what became of each delivery, but for those whose worker was killed first

    def orders(self, status: str) -> set[str]:
        """The orders whose record is COMPLETED with this answer."""
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
    table = Table(box=box.ROUNDED, title="What became of them", title_justify="left")
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
    """The messages that were delivered again, by what the last delivery found."""

    nothing: int  # the worker was killed before the commit
    own: int  # the message's own commit: its worker was killed before it could answer
    other: int  # what the order's other message had committed

    @staticmethod
    def of(evidence: Evidence, deliveries: Counter[str]) -> "Again":
        committed = {record["message_id"]["S"] for record in evidence.records.values()}
        last = {line["message_id"]: line["outcome"] for line in sorted(evidence.log, key=lambda l: l["receive_count"])}
        found = Counter((last[m.id], m.id in committed) for m in evidence.messages if deliveries[m.id] > 1)
        return Again(found["done", True], found["duplicate", True], found["duplicate", False])

    @property
    def all(self) -> int:
        return self.nothing + self.own + self.other


def promises(evidence: Evidence, deliveries: Counter[str], killer: Killer) -> dict[str, list[str]]:
    """Each promise, with what broke it."""
    sent = {m.order for m in evidence.messages}
    placed, declined = evidence.orders("placed"), evidence.orders("declined")
    stock = [f"{evidence.stock} pieces are left of {STOCK}"] * (evidence.stock != 0)
    stock += [f"{len(placed)} orders were placed, not {STOCK}"] * (len(placed) != STOCK)
    stock += [f"{len(declined)} orders were declined, not {ORDERS - STOCK}"] * (len(declined) != ORDERS - STOCK)
    table = [f"{order}: placed on record, and not in the orders table" for order in placed - set(evidence.placed)]
    table += [f"{order}: in the orders table, and not placed on record" for order in set(evidence.placed) - placed]
    table += [f"{order}: {n} pieces, not 1" for order, n in evidence.placed.items() if n != 1]
    lost = [f"{evidence.left} messages are still in the queue"] * bool(evidence.left)
    lost += [f"message {id} is in the dead-letter queue" for id in evidence.dead]
    record = [f"{order}: its record does not say placed or declined" for order in sorted(sent - placed - declined)]
    record += [f"{order}: on record, and never sent" for order in sorted(set(evidence.records) - sent)]
    tested = [f"{len(killer.killed)} workers were killed, not {KILLS}"] * (len(killer.killed) != KILLS)
    again = Again.of(evidence, deliveries)
    tested += ["no message was delivered again"] * (not again.all)
    return {
        f"nothing oversold: {STOCK} of {ORDERS} orders placed, {ORDERS - STOCK} declined, the stock is 0": stock,
        "all or nothing: the orders table holds the placed orders, each once, and no other": table,
        "every answer on record: each order has one COMPLETED record, placed or declined": record,
        "nothing lost: the queue is empty, and so is the dead-letter queue": lost,
        "put to the test: workers were killed, and messages delivered again": tested,
    }


def report(evidence: Evidence, killer: Killer) -> bool:
    deliveries = deployment.deliveries(evidence.log)
    console.print(table_of(evidence, deliveries))
    again = Again.of(evidence, deliveries)
    console.print(
        f"{len(killer.killed)} workers were killed, and {again.all} messages delivered again. {again.nothing} of them "
        f"found nothing done: their worker died before the commit. {again.own} found their own commit: it died after "
        f"that, before it could say so. {again.other} found the commit of the same order's other message."
    )
    console.print(
        "Out of stock is an answer, so a declined order is acknowledged. In the dead-letter queue would be what is "
        "not a valid order, or was received eight times in vain."
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
    say("cargo build --release --example place_order (the first time, it compiles everything)")
    build()

    with ministack("demo-inbox") as cloud:
        say(f"sam deploy of {TEMPLATE} to MiniStack at {cloud.endpoint}")
        outputs = deployment.deploy(
            cloud,
            STACK,
            *("--template-file", TEMPLATE, "--capabilities", "CAPABILITY_IAM", "--resolve-s3"),
            FunctionTimeout=FUNCTION_TIMEOUT,
        )
        item = {"product": {"S": PRODUCT}, "quantity": {"N": str(STOCK)}}
        cloud.client("dynamodb").put_item(TableName=outputs["StockTableName"], Item=item)
        say(
            f"a stock of {STOCK}, and {ORDERS} orders of one piece, {TWICE} of them sent twice; {KILLS} workers are "
            f"killed at random (SEED={seed} for the same orders and pauses), and their messages are back after 12 s"
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

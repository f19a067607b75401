"""`make test-inbox`: examples/place_order.rs sells 100 pieces to 300 orders on a local cloud, while workers are killed.

    python tools/inbox_test.py [SEED]     the same orders in the same order, and kills at the same intervals

The evidence is independent of the function: two queues and three tables. Only the number of deliveries comes from the
function's log.
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
from deployment import Failed, say

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
SENT_AT_MOST = 10 * ORDERS  # messages
# Seconds without any progress after which the test counts what there is. All waits for SQS are far shorter.
STUCK_AFTER = 180.0


def build() -> None:
    # The example as a program of tests/programs, which reuses the dependencies that `make demo` compiled.
    command = ["cargo", "lambda", "build", "--locked", "--release", "--package", "programs", "--bin", "place_order"]
    if run(command, os.environ | {"CARGO_LAMBDA_COMPILER": "cargo"}) != 0:
        raise Failed("the example does not compile")


def processor_time(pid: int) -> int:
    """Processor time of a process in nanoseconds, 0 if the process has ended."""
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    return 0


@dataclass
class Killer:
    """Kills workers of MiniStack with SIGKILL at random intervals.

    Every fifth time it chooses a worker that is processing a batch, otherwise any worker. It ends after `KILLS`, once
    one of them met a batch: how many do depends on the speed of the machine.
    """

    cloud: int  # process id: only its descendants are killed
    chance: random.Random
    killed: set[int] = field(default_factory=set)
    met_a_batch: bool = False

    @property
    def has_ended(self) -> bool:
        return len(self.killed) >= KILLS and self.met_a_batch

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
        while not self.has_ended and not done.wait(self.chance.uniform(*KILL_EVERY)):
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


def orders(chance: random.Random) -> list[str]:
    """Every order, a third of them twice, in random order."""
    numbers = [f"order-{n}" for n in range(1, ORDERS + 1)]
    sent = numbers + chance.sample(numbers, TWICE)
    chance.shuffle(sent)
    return sent


def body_of(order: str) -> str:
    """The body of an order. Both messages of an order have the same body, and different message ids."""
    return json.dumps({"orderId": order, "customerId": f"customer-of-{order}", "products": {PRODUCT: 1}})


def drive(cloud: Cloud, outputs: dict[str, str], orders: list[str], killer: Killer) -> None:
    """Sends the orders, and then some of them again, until the killer has ended.

    Returns when the queue stays empty, or when nothing changes for `STUCK_AFTER`.
    """
    queue, sent, quiet, before = outputs["QueueUrl"], 0, 0, None
    changed = time.monotonic()
    while quiet < 3 and time.monotonic() - changed < STUCK_AFTER:
        wave = orders[sent : sent + SENT_AT_A_TIME]
        if not wave and not killer.has_ended and sent < SENT_AT_MOST:
            killer.met_a_batch = redelivered(cloud, outputs)
            wave = orders[:SENT_AT_A_TIME]
        deployment.send(cloud, queue, [body_of(order) for order in wave])
        sent += len(wave)
        depth = deployment.depth(cloud, queue)
        quiet = 0 if wave or any(depth) else quiet + 1
        if (state := (depth, len(killer.killed))) != before:
            before, changed = state, time.monotonic()
        time.sleep(0.4)


def redelivered(cloud: Cloud, outputs: dict[str, str]) -> bool:
    """True if a message was delivered again, as far as the log says."""
    deliveries = deployment.deliveries(deployment.log_lines(cloud, outputs["LogGroupName"]))
    return max(deliveries.values(), default=0) > 1


def promises(cloud: Cloud, outputs: dict[str, str], sent: set[str], killed: int) -> dict[str, list[str]]:
    """Each promise, with its violations."""
    (stock,) = deployment.items(cloud, outputs["StockTableName"])
    rows = deployment.items(cloud, outputs["OrdersTableName"])
    pieces = Counter({row["orderId"]["S"]: int(row["products"]["M"][PRODUCT]["N"]) for row in rows})
    # The key of a record is "orders#" and the order's id.
    records = {r["id"]["S"].removeprefix("orders#"): r for r in deployment.items(cloud, outputs["TableName"])}
    completed = {order: r for order, r in records.items() if r["status"]["S"] == "COMPLETED"}
    results = {order: json.loads(record["result"]["S"])["status"] for order, record in completed.items()}
    placed, declined = ({o for o, result in results.items() if result == status} for status in ("placed", "declined"))
    left = sum(deployment.depth(cloud, outputs["QueueUrl"]))

    sold = [f"{stock['quantity']['N']} pieces of {STOCK} are left"] * (stock["quantity"]["N"] != "0")
    sold += [f"{len(placed)} orders were placed, not {STOCK}"] * (len(placed) != STOCK)
    sold += [f"{len(declined)} orders were declined, not {ORDERS - STOCK}"] * (len(declined) != ORDERS - STOCK)
    table = [f"{order}: recorded as placed, but not in the orders table" for order in placed - set(pieces)]
    table += [f"{order}: in the orders table, but not recorded as placed" for order in set(pieces) - placed]
    table += [f"{order}: {n} pieces, not 1" for order, n in pieces.items() if n != 1]
    record = [f"{order}: has no record as placed or declined" for order in sorted(sent - placed - declined)]
    record += [f"{order}: has a record, but was not sent" for order in sorted(set(records) - sent)]
    lost = [f"{left} messages are still in the queue"] * bool(left)
    dead = deployment.dead_letters(cloud, outputs["DeadLetterQueueUrl"])
    lost += [f"message {id} is in the dead-letter queue" for id in dead]
    tested = [f"{killed} workers were killed, not {KILLS}"] * (killed < KILLS)
    tested += ["no message was delivered again"] * (not redelivered(cloud, outputs))
    return {
        f"nothing is oversold: {STOCK} of {ORDERS} orders placed, {ORDERS - STOCK} declined, the stock is 0": sold,
        "the commit is atomic: the orders table holds the placed orders, each once, and no other": table,
        "every result is recorded: each order has one COMPLETED record, placed or declined": record,
        "no message is lost: the queue and the dead-letter queue are empty": lost,
        "failures occurred: workers were killed, and messages delivered again": tested,
    }


def main() -> int:
    unwind_on_signals()
    seed = int(sys.argv[1]) if sys.argv[1:] else random.SystemRandom().randrange(1_000_000)
    chance = random.Random(seed)
    STATE.mkdir(exist_ok=True)
    build()
    with ministack("test-inbox") as cloud:
        options = ("--template-file", TEMPLATE, "--capabilities", "CAPABILITY_IAM", "--resolve-s3")
        outputs = deployment.deploy(cloud, "test-inbox", *options, FunctionTimeout=FUNCTION_TIMEOUT)
        timeout = {"VisibilityTimeout": VISIBILITY_TIMEOUT}
        cloud.client("sqs").set_queue_attributes(QueueUrl=outputs["QueueUrl"], Attributes=timeout)
        item = {"product": {"S": PRODUCT}, "quantity": {"N": str(STOCK)}}
        cloud.client("dynamodb").put_item(TableName=outputs["StockTableName"], Item=item)
        say(f"{ORDERS} orders for {STOCK} pieces, {TWICE} of them sent twice; {KILLS} workers are killed (SEED={seed})")
        killer, sent = Killer(cloud.pid, chance), orders(chance)
        with killer.at_work():
            drive(cloud, outputs, sent, killer)
        return 0 if deployment.verdict(promises(cloud, outputs, set(sent), len(killer.killed))) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, Unavailable) as problem:
        sys.exit(f"make test-inbox: {problem}")

"""The requests and write units of orders, against docs/costs.md."""

import datetime
import functools
import operator
import time
from typing import Any

from verify_aws.check import NotChecked, Seen, check
from verify_aws.checks.messages import SETTLED, fresh, key_of, lines, order, send
from verify_aws.scratch import Scratch

Json = dict[str, Any]

ORDERS = 200
MINUTE = 60


def counted(scratch: Scratch, numbers: list[str], outcome: str) -> tuple[int, int, float]:
    """The messages of the batches in which these orders had this outcome, their requests and their write units."""
    keys = {key_of(scratch, number) for number in numbers}

    def read() -> tuple[int, int, float]:
        found = lines(scratch)
        batches = {
            line["span"]["requestId"] for line in found if line.get("key") in keys and line.get("outcome") == outcome
        }
        of_them = [line for line in found if line.get("span", {}).get("requestId") in batches]
        # A value for each request. More values than a line takes are in further lines.
        times = [line["StoreLatency"] for line in of_them if "StoreLatency" in line]
        requests = sum(len(value) if isinstance(value, list) else 1 for value in times)
        return (
            sum(int(line.get("BatchSize", 0)) for line in of_them),
            requests,
            sum(float(line.get("WriteUnits", 0)) for line in of_them),
        )

    return scratch.eventually(read, lambda found: found[0] >= len(numbers), within=SETTLED)


@check()
def orders_cost_as_the_page_says(scratch: Scratch) -> Seen:
    """Each of 200 new orders takes two requests to DynamoDB, or its parts of two batched writes, and two write units.
    Sent again, each takes one claim, whose condition fails: alone it reports no units, in a batched write one.

    Where:
    docs/costs.md: | new | 2 `UpdateItem` | 2 |
    docs/costs.md: | new | its parts of 2 batched writes | 2 |
    docs/costs.md: | duplicate, conflict, stored failure | 1 `UpdateItem`, condition failed | 1 |
    docs/metrics.md: DynamoDB reports no units for a write whose condition failed
    """
    numbers = [fresh("cost") for _ in range(ORDERS)]
    texts, holds = [], True
    for outcome, each, units in (("completed", 2, (2,)), ("duplicate", 1, (0, 1))):
        send(scratch, [order(number) for number in numbers])
        found = counted(scratch, numbers, outcome)
        texts.append(f"{outcome}: {found[0]} messages, {found[1]} requests, {found[2]:g} units")
        least, most = units[0] * ORDERS, units[-1] * ORDERS
        holds = holds and found[:2] == (ORDERS, each * ORDERS) and least <= found[2] <= most
    return Seen(holds, "; ".join(texts))


def total(scratch: Scratch, asked: Json) -> float:
    """The sum of a metric."""
    answer = scratch.client("cloudwatch").get_metric_statistics(**asked)
    return float(sum(point["Sum"] for point in answer["Datapoints"]))


@check(slow=True, only_aws="emulators have no metrics of tables and queues")
def metrics_of_table_and_queue_count_as_the_page_says(scratch: Scratch) -> Seen:
    """Of 200 new orders that are sent twice, the table's ConsumedWriteCapacityUnits has three units for each, or four:
    a failed claim takes one, and one more in a batched write. The queue's NumberOfMessagesReceived and
    NumberOfMessagesDeleted have two. Takes up to 15 minutes.

    Where:
    docs/costs.md: | duplicate, conflict, stored failure | 1 `UpdateItem`, condition failed | 1 |
    docs/costs.md: | duplicate by a producer: a second message under the key | its part of a batched write;
    docs/metrics.md: `ConsumedWriteCapacityUnits` has them
    """
    # Whole minutes, so that nothing else is in them.
    scratch.rest(MINUTE - time.time() % MINUTE)
    start = datetime.datetime.now(datetime.UTC).replace(second=0, microsecond=0)
    numbers = [fresh("metric") for _ in range(ORDERS)]
    for outcome in ("completed", "duplicate"):
        send(scratch, [order(number) for number in numbers])
        if counted(scratch, numbers, outcome)[0] != ORDERS:
            raise NotChecked(f"the orders were not {outcome}, or other messages were in their batches")
    end = datetime.datetime.now(datetime.UTC).replace(second=0, microsecond=0) + datetime.timedelta(minutes=1)
    table, queue = scratch.outputs["TableName"], scratch.outputs["QueueUrl"].rsplit("/", 1)[-1]
    wanted = {
        ("AWS/DynamoDB", "ConsumedWriteCapacityUnits", "TableName", table): (3 * ORDERS, 4 * ORDERS),
        ("AWS/SQS", "NumberOfMessagesReceived", "QueueName", queue): (2 * ORDERS, 2 * ORDERS),
        ("AWS/SQS", "NumberOfMessagesDeleted", "QueueName", queue): (2 * ORDERS, 2 * ORDERS),
    }
    texts, holds = [], True
    for (namespace, metric, dimension, name), (least, most) in wanted.items():
        asked = {
            "Namespace": namespace,
            "MetricName": metric,
            "Dimensions": [{"Name": dimension, "Value": name}],
            "StartTime": start,
            "EndTime": end,
            "Period": MINUTE,
            "Statistics": ["Sum"],
        }
        found = scratch.eventually(
            functools.partial(total, scratch, asked), functools.partial(operator.le, least), within=300, pause=15
        )
        texts.append(f"{metric} {found:g}")
        holds = holds and least <= found <= most
    return Seen(holds, f"{ORDERS} orders, twice: {', '.join(texts)}")

"""Answers to `checks/costs.py`."""

from verify_aws.answers.messages import line, logged, sent
from verify_aws.answers.stub import Given, ok, pair
from verify_aws.checks.costs import ORDERS


def batch(prefix: str, outcome: str, each: int, units: float) -> list[Given]:
    """One batch of all orders. Random names are alike, so they have one line."""
    invocation = {"span": {"requestId": f"r-{outcome}"}}
    counts = {"BatchSize": ORDERS, "WriteUnits": units * ORDERS, "StoreLatency": [1.0] * ORDERS}
    more = {"StoreLatency": [1.0] * (each - 1) * ORDERS}
    log = logged(line(prefix, outcome) | invocation, counts | invocation, more | invocation)
    return [*[sent] * (ORDERS // 10), log]


pair(
    "orders_cost_as_the_page_says",
    holds=[*batch("cost", "completed", 2, 2), *batch("cost", "duplicate", 1, 0)],
    differs=[*batch("cost", "completed", 3, 3), *batch("cost", "duplicate", 1, 0)],
)


def metrics(units: float) -> list[Given]:
    sums = (units, 2 * ORDERS, 2 * ORDERS)
    return [
        *batch("metric", "completed", 2, 2),
        *batch("metric", "duplicate", 1, 0),
        *(ok("cloudwatch.get_metric_statistics", Datapoints=[{"Sum": float(value)}]) for value in sums),
    ]


pair(
    "metrics_of_table_and_queue_count_as_the_page_says",
    holds=metrics(3 * ORDERS),
    differs=metrics(2 * ORDERS),
)

"""The tables of docs/sizing.md and the costs in docs/costs.md, computed from formulas.

    python local/sizing.py            write the tables into the pages
    python local/sizing.py --check    exit with 1 if a page has other tables: a part of `make lint`

Defaults come from template.yaml, limits and prices of AWS from docs/aws-numbers.md, write units from docs/costs.md,
the CPU time from docs/speed.md. So the pages cannot differ from them.
"""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal

import yaml
from cloud import ROOT, Template

PAGE = ROOT / "docs" / "sizing.md"
COSTS = ROOT / "docs" / "costs.md"


def costs(pattern: str, page: str = "costs.md") -> float:
    """A number of a page of docs/."""
    found = re.search(pattern, (ROOT / "docs" / page).read_text(), re.MULTILINE)
    if not found:
        raise SystemExit(f"local/sizing.py: docs/{page} has no {pattern}")
    return float(found[1].replace(",", ""))


def measured(table: str, row: str, candidate: str) -> float:
    """A figure of the page of `make bench`."""
    header, *rows = (ROOT / "docs/speed.md").read_text().partition(f"| {table} |")[2].splitlines()
    column = [name.strip() for name in header.split("|")].index(candidate)
    line = next(line for line in rows if line.startswith(f"| {row} |"))
    return float(line.split("|")[column + 2].split()[0].replace(",", ""))


def aws(name: str) -> float:
    """The first number in a row of docs/aws-numbers.md."""
    return costs(rf"^\| {re.escape(name)} \| [^|\d]*([\d.,]*\d)", "aws-numbers.md")


# us-east-1, in dollars.
LAMBDA_REQUESTS = aws("million requests of Lambda")
LAMBDA_GB_SECOND = {name: aws(f"GB-second on {name}") for name in ("arm64", "x86_64")}
SQS_REQUESTS = aws("million requests of a standard queue")
WRITE_UNITS, READ_UNITS = aws("million write units on demand"), aws("million read units on demand")
WRITE_HOUR, READ_HOUR = aws("hour of a provisioned write unit"), aws("hour of a provisioned read unit")
TABLE_GB = aws("GB and month in a table") + aws("GB and month of point-in-time recovery")
LOG_GB = aws("GB of logs") + aws("GB and month of stored logs")
PUTS = aws("million `PUT`s of S3")
ALARM = aws("alarm and month, for each metric of it")
MONTH = 30.0  # days

# Bytes of log lines. local/runbook.py compares the first two with real lines.
MESSAGE_LINE = 400
BATCH_LINE, BATCH_LINE_PER_MESSAGE = 750, 45
LINES_OF_LAMBDA = 600  # platform.start and platform.report of an invocation

# Limits of AWS.
VCPU_MEMORY = aws("memory of one vCPU")  # MB
IN_FLIGHT = int(aws("messages in flight of a queue"))
PARTITION_WRITES = int(aws("write units of a partition"))
NEW_TABLE_WRITES = int(aws("write units of a new table on demand"))
TABLE_QUOTA = int(aws("write units of a table"))
START = int(aws("batches at first"))
GROWTH = int(aws("growth of a mapping"))  # concurrent invocations a minute
PROVISIONED_GROWTH = int(aws("growth with provisioned pollers"))
MOST = int(aws("most invocations of a mapping"))
MOST_POLLED = int(aws("most invocations with provisioned pollers"))
INVOKES = int(aws("provisioned poller"))  # concurrent invocations
POLLS, RECEIVED = int(aws("polls of a provisioned poller")), int(aws("messages of a request"))
POLLED = POLLS * RECEIVED / INVOKES  # messages a second and invocation of a provisioned poller
QUOTA = int(aws("concurrent executions of an account and Region"))

TABLE_SECONDS = 0.005  # latency of one write, as assumed in the tables


def defaults() -> dict[str, str]:
    template = yaml.load((ROOT / "template.yaml").read_text(), Loader=Template)
    values = {name: str(p["Default"]) for name, p in template["Parameters"].items() if "Default" in p}
    row = template["Mappings"]["OfTimeout"][values["FunctionTimeout"]]
    return values | {"MaxReceiveCount": str(row["MaxReceiveCount"]), "BackoffCap": row["BackoffCap"]}


@dataclass(frozen=True)
class Load:
    """A consumer and its messages."""

    batch: int
    at_a_time: int  # messages of a batch
    memory: int  # MB
    invocations: int  # concurrent
    architecture: str
    handler: float  # seconds
    redelivered: float = 0.0  # failed receives of a message, on average

    @property
    def waiting(self) -> float:
        return math.ceil(self.batch / self.at_a_time) * (self.handler + 2 * TABLE_SECONDS)

    @property
    def computing(self) -> float:
        cpu = measured("CPU per 1000 messages, ms", "batch of 10, 0 ms", "consumer") / 1e6
        return self.batch * cpu / min(1.0, self.memory / VCPU_MEMORY)

    @property
    def seconds(self) -> float:
        """Time of a batch."""
        return max(self.waiting, self.computing)

    @property
    def per_second(self) -> float:
        return self.invocations * self.batch / self.seconds

    @property
    def writes(self) -> float:
        """Write units a second."""
        return self.per_second * costs(r"\| new \| 2 `UpdateItem` \| (\d+) \|")

    def dollars(self) -> dict[str, float]:
        """Cost of a million messages."""
        receives = 1 + self.redelivered
        invocations = receives / self.batch
        gb_seconds = invocations * self.seconds * self.memory / 1024
        # SQS takes ten messages in a request. Sending is a request each.
        sqs = 1 + receives / min(self.batch, 10) + 1 / min(self.batch, 10) + self.redelivered / min(self.batch, 10)
        new = costs(r"\| new \| 2 `UpdateItem` \| (\d+) \|")
        # The second receive finds a record, and so does every later one.
        again = costs(r"\| retried after a failure \| 2 `UpdateItem` \| (\d+) \|")
        units = new + again * self.redelivered
        batch_lines = BATCH_LINE + BATCH_LINE_PER_MESSAGE * self.batch + LINES_OF_LAMBDA
        log_bytes = receives * MESSAGE_LINE + invocations * batch_lines
        return {
            "Lambda": invocations * LAMBDA_REQUESTS + gb_seconds * 1e6 * LAMBDA_GB_SECOND[self.architecture],
            "SQS": sqs * SQS_REQUESTS,
            "DynamoDB": units * WRITE_UNITS,
            "records": stored(1.0),
            "logs": log_bytes * 1e6 / 1e9 * LOG_GB,
        }


def stored(kilobytes: float) -> float:
    """Cost of a million records of this size until they expire. DynamoDB deletes them somewhat later."""
    days = float(defaults()["IdempotencyRetention"].removesuffix("d"))
    return kilobytes * days / MONTH * TABLE_GB


def handlers(memory: int) -> int:
    """Handlers of a batch with `CONSUMER_CONCURRENCY=auto`, as in crates/sqs-once/src/settings/batches.rs."""
    return min(100, max(10, (memory - 64) // 4))


def shipped(handler: float = 0.2) -> Load:
    """The template's defaults."""
    value = defaults()
    memory, concurrency = int(value["MemorySize"]), value["ConsumerConcurrency"]
    return Load(
        batch=int(value["BatchSize"]),
        at_a_time=handlers(memory) if concurrency == "auto" else int(concurrency),
        memory=memory,
        invocations=int(value["MaximumConcurrency"]),
        architecture=value["Architecture"],
        handler=handler,
    )


# ---- the tables --------------------------------------------------------------------------------


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows])


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def number(value: float) -> str:
    """Three significant digits."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 10 else f"{value:.2g}"


def batches() -> str:
    rows = []
    for handler in (0.05, 0.2, 1.0):
        for batch, at_a_time in ((1, 10), (10, 10), (100, 10), (100, handlers(256)), (1000, handlers(256))):
            load = replace(shipped(handler), batch=batch, at_a_time=at_a_time)
            timeout = load.seconds / 0.8
            rows.append(
                [
                    *(duration(handler), str(batch), str(at_a_time), duration(load.waiting), duration(load.computing)),
                    *(number(load.per_second / load.invocations), f"{math.ceil(timeout)} s"),
                ]
            )
    header = ["handler", "`BatchSize`", "`ConsumerConcurrency`", "waiting", "CPU"]
    return table([*header, "messages a second per invocation", "timeout at least"], rows)


def throughput(invocations: int, provisioned: bool) -> float:
    """Messages a second. A provisioned poller receives ten times a second, ten messages at most."""
    per_second = replace(shipped(), invocations=invocations).per_second
    return min(per_second, invocations * POLLED) if provisioned else per_second


def busy(invocations: int, provisioned: bool) -> float:
    """Invocations that run at a time."""
    return throughput(invocations, provisioned) * shipped().seconds / shipped().batch


def minutes(invocations: int, provisioned: bool) -> float:
    """Time until so many run."""
    return max(0.0, (invocations - START) / (PROVISIONED_GROWTH if provisioned else GROWTH))


def pollers() -> str:
    """Provisioned pollers of the most invocations that AWS names."""
    return f"{MOST_POLLED // INVOKES:,}"


def scale() -> str:
    rows = []
    load = shipped()
    for invocations in (1, 10, 100, 1_000, MOST, MOST_POLLED):
        provisioned = invocations > MOST
        per_second, running = throughput(invocations, provisioned), busy(invocations, provisioned)
        writes = per_second * load.writes / load.per_second
        rows.append(
            [
                f"{invocations:,}" + f" ({pollers()} pollers; {number(running)} run)" * provisioned,
                number(per_second),
                number(writes),
                f"{math.ceil(writes / PARTITION_WRITES):,}",
                number(running * load.batch),
                number(running * min(load.batch, load.at_a_time)),
                f"{minutes(invocations, provisioned):.1f}",
            ]
        )
    header = ["invocations", "messages a second", "write units a second", "partitions at least", "in flight"]
    return table([*header, "calls at a time", "minutes to get there"], rows)


def cost() -> str:
    rows = []
    for batch, redelivered in ((1, 0.0), (10, 0.0), (10, 0.1), (10, 1.0), (100, 0.0)):
        load = replace(shipped(), batch=batch, at_a_time=max(10, batch), redelivered=redelivered)
        dollars = load.dollars()
        parts = [price(part) for part in (*dollars.values(), sum(dollars.values()))]
        rows.append([str(batch), f"{redelivered:.0%}", *parts])
    return table(["`BatchSize`", "failed receives", *shipped().dollars(), "together"], rows)


def limits() -> str:
    load = shipped()
    writes = load.writes / load.invocations
    rows = [
        ["a new table on demand", f"{NEW_TABLE_WRITES:,} write units a second", number(NEW_TABLE_WRITES / writes)],
        ["default quota of a table", f"{TABLE_QUOTA:,} write units a second", number(TABLE_QUOTA / writes)],
        ["default quota of an account and Region", f"{QUOTA:,} concurrent executions", number(QUOTA)],
        ["a mapping without provisioned pollers", f"{MOST:,} concurrent invocations", number(MOST)],
        ["messages in flight in a queue", f"about {IN_FLIGHT:,}", number(IN_FLIGHT / load.batch)],
        [
            f"a mapping with {pollers()} provisioned pollers",
            f"{MOST_POLLED:,} concurrent invocations",
            number(MOST_POLLED),
        ],
    ]
    return table(["limit", "value", "reached with so many invocations"], rows)


def seconds_of(text: str) -> float:
    found = re.fullmatch(r"(\d+)(ms|s|m|h)", text)
    if not found:
        raise SystemExit(f"local/sizing.py: {text} is no duration")
    return int(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[found[2]]


def back_off_seconds() -> float:
    """Sum of the back-offs of a message that always fails, on average."""
    value = defaults()
    base, cap = seconds_of(value["ConsumerBackoffBase"]), seconds_of(value["BackoffCap"])
    longest = [min(base * 2.0**n, cap) for n in range(int(value["MaxReceiveCount"]) - 1)]
    # Half of a back-off is fixed, half is jitter.
    return 0.75 * sum(longest)


def outage() -> str:
    value, waits = defaults(), back_off_seconds()
    return (
        f"With the template's {value['MaxReceiveCount']} receives and its back-off, a message that always fails waits\n"
        f"{waits / 3600:.0f} hours on average, until it is a dead letter. If the called system is down for 12 hours,\n"
        f"{IN_FLIGHT / (12 * 3600):.1f} messages a second reach the limit."
    )


def fixed() -> str:
    template = yaml.load((ROOT / "template.yaml").read_text(), Loader=Template)
    resources = template["Resources"].values()
    alarms = [r["Properties"] for r in resources if r["Type"] == "AWS::CloudWatch::Alarm"]
    metrics = sum(max(1, sum("MetricStat" in query for query in alarm.get("Metrics", []))) for alarm in alarms)
    return (
        f"The {len(alarms)} [alarms](template.md#alarms) of the template watch {metrics} metrics, "
        f"which costs {price(metrics * ALARM)} a month."
    )


def price(dollars: float) -> str:
    """Halves of a cent are rounded up."""
    return f"${Decimal(str(round(dollars, 6))).quantize(Decimal('0.01'), ROUND_HALF_UP)}"


def large_outputs() -> str:
    """Costs of a million new messages with a large output, in the claim mode."""
    rows = []
    small = costs(r"\| new \| 2 `UpdateItem` \| (\d+) \|")
    for kilobytes in (64, 200):
        # The record has up to 1 KB more than the output.
        inline = (small + kilobytes) * WRITE_UNITS
        in_s3 = small * WRITE_UNITS + PUTS
        rows.append([f"{kilobytes} KB", price(inline), price(stored(1.0 + kilobytes)), price(in_s3)])
    return table(["output", "in the record: writes", "in the record: storage", "in S3: writes and `PUT`s"], rows)


def provisioned() -> str:
    """The break-even of provisioned capacity with auto-scaling, for new messages in the claim mode."""
    resources = yaml.load((ROOT / "template.yaml").read_text(), Loader=Template)["Resources"]
    least = int(resources["TableWriteCapacity"]["Properties"]["MinCapacity"])
    policy = resources["TableWriteScaling"]["Properties"]["TargetTrackingScalingPolicyConfiguration"]
    target = policy["TargetValue"] / 100
    _, throughput, _ = resources["IdempotencyTable"]["Properties"]["ProvisionedThroughput"]["Fn::If"]
    reads = int(throughput["ReadCapacityUnits"])
    units = costs(r"\| new \| 2 `UpdateItem` \| (\d+) \|")
    write = WRITE_UNITS / 1e6  # on demand
    used = WRITE_HOUR / 3600 / write
    # Both sides of the smallest load: an hour of the least capacity, and its messages on demand.
    smallest = (least * WRITE_HOUR + reads * READ_HOUR) / (units * write * 3600)
    steps = math.ceil(math.log(100) / math.log(1 / target))
    rows = []
    for load in (1, 10, 100, 1000):
        # Less than one whole unit is rounded up.
        capacity = max(least, math.ceil(round(load * units / target, 6)))
        month = 24 * MONTH * (capacity * WRITE_HOUR + reads * READ_HOUR)
        on_demand = 24 * MONTH * 3600 * load * units * write
        rows.append([f"{load:,}", f"{capacity:,}", price(month), price(on_demand)])
    header = ["new messages a second", "write capacity", "provisioned, a month", "on demand, a month"]
    shares = [f"{share * 100:.0f} %" for share in (used, target, used / target)]
    million = f"{price(units * 1e6 * used * write / target)} instead of {price(units * WRITE_UNITS)}"
    return (
        f"Provisioned write capacity is cheaper if more than {shares[0]} of it is used on average. Auto-scaling\n"
        f"keeps {shares[1]} in use. The writes of a million new messages then cost {million}. If it never\n"
        f"lowered the capacity for the peak, the mean load would have to be above {shares[2]} of the peak.\n\n"
        f"Under a steady load, the break-even is at {smallest:.1f} new messages a second. With fewer, the\n"
        f"least capacity costs more than the writes on demand:\n\n{table(header, rows)}\n\n"
        f"A throttled table uses all of its capacity, but hardly more. So by its formula, auto-scaling raises the\n"
        f"capacity {1 / target:.1f} times in a step, and needs {steps} steps for a load a hundred times as high."
    )


def cost_column(block: str) -> str:
    """A table of docs/costs.md whose last column follows from its units."""
    header, line, *rows = block.strip().split("\n")
    columns = [cell.strip() for cell in header.strip("|").split("|")]
    result = [header, line]
    for row in rows:
        cells = [cell.strip() for cell in row.strip().removeprefix("|").removesuffix("|").split("|")]
        dollars = 0.0
        for name, unit in (("write units", WRITE_UNITS), ("read units", READ_UNITS)):
            found = re.search(r"[\d.]+", cells[columns.index(name)]) if name in columns else None
            dollars += float(found[0]) * unit if found else 0.0
        cells[-1] = price(dollars) if dollars else ""
        result.append(re.sub(r"  +", " ", "| " + " | ".join(cells) + " |"))
    return "\n".join(result)


TABLES: dict[str, Callable[[], str]] = {
    "batches": batches,
    "scale": scale,
    "outage": outage,
    "limits": limits,
    "cost": cost,
    "fixed": fixed,
}
COST_COLUMN = re.compile(r"(?<=<!-- local/sizing.py: cost column -->\n)(.*?)(?=\n<!-- end -->)", re.DOTALL)


def replaced(page: str, script: str, name: str, text: str) -> str:
    """The page with another table of this name."""
    begin, end = f"<!-- {script}: {name} -->\n", "<!-- end -->"
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise SystemExit(f"{script}: no place for the table {name}")
    return f"{before}{begin}{text}\n{end}{after}"


def computed(page: str) -> str:
    """The page with its tables computed anew."""
    for name, make in TABLES.items():
        page = replaced(page, "local/sizing.py", name, make())
    return page


def main() -> int:
    page, units = PAGE.read_text(), COSTS.read_text()
    new = {PAGE: computed(page)}
    priced = COST_COLUMN.sub(lambda block: cost_column(block[0]), units)
    priced = replaced(priced, "local/sizing.py", "large outputs", large_outputs())
    new[COSTS] = replaced(priced, "local/sizing.py", "provisioned", provisioned())
    if sys.argv[1:] == ["--check"]:
        differing = [path.relative_to(ROOT) for path, text in new.items() if path.read_text() != text]
        for path in differing:
            print(f"{path} differs from its formulas: run `python local/sizing.py`", file=sys.stderr)
        return int(bool(differing))
    for path, text in new.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The tables of docs/sizing.md, computed from its formulas.

    python local/sizing.py            write the tables into the page
    python local/sizing.py --check    exit with 1 if the page has other tables: a part of `make lint`

Defaults come from template.yaml; write units and their price come from docs/costs.md, the CPU time
from docs/speed.md. So the page cannot differ from them.
"""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import yaml
from cloud import ROOT, Template

PAGE = ROOT / "docs" / "sizing.md"

# us-east-1, in dollars. docs/sizing.md names the pages.
LAMBDA_REQUESTS = 0.20  # a million
LAMBDA_GB_SECOND = {"arm64": 0.0000133334, "x86_64": 0.0000166667}
SQS_REQUESTS = 0.40  # a million, standard queue
LOG_GB = 0.50 + 0.03  # ingestion, and a month of storage

# Bytes of log lines. local/runbook.py compares the first two with real lines.
MESSAGE_LINE = 400
BATCH_LINE, BATCH_LINE_PER_MESSAGE = 750, 45
LINES_OF_LAMBDA = 600  # platform.start and platform.report of an invocation

# Limits of AWS.
VCPU_MEMORY = 1769  # MB for one vCPU
IN_FLIGHT = 120_000
PARTITION_WRITES = 1_000
NEW_TABLE_WRITES = 4_000
TABLE_QUOTA = 40_000
START, GROWTH = 5, 300  # concurrent invocations of a mapping: at first, and more each minute
PROVISIONED_GROWTH = 1_000
MOST, MOST_POLLED = 1_250, 20_000
POLLED = 10 * 10 / 10  # messages a second and invocation of a provisioned poller: polls, messages, invocations
QUOTA = 1_000

TABLE_SECONDS = 0.005  # latency of one write, as assumed in the tables


def defaults() -> dict[str, str]:
    template = yaml.load((ROOT / "template.yaml").read_text(), Loader=Template)
    values = {name: str(p["Default"]) for name, p in template["Parameters"].items() if "Default" in p}
    row = template["Mappings"]["OfTimeout"][values["FunctionTimeout"]]
    return values | {"MaxReceiveCount": str(row["MaxReceiveCount"]), "BackoffCap": row["BackoffCap"]}


def costs(pattern: str, page: str = "costs.md") -> float:
    """A number of a page of docs/."""
    found = re.search(pattern, (ROOT / "docs" / page).read_text())
    if not found:
        raise SystemExit(f"local/sizing.py: docs/{page} has no {pattern}")
    return float(found[1])


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
        # The consumer as shipped, in the second column.
        cpu = costs(r"CPU per 1000 messages[^\0]*?\| batch of 10, 0 ms \| [^|]*\| ([\d.]+)", "speed.md") / 1e6
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
        failed = costs(r"\| failed now \|[^|]*\| (\d+) \|")
        units = new + failed * self.redelivered
        batch_lines = BATCH_LINE + BATCH_LINE_PER_MESSAGE * self.batch + LINES_OF_LAMBDA
        log_bytes = receives * MESSAGE_LINE + invocations * batch_lines
        return {
            "Lambda": invocations * LAMBDA_REQUESTS + gb_seconds * 1e6 * LAMBDA_GB_SECOND[self.architecture],
            "SQS": sqs * SQS_REQUESTS,
            "DynamoDB": units * costs(r"\$([\d.]+) per million write request units"),
            "logs": log_bytes * 1e6 / 1e9 * LOG_GB,
        }


def shipped(handler: float = 0.2) -> Load:
    """The template's defaults."""
    value = defaults()
    return Load(
        batch=int(value["BatchSize"]),
        at_a_time=int(value["ConsumerConcurrency"]),
        memory=int(value["MemorySize"]),
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
        for batch, at_a_time in ((1, 10), (10, 10), (100, 10), (100, 100), (1000, 100)):
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


def scale() -> str:
    rows = []
    load = shipped()
    for invocations in (1, 10, 100, 1_000, MOST, MOST_POLLED):
        provisioned = invocations > MOST
        per_second, running = throughput(invocations, provisioned), busy(invocations, provisioned)
        writes = per_second * load.writes / load.per_second
        rows.append(
            [
                f"{invocations:,}" + f" (provisioned; {number(running)} run)" * provisioned,
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
        parts = [f"${part:.2f}" for part in (*dollars.values(), sum(dollars.values()))]
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
        ["a mapping with provisioned pollers", f"{MOST_POLLED:,} concurrent invocations", number(MOST_POLLED)],
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


TABLES: dict[str, Callable[[], str]] = {
    "batches": batches,
    "scale": scale,
    "outage": outage,
    "limits": limits,
    "cost": cost,
}


def replaced(page: str, script: str, name: str, text: str) -> str:
    """The page with another table of this name."""
    begin, end = f"<!-- {script}: {name} -->\n", "<!-- end -->"
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise SystemExit(f"{script}: no place for the table {name} in {PAGE.relative_to(ROOT)}")
    return f"{before}{begin}{text}\n{end}{after}"


def computed(page: str) -> str:
    """The page with its tables computed anew."""
    for name, make in TABLES.items():
        page = replaced(page, "local/sizing.py", name, make())
    return page


def main() -> int:
    page = PAGE.read_text()
    new = computed(page)
    if sys.argv[1:] == ["--check"]:
        if page != new:
            print("docs/sizing.md differs from its formulas: run `python local/sizing.py`", file=sys.stderr)
        return int(page != new)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A simulation of queue, function and table, beside the arithmetic of docs/sizing.md.

    python local/simulation.py              write the table into the page: `make simulate`
    python local/simulation.py --check      exit with 1 if the page has another table
    python local/simulation.py --self-test  each rule by itself: a part of `make lint`

Deterministic: the same seed gives the same table. The page names the rules and the assumptions.
"""

import heapq
import random
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import sizing

SEED = 13
HOUR = 3600.0

# Numbers of docs/aws-numbers.md.
POLLS = sizing.POLLS  # of one provisioned poller in a second
INVOKES = sizing.INVOKES  # concurrent, of one provisioned poller
RECEIVED = sizing.RECEIVED  # most messages of one poll
NOISY_SHARE = sizing.aws("share of a noisy tenant of a fair queue") / 100
NOISY_MESSAGES = int(sizing.aws("messages of a noisy tenant of a fair queue"))
DOUBLING = 60.0 * sizing.aws("growth of a table on demand")

# The consumer: crates/dynamodb/src/store/mod.rs, and the template's timeout.
CLAIM_ATTEMPTS, FIRST_PAUSE, LONGEST_PAUSE = 4, 0.05, 0.5
DEADLINE = 29.5


@dataclass(frozen=True)
class Scenario:
    """A load and its limits. A tenant is a message group too."""

    rates: dict[str, float]  # messages a second of each tenant
    seconds: float
    invocations: int = 10  # MaximumConcurrency
    batch: int = 10
    handler: float = 0.2
    provisioned: bool = False
    fair: bool = False
    fifo: bool = False
    write_units: float = 1e9  # that the table takes at first
    one_partition_key: bool = False  # IDEMPOTENCY_SORT_KEY
    fails: bool = False  # the called system
    backlog: int = 0  # messages of the first tenant at the start
    grain: int = 1  # invocations that one simulated invocation stands for
    tick: float = 0.1  # seconds between arrivals


@dataclass
class Messages:
    """Messages with the same history."""

    sent: float
    tenant: str
    count: int
    receives: int = 0
    received: float = 0.0

    def split(self, count: int) -> "Messages":
        """Takes messages away from these."""
        self.count -= count
        return Messages(self.sent, self.tenant, count, self.receives, self.received)


class Units:
    """Write units of a table or of a partition, without burst capacity."""

    def __init__(self, rate: float, doubles: bool = False) -> None:
        self.rate, self.doubles = rate, doubles
        self.left, self.at = max(1.0, rate / 10), 0.0
        self.taken, self.doubled_at = 0, 0.0
        self.second, self.of_second, self.peak = 0, 0, 0

    def take(self, now: float, wanted: int) -> int:
        """The number of writes that are not throttled."""
        if self.doubles and now - self.doubled_at >= DOUBLING:
            self.rate = max(self.rate, 2.0 * self.peak)
            self.doubled_at, self.peak = now, 0
        # A tenth of a second's units can gather.
        self.left = min(self.left + (now - self.at) * self.rate, max(1.0, self.rate / 10))
        self.at = now
        granted = min(wanted, int(self.left))
        self.left -= granted
        self.taken += granted
        if int(now) != self.second:
            self.second, self.of_second = int(now), 0
        self.of_second += granted
        self.peak = max(self.peak, self.of_second)
        return granted


@dataclass
class Result:
    scenario: Scenario
    completed: dict[int, float] = field(default_factory=dict)  # in each second
    waits: dict[str, list[tuple[float, int]]] = field(default_factory=dict)  # from sending to the receive
    in_flight: int = 0  # at most
    full_at: float | None = None  # when SQS delivers no more
    running: int = 0  # invocations at most
    busy: dict[int, float] = field(default_factory=dict)  # seconds of the invocations that ended in each second
    requests: int = 0
    throttled: int = 0
    failed: int = 0  # receives
    dead: int = 0
    in_back_off: tuple[float, int] = (0.0, 0)  # seconds of all dead letters, and their number

    def in_last_quarter(self, by_second: dict[int, float]) -> float:
        since, until = int(self.scenario.seconds * 0.75), int(self.scenario.seconds)
        return sum(by_second.get(second, 0) for second in range(since, until)) / (until - since)

    def per_second(self) -> float:
        """Completed messages a second."""
        return self.in_last_quarter(self.completed)

    def invocations(self) -> float:
        """Invocations that run at a time."""
        return self.in_last_quarter(self.busy)

    def minutes(self) -> float:
        """Time until 99 % of that rate."""
        wanted = 0.99 * self.per_second()
        for second in range(int(self.scenario.seconds) - 5):
            if sum(self.completed.get(second + n, 0) for n in range(5)) / 5 >= wanted:
                return second / 60
        return self.scenario.seconds / 60

    def failed_of_completed(self) -> float:
        """Failed receives per completed message."""
        return self.failed / sum(self.completed.values())

    def wait(self, tenant: str, share: float) -> float:
        """Percentile of the waits."""
        waits = sorted(self.waits[tenant])
        rank = share * sum(count for _, count in waits)
        for wait, count in waits:
            rank -= count
            if rank <= 0:
                return wait
        return 0.0


class Simulation:
    def __init__(self, scenario: Scenario, seed: int = SEED) -> None:
        self.of, self.random = scenario, random.Random(seed)
        self.now, self.order = 0.0, 0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.visible: dict[str, deque[Messages]] = {tenant: deque() for tenant in scenario.rates}
        self.owed = dict.fromkeys(scenario.rates, 0.0)
        self.in_flight = dict.fromkeys(scenario.rates, 0)
        self.running = 0
        self.polls, self.polls_at = 0.0, 0.0
        rate = sizing.PARTITION_WRITES if scenario.one_partition_key else scenario.write_units
        self.units = Units(rate, doubles=not scenario.one_partition_key)
        self.result = Result(scenario)
        defaults = sizing.defaults()
        self.most_receives = int(defaults["MaxReceiveCount"])
        self.base, self.cap = (sizing.seconds_of(defaults[name]) for name in ("ConsumerBackoffBase", "BackoffCap"))

    def run(self) -> Result:
        first = next(iter(self.visible))
        if self.of.backlog:
            self.visible[first].append(Messages(0.0, first, self.of.backlog))
        self.tick()
        while self.events:
            self.now, _, event = heapq.heappop(self.events)
            if self.now >= self.of.seconds:
                break
            event()
        return self.result

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.events, (self.now + seconds, self.order, event))

    # ---- the queue ---------------------------------------------------------------------------------

    def tick(self) -> None:
        for tenant, rate in self.of.rates.items():
            self.owed[tenant] += rate * self.of.tick
            count = int(self.owed[tenant])
            if count:
                self.owed[tenant] -= count
                self.visible[tenant].append(Messages(self.now, tenant, count))
        self.poll()
        self.after(self.of.tick, self.tick)

    def noisy(self, tenant: str) -> bool:
        own, total = self.in_flight[tenant], sum(self.in_flight.values())
        return own >= NOISY_MESSAGES and own > NOISY_SHARE * total

    def next_tenant(self) -> str | None:
        """The tenant of the next message: the oldest, on a fair queue of the quiet tenants first."""
        waiting = [tenant for tenant, messages in self.visible.items() if messages]
        if self.of.fifo:
            waiting = [tenant for tenant in waiting if not self.in_flight[tenant]]
        if not waiting:
            return None

        def rank(tenant: str) -> tuple[bool, float]:
            return self.of.fair and self.noisy(tenant), self.visible[tenant][0].sent

        return min(waiting, key=rank)

    def receive(self) -> list[Messages]:
        """The messages of one simulated batch. On a FIFO queue of one group."""
        room = min(self.of.batch * self.of.grain, sizing.IN_FLIGHT - sum(self.in_flight.values()))
        if room <= 0 and self.result.full_at is None:
            self.result.full_at = self.now
        batch: list[Messages] = []
        while room > 0 and (tenant := self.next_tenant()):
            while room > 0 and self.visible[tenant]:
                oldest = self.visible[tenant][0]
                taken = oldest.split(min(room, oldest.count))
                if not oldest.count:
                    self.visible[tenant].popleft()
                if not taken.receives:
                    self.result.waits.setdefault(tenant, []).append((self.now - taken.sent, taken.count))
                taken.receives += 1
                taken.received = self.now
                room -= taken.count
                self.in_flight[tenant] += taken.count
                batch.append(taken)
                if self.of.fair:
                    break
            if self.of.fifo:
                break
        self.result.in_flight = max(self.result.in_flight, sum(self.in_flight.values()))
        return batch

    # ---- the event source mapping ------------------------------------------------------------------

    def limit(self) -> int:
        """Concurrent invocations by now. Messages wait from the start on, so the number always grows."""
        growth = sizing.PROVISIONED_GROWTH if self.of.provisioned else sizing.GROWTH
        # At least two provisioned pollers.
        start = 2 * INVOKES if self.of.provisioned else sizing.START
        return min(self.of.invocations, start + int(growth * self.now / 60))

    def may_poll(self) -> bool:
        """A batch is a poll or several. Pollers of a mapping that is not provisioned have no known limit."""
        if not self.of.provisioned:
            return True
        rate = POLLS * self.limit() / INVOKES
        self.polls = min(self.polls + (self.now - self.polls_at) * rate, rate)
        self.polls_at = self.now
        needed = self.of.grain * -(-self.of.batch // RECEIVED)
        if self.polls < needed:
            return False
        self.polls -= needed
        return True

    def poll(self) -> None:
        while self.running + self.of.grain <= max(self.limit(), self.of.grain) and self.next_tenant():
            if not self.may_poll():
                return
            batch = self.receive()
            if not batch:
                return
            self.running += self.of.grain
            self.result.running = max(self.result.running, self.running)
            Invocation(self, batch)

    def ended(self, seconds: float) -> None:
        self.running -= self.of.grain
        busy, second = self.result.busy, int(self.now)
        busy[second] = busy.get(second, 0.0) + seconds * self.of.grain
        self.poll()

    # ---- the end of a receive ----------------------------------------------------------------------

    def completed(self, messages: Messages) -> None:
        self.in_flight[messages.tenant] -= messages.count
        second = int(self.now)
        self.result.completed[second] = self.result.completed.get(second, 0) + messages.count

    def failed(self, messages: Messages) -> None:
        """Back-off: half of it fixed, half jitter. It is a visibility timeout, so the messages stay in flight."""
        self.result.failed += messages.count
        if messages.receives >= self.most_receives:
            self.in_flight[messages.tenant] -= messages.count
            self.result.dead += messages.count
            seconds, count = self.result.in_back_off
            in_flight = (self.now - messages.sent) * messages.count
            self.result.in_back_off = (seconds + in_flight, count + messages.count)
            return
        longest = min(self.base * 2.0 ** (messages.receives - 1), self.cap)
        self.after(longest * (0.5 + 0.5 * self.random.random()), lambda: self.visible_again(messages))

    def visible_again(self, messages: Messages) -> None:
        self.in_flight[messages.tenant] -= messages.count
        self.visible[messages.tenant].appendleft(messages)
        self.poll()

    def write(self, count: int) -> int:
        granted = self.units.take(self.now, count)
        self.result.requests += count
        self.result.throttled += count - granted
        return granted


class Invocation:
    """A batch whose messages run at the same time, on a FIFO queue one after the other."""

    def __init__(self, simulation: Simulation, batch: list[Messages]) -> None:
        self.simulation, self.began = simulation, simulation.now
        self.waiting = deque(batch)
        if simulation.of.fifo:
            self.waiting = deque(messages.split(1) for messages in batch for _ in range(messages.count))
        self.unfinished = sum(messages.count for messages in self.waiting)
        while self.waiting:
            self.claim(self.waiting.popleft(), 1)
            if simulation.of.fifo:
                break

    def claim(self, messages: Messages, attempt: int) -> None:
        simulation = self.simulation
        granted = simulation.write(messages.count)
        if granted:
            claimed = messages.split(granted)
            simulation.after(sizing.TABLE_SECONDS + simulation.of.handler, lambda: self.settle(claimed))
        if not messages.count:
            return
        if attempt == CLAIM_ATTEMPTS:
            self.end(messages, simulation.failed)
            return
        pause = min(FIRST_PAUSE * 2.0 ** (attempt - 1), LONGEST_PAUSE) * simulation.random.random()
        simulation.after(sizing.TABLE_SECONDS + pause, lambda: self.claim(messages, attempt + 1))

    def settle(self, messages: Messages) -> None:
        """Writes the outcome, and again until the deadline."""
        simulation = self.simulation
        end = simulation.failed if simulation.of.fails else simulation.completed
        granted = simulation.write(messages.count)
        if granted:
            settled = messages.split(granted)
            simulation.after(sizing.TABLE_SECONDS, lambda: self.end(settled, end))
        if not messages.count:
            return
        pause = sizing.TABLE_SECONDS + LONGEST_PAUSE * simulation.random.random()
        if simulation.now + pause > self.began + DEADLINE:
            self.end(messages, simulation.failed)
        else:
            simulation.after(pause, lambda: self.settle(messages))

    def end(self, messages: Messages, end: Callable[[Messages], None]) -> None:
        self.unfinished -= messages.count
        end(messages)
        if self.waiting:
            self.claim(self.waiting.popleft(), 1)
        elif not self.unfinished:
            self.simulation.ended(self.simulation.now - self.began)


# ---- the table -------------------------------------------------------------------------------------


def simulated(scenario: Scenario) -> Result:
    return Simulation(scenario).run()


def saturated(invocations: int, **more: object) -> Scenario:
    """More messages than the function can process."""
    grain = max(1, invocations // 50)
    per_second = sizing.throughput(invocations, bool(more.get("provisioned")))
    growth = sizing.PROVISIONED_GROWTH if more.get("provisioned") else sizing.GROWTH
    seconds = 60 + 1.5 * 60 * invocations / growth
    values = {"rates": {"all": 1.2 * per_second}, "seconds": seconds, "invocations": invocations, "grain": grain}
    return Scenario(**{**values, **more})  # type: ignore[arg-type]


# The figure, the formula's result and the simulation's.
Row = tuple[str, str, str]
NO_FORMULA = "-"


def row(figure: str, computed: float, seen: float) -> Row:
    return figure, sizing.number(computed), sizing.number(seen)


def scale() -> list[Row]:
    rows = []
    for invocations in (10, 100, 1_000, sizing.MOST, sizing.MOST_POLLED):
        of = invocations, invocations > sizing.MOST
        result = simulated(saturated(invocations, provisioned=of[1]))
        load = f"{invocations:,} invocations" + ", provisioned" * of[1]
        rows.append(row(f"{load}: messages a second", sizing.throughput(*of), result.per_second()))
        rows.append(row(f"{load}: they run at a time", sizing.busy(*of), result.invocations()))
        if invocations >= 1_000:
            rows.append(row(f"{load}: minutes to get there", sizing.minutes(*of), result.minutes()))
    return rows


def limits() -> list[Row]:
    new_table = simulated(saturated(100, write_units=sizing.NEW_TABLE_WRITES, seconds=300.0))
    later = simulated(saturated(100, write_units=sizing.NEW_TABLE_WRITES, seconds=2 * HOUR, grain=50))
    one_key = simulated(saturated(100, one_partition_key=True, seconds=300.0))
    units = sizing.shipped().writes / sizing.shipped().per_second
    new, sort_key = "100 invocations, new table", "100 invocations, `IDEMPOTENCY_SORT_KEY`"
    return [
        row(f"{new}: messages a second", sizing.NEW_TABLE_WRITES / units, new_table.per_second()),
        (f"{new}: throttled requests", NO_FORMULA, f"{new_table.throttled / new_table.requests:.0%}"),
        (f"{new}: failed receives of a message", NO_FORMULA, f"{new_table.failed_of_completed():.2f}"),
        row(f"{new}, after two hours: messages a second", sizing.throughput(100, False), later.per_second()),
        row(f"{sort_key}: messages a second", sizing.PARTITION_WRITES / units, one_key.per_second()),
    ]


def outages() -> list[Row]:
    def outage(rate: float, hours: float) -> Result:
        load = {"all": rate}
        return simulated(Scenario(load, seconds=hours * HOUR, invocations=100, fails=True, grain=10, tick=60.0))

    waits, below, above = sizing.back_off_seconds(), outage(1.0, 36.0), outage(4.0, 12.0)
    seconds, count = below.in_back_off
    full = f"{above.full_at / HOUR:.1f}" if above.full_at else "never"
    return [
        row("outage: hours until a message is a dead letter", waits / HOUR, seconds / count / HOUR),
        row("outage, 1 message a second: in flight", waits, below.in_flight),
        ("outage, 4 messages a second: hours to the in-flight limit", f"{sizing.IN_FLIGHT / 4 / HOUR:.1f}", full),
    ]


def tenants() -> list[Row]:
    rates = {"hot": 300.0, **{f"quiet-{n}": 5.0 for n in range(10)}}
    rows = []
    for fair in (False, True):
        result = simulated(Scenario(rates, seconds=600.0, invocations=5, fair=fair, backlog=5_000))
        others = max(result.wait(tenant, 0.99) for tenant in rates if tenant != "hot")
        load = "a hot tenant" + ", fair queue" * fair
        rows.append((f"{load}: p99 wait of the others", NO_FORMULA, sizing.duration(others)))
        rows.append((f"{load}: p99 wait of its own messages", NO_FORMULA, sizing.duration(result.wait("hot", 0.99))))
    return rows


def groups() -> list[Row]:
    each = 1 / (sizing.shipped().handler + 2 * sizing.TABLE_SECONDS)
    rows = []
    for count in (10, 100):
        rates = {f"group-{n}": 2 * each for n in range(count)}
        result = simulated(Scenario(rates, seconds=60.0, invocations=1_000, fifo=True, tick=1.0))
        rows.append(row(f"FIFO, {count} groups: messages a second", count * each, result.per_second()))
    return rows


def table() -> str:
    rows = [*scale(), *limits(), *outages(), *tenants(), *groups()]
    return sizing.table(["", "formula", "simulation"], [list(row) for row in rows])


# ---- the self-test ---------------------------------------------------------------------------------


def self_test() -> None:
    def expect(what: str, is_so: bool) -> None:
        if not is_so:
            sys.exit(f"simulation.py does not work: {what}")

    units = Units(1000.0)
    expect("units gather for a tenth of a second", units.take(10.0, 5000) == 100)
    expect("no unit is granted twice", units.take(10.0, 1) == 0)
    expect("units come with time", units.take(10.05, 5000) == 50)
    doubling = Units(1000.0, doubles=True)
    for n in range(1, 80):
        doubling.take(n / 8, 100)
    expect("capacity stays within the half hour", doubling.rate == 1000.0)
    doubling.take(DOUBLING, 1)
    expect("capacity is twice the peak after half an hour", doubling.rate == 2 * 800.0)

    one = Scenario(rates={"all": 1e4}, seconds=60.0, invocations=4)
    simulation = Simulation(one)
    expect("a mapping starts with five", Simulation(saturated(100)).limit() == sizing.START)
    simulation.now = 60.0
    expect("MaximumConcurrency is a limit", simulation.limit() == 4)
    result = simulated(one)
    expect("invocations stay within the limit", result.running == 4)
    expect("nothing is throttled without a limit", result.throttled == 0 and result.failed == 0)
    expect("the same seed gives the same run", simulated(one).completed == result.completed)

    throttled = simulated(Scenario(rates={"all": 1e3}, seconds=60.0, write_units=100.0))
    written = throttled.requests - throttled.throttled
    expect("the table takes no more than its units", written <= 100 * 60.1)
    expect("claims that stay throttled fail", throttled.failed > 0)

    full = simulated(Scenario(rates={"all": 2e3}, seconds=200.0, invocations=1_000, fails=True, grain=10))
    expect("the in-flight limit is reached, not exceeded", full.in_flight == sizing.IN_FLIGHT)
    expect("SQS delivers no more at the limit", full.full_at is not None)

    # The last receive comes after about a day.
    dead = simulated(Scenario(rates={"all": 0.01}, seconds=36 * HOUR, fails=True, tick=10.0))
    expect("messages die after the last receive", dead.dead > 0 and not dead.completed)

    hot = Simulation(Scenario(rates={"hot": 0.0, "quiet": 0.0}, seconds=1.0, fair=True))
    hot.visible["hot"].append(Messages(0.0, "hot", 1))
    hot.visible["quiet"].append(Messages(1.0, "quiet", 1))
    expect("the oldest message is first", hot.next_tenant() == "hot")
    hot.in_flight["hot"] = NOISY_MESSAGES
    expect("a fair queue prefers quiet tenants", hot.next_tenant() == "quiet")

    fifo = simulated(Scenario(rates={"one": 100.0}, seconds=60.0, invocations=10, fifo=True))
    expect("a group runs one batch at a time", fifo.running == 1)
    polled = simulated(saturated(100, provisioned=True, handler=0.0, seconds=120.0, grain=1))
    most = 100 / INVOKES * POLLS * RECEIVED
    expect("pollers have a limit of polls", 0.9 * most < polled.per_second() <= 1.01 * most)


def main() -> int:
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    page = sizing.PAGE.read_text()
    new = sizing.replaced(page, "local/simulation.py", "simulation", table())
    if sys.argv[1:] == ["--check"]:
        if page != new:
            print("docs/sizing.md differs from the simulation: run `make simulate`", file=sys.stderr)
        return int(page != new)
    sizing.PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Tests the report of `make demo`, which must be right for every order in which SQS may deliver, and on a slow machine.

python tools/demo_test.py [-v] [TEST...]     a part of `make test`
"""

import os
import unittest
from collections import Counter
from unittest.mock import patch

from cases import Case, Message, cases
from cloud import Cloud, Json
from demo import Evidence, Stack, promises
from gateway import Gateway, Trouble

REUSED = "number reused, other amount"
CALLER = ("127.0.0.1", 1)


def stack_of_a_run() -> Stack:
    """A stack whose messages have ids, and whose gateway has the charges of a run without a mistake."""
    gateway = Gateway(workers_of=os.getpid())
    gateway.killed.add(1)
    all_cases = cases()
    for message in (m for case in all_cases for m in case.messages):
        message.ids += [f"id of {message.name}"] + [f"id of {message.name}, redriven"] * message.redriven
    for case in all_cases:
        gateway.charges.update({order: case.charges for order in case.orders if case.charges})
    return Stack(Cloud("http://none"), gateway, all_cases, "queue", "dead", "table", "logs")


def record(message: str, status: str) -> Json:
    return {"message_id": {"S": message}, "status": {"S": status}}


def orders_of(case: Case) -> list[str | None]:
    return [*case.orders] or [None]


def evidence_of(stack: Stack, loser: int) -> Evidence:
    """The evidence of a run. Of two messages with one order number, the gateway refused number `loser`."""
    dead, records = [], []
    for case in stack.cases:
        for order in orders_of(case):
            messages = [m for m in case.messages if m.order == order]
            dying = [m for m in messages if m.dies]
            if case.title == REUSED and dying:
                dying = [messages[loser]]
            dead += [m.name for m in dying]
            done = [id for m in messages if m not in dying or len(dying) == len(messages) for id in reversed(m.ids)]
            records += [record(id, status) for id, status in zip(done, case.records, strict=False)]
    return Evidence(0, Counter(dead), records, Counter())


def broken(stack: Stack, evidence: Evidence) -> list[str]:
    return [violation for violations in promises(stack, evidence).values() for violation in violations]


def reused(stack: Stack) -> list[Message]:
    """Two messages with one order number and different amounts."""
    (case,) = (case for case in stack.cases if case.title == REUSED)
    return case.messages[:2]


class Promises(unittest.TestCase):
    def test_either_message_of_one_number_may_be_first(self) -> None:
        for loser in (0, 1):
            stack = stack_of_a_run()
            assert broken(stack, evidence_of(stack, loser)) == [], loser

    def test_both_messages_of_one_number_may_not_be_dead(self) -> None:
        stack = stack_of_a_run()
        evidence = evidence_of(stack, loser=0)
        _, winner = reused(stack)
        evidence.dead[winner.name] += 1
        assert any("2 of 2 messages" in line for line in broken(stack, evidence))
        assert any("its charge is recorded" in line for line in broken(stack, evidence))

    def test_both_messages_of_one_number_may_not_be_acknowledged(self) -> None:
        stack = stack_of_a_run()
        evidence = evidence_of(stack, loser=0)
        loser, _ = reused(stack)
        del evidence.dead[loser.name]
        assert any("0 of 2 messages" in line for line in broken(stack, evidence))

    def test_charged_message_may_not_be_the_dead_one(self) -> None:
        stack = stack_of_a_run()
        evidence = evidence_of(stack, loser=0)
        loser, winner = reused(stack)
        del evidence.dead[loser.name]
        evidence.dead[winner.name] += 1
        assert any("its charge is recorded" in line for line in broken(stack, evidence))

    def test_second_copy_needs_a_second_delivery(self) -> None:
        stack = stack_of_a_run()
        evidence = evidence_of(stack, loser=0)
        loser, _ = reused(stack)
        evidence.dead[loser.name] += 1
        assert len(broken(stack, evidence)) == 1
        evidence.deliveries[loser.id] = 2
        assert broken(stack, evidence) == []

    def test_order_charged_twice_is_found(self) -> None:
        stack = stack_of_a_run()
        stack.ledger.charges["order-1001"] += 1
        found = broken(stack, evidence_of(stack, loser=0))
        assert found == ["order-1001 (new order): charged 2 times, not 1"]


@patch("gateway.LATENCY", 0)
class Troubles(unittest.TestCase):
    def call(self, gateway: Gateway) -> int | None:
        answer = gateway.charge("key", b'{"orderId": "o-1"}', CALLER)
        return answer and answer[0]

    def test_refusal_lasts_until_order_is_accepted(self) -> None:
        gateway = Gateway(workers_of=os.getpid())
        gateway.plan("o-1", Trouble.BOOKED_503, Trouble.REFUSED)
        # The first 400 is lost with its worker.
        assert [self.call(gateway) for _ in range(3)] == [503, 400, 400]
        assert gateway.unmet == []
        gateway.accept("o-1")
        assert self.call(gateway) == 201
        assert gateway.charges["o-1"] == 1

    def test_refusal_that_did_not_occur_is_unmet(self) -> None:
        gateway = Gateway(workers_of=os.getpid())
        gateway.plan("o-1", Trouble.BOOKED_503, Trouble.REFUSED)
        self.call(gateway)
        gateway.accept("o-1")
        assert gateway.unmet == ["o-1"]

    def test_kill_without_worker_is_tried_again(self) -> None:
        gateway = Gateway(workers_of=os.getpid())
        gateway.plan("o-1", Trouble.KILLED_AFTER)
        for _ in range(2):
            assert self.call(gateway) is None
            assert gateway.unmet == ["o-1"]
        assert (gateway.charges["o-1"], gateway.killed) == (1, set())


if __name__ == "__main__":
    unittest.main()

"""The scenarios, each with the test that puts sqs-once in the same situation."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cloud import Json
from lab import Ended, Environment, Function, Setting

SCENARIOS: dict[str, "Scenario"] = {}


@dataclass(frozen=True)
class Seen:
    holds: bool
    otherwise: str = ""
    but: str = ""

    def __str__(self) -> str:
        if not self.holds:
            return f"fails: {self.otherwise}"
        return f"holds, but {self.but}" if self.but else "holds"


Play = Callable[[Environment], Seen]


@dataclass(frozen=True)
class Scenario:
    play: Play
    variants: dict[str, Setting]
    """The settings that affect the scenario, with their values that differ from the documented ones."""
    test: str
    """The path of the test of sqs-once."""


def scenario(test: str, **variants: Setting) -> Callable[[Play], Play]:
    def add(play: Play) -> Play:
        SCENARIOS[play.__name__] = Scenario(play, variants, test)
        return play

    return add


def record(message_id: str, body: str | Json) -> Json:
    return {
        "messageId": message_id,
        "receiptHandle": f"receipt-{message_id}",
        "body": body if isinstance(body, str) else json.dumps(body),
        "attributes": {"ApproximateReceiveCount": "1"},
        "messageAttributes": {},
        "md5OfBody": "",
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:orders",
        "awsRegion": "us-east-1",
    }


ORDER = record("m-1", {"orderId": "o-1", "customerId": "c-17"})


def returns(output: Any) -> Callable[[str], Json]:
    """A handler that returns this output for every message."""
    return lambda _: {"return": output}


def pass_time(milliseconds: int) -> None:
    """Waits until a deadline this far ahead has passed."""
    time.sleep(milliseconds / 1000 + 0.1)


def overtaken(ours: Environment, late_end: Json) -> Ended:
    """A worker outlives its lease. Another takes over and completes. Then the first one ends."""
    slow, quick = ours.function(), ours.function()

    def outlive(_: str) -> Json:
        pass_time(1)
        quick.deliver(ORDER, does=lambda _: {"return": "newer"})
        assert [item["status"]["S"] for item in ours.records()] == ["COMPLETED"]
        return late_end

    slow.deliver(ORDER, remaining_ms=1, does=outlive)
    return ours.function().deliver(ORDER)


@scenario(test="once::late_completion_is_refused_and_unacknowledged")
def late_completion_keeps_newer_result(ours: Environment) -> Seen:
    after = overtaken(ours, {"return": "older"})
    answer = after.outputs.get("m-1")
    return Seen(not after.ran and answer == "newer", f'the next delivery is answered "{answer}", not "newer"')


@scenario(test="once::late_completion_is_refused_and_unacknowledged")
def late_failure_keeps_newer_completion(ours: Environment) -> Seen:
    after = overtaken(ours, {"raise": "too late"})
    return Seen(not after.ran, "the next delivery runs again")


@scenario(test="batch::crash_without_deadline_locks_key_briefly", lambda_context=False)
def crash_without_deadline_locks_key_briefly(ours: Environment) -> Seen:
    crashing = ours.function()
    crashing.deliver(ORDER, remaining_ms=500, does=lambda _: crashing.kill())
    pass_time(500)
    after = ours.function().deliver(ORDER)
    [item] = ours.records()
    left = round((float(item["expiration"]["N"]) - time.time()) / 60)
    return Seen(after.ran == ["m-1"], f"locked for the {left} minutes until the record expires")


@scenario(test="once::lost_claim_response_does_not_block_worker")
def lost_claim_response_does_not_block_worker(ours: Environment) -> Seen:
    line = ours.line(loses_first_answer=True)
    ended = ours.function(line.endpoint).deliver(ORDER, remaining_ms=2000)
    assert len(line.connections) == 2, f"the SDK asked again: {line}"
    pass_time(2000)
    after = ours.function().deliver(ORDER)
    locked = "until its deadline" if after.ran else "past its deadline"
    return Seen(ended.ran == ["m-1"] and not ended.failed, f"ran nothing, and the key is locked {locked}")


@scenario(test="batch::falsy_output_is_replayed_unchanged")
def falsy_output_is_replayed_unchanged(ours: Environment) -> Seen:
    function, wrong = ours.function(), []
    for number, output in enumerate([0, False, None, ""]):
        order = record(f"m-{number}", {"orderId": f"o-{number}"})
        function.deliver(order, does=returns(output))
        after = function.deliver(order)
        replayed = json.dumps(after.outputs.get(order["messageId"], "nothing"))
        if after.ran or replayed != json.dumps(output):
            wrong.append(f"`{json.dumps(output)}` as `{replayed}`")
    return Seen(not wrong, f"replayed {', '.join(wrong)}")


def two_without(ours: Environment, key: str) -> Seen:
    """Two different orders without an orderId. They run in turn, so that they do not conflict for another reason."""
    orders = [record(f"m-{n}", {"customerId": "c-17", "amount": n}) for n in (1, 2)]
    first = ours.function(key=key, in_turn=True).deliver(*orders)
    lost = [order["messageId"] for order in orders if order["messageId"] not in first.ran + first.failed]
    if lost:
        return Seen(False, f"acknowledged {', '.join(lost)} without running it")
    again = ours.function(key=key).deliver(orders[0])
    return Seen(True, but="unprotected: a second delivery runs again" if again.ran else "")


@scenario(test="batch::messages_without_key_do_not_collide", key_required=True)
def messages_without_key_do_not_collide(ours: Environment) -> Seen:
    return two_without(ours, "powertools_json(body).orderId")


@scenario(test="batch::messages_without_key_do_not_collide", key_required=True, validation="body")
def messages_without_part_of_key_do_not_collide(ours: Environment) -> Seen:
    return two_without(ours, "powertools_json(body).[customerId, orderId]")


@scenario(test="batch::messages_behind_failed_one_of_their_key_fail_with_it", in_turn=True)
def key_twice_in_batch_runs_once(ours: Environment) -> Seen:
    twice = [record(message_id, {"orderId": "o-1"}) for message_id in ("m-1", "m-2")]
    ended = ours.function().deliver(*twice)
    ran, failed = len(ended.ran), len(ended.failed)
    return Seen(ran == 1 and not failed, f"ran {ran} and reported {failed} of the two as failed")


@scenario(test="batch::key_ignores_changes_by_handler")
def message_changed_by_handler_keeps_key(ours: Environment) -> Seen:
    changed = {"body": json.dumps({"orderId": "changed"}), "return": "done"}
    first = ours.function().deliver(ORDER, does=lambda _: changed)
    again = ours.function().deliver(ORDER)
    states = sorted(item["status"]["S"] for item in ours.records())
    return Seen(
        not first.failed and not again.ran and not again.failed,
        f"the result has another key, the message's own stays {states[-1]}",
    )


@scenario(test="batch::failed_message_does_not_affect_others")
def malformed_message_fails_alone(ours: Environment) -> Seen:
    batch = [record("m-1", {"orderId": "o-1"}), record("bad", "{"), record("m-3", {"orderId": "o-3"})]
    # A handler that reads the malformed body fails like this.
    read = {"bad": {"raise": "not JSON"}}
    ended = ours.function().deliver(*batch, does=lambda message_id: read.get(message_id, {"return": "done"}))
    alone = {"m-1", "m-3"} <= set(ended.ran) and ended.failed == ["bad"]
    return Seen(alone, f"ran {ended.ran}, reported {ended.failed} as failed")


@scenario(test="faults::results::oversized_result_does_not_run_again")
def oversized_result_does_not_run_again(ours: Environment) -> Seen:
    large = {"return": "x" * 420_000}
    first = ours.function().deliver(ORDER, remaining_ms=2000, does=lambda _: large)
    pass_time(2000)
    again = ours.function().deliver(ORDER)
    ran = len(first.ran) + len(again.ran)
    return Seen(
        ran == 1 and not again.failed,
        f"reported {', '.join(first.failed) or 'nothing'} as failed, and ran it {ran} times",
    )


def ten(batch: str) -> list[Json]:
    return [record(f"{batch}-{n}", {"orderId": f"{batch}-{n}"}) for n in range(1, 11)]


@scenario(test="isolation::nine_neighbours_succeed_and_killer_is_crashed", in_turn=True)
def message_that_kills_spares_its_batch(ours: Environment) -> Seen:
    batch, receives = ten("m"), 5
    neighbours, ran = {f"m-{n}" for n in range(1, 11) if n != 5}, set[str]()
    waiting = {message["messageId"] for message in batch}
    for _ in range(receives):
        function = ours.function()

        def end(message_id: str, function: Function = function) -> Json | None:
            if message_id != "m-5":
                return {"return": "done"}
            function.kill()
            return None

        again = [message for message in batch if message["messageId"] in waiting]
        ended = function.deliver(*again, remaining_ms=500, does=end)
        ran.update(ended.ran)
        if ended.answered:
            waiting = set(ended.failed)
        pass_time(500)
    left, never = len(waiting & neighbours), len(neighbours - ran)
    return Seen(
        not left, f"{left} of the 9 others are not acknowledged after {receives} receives, {never} of them never ran"
    )


@scenario(test="aws::tests::batch_after_a_thaw_fails_no_message", short_timeout=True)
def batch_after_a_thaw_fails_no_message(ours: Environment) -> Seen:
    failed = {death: seen for death in ("closed", "silent") if not (seen := after_a_thaw(ours, death)).holds}
    return Seen(
        not failed, "; ".join(f"connections that are {death}: {seen.otherwise}" for death, seen in failed.items())
    )


def after_a_thaw(ours: Environment, death: str) -> Seen:
    """A frozen function's connections die. Then it gets ten messages."""
    line = ours.line()
    function = ours.function(line.endpoint)
    before = function.deliver(*ten(f"before-{death}"))
    assert before.succeeded, before
    function.freeze()
    if death == "closed":
        line.close()
    else:
        line.silence()
    function.thaw()
    return in_time(function.deliver_until(10_000, *ten(f"after-{death}")), "10 s")


@scenario(test="aws::tests::slow_table_gets_two_requests_a_message", short_timeout=True)
def slow_table_fails_no_message(ours: Environment) -> Seen:
    function = ours.function(ours.line(delay=1.2).endpoint)
    return in_time(function.deliver_until(30_000, *ten("m")), "30 s")


def in_time(ended: Ended, timeout: str) -> Seen:
    """The outcome of ten messages, none of which should fail."""
    if not ended.answered:
        return Seen(False, f"no answer within the function's timeout of {timeout}, so all ten return to the queue")
    return Seen(ended.succeeded, f"reported {len(ended.failed)} of ten as failed")


@scenario(test="batch::records_live_on_when_fingerprint_setting_changes")
def records_live_on_when_fingerprint_setting_changes(ours: Environment) -> Seen:
    changes = {"added": ("", "body"), "changed": ("body", "powertools_json(body).customerId"), "removed": ("body", "")}
    refused = []
    for change, (before, after) in changes.items():
        order = record(f"m-{change}", {"orderId": change, "customerId": "c-17"})
        first = ours.function(validation=before).deliver(order)
        assert first.succeeded, first
        again = ours.function(validation=after).deliver(order)
        if again.failed or again.ran:
            refused.append(change)
    return Seen(
        not refused,
        f"payload validation {' or '.join(refused)}: duplicates of a completed order are reported as failed",
    )

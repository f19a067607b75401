"""The messages of `make demo`, and the expected outcome of each."""

import json
from dataclasses import dataclass, field
from itertools import count

from gateway import Trouble

# Seconds after the start at which each wave is sent. Workers are killed in the first two waves. Those
# are small, so that most messages of the other waves are processed without an interruption.
WAVES = (0.0, 1.5, 3.0, 5.0)


@dataclass
class Message:
    name: str  # a message attribute, by which we recognize a copy in the dead-letter queue
    order: str | None  # `None` if the body can't be decoded
    body: str
    wave: int
    dies: bool = False  # ends in the dead-letter queue; of an order's messages any may, but this many do
    redriven: bool = False  # is redriven from the dead-letter queue, once
    ids: list[str] = field(default_factory=list)  # given by SQS; a redrive adds another

    @property
    def id(self) -> str:
        return self.ids[-1]


@dataclass
class Case:
    title: str
    charges: int  # per order
    records: tuple[str, ...]  # per order, by status
    messages: list[Message] = field(default_factory=list)
    troubles: dict[str, tuple[Trouble, ...]] = field(default_factory=dict)

    @property
    def orders(self) -> list[str]:
        return list(dict.fromkeys(m.order for m in self.messages if m.order))


def body_of(number: str, *, amount: float = 99.99, token: str = "tok_visa") -> str:
    return json.dumps({"orderId": number, "amount": amount, "currency": "EUR", "paymentToken": token})


def cases() -> list[Case]:
    """The cases for a consumer whose key is the order's number."""
    done = ("COMPLETED",)
    numbers = count(1001)
    names = count(1)

    def name() -> str:
        return f"m-{next(names)}"

    def orders(how_many: int) -> list[str]:
        return [f"order-{next(numbers)}" for _ in range(how_many)]

    fresh = Case("new order", charges=1, records=done)
    for i, order in enumerate(orders(20)):
        fresh.messages.append(Message(name(), order, body_of(order), wave=0 if i < 3 else 1 if i < 6 else 2))

    # One in each of the first two waves, so that at most two batches of one message are killed.
    before = Case("killed before the charge", charges=1, records=done)
    after = Case("killed after the charge", charges=1, records=done)
    for wave, (case, trouble) in enumerate(((before, Trouble.KILLED_BEFORE), (after, Trouble.KILLED_AFTER))):
        for order in orders(1):
            case.messages.append(Message(name(), order, body_of(order), wave))
            case.troubles[order] = (trouble,)

    flaky = Case("gateway fails, then works", charges=1, records=done)
    for order in orders(2):
        flaky.messages.append(Message(name(), order, body_of(order), wave=2))
        flaky.troubles[order] = (Trouble.OUT_OF_ORDER,)

    twice = Case("order sent twice", charges=1, records=done)
    for i, order in enumerate(orders(4)):
        # Two may be in one batch with their duplicate. Two are sent after the charge was recorded.
        for wave in (2, 2 if i < 2 else 3):
            twice.messages.append(Message(name(), order, body_of(order), wave))

    redriven = Case("charged, refused, redriven", charges=1, records=done)
    for order in orders(2):
        redriven.messages.append(Message(name(), order, body_of(order), wave=2, redriven=True))
        redriven.troubles[order] = (Trouble.BOOKED_503, Trouble.REFUSED)

    reused = Case("number reused, other amount", charges=1, records=done)
    for order in orders(2):
        reused.messages.append(Message(name(), order, body_of(order), wave=2))
        reused.messages.append(Message(name(), order, body_of(order, amount=149.0), wave=3, dies=True))

    declined = Case("declined card", charges=0, records=("FAILED",))
    for order in orders(2):
        declined.messages.append(Message(name(), order, body_of(order, token="tok_chargeDeclined"), wave=2, dies=True))

    # Without an order id, such a message has no key.
    malformed = Case("malformed body", charges=0, records=())
    for body in ('{"orderId": "order-cut-off", "amou', "not JSON at all"):
        malformed.messages.append(Message(name(), None, body, wave=2, dies=True))

    return [fresh, before, after, flaky, twice, redriven, reused, declined, malformed]

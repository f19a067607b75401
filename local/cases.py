"""The messages of `make demo`, and what must have become of each."""

import json
from dataclasses import dataclass, field
from itertools import count

from gateway import Trouble

# Seconds after the start at which a wave is sent. The workers are killed in the first two, which
# carry few messages, so that most of the others are seen to go through undisturbed.
WAVES = (0.0, 1.5, 3.0, 5.0)


@dataclass
class Message:
    order: str | None  # None: nobody can read it
    body: str
    wave: int
    dies: bool  # ends in the dead-letter queue
    id: str = ""  # given by SQS


@dataclass
class Case:
    title: str
    charges: int  # per order
    record: str | None  # per order
    messages: list[Message] = field(default_factory=list)
    troubles: dict[str, tuple[Trouble, ...]] = field(default_factory=dict)

    @property
    def orders(self) -> list[str]:
        return list(dict.fromkeys(m.order for m in self.messages if m.order))


def _order(number: str, *, amount: float = 99.99, token: str = "tok_visa") -> str:
    return json.dumps({"orderId": number, "amount": amount, "currency": "EUR", "paymentToken": token})


def cases() -> list[Case]:
    numbers = count(1001)

    def orders(how_many: int) -> list[str]:
        return [f"order-{next(numbers)}" for _ in range(how_many)]

    fresh = Case("new order", charges=1, record="COMPLETED")
    for i, order in enumerate(orders(20)):
        fresh.messages.append(Message(order, _order(order), wave=0 if i < 3 else 1 if i < 6 else 2, dies=False))

    twice = Case("the same order sent twice", charges=1, record="COMPLETED")
    for i, order in enumerate(orders(4)):
        # Two may meet their double in one batch; two come when the charge is long on record.
        for wave in (2, 2 if i < 2 else 3):
            twice.messages.append(Message(order, _order(order), wave, dies=False))

    reused = Case("order number reused, other amount", charges=1, record="COMPLETED")
    for order in orders(2):
        reused.messages.append(Message(order, _order(order), wave=2, dies=False))
        reused.messages.append(Message(order, _order(order, amount=149.0), wave=3, dies=True))

    before = Case("killed before the charge was booked", charges=1, record="COMPLETED")
    after = Case("killed after the charge was booked", charges=1, record="COMPLETED")
    for case, trouble in ((before, Trouble.KILLED_BEFORE), (after, Trouble.KILLED_AFTER)):
        for wave, order in enumerate(orders(2)):
            case.messages.append(Message(order, _order(order), wave, dies=False))
            case.troubles[order] = (trouble,)

    flaky = Case("gateway fails twice, then works", charges=1, record="COMPLETED")
    for order in orders(2):
        flaky.messages.append(Message(order, _order(order), wave=2, dies=False))
        flaky.troubles[order] = (Trouble.OUT_OF_ORDER, Trouble.OUT_OF_ORDER)

    declined = Case("declined card", charges=0, record="FAILED")
    for order in orders(2):
        declined.messages.append(Message(order, _order(order, token="tok_chargeDeclined"), wave=2, dies=True))

    malformed = Case("malformed body", charges=0, record=None)
    for body in ('{"orderId": "order-cut-off", "amou', "not JSON at all"):
        malformed.messages.append(Message(None, body, wave=2, dies=True))

    return [fresh, twice, reused, before, after, flaky, declined, malformed]

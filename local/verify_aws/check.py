"""A check: a function whose docstring states an assumption, and the place that relies on it."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verify_aws.scratch import Scratch

# A file, and a text that it contains.
PLACE = re.compile(r"^\s*(\S+): (.+?)\s*$")


class Verdict(Enum):
    HOLDS = "holds"
    DIFFERS = "differs"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Seen:
    """The observation of a check. The text goes into the report, so it has no payload."""

    holds: bool
    text: str


class NotChecked(Exception):
    """A check could not look; the message gives the reason."""


Function = Callable[["Scratch"], Seen]


@dataclass(frozen=True)
class Check:
    function: Function
    needs_stack: bool
    slow: bool
    only_aws: str  # why an emulator cannot answer; empty if it can
    # A stack of the check's own, created beside that of the run: the end of its name, and its parameters.
    stack: tuple[str, dict[str, str]] | None

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def subject(self) -> str:
        return self.function.__module__.rsplit(".", 1)[-1]

    @property
    def assumption(self) -> str:
        text, _ = self._parts()
        return " ".join(text.split())

    @property
    def places(self) -> list[tuple[str, str]]:
        """The files that rely on the assumption, each with a text of the place."""
        _, places = self._parts()
        found = [PLACE.match(line) for line in places.splitlines() if line.strip()]
        return [(match[1], match[2]) for match in found if match]

    def _parts(self) -> tuple[str, str]:
        text, _, places = inspect.cleandoc(self.function.__doc__ or "").partition("\n\nWhere:\n")
        return text, places


CHECKS: list[Check] = []


def check(
    *,
    needs_stack: bool = True,
    slow: bool = False,
    only_aws: str = "",
    stack: tuple[str, dict[str, str]] | None = None,
) -> Callable[[Function], Function]:
    """Adds a function to the checks, in the order of the source."""

    def add(function: Function) -> Function:
        CHECKS.append(Check(function, needs_stack, slow, only_aws, stack))
        return function

    return add

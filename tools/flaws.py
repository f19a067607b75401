"""Switches on one flaw of the product after another, and expects that a test outside the simulation fails.

    python tools/flaws.py                   runs the test that docs/flaws.md names for each flaw
    python tools/flaws.py --search new      finds a test for each flaw that the page does not have
    python tools/flaws.py --search all      finds them again for every flaw; or for the one that is named

A search runs the suites of one layer after another with the flaw, and stops at the lowest layer in which a test fails.
If several tests fail, it names the one that the page has, or the one that fails for the fewest flaws.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

from cloud import ROOT, unwind_on_signals
from suites import Suite, built

PAGE = ROOT / "docs/flaws.md"
SOURCES = ("sqs-once", "outbox")
# Suites by layer, the lowest first.
LAYERS = {
    "unit": ("sqs_once", "sqs_once_outbox"),
    "library": ("library",),
    "outbox": ("outbox",),
    "wire": ("wire",),
}
# Packages whose libraries have no part in these suites.
EXCLUDED = ("pages", "simulated", "simulated-outbox", "simulation", "sqs-once-postgres", "support")
# Tests of the compiler's messages.
SKIPPED = "--skip=mistakes"
# Seconds after which we take a test to hang.
PATIENCE = 60.0
AT_ONCE = 2

INTRODUCTION = """\
# Flaws that a test must find

`flawed("...")` marks a place where the library or the relay does the wrong thing on demand. For each flaw, this page
names a world of the simulation with the check that fails in it, and a test of the lowest layer that can fail: the unit
tests, `tests/library`, `crates/outbox/tests` or `tests/wire`.

`make flaws` runs the tests in the last column and writes this page. `make flaws SEARCH=new` looks for missing ones.

| flaw | file in `crates` | seed: check of the simulation | lowest layer: test |
| --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Test:
    """A test that fails with a flaw."""

    layer: str
    name: str
    hangs: bool = False

    def __str__(self) -> str:
        return f"{self.layer}: `{self.name}`" + " (hangs)" * self.hangs


@dataclass(frozen=True)
class Flaw:
    name: str
    file: str
    line: int
    world: str
    test: Test | None

    def __str__(self) -> str:
        """The row of the page."""
        return f"| {self.name} | `{self.file}` | {self.world} | {self.test or ''} |"


def flaws() -> list[Flaw]:
    """The flaws in the sources, with what tests/simulation/twins.rs and the page say about them."""
    twins = (ROOT / "tests/simulation/twins.rs").read_text()
    found = re.findall(r'\(\s*"(.+)",\s*([\d_]+),\s*"(.+)"', twins)
    worlds = {flaw: f"{seed.replace('_', '')}: {check}" for flaw, seed, check in found}
    page = PAGE.read_text() if PAGE.exists() else ""
    row = re.compile(r"^\| (.+) \| `.+` \| .+ \| (\w+): `(.+)`( \(hangs\))? \|$", re.MULTILINE)
    tests = {flaw: Test(layer, test, bool(hangs)) for flaw, layer, test, hangs in row.findall(page)}
    return sorted(
        (
            Flaw(
                name=found[1],
                file=str(path.relative_to(ROOT / "crates")),
                line=text.count("\n", 0, found.start()) + 1,
                world=worlds.get(found[1], "no world"),
                test=tests.get(found[1]),
            )
            for source in SOURCES
            for path in (ROOT / "crates" / source / "src").rglob("*.rs")
            for text in [path.read_text()]
            for found in re.finditer(r'flawed\("(.+?)"', text)
        ),
        key=lambda flaw: (flaw.file, flaw.line),
    )


@dataclass
class Layer:
    """The suites of a layer, compiled with flaws."""

    name: str
    suites: list[Suite]

    def failures(self, flaw: str, tests: Iterable[str], patience: float) -> set[Test]:
        """The tests that fail with a flaw, or hang. Without names of tests, all of them run."""
        exact = ["--exact", *tests] if tests else [SKIPPED]
        return {test for suite in self.suites for test in self._run(suite, flaw, exact, patience)}

    def _run(self, suite: Suite, flaw: str, arguments: list[str], patience: float) -> Iterable[Test]:
        environment = {
            **os.environ,
            "FLAW": flaw,
            "RUST_BACKTRACE": "0",
            "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "true",
        }
        started = subprocess.Popen(
            [*suite.command, *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        hanging: set[str] = set()
        try:
            output, _ = started.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            output, _ = started.communicate()
            listed = subprocess.check_output([*suite.command, *arguments, "--list"], cwd=ROOT, text=True)
            hanging = set(re.findall(r"^(\S+): test$", listed, re.MULTILINE))
            hanging -= set(re.findall(r"^test (\S+) .*\.\.\. \w+", output, re.MULTILINE))
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
        failed = set(re.findall(r"^test (\S+) .*\.\.\. FAILED$", output, re.MULTILINE))
        return [Test(self.name, name, name in hanging) for name in failed | hanging]

    @cached_property
    def names(self) -> set[str]:
        """All tests of the layer."""
        listed = (subprocess.check_output([*suite.command, "--list"], cwd=ROOT, text=True) for suite in self.suites)
        return {name for tests in listed for name in re.findall(r"^(\S+): test$", tests, re.MULTILINE)}

    @cached_property
    def sound(self) -> tuple[set[str], float]:
        """The tests that fail without a flaw, such as those that need a cloud, and the seconds that all tests take."""
        start = time.monotonic()
        failed = {test.name for test in self.failures("", [], 10 * PATIENCE)}
        return failed, time.monotonic() - start

    def found(self, flaw: Flaw) -> set[Test]:
        """The page's test if it fails with the flaw. Otherwise the tests of the layer that fail only with the flaw."""
        if flaw.test and flaw.test.layer == self.name:
            of_page = self.failures(flaw.name, [flaw.test.name], PATIENCE)
            if flaw.test in of_page:
                return of_page
        broken, seconds = self.sound
        return {test for test in self.failures(flaw.name, [], PATIENCE + 2 * seconds) if test.name not in broken}


def layers() -> dict[str, Layer]:
    environment = {**os.environ, "RUSTC_WORKSPACE_WRAPPER": str(ROOT / "tools/flaws_rustc")}
    suites = built(
        *(f"--exclude={package}" for package in EXCLUDED),
        "--lib",
        *(f"--test={name}" for name in ("library", "outbox", "wire")),
        environment=environment,
    )
    return {layer: Layer(layer, [suite for suite in suites if suite.name in names]) for layer, names in LAYERS.items()}


def search(named: str, known: list[Flaw]) -> list[Flaw]:
    """The flaws with the tests that find them."""
    by_layer = layers()
    wanted = [flaw for flaw in known if named in ("all", flaw.name) or (named == "new" and not flaw.test)]
    found: dict[str, set[Test]] = {}
    for flaw in wanted:
        tests = next(filter(None, (layer.found(flaw) for layer in by_layer.values())), set())
        found[flaw.name] = tests
        print(f"{flaw.file}:{flaw.line}: {flaw.name}: {len(tests)} tests", flush=True)
        for test in sorted(tests, key=str):
            print(f"    {test}", flush=True)
    times = Counter(test for tests in found.values() for test in tests)

    def chosen(flaw: Flaw) -> Test | None:
        tests = found[flaw.name]
        if flaw.test in tests:
            return flaw.test
        return min(tests, key=lambda test: (test.hangs, times[test], test.name), default=None)

    return [replace(flaw, test=chosen(flaw)) if flaw.name in found else flaw for flaw in known]


def check(known: list[Flaw]) -> bool:
    """Returns True if the test that the page names for each flaw fails with the flaw, and passes without it."""
    by_layer = layers()
    named = {layer: [flaw.test.name for flaw in known if flaw.test and flaw.test.layer == layer] for layer in by_layer}
    broken = {
        test.name
        for layer, tests in named.items()
        if tests
        for test in by_layer[layer].failures("", tests, 10 * PATIENCE)
    }

    def result(flaw: Flaw) -> str:
        if not flaw.test or flaw.test.name not in by_layer[flaw.test.layer].names:
            return "NO TEST"
        if flaw.test.name in broken:
            return "BROKEN"
        failed = by_layer[flaw.test.layer].failures(flaw.name, [flaw.test.name], PATIENCE)
        return "found" if flaw.test in failed else "PASSED"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = []
        for flaw, word in zip(known, pool.map(result, known), strict=True):
            print(f"{word:8}{flaw.name} | {flaw.file}:{flaw.line} | {flaw.world} | {flaw.test or ''}", flush=True)
            results.append(word)
    count = Counter(results)
    print(f"{len(known)} flaws:", ", ".join(f"{count[word]} {word}" for word in count))
    return set(count) == {"found"}


def main() -> int:
    unwind_on_signals()
    start = time.monotonic()
    known = flaws()
    match sys.argv[1:]:
        case []:
            passed = check(known)
        case ["--search", named] if named in ("all", "new", *(flaw.name for flaw in known)):
            known = search(named, known)
            missing = [flaw.name for flaw in known if not flaw.test]
            for name in missing:
                print(f"NO TEST {name}")
            passed = not missing
        case _:
            sys.exit("tools/flaws.py [--search all|new|FLAW]: see tests/simulation/twins.rs for the names of flaws")
    if passed or sys.argv[1:]:
        PAGE.write_text(INTRODUCTION + "".join(f"{flaw}\n" for flaw in sorted(known, key=lambda flaw: flaw.name)))
    print(f"{time.monotonic() - start:.0f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

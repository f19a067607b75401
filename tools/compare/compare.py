"""Tries known failures of other libraries on these libraries, and on sqs-once.

    python -B tools/compare/compare.py

Each scenario runs against functions with Powertools for AWS Lambda, Python (function.py) and TypeScript
(function.mjs). They are set up as documented for SQS batches, and again with each setting that affects
the failure. The table is in a MiniStack. The column of sqs-once has the results of its own tests.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import cloud
import packages
from lab import Lab, Library, Setting
from scenarios import SCENARIOS, Scenario
from suites import CARGO_TEST

HERE = Path(__file__).resolve().parent
SETTINGS = {
    "Powertools Python": {
        "lambda_context": "register_lambda_context",
        "key_required": "raise_on_no_idempotency_key",
        "validation": "payload_validation_jmespath",
        "short_timeout": "boto_config=Config(read_timeout=1)",
    },
    "Powertools TypeScript": {
        "lambda_context": "registerLambdaContext",
        "key_required": "throwOnNoIdempotencyKey",
        "validation": "payloadValidationJmesPath",
        "in_turn": "processInParallel: false",
        "short_timeout": "requestTimeout: 1000, throwOnRequestTimeout: true",
    },
}
SUITES = ["--lib", "--test", "wire", "--test", "library"]


def sqs_once() -> dict[str, str]:
    """The result of the test of each scenario."""
    tests = {scenario.test for scenario in SCENARIOS.values()}
    command = [*CARGO_TEST, *SUITES, "--", "--exact", *tests]
    ran = subprocess.run(command, cwd=cloud.ROOT, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    print(ran.stdout)
    results = dict(re.findall(r"^test (\S+) \.\.\. (\w+)", ran.stdout, re.MULTILINE))
    if missing := tests - set(results):
        raise cloud.Unavailable(f"tests of scenarios are missing: {sorted(missing)}")
    seen = {test: "holds" if result == "ok" else f"fails: the test {result}" for test, result in results.items()}
    return {name: seen[scenario.test] for name, scenario in SCENARIOS.items()}


def cell(lab: Lab, library: Library, scenario: Scenario) -> str:
    """The outcome of one scenario with one library, in words."""
    variants = [{name: value} for name, value in scenario.variants.items() if name in library.settings]
    seen: dict[str, str] = {}
    no_settings: dict[str, Setting] = {}
    for settings in (no_settings, *variants):
        how = "".join(
            f"{'with' if value else 'without'} `{library.settings[name]}`" for name, value in settings.items()
        )
        with lab.environment(library, settings) as environment:
            seen[how] = str(scenario.play(environment))
        print(f"  {how or 'as documented'}: {seen[how]}", flush=True)
    documented = seen.pop("")
    return "; ".join([documented, *(f"{how} {outcome}" for how, outcome in seen.items() if outcome != documented)])


def main() -> None:
    cloud.unwind_on_signals()
    packages.install()
    version = tomllib.loads((cloud.ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    results = sqs_once()
    with cloud.ministack("compare") as up:
        lab = Lab(up)
        libraries = [
            lab.library([sys.executable, str(HERE / "function.py")], packages.NODE, SETTINGS),
            lab.library(["node", "function.mjs"], packages.NODE, SETTINGS),
        ]
        header = [f"sqs-once {version}", *(f"{library.name} {library.version}" for library in libraries)]
        rows = []
        for name, scenario in SCENARIOS.items():
            row = [name.replace("_", " "), results[name]]
            for library in libraries:
                print(f"\n{name}: {library.name}", flush=True)
                row.append(cell(lab, library, scenario))
            rows.append(row)
    print(f"\n| | {' | '.join(header)} |\n|{' --- |' * (len(header) + 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    try:
        main()
    except cloud.Unavailable as problem:
        sys.exit(str(problem))

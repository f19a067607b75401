"""`make starter`: makes a project of each variant of `make new`, tests it, and drives its `make dev`. Then it makes the
README's first project, and compares the story that its test tells with the picture in the README.

The projects use this checkout, and share target/starter. Prints the times of `make new` and `make dev`.
"""

import difflib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import deployment
import yaml
from cloud import ROOT, MiniStack, Template, ministack, unwind_on_signals
from driven_dev import COLD, Failed, check, environment, make_dev
from suites import CARGO_TEST

LINES_OF_MAIN = 25
LINES_TO_EDIT = 25
WARM = 60  # seconds


@dataclass(frozen=True)
class Variant:
    name: str
    effect: str
    key: str
    fifo: str


# The first one has the defaults.
VARIANTS = (
    Variant("charge-cards", "outside", "body:/orderId", "no"),
    Variant("place-orders", "inbox", "attribute:order", "yes"),
    Variant("register_users", "item", "message-id", "no"),
)

# A user's first handler, which reserves seats instead of charging cards: file, text before, text after.
OWN_HANDLER = (
    ("events/orders.json", r"\"cents\":1250", r"\"seats\":2"),
    ("events/rejected.json", r"\"cents\":0", r"\"seats\":0"),
    ("src/handler.rs", "cents: u64", "seats: u32"),
    ("src/handler.rs", "order.cents == 0", "order.seats == 0"),
    ("src/handler.rs", "the amount is 0", "an order of no seats"),
    ("src/handler.rs", '"charged")', '"seats reserved")'),
    ("src/handler.rs", "charged {}", "reserved {}"),
    ("src/handler.rs", "cents: 0", "seats: 0"),
    ("src/handler.rs", "cents: 5", "seats: 5"),
)


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def command(*arguments: str, cwd: Path, tools: bool = False) -> None:
    """Runs a command as a user, or with the tools of this checkout."""
    path = {"PATH": os.environ["PATH"]} if tools else {}
    ended = subprocess.run(arguments, cwd=cwd, env=environment() | path, stdin=subprocess.DEVNULL, check=False)
    check(ended.returncode == 0, f"`{' '.join(arguments)}` failed in {cwd.name}")


# ---- the files ---------------------------------------------------------------------------------


def generate(variant: Variant, folder: Path) -> Path:
    answers = (f"EFFECT={variant.effect}", f"KEY={variant.key}", f"FIFO={variant.fifo}")
    command("make", "--no-print-directory", "new", f"DIR={folder}", f"NAME={variant.name}", *answers, cwd=ROOT)
    return folder / variant.name


def check_template(project: Path) -> None:
    command("cfn-lint", "template.yaml", cwd=project, tools=True)
    checkov = str(ROOT / ".venv-lint/bin/checkov")
    options = ("--framework", "cloudformation", "--skip-download", "--compact", "--quiet")
    command(checkov, *options, "--file", "template.yaml", cwd=project)


def check_deployment(cloud: MiniStack, project: Path) -> None:
    """The tool's doctor finds nothing in the deployed template. MiniStack ignores TTL in a template."""
    template = yaml.load((project / "template.yaml").read_text(), Loader=Template)
    function = template["Resources"]["Consumer"]
    function.pop("Metadata")  # how to build it
    with tempfile.TemporaryDirectory(prefix="starter-") as name:
        folder = Path(name)
        (folder / "bootstrap").write_text("")
        function["Properties"]["CodeUri"] = "."
        built = folder / "template.yaml"
        built.write_text(json.dumps(template))
        deployment.adapt(built)
        options = ("--template-file", str(built), "--capabilities", "CAPABILITY_IAM", "--resolve-s3")
        stack = project.name.replace("_", "-")  # a stack's name has no underscores
        deployment.deploy(cloud, stack, *options, AlarmEmail="on-call@example.com")
    doctor = [str(ROOT / "target/debug/sqs-once"), "doctor", stack, "--skip", "ttl"]
    ended = subprocess.run(doctor, env=cloud.environment(), stdin=subprocess.DEVNULL, check=False)
    check(ended.returncode == 0, f"the doctor has findings in {project.name}")


def check_own_template() -> None:
    """`make dev` of this checkout finds the table and the variables of the shipped template."""
    found = ('"$IDEMPOTENCY_TABLE_NAME" != ""', '"$CONSUMER_ENVELOPE" = none', '"$PAYMENT_GATEWAY_URL" = sandbox')
    test = " && ".join(f"test {condition}" for condition in found)
    run = ("python", "tools/dev.py", "run", "consumer", "--", "sh", "-c", test)
    command("env", "PAYMENT_GATEWAY_URL=sandbox", *run, cwd=ROOT, tools=True)


def check_source(project: Path) -> None:
    lines = len((project / "src/main.rs").read_text().splitlines())
    check(lines <= LINES_OF_MAIN, f"src/main.rs has {lines} lines")
    command("cargo", "fmt", "--check", cwd=project)
    # Clippy as the compiler of the tests: `cargo clippy` would compile every dependency a second time.
    build = ["cargo", "test", "--quiet", "--no-run"]
    linted = environment() | {"RUSTC_WORKSPACE_WRAPPER": "clippy-driver"}
    ended = subprocess.run(build, cwd=project, env=linted, stderr=subprocess.PIPE, text=True, check=False)
    check(ended.returncode == 0 and "warning" not in ended.stderr, f"Clippy in {project.name}: {ended.stderr}")


# ---- the README ---------------------------------------------------------------------------------

FROM_GIT = "--git https://github.com/sqs-once/sqs-once"
MENDED = "let key = attempt.call_key();"


def words(text: str) -> str:
    return " ".join(text.split())


def block(page: str, language: str) -> str:
    """The page's first block in this language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    check(found is not None, f"the README has no block of {language}")
    return found[1] if found else ""


def story_of_picture() -> str:
    """The lines below the command in the README's picture of a terminal."""
    picture = ElementTree.parse(ROOT / "docs/images/torture.svg")
    lines = ["".join(text.itertext()) for text in picture.iterfind("{*}text")]
    shown = words(" ".join(lines))
    at = shown.find("the effect at ")
    check(at >= 0, f"docs/images/torture.svg tells no story: {shown}")
    return shown[at:]


def check_readme(folder: Path, lock: Path) -> None:
    """The README's first project: its test fails with the story of the picture, and passes with the call key."""
    page = (ROOT / "README.md").read_text()
    commands = block(page, "sh")
    check(FROM_GIT in commands, f"the README's first commands have no `{FROM_GIT}`")
    path = shlex.quote(str(ROOT / "crates/sqs-once"))
    command("sh", "-ec", commands.replace(FROM_GIT, f"--path {path}"), cwd=folder)
    project = folder / "demo"
    # The project has the same versions, and no debug information, so all dependencies are already compiled.
    shutil.copy(lock, project)
    variables = environment() | {"CARGO_PROFILE_DEV_DEBUG": "false"}
    handler = block(page, "rust,no_run")
    mended, mistakes = re.subn(r"let key = .*", MENDED, handler)
    check(mistakes == 1 and MENDED in page, f"the README mends {mistakes} keys, and should mend one by `{MENDED}`")

    def test(source: str) -> tuple[bool, str]:
        (project / "src/main.rs").write_text(source)
        cargo = ("cargo", "test")
        ended = subprocess.run(cargo, cwd=project, env=variables, capture_output=True, text=True, check=False)
        # Cargo warns of a network that fails.
        warned = re.search(r"^warning: (?!spurious)", ended.stderr, re.MULTILINE)
        check(not warned, f"a warning for the README's handler:\n{ended.stderr}")
        return ended.returncode == 0, ended.stdout + ended.stderr

    survives, output = test(handler)
    told = not survives and story_of_picture() in words(output)
    check(told, f"the README's handler does not tell the story of docs/images/torture.svg:\n{output}")
    survives, output = test(mended)
    check(survives, f"the README's handler fails with `{MENDED}`:\n{output}")


# ---- make dev ----------------------------------------------------------------------------------


def edit(project: Path) -> int:
    """Writes the user's handler. Returns the number of changed lines."""
    changed = 0
    for name in dict.fromkeys(name for name, _, _ in OWN_HANDLER):
        file = project / name
        before = after = file.read_text()
        for other, old, new in OWN_HANDLER:
            if other == name:
                check(old in after, f"{name} has no {old}")
                after = after.replace(old, new)
        file.write_text(after)
        delta = difflib.ndiff(before.splitlines(), after.splitlines())
        changed += sum(line.startswith("+ ") for line in delta)
    return changed


def files(project: Path) -> set[str]:
    return {str(file.relative_to(project)) for file in project.rglob("*") if file.is_file()}


def drive(project: Path, since: float) -> list[str]:
    """Runs `make dev` cold, with the user's handler, and once everything is built. Returns the measured times."""
    first = {"completed": 2, "duplicate": 1, "permanent_failure": 1}
    again = {"duplicate": 3, "permanent_failure": 1}
    before = files(project)
    with make_dev(project) as dev:
        dev.wait_for(first, "messages in the dead-letter queue: 1")
        cold = time.monotonic() - since
        cloud = dev.cloud()
        queues = cloud.client("sqs").list_queues()["QueueUrls"]
        depths = sorted(deployment.depth(cloud, queue) for queue in queues)
        check(depths == [(0, 0), (1, 0)], f"queue and dead-letter queue have {depths} messages, visible and in flight")
        line = len(dev.lines)
        dev.enter()
        dev.wait_for(again, "messages in the dead-letter queue: 2", line, WARM)
        line = len(dev.lines)
        lines = edit(project)
        reload = dev.wait_for(first, "seats reserved", line, WARM)
        check(any("reloaded" in shown for shown in dev.lines[line:]), "make dev did not say that it reloaded")
        end = dev.interrupt()
    left = files(project) - before - {".local/dev.log"}
    check(not left, f"make dev left {left}")
    with make_dev(project) as dev:
        warm = dev.wait_for(first, "messages in the dead-letter queue: 1", within=WARM)
        dev.interrupt()
    check(lines <= LINES_TO_EDIT, f"the own handler takes {lines} edited lines")
    check(cold <= COLD, f"the first outcomes took {cold:.0f} s")
    return [
        f"{cold:5.0f} s  from `make new` to the first outcomes (limit {COLD})",
        f"{warm:5.0f} s  `make dev` once built, to the first outcomes (limit {WARM})",
        f"{reload:5.0f} s  from the saved change to the outcomes of the own handler",
        f"{end:5.0f} s  from Ctrl-C to the end of every process",
        f"{lines:5.0f}    edited lines to the own handler (limit {LINES_TO_EDIT})",
    ]


def main() -> int:
    unwind_on_signals()
    check_own_template()
    # The tool, from the build of `make test`.
    tool = [*CARGO_TEST, "--quiet", "--test", "cli", "--no-run"]
    subprocess.run(tool, cwd=ROOT, check=True)
    report: list[str] = []
    with tempfile.TemporaryDirectory(prefix="starter-") as name, ministack("starter") as cloud:
        folder = Path(name).resolve()
        since = time.monotonic()
        for variant in VARIANTS:
            say(f"{variant.name}: {variant.effect}, {variant.key}, FIFO {variant.fifo}")
            project = generate(variant, folder)
            if variant == VARIANTS[0]:
                report = drive(project, since)
                command("make", "--no-print-directory", "test", cwd=project)
            else:
                run = ("python", f"{ROOT}/tools/dev.py", "run", variant.name, "--", "cargo", "test", "--quiet")
                command(*run, "--", "--include-ignored", cwd=project, tools=True)
            command("cargo", "test", "--quiet", cwd=project)  # as a stranger types it, without a local cloud
            check_source(project)
            check_template(project)
            check_deployment(cloud, project)
        say("the README's first project")
        check_readme(folder, folder / VARIANTS[0].name / "Cargo.lock")
    print("\n".join(["", *report]), flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as problem:
        sys.exit(f"make starter: {problem}")

"""Checks each `aws ...` command of the documents and of the doc comments against botocore's model of its service.

Service, operation or waiter, options and their fixed values must exist. After `create-table` a script waits, because
AWS answers before the table exists. Nothing is sent. `make runbook` runs the commands of docs/runbook.md as well.

    python local/commands.py [--self-test]
"""

import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aws_cli
import jmespath  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("*.md", "docs/*.md", "starter/**/*.md", "src/**/*.rs", "crates/**/*.rs", "examples/**/*.rs")

# Commands of the AWS CLI itself, which botocore does not have.
OWN = {("configure", "export-credentials")}

FENCE = re.compile(r"^( *)```(?:sh|bash)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
COMMENT = re.compile(r"^\s*//[/!] ?", re.MULTILINE)
# An innermost `$(...)` or `$((...))`.
SUBSTITUTION = re.compile(r"\$\(\(?([^()]*)\)?\)")
PLACEHOLDER = "$substituted"


def commands(script: str) -> Iterator[list[str]]:
    """The words after each `aws` of a shell script. A substitution or variable stays a word with `$`."""
    script = script.replace("\\\n", " ")
    while found := SUBSTITUTION.search(script):
        yield from commands(found[1])
        script = script[: found.start()] + PLACEHOLDER + script[found.end() :]
    lines = iter(script.split("\n"))
    for line in lines:
        while True:
            words = shlex.shlex(line, posix=True, punctuation_chars=True)
            words.whitespace_split = True
            try:
                tokens = list(words)
                break
            except ValueError:  # A quote that ends on a later line.
                following = next(lines, None)
                if following is None:
                    raise aws_cli.Usage(f"an open quote: {line.strip()}") from None
                line = f"{line}\n{following}"
        command: list[str] | None = None
        for token in [*tokens, ";"]:
            if set(token) <= set("();<>|&"):
                if command is not None:
                    yield command
                command = None
            elif command is not None:
                command.append(token)
            elif token == "aws":
                command = []


def text(path: Path) -> str:
    """A document, or the doc comments of a Rust source. Lines keep their numbers."""
    source = path.read_text()
    if path.suffix == ".md":
        return source
    lines = (COMMENT.sub("", line) if COMMENT.match(line) else "" for line in source.split("\n"))
    return "\n".join(lines)


def problem(words: list[str], complete: bool) -> str | None:
    """The reason why AWS has no such command."""
    if tuple(words[:2]) in OWN:
        return None
    try:
        aws_cli.parse(words, complete)
    except (aws_cli.Usage, ValueError, jmespath.exceptions.ParseError) as wrong:
        return f"aws {' '.join(words[:2])}: {wrong}"
    return None


def problems(root: Path) -> tuple[int, list[str]]:
    """The number of commands, and the wrong ones."""
    count, found = 0, []
    for path in sorted({path for place in PLACES for path in root.glob(place)}):
        page = text(path)
        prose = FENCE.sub(lambda fence: re.sub(r"[^\n]", " ", fence[0]), page)
        scripts = [(fence.start(), fence[2], True) for fence in FENCE.finditer(page)]
        # In a sentence, `aws dynamodb update-table` need not name the table.
        spans = [span for span in SPAN.finditer(prose) if re.search(r"\baws\s+[a-z0-9-]+\s+[a-z]", span[2])]
        scripts += [(span.start(), " ".join(span[2].split()), False) for span in spans]
        for start, script, complete in scripts:
            where = f"{path.relative_to(root)}:{page.count(chr(10), 0, start) + 1}"
            before: list[str] = []
            try:
                for words in commands(script):
                    count += 1
                    if reason := problem(words, complete):
                        found.append(f"{where}: {reason}")
                    if before[:2] == ["dynamodb", "create-table"] and words[:3] != ["dynamodb", "wait", "table-exists"]:
                        found.append(f"{where}: aws {' '.join(words[:2])}: the new table may not exist yet")
                    before = words
            except aws_cli.Usage as wrong:
                found.append(f"{where}: {wrong}")
    return count, found


# A wrong command, and a word of the message.
WRONG = {
    "aws lambdas list-functions": "lambdas",
    "aws lambda update-event-source-mappings --uuid u --no-enabled": "update-event-source-mappings",
    "aws lambda update-event-source-mapping --id u --no-enabled": "--id",
    "aws lambda update-event-source-mapping --uuid u --not-enabled": "--not-enabled",
    "aws lambda update-event-source-mapping --no-enabled": "UUID",
    "aws sqs get-queue-attributes --queue-url u --attribute-names Depth": "Depth",
    "aws sqs list-queues --output table-of-text": "table-of-text",
    "aws sqs list-queues --query 'QueueUrls['": "QueueUrls[",
    "aws dynamodb create-table --table-name t --key-schema AttributeName=id,KeyType=HASH"
    " --attribute-definitions AttributeName=id,AttributeType=S\n   aws dynamodb list-tables": "may not exist",
    "aws dynamodb wait table-there --table-name t": "table-there",
    "aws dynamodb wait table-exists --name t": "--name",
    "aws dynamodb update-time-to-live --table-name t --time-to-live-specification On=true,AttributeName=e": "On",
    'until [ "$(aws sqs list-queue --query Queue)" = none ]; do sleep 1; done': "list-queue",
    "id=$(aws sqs list-queues --start $(($(date +%s) - 3600)) --output text)": "--start",
    "TABLE=t aws dynamodb list-tables --max 1 | sort": "--max",
    'aws dynamodb put-item --table-name t \\\n    --item \'{"id":\n{"S": "a"}}\' --if-new': "--if-new",
}
RIGHT = """
aws dynamodb create-table --table-name t --key-schema AttributeName=id,KeyType=HASH \\
    --attribute-definitions AttributeName=id,AttributeType=S
aws dynamodb wait table-exists --table-name "$TABLE"
if [ "$(aws sqs list-queues --query 'QueueUrls[0]')" ]; then echo "aws is not a command here"; fi
aws lambda list-functions --max-items $COUNT && aws sqs get-queue-url --queue-name "$(echo q)"
"""


def self_test() -> None:
    """Each wrong command is found, and no right one."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "src").mkdir()
        for command, word in WRONG.items():
            (root / "page.md").write_text(f"1. Run:\n\n   ```sh\n   {command}\n   ```\n")
            if not any(word in found for found in problems(root)[1]):
                sys.exit(f"commands.py accepts `{command}`: {problems(root)}")
        (root / "page.md").write_text(
            f"```sh\n{RIGHT}```\nUse `aws dynamodb update-table\n--no-deletion-protection-enabled`.\n"
        )
        if problems(root) != (6, []):
            sys.exit(f"commands.py does not work: {problems(root)}")
        (root / "page.md").write_text("")
        (root / "src/lib.rs").write_text("//! ```sh\n//! aws dynamodb update-tables\n//! ```\n/// `aws sqs purge`\n")
        found = [line.split(": ")[0] for line in problems(root)[1]]
        if found != ["src/lib.rs:1", "src/lib.rs:4"]:
            sys.exit(f"commands.py does not work: {problems(root)}")


def main() -> int:
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    count, found = problems(ROOT)
    if not count:
        found = ["no document has a command of AWS"]
    print("\n".join(found) or f"{count} commands of AWS, each as in botocore")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

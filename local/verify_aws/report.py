"""The report of a run: a table on the terminal, and the same as JSON and Markdown.

It holds no account id and no payload.
"""

import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.table import Table

from verify_aws.check import Check, Verdict

COLOURS = {Verdict.HOLDS: "green", Verdict.DIFFERS: "red", Verdict.NOT_CHECKED: "yellow"}
ACCOUNT = re.compile(r"(?<![\w-])\d{12}(?![\w-])")


@dataclass(frozen=True)
class Row:
    check: str
    subject: str
    assumption: str
    places: list[str]
    seen: str
    verdict: Verdict
    failed: bool = False  # not checked, although it should have been


def row(check: Check, verdict: Verdict, seen: str, failed: bool = False) -> Row:
    places = [f"{file} ({text})" for file, text in check.places]
    return Row(check.name, check.subject, check.assumption, places, seen, verdict, failed)


@dataclass(frozen=True)
class Report:
    """The rows of a run. `target` is AWS, or the emulator of a dry run."""

    target: str
    region: str
    architecture: str
    version: str
    date: str
    rows: list[Row]
    actions: list[str] = field(default_factory=list)  # those of IAM that the run's own requests needed

    @property
    def holds(self) -> bool:
        """Tells if every assumption that was checked holds, and every check that should run did."""
        return not any(row.verdict is Verdict.DIFFERS or row.failed for row in self.rows)

    @property
    def sentence(self) -> str:
        counts = {v: sum(row.verdict is v for row in self.rows) for v in Verdict}
        return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict)

    def table(self) -> Table:
        table = Table(box=box.ROUNDED, show_lines=True)
        for column in ("check", "assumption, and where it stands", "seen", "verdict"):
            table.add_column(column)
        for row in self.rows:
            where = "\n".join(row.places)
            verdict = f"[{COLOURS[row.verdict]}]{row.verdict.value}[/]"
            table.add_row(row.check, f"{row.assumption}\n[dim]{where}[/]", clean(row.seen).replace("[", r"\["), verdict)
        return table

    def json(self) -> str:
        content = dataclasses.asdict(self) | {"holds": self.holds}
        content["rows"] = [dataclasses.asdict(row) | {"verdict": row.verdict.value} for row in self.rows]
        return clean(json.dumps(content, indent=2)) + "\n"

    def markdown(self) -> str:
        lines = [
            f"# verify-aws: {self.sentence}",
            "",
            f"sqs-once {self.version} on {self.target}, {self.region}, {self.architecture}, {self.date}.",
            "",
            "| check | assumption | stands in | seen | verdict |",
            "| --- | --- | --- | --- | --- |",
        ]
        for row in self.rows:
            cells = (f"`{row.check}`", row.assumption, "<br>".join(row.places), row.seen, row.verdict.value)
            lines.append("| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |")
        return clean("\n".join(lines)) + "\n"

    def write(self, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        files = folder / "report.json", folder / "report.md"
        for file, text in zip(files, (self.json(), self.markdown()), strict=True):
            file.write_text(text)
        return list(files)


def clean(text: str) -> str:
    """Without account ids."""
    return ACCOUNT.sub("ACCOUNT", text)

"""The journal of a run: one line on disk before each creation, so that a later run can remove the rest.

.local/verify-aws/RUN.jsonl
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cloud import STATE

FOLDER = STATE / "verify-aws"
RUN = re.compile(r"^[0-9a-f]{8}$")


@dataclass(frozen=True)
class Entry:
    kind: str
    name: str


class Journal:
    """The resources that a run created and has not removed. The file is locked while the run lives."""

    def __init__(self, run: str, file: IO[str], lines: list[dict[str, str]]) -> None:
        self.run = run
        self._file = file
        self._lines = lines

    @classmethod
    def open(cls, run: str, folder: Path = FOLDER) -> "Journal | None":
        """The journal of this run, a new one if there is none. `None` while another process has it."""
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"{run}.jsonl").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        file.seek(0)
        lines = []
        for line in file:
            # A killed process may have written half of its last line, and then created nothing for it.
            if line.endswith("\n"):
                lines.append(json.loads(line))
        return cls(run, file, lines)

    @staticmethod
    def runs(folder: Path = FOLDER) -> list[str]:
        """The runs that have a journal."""
        return sorted(path.stem for path in folder.glob("*.jsonl") if RUN.match(path.stem))

    def place(self, account: str, region: str) -> None:
        self._write({"account": account, "region": region})

    def is_of(self, account: str, region: str) -> bool:
        """Tells if the run worked in this account and Region. A run that noted neither has created nothing."""
        places = [(line["account"], line["region"]) for line in self._lines if "account" in line]
        return not places or (account, region) in places

    def intends(self, kind: str, name: str) -> None:
        """Notes a resource that is created next."""
        self._write({"intends": kind, "name": name})

    def removed(self, kind: str, name: str) -> None:
        self._write({"removed": kind, "name": name})

    def checked(self, check: str) -> None:
        """Notes a check that has run."""
        self._write({"checked": check})

    def left(self) -> Iterator[Entry]:
        """The resources that may exist, the newest first."""
        gone = {(line["removed"], line["name"]) for line in self._lines if "removed" in line}
        made = dict.fromkeys((line["intends"], line["name"]) for line in self._lines if "intends" in line)
        yield from (Entry(*pair) for pair in reversed(made) if pair not in gone)

    def close(self) -> None:
        """Unlocks the journal, for the tests."""
        self._file.close()

    def end(self) -> None:
        """Deletes the journal of a run that left nothing."""
        os.unlink(self._file.name)
        self._file.close()

    def _write(self, line: dict[str, str]) -> None:
        self._lines.append(line)
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

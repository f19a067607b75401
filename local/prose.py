"""Checks the prose of the repository: openings of sentences, free relatives, banned phrases, test names.

Reads comments, documents, help texts, template descriptions and messages in macros. Prints one line per
finding and a summary, and exits with 1 above a limit.

    python local/prose.py [PATH ...]     PATH is the start of a path in the repository
    python local/prose.py --self-test
"""

import ast
import io
import re
import statistics
import sys
import tokenize
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

FREE_RELATIVES_PER_1000 = 1
NAME_LIMIT = 60
NAME_MEDIAN = 40

# Regular expressions, in lower case.
BANNED = (
    r"\b(is|are|was|were|be|been|being) told\b",
    r"\b(is|are|was|still) at it\b",
    r"\bfor good\b(?! \w+s\b)",
    r"\blet(s|ting)? go of\b",
    r"\bseen again\b",
    r"\bof another make\b",
    r"\bmend(s|ed|ing)?\b",
    r"(?<!there )\b(is|are|was|were) (?-i:none)\b",
    r"(?<!injected )(?<!network )\bfaults\b",
    r"\bas it must be\b",
)

# A cell with "none" alone is a value.
OPENING = re.compile(r"\W*(what|who|whether|nobody|none(?!\W*$))\b(?!')", re.IGNORECASE)
# A bare "what" heads a column. An ordinary relative clause has its "who" after a noun.
FREE_RELATIVE = re.compile(
    r"\b(what(ever)?\s+\w|whoever\b|that which\b"
    r"|((to|by|from|of|for|with|than|and|or|say|says|tell|tells|know|knows|see|sees|ask|asks|show|shows|decides)\s+)who\s)",
    re.IGNORECASE,
)
PHRASE = re.compile("|".join(BANNED), re.IGNORECASE)
TEST_NAME_OPENING = re.compile(r"(what|who|whether|nobody|none|it)_")


class Text(NamedTuple):
    """A paragraph, cell or message. Each of its lines is one line of the file, from `line` on."""

    line: int
    text: str

    def line_at(self, position: int) -> int:
        return self.line + self.text.count("\n", 0, position)


class Finding(NamedTuple):
    kind: str
    path: str
    line: int
    text: str


# ---- from files to paragraphs --------------------------------------------------------------------

# A table's row, a heading, or an item of a list starts a paragraph.
BLOCK_START = re.compile(r"\s*(#{1,6}\s|[-*+]\s|\d+\.\s|\|)")


def blank(found: re.Match[str]) -> str:
    """A code span's replacement: one word, with the line breaks of the span."""
    return "CODE" + "\n" * found[0].count("\n")


def without_code(text: str) -> str:
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", blank, text, flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)|https?://\S+", "", text)


def markdown(text: str, line: int = 1) -> Iterator[Text]:
    """Paragraphs, headings, list items and table cells of Markdown, without its code."""
    block: list[str] = []
    fenced = False
    for number, content in enumerate([*text.split("\n"), ""], line):
        content = re.sub(r"^\s*>\s?", "", content)
        fence = re.match(r"\s*(```|~~~)", content)
        if block and (fence or not content.strip() or BLOCK_START.match(content)):
            yield Text(number - len(block), without_code("\n".join(block)))
            block = []
        fenced ^= bool(fence)
        if fence or fenced or not content.strip():
            continue
        if content.lstrip().startswith("|"):
            yield from (Text(number, cell.strip()) for cell in without_code(content).split("|") if cell.strip())
        else:
            block.append(content)


def paragraphs(comments: list[tuple[int, str, str]]) -> Iterator[Text]:
    """Paragraphs of comments, each given as (line, marker, text). Adjacent lines of one marker belong together."""
    run: list[str] = []
    last = (0, "")
    for line, marker, text in [*comments, (0, "", "")]:
        if run and (line, marker) != (last[0] + 1, last[1]):
            yield from markdown("\n".join(run), last[0] - len(run) + 1)
            run = []
        run.append(text)
        last = (line, marker)


RUST_TOKEN = re.compile(
    r"(?P<comment>(?P<marker>//[/!]?)(?P<text>[^\n]*)|/\*.*?\*/)"
    r'|b?r(?P<hashes>#*)"(?P<raw>.*?)"(?P=hashes)'
    r'|b?"(?P<string>(?:\\.|[^"\\])*)"'
    r"|'(?:\\[^']*'?|[^'\\])'",
    re.DOTALL,
)
MESSAGE = re.compile(
    r"\b(?:error|trace|debug|info|warn|panic|unreachable|assert\w*|prop_assert\w*|write|writeln|format|expect)!?\("
)


class Rust(NamedTuple):
    code: str
    comments: list[tuple[int, str, str]]
    strings: dict[int, Text]


def rust(source: str) -> Rust:
    """Source with comments and literals blanked, the comments, and the strings by their position."""
    comments: list[tuple[int, str, str]] = []
    strings: dict[int, Text] = {}

    def take(found: re.Match[str]) -> str:
        line = source.count("\n", 0, found.start()) + 1
        string = found["string"] if found["raw"] is None else found["raw"]
        if found["marker"]:
            alone = not source[source.rfind("\n", 0, found.start()) + 1 : found.start()].strip()
            comments.append((line, found["marker"] if alone else f"after code, {line}", found["text"]))
        elif string is not None:
            strings[found.start()] = Text(line, string)
        return re.sub(r"[^\n]", " ", found[0])

    return Rust(RUST_TOKEN.sub(take, source), comments, strings)


def closing(code: str, start: int) -> int:
    """Position of the parenthesis that closes the one before `start`."""
    depth = 1
    for found in re.compile(r"[()]").finditer(code, start):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.start()
    return len(code)


def messages(parsed: Rust) -> Iterator[Text]:
    """Strings of three words and more in errors, log lines and assertions."""
    seen: set[int] = set()
    for macro in MESSAGE.finditer(parsed.code):
        end = closing(parsed.code, macro.end())
        seen.update(position for position in parsed.strings if macro.end() <= position < end)
    for position in sorted(seen):
        line, text = parsed.strings[position]
        if len(text.split()) >= 3:
            text = re.sub(r"\{[^{}]*\}", "VALUE", re.sub(r"\\\n\s*", "\n", text))
            yield Text(line, without_code(text))


def rust_texts(source: str) -> Iterator[Text]:
    parsed = rust(source)
    yield from paragraphs(parsed.comments)
    yield from messages(parsed)


def test_names(source: str) -> Iterator[tuple[int, str]]:
    code = rust(source).code
    pattern = r"#\[(?:tokio::)?test\b[^\]]*\](?:\s*#\[[^\]]*\])*\s*(?:pub )?(?:async )?fn (\w+)"
    for found in re.finditer(pattern, code):
        yield code.count("\n", 0, found.start(1)) + 1, found[1]


def python_texts(source: str) -> Iterator[Text]:
    comments: list[tuple[int, str, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            marker = "#" if alone else f"after code, {token.start[0]}"
            comments.append((token.start[0], marker, token.string[1:]))
    yield from paragraphs(comments)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if docstring := ast.get_docstring(node, clean=False):
            yield from markdown(docstring, node.body[0].lineno)


def config_texts(source: str) -> Iterator[Text]:
    """`#` comments, the help texts of Makefile targets (`## ...`), and `Description:` in templates."""
    lines = source.split("\n")
    comments: list[tuple[int, str, str]] = []
    for number, line in enumerate(lines, 1):
        if comment := re.match(r"\s*#+ (.*)", line):
            comments.append((number, "#", comment[1]))
        elif help_text := re.match(r"[\w-]+:.*?## (.*)", line):
            comments.append((number, f"help, {number}", help_text[1]))
        elif description := re.match(r"(\s*)Description:\s*(.*)", line):
            comments.append((number, f"description, {number}", re.sub(r"^[>|]-?$", "", description[2])))
            for below, text in enumerate(lines[number:], number + 1):
                if not re.match(rf"{description[1]}\s+\S", text):
                    break
                comments.append((below, f"description, {number}", text))
    yield from paragraphs(comments)


READERS: dict[str, tuple[Callable[[str], Iterator[Text]], tuple[str, ...]]] = {
    "Rust": (
        rust_texts,
        (
            *(f"{folder}/**/*.rs" for folder in ("src", "crates", "tests", "benches", "examples")),
            "fuzz/*.rs",
            "fuzz/fuzz_targets/*.rs",
        ),
    ),
    "Markdown": (markdown, ("*.md", "docs/**/*.md", "examples/**/*.md")),
    "Python": (python_texts, ("local/**/*.py", "tests/**/*.py")),
    "configuration": (
        config_texts,
        (
            "Makefile",
            "template.yaml",
            "examples/**/*.yaml",
            "*.toml",
            "crates/*/Cargo.toml",
            ".ci/run",
            ".github/workflows/*.yml",
        ),
    ),
}


# ---- from paragraphs to findings -----------------------------------------------------------------


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Position and text of each sentence."""
    start = 0
    for end in re.finditer(r"[.!?][\"')\]*_]*(?=\s)|$", text):
        if text[start : end.end()].strip():
            yield start, text[start : end.end()]
        start = end.end()


def words(text: str) -> int:
    return len(re.findall(r"[A-Za-z][\w'-]*", text))


def findings_in(path: str, text: Text) -> Iterator[Finding]:
    for start, sentence in sentences(text.text):
        if sentence.rstrip("\"')]*_ \n").endswith("?"):
            continue
        hits = [("opening", found) for found in [OPENING.match(sentence)] if found]
        hits += [("free relative", found) for found in FREE_RELATIVE.finditer(sentence)]
        hits += [("banned phrase", found) for found in PHRASE.finditer(sentence)]
        for kind, found in hits:
            excerpt = " ".join(sentence[max(0, found.start() - 30) : found.end() + 50].split())
            # The opening's own match starts before its line break.
            yield Finding(kind, path, text.line_at(start + found.end() - 1), excerpt)


def findings_in_names(path: str, names: list[tuple[int, str]]) -> Iterator[Finding]:
    for line, name in names:
        if len(name) > NAME_LIMIT:
            yield Finding(f"test name of {len(name)} characters", path, line, name)
        if TEST_NAME_OPENING.match(name):
            yield Finding("test name's opening", path, line, name)


class Report(NamedTuple):
    findings: list[Finding]
    words: int
    names: list[str]

    def count(self, kind: str) -> int:
        return sum(finding.kind.startswith(kind) for finding in self.findings)

    def measured(self) -> list[tuple[str, float, bool]]:
        """Each measure: its name, its value, and whether the limit is kept."""
        relatives = 1000 * self.count("free relative") / max(1, self.words)
        median = statistics.median(map(len, self.names)) if self.names else 0
        return [
            ("sentences opening with What/Who/Whether/Nobody/None", self.count("opening"), not self.count("opening")),
            ("free relatives per 1,000 words", round(relatives, 2), relatives < FREE_RELATIVES_PER_1000),
            ("banned phrases", self.count("banned"), not self.count("banned")),
            (f"test names over {NAME_LIMIT}, or opening with what_, ...", self.count("test"), not self.count("test")),
            ("median length of a test name", median, median <= NAME_MEDIAN),
        ]


def report(files: dict[str, tuple[str, str]]) -> Report:
    """Report on files, given as path: (reader, source)."""
    findings: list[Finding] = []
    all_names: list[str] = []
    total = 0
    for path, (reader, source) in files.items():
        for text in READERS[reader][0](source):
            findings += findings_in(path, text)
            total += words(text.text)
        if reader == "Rust":
            names = list(test_names(source))
            findings += findings_in_names(path, names)
            all_names += [name for _, name in names]
    return Report(findings, total, all_names)


def project_files(only: list[str]) -> dict[str, tuple[str, str]]:
    files = {}
    for reader, (_, patterns) in READERS.items():
        for file in sorted(chain.from_iterable(map(ROOT.glob, patterns))):
            path = file.relative_to(ROOT).as_posix()
            if "node_modules" not in path and (not only or any(path.startswith(prefix) for prefix in only)):
                files[path] = (reader, file.read_text())
    return files


# ---- the check of the checks ---------------------------------------------------------------------

BAD_RUST = """
/// What a worker holds.
//! Fine. Whether the lease is over
//! is told to the handler.
fn a<'a>() { ('"', r#"a " // What is in code"#); warn!("{what} is None, what it holds", f("none of it, that is")); }
// Says `what the code is` and
// lets go of the record.
#[tokio::test(start_paused = true)]
#[ignore]
async fn what_a_test_says_is_too_long_for_the_median() {}
#[derive(Error)] #[error("the environment is not as it must be")]
/// ```
/// // What is in code does not count, nor faults.
/// ```
/// What is asked?
"""
BAD_MARKDOWN = (
    "# What is asked?\n\nText.\n\n## What is not\n\n| what | it is none |\n\n- `what a code` span\n\n    None of it\n"
)
BAD_PYTHON = (
    '"""Fine.\n\nNobody knows what it is."""\n'
    "x = 1  # the worker to who it belongs\n# faults\n# injected faults, if there is none\n"
)
BAD_CONFIG = (
    "help: ## What it does\nD:\n  Description: >-\n    A key that\n    is mended\n  Type: what is\n# Whoever reads\n"
)


def self_test() -> None:
    """Each bad sentence is found on its line, and nothing else."""

    def found(reader: str, source: str) -> list[tuple[str, int]]:
        return sorted((finding.kind, finding.line) for finding in report({"file": (reader, source)}).findings)

    def expect(reader: str, source: str, expected: list[tuple[str, int]]) -> None:
        if (got := found(reader, source)) != sorted(expected):
            sys.exit(f"prose.py does not work: {reader}: {got}, not {sorted(expected)}")

    opening, relative, banned, name = "opening", "free relative", "banned phrase", "test name's opening"
    rust_findings = [(opening, 2), (relative, 2), (opening, 3), (banned, 4), (opening, 5), (relative, 5)]
    expect("Rust", BAD_RUST, [*rust_findings, (banned, 7), (name, 10), (banned, 11)])
    expect("Markdown", BAD_MARKDOWN, [(opening, 5), (relative, 5), (opening, 7), (banned, 7), (opening, 11)])
    expect("Python", BAD_PYTHON, [(opening, 3), (relative, 3), (relative, 4), (banned, 5)])
    expect("configuration", BAD_CONFIG, [(opening, 1), (relative, 1), (banned, 5), (relative, 7)])
    long_name = f"#[test]\nfn {'x' * (NAME_LIMIT + 1)}() {{}}"
    expect("Rust", long_name, [(f"test name of {NAME_LIMIT + 1} characters", 2)])
    bad = report({"file": ("Rust", BAD_RUST + long_name)})
    good = report({"file": ("Rust", "/// Returns the lease.\n#[test]\nfn claim_is_refused() {}\n")})
    if any(kept for _, _, kept in bad.measured()) or not all(kept for _, _, kept in good.measured()):
        sys.exit("prose.py does not work: limits")


def main() -> int:
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    files = project_files(sys.argv[1:])
    if not files:
        sys.exit("prose.py: no such file")
    result = report(files)
    for finding in result.findings:
        print(f"{finding.path}:{finding.line}: {finding.kind}: {finding.text}")
    print(f"{len(files)} files, {result.words} words, {len(result.names)} tests")
    for measure, value, kept in result.measured():
        print(f"  {'ok ' if kept else 'BAD'} {value:>6} {measure}")
    return 0 if all(kept for _, _, kept in result.measured()) else 1


if __name__ == "__main__":
    sys.exit(main())

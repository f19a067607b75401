"""Checks the book, which is docs/: links, the list of pages, the Rust blocks that doctests compile, and numbers of AWS.

1. A link between documents names an existing file, and an existing heading of it. A page of the book links to a file
   outside of docs/ by the repository's address, because mdBook copies docs/ alone.
2. docs/SUMMARY.md lists each page once.
3. tests/pages includes each page with Rust blocks, so that `cargo test --doc` compiles them.
4. A block below a comment `<!-- from FILE -->` is a part of that file.
5. A price, and a number that is bold in docs/aws-numbers.md, stands in that page alone and in tables that a script
   writes. In a template it may be a value, and in no text. Each number of that page has its source and its date.

    python local/book.py [--self-test]
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/sqs-once/sqs-once"

LINK = re.compile(r"(?<!\\)\]\(\s*<?([^)\s>]+)>?[^)]*\)")
CODE = re.compile(r"^\s*(```|~~~).*?^\s*\1\s*$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
QUOTE = re.compile(r"^<!-- from (\S+) -->\n```[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUST = re.compile(r"^\s*```rust\b(?!,ignore)", re.MULTILINE)

# A table that a script writes.
WRITTEN = re.compile(r"<!-- local/\S+: .*? -->\n.*?<!-- end -->", re.DOTALL)
WRITTEN_PAGES = ("speed.md",)  # by `make bench`
NUMBERS = "aws-numbers.md"
PAGES = "tests/pages/src/lib.rs"
BOLD = re.compile(r"\*\*([\d,.]+)\*\*")
DATE = re.compile(r"\d{4}-\d\d-\d\d")
PRICE = re.compile(r"\$\d[\d,.]*")


TEMPLATES = ("template.yaml", "examples/*.template.yaml", "starter/template/template.yaml")


def blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mdBook make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", CODE.sub(blank, page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = base = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        count = 0
        while slug in found:
            count += 1
            slug = f"{base}-{count}"
        found.add(slug)
    return found


def links(page: Path) -> Iterator[tuple[int, str]]:
    """Line and target of each link of a page, without its code."""
    # A code span as a link's text stays a link: its brackets are outside of the span.
    text = SPAN.sub(blank, CODE.sub(blank, page.read_text()))
    for found in LINK.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found[1]


def problem(root: Path, page: Path, link: str) -> str | None:
    """The reason why a link leads nowhere."""
    target, _, anchor = link.partition("#")
    if target == REPOSITORY:
        file = root / "README.md"
    elif target.startswith(f"{REPOSITORY}/"):
        path = re.fullmatch(rf"{REPOSITORY}/(?:blob|tree)/main/(.+)", target)
        if path is None:
            return None if "/issues" in target or "/pull" in target or "/releases" in target else "unknown address"
        file = root / path[1]
    elif re.match(r"[a-z]+:", target):
        return None
    else:
        file = (page.parent / target).resolve() if target else page
        docs = root / "docs"
        if page.parent == docs and not file.is_relative_to(docs):
            return f"leaves docs/: write {REPOSITORY}/blob/main/..."
    if not file.exists():
        return "no such file"
    if anchor and file.suffix == ".md" and anchor not in anchors(file):
        return "no such heading"
    return None


def numbers(root: Path) -> Iterator[str]:
    """Numbers of AWS outside of their page, and rows of that page without source or date."""
    docs = root / "docs"
    page = (docs / NUMBERS).read_text()
    # Also without commas.
    written = "|".join(re.escape(number).replace(",", ",?") for number in BOLD.findall(page))
    single = rf"(?<![\d,.])(?:{written})(?![\d,]*\d)" if written else "(?!)"
    elsewhere = re.compile(f"{PRICE.pattern}|{single}")
    for path in [*sorted(root.glob("*.md")), *sorted(docs.glob("*.md"))]:
        if path.name in (NUMBERS, *WRITTEN_PAGES):
            continue
        text = SPAN.sub(blank, CODE.sub(blank, WRITTEN.sub(blank, path.read_text())))
        for found in elsewhere.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{path.relative_to(root)}:{line}: {found[0]} stands in docs/{NUMBERS}: link to that page"
    # Behind a name it is a value, which has to be there.
    in_text = re.compile(rf"(?<!: ){single}")
    for path in sorted(path for pattern in TEMPLATES for path in root.glob(pattern)):
        for found in in_text.finditer(text := path.read_text()):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{path.relative_to(root)}:{line}: {found[0]} stands in docs/{NUMBERS}: name that page"
    width = 0  # of a table of numbers
    for number, row in enumerate(page.split("\n"), 1):
        cells = [cell.strip() for cell in row.strip("|").split("|")] if row.startswith("|") else []
        if cells[-1:] == ["looked up"] or not cells:
            width = len(cells)
        elif width and set(row) - set("|- ") and not (len(cells) == width and all(cells) and DATE.fullmatch(cells[-1])):
            yield f"docs/{NUMBERS}:{number}: a number has a value, a page of AWS and a date"


def problems(root: Path) -> Iterator[str]:
    docs = root / "docs"
    yield from numbers(root)
    for page in [*sorted(root.glob("*.md")), *sorted(docs.glob("*.md"))]:
        for line, link in links(page):
            if reason := problem(root, page, link):
                yield f"{page.relative_to(root)}:{line}: {link}: {reason}"
    pages = sorted(path.name for path in docs.glob("*.md") if path.name != "SUMMARY.md")
    listed = [link for _, link in links(docs / "SUMMARY.md")]
    for name in pages:
        if listed.count(name) != 1:
            yield f"docs/SUMMARY.md: {name} is listed {listed.count(name)} times"
    for name in pages:
        for file, quote in QUOTE.findall((docs / name).read_text()):
            if quote not in (root / file).read_text():
                yield f"docs/{name}: a block is not a part of {file}"
    included = (root / PAGES).read_text()
    for name in pages:
        if RUST.search((docs / name).read_text()) and f'/docs/{name}")' not in included:
            yield f"{PAGES}: the Rust blocks of docs/{name} are no doctests"


def self_test() -> None:
    """Each mistake is found, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        (root / "docs").mkdir()
        (root / "src").mkdir()
        (root / PAGES).parent.mkdir(parents=True)
        (root / "README.md").write_text("# Top\n\n[a](docs/a.md#one-two_x) [b](docs/none.md)\n")
        page = [
            "# One `two_x`",
            f"[`code`](#one-two_x) `[c](c)` [d](#none) [e](../README.md) [f]({REPOSITORY}#top) [g]({REPOSITORY}#no)",
            "```rust",
            "[h](h)",
            "```",
            f"[i]({REPOSITORY}/blob/main/src/lib.rs) [j]({REPOSITORY}/blob/main/src/none.rs)",
        ]
        (root / "docs/a.md").write_text("\n".join(page))
        (root / "docs/b.md").write_text(
            "[s](https://example.com)\n```rust\n```\n"
            '<!-- from src/lib.rs -->\n```rust,ignore\n include_str!("../docs/b.md")\n```\n'
            "<!-- from src/lib.rs -->\n```rust,ignore\nother\n```\n"
        )
        (root / "docs/SUMMARY.md").write_text("- [B](b.md)\n- [AWS](aws-numbers.md)\n")
        rows = [
            "| price | value | AWS page | looked up |",
            "| --- | --- | --- | --- |",
            "| a | **1,250** | b | 2026-11-23 |",
        ]
        (root / "docs/aws-numbers.md").write_text(
            "\n".join([*rows, "| c | $0.40 | | 2026-11-23 |", "| d | 5 | e | f |"])
        )
        written = "<!-- local/sizing.py: t -->\n$3.00 and 1,250\n<!-- end -->"
        (root / "SECURITY.md").write_text(f"$1 `$2` 11,250 1,250,000 1,250.\n{written}\n")
        (root / "template.yaml").write_text("A: 1250 # 1250\nDescription: from 1,250 a second, 11250 and 1250000\n")
        (root / "src/lib.rs").write_text(' include_str!("../docs/b.md")\n')
        (root / PAGES).write_text('include_str!("../../../docs/b.md")\n')
        found = [line.split(": ")[:2] for line in problems(root)]
        expected = [
            ["SECURITY.md:1", "$1 stands in docs/aws-numbers.md"],
            ["SECURITY.md:1", "1,250 stands in docs/aws-numbers.md"],
            ["template.yaml:1", "1250 stands in docs/aws-numbers.md"],
            ["template.yaml:2", "1,250 stands in docs/aws-numbers.md"],
            ["docs/aws-numbers.md:4", "a number has a value, a page of AWS and a date"],
            ["docs/aws-numbers.md:5", "a number has a value, a page of AWS and a date"],
            ["README.md:3", "docs/none.md"],
            ["docs/a.md:2", "#none"],
            ["docs/a.md:2", "../README.md"],
            ["docs/a.md:2", f"{REPOSITORY}#no"],
            ["docs/a.md:6", f"{REPOSITORY}/blob/main/src/none.rs"],
            ["docs/SUMMARY.md", "a.md is listed 0 times"],
            ["docs/b.md", "a block is not a part of src/lib.rs"],
            [PAGES, "the Rust blocks of docs/a.md are no doctests"],
        ]
        if found != expected:
            sys.exit(f"book.py does not work: {found}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    elif found := list(problems(ROOT)):
        sys.exit("\n".join(found))

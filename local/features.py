"""Checks the crate's features.

1. Combinations of features compile and document without a warning.
2. The documents name the number of crates that each combination brings.
3. The crates of OpenTelemetry come with the feature `opentelemetry` alone, those of sqlx with `postgres`.
4. The documentation of the default features lists at most 66 types and traits.
5. The sample's handler can be replaced in three files.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A change that needs more raises the limit and says why. The 66th is `CrashWaits`: how long a message rests that
# ended its process alone, which users of `Once` set.
MAX_PUBLIC_TYPES = 66

NONE: tuple[str, ...] = ("--no-default-features",)
LIBRARY = ("--no-default-features", "--features", "lambda")
DEFAULT: tuple[str, ...] = ()
TRACES = ("--features", "opentelemetry")
POSTGRES = ("--features", "postgres")
S3 = ("--features", "s3")
COMBINATIONS = (
    NONE,
    ("--no-default-features", "--features", "testing"),
    ("--no-default-features", "--features", "cli"),
    ("--no-default-features", "--features", "s3"),
    ("--no-default-features", "--features", "opentelemetry"),
    ("--no-default-features", "--features", "outbox"),
    ("--no-default-features", "--features", "postgres"),
    ("--no-default-features", "--features", "postgres,lambda"),
    LIBRARY,
    DEFAULT,
    ("--all-features",),
)

# Replaces payments.rs, order.rs and gateway.rs.
OWN_HANDLER = """\
use sqs_once::{Attempt, Consumer, Failure, Handler, Once, Settings, SettingsError, store::AnyStore};

struct Greet;

impl Handler for Greet {
    type Message = serde_json::Value;
    type Output = String;

    async fn handle(&self, _: serde_json::Value, attempt: Attempt) -> Result<String, Failure> {
        Ok(format!("hello {}", attempt.key()))
    }
}

pub(crate) async fn consumer(
    settings: Settings,
) -> Result<Consumer<Once<AnyStore>, impl Handler<Output = String>>, SettingsError> {
    settings.once(Ok(Greet)).await
}
"""


def cargo(*arguments: str, cwd: Path = ROOT) -> None:
    environment = os.environ | {"CARGO_TARGET_DIR": str(ROOT / "target"), "RUSTDOCFLAGS": "-D warnings"}
    print("==> cargo", *arguments, flush=True)
    if subprocess.run(["cargo", *arguments], cwd=cwd, env=environment, check=False).returncode != 0:
        sys.exit(1)


def check_combinations() -> None:
    for features in COMBINATIONS:
        cargo("clippy", "--quiet", "--locked", "--lib", "--bins", *features, "--", "-D", "warnings")
        cargo("doc", "--quiet", "--locked", "--no-deps", "--lib", *features)


def crates(features: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Name and version of the crates in the dependency tree of the library on Lambda, without the crate itself."""
    tree = ["cargo", "tree", "--locked", "--target", "x86_64-unknown-linux-gnu", "-e", "normal"]
    tree += ["--prefix", "none", "--no-dedupe", "--format", "{p}", *features]
    lines = subprocess.run(tree, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return {tuple(line.split()[:2]) for line in lines[1:] if line}


def check_documents() -> None:
    counts = {len(crates(features)) for features in (DEFAULT, LIBRARY, NONE, TRACES, S3, POSTGRES)}
    print("==> crates:", *sorted(counts, reverse=True), flush=True)
    library = ROOT / "src/lib.rs"
    problems = []
    for document in (library, ROOT / "README.md", ROOT / "DESIGN.md", *ROOT.glob("docs/**/*.md")):
        named = {int(number) for number in re.findall(r"(\d+) crates\b", document.read_text())}
        wrong = named - counts if document != library else named ^ counts
        problems += [f"{document.relative_to(ROOT)} and `cargo tree` disagree on {number} crates" for number in wrong]
    if problems:
        sys.exit("\n".join(sorted(problems)))


def check_traces() -> None:
    def of_traces(features: tuple[str, ...]) -> set[str]:
        return {name for name, _ in crates(features) if "opentelemetry" in name or name.startswith("prost")}

    if len(of_traces(TRACES)) < 4:
        sys.exit("the feature opentelemetry brings no crates of OpenTelemetry")
    if any(name.startswith("sqlx") for features in (DEFAULT, LIBRARY, NONE) for name, _ in crates(features)):
        sys.exit("sqlx comes without the feature postgres")
    if others := of_traces(DEFAULT) | of_traces(LIBRARY):
        sys.exit("without the feature opentelemetry: " + ", ".join(sorted(others)))


def check_public_types() -> None:
    cargo("doc", "--quiet", "--locked", "--no-deps", "--lib")
    page = (ROOT / "target/doc/sqs_once/all.html").read_text()
    names: list[str] = []
    for kind in ("structs", "enums", "traits"):
        section = re.search(rf'<h3 id="{kind}">.*?</ul>', page, re.DOTALL)
        names += re.findall(r'<a href="[^"]*">([^<]*)</a>', section[0]) if section else []
    print("==> public types and traits:", len(names), flush=True)
    if not 0 < len(names) <= MAX_PUBLIC_TYPES:
        sys.exit(f"{len(names)} public types and traits, the limit is {MAX_PUBLIC_TYPES}: " + ", ".join(sorted(names)))


def check_own_handler() -> None:
    copy = ROOT / "target/own-handler"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for name in ("Cargo.toml", "Cargo.lock", "README.md"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", "benches", "examples", "tests"):
        shutil.copytree(ROOT / name, copy / name)
    sample = copy / "src/bin/consumer"
    for name in ("payments.rs", "order.rs", "gateway.rs"):
        (sample / name).unlink()
    (sample / "payments.rs").write_text(OWN_HANDLER)
    cargo("clippy", "--quiet", "--locked", "--offline", "--bin", "consumer", "--", "-D", "warnings", cwd=copy)


if __name__ == "__main__":
    check_documents()
    check_traces()
    check_combinations()
    check_public_types()
    check_own_handler()

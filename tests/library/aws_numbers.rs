//! Numbers of AWS stand in the sentences of several pages. Each copy equals the number in docs/aws-numbers.md.

use std::{fs, path::Path};

use regex_lite::Regex;

/// The first cell of a row in docs/aws-numbers.md, and the sentences that repeat the first number of its second cell.
const COPIES: [(&str, &str); 15] = [
    (
        "messages in flight",
        r"(?i)(?:about |the queue's )(\d{2,3},000)\b",
    ),
    ("memory of one vCPU", r"([\d,]+) MB (?:are one vCPU|each\))"),
    (
        "longest visibility timeout",
        r"for at most (\d+) hours after",
    ),
    (
        "deduplication interval",
        r"(?:at least|it within) (\d+) minutes",
    ),
    ("batches at first", r"starts with (\d+) batches at a time"),
    ("growth of a mapping", r"batches at a time and adds (\d+)"),
    (
        "most invocations of a mapping",
        r"without provisioned pollers \| ([\d,]+) invocations",
    ),
    ("largest item", r"(?:item holds|hits) (\d+) KB"),
    (
        "write units of a partition",
        r"artition takes ([\d,]+) write",
    ),
    (
        "write units of a new table on demand",
        r"new table on demand (?:\| |takes )([\d,]+) write",
    ),
    (
        "write units of a table",
        r"quota of a table \| ([\d,]+) write",
    ),
    (
        "point-in-time recovery",
        r"restore them for (\d+) more days",
    ),
    (
        "backup of a deleted table",
        r"keeps of a deleted table for (\d+) days",
    ),
    ("stream record", r"(\d+) hours for which the stream"),
    ("IAM token for RDS", r"IAM token, valid for (\d+) minutes"),
];

#[test]
fn copies_equal_the_page_of_aws_numbers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let numbers = fs::read_to_string(root.join("docs/aws-numbers.md")).unwrap();
    let mut pages = String::new();
    for folder in [".", ".github", "docs"].map(|folder| root.join(folder)) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_page = path.extension().is_some_and(|end| end == "md");
            if is_page && !path.ends_with("aws-numbers.md") {
                // A sentence may be broken into lines anywhere.
                pages += &fs::read_to_string(&path).unwrap().replace('\n', " ");
            }
        }
    }
    let number = Regex::new(r"[\d,]+").unwrap();
    for (row, copies) in COPIES {
        let mut cells = numbers
            .lines()
            .filter_map(|line| line.strip_prefix(&format!("| {row} | ")));
        let value = cells.next().unwrap_or_else(|| panic!("no row {row}"));
        let value = number.find(value).unwrap().as_str();
        let copies = Regex::new(copies).unwrap();
        let mut found = 0;
        for copy in copies.captures_iter(&pages) {
            assert_eq!(&copy[1], value, "{row}: {}", &copy[0]);
            found += 1;
        }
        assert!(found > 0, "{row}: no page repeats {value}");
    }
}

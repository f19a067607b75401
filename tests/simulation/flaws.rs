//! The flaws that the product has on demand (`flawed`), and the search for a world that shows one.

use std::{fs, path::Path};

use crate::{plan::Plan, run};

/// A place at which the product can be made to behave wrongly.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flaw {
    pub name: String,
    /// Path below `crates`.
    pub file: String,
    pub line: usize,
}

/// A world in which a flaw breaks a promise.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub seed: u64,
    pub check: &'static str,
    pub receives: usize,
}

/// Returns the flaws in the product's sources, by file and line.
pub fn in_product() -> Vec<Flaw> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let mut flaws = Vec::new();
    for product in ["sqs-once/src", "outbox/src"] {
        read(&crates.join(product), &crates, &mut flaws);
    }
    flaws.sort();
    flaws
}

fn read(folder: &Path, crates: &Path, flaws: &mut Vec<Flaw>) {
    for entry in fs::read_dir(folder).expect("the sources") {
        let path = entry.expect("a source").path();
        if path.is_dir() {
            read(&path, crates, flaws);
            continue;
        }
        let text = fs::read_to_string(&path).expect("UTF-8");
        for (at, _) in text.match_indices("flawed(\"") {
            let name = text[at..].split('"').nth(1).unwrap_or_default();
            let file = path.strip_prefix(crates).unwrap_or(&path);
            flaws.push(Flaw {
                name: name.to_owned(),
                file: file.display().to_string(),
                line: text[..at].lines().count(),
            });
        }
    }
}

/// Returns the first world in which a flaw breaks a promise.
pub fn find(flaw: &'static str, seeds: impl IntoIterator<Item = u64>) -> Option<Found> {
    seeds.into_iter().find_map(|seed| {
        let verdict = run(Plan::draw(seed), Some(flaw)).verdict;
        let found = verdict.violations.first()?;
        Some(Found {
            seed,
            check: found.check,
            receives: verdict.receives,
        })
    })
}

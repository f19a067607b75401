//! The table of TESTING.md: the tests of each promise, by layer. A test names its promises in the line `/// Promise 2.`
//! or `/// Promises 1, 3 and 5.` of its comment.
//!
//! `WRITE_DOCS=1 cargo test --test library promises` writes the table.

use std::{collections::BTreeMap, env, fs, path::Path};

const LAYERS: [&str; 7] = [
    "model",
    "simulation",
    "library",
    "wire",
    "process",
    "cloud",
    "postgres",
];

const PAGE: &str = include_str!("../../docs/concepts.md");

/// The numbered promises, by the bold words with which each begins on the page.
fn named_promises() -> Vec<String> {
    let (_, guarantees) = PAGE.split_once("\n## Guarantees\n").unwrap();
    let names = guarantees.lines().filter_map(|line| {
        let (number, rest) = line.split_once(". **")?;
        let (name, _) = rest.split_once(".**")?;
        number.parse::<usize>().ok()?;
        Some(format!("{number}. {name}"))
    });
    names.collect()
}

/// The tests of a promise in a layer.
type Cells = BTreeMap<(usize, &'static str), Vec<String>>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(fs::read_to_string(path).unwrap());
        }
    }
}

/// The promises that a line of a comment names.
fn promises(line: &str) -> Vec<usize> {
    let names = line
        .strip_prefix("/// Promise ")
        .or_else(|| line.strip_prefix("/// Promises "));
    let Some(names) = names.and_then(|names| names.strip_suffix('.')) else {
        return Vec::new();
    };
    let listed = names.replace(" and ", ", ");
    let numbers: Result<_, _> = listed.split(", ").map(str::parse).collect();
    numbers.unwrap_or_default()
}

/// The name of the function in a line of source.
fn function(line: &str) -> Option<&str> {
    let starts = ["fn ", "async fn "];
    let name = starts.iter().find_map(|start| line.strip_prefix(start))?;
    name.split(['(', '<']).next()
}

fn cells() -> Cells {
    let mut cells = Cells::new();
    for layer in LAYERS {
        let mut texts = Vec::new();
        sources(&root().join("tests").join(layer), &mut texts);
        texts.sort();
        for text in texts {
            let mut named = Vec::new();
            for line in text.lines().map(str::trim) {
                named.extend(promises(line));
                if let Some(test) = function(line) {
                    for promise in named.drain(..) {
                        let tests = cells.entry((promise, layer)).or_default();
                        tests.push(test.to_owned());
                    }
                }
            }
        }
    }
    cells.values_mut().for_each(|tests| tests.sort());
    cells
}

fn table(cells: &Cells) -> String {
    let mut table = format!("| promise | {} |\n", LAYERS.join(" | "));
    table += &format!("| --- |{}\n", " --- |".repeat(LAYERS.len()));
    for (number, promise) in (1..).zip(named_promises()) {
        table += &format!("| {promise} |");
        for layer in LAYERS {
            let tests = cells.get(&(number, layer)).into_iter().flatten();
            let names: Vec<_> = tests.map(|test| format!(" `{test}`")).collect();
            table += &format!("{} |", names.join(","));
        }
        table += "\n";
    }
    table
}

#[test]
fn table_of_promises_lists_their_tests() {
    const START: &str = "<!-- tests of each promise -->\n";
    const END: &str = "<!-- end -->\n";
    let path = root().join("TESTING.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(START).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let table = table(&cells());
    let written = format!("{before}{START}{table}{END}{after}");
    if env::var_os("WRITE_DOCS").is_some() {
        fs::write(&path, written).unwrap();
    } else if page != written {
        panic!("TESTING.md differs: run `WRITE_DOCS=1 cargo test --test library promises`");
    }
}

#[test]
fn each_promise_has_a_test_in_both_kinds_of_layers() {
    let cells = cells();
    assert_eq!(named_promises().len(), 7);
    for promise in 1..=7 {
        for either in [
            &["model", "simulation", "wire"][..],
            &["process", "postgres"],
        ] {
            let is_tested = either
                .iter()
                .any(|layer| cells.contains_key(&(promise, *layer)));
            assert!(is_tested, "promise {promise} has no test in {either:?}");
        }
    }
}

#[test]
fn comment_names_promises() {
    assert_eq!(promises("/// Promise 2."), [2]);
    assert_eq!(promises("/// Promises 1, 3 and 5."), [1, 3, 5]);
    assert_eq!(promises("/// Promise 2: no second run."), [0; 0]);
    assert_eq!(function("async fn runs_once() {"), Some("runs_once"));
}

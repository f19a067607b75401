//! The modules of the library import only from modules below them, and docs/design.md names the way of one message.

use std::{collections::BTreeMap, fs, path::Path};

use regex_lite::Regex;

/// From the bottom to the top. `protocol` has the rules, and imports nothing but `flawed`.
const LAYERS: [&str; 18] = [
    "flawed",
    "protocol",
    "system",
    "invalid",
    "entries",
    "meter",
    "deadline",
    "event",
    "store",
    "handler",
    "aws",
    "dynamo",
    "s3",
    "modes",
    "telemetry",
    "sqs",
    "settings",
    "testing",
];

#[test]
fn modules_import_only_from_below() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/sqs-once/src");
    let lib = fs::read_to_string(source.join("lib.rs")).unwrap();
    // Items that the crate's root exports, and the module that they come from.
    let exported = Regex::new(r"pub use (\w+)::([^;]*);").unwrap();
    let word = Regex::new(r"\w+").unwrap();
    let mut home = BTreeMap::new();
    for export in exported.captures_iter(&lib) {
        for item in word.find_iter(&export[2]) {
            home.insert(item.as_str().to_owned(), export[1].to_owned());
        }
    }
    let level = |module: &str| LAYERS.iter().position(|layer| *layer == module);
    let mut upward = Vec::new();
    let mut seen = 0;
    let mut folders = vec![source.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let place = path.strip_prefix(&source).unwrap();
            let module = place
                .iter()
                .next()
                .unwrap()
                .to_str()
                .unwrap()
                .trim_end_matches(".rs");
            if module == "lib" || place.ends_with("tests.rs") {
                continue;
            }
            let own = level(module).unwrap_or_else(|| panic!("{module} has no place in LAYERS"));
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            for used in imports(text) {
                let used = home.get(&used).cloned().unwrap_or(used);
                seen += 1;
                if level(&used).is_some_and(|level| level > own) {
                    upward.push(format!("{} imports from {used}", place.display()));
                }
            }
        }
    }
    assert!(seen > 300, "only {seen} imports were found");
    assert_eq!(upward, Vec::<String>::new());
}

/// The table of docs/design.md names files and functions that exist.
#[test]
fn way_of_one_message_is_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let design = fs::read_to_string(root.join("docs/design.md")).unwrap();
    let (_, table) = design.split_once("### The way of one message").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let row = Regex::new(r"(?m)^\| [^|]+ \| `([^`]+)` \| ([^|]+) \|$").unwrap();
    let name = Regex::new(r"`(\w+)`").unwrap();
    let mut files = 0;
    for row in row.captures_iter(table) {
        files += 1;
        let file = root.join("crates/sqs-once/src").join(&row[1]);
        let source = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        for name in name.captures_iter(&row[2]) {
            let is_there = source.contains(&format!("fn {}(", &name[1]))
                || source.contains(&format!("fn {}<", &name[1]));
            assert!(is_there, "{file:?} has no function {}", &name[1]);
        }
    }
    assert!((12..=20).contains(&files), "{files} files");
}

/// The first names behind `crate::`, alone or in braces. A `pub use` only shows an item in a second place.
fn imports(text: &str) -> Vec<String> {
    let ignored = Regex::new(r"(?m)^\s*//.*$|^pub use [^;]*;").unwrap();
    let code = ignored.replace_all(text, "");
    let mut names = Vec::new();
    for (start, _) in code.match_indices("crate::") {
        let mut depth = 0_u32;
        let mut name = Some(String::new());
        for letter in code[start + "crate::".len()..].chars() {
            if letter.is_alphanumeric() || letter == '_' {
                if let Some(name) = &mut name {
                    name.push(letter);
                }
                continue;
            }
            if letter.is_whitespace() {
                continue;
            }
            names.extend(name.take().filter(|name| !name.is_empty()));
            match letter {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                break;
            }
            if depth == 1 && matches!(letter, '{' | ',') {
                name = Some(String::new());
            }
        }
    }
    names
}

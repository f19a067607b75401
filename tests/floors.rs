//! The floors of `src`: a module imports only from floors below its own, and by its home path.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{fs, path::Path};

/// From the ground up. Modules on one floor do not import each other.
const FLOORS: [&[&str]; 11] = [
    &["protocol", "invalid"],
    &["system"],
    &["deadline", "dynamodb", "meter"],
    &["event", "aws"],
    &["postgres", "s3"],
    &["store"],
    &["handler"],
    &["once"],
    &["telemetry"],
    &["sqs", "outbox"],
    &["settings", "testing"],
];

fn floor(module: &str) -> usize {
    let floor = FLOORS.iter().position(|floor| floor.contains(&module));
    floor.unwrap_or_else(|| panic!("no floor for module `{module}`"))
}

fn imports_of(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]\nmod ").next().unwrap();
    let code: String = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{}\n", line.trim()))
        .collect();
    let mut imported = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let path = &code[at + "crate::".len()..];
        let list = path.strip_prefix('{').map(|list| {
            let mut depth = 1;
            let end = list.find(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                depth == 0
            });
            &list[..end.unwrap()]
        });
        let mut depth = 0;
        let tops = list.unwrap_or(path).split(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        let name = |top: &str| {
            let top = top.trim_start();
            let end = top.find(|c: char| !c.is_alphanumeric() && c != '_');
            top[..end.unwrap_or(top.len())].to_owned()
        };
        let some = if list.is_some() { usize::MAX } else { 1 };
        imported.extend(tops.take(some).map(name).filter(|name| !name.is_empty()));
    }
    imported
}

fn sources(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                sources(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

#[test]
fn modules_import_from_lower_floors_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut checked = 0;
    for path in sources(&src) {
        let inside = path.strip_prefix(&src).unwrap();
        let module = inside.iter().next().unwrap().to_str().unwrap();
        let module = module.trim_end_matches(".rs");
        // A test may stand on any floor.
        if ["bin", "lib"].contains(&module) || path.ends_with("tests.rs") {
            continue;
        }
        for imported in imports_of(&fs::read_to_string(&path).unwrap()) {
            let allowed = imported == module || floor(&imported) < floor(module);
            assert!(allowed, "{} imports {imported}", inside.display());
            checked += 1;
        }
    }
    assert!(checked > 80, "{checked} imports found");
}

#[test]
fn imports_are_found_in_nested_lists() {
    let source =
        "use crate::{once::{A, B}, store::C};\nlet x = crate::system::now();\n// crate::sqs";
    assert_eq!(imports_of(source), ["once", "store", "system"]);
}

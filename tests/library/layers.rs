//! The modules of the library import only from modules below them, files in no circle, docs/design.md names the way of
//! one message, and no two types of the product have one name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::LazyLock,
};

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
    let level = |module: &str| {
        let top = module.split("::").next().unwrap();
        let level = LAYERS.iter().position(|layer| *layer == top);
        level.unwrap_or_else(|| panic!("{top} has no place in LAYERS"))
    };
    let imports = imports();
    assert!(imports.len() > 400, "only {} imports", imports.len());
    let upward: Vec<_> = imports
        .iter()
        .filter(|(from, to)| level(to) > level(from))
        .collect();
    assert!(upward.is_empty(), "{upward:#?}");
}

#[test]
fn files_import_in_no_circle() {
    let mut all: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in imports() {
        all.entry(from).or_default().push(to);
    }
    let modules = all.keys().copied();
    let circular = modules.filter(|module| reached(module, &all).contains(module));
    let circular: Vec<_> = circular.collect();
    assert_eq!(circular, [""; 0]);
}

/// Returns the files that a file imports from, and those that they import from.
fn reached<'a>(module: &'a str, imports: &BTreeMap<&str, Vec<&'a str>>) -> BTreeSet<&'a str> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![module]);
    while let Some(module) = next.pop() {
        let to = imports.get(module).into_iter().flatten();
        next.extend(to.filter(|to| reached.insert(**to)));
    }
    reached
}

/// One word, one idea. A type inside a function or a test is its own matter.
#[test]
fn no_two_types_have_one_name() {
    // The message of a consumer, and the builder of one for users' tests.
    const TWICE: [&str; 1] = ["Message"];
    let defined =
        Regex::new(r"(?m)^(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|type) (\w+)").unwrap();
    let mut places: BTreeMap<String, BTreeSet<_>> = BTreeMap::new();
    for package in ["sqs-once", "postgres", "outbox", "cli"] {
        for (module, code) in Source::read(package).0 {
            for name in defined.captures_iter(&code) {
                let place = (package, module.clone());
                places.entry(name[1].to_owned()).or_default().insert(place);
            }
        }
    }
    assert!(places.len() > 300, "only {} types", places.len());
    places.retain(|name, files| files.len() > 1 && !TWICE.contains(&&**name));
    assert!(places.is_empty(), "{places:#?}");
}

/// The table of docs/design.md names files and functions that exist.
#[test]
fn way_of_one_message_is_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let design = fs::read_to_string(root.join("docs/design.md")).unwrap();
    let (_, table) = design.split_once("### The way of one message").unwrap();
    let (table, _) = table.split_once("\n##").unwrap();
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

/// Returns which file imports from which.
fn imports() -> &'static BTreeSet<(String, String)> {
    static IMPORTS: LazyLock<BTreeSet<(String, String)>> =
        LazyLock::new(|| Source::read("sqs-once").imports());
    &IMPORTS
}

/// The files of a crate by module, such as `sqs::visibility::delay`, without comments and tests.
struct Source(BTreeMap<String, String>);

impl Source {
    /// Reads a crate in `crates`.
    fn read(name: &str) -> Self {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
        let root = crates.join(name).join("src");
        let ignored =
            Regex::new(r"(?m)^\s*//.*$|(?s)#\[cfg\(test\)\]\s*(pub\S* )?mod \w+ \{.*").unwrap();
        let (mut files, mut folders) = (BTreeMap::new(), vec![root.clone()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let place = path.strip_prefix(&root).unwrap().with_extension("");
                let mut names: Vec<_> = place.iter().map(|name| name.to_str().unwrap()).collect();
                names.pop_if(|name| ["lib", "mod"].contains(name));
                let code = fs::read_to_string(&path).unwrap();
                files.insert(
                    names.join("::"),
                    ignored.replace_all(&code, "").into_owned(),
                );
            }
        }
        let test = Regex::new(r"#\[cfg\(test\)\]\s*mod (\w+);").unwrap();
        let tests = |(module, code): (&String, &String)| -> Vec<_> {
            test.captures_iter(code)
                .map(|test| join(module, &test[1]))
                .collect()
        };
        for test in files.iter().flat_map(tests).collect::<Vec<_>>() {
            files.remove(&test);
        }
        Self(files)
    }

    /// Which file imports from which. A `pub use` only shows an item in a second place, so an import of that item is one
    /// from its first place.
    fn imports(&self) -> BTreeSet<(String, String)> {
        let shown = Regex::new(r"pub(\([^)]*\))? use [^;]*;").unwrap();
        let mut shows = BTreeMap::new();
        for (module, code) in &self.0 {
            for shown in shown.find_iter(code) {
                for path in self.paths(module, shown.as_str()) {
                    let item = path.rsplit("::").next().unwrap();
                    shows.insert(join(module, item), path);
                }
            }
        }
        let mut imports = BTreeSet::new();
        for (module, code) in self.0.iter().filter(|(module, _)| !module.is_empty()) {
            for path in self.paths(module, &shown.replace_all(code, "")) {
                let home = self.home(&path, &shows);
                if home != module && !home.is_empty() {
                    imports.insert((module.clone(), home.to_owned()));
                }
            }
        }
        imports
    }

    /// Returns the file that has the item of a path.
    fn home<'a>(&self, path: &'a str, shows: &'a BTreeMap<String, String>) -> &'a str {
        let ends = path
            .match_indices("::")
            .map(|(end, _)| end)
            .chain([path.len()]);
        let mut home = "";
        for end in ends {
            let part = &path[..end];
            if self.0.contains_key(part) {
                home = part;
            } else if let Some(first) = shows.get(part) {
                return self.home(first, shows);
            }
        }
        home
    }

    /// Returns the paths in the code of a module to items of the library, from its root.
    fn paths(&self, module: &str, code: &str) -> Vec<String> {
        let mut paths = Vec::new();
        for begin in ["use ", "crate::", "self::", "super::"] {
            for (start, _) in code.match_indices(begin) {
                let path = code[start..].strip_prefix("use ");
                branches(path.unwrap_or(&code[start..]), "", &mut paths);
            }
        }
        let absolute = |path: String| {
            let (first, rest) = path.split_once("::").unwrap_or((&path, ""));
            let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
            let path = match first {
                "crate" => rest.to_owned(),
                "self" => join(module, rest),
                // No deeper: a file of the library never names its parent's parent.
                "super" => join(parent, rest),
                child if self.0.contains_key(&join(module, child)) => join(module, &path),
                _ => return None,
            };
            Some(path.trim_end_matches("::self").to_owned())
        };
        paths.into_iter().filter_map(absolute).collect()
    }
}

fn join(module: &str, name: &str) -> String {
    [module, name]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("::")
}

/// Reads a path with its branches, such as `crate::{handler::Attempt, store}`, and returns what is behind it.
fn branches<'t>(text: &'t str, path: &str, found: &mut Vec<String>) -> &'t str {
    let mut text = text.trim_start();
    if let Some(inside) = text.strip_prefix('{') {
        text = inside;
        loop {
            text = branches(text, path, found);
            let Some(end) = text.find([',', '}']) else {
                return "";
            };
            let is_last = text[end..].starts_with('}');
            text = &text[end + 1..];
            if is_last {
                return text;
            }
        }
    }
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let (name, rest) = text.split_at(text.find(|letter| !is_name(letter)).unwrap_or(text.len()));
    let path = join(path, name);
    match rest.strip_prefix("::") {
        Some(inside) if inside.starts_with(|start| is_name(start) || start == '{') => {
            branches(inside, &path, found)
        }
        _ => {
            found.extend((!name.is_empty()).then_some(path));
            rest
        }
    }
}

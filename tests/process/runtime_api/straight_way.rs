//! Counts the functions and files that one message crosses.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use support::callgrind;

use super::*;

/// A function, by its file and its name. A closure is part of the function that has it.
type Function = (String, String);

/// The source of the library.
const LIBRARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/");

/// Functions that a macro writes.
const DERIVED: [&str; 6] = [
    " as core::clone::Clone>",
    " as core::cmp::PartialEq>",
    " as core::default::Default>",
    " as core::hash::Hash>",
    "serde_core::ser::Serialize",
    "serde::ser::Serialize",
];

/// The functions of the library that one message calls, in the debug build. A function that the start calls too
/// counts if the message calls it again.
#[tokio::test]
#[ignore = "needs valgrind, and prints a list"]
async fn one_message() {
    let (start, message) = (calls(0).await, calls(1).await);
    let of_start = |function: &Function| start.get(function).copied().unwrap_or_default();
    let way: BTreeSet<_> = message
        .iter()
        .filter(|(function, calls)| **calls > of_start(function))
        .map(|(function, _)| function)
        .collect();
    let files: BTreeSet<_> = way.iter().map(|(file, _)| file).collect();
    for (file, name) in &way {
        println!("{file}  {name}");
    }
    println!("{} functions in {} files", way.len(), files.len());
    assert!(!way.is_empty());
}

/// Calls of each function of the library in a process that handles this many messages.
async fn calls(messages: u32) -> BTreeMap<Function, u64> {
    let stage = Stage::set().await;
    let profile = std::env::temp_dir().join(format!("straight-way-{}", std::process::id()));
    let settings = [("IDEMPOTENCY_KEY", "body:/orderId")];
    let binary = Path::new(env!("CARGO_BIN_EXE_consumer"));
    let lambda = callgrind::start(binary, stage.env(&settings), &profile).await;
    for n in 1..=messages {
        let response = lambda.invoke(orders(n..=n), TIME).await.response();
        assert_eq!(response, json!({"batchItemFailures": []}));
    }
    callgrind::end(lambda, messages as usize).await;
    let text = std::fs::read_to_string(&profile).unwrap();
    std::fs::remove_file(&profile).unwrap();
    parse(&text)
}

/// Reads calls from a profile (*Callgrind Format Specification*): `cfn=` and `cfi=` name the function and the file
/// of the next `calls=`. A name is given once, with a number that stands for it afterwards.
fn parse(profile: &str) -> BTreeMap<Function, u64> {
    let (mut files, mut names) = (BTreeMap::new(), BTreeMap::new());
    let (mut file, mut callee_file, mut callee) = (String::new(), None, String::new());
    let mut calls = BTreeMap::new();
    for line in profile.lines() {
        let Some((field, value)) = line.split_once('=') else {
            continue;
        };
        match field {
            "fl" | "fi" | "fe" => file = whole_name(&mut files, value),
            "cfi" | "cfl" => callee_file = Some(whole_name(&mut files, value)),
            "fn" => drop(whole_name(&mut names, value)),
            "cfn" => callee = whole_name(&mut names, value),
            "calls" => {
                let number = value.split(' ').next().and_then(|n| n.parse::<u64>().ok());
                let file = callee_file.take().unwrap_or_else(|| file.clone());
                if let Some(file) = file.strip_prefix(LIBRARY)
                    && !DERIVED.iter().any(|derived| callee.contains(derived))
                {
                    let function = (file.to_owned(), of_source(&callee));
                    *calls.entry(function).or_default() += number.unwrap();
                }
            }
            _ => {}
        }
    }
    calls
}

/// The name in the source: without closures, and without what the compiler and callgrind add.
fn of_source(name: &str) -> String {
    let name = name.replace("::{{closure}}", "");
    let end = name.find(['\'']).or_else(|| name.find("{{"));
    name[..end.unwrap_or(name.len())]
        .trim_end_matches(':')
        .to_owned()
}

fn whole_name(known: &mut BTreeMap<String, String>, value: &str) -> String {
    let (number, name) = value.split_once(')').unwrap();
    let name = name.trim();
    if !name.is_empty() {
        known.insert(number.to_owned(), name.to_owned());
    }
    known[number].clone()
}

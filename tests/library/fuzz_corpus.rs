//! The corpus gathered by fuzzing, on a stable compiler, as a regression test.

#[path = "../../fuzz/targets.rs"]
mod targets;

use std::{fs, path::Path};

/// Every file of a folder of the repository; the folder must not be empty.
fn each(folder: &str, least: usize, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut seen = 0;
    for file in fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        // Shown if the test fails: the last file is the culprit.
        println!("{}", path.display());
        run(&fs::read(&path).unwrap());
        seen += 1;
    }
    assert!(seen >= least, "{} files in {}", seen, folder.display());
}

#[test]
fn corpus_events_are_answered_by_the_rules() {
    each("fuzz/corpus/event", 10, targets::event);
}

#[test]
fn sample_events_are_answered_by_the_rules() {
    each("events", 9, targets::event);
}

#[test]
fn corpus_bodies_are_answered_by_the_rules() {
    each("fuzz/corpus/body", 10, targets::body);
}

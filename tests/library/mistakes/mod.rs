//! Compiler errors of handlers with the wrong type: each names the mistake and its remedy.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Context as _;
use sqs_once::{
    Attempt, Deadline, Failure, Once, Operation, Outcome,
    protocol::{Key, Namespace, Timestamp},
    store::MemoryStore,
};

/// Path of the compiled library under test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = fs::read_dir(test.parent().unwrap()).unwrap();
    let built = built.map(|entry| entry.unwrap().path()).filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libsqs_once-") && name.ends_with(".rlib")
    });
    let modified = |path: &PathBuf| fs::metadata(path).unwrap().modified().unwrap();
    built.max_by_key(modified).unwrap()
}

/// Compiles a program against the library, and returns the compiler's errors.
fn errors(program: &Path) -> String {
    let library = library();
    let dependencies = library.parent().unwrap().display().to_string();
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let output = Command::new(rustc)
        .args([
            "--edition=2024",
            "--emit=metadata",
            "--diagnostic-width=1000",
        ])
        .arg("-o")
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("mistake.rmeta"))
        .arg(format!("-Ldependency={dependencies}"))
        .arg(format!("--extern=sqs_once={}", library.display()))
        .arg(program)
        .output();
    String::from_utf8(output.unwrap().stderr).unwrap()
}

/// Compiles a program of `tests/library/mistakes`, whose first comment lines must occur in the compiler's
/// errors.
#[track_caller]
fn explained(program: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/mistakes");
    let path = folder.join(program).with_extension("rs");
    let source = fs::read_to_string(&path).unwrap();
    let expected: Vec<_> = source
        .lines()
        .map_while(|line| line.strip_prefix("// "))
        .collect();
    assert!(!expected.is_empty(), "{program} expects no error");
    let errors = errors(&path);
    for line in expected {
        assert!(
            errors.contains(line),
            "not explained by `{line}`:\n{errors}"
        );
    }
}

#[test]
fn output_without_serialize_is_explained() {
    explained("output_without_serialize");
}

#[test]
fn message_without_deserialize_is_explained() {
    explained("message_without_deserialize");
}

#[test]
fn done_on_memory_store_is_explained() {
    explained("done_on_memory_store");
}

#[test]
fn output_of_inbox_is_explained() {
    explained("output_of_inbox");
}

#[test]
fn change_in_claim_mode_is_explained() {
    explained("change_in_claim_mode");
}

#[test]
fn function_without_handler_fn_is_explained() {
    explained("function_without_handler_fn");
}

#[test]
fn function_without_attempt_is_explained() {
    explained("function_without_attempt");
}

#[test]
fn look_up_in_inbox_is_explained() {
    explained("look_up_in_inbox");
}

#[test]
fn look_up_of_other_output_is_explained() {
    explained("look_up_of_other_output");
}

/// Control: without this test, an error about a missing library would pass for an explanation.
#[test]
fn corrected_mistake_compiles() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/mistakes");
    let mistake = fs::read_to_string(folder.join("function_without_handler_fn.rs")).unwrap();
    let corrected = mistake.replace(
        "namespace, charge",
        "namespace, sqs_once::handler_fn(charge)",
    );
    assert_ne!(corrected, mistake);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("corrected.rs");
    fs::write(&path, corrected).unwrap();
    assert_eq!(errors(&path), "");
}

#[tokio::test]
async fn anyhow_error_passes_question_mark() {
    async fn charge(_: Attempt) -> Result<u64, Failure> {
        let cents: u64 = "none".parse().context("no amount")?;
        Ok(cents)
    }
    let operation = Operation::new(
        Key::new(&Namespace::new("payments").unwrap(), ["order-1"]).unwrap(),
        None,
        "m-1",
        Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO),
    );
    let outcome = Once::new(MemoryStore::default())
        .run(operation, charge)
        .await;
    let Outcome::RetryableFailure(error) = outcome else {
        panic!("{outcome}")
    };
    assert_eq!(error.text, "no amount: invalid digit found in string");
}

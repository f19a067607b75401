//! Finds the commit of this source: a project of `sqs-once new` gets its library and its tools from there.

use std::{fs, path::Path, process::Command};

fn main() {
    let commit = packaged().or_else(cloned).unwrap_or_default();
    println!("cargo::rustc-env=SQS_ONCE_COMMIT={commit}");
}

/// The commit that Cargo noted in a package.
fn packaged() -> Option<String> {
    let info = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = info.split_once(r#""sha1": ""#)?;
    rest.get(..40).map(str::to_owned)
}

/// The commit of this clone, and not of another repository around this folder.
fn cloned() -> Option<String> {
    let words = ["HEAD", "--show-toplevel", "--git-path", "logs/HEAD"];
    let git = Command::new("git").arg("rev-parse").args(words).output();
    let answer = String::from_utf8(git.ok()?.stdout).ok()?;
    let [commit, root, log] = answer.lines().collect::<Vec<_>>()[..] else {
        return None;
    };
    // Without a file that exists, Cargo would build the package each time.
    if Path::new(log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    let is_ours = Path::new(root).join("crates/cli/template").is_dir();
    is_ours.then(|| commit.to_owned())
}

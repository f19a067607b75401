//! `sqs-once new`: the projects that it makes, and the answers that it refuses. `make starter` compiles and tests them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::Value;
use support::template;
use tokio::process::Command;
use uuid::Uuid;

use super::{Ended, TOOL, tool};

/// A folder without projects, outside of this workspace.
fn empty_folder() -> PathBuf {
    let folder = std::env::temp_dir().join(Uuid::new_v4().to_string());
    fs::create_dir_all(&folder).unwrap();
    folder
}

async fn new(folder: &Path, arguments: &[&str]) -> Ended {
    let folder = folder.to_str().unwrap();
    let arguments = [&["new", "--dir", folder], arguments].concat();
    Ended::of(
        tool("http://127.0.0.1:1", &arguments)
            .output()
            .await
            .unwrap(),
    )
}

/// The files of a folder, by their path inside it.
fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap();
                found.insert(name.to_owned());
            }
        }
    }
    found
}

/// Runs a program of the Rust toolchain, without a network.
async fn output_of(program: &str, arguments: &[&str], folder: &Path) -> String {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder);
    let ended = Ended::of(command.stdin(Stdio::null()).output().await.unwrap());
    assert_eq!(ended.code, 0, "{program} {arguments:?}: {ended:?}");
    ended.stdout
}

#[tokio::test]
async fn project_of_every_variant_has_valid_files() {
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("template");
    let mut expected = files(&template);
    assert!(expected.remove("Cargo.toml.jinja"));
    expected.insert("Cargo.toml".to_owned());
    let folder = empty_folder();
    let checkout = template::root().to_str().unwrap();
    let keys = ["body:/orderId", "body:/id", "attribute:order", "message-id"];
    for (number, effect) in ["outside", "inbox", "item"].into_iter().enumerate() {
        for (key, fifo) in keys.into_iter().zip([true, false].into_iter().cycle()) {
            for source in ["git", "registry", checkout] {
                let name = format!("p{number}_{}", Uuid::new_v4().simple());
                let mut answers =
                    vec![&*name, "--effect", effect, "--key", key, "--source", source];
                answers.extend(fifo.then_some("--fifo"));
                let ended = new(&folder, &answers).await;
                assert_eq!(ended.code, 0, "{ended:?}");
                let project = folder.join(&name);
                assert_eq!(files(&project), expected);
                check_files(&project, effect, key, fifo).await;
            }
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

async fn check_files(project: &Path, effect: &str, key: &str, fifo: bool) {
    let read = |name: &str| fs::read_to_string(project.join(name)).unwrap();
    for name in files(project) {
        let text = read(&name);
        assert!(!text.contains("{%") && !text.contains("{{"), "{name}");
        assert!(text.ends_with('\n') && !text.contains("\n\n\n"), "{name}");
    }
    output_of(
        "rustfmt",
        &["--check", "--edition", "2024", "src/main.rs"],
        project,
    )
    .await;
    output_of("make", &["--dry-run", "help"], project).await;
    let manifest = [
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ];
    let manifest: Value =
        serde_json::from_str(&output_of("cargo", &manifest, project).await).unwrap();
    let name = project.file_name().unwrap().to_str().unwrap();
    assert_eq!(manifest["packages"][0]["name"], name);
    for event in ["events/orders.json", "events/rejected.json"] {
        let event: Value = serde_json::from_str(&read(event)).unwrap();
        let message = &event["Records"][0];
        let body: Value = serde_json::from_str(message["body"].as_str().unwrap()).unwrap();
        let field = key.strip_prefix("body:/").unwrap_or("orderId");
        assert!(body[field].is_string(), "{body}");
        if let Some(attribute) = key.strip_prefix("attribute:") {
            assert!(message["messageAttributes"][attribute].is_object());
        }
        assert_eq!(message["attributes"]["MessageGroupId"].is_string(), fifo);
    }
    // Assistants read every line of it, before each task.
    let agents = read("AGENTS.md");
    assert!(agents.lines().count() <= 40, "{agents}");
    let tortured = "order_is_charged_once_whatever_crashes";
    assert_eq!(agents.contains(tortured), effect == "outside");
    assert_eq!(
        read("src/handler.rs").contains(tortured),
        effect == "outside"
    );
    let stack = template::parse(&read("template.yaml"));
    let resources = &stack["Resources"];
    let variables = &resources["Consumer"]["Properties"]["Environment"]["Variables"];
    assert_eq!(variables["IDEMPOTENCY_KEY"], key);
    assert_eq!(variables["IDEMPOTENCY_NAMESPACE"], name);
    assert_eq!(resources["Queue"]["Properties"]["FifoQueue"] == true, fifo);
    assert_eq!(resources["IdempotencyTable"].is_object(), effect != "item");
    assert_eq!(resources["OrdersTable"].is_object(), effect != "outside");
    let stack_name = format!("stack_name = \"{}\"\n", name.replace('_', "-"));
    assert!(read("samconfig.toml").contains(&stack_name));
}

/// The tools of a project run with the credentials of whoever deploys, so they are those of one commit, and a clone that is
/// elsewhere goes there.
#[tokio::test]
async fn tools_of_a_project_are_of_one_commit() {
    let folder = empty_folder();
    for source in ["git", "registry"] {
        let ended = new(&folder, &[source, "--source", source]).await;
        assert_eq!(ended.code, 0, "{ended:?}");
        let project = folder.join(source);
        let makefile = fs::read_to_string(project.join("Makefile")).unwrap();
        let (_, commit) = makefile.split_once("COMMIT   := ").unwrap();
        let commit = commit.lines().next().unwrap();
        let object = format!("{commit}^{{commit}}");
        output_of("git", &["cat-file", "-e", &object], template::root()).await;
        assert_eq!(commit.len(), 40);
        assert!(!makefile.contains("git clone"));
        let manifest = fs::read_to_string(project.join("Cargo.toml")).unwrap();
        let pinned = manifest.contains(&format!("rev = \"{commit}\""));
        assert_eq!(pinned, source == "git", "{manifest}");
        // This clone takes the place of the one on GitHub, and `true` that of make.
        let ours = format!("url.file://{}.insteadOf", template::root().display());
        let elsewhere = "https://github.com/sqs-once/sqs-once";
        let tools =
            "make --no-print-directory MAKE=true tools && git -C .local/sqs-once rev-parse HEAD";
        let tools = format!(
            "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0='{ours}' GIT_CONFIG_VALUE_0={elsewhere}; {tools}"
        );
        for _fresh_and_again in 0..2 {
            let head = output_of("sh", &["-c", &tools], &project).await;
            assert_eq!(head.trim(), commit);
            // What a later `git pull` would leave.
            let moved = "git -C .local/sqs-once -c user.name=a -c user.email=a@b.c commit --quiet --allow-empty -m other";
            output_of("sh", &["-c", moved], &project).await;
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

/// SAM passes no `--locked`.
#[tokio::test]
async fn deployed_program_has_the_locked_dependencies() {
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("template/Makefile");
    for makefile in [template, template::root().join("Makefile")] {
        let text = fs::read_to_string(&makefile).unwrap();
        let (_, recipe) = text.split_once("\npackage: ").unwrap();
        let (before, _) = recipe.split_once("sam build").unwrap();
        let before = before.rsplit("\npackage: ").next().unwrap();
        assert!(
            before.contains("cargo fetch --quiet --locked"),
            "{makefile:?}"
        );
    }
}

#[tokio::test]
async fn answers_that_the_template_does_not_know_are_refused() {
    let folder = empty_folder();
    let elsewhere = folder.to_str().unwrap();
    for (arguments, reason) in [
        (&[""][..], "begins with a letter"),
        (&["x"], "two or more"),
        (&["../orders"], "begins with a letter"),
        (&["or/ders"], "letters, digits"),
        (&["1orders"], "begins with a letter"),
        (&["sqs_once"], "choose another one"),
        (&["orders", "--effect", "elsewhere"], "outside, inbox, item"),
        (&["orders", "--fifo=perhaps"], "yes, no"),
        (&["orders", "--key", "orderId"], "body:/FIELD"),
        (&["orders", "--key", "body:/a/b"], "body:/FIELD"),
        (&["orders", "--key", "body:/1"], "body:/FIELD"),
        (&["orders", "--key", "attribute:"], "body:/FIELD"),
        (
            &["orders", "--source", elsewhere],
            "no checkout of sqs-once",
        ),
    ] {
        let ended = new(&folder, arguments).await;
        assert_eq!(ended.code, 2, "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(reason), "{arguments:?}: {ended:?}");
    }
    assert!(fs::read_dir(&folder).unwrap().next().is_none());
    fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn folder_that_exists_stays_as_it_is() {
    let folder = empty_folder();
    let made = new(&folder, &["orders", "--output", "json"]).await;
    let project = folder.join("orders");
    assert_eq!(made.json_of_success()["project"], project.to_str().unwrap());
    fs::write(project.join("src/handler.rs"), "changed").unwrap();
    let ended = new(&folder, &["orders"]).await;
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("exists"), "{ended:?}");
    let handler = fs::read_to_string(project.join("src/handler.rs")).unwrap();
    assert_eq!(handler, "changed");
    fs::remove_dir_all(folder).unwrap();
}

/// No file may be larger than 20 kB, and Cargo.lock is.
#[tokio::test]
async fn failed_write_leaves_nothing_behind() {
    let folder = empty_folder();
    let limited = "trap '' XFSZ; ulimit -f 40; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited, TOOL, "new", "orders", "--dir"]);
    let ended = Ended::of(command.arg(&folder).output().await.unwrap());
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("Cargo.lock"), "{ended:?}");
    assert!(fs::read_dir(&folder).unwrap().next().is_none());
    fs::remove_dir_all(folder).unwrap();
}

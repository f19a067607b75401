//! The programs that are compared.

use std::{
    fs,
    path::{Path, PathBuf},
};
use support::runtime_api::{Env, consumer, program};

pub(crate) const RAW: &str = "raw loop";
pub(crate) const CONSUMER: &str = "consumer";
pub(crate) const UNPRIMED: &str = "consumer, no warm-up read";
pub(crate) const RAW_BATCHES: &str = "raw loop, batched";
pub(crate) const SINGLE: &str = "consumer, single writes";
pub(crate) const TYPESCRIPT: &str = "Powertools TypeScript";
pub(crate) const PYTHON: &str = "Powertools Python";

/// Powertools for Python processes one message after the other.
const PYTHON_MESSAGES: usize = 100;

pub(crate) struct Candidate {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    script: Option<PathBuf>,
    /// Its own settings, by the size of the batches.
    settings: fn(usize) -> Env,
    /// The sizes of batches that it is measured with.
    sizes: std::ops::RangeInclusive<usize>,
}

impl Candidate {
    fn new(name: &'static str, program: PathBuf, settings: fn(usize) -> Env) -> Self {
        Self {
            name,
            program,
            script: None,
            settings,
            sizes: 1..=usize::MAX,
        }
    }

    pub(crate) fn takes(&self, messages: usize) -> bool {
        self.sizes.contains(&messages)
    }

    pub(crate) fn command(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(&self.script);
        command
    }

    /// True for a release binary of this repository.
    pub(crate) fn compiled(&self) -> bool {
        self.script.is_none()
    }

    pub(crate) fn env(&self, endpoint: &str, messages: usize) -> Env {
        let mut env = settings([
            ("AWS_ENDPOINT_URL", endpoint.to_owned()),
            ("IDEMPOTENCY_TABLE_NAME", "orders".to_owned()),
            ("IDEMPOTENCY_NAMESPACE", "orders".to_owned()),
            ("PAYMENT_GATEWAY_URL", "sandbox".to_owned()),
            // That of a whole vCPU, which the program has unless it is throttled.
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "1769".to_owned()),
        ]);
        env.extend((self.settings)(messages));
        env
    }
}

/// The candidates of this repository.
pub(crate) fn compiled() -> Vec<Candidate> {
    let none: fn(usize) -> Env = |_| Vec::new();
    let consumer = consumer();
    vec![
        Candidate::new(RAW, program("raw_loop"), none),
        Candidate::new(RAW_BATCHES, program("raw_batches"), none),
        Candidate::new(CONSUMER, consumer.clone(), none),
        Candidate {
            sizes: 0..=0, // its start alone is measured
            ..Candidate::new(UNPRIMED, program("adjusted"), |_| {
                settings([("TEST_PRIME", "false".to_owned())])
            })
        },
        Candidate::new(SINGLE, consumer, |_| {
            settings([("IDEMPOTENCY_BATCHED_WRITES", "off".to_owned())])
        }),
    ]
}

/// The candidates on Powertools for AWS Lambda, and the reason for each that is left out.
pub(crate) fn powertools() -> (Vec<Candidate>, Vec<String>) {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table: fn(usize) -> Env = |_| settings([("IDEMPOTENCY_TABLE", "orders".to_owned())]);
    let mut found = Vec::new();
    let mut missing = Vec::new();
    // `make bench` installs the packages and copies the script there.
    let packages = repository.join(".local/compare");
    match on_path("node") {
        Some(node) if packages.join("node_modules").exists() => found.push(Candidate {
            script: Some(packages.join("bench.mjs")),
            ..Candidate::new(TYPESCRIPT, node, table)
        }),
        _ => missing.push(format!("{TYPESCRIPT}: Node.js or its packages are missing")),
    }
    match on_path("python").filter(|python| has_powertools(python)) {
        Some(python) => found.push(Candidate {
            script: Some(repository.join("tools/compare/bench.py")),
            sizes: 1..=PYTHON_MESSAGES,
            ..Candidate::new(PYTHON, python, table)
        }),
        None => missing.push(format!("{PYTHON}: Python or its packages are missing")),
    }
    (found, missing)
}

fn has_powertools(python: &Path) -> bool {
    let imported = std::process::Command::new(python)
        .args(["-c", "import aws_lambda_powertools, boto3"])
        .output();
    imported.is_ok_and(|ran| ran.status.success())
}

/// The absolute path of a tool. The processes under test have no `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut candidates = std::env::split_paths(&path).map(|directory| directory.join(name));
    candidates.find(|file| fs::metadata(file).is_ok_and(|file| file.is_file()))
}

fn settings<const N: usize>(settings: [(&str, String); N]) -> Env {
    settings
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
}

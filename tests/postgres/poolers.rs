//! PgBouncer between the workers and the server, which the library refuses.

use std::{
    env,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use sqlx::postgres::PgConnectOptions;
use sqs_once::{Attempt, Failure, Once, Outcome, Settings, handler_fn};
use sqs_once_postgres::{InTransaction, PostgresMode, PostgresStore};
use support::{
    log,
    postgres::{SERVER, one, root},
    prerequisite::missing,
    world::{World, ample, increments, operation},
};

/// A pooler before the server that runs until this is dropped: `tools/pgbouncer.py` stops it at the end of its
/// input.
struct PgBouncer {
    port: u16,
    process: Child,
}

impl PgBouncer {
    /// A pooler with these settings.
    fn start(settings: &[&str]) -> Self {
        let python = root().join(".venv/bin/python");
        let python = env::var_os("POSTGRES_PYTHON").map_or(python, PathBuf::from);
        let mut process = Command::new(python)
            .arg(root().join("tools/pgbouncer.py"))
            .arg(SERVER.options().get_port().to_string())
            .args(settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let answers = process.stdout.take().unwrap();
        BufReader::new(answers).read_line(&mut line).unwrap();
        let Some(ready_at) = line.strip_prefix("ready ") else {
            let _status = process.wait();
            missing(
                "PgBouncer did not start, see the message of tools/pgbouncer.py \
                 (on Debian, `make .venv/pgbouncer` installs it; elsewhere, install `pgbouncer`)",
            );
        };
        let port = ready_at.trim().parse().unwrap();
        Self { port, process }
    }

    fn options(&self, parameters: &str) -> PgConnectOptions {
        let port = self.port;
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable");
        (url + parameters).parse().unwrap()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _status = self.process.wait();
    }
}

async fn unreachable(_: String, _: Attempt) -> Result<InTransaction<()>, Failure> {
    panic!("a handler was called behind a pooler")
}

/// The error that is logged at the start of a consumer.
async fn error_at_start(options: PgConnectOptions) -> String {
    log::start();
    let settings = Settings::from_vars([
        ("AWS_LAMBDA_RUNTIME_API", "unused"),
        ("CONSUMER_VISIBILITY", "off"),
        ("IDEMPOTENCY_NAMESPACE", "tests"),
    ])
    .sdk_config(support::sdk_config("http://127.0.0.1:1"));
    let mode = PostgresMode::new(one(options));
    let consumer = settings.consumer(mode, Ok(handler_fn(unreachable)));
    drop(consumer.await.unwrap());
    let lines = log::lines_containing("could not read the table sqs_once_records at start");
    let error = lines[0]["fields"]["error"].as_str();
    error.unwrap().to_owned()
}

#[track_caller]
fn unavailable(outcome: &Outcome) -> String {
    let Outcome::StoreUnavailable(error) = outcome else {
        panic!("{outcome:?}")
    };
    error.to_string()
}

/// PgBouncer as it comes, and told to ignore the parameters of sqlx and of the library that it does not know.
/// Its session mode shares no session at a time, but opens them without the options of the login too.
#[tokio::test]
async fn pooler_is_refused_at_start_and_for_each_operation() {
    const IGNORES: &str = "ignore_startup_parameters=extra_float_digits,options";
    for settings in [&[][..], &[IGNORES], &[IGNORES, "pool_mode=session"]] {
        let pooler = PgBouncer::start(settings);
        for parameters in ["", "&statement-cache-capacity=0"] {
            let options = || pooler.options(parameters);
            let mode = PostgresMode::new(one(options()));
            let in_transaction = mode.run(operation("o-1", ample()), |attempt| {
                unreachable(String::new(), attempt)
            });
            let once = Once::new(PostgresStore::new(one(options())));
            let in_store = once.run(operation("o-1", ample()), async |_| {
                unreachable!() as Result<(), Failure>
            });
            for error in [
                error_at_start(options()).await,
                unavailable(&in_transaction.await),
                unavailable(&in_store.await),
            ] {
                let remedy = "use the server's own address and port";
                assert!(error.contains(remedy), "{settings:?} {parameters}: {error}");
            }
        }
    }
}

/// A URL that was written for a pooler.
#[tokio::test]
async fn server_itself_needs_no_kept_statements() {
    let world = World::start().await;
    let options = world.options.clone().statement_cache_capacity(0);
    let mode = PostgresMode::new(one(options.clone()));
    for id in ["o-1", "o-2"] {
        let outcome = mode.run(operation(id, ample()), increments(id)).await;
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
        assert_eq!(world.effect(id).await, 1);
    }
    let once = Once::new(PostgresStore::new(one(options)));
    for id in ["o-3", "o-4"] {
        let outcome = once.run(operation(id, ample()), async |_| Ok(1)).await;
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    }
}

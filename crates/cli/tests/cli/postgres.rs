//! `sqs-once record` on PostgreSQL.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor as _, PgPool};
use sqs_once::{
    Attempt, Deadline, Failure, Operation, Outcome,
    internal::{Delivery, RecordFilter, RecordStatus},
    protocol::{
        Claim, Decision, Expect, Key, Namespace, Owner, Record, Rejection, ResultPointer, State,
        StoredResult, Swap, Timestamp, decide,
    },
    store::{Store as _, Swapped},
};
use sqs_once_postgres::{InTransaction, PostgresMode, PostgresStore, Transaction};
use support::{
    CONTEXT,
    postgres::{SERVER, one},
    s3::{BUCKET, S3},
};
use tokio::{
    join,
    sync::{Notify, oneshot},
};

use crate::{
    Ended,
    records::{KEY, SECRET},
    run, tool,
};

/// No AWS answers here.
const NOWHERE: &str = "http://127.0.0.1:1";
const MINUTE: Duration = Duration::from_secs(60);

/// A schema with a table of records.
struct World {
    pool: PgPool,
    url: String,
}

impl World {
    async fn start() -> Self {
        let world = Self::without_table().await;
        sqs_once_postgres::migrate(&world.pool).await.unwrap();
        world
    }

    async fn without_table() -> Self {
        let options = SERVER.schema().await;
        let (port, schema) = (options.get_port(), options.get_application_name());
        let url = url("postgres", port, schema.unwrap());
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(5);
        let pool = pool.connect_lazy_with(options);
        Self { pool, url }
    }

    async fn record(&self, arguments: &[&str]) -> Ended {
        let all = [&["record"], arguments, &["--postgres", &self.url]].concat();
        run(NOWHERE, &all).await
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["--output", "json"]].concat();
        self.record(&arguments).await.json_of_success()
    }

    fn store(&self) -> PostgresStore {
        PostgresStore::new(self.pool.clone())
    }

    /// Claims [`KEY`] in the claim mode, with a lease.
    async fn claim(&self) -> Decision {
        let now = Timestamp::now();
        let (lease_until, kept) = (now + 10 * MINUTE, (now + 60 * MINUTE).as_secs());
        let claim = Claim::new(Owner::fresh(), "message-1", now, lease_until, kept);
        let (store, found) = (self.store(), self.found().await);
        let decision = decide(found.as_ref(), &claim);
        if matches!(decision, Decision::First | Decision::Over) {
            let version = found.as_ref().map_or(0, |record| record.stamp.version) + 1;
            let swap = Swap {
                key: key(),
                to: Record::claimed(&claim, version, found.as_ref(), None),
                expect: found.map_or(Expect::Absent, Expect::Unchanged),
            };
            let swapped = store.swap(&swap, &(), &CONTEXT).await.unwrap();
            assert_eq!(swapped, Swapped::Applied);
        }
        decision
    }

    async fn found(&self) -> Option<Record> {
        self.store().get(&key(), &CONTEXT).await.unwrap()
    }

    async fn put(&self, sql: &str) {
        self.pool
            .execute(AssertSqlSafe(sql.to_owned()))
            .await
            .unwrap();
    }

    /// Puts a record that is kept for an hour.
    async fn put_record(&self, key: &str, status: &str, lease_from_now: Option<i64>) {
        let insert = "INSERT INTO sqs_once_records (id, status, owner, version, lease_until, \
            expires_at, result, attributes) VALUES ($1, $2, 'o-1', 2, $3, $4, $5, $6)";
        let now = Timestamp::now();
        let millis = i64::try_from(now.as_millis()).unwrap();
        let kept = i64::try_from(now.as_secs()).unwrap() + 3600;
        let result = (status == "COMPLETED").then(|| json!({ "card": SECRET }).to_string());
        let insert = sqlx::query(insert)
            .bind(key)
            .bind(status)
            .bind(lease_from_now.map(|seconds| millis + seconds * 1000))
            .bind(kept)
            .bind(result)
            .bind(ATTRIBUTES);
        insert.execute(&self.pool).await.unwrap();
    }

    async fn count(&self) -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM sqs_once_records");
        count.fetch_one(&self.pool).await.unwrap()
    }

    /// Runs the operation of a message to its permanent failure.
    async fn fail(&self, message: &str) {
        let mode = PostgresMode::new(self.pool.clone());
        let fails = async |_| Err::<InTransaction<()>, _>(Failure::permanent("declined"));
        let outcome = mode.run(operation(message), fails).await;
        assert!(
            matches!(outcome, Outcome::PermanentFailure(_)),
            "{outcome:?}"
        );
    }

    /// Holds the transaction of a message open during `meanwhile`, which gets the id of its session.
    async fn hold_open(&self, message: &str, meanwhile: impl AsyncFnOnce(i32)) -> Outcome {
        let (started, session) = oneshot::channel();
        let go_on = Notify::new();
        let holds = async |attempt: Attempt| {
            let mut tx = Transaction::of(&attempt)?;
            let session = sqlx::query_scalar("SELECT pg_backend_pid()");
            let _ = started.send(session.fetch_one(&mut *tx).await?);
            go_on.notified().await;
            Ok(tx.done("paid"))
        };
        let mode = PostgresMode::new(self.pool.clone());
        let meanwhile = async {
            meanwhile(session.await.unwrap()).await;
            go_on.notify_one();
        };
        join!(mode.run(operation(message), holds), meanwhile).0
    }
}

fn url(user: &str, port: u16, schema: &str) -> String {
    format!(
        "postgres://{user}@127.0.0.1:{port}/postgres?sslmode=disable&options[search_path]={schema}"
    )
}

fn key() -> Key {
    Key::new(&Namespace::new("payments").unwrap(), ["order-1"]).unwrap()
}

/// The attributes without a column.
const ATTRIBUTES: &str = r#"{"message_id":"m-1","attempts":2,"updated_at":1}"#;

fn operation(message: &str) -> Operation {
    let deadline = Deadline::after(Timestamp::now(), MINUTE, Duration::from_secs(1));
    Operation::new(key(), None, Delivery::new(message), deadline)
}

#[track_caller]
fn assert_completed(outcome: &Outcome) {
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
}

#[tokio::test]
async fn open_claim_of_new_key_is_named() {
    let world = World::start().await;
    let before = world.record(&["show", KEY]).await;
    assert_eq!(before.code, 1, "{before:?}");
    assert!(before.stderr.contains("check the table"), "{before:?}");
    let held = world.hold_open("message-1", async |_| {
        for command in [&["show", KEY][..], &["release", KEY, "--yes"]] {
            let during = world.record(command).await;
            assert_eq!(during.code, 1, "{during:?}");
            let told =
                format!("no record under the key `{KEY}` yet: an open transaction claims it");
            assert!(during.stderr.contains(&told), "{during:?}");
        }
        assert_eq!(world.count().await, 0);
    });
    assert_completed(&held.await);
    let after = world.json(&["show", KEY, "--result"]).await;
    assert_eq!(
        (&after["status"], &after["result"], &after["next_message"]),
        (&json!("COMPLETED"), &json!("paid"), &json!("duplicate"))
    );
    assert_eq!(after["locked_by_session"], Value::Null);
}

#[tokio::test]
async fn open_claim_of_record_shows_as_lock() {
    let world = World::start().await;
    world.fail("message-1").await;
    let shown = world.json(&["show", KEY]).await;
    assert_eq!(
        (
            &shown["status"],
            &shown["failures"][0]["error"],
            &shown["next_message"]
        ),
        (&json!("FAILED"), &json!("declined"), &json!("runs"))
    );
    let held = world.hold_open("message-2", async |session| {
        let shown = world.json(&["show", KEY]).await;
        assert_eq!(shown["locked_by_session"], session);
        assert_eq!(shown["next_message"], "waits_for_transaction");
        let shown = world.record(&["show", KEY]).await.stdout;
        for wanted in [
            "FAILED; locked by an open transaction\n",
            &format!("PostgreSQL session {session}. A handler runs"),
        ] {
            assert!(shown.contains(wanted), "{wanted}: {shown}");
        }
        let listed = world.json(&["list"]).await;
        assert_eq!(listed["records"][0]["locked_by_session"], session);
        for change in ["release", "delete"] {
            let ended = world.record(&[change, KEY, "--yes"]).await;
            assert_eq!(ended.code, 1, "{ended:?}");
            let told = format!(
                "nothing was changed: an open transaction of the PostgreSQL session {session}"
            );
            assert!(ended.stderr.contains(&told), "{ended:?}");
        }
    });
    assert_completed(&held.await);
    let shown = world.json(&["show", KEY]).await;
    assert_eq!(
        (&shown["status"], &shown["locked_by_session"]),
        (&json!("COMPLETED"), &Value::Null)
    );
}

#[tokio::test]
async fn rolled_back_transaction_is_no_lock() {
    let world = World::start().await;
    world.put_record(KEY, "FAILED", None).await;
    let mut tx = world.pool.begin().await.unwrap();
    let update = "UPDATE sqs_once_records SET version = 3";
    tx.execute(update).await.unwrap();
    assert_ne!(
        world.json(&["show", KEY]).await["locked_by_session"],
        Value::Null
    );
    tx.rollback().await.unwrap();
    assert_eq!(
        world.json(&["show", KEY]).await["locked_by_session"],
        Value::Null
    );
}

#[tokio::test]
async fn release_ends_lease_of_claim_mode() {
    let world = World::start().await;
    assert_eq!(world.claim().await, Decision::First);
    let shown = world.json(&["show", KEY]).await;
    assert_eq!(shown["next_message"], "waits");
    assert!(shown["lease_left_s"].as_u64().unwrap() > 500, "{shown}");
    let refused = world.claim().await;
    assert!(
        matches!(refused, Decision::Rejected(Rejection::Conflict { .. })),
        "{refused:?}"
    );

    let unasked = world.record(&["release", KEY]).await;
    assert_eq!(unasked.code, 2, "{unasked:?}");
    let released = world.json(&["release", KEY, "--yes"]).await;
    assert_eq!(released, json!({"key": KEY, "done": "released"}));
    let again = world.record(&["release", KEY, "--yes"]).await;
    assert_eq!(again.code, 1, "{again:?}");
    assert!(again.stderr.contains("the lease ended"), "{again:?}");

    let replaced = world.found().await.unwrap();
    assert!(replaced.first_claimed_at.is_some(), "{replaced:?}");
    assert_eq!(world.claim().await, Decision::Over);
    assert_eq!(world.found().await.unwrap().attempts, 2);
}

#[tokio::test]
async fn delete_removes_row() {
    let world = World::start().await;
    world.put_record(KEY, "FAILED", None).await;
    world.put_record("payments#order-2", "FAILED", None).await;
    let unasked = world.record(&["delete", KEY]).await;
    assert_eq!((unasked.code, world.count().await), (2, 2), "{unasked:?}");
    let deleted = world.json(&["delete", KEY, "--yes"]).await;
    assert_eq!(deleted, json!({"key": KEY, "done": "deleted"}));
    assert_eq!(world.count().await, 1);
    let again = world.record(&["delete", KEY, "--yes"]).await;
    assert_eq!(again.code, 1, "{again:?}");
}

#[tokio::test]
async fn changed_or_locked_row_is_not_changed() {
    let world = World::start().await;
    world.put_record(KEY, "IN_PROGRESS", Some(600)).await;
    let store = world.store();
    let is_refused = async |shown| {
        let released = store
            .replace(
                shown,
                shown.record.clone().unwrap().released(Timestamp::now()),
            )
            .await
            .unwrap();
        !released && !store.delete_record(shown).await.unwrap()
    };
    let shown = store.show(KEY).await.unwrap().unwrap();
    world
        .put("UPDATE sqs_once_records SET version = version + 1")
        .await;
    assert!(is_refused(&shown).await);

    let shown = store.show(KEY).await.unwrap().unwrap();
    let mut tx = world.pool.begin().await.unwrap();
    let lock = "SELECT id FROM sqs_once_records FOR UPDATE";
    tx.execute(lock).await.unwrap();
    assert!(is_refused(&shown).await);
    tx.rollback().await.unwrap();
    assert!(store.delete_record(&shown).await.unwrap());
    assert!(is_refused(&shown).await);
}

#[tokio::test]
async fn list_filters_rows() {
    let world = World::start().await;
    world.put_record("a#live", "IN_PROGRESS", Some(60)).await;
    world.put_record("a#stuck", "IN_PROGRESS", Some(-60)).await;
    world.put_record("b#stuck", "IN_PROGRESS", Some(-60)).await;
    world.put_record("a#done", "COMPLETED", None).await;
    world.put_record("a#failed", "FAILED", None).await;
    world.put_record("a%_#odd", "FAILED", None).await;
    world.put_record("a#old", "FAILED", None).await;
    let expire = "UPDATE sqs_once_records SET expires_at = 1 WHERE id = 'a#old'";
    world.put(expire).await;
    for (arguments, wanted) in [
        (
            &[][..],
            &[
                "a#done", "a#failed", "a#live", "a#stuck", "a%_#odd", "b#stuck",
            ][..],
        ),
        (
            &["--status", "in-progress"],
            &["a#live", "a#stuck", "b#stuck"],
        ),
        (&["--expired-lease"], &["a#stuck", "b#stuck"]),
        (&["--expired-lease", "--prefix", "a#"], &["a#stuck"]),
        (&["--prefix", "a%"], &["a%_#odd"]),
        (&["--status", "completed"], &["a#done"]),
        (&["--after", "a#live"], &["a#stuck", "a%_#odd", "b#stuck"]),
    ] {
        let listed = world.json(&[&["list"], arguments].concat()).await;
        assert_eq!(keys(&listed), wanted, "{arguments:?}");
        assert_eq!(listed["read_units"], Value::Null);
        assert_eq!(listed["next"], Value::Null);
        assert!(!listed.to_string().contains(SECRET), "{listed}");
    }
    let filter = RecordFilter {
        status: Some(RecordStatus::Completed),
        ..RecordFilter::default()
    };
    let store = world.store();
    let page = store.list(&filter, None, 10, Timestamp::now());
    let done = page.await.unwrap().records[0].record.clone().unwrap().state;
    let State::Completed { result } = done else {
        panic!("{done:?}")
    };
    assert!(
        matches!(result, StoredResult::Omitted(_)),
        "a list reads no results"
    );
    let text = world.record(&["list", "--prefix", "a#"]).await.stdout;
    assert!(text.contains("4 records found in 5 rows."), "{text}");
    let first = world.json(&["list", "--limit", "4"]).await;
    assert_eq!(first["next"], "a#stuck");
}

fn keys(listed: &Value) -> Vec<&str> {
    let records = listed["records"].as_array().unwrap().iter();
    records
        .map(|record| record["key"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn list_reads_bounded_number_of_rows() {
    let world = World::start().await;
    let kept = Timestamp::now().as_secs() + 3600;
    world
        .put(&format!(
            "INSERT INTO sqs_once_records (id, status, owner, version, expires_at, attributes) \
             SELECT 'a#' || to_char(n, 'FM000000'), CASE n WHEN 100100 THEN 'FAILED' ELSE 'COMPLETED' END, \
             'o-1', 1, {kept}, '{ATTRIBUTES}' FROM generate_series(1, 100100) AS n"
        ))
        .await;
    let failed = ["list", "--status", "failed"];
    let text = world.record(&failed).await.stdout;
    assert!(text.contains("0 records found in 100000 rows."), "{text}");
    assert!(text.contains("--after 'a#100000'"), "{text}");
    let rest = world
        .json(&[&failed[..], &["--after", "a#100000"]].concat())
        .await;
    assert_eq!(keys(&rest), ["a#100100"]);
    assert_eq!(
        (&rest["items_read"], &rest["next"]),
        (&json!(100), &Value::Null)
    );
}

#[tokio::test]
async fn invalid_row_is_shown_and_not_released() {
    let world = World::start().await;
    world.put_record(KEY, "COMPLETED", None).await;
    world
        .put("UPDATE sqs_once_records SET attributes = '{}'")
        .await;
    let shown = world.json(&["show", KEY]).await;
    let why = shown["unreadable"].as_str().unwrap();
    assert!(why.contains("message_id"), "{why}");
    assert_eq!(shown["raw"]["status"], "COMPLETED");
    let released = world.record(&["release", KEY, "--yes"]).await;
    assert_eq!(released.code, 1, "{released:?}");
    assert!(released.stderr.contains("no valid record"), "{released:?}");
}

#[tokio::test]
async fn output_of_row_is_read_from_s3() {
    let world = World::start().await;
    let (s3, output) = (S3::start().await, json!({ "card": SECRET }).to_string());
    let pointer = ResultPointer::new(BUCKET, &key(), &Owner::fresh(), output.as_bytes());
    s3.put_object(&pointer.key, &output);
    world.put_record(KEY, "COMPLETED", None).await;
    let mut attributes: Value = serde_json::from_str(ATTRIBUTES).unwrap();
    let stored = json!({
        "bucket": pointer.bucket, "key": pointer.key, "sha256": pointer.sha256, "bytes": pointer.bytes,
    });
    attributes["result_in_s3"] = json!(stored.to_string());
    world
        .put(&format!(
            "UPDATE sqs_once_records SET result = NULL, attributes = '{attributes}'"
        ))
        .await;
    let show = ["record", "show", KEY, "--result", "--postgres", &world.url];
    let shown = run(s3.endpoint(), &show).await;
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.stdout.contains(&output), "{shown:?}");
}

#[tokio::test]
async fn reader_without_insert_sees_records() {
    let world = World::start().await;
    world.put_record(KEY, "FAILED", None).await;
    let options = world.pool.connect_options();
    let schema = options.get_application_name().unwrap();
    let user = format!("reader_of_{schema}");
    let grants = format!(
        "CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {user}; \
         GRANT SELECT ON {schema}.sqs_once_records TO {user}"
    );
    sqlx::raw_sql(AssertSqlSafe(grants))
        .execute(&world.pool)
        .await
        .unwrap();
    let reader = World {
        pool: one((*options).clone()),
        url: url(&user, options.get_port(), schema),
    };
    for command in [&["show", KEY][..], &["list"]] {
        let shown = reader.record(command).await;
        assert_eq!(shown.code, 0, "{shown:?}");
        assert!(shown.stdout.contains("FAILED"), "{shown:?}");
    }
    let absent = reader.record(&["show", "payments#absent"]).await;
    assert_eq!(absent.code, 1, "{absent:?}");
    for wanted in ["an open transaction may claim the key", "check the table"] {
        assert!(absent.stderr.contains(wanted), "{absent:?}");
    }
    let delete = reader.record(&["delete", KEY, "--yes"]).await;
    assert_eq!(delete.code, 3, "{delete:?}");
    assert!(delete.stderr.contains("permission denied"), "{delete:?}");
}

#[tokio::test]
async fn missing_table_or_database_ends_with_3() {
    let world = World::without_table().await;
    let missing = world.record(&["show", KEY]).await;
    assert_eq!(missing.code, 3, "{missing:?}");
    assert!(
        missing.stderr.contains("sqs_once_postgres::migrate"),
        "{missing:?}"
    );
    let absent = world.url.replace("postgres@", "postgres:secret-1@");
    let absent = absent.replace("/postgres?", "/absent?");
    let absent = run(NOWHERE, &["record", "show", KEY, "--postgres", &absent]).await;
    assert_eq!(absent.code, 3, "{absent:?}");
    for wanted in ["PostgreSQL", "database \"absent\" does not exist"] {
        assert!(absent.stderr.contains(wanted), "{absent:?}");
    }
    assert!(!absent.stderr.contains("secret-1"), "{absent:?}");
}

#[tokio::test]
async fn invalid_options_of_postgres_end_with_2() {
    let valid = "postgres://orders:secret-1@127.0.0.1:1/orders";
    for (arguments, told) in [
        (&["--postgres", valid, "--table", "t"][..], "two tables"),
        (&["--postgres", "db.example secret-1"], "is not a URL"),
        (
            &["--postgres", valid, "--max-units", "1"],
            "--max-units is for DynamoDB",
        ),
        (&[], "--table NAME or --postgres URL"),
    ] {
        let ended = run(NOWHERE, &[&["record", "list"], arguments].concat()).await;
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.stderr.contains(told), "{told}: {ended:?}");
        assert!(!ended.stderr.contains("secret-1"), "{ended:?}");
    }
    let mut help = tool(NOWHERE, &["record", "show", "--help"]);
    let help = help.env("DATABASE_URL", valid).output().await;
    let help = Ended::of(help.unwrap()).stdout;
    assert!(help.contains("DATABASE_URL"), "{help}");
    assert!(!help.contains("secret-1"), "{help}");
}

//! The table of records, and the store of the claim mode.

use sqlx::{AssertSqlSafe, Executor, postgres::PgSslMode};
use sqs_once::{
    Failure, Once, Outcome,
    protocol::{
        Claim, Expect, Owner, Record, RecordedFailure, Stamp, State, StoredResult, Swap, Timestamp,
    },
    store::{Store, StoreError, Swapped},
    testing::conformance,
};
use sqs_once_postgres::PostgresStore;
use support::CONTEXT;
use support::postgres::{SERVER, one};
use support::world::{SECOND, World, ample, increments, key, operation};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_passes_every_case() {
    let world = World::start().await;
    let store = PostgresStore::new(world.pool.clone());
    conformance::all(&store).await;
    conformance::one_of_several_is_applied(&store).await;
}

/// PostgreSQL's text cannot contain U+0000.
#[tokio::test]
async fn control_characters_are_restored() {
    const NAME: &str = "a\0b\u{1}0 \\u0000";
    let world = World::start().await;
    let store = PostgresStore::new(world.pool.clone());
    let now = Timestamp::now();
    let owner = Owner::from_stored(NAME.to_owned());
    let claim = Claim::new(owner, NAME, now, now + SECOND, now.as_secs() + 60);
    let claimed = Record {
        source: Some(NAME.to_owned()),
        failures: vec![RecordedFailure {
            at: now,
            error: NAME.to_owned(),
            fingerprint: None,
            message_id: NAME.to_owned(),
        }],
        ..Record::claimed(&claim, 1, None, None)
    };
    let mut completed = claimed.clone();
    completed.stamp.version = 2;
    completed.state = State::Completed {
        result: StoredResult::Json(NAME.to_owned()),
    };
    for (expect, to) in [
        (Expect::Absent, claimed.clone()),
        (Expect::Unchanged(claimed), completed),
    ] {
        let key = key(NAME);
        let swap = Swap { key, expect, to };
        assert_eq!(
            store.swap(&swap, &(), &CONTEXT).await.unwrap(),
            Swapped::Applied
        );
        let found = store.get(&swap.key, &CONTEXT).await.unwrap();
        assert_eq!(found, Some(swap.to));
    }
}

/// A record that cannot be read is never absent.
#[tokio::test]
async fn unreadable_record_runs_nothing() {
    let world = World::start().await;
    let once = Once::new(PostgresStore::new(world.pool.clone()));
    for (id, attributes, why) in [
        ("missing", "{}", "missing field `message_id`"),
        (
            "type",
            r#"{"message_id": "m-1", "attempts": "secret"}"#,
            "an attribute has a value of the wrong type",
        ),
        (
            "json",
            "secret",
            "column `attributes` must be a JSON object",
        ),
    ] {
        let sql = "INSERT INTO sqs_once_records (id, status, owner, version, expires_at, attributes) \
            VALUES ($1, 'FAILED', 'o', 1, 1, $2)";
        let insert = sqlx::query(sql).bind(key(id).as_str().to_owned());
        insert.bind(attributes).execute(&world.pool).await.unwrap();
        let in_claim_mode = once.run(operation(id, ample()), async |_| Ok(1)).await;
        for outcome in [in_claim_mode, world.deliver(id).await] {
            let Outcome::StoreUnavailable(error) = &outcome else {
                panic!("{id}: {outcome:?}")
            };
            assert!(
                matches!(**error, StoreError::Unreadable { .. }),
                "{error:?}"
            );
            let text = error.to_string();
            assert!(text.contains(why) && !text.contains("secret"), "{text}");
        }
    }
}

#[tokio::test]
async fn consumer_needs_no_privilege_to_create() {
    let world = World::start().await;
    let options = world.options.clone();
    let schema = options.get_application_name().unwrap();
    let user = format!("user_of_{schema}");
    let grants = format!(
        "CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {user}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.sqs_once_records TO {user}"
    );
    sqlx::raw_sql(AssertSqlSafe(grants))
        .execute(&world.pool)
        .await
        .unwrap();
    let pool = one(options.username(&user));
    let once = Once::new(PostgresStore::new(pool));
    let outcome = once.run(operation("o-1", ample()), async |_| Ok(1)).await;
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
}

#[tokio::test]
async fn server_without_tls_is_refused() {
    let options = SERVER.schema().await.ssl_mode(PgSslMode::VerifyFull);
    let once = Once::new(PostgresStore::new(one(options)));
    let outcome = once.run(operation("o-1", ample()), async |_| Ok(1)).await;
    let Outcome::StoreUnavailable(error) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(error.to_string().contains("TLS"), "{error}");
}

const PAGE: &str = include_str!("../../docs/effects-in-postgresql.md");

/// Returns a statement of the page for an operator who has read this record.
fn by_hand(begins: &str, stamp: &Stamp) -> String {
    let (_, chapter) = PAGE.split_once("## Records by hand").unwrap();
    let mut blocks = chapter.split("```sql\n").skip(1);
    let block = blocks.find(|block| block.starts_with(begins)).unwrap();
    let (sql, _) = block.split_once("```").unwrap();
    sql.replace("orders#o-1", key("o-1").as_str())
        .replace("D4-tW9nLRp-hZXCGdyiVDg", stamp.owner.as_str())
        .replace("version = 3", &format!("version = {}", stamp.version))
}

/// Returns how many rows a statement of the page changes or finds.
async fn rows(world: &World, sql: String) -> u64 {
    let ended = world.pool.execute(AssertSqlSafe(sql)).await;
    ended.unwrap().rows_affected()
}

const LIST: &str = "SELECT id";
const RELEASE: &str = "UPDATE sqs_once_records SET lease_until";
const DECLINE: &str = "UPDATE sqs_once_records SET owner";
const DELETE: &str = "DELETE";

async fn record(store: &PostgresStore) -> Record {
    let found = store.get(&key("o-1"), &CONTEXT).await;
    found.unwrap().unwrap()
}

/// A worker holds its claim although an operator has ended the lease.
#[tokio::test]
async fn release_by_hand_does_not_fence() {
    let world = World::start().await;
    let store = PostgresStore::new(world.pool.clone());
    let outcome = Once::new(store.clone())
        .run(operation("o-1", ample()), async |_| {
            let stamp = record(&store).await.stamp;
            assert_eq!(rows(&world, by_hand(LIST, &stamp)).await, 0);
            assert_eq!(rows(&world, by_hand(DECLINE, &stamp)).await, 0);
            assert_eq!(rows(&world, by_hand(RELEASE, &stamp)).await, 1);
            let after = record(&store).await;
            assert!(after.lease_until() <= Some(Timestamp::now()), "{after:?}");
            assert_eq!(rows(&world, by_hand(LIST, &stamp)).await, 1);
            assert_eq!(rows(&world, by_hand(RELEASE, &stamp)).await, 0);
            Ok(1)
        })
        .await;
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    let stamp = record(&store).await.stamp;
    for statement in [RELEASE, DECLINE] {
        assert_eq!(rows(&world, by_hand(statement, &stamp)).await, 0);
    }
}

#[tokio::test]
async fn decline_by_hand_writes_what_the_rule_says() {
    let world = World::start().await;
    let store = PostgresStore::new(world.pool.clone());
    let once = Once::new(store.clone());
    for (declines, failure) in [
        Failure::retryable("no answer"),
        Failure::retryable("no answer"),
        Failure::permanent("no"),
    ]
    .into_iter()
    .enumerate()
    {
        let fails = async |_| Err::<u32, _>(failure);
        let _failed = once.run(operation("o-1", ample()), fails).await;
        let before = record(&store).await;
        assert!(before.first_claimed_at.is_some());
        let decline = by_hand(DECLINE, &before.stamp);
        assert_eq!(rows(&world, decline.clone()).await, 1);
        let after = record(&store).await;
        assert_ne!(after.stamp.owner, before.stamp.owner);
        assert_eq!(after.generation, declines as u64 + 1);
        let mut expected = before.declined(Timestamp::now() + SECOND).unwrap();
        expected.stamp.owner = after.stamp.owner.clone();
        expected.updated_at = after.updated_at;
        assert_eq!(after, expected);
        // It has changed since.
        assert_eq!(rows(&world, decline).await, 0);
    }
}

/// Versions begin again with each record.
#[tokio::test]
async fn record_is_deleted_by_hand_only_as_it_was_read() {
    let world = World::start().await;
    let store = PostgresStore::new(world.pool.clone());
    let once = Once::new(store.clone());
    let fails = async |_| Err::<u32, _>(Failure::permanent("no"));
    let _failed = once.run(operation("o-1", ample()), fails).await;
    let stamp = record(&store).await.stamp;
    assert_eq!(rows(&world, by_hand("SELECT status", &stamp)).await, 1);
    let delete = by_hand(DELETE, &stamp);
    assert_eq!(rows(&world, delete.clone()).await, 1);
    let _done = once.run(operation("o-1", ample()), async |_| Ok(1)).await;
    assert_eq!(record(&store).await.stamp.version, stamp.version);
    assert_eq!(rows(&world, delete).await, 0);
}

async fn number_of_expired(world: &World) -> i64 {
    let sql = "SELECT count(*) FROM sqs_once_records WHERE expires_at = 1";
    sqlx::query_scalar(sql)
        .fetch_one(&world.pool)
        .await
        .unwrap()
}

async fn insert_expired(world: &World) {
    world
        .run_sql(
            "INSERT INTO sqs_once_records (id, status, owner, version, expires_at, attributes) \
             SELECT 'old-' || n, 'COMPLETED', 'o', 1, 1, '{}' FROM generate_series(1, 250) AS n",
        )
        .await;
}

/// A steady load deletes twice as many records as it makes.
#[tokio::test]
async fn expired_records_are_deleted_by_completions() {
    let world = World::start().await;
    insert_expired(&world).await;
    let once = Once::new(PostgresStore::new(world.pool.clone()));
    // The first completion deletes too: an environment may be short-lived.
    for (completions, left) in [(1, 150), (49, 150), (1, 50), (49, 50), (1, 0)] {
        for _ in 0..completions {
            let id = fastrand::u64(..).to_string();
            let outcome = once.run(operation(&id, ample()), async |_| Ok(1)).await;
            assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
        }
        assert_eq!(number_of_expired(&world).await, left);
    }
}

/// The transaction has returned its connection by then.
#[tokio::test]
async fn one_connection_deletes_expired_records() {
    let world = World::start().await;
    insert_expired(&world).await;
    let (mode, _pool) = world.worker();
    let outcome = mode.run(operation("o-1", ample()), increments("o-1")).await;
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    assert_eq!(number_of_expired(&world).await, 150);
}

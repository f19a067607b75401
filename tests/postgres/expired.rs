//! Expired records are deleted as fast as records are made. `EXPIRED_MINUTES` is the number of real
//! minutes. Without it each minute has as many completions as a fast worker makes in a second, and the
//! clock of the workers then moves on.

use std::{
    env,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use sqs_once::{Attempt, Deadline, Outcome, protocol::Timestamp};
use sqs_once_postgres::{PostgresMode, Transaction};
use support::world::{World, operation};

const MINUTE: Duration = Duration::from_secs(60);
const WORKERS: u32 = 8;
/// Completions of a simulated minute.
const COMPLETIONS: usize = 400;

/// Seconds by which the clock of the workers is ahead.
static AHEAD: AtomicU64 = AtomicU64::new(0);

fn now() -> Timestamp {
    Timestamp::now() + Duration::from_secs(AHEAD.load(Relaxed))
}

/// Completes operations until the minute is over. Returns their number.
async fn minute(mode: &PostgresMode, minute: usize, is_real: bool) -> usize {
    let (started, next) = (Instant::now(), AtomicUsize::new(0));
    let is_over = |number: usize| {
        if is_real {
            started.elapsed() >= MINUTE
        } else {
            number >= COMPLETIONS
        }
    };
    let workers = (0..WORKERS).map(async |_| {
        let mut completed = 0;
        loop {
            let number = next.fetch_add(1, Relaxed);
            if is_over(number) {
                return completed;
            }
            let deadline = Deadline::after(now(), MINUTE, MINUTE / 10);
            let operation = operation(&format!("{minute}-{number}"), deadline);
            let done = async |attempt: Attempt| Ok(Transaction::of(&attempt)?.done(()));
            let outcome = mode.run(operation, done).await;
            assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
            completed += 1;
        }
    });
    join_all(workers).await.into_iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn table_stops_growing_when_records_expire() {
    let minutes = env::var("EXPIRED_MINUTES").ok();
    let is_real = minutes.is_some();
    let minutes = minutes.map_or(8, |minutes| minutes.parse().unwrap());
    let world = World::start().await;
    let mode = PostgresMode::new(support::postgres::pool(world.options.clone(), WORKERS));
    let mode = mode.retention(MINUTE).clock(now);
    let mut completed = Vec::new();
    for number in 0..minutes {
        completed.push(minute(&mode, number, is_real).await);
        let (rows, bytes, dead): (i64, i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM sqs_once_records), \
             pg_total_relation_size('sqs_once_records'), \
             (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'sqs_once_records'::regclass)",
        )
        .fetch_one(&world.pool)
        .await
        .unwrap();
        let last = completed.last().unwrap();
        println!(
            "minute {}: {last} completions, {rows} rows, {dead} dead ones, {} KiB",
            number + 1,
            bytes / 1024
        );
        // A record lives for its retention, and a minute more. It is deleted by one of the next 100
        // completions.
        let recent: usize = completed.iter().rev().take(3).sum();
        let rows = usize::try_from(rows).unwrap();
        assert!(rows <= recent + 100, "{rows} rows after {completed:?}");
        if !is_real {
            AHEAD.fetch_add(61, Relaxed);
        }
    }
    assert!(minutes > 3, "the table grows in its first three minutes");
}

//! Orders that take pieces from a stock, by concurrent workers that are killed.

use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::Poll::{Pending, Ready},
};

use sqlx::Executor;
use sqs_once::{Attempt, Failure};
use sqs_once_postgres::{InTransaction, Transaction};
use support::world::{World, ample, operation};
use tokio::sync::Mutex;

const WORKERS: usize = 8;
const ORDERS: usize = 60;
const PIECES: i64 = 40;
/// A worker is killed after fewer steps than this, if its attempt has not ended. Most attempts take one to
/// six, and up to 16 on a new connection.
const STEPS: usize = 24;

/// Drops an attempt after so many steps of the worker. Not after some time: on a slow machine no attempt would
/// end, and connections would be closed faster than the server accepts new ones.
async fn killed_after<T>(steps: usize, attempt: impl Future<Output = T>) -> Option<T> {
    let (mut attempt, mut left) = (pin!(attempt), steps);
    poll_fn(|context| match attempt.as_mut().poll(context) {
        Ready(outcome) => Ready(Some(outcome)),
        Pending if left == 0 => Ready(None),
        Pending => {
            left -= 1;
            Pending
        }
    })
    .await
}

async fn place(order: String, attempt: Attempt) -> Result<InTransaction<bool>, Failure> {
    let mut tx = Transaction::of(&attempt)?;
    let take = "UPDATE stock SET pieces = pieces - 1 WHERE pieces > 0";
    let taken = tx.execute(take).await?.rows_affected() == 1;
    if taken {
        let sold = sqlx::query("INSERT INTO sold VALUES ($1)").bind(order);
        sold.execute(&mut *tx).await?;
    }
    Ok(tx.done(taken))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stock_is_exact_beside_killed_workers() {
    let world = Arc::new(World::start().await);
    world
        .run_sql("CREATE TABLE stock (pieces bigint CHECK (pieces >= 0))")
        .await;
    world.run_sql("CREATE TABLE sold (id text)").await;
    world.run_sql("INSERT INTO stock VALUES (40)").await;
    // Each order twice, so that two workers meet.
    let queue = (0..2 * ORDERS).map(|n| format!("o-{}", n % ORDERS));
    let queue = Arc::new(Mutex::new(queue.collect::<Vec<_>>()));
    let workers = (0..WORKERS).map(|worker| {
        let (world, queue) = (Arc::clone(&world), Arc::clone(&queue));
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(worker as u64);
            let (mode, _pool) = world.worker();
            let (mut acknowledged, mut killed) = (0, 0);
            loop {
                let Some(order) = queue.lock().await.pop() else {
                    return (acknowledged, killed);
                };
                let run = mode.run(operation(&order, ample()), |attempt| {
                    place(order.clone(), attempt)
                });
                match killed_after(random.usize(0..STEPS), run).await {
                    Some(outcome) if outcome.is_success() => acknowledged += 1,
                    Some(outcome) => panic!("{outcome:?}"),
                    None => {
                        killed += 1;
                        queue.lock().await.push(order);
                    }
                }
            }
        })
    });
    let (mut acknowledged, mut killed) = (0, 0);
    for worker in workers.collect::<Vec<_>>() {
        let (some, died) = worker.await.unwrap();
        acknowledged += some;
        killed += died;
    }
    eprintln!("{killed} killed");
    assert_eq!(acknowledged, 2 * ORDERS);
    assert!(killed > 0);
    let number = async |sql: &'static str| -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(&world.pool)
            .await
            .unwrap()
    };
    assert_eq!(number("SELECT pieces FROM stock").await, 0);
    assert_eq!(number("SELECT count(*) FROM sold").await, PIECES);
    assert_eq!(number("SELECT count(DISTINCT id) FROM sold").await, PIECES);
    let placed = "SELECT count(*) FROM sqs_once_records WHERE result = 'true'";
    assert_eq!(number(placed).await, PIECES);
    let records = "SELECT count(*) FROM sqs_once_records WHERE status = 'COMPLETED'";
    assert_eq!(number(records).await, ORDERS as i64);
}

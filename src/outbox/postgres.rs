//! [`PostgresRelay`]: sends the events of the table `sqs_once_outbox`, by schedule and right after a
//! commit.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use serde::Serialize;
use sqlx::Error;
use tokio::time::{Instant, timeout_at};

use super::{
    Relay, RelayError,
    relay::{ASSUMED_TIMEOUT, Unsent},
    stream::{Group, Pending},
};
use crate::{
    deadline::Deadline,
    once::{AfterCommit, InPostgres},
    postgres::{
        explain::explain,
        lent::{Lent, Limits},
        outbox::{Row, lock_due, settle},
    },
    protocol::Timestamp,
    store::PostgresStore,
    telemetry::RelayReport,
};

/// Time reserved to delete the rows of sent events, and for the response.
const RESERVE: Duration = Duration::from_secs(2);
/// Time that a round of sending takes at most: the limit of one call in [`aws::config`](crate::aws).
const MIN_TIME_TO_START: Duration = Duration::from_secs(5);
/// Time from the deadline until the server ends the transaction of a frozen relay.
const MARGIN: Duration = Duration::from_secs(1);
/// Time without events right after commits, once they took too long or the database failed.
const PAUSE: Duration = Duration::from_secs(60);
/// Time that a database and a target need, so that the end of it shows a slow one.
const MIN_TIME: Duration = Duration::from_millis(100);

/// Sends the events that [`InPostgres`](crate::InPostgres) has recorded in `sqs_once_outbox`. Clones
/// share pool and clients.
///
/// ```no_run
/// # async fn run() -> Result<(), lambda_runtime::Error> {
/// use sqs_once::{aws, outbox::{self, PostgresRelay, Relay}, postgres, store::PostgresStore};
///
/// let targets = "*=https://sqs.eu-central-1.amazonaws.com/123456789012/shipping.fifo".parse()?;
/// let dead_letters = "https://sqs.eu-central-1.amazonaws.com/123456789012/outbox-dead-letters";
/// let relay = Relay::new(&aws::config().await, targets, dead_letters)?;
/// let pool = postgres::pool("postgres://orders@db.example/orders".parse()?, 1);
/// outbox::run(PostgresRelay::new(relay, PostgresStore::new(pool))).await?;
/// # Ok(()) }
/// ```
///
/// # Transactions
///
/// 1. Lock the first row of each group whose next attempt is due, unless another relay has locked it:
///    at most 100 groups. Read their first ten rows, with 8 MB of bodies in total.
/// 2. Send these events as [`Relay`] does: the events of a group one after the other, groups side by
///    side, refused events to the dead-letter queue.
/// 3. Delete the rows of sent and dead-lettered events. If an event failed, set the next attempt of
///    its group, after 5 seconds to 5 minutes.
/// 4. `COMMIT`, and start again, until no group is due or the time is up.
///
/// If the relay crashes, PostgreSQL ends the transaction, and the events are sent again: a target gets
/// an event at least once. If the process is frozen, the server ends the transaction. From PostgreSQL
/// 17 on it does so one second after the deadline. Before, it can do so later: the limit of the idle
/// time starts at the end of the last statement.
#[derive(Clone, Debug)]
pub struct PostgresRelay {
    relay: Relay,
    store: PostgresStore,
}

/// Numbers of events of one run of a [`PostgresRelay`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Relayed {
    /// Events that a target confirmed.
    pub sent: u64,
    /// Events that the dead-letter queue confirmed.
    pub dead_lettered: u64,
    /// Events that are sent again: failed ones, and those that were read behind them in their groups.
    pub failed: u64,
}

impl Relayed {
    const fn of(report: &RelayReport) -> Self {
        Self {
            sent: report.sent,
            dead_lettered: report.dead_lettered,
            failed: report.failed,
        }
    }
}

impl PostgresRelay {
    /// A relay that sends as `relay` does, from the database of `store`. It needs one connection.
    #[must_use]
    pub const fn new(relay: Relay, store: PostgresStore) -> Self {
        Self { relay, store }
    }

    /// Sends events until none is due, or `deadline`. Several relays may send at a time.
    ///
    /// Dropping the returned future has the effect of a crash: the events of the open transaction are
    /// sent again.
    ///
    /// # Errors
    ///
    /// If PostgreSQL fails. Events may have been sent before.
    pub async fn send_due(&self, deadline: Deadline) -> Result<Relayed, RelayError> {
        self.send_all_due(deadline, None).await
    }

    pub(super) fn deadline(&self, at: Timestamp) -> Deadline {
        Deadline::of_invocation(Timestamp::now(), at, ASSUMED_TIMEOUT, RESERVE)
            .min_time_to_start(MIN_TIME_TO_START)
    }

    pub(super) async fn send_all_due(
        &self,
        deadline: Deadline,
        request_id: Option<&str>,
    ) -> Result<Relayed, RelayError> {
        let mut report = RelayReport::new(Timestamp::now());
        let sent = timeout_at(deadline.end(), async {
            let connections = self.store.connections();
            let mut lent = Lent::begin(connections, limits(deadline), deadline.stop()).await?;
            send(&self.relay, &mut lent, None, deadline, &mut report).await
        });
        let sent = sent.await;
        let relayed = Relayed::of(&report);
        self.relay.log(report, request_id);
        let reason = match sent {
            Ok(Ok(())) => return Ok(relayed),
            Ok(Err(error)) => explain(&error),
            Err(_elapsed) => "no answer before the deadline".to_owned(),
        };
        Err(RelayError::Database { reason })
    }
}

impl InPostgres {
    /// Sends the events of each answer right after its commit, in at most 2 seconds or half of the
    /// time left, whichever is shorter. Without this call, events wait for a [`PostgresRelay`].
    ///
    /// A failure changes no outcome: it is logged, and the events stay in the table. So a
    /// [`PostgresRelay`] must run by schedule too. If sending takes more than three quarters of that
    /// time, or the database fails, this process sends nothing right after commits for a minute.
    ///
    /// ```no_run
    /// # fn main_(pool: sqlx::PgPool, relay: sqs_once::outbox::Relay) {
    /// let mode = sqs_once::Once::in_postgres(pool).relay(relay);
    /// # }
    /// ```
    #[must_use]
    pub fn relay(self, relay: Relay) -> Self {
        self.after_commit(RightAfterCommit {
            relay,
            paused_until: Mutex::default(),
        })
    }
}

/// Sends the events of one answer.
#[derive(Debug)]
struct RightAfterCommit {
    relay: Relay,
    paused_until: Mutex<Option<Instant>>,
}

impl AfterCommit for RightAfterCommit {
    fn send<'a>(
        &'a self,
        lent: &'a mut Lent,
        groups: &'a [String],
        time: Duration,
    ) -> BoxFuture<'a, ()> {
        self.send_groups(lent, groups, time).boxed()
    }
}

impl RightAfterCommit {
    async fn send_groups(&self, lent: &mut Lent, groups: &[String], time: Duration) {
        if time < MIN_TIME || self.is_paused() {
            return;
        }
        let deadline = Deadline::after(Timestamp::now(), time, time / 4);
        let mut report = RelayReport::new(Timestamp::now());
        let sent = timeout_at(deadline.end(), async {
            lent.open(limits(deadline)).await?;
            send(&self.relay, lent, Some(groups), deadline, &mut report).await
        });
        let sent = sent.await;
        if Relayed::of(&report) != Relayed::default() {
            self.relay.log(report, None);
        }
        let reason = match sent {
            Ok(Ok(())) if Instant::now() < deadline.stop() => return,
            Ok(Ok(())) | Err(_) => "out of time".to_owned(),
            Ok(Err(error)) => {
                // If the server answers, the connection stays in its pool.
                let _closed = timeout_at(deadline.end(), lent.roll_back()).await;
                explain(&error)
            }
        };
        tracing::warn!(
            reason,
            "no events are sent right after commits for a minute: the scheduled relay sends them"
        );
        *self.lock() = Some(Instant::now() + PAUSE);
    }

    fn is_paused(&self) -> bool {
        self.lock().is_some_and(|until| Instant::now() < until)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        let locked = self.paused_until.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the due events of these groups, or of all, on a connection with an open transaction. Ends
/// when no event is due, or when it is too late for another transaction.
async fn send(
    relay: &Relay,
    lent: &mut Lent,
    groups: Option<&[String]>,
    deadline: Deadline,
    report: &mut RelayReport,
) -> Result<(), Error> {
    loop {
        let rows = lock_due(lent, groups).await?;
        if rows.is_empty() {
            return lent.roll_back().await;
        }
        send_rows(relay, lent, rows, deadline.stop(), report).await?;
        lent.commit().await?;
        // An event of these groups may have been recorded meanwhile, by a worker that found the
        // group locked.
        if !deadline.may_start() {
            return Ok(());
        }
        lent.open(limits(deadline)).await?;
    }
}

/// Sends the events of locked rows. Deletes the rows of those that were sent, and sets the next
/// attempt of those that failed.
async fn send_rows(
    relay: &Relay,
    lent: &mut Lent,
    rows: Vec<Row>,
    until: Instant,
    report: &mut RelayReport,
) -> Result<(), Error> {
    let mut done: BTreeSet<i64> = rows.iter().map(|row| row.sequence).collect();
    let unsent = relay.send_groups(groups(rows), until, report).await;
    let mut failed = Vec::new();
    for Unsent { events, has_failed } in unsent {
        for event in &events {
            done.remove(&event.position);
        }
        if has_failed {
            report.failed(events.len());
            failed.extend(events.front().map(|event| event.position));
        }
    }
    settle(lent, &Vec::from_iter(done), &failed).await
}

/// Divides rows into groups, in the order of the first row of each.
fn groups(rows: Vec<Row>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut places = BTreeMap::new();
    for row in rows {
        let place = *places
            .entry(row.event.group.clone())
            .or_insert(groups.len());
        if place == groups.len() {
            groups.push(Group::new());
        }
        groups[place].push_back(Pending {
            position: row.sequence,
            event: row.event,
            published_at: Some(row.published_at),
            fault: None,
        });
    }
    groups
}

/// The server ends the transaction of a relay that is frozen. In a stricter isolation, a row that another
/// relay has sent would be an error, and not a row to be left out.
fn limits(deadline: Deadline) -> Limits {
    let time = deadline.end().saturating_duration_since(Instant::now());
    Limits {
        lock: time,
        transaction: time + MARGIN,
        is_read_committed: true,
    }
}

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

use crate::report::RelayReport;
use crate::{
    Relay, RelayError,
    relay::{ASSUMED_TIMEOUT, Run, Unsent},
    stream::{Group, Pending},
};
use sqs_once::{Deadline, protocol::Timestamp};
use sqs_once_postgres::{
    PostgresStore,
    relay::{
        AfterCommit, Limits, MAX_BYTES, MAX_GROUPS, MIN_ROWS_OF_GROUP, Row, TransactionConnection,
        explain, lock_due, oldest, settle,
    },
};

/// Time reserved to delete the rows of sent events, and for the response.
const RESERVE: Duration = Duration::from_secs(2);
/// Time that a round of sending takes at most: the limit of one call in [`aws::config`](sqs_once::aws::config).
/// A later round could be cut off, and its events would have failed.
const MIN_TIME_TO_START: Duration = Duration::from_secs(5);
/// Rows of one transaction that few groups share.
const MAX_ROWS: usize = 500;
/// Time after a look at all groups in which only those are sent that have more events. Such a look can
/// read every row of the table.
const TIME_TO_NEXT_LOOK: Duration = Duration::from_secs(5);
/// Time without events right after commits, once an event or the database failed.
const PAUSE: Duration = Duration::from_secs(60);
/// Least time for a send after a commit. With less, a timeout would not prove that the target is slow.
const MIN_TIME: Duration = Duration::from_millis(500);
/// Time that a round of sending right after a commit takes, with a healthy target.
const MIN_TIME_AFTER_COMMIT: Duration = Duration::from_millis(200);
/// Most transactions right after a commit: the first sends the events of the answer, and the next ones
/// those of workers that found their groups locked.
const MAX_TRANSACTIONS: usize = 3;

/// Sends the events that [`InPostgres`](sqs_once_postgres::InPostgres) has recorded in `sqs_once_outbox`. Clones
/// share pool and clients.
///
/// ```no_run
/// # async fn run() -> Result<(), lambda_runtime::Error> {
/// use sqs_once::aws;
/// use sqs_once_outbox::{PostgresRelay, Relay};
/// use sqs_once_postgres::PostgresStore;
///
/// let targets = "*=https://sqs.eu-central-1.amazonaws.com/123456789012/shipping.fifo".parse()?;
/// let dead_letters = "https://sqs.eu-central-1.amazonaws.com/123456789012/outbox-dead-letters";
/// let relay = Relay::new(&aws::config().await, targets, dead_letters)?;
/// let pool = sqs_once_postgres::pool("postgres://orders@db.example/orders".parse()?, 1);
/// sqs_once_outbox::run(PostgresRelay::new(relay, PostgresStore::new(pool))).await?;
/// # Ok(()) }
/// ```
///
/// # Transactions
///
/// 1. Lock the first row of each group whose next attempt is due, unless another relay has locked it:
///    at most 100 groups. Read their first rows: ten of each, and more of few groups, up to 500 in
///    total, with 8 MB of bodies.
/// 2. Send these events as [`Relay`] does: the events of a group one after the other, groups side by
///    side, refused events to the dead-letter queue.
/// 3. Delete the rows of sent and dead-lettered events. If an event failed, set the next attempt of
///    its group, after 5 seconds to 5 minutes.
/// 4. `COMMIT`, and start again, until no group is due or the time is up. For five seconds, start with
///    the groups that have more events, and then with all.
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

    pub(crate) fn deadline(&self, at: Timestamp) -> Deadline {
        Deadline::of_invocation(Timestamp::now(), at, ASSUMED_TIMEOUT, RESERVE)
            .min_time_to_start(MIN_TIME_TO_START)
    }

    pub(crate) async fn send_all_due(
        &self,
        deadline: Deadline,
        request_id: Option<&str>,
    ) -> Result<Relayed, RelayError> {
        let mut report = RelayReport::new(Timestamp::now());
        let sent = timeout_at(deadline.end(), async {
            let (limits, stop) = (limits(deadline), deadline.stop());
            let mut tx = self.store.begin_until(limits, stop).await?;
            report.waiting(oldest(&mut tx).await?);
            send_all(&self.relay, &mut tx, deadline, &mut report).await
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

/// Sends the events of each answer right after its commit, in at most 2 seconds or half of the time left,
/// whichever is shorter. Without it, events wait for a [`PostgresRelay`].
///
/// A failure changes no outcome: it is logged, and the events stay in the table. So a
/// [`PostgresRelay`] must run by schedule too. It also sends the rest of a group with more than 30
/// waiting events, and each event whose name has no target in `relay`, with those behind it in its
/// group. After a failure this process sends nothing right after commits for a minute.
///
/// ```no_run
/// # fn main_(pool: sqlx::PgPool, relay: sqs_once_outbox::Relay) {
/// use sqs_once_outbox::RightAfterCommit;
/// use sqs_once_postgres::InPostgres;
///
/// let mode = InPostgres::new(pool).after_commit(RightAfterCommit::new(relay));
/// # }
/// ```
#[derive(Debug)]
pub struct RightAfterCommit {
    relay: Relay,
    paused_until: Mutex<Option<Instant>>,
}

impl AfterCommit for RightAfterCommit {
    fn send<'a>(
        &'a self,
        tx: &'a mut TransactionConnection,
        groups: &'a [String],
        time: Duration,
    ) -> BoxFuture<'a, ()> {
        self.send_groups(tx, groups, time).boxed()
    }
}

impl RightAfterCommit {
    /// Sends as `relay` does. Call [`Relay::check_targets`] before, as [`DatabaseWithRelay`] does.
    ///
    /// [`DatabaseWithRelay`]: crate::DatabaseWithRelay
    #[must_use]
    pub fn new(relay: Relay) -> Self {
        Self {
            relay,
            paused_until: Mutex::default(),
        }
    }

    async fn send_groups(&self, tx: &mut TransactionConnection, groups: &[String], time: Duration) {
        if time < MIN_TIME || self.is_paused() {
            return;
        }
        let deadline = Deadline::after(Timestamp::now(), time, time / 4)
            .min_time_to_start(MIN_TIME_AFTER_COMMIT);
        let mut report = RelayReport::new(Timestamp::now());
        let sent = send_of_groups(&self.relay, tx, groups, deadline, &mut report);
        let sent = timeout_at(deadline.end(), sent).await;
        let relayed = Relayed::of(&report);
        if relayed != Relayed::default() {
            self.relay.log(report, None);
        }
        let reason = match sent {
            Ok(Ok(())) if relayed.failed == 0 => return,
            Ok(Ok(())) => "an event was not sent".to_owned(),
            Err(_elapsed) => "out of time".to_owned(),
            Ok(Err(error)) => {
                // If the server answers, the connection stays in its pool.
                let _closed = timeout_at(deadline.end(), tx.roll_back()).await;
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

/// Sends the due events of all groups, on a connection with an open transaction. Ends when no event is
/// due, or when it is too late for another transaction.
async fn send_all(
    relay: &Relay,
    tx: &mut TransactionConnection,
    deadline: Deadline,
    report: &mut RelayReport,
) -> Result<(), Error> {
    let mut run = Run::new(deadline);
    loop {
        let mut groups = groups(lock_due(tx, None, MAX_ROWS).await?);
        if groups.is_empty() {
            return tx.roll_back().await;
        }
        let next_look = Instant::now() + TIME_TO_NEXT_LOOK;
        // If more groups are due than one transaction takes, a few long ones do not delay them.
        let enough = if groups.len() < MAX_GROUPS {
            1
        } else {
            MAX_GROUPS / 2
        };
        while !groups.is_empty() {
            run.latest_start = deadline.latest_start().min(next_look);
            let mut long = long_groups(&groups, MAX_ROWS);
            let Settled { done, failed } = send_groups(relay, groups, &mut run, report).await;
            for (_, group) in &failed {
                long.remove(group);
            }
            let failed = failed.into_iter().map(|(row, _)| row);
            settle(tx, &done, &Vec::from_iter(failed)).await?;
            tx.commit().await?;
            if !deadline.may_start() {
                tracing::info!("the time is up; the next run sends the events that are still due");
                return Ok(());
            }
            tx.open(limits(deadline)).await?;
            if long.len() < enough || Instant::now() >= next_look {
                break;
            }
            groups = self::groups(lock_due(tx, Some(&Vec::from_iter(long)), MAX_ROWS).await?);
        }
    }
}

/// Sends the due events of these groups, in a few transactions. Stops at the first failure.
///
/// Only the scheduled relay judges a name without a target, because its list of targets is complete. And
/// only it postpones a group. Otherwise a worker that can't send would keep the groups of its commits from
/// the relay.
async fn send_of_groups(
    relay: &Relay,
    tx: &mut TransactionConnection,
    of: &[String],
    deadline: Deadline,
    report: &mut RelayReport,
) -> Result<(), Error> {
    let mut run = Run::new(deadline);
    for _ in 0..MAX_TRANSACTIONS {
        tx.open(limits(deadline)).await?;
        let mut groups = groups(lock_due(tx, Some(of), MIN_ROWS_OF_GROUP).await?);
        for group in &mut groups {
            let has_no_target = |row: &Pending| relay.targets.of(&row.event.name).is_none();
            let sendable = group.iter().position(has_no_target);
            group.truncate(sendable.unwrap_or(group.len()));
        }
        groups.retain(|group| !group.is_empty());
        if groups.is_empty() {
            return tx.roll_back().await;
        }
        let Settled { done, failed } = send_groups(relay, groups, &mut run, report).await;
        settle(tx, &done, &[]).await?;
        tx.commit().await?;
        if !failed.is_empty() || !deadline.may_start() {
            break;
        }
    }
    Ok(())
}

/// The rows of events that were sent or dead-lettered, and each row that failed, with its group.
struct Settled {
    done: Vec<i64>,
    failed: Vec<(i64, String)>,
}

/// Sends the events of groups that are locked.
async fn send_groups(
    relay: &Relay,
    groups: Vec<Group>,
    run: &mut Run,
    report: &mut RelayReport,
) -> Settled {
    let rows = groups.iter().flatten().map(|event| event.position);
    let mut done: BTreeSet<i64> = rows.collect();
    let mut failed = Vec::new();
    for Unsent { events, has_failed } in relay.send_groups(groups, run, report).await {
        for event in &events {
            done.remove(&event.position);
        }
        let Some(first) = events.front() else {
            continue;
        };
        if has_failed {
            report.failed(events.len());
            failed.push((first.position, first.event.group.clone()));
        }
    }
    Settled {
        done: Vec::from_iter(done),
        failed,
    }
}

/// The groups of which a request with this limit may have left out rows.
fn long_groups(groups: &[Group], max_rows: usize) -> BTreeSet<String> {
    let bytes = |group: &Group| -> usize { group.iter().map(|row| row.event.body.len()).sum() };
    let is_cut = groups.iter().map(bytes).sum::<usize>() >= MAX_BYTES;
    let rows = MIN_ROWS_OF_GROUP.max(max_rows / groups.len().max(1));
    let long = groups.iter().filter(|group| is_cut || group.len() >= rows);
    let long = long.filter_map(|group| group.front());
    long.map(|first| first.event.group.clone()).collect()
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

/// In a stricter isolation, a row that another
/// relay has sent would be an error, and not a row to be left out.
fn limits(deadline: Deadline) -> Limits {
    Limits {
        is_read_committed: true,
        ..Limits::until(deadline, deadline.end())
    }
}

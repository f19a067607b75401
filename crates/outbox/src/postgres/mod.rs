//! [`PostgresRelay`]: sends the events of the table `sqs_once_outbox` on a schedule.

mod locked;

use std::{collections::BTreeSet, time::Duration};

use serde::Serialize;
use sqlx::Error;

use crate::report::RelayReport;
use crate::{Relay, RelayError, relay::ASSUMED_TIMEOUT, rounds::Rounds, stream::Group};
use locked::{SettledRows, groups, limits, send_groups};
use sqs_once::{
    Deadline,
    internal::system::{self, timeout_at},
    protocol::Timestamp,
};
use sqs_once_postgres::{
    PostgresStore,
    relay::{
        MAX_BYTES, MAX_GROUPS, MIN_ROWS_OF_GROUP, TransactionConnection, explain, lock_due, oldest,
        settle,
    },
};

/// Time reserved for deleting the rows of sent events and for the response.
const RESERVE: Duration = Duration::from_secs(2);
/// How long a round of sending may take: as long as a call in [`aws::config`](sqs_once::aws::config). With less time left, a round
/// could be cut off, and its events would fail.
const MIN_TIME_TO_START: Duration = Duration::from_secs(5);
/// Maximum number of rows in a transaction. If there are few groups, they share these rows.
const MAX_ROWS: usize = 500;
/// How long we read only groups that are known to have more events. Then we look at all groups again, which may read every
/// row of the table.
const TIME_TO_NEXT_LOOK: Duration = Duration::from_secs(5);
/// Sends the events that [`PostgresMode`](sqs_once_postgres::PostgresMode) has recorded in `sqs_once_outbox`.
/// Clones share the pool and the clients.
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
/// let pool = sqlx::PgPool::connect_lazy("postgres://orders@db.example/orders?sslmode=verify-full")?;
/// sqs_once_outbox::run(PostgresRelay::new(relay, PostgresStore::new(pool))).await?;
/// # Ok(()) }
/// ```
///
/// # Transactions
///
/// 1. Lock the first row of each group whose next attempt is due, unless another relay has locked it, for up to
///    100 groups. Read ten rows of each group, or more if there are few groups, up to 500 rows with 8 MB of
///    bodies.
/// 2. Send these events as [`Relay`] does: the events of a group one after the other, groups in parallel, and rejected events to
///    the dead-letter queue.
/// 3. Delete the rows of sent and dead-lettered events. If an event failed, postpone its group by 5 seconds
///    to 5 minutes.
/// 4. `COMMIT` and start again, until no group is due or the time is up. For up to five seconds, the next transactions take
///    only the groups that have more events. After that, the relay looks at all groups again.
///
/// If the relay crashes, PostgreSQL ends the transaction, and the events are sent again: a target gets an event
/// at least once. If the process is frozen, the server ends the transaction: PostgreSQL 17 and later do so one
/// second after the deadline. Older versions may do so later, because their idle limit starts at the end of the
/// last statement.
#[derive(Clone, Debug)]
pub struct PostgresRelay {
    relay: Relay,
    store: PostgresStore,
}

/// How many events a run of a [`PostgresRelay`] has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Relayed {
    /// Events that a target confirmed.
    pub sent: u64,
    /// Events that the dead-letter queue confirmed.
    pub dead_lettered: u64,
    /// Events that will be sent again: those that failed, and those behind them in their groups.
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
    /// Creates a relay that sends events from the database of `store`, as `relay` sends them. The relay needs one connection.
    #[must_use]
    pub const fn new(relay: Relay, store: PostgresStore) -> Self {
        Self { relay, store }
    }

    /// Sends events until none is due or `deadline` is reached. Several relays may send at the same time.
    ///
    /// Dropping the returned future is like a crash: the events of the open transaction are sent again.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails. Some events may already have been sent.
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
        let sent = timeout_at(deadline.write_until(), async {
            let (limits, stop) = (limits(deadline), deadline.handler_cutoff());
            let mut tx = self.store.begin_until(limits, stop).await?;
            report.waiting(oldest(&mut tx).await?);
            send_all(&self.relay, &mut tx, deadline, &mut report).await
        })
        .await;
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

/// Sends the due events of all groups, on a connection with an open transaction. Stops when no event is due, or
/// when it is too late for another transaction.
async fn send_all(
    relay: &Relay,
    tx: &mut TransactionConnection,
    deadline: Deadline,
    report: &mut RelayReport,
) -> Result<(), Error> {
    let mut run = Rounds::new(deadline);
    loop {
        let mut groups = groups(lock_due(tx, None, MAX_ROWS).await?);
        if groups.is_empty() {
            return tx.roll_back().await;
        }
        let next_look = system::instant() + TIME_TO_NEXT_LOOK;
        // If more groups are due than fit into one transaction, a few long groups must not hold up the others.
        let enough = if groups.len() < MAX_GROUPS {
            1
        } else {
            MAX_GROUPS / 2
        };
        while !groups.is_empty() {
            run.start_by = deadline.start_by().min(next_look);
            let mut long = long_groups(&groups, MAX_ROWS);
            let SettledRows { done, failed } = send_groups(relay, groups, &mut run, report).await;
            for (_, group) in &failed {
                long.remove(group);
            }
            let failed_rows: Vec<_> = failed.into_iter().map(|(row, _)| row).collect();
            settle(tx, &done, &failed_rows).await?;
            tx.commit().await?;
            if !deadline.may_start() {
                tracing::info!("the time is up; the next run sends the events that are still due");
                return Ok(());
            }
            tx.open(limits(deadline)).await?;
            if long.len() < enough || system::instant() >= next_look {
                break;
            }
            groups = self::groups(lock_due(tx, Some(&Vec::from_iter(long)), MAX_ROWS).await?);
        }
    }
}

/// Returns the groups that may have more rows than a request with this limit has returned.
fn long_groups(groups: &[Group], max_rows: usize) -> BTreeSet<String> {
    let bytes = |group: &Group| -> usize { group.iter().map(|row| row.event.body.len()).sum() };
    let is_cut = groups.iter().map(bytes).sum::<usize>() >= MAX_BYTES;
    let rows = MIN_ROWS_OF_GROUP.max(max_rows / groups.len().max(1));
    groups
        .iter()
        .filter(|group| is_cut || group.len() >= rows)
        .filter_map(|group| group.front())
        .map(|first| first.event.group.clone())
        .collect()
}

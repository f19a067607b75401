//! [`RightAfterCommit`]: sends the events of an operation right after its commit.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use sqlx::Error;
use tokio::time::{Instant, timeout_at};

use super::{
    Relayed,
    locked::{Settled, groups, limits, send_groups},
};
use crate::{Relay, report::RelayReport, rounds::Run, stream::Pending};
use sqs_once::{Deadline, protocol::Timestamp};
use sqs_once_postgres::relay::{
    AfterCommit, MIN_ROWS_OF_GROUP, TransactionConnection, explain, lock_due, settle,
};

/// Pause in sending right after commits, when an event or the database has failed.
const PAUSE: Duration = Duration::from_secs(60);
/// Least time for a send after a commit. With less, a timeout would not prove that the target is slow.
const MIN_TIME: Duration = Duration::from_millis(500);
/// How long a round of sending right after a commit takes with a healthy target.
const MIN_TIME_AFTER_COMMIT: Duration = Duration::from_millis(200);
/// The most transactions right after a commit. The first sends the events of the operation, and the next ones
/// send those of workers that found their groups locked.
const MAX_TRANSACTIONS: usize = 3;

/// Sends the events of each operation right after its commit, in at most 2 seconds or half of the time left,
/// whichever is shorter. Without it, events wait for a [`PostgresRelay`].
///
/// A failure changes no outcome. It is logged, and the events stay in the table. So a [`PostgresRelay`] must
/// also run on a schedule. It also sends the rest of a group with more than 30 waiting events, and each event
/// whose name has no target in `relay`, together with those behind it in its group. After a failure, this
/// process sends nothing right after commits for a minute.
///
/// ```no_run
/// # fn main_(pool: sqlx::PgPool, relay: sqs_once_outbox::Relay) {
/// use sqs_once_outbox::RightAfterCommit;
/// use sqs_once_postgres::PostgresMode;
///
/// let mode = PostgresMode::new(pool).after_commit(RightAfterCommit::new(relay));
/// # }
/// ```
///
/// [`PostgresRelay`]: super::PostgresRelay
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
    /// Creates a sender that sends as `relay` does. Call [`Relay::check_targets`] first, as
    /// [`DatabaseWithRelay`] does.
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
        let sent = timeout_at(deadline.write_until(), sent).await;
        let relayed = Relayed::of(&report);
        if relayed != Relayed::default() {
            self.relay.log(report, None);
        }
        let reason = match sent {
            Ok(Ok(())) if relayed.failed == 0 => return,
            Ok(Ok(())) => "an event was not sent".to_owned(),
            Err(_elapsed) => "out of time".to_owned(),
            Ok(Err(error)) => {
                // If the server responds, the connection stays in its pool.
                let _closed = timeout_at(deadline.write_until(), tx.roll_back()).await;
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

/// Sends the due events of these groups, in a few transactions. Stops at the first failure.
///
/// Only the scheduled relay decides about a name without a target, because only its list of targets is
/// complete. Only that relay postpones a group, too. Otherwise a worker that cannot send would keep the relay
/// away from the groups of its commits.
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

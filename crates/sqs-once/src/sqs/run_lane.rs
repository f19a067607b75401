//! Runs one lane of a batch: its messages one after the other. Decides what each result means for the
//! messages behind it.

use std::{pin::pin, sync::Arc};

use tracing::Instrument as _;

use super::{
    batch::Batch,
    consumer::Consumer,
    fifo_after_permanent::FifoAfterPermanent,
    lanes::{Lane, LaneKind},
    message::Message,
    message_result::MessageResult,
};
use crate::{
    flawed::flawed,
    handler::{Attempt, Handler, History, Stored},
    modes::{Mode, Outcome, work::guard},
    system,
};

impl<M: Mode<H::Output>, H: Handler> Consumer<M, H> {
    pub(super) async fn run_lane(&self, lane: &Lane, batch: &Arc<Batch>) {
        let mut before: Option<(&Message, MessageResult)> = None;
        for (place, &index) in lane.messages.iter().enumerate() {
            let message = batch.message(index);
            let shared = match (&before, lane.kind) {
                (Some((_, before)), LaneKind::FifoGroup) if self.stops_group(before) => {
                    for &behind in &lane.messages[place..] {
                        batch.end(behind, Outcome::BehindFailure.into());
                    }
                    return;
                }
                (Some((of, before)), LaneKind::SameKey) if before.is_shared(of, message) => {
                    Some(before.of_other_delivery())
                }
                _ => None,
            };
            let deadline = batch.deadline();
            let in_time = match shared {
                Some(_) => system::instant() < deadline.handler_cutoff(),
                None => batch.may_start(),
            };
            if !in_time {
                return;
            }
            batch.start(index);
            let span = message.span(self.make_span.as_ref());
            let processed = match shared {
                Some(shared) => shared,
                None => {
                    let run = pin!(self.run_message(index, batch));
                    run.instrument(span.clone()).await.into()
                }
            };
            let is_last = place + 1 == lane.messages.len();
            let recorded = (!is_last).then(|| processed.clone());
            let replay = pin!(self.replay(processed, message, batch));
            let processed = replay.instrument(span.clone()).await;
            span.record("outcome", processed.outcome().name());
            if processed.outcome().is_permanent()
                && let Some(visibility) = &self.visibility
            {
                visibility.expect(message);
            }
            // The next delivery of the key then passes the recorded result to `on_duplicate`.
            before = recorded.map(|recorded| {
                let shown = if processed.is_success() {
                    recorded
                } else {
                    processed.clone()
                };
                (message, shown)
            });
            batch.end(index, processed);
            // Reading a body may take long, and nothing else makes a message with an invalid body yield.
            tokio::task::yield_now().await;
        }
    }

    /// Returns whether the messages behind this one in its message group must not run.
    fn stops_group(&self, processed: &MessageResult) -> bool {
        let goes_on = match self.fifo_after_permanent {
            FifoAfterPermanent::Continue => {
                processed.is_recorded_failure(self.mode.records_failures())
            }
            FifoAfterPermanent::Stop => false,
        };
        !(processed.is_success() || goes_on || flawed!("a group does not stop"))
    }

    /// Calls the handler's `on_duplicate` with the recorded result.
    async fn replay(
        &self,
        mut processed: MessageResult,
        message: &Message,
        batch: &Batch,
    ) -> MessageResult {
        let (Some(result), Some(key)) = (processed.take_duplicate(), message.key()) else {
            return processed;
        };
        let deadline = batch.deadline();
        let stored = Stored::from_store(result, self.mode.results());
        let attempt = Attempt::new(
            key.clone(),
            message.delivery().clone(),
            History::fresh(),
            deadline,
        );
        match guard(deadline, self.handler.on_duplicate(stored, attempt)).await {
            Ok(()) => processed,
            Err(end) => MessageResult::by_on_duplicate(end.into()),
        }
    }
}

//! Stands in for `visibility` without the feature `visibility`: no value of [`Visibility`] exists,
//! so no call to SQS is made.

use std::collections::HashSet;

use tokio::time::Instant;

use super::{
    batch::Batch,
    message::{Message, MessageId},
    processed::Processed,
};
use crate::protocol::Timestamp;

#[derive(Clone, Debug)]
pub(super) enum Visibility {}

impl Visibility {
    pub(super) fn expect(&self, _: &Message) {
        match *self {}
    }

    pub(super) async fn dead_letter_all<'a>(
        &self,
        _: &[(&'a Message, &'a Processed)],
        _: Instant,
    ) -> (HashSet<&'a MessageId>, usize) {
        match *self {}
    }

    pub(super) async fn while_extended(&self, _: &Batch, _: impl Future<Output = ()>) {
        match *self {}
    }

    pub(super) async fn apply(
        &self,
        _: &[(&Message, &Processed)],
        _: &HashSet<&MessageId>,
        _: Timestamp,
        _: Instant,
    ) {
        match *self {}
    }
}

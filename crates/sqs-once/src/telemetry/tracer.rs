//! [`Tracer`]: where a tracing system sees invocations and messages.

use std::{
    fmt,
    pin::{Pin, pin},
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;

use crate::{Deadline, Outcome, handler::DeliveryFacts, protocol::Key};

static TRACER: OnceLock<Box<dyn Tracer>> = OnceLock::new();

/// A tracing system beside the logs. `sqs-once-otel` has the one for OpenTelemetry.
///
/// A message has a `tracing` span already, which the log lines of its handler show. A tracer adds to that span
/// what the log does not need, and sends the spans of an invocation before its response.
pub trait Tracer: fmt::Debug + Send + Sync {
    /// Returns the parent of an invocation's spans, from the X-Ray header of the invocation.
    fn invocation(&self, trace_header: Option<&str>) -> Arc<dyn Parent>;

    /// Returns the parent of the spans that are started now, for work that is spawned.
    fn current(&self) -> Arc<dyn Parent>;

    /// A message's span exists, and has not been entered.
    fn message_starts(&self, span: &tracing::Span, delivery: &DeliveryFacts);

    /// The key of a message is known: when its span starts, or once its body was read.
    fn key_is_known(&self, span: &tracing::Span, key: &Key);

    /// A message has ended, with this outcome.
    fn message_ends(&self, span: &tracing::Span, outcome: &Outcome);

    /// Sends the spans of an invocation. Must return before the deadline.
    fn flush(&self, deadline: Deadline) -> BoxFuture<'_, ()>;
}

/// The parent of spans that a [`Tracer`] knows.
pub trait Parent: Send + Sync {
    /// Calls `poll`, whose new spans get this parent.
    fn attach(&self, poll: &mut dyn FnMut());
}

/// Sets the tracer of this process. Returns false if it has one already.
///
/// Call it before the first invocation, as `sqs_once_otel::init` does.
pub fn set_tracer(tracer: impl Tracer + 'static) -> bool {
    TRACER.set(Box::new(tracer)).is_ok()
}

pub(crate) fn message_starts(span: &tracing::Span, delivery: &DeliveryFacts, key: Option<&Key>) {
    if let Some(tracer) = TRACER.get() {
        tracer.message_starts(span, delivery);
        if let Some(key) = key {
            tracer.key_is_known(span, key);
        }
    }
}

pub(crate) fn key_is_known(span: &tracing::Span, key: &Key) {
    if let Some(tracer) = TRACER.get() {
        tracer.key_is_known(span, key);
    }
}

pub(crate) fn message_ends(span: &tracing::Span, outcome: &Outcome) {
    if let Some(tracer) = TRACER.get() {
        tracer.message_ends(span, outcome);
    }
}

pub(crate) async fn flush(deadline: Deadline) {
    if let Some(tracer) = TRACER.get() {
        tracer.flush(deadline).await;
    }
}

/// Runs an invocation, whose spans get its parent.
pub(crate) async fn in_invocation<F: Future>(trace_header: Option<&str>, work: F) -> F::Output {
    let parent = TRACER.get().map(|tracer| tracer.invocation(trace_header));
    let mut work = pin!(work);
    std::future::poll_fn(|context| poll_in(parent.as_deref(), work.as_mut(), context)).await
}

/// Keeps the current parent of spans in work that is spawned.
pub(crate) fn in_current<F: Future + Unpin>(mut work: F) -> impl Future<Output = F::Output> {
    let parent = TRACER.get().map(|tracer| tracer.current());
    std::future::poll_fn(move |context| poll_in(parent.as_deref(), Pin::new(&mut work), context))
}

fn poll_in<F: Future>(
    parent: Option<&dyn Parent>,
    mut work: Pin<&mut F>,
    context: &mut Context<'_>,
) -> Poll<F::Output> {
    let Some(parent) = parent else {
        return work.poll(context);
    };
    let mut polled = Poll::Pending;
    parent.attach(&mut || polled = work.as_mut().poll(context));
    polled
}

//! [`Tracer`]: shows invocations and messages to a tracing system.

use std::{
    fmt,
    pin::{Pin, pin},
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;

use crate::{Deadline, Outcome, handler::DeliveryMetadata, protocol::Key};

static TRACER: OnceLock<Box<dyn Tracer>> = OnceLock::new();

/// A tracing system beside the logs. The crate `sqs-once-otel` implements it for OpenTelemetry.
///
/// Each message already has a `tracing` span, which the log lines of its handler show. A tracer adds fields
/// that the log does not need, and sends the spans of an invocation before its response.
pub trait Tracer: fmt::Debug + Send + Sync {
    /// Returns the parent of an invocation's spans, from the X-Ray header of the invocation.
    fn invocation(&self, trace_header: Option<&str>) -> Arc<dyn Parent>;

    /// Returns the parent of spans that start now, for work that is spawned.
    fn current(&self) -> Arc<dyn Parent>;

    /// Called when a message's span exists and has not been entered.
    fn message_starts(&self, span: &tracing::Span, delivery: &DeliveryMetadata);

    /// Called when the key of a message is known: when its span starts, or after its body was read.
    fn key_is_known(&self, span: &tracing::Span, key: &Key);

    /// Called when a message has ended with this outcome.
    fn message_ends(&self, span: &tracing::Span, outcome: &Outcome);

    /// Sends the spans of an invocation. Must return before the deadline.
    fn flush(&self, deadline: Deadline) -> BoxFuture<'_, ()>;
}

/// A parent for spans, as a [`Tracer`] knows it.
pub trait Parent: Send + Sync {
    /// Calls `poll`, and makes this the parent of spans that start in it.
    fn attach(&self, poll: &mut dyn FnMut());
}

/// Sets the tracer of this process. Returns false if there already is one.
///
/// Call it before the first invocation, as `sqs_once_otel::init` does.
pub fn set_tracer(tracer: impl Tracer + 'static) -> bool {
    TRACER.set(Box::new(tracer)).is_ok()
}

pub(crate) fn message_starts(span: &tracing::Span, delivery: &DeliveryMetadata, key: Option<&Key>) {
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

/// Runs an invocation and gives its spans their parent.
pub(crate) async fn in_invocation<F: Future>(trace_header: Option<&str>, work: F) -> F::Output {
    let parent = TRACER.get().map(|tracer| tracer.invocation(trace_header));
    let mut work = pin!(work);
    std::future::poll_fn(|context| poll_in(parent.as_deref(), work.as_mut(), context)).await
}

/// Keeps the current parent of spans for work that is spawned.
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

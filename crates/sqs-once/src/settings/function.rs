//! Facts about the function, from Lambda or from `cargo lambda watch`.

use std::{
    convert::Infallible,
    future::pending,
    io,
    num::NonZeroU32,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use tokio::runtime::{Builder, Runtime};

use super::Settings;
use crate::{deadline::MEMORY_OF_A_VCPU, settings::variables::table::IDEMPOTENCY_TABLE_NAME};

/// The name that cargo-lambda gives a function which is invoked without a name.
const UNNAMED: &str = "_";

/// How long a blocked thread can keep the other threads from sockets and timers.
const WAKE_UP_EVERY: Duration = Duration::from_millis(50);

impl Settings {
    /// Creates the function's runtime, with one thread or one per vCPU.
    ///
    /// - One thread runs a batch of ten messages with a quarter less CPU time. But a handler that blocks this
    ///   thread stops the whole batch: no other message runs, no outcome is recorded and no deadline is kept.
    ///   The consumer logs a warning if a poll takes more than 100 ms. Run blocking code with
    ///   [`spawn_blocking`](tokio::task::spawn_blocking).
    /// - With several threads, the response is in time as long as one of them is free, because the free thread takes over
    ///   sockets and timers within 50 ms. Messages whose next step is queued on a blocked thread wait. If handlers block
    ///   every thread, the whole batch stops, as it does with one thread.
    ///
    /// A function gets several threads if it has enough memory for two vCPUs: `AWS_LAMBDA_FUNCTION_MEMORY_SIZE` of 3,538 or
    /// more, because one vCPU comes with 1,769 MB (*AWS Lambda Developer Guide*, "Configure Lambda function memory"). It
    /// also gets several if `AWS_LAMBDA_MAX_CONCURRENCY` is above 1, because Lambda Managed Instances then run several
    /// invocations in one process. To decide this in code, build the runtime yourself, as `#[tokio::main]` does.
    ///
    /// # Errors
    ///
    /// Returns the operating system's error if it refuses the resources that the runtime needs.
    ///
    /// ```no_run
    /// use sqs_once::{Attempt, Failure, Settings, handler_fn, telemetry};
    ///
    /// async fn greet(name: String, _: Attempt) -> Result<String, Failure> {
    ///     Ok(format!("hello {name}"))
    /// }
    ///
    /// fn main() -> Result<(), lambda_runtime::Error> {
    ///     telemetry::init();
    ///     let mut settings = Settings::from_env();
    ///     settings.runtime()?.block_on(async {
    ///         sqs_once::run(settings.once(Ok(handler_fn(greet))).await?).await
    ///     })
    /// }
    /// ```
    pub fn runtime(&mut self) -> io::Result<Runtime> {
        if !self.has_threads() {
            return Builder::new_current_thread().enable_all().build();
        }
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        wake_a_thread_regularly(&runtime)?;
        Ok(runtime)
    }

    /// Returns the function's memory in MB, if Lambda provides it.
    pub(super) fn memory(&mut self) -> Option<u32> {
        self.number("AWS_LAMBDA_FUNCTION_MEMORY_SIZE")
    }

    fn number(&mut self, name: &str) -> Option<u32> {
        self.value(name)?.parse().ok()
    }

    fn has_threads(&mut self) -> bool {
        let memory = self.memory();
        memory.is_some_and(|memory| memory >= 2 * MEMORY_OF_A_VCPU)
            || self.invocations() > NonZeroU32::MIN
    }

    /// Returns how many invocations Lambda runs in this process at once.
    pub(super) fn invocations(&mut self) -> NonZeroU32 {
        let at_once = self.number("AWS_LAMBDA_MAX_CONCURRENCY");
        at_once.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN)
    }

    /// Returns whether [`once`](Self::once) keeps records in memory. `once` does so under `cargo lambda watch`, for the
    /// function without a name, if `IDEMPOTENCY_TABLE_NAME` is not set. Your code can then choose defaults that let the
    /// handler run without other systems.
    ///
    /// On AWS this is always false, and a missing table is an error. [`inbox`](Self::inbox) needs a table
    /// everywhere.
    ///
    /// ```
    /// # use sqs_once::Settings;
    /// let watched = [
    ///     ("AWS_LAMBDA_FUNCTION_NAME", "_"),
    ///     ("AWS_LAMBDA_RUNTIME_API", "http://127.0.0.1:9000/.rt/_"),
    /// ];
    /// let mut settings = Settings::from_vars(watched);
    /// if settings.in_memory() {
    ///     settings.set_default("PRINTER_URL", "sandbox");
    /// }
    /// assert_eq!(settings.optional("PRINTER_URL", "", str::parse), Ok("sandbox".to_owned()));
    /// ```
    pub fn in_memory(&mut self) -> bool {
        self.is_unnamed_under_watch() && self.value(IDEMPOTENCY_TABLE_NAME.name).is_none()
    }

    /// Returns whether this is the function that `cargo lambda watch` runs when an invocation names no function.
    ///
    /// cargo-lambda calls it `_`, which is also a valid name on AWS. But cargo-lambda's Runtime API is a URL that ends with
    /// this name. On AWS it is a host and a port, and `AWS_LAMBDA_INITIALIZATION_TYPE` is always set.
    fn is_unnamed_under_watch(&mut self) -> bool {
        let name = self.value("AWS_LAMBDA_FUNCTION_NAME");
        let runtime_api = self.value("AWS_LAMBDA_RUNTIME_API").unwrap_or_default();
        name.as_deref() == Some(UNNAMED)
            && runtime_api.starts_with("http://")
            && runtime_api.ends_with("/_")
            && self.value("AWS_LAMBDA_INITIALIZATION_TYPE").is_none()
    }

    /// Returns the function's name, or an empty text if Lambda doesn't provide it.
    pub fn function(&mut self) -> String {
        self.value("AWS_LAMBDA_FUNCTION_NAME").unwrap_or_default()
    }
}

/// One of Tokio's threads waits for sockets and timers on behalf of all. If it then runs a handler that blocks it, the other
/// threads sleep on, and nobody notices a response or a deadline (tokio issue 4730). So we regularly wake a thread, which takes
/// over.
#[expect(
    clippy::disallowed_methods,
    reason = "its task only wakes a thread, from outside the runtime"
)]
fn wake_a_thread_regularly(runtime: &Runtime) -> io::Result<()> {
    let (running, ended) = mpsc::channel::<Infallible>();
    runtime.spawn(async move {
        let _until_shutdown = running;
        pending::<()>().await;
    });
    let handle = runtime.handle().clone();
    thread::Builder::new()
        .name("wake-up".into())
        .spawn(move || {
            while ended.recv_timeout(WAKE_UP_EVERY) == Err(RecvTimeoutError::Timeout) {
                handle.spawn(async {});
            }
        })?;
    Ok(())
}

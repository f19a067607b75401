//! Facts about the function, from Lambda or from `cargo lambda watch`.

use std::{env, ffi::OsStr, io, path::Path};

use tokio::runtime::{Builder, Runtime};

#[cfg(doc)]
use super::Variables;
use super::{Settings, SettingsError};
use crate::deadline::MEMORY_OF_A_VCPU;

/// The name that cargo-lambda gives a function that is invoked without a name.
const UNNAMED: &str = "_";

impl Settings {
    /// The runtime of the function, as `CONSUMER_RUNTIME` says.
    ///
    /// - `single` runs everything on one thread. A batch of ten messages then needs a quarter less
    ///   CPU time. A handler that blocks this thread stops the whole batch: no other message runs,
    ///   no outcome is recorded and no deadline is kept. Concurrent invocations in one process
    ///   (`AWS_LAMBDA_MAX_CONCURRENCY`) share this thread. A poll of more than 100 ms is logged. Run
    ///   blocking code by [`spawn_blocking`](tokio::task::spawn_blocking).
    /// - `multi` runs one thread for each vCPU. While one of them is not blocked, the response is in
    ///   time, but messages whose next step is queued on a blocked thread wait. Handlers that block
    ///   every thread have the effect of `single`.
    /// - `auto`, the default, is `multi` with at least two vCPUs: `AWS_LAMBDA_FUNCTION_MEMORY_SIZE`
    ///   from 3,538, since 1,769 MB have one vCPU (*AWS Lambda Developer Guide*, "Configure Lambda
    ///   function memory"). Otherwise, and without this variable, it is `single`.
    ///
    /// An invalid value is reported with the errors of the other variables. Until then `single`
    /// stands in.
    ///
    /// # Errors
    ///
    /// If the operating system refuses the runtime's resources.
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
        let mut builder = match self.has_threads() {
            Ok(true) => Builder::new_multi_thread(),
            Ok(false) | Err(_) => Builder::new_current_thread(),
        };
        builder.enable_all().build()
    }

    /// The function's memory in MB, where Lambda set it.
    pub(super) fn memory(&mut self) -> Option<u32> {
        let megabytes = self.value("AWS_LAMBDA_FUNCTION_MEMORY_SIZE")?;
        megabytes.parse().ok()
    }

    /// Reads the variable of [`runtime`](Self::runtime) without building the runtime, so that
    /// [`errors`](Variables::errors) lists what is wrong with it.
    pub fn read_runtime(&mut self) {
        let _threads = self.has_threads();
    }

    fn has_threads(&mut self) -> Result<bool, SettingsError> {
        let memory = self.memory();
        self.optional("CONSUMER_RUNTIME", "auto", |text| match text {
            "auto" => Ok(memory.is_some_and(|memory| memory >= 2 * MEMORY_OF_A_VCPU)),
            "single" => Ok(false),
            "multi" => Ok(true),
            _ => Err("must be `auto`, `single` or `multi`"),
        })
    }

    /// Returns whether [`once`](Self::once) keeps records in memory: under `cargo lambda watch`, for
    /// the function that has no name there, with no `IDEMPOTENCY_TABLE_NAME`. A handler can then
    /// choose defaults with which it runs on its own.
    ///
    /// Never on AWS, where a missing table is an error. [`inbox`](Self::inbox) needs a table
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
        self.is_unnamed_under_watch() && self.value("IDEMPOTENCY_TABLE_NAME").is_none()
    }

    /// Returns whether this is the function that `cargo lambda watch` runs for an invocation without
    /// a function name.
    ///
    /// cargo-lambda calls it `_`, which is a valid name on AWS too. The Runtime API of cargo-lambda
    /// is a URL that ends with this name. The one of AWS is a host and a port, and AWS always sets
    /// `AWS_LAMBDA_INITIALIZATION_TYPE`.
    fn is_unnamed_under_watch(&mut self) -> bool {
        let name = self.value("AWS_LAMBDA_FUNCTION_NAME");
        let runtime_api = self.value("AWS_LAMBDA_RUNTIME_API").unwrap_or_default();
        name.as_deref() == Some(UNNAMED)
            && runtime_api.starts_with("http://")
            && runtime_api.ends_with("/_")
            && self.value("AWS_LAMBDA_INITIALIZATION_TYPE").is_none()
    }

    /// The function's name. The function without a name under `cargo lambda watch` has the name of
    /// its program. So a message has one key, also if it is invoked by that name.
    pub fn function(&mut self) -> String {
        let program = if self.is_unnamed_under_watch() {
            env::current_exe().ok()
        } else {
            None
        };
        let program = program.as_deref().and_then(Path::file_stem);
        match program.and_then(OsStr::to_str) {
            Some(program) => program.to_owned(),
            None => self.value("AWS_LAMBDA_FUNCTION_NAME").unwrap_or_default(),
        }
    }
}

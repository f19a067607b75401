//! Logs and metrics: one JSON object per line, as CloudWatch reads them.

pub(crate) mod metrics;

use std::{
    io::IsTerminal as _,
    panic::PanicHookInfo,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

pub use crate::meter::{Amount, Unit};
pub use metrics::Metrics;
#[doc(hidden)]
pub use metrics::{Metric, Value};

use serde_json::{Map, Value as Json};
use tracing::{
    Level, Subscriber,
    span::{Attributes, Id},
};
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    fmt::{self, FormattedFields, format::JsonFields},
    layer::{Context, SubscriberExt as _},
    registry::LookupSpan,
    util::{SubscriberInitExt as _, TryInitError},
};

/// Sends logs to standard output: JSON lines with RFC 3339 timestamps, or plain text on a terminal.
///
/// The level comes from `AWS_LAMBDA_LOG_LEVEL` (*AWS Lambda Developer Guide*, "Configuring advanced logging
/// controls") or else from `RUST_LOG`, which may name targets too (`warn,sqs_once=debug`). If neither is set,
/// it is `info`. If the value can't be parsed, the level is `info` and a warning names the variable.
///
/// `init` also replaces the panic hook: see [`set_panic_hook`].
///
/// # Panics
///
/// Panics if a subscriber is already set: see [`try_init`].
///
/// ```
/// sqs_once::telemetry::init();
/// tracing::info!("ready");
/// ```
pub fn init() {
    if let Err(error) = try_init() {
        panic!("logs can't be set up: {error}");
    }
}

/// Like [`init`], but returns an error instead of panicking.
///
/// # Errors
///
/// Returns an error if a subscriber is already set. The panic hook then stays as it is.
///
/// ```
/// use sqs_once::telemetry;
///
/// assert!(telemetry::try_init().is_ok());
/// assert!(telemetry::try_init().is_err());
/// ```
pub fn try_init() -> Result<(), TryInitError> {
    tracing_subscriber::registry().with(layer()).try_init()?;
    set_panic_hook();
    if let Some((setting, text)) = setting()
        && level(&text).is_none()
    {
        tracing::warn!(
            setting,
            "not a log level or a list of target=level: taken as info"
        );
    }
    Ok(())
}

/// Returns the layer that [`init`] installs, so that you can combine it with others, such as OpenTelemetry's.
///
/// A JSON line shows only the innermost span, with the fields of the spans around it. So `#[tracing::instrument]` on a
/// handler does not hide the message's key and ids. Write `skip_all` there, because otherwise the span shows the
/// arguments.
///
/// The level applies to this layer alone. If the value can't be parsed, the level is `info`, without a warning.
/// Call [`set_panic_hook`] as well.
///
/// ```
/// use sqs_once::telemetry;
/// use tracing_subscriber::{layer::SubscriberExt as _, util::SubscriberInitExt as _};
///
/// use tracing_subscriber::{Layer as _, filter::LevelFilter};
///
/// # let other = tracing_subscriber::fmt::layer();
/// let other = other.with_filter(LevelFilter::INFO); // at `trace`, the SDK's events hold payload
/// tracing_subscriber::registry().with(telemetry::layer()).with(other).init();
/// telemetry::set_panic_hook();
/// ```
#[must_use]
pub fn layer<S>() -> impl Layer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    IS_MADE.store(true, Relaxed);
    let filter = setting().and_then(|(_, text)| level(&text));
    let lines = if std::io::stdout().is_terminal() {
        fmt::layer().boxed()
    } else {
        // The JSON is flat, so that a metric filter can read `$.outcome`.
        let json = fmt::layer().json().flatten_event(true);
        json.with_span_list(false).and_then(InheritFields).boxed()
    };
    lines.with_filter(filter.unwrap_or_else(info))
}

/// True once [`layer`] was called.
static IS_MADE: AtomicBool = AtomicBool::new(false);

/// Warns if this process's log lines don't have the form that the runbook's queries expect.
pub(crate) fn warn_of_other_subscriber() {
    if !IS_MADE.load(Relaxed) {
        tracing::warn!(
            "the subscriber is not of sqs_once::telemetry: the queries of the runbook look for `$.outcome` and `$.span.requestId` in a line; add `sqs_once::telemetry::layer()`, or change the queries"
        );
    }
}

/// The fields by which the runbook's queries find lines. An instrumented function's argument of the same name doesn't replace them.
const KEPT: [&str; 4] = ["key", "message_id", "receive_count", "requestId"];

/// Gives each span the fields of the spans around it, except for spans whose target starts with `sqs_once::`.
struct InheritFields;

impl<S> Layer<S> for InheritFields
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        // The consumer's own spans already have every field that they need, and there is one for each message.
        if attributes.metadata().target().starts_with("sqs_once::") {
            return;
        }
        let Some(span) = context.span(id) else { return };
        let Some(parent) = span.parent() else { return };
        let read = |fields: &FormattedFields<JsonFields>| {
            serde_json::from_str::<Map<String, Json>>(&fields.fields).unwrap_or_default()
        };
        let of_parent = parent.extensions().get().map(read);
        if let Some(mut fields) = of_parent
            && let Some(own) = span
                .extensions_mut()
                .get_mut::<FormattedFields<JsonFields>>()
        {
            for (name, value) in read(own) {
                if !(KEPT.contains(&&*name) && fields.contains_key(&name)) {
                    fields.insert(name, value);
                }
            }
            own.fields = Json::Object(fields).to_string();
        }
    }
}

/// Installs a panic hook that logs where a panic happened. The hook logs the panic's message only at level `trace`, because
/// the message may quote payload.
pub fn set_panic_hook() {
    // We don't ask the subscriber, because another layer may accept all levels.
    let filter = setting().and_then(|(_, text)| level(&text));
    let with_text = filter.is_some_and(|filter| filter.would_enable(module_path!(), &Level::TRACE));
    std::panic::set_hook(Box::new(move |panic| log_panic(panic, with_text)));
}

/// Returns the variable that sets the level, and its value.
fn setting() -> Option<(&'static str, String)> {
    let mut names = ["AWS_LAMBDA_LOG_LEVEL", "RUST_LOG"].into_iter();
    names.find_map(|name| {
        let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
        Some((name, text))
    })
}

fn log_panic(panic: &PanicHookInfo<'_>, with_text: bool) {
    let place = panic.location().map(ToString::to_string);
    tracing::error!(place, "panicked");
    if with_text {
        tracing::trace!(message = panic.payload_as_str(), "panicked");
    }
}

/// Target of the notices that PostgreSQL sends along with a response. A trigger may write a row into one.
const NOTICES: &str = "sqlx::postgres::notice";

fn info() -> Targets {
    without_notices(Targets::new().with_default(LevelFilter::INFO))
}

/// Drops PostgreSQL's notices unless the filter enables them at `trace`. A notice may quote payload.
fn without_notices(filter: Targets) -> Targets {
    if filter.would_enable(NOTICES, &Level::TRACE) {
        filter
    } else {
        filter.with_target(NOTICES, LevelFilter::OFF)
    }
}

/// Converts to milliseconds, rounded to the microsecond.
pub(crate) fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// Parses a level. Lambda has Rust's levels, plus FATAL.
fn level(text: &str) -> Option<Targets> {
    if text.eq_ignore_ascii_case("fatal") {
        return Some(without_notices(
            Targets::new().with_default(LevelFilter::ERROR),
        ));
    }
    // `Targets` would take a single word that is not a level for a target, and log nothing else.
    let readable = |part: &str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
    let filter = text.split(',').all(readable).then(|| text.parse().ok())?;
    filter.map(without_notices)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::Event;

    use super::*;

    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<Vec<Level>>>);

    impl<S: Subscriber> Layer<S> for Seen {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            self.0.lock().unwrap().push(*event.metadata().level());
        }
    }

    #[test]
    fn layer_leaves_other_layers_unfiltered() {
        let seen = Seen::default();
        let both = tracing_subscriber::registry()
            .with(layer())
            .with(seen.clone());
        tracing::subscriber::with_default(both, || tracing::trace!("a detail"));
        assert_eq!(*seen.0.lock().unwrap(), [Level::TRACE]);
    }

    #[test]
    fn durations_are_logged_to_the_microsecond() {
        let nanos = |n| millis(Duration::from_nanos(n)).to_string();
        assert_eq!(nanos(13_600_000), "13.6");
        assert_eq!(nanos(1_234_567), "1.235");
        assert_eq!(nanos(2_000_400), "2");
    }

    #[test]
    fn notices_of_postgresql_are_logged_at_trace_only() {
        for text in [
            "INFO",
            "debug",
            "FATAL",
            "warn,sqlx=info",
            "sqlx::postgres=debug",
        ] {
            let filter = level(text).unwrap();
            assert!(!filter.would_enable(NOTICES, &Level::WARN), "{text}");
        }
        assert!(!info().would_enable(NOTICES, &Level::WARN));
        assert!(level("trace").unwrap().would_enable(NOTICES, &Level::WARN));
    }

    #[test]
    fn log_levels_accept_lambda_and_rust_names() {
        for text in ["INFO", "debug", "FATAL", "warn,sqs_once=debug"] {
            assert!(level(text).is_some(), "{text}");
        }
        for text in ["sqs_once=loud", "verbose", "infoo", "warn,sqs_once"] {
            assert!(level(text).is_none(), "{text}");
        }
    }
}

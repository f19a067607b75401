//! [`Metrics`]: lines in CloudWatch's embedded metric format.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use serde::{Serialize, Serializer, ser::SerializeMap as _};

use crate::{InvalidValue, meter::Unit, protocol::Timestamp, system};

/// How many values of one metric the embedded metric format allows in a line.
const MAX_VALUES: usize = 100;

/// Longest namespace and longest dimension value that CloudWatch allows.
const MAX_LENGTH: usize = 255;

/// A consumer's metrics, in CloudWatch's embedded metric format.
///
/// The log line of each batch carries these metrics: `docs/telemetry.md#metrics` lists them. The line goes to
/// standard output at every log level. On a terminal, the line looks as it does without metrics.
///
/// Clones belong to the same process, so only one of them writes the metric `ColdStart`.
///
/// ```
/// use sqs_once::telemetry::Metrics;
///
/// # fn consumer<M: sqs_once::Mode<H::Output>, H: sqs_once::Handler>(consumer: sqs_once::Consumer<M, H>) -> Result<(), sqs_once::InvalidValue> {
/// let consumer = consumer.metrics(Metrics::new("sqs-once", "charge-orders")?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Metrics {
    namespace: String,
    service: String,
    writes: bool,
    /// True until the first batch.
    cold: Arc<AtomicBool>,
}

impl Metrics {
    /// Creates metrics in this namespace. `service` is the value of the dimension `service`.
    ///
    /// # Errors
    ///
    /// Returns an error if CloudWatch would reject one of the two, for example because it is empty or has more than 255 characters.
    ///
    /// ```
    /// use sqs_once::telemetry::Metrics;
    ///
    /// assert!(Metrics::new("sqs-once", "charge-orders").is_ok());
    /// assert!(Metrics::new("AWS/Lambda", "charge-orders").is_err());
    /// assert!(Metrics::new("sqs-once", "").is_err());
    /// ```
    pub fn new(
        namespace: impl Into<String>,
        service: impl Into<String>,
    ) -> Result<Self, InvalidValue> {
        let namespace = checked_namespace(&namespace.into())?;
        let service = checked_service(&service.into())?;
        Ok(Self::checked(namespace, service))
    }

    /// Creates metrics from names that have already been checked.
    pub(crate) fn checked(namespace: String, service: String) -> Self {
        Self {
            namespace,
            service,
            writes: !system::prints_to_terminal(),
            cold: Arc::new(AtomicBool::new(true)),
        }
    }

    /// Returns whether lines with metrics are written. On a terminal, they are not.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.writes
    }

    /// Returns true on the first call, counting all clones, and false after that.
    pub(crate) fn is_cold_start(&self) -> bool {
        self.cold.swap(false, Ordering::Relaxed)
    }

    /// Writes a batch's line to standard output, and more lines if a metric has over 100 values.
    pub(crate) fn write(&self, fields: &BatchFields, metrics: &[Metric], request_id: Option<&str>) {
        match self.lines(fields, metrics, request_id, Timestamp::now()) {
            Ok(lines) => system::print(&lines),
            Err(error) => tracing::warn!(%error, "could not write the metrics of a batch"),
        }
    }

    /// Writes one line with this message and these metrics to standard output, if [`writes`](Self::writes)
    /// returns true. If a metric has [several](Value::Several) values, only the first 100 are written.
    pub fn write_line(&self, message: &'static str, metrics: &[Metric], request_id: Option<&str>) {
        if !self.writes {
            return;
        }
        let mut line = Vec::with_capacity(512);
        let written = self
            .line(message, None, metrics, request_id, Timestamp::now())
            .write_to(&mut line);
        match written {
            Ok(()) => system::print(&line),
            Err(error) => tracing::warn!(%error, "could not write the metrics of a batch"),
        }
    }

    fn lines(
        &self,
        fields: &BatchFields,
        metrics: &[Metric],
        request_id: Option<&str>,
        now: Timestamp,
    ) -> serde_json::Result<Vec<u8>> {
        let mut lines = Vec::with_capacity(1536);
        self.line("batch processed", Some(fields), metrics, request_id, now)
            .write_to(&mut lines)?;
        for number in 1.. {
            let values = values_of_line(metrics, number);
            if values.is_empty() {
                break;
            }
            self.line("further values of a batch", None, &values, request_id, now)
                .write_to(&mut lines)?;
        }
        Ok(lines)
    }

    fn line<'a>(
        &'a self,
        message: &'static str,
        fields: Option<&'a BatchFields>,
        metrics: &'a [Metric],
        request_id: Option<&'a str>,
        now: Timestamp,
    ) -> Line<'a> {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(now.as_millis());
        Line {
            timestamp: humantime::format_rfc3339_micros(time).to_string(),
            level: "INFO",
            message,
            fields,
            target: module_path!(),
            span: request_id.map(|request_id| Span { request_id }),
            service: &self.service,
            values: MetricValues(metrics),
            aws: Aws {
                timestamp: now.as_millis(),
                directives: [Directive {
                    namespace: &self.namespace,
                    dimensions: [["service"]],
                    metrics,
                }],
            },
        }
    }
}

/// Fields of a batch's line that are not metrics.
#[derive(Debug, Serialize)]
pub(crate) struct BatchFields {
    pub(crate) messages: u64,
    pub(crate) failed: u64,
    pub(crate) dead_lettered: u64,
    pub(crate) lease_lost: u64,
    pub(crate) completion_unrecorded: u64,
    pub(crate) result_omitted: u64,
    /// State of the circuit breaker, unless it is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) circuit: Option<&'static str>,
    pub(crate) duration_ms: f64,
}

/// One metric of a line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Metric {
    /// The metric's name, in PascalCase by convention.
    pub name: &'static str,
    /// The value's unit.
    pub unit: Unit,
    /// The value, or the values.
    #[serde(skip)]
    pub value: Value,
}

/// The value of a [`Metric`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A whole number.
    Count(u64),
    /// A number.
    Number(f64),
    /// Several values, from which CloudWatch computes percentiles.
    Several(Vec<f64>),
}

/// Returns the metrics that have [several](Value::Several) values, each with its values for the line `number`.
fn values_of_line(metrics: &[Metric], number: usize) -> Vec<Metric> {
    let several = metrics.iter().filter_map(|metric| match &metric.value {
        Value::Several(values) => Some((metric, values.chunks(MAX_VALUES).nth(number)?)),
        Value::Count(_) | Value::Number(_) => None,
    });
    several
        .map(|(metric, values)| Metric {
            value: Value::Several(values.to_owned()),
            ..*metric
        })
        .collect()
}

#[derive(Serialize)]
struct Line<'a> {
    timestamp: String,
    level: &'static str,
    message: &'static str,
    #[serde(flatten)]
    fields: Option<&'a BatchFields>,
    target: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    span: Option<Span<'a>>,
    service: &'a str,
    #[serde(flatten)]
    values: MetricValues<'a>,
    #[serde(rename = "_aws")]
    aws: Aws<'a>,
}

impl Line<'_> {
    fn write_to(&self, lines: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(&mut *lines, self)?;
        lines.push(b'\n');
        Ok(())
    }
}

/// Names the invocation, in the same way as the JSON lines of `tracing`.
#[derive(Serialize)]
struct Span<'a> {
    #[serde(rename = "requestId")]
    request_id: &'a str,
}

/// The metadata that the embedded metric format requires.
#[derive(Serialize)]
struct Aws<'a> {
    #[serde(rename = "Timestamp")]
    timestamp: u64,
    #[serde(rename = "CloudWatchMetrics")]
    directives: [Directive<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Directive<'a> {
    namespace: &'a str,
    dimensions: [[&'static str; 1]; 1],
    metrics: &'a [Metric],
}

/// The values of the metrics, as members of the line.
struct MetricValues<'a>(&'a [Metric]);

impl Serialize for MetricValues<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut values = serializer.serialize_map(Some(self.0.len()))?;
        for Metric { name, value, .. } in self.0 {
            match value {
                Value::Count(count) => values.serialize_entry(name, count)?,
                Value::Number(number) => values.serialize_entry(name, number)?,
                Value::Several(several) => {
                    let first = &several[..several.len().min(MAX_VALUES)];
                    values.serialize_entry(name, first)?;
                }
            }
        }
        values.end()
    }
}

/// Checks a namespace against CloudWatch's rules (*Amazon CloudWatch API Reference*, "PutMetricData").
pub(crate) fn checked_namespace(namespace: &str) -> Result<String, InvalidValue> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_/#: ".contains(c);
    if namespace.trim().is_empty()
        || namespace.len() > MAX_LENGTH
        || namespace.starts_with("AWS/")
        || !namespace.chars().all(allowed)
    {
        return Err(InvalidValue::new(
            "must have 1 to 255 letters, digits, spaces or characters of `.-_/#:`, and not begin with `AWS/`",
        ));
    }
    Ok(namespace.to_owned())
}

/// Checks a dimension value against CloudWatch's rules (*Amazon CloudWatch API Reference*, "Dimension").
pub(crate) fn checked_service(service: &str) -> Result<String, InvalidValue> {
    let allowed = |c: char| c == ' ' || c.is_ascii_graphic();
    if service.trim().is_empty()
        || service.len() > MAX_LENGTH
        || service.starts_with(':')
        || !service.chars().all(allowed)
    {
        return Err(InvalidValue::new(
            "must have 1 to 255 ASCII characters, and not begin with a colon",
        ));
    }
    Ok(service.to_owned())
}

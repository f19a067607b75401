//! The environment as typed settings, all faults reported at once.

use std::{env, fmt, num::NonZeroUsize, time::Duration};

use reqwest::Url;
use sqs_once::{
    protocol::{AfterFailure, Namespace},
    sqs::{FifoAfterPermanent, FingerprintSource, KeySource, Visibility},
    store::{Field, Layout},
};

use crate::gateway::GatewayUrl;

/// What the README's table of settings lists.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) table: String,
    pub(crate) layout: Layout,
    pub(crate) namespace: Namespace,
    pub(crate) key: KeySource,
    pub(crate) fingerprint: FingerprintSource,
    pub(crate) retention: Duration,
    pub(crate) after_failure: AfterFailure,
    pub(crate) lease_margin: Duration,
    pub(crate) lease_fallback: Duration,
    pub(crate) concurrency: NonZeroUsize,
    pub(crate) conflict_wait: Duration,
    pub(crate) reserve: Duration,
    pub(crate) prime: bool,
    pub(crate) visibility: bool,
    pub(crate) dead_letter: bool,
    pub(crate) fail_when_store_unavailable: bool,
    pub(crate) fifo_after_permanent: FifoAfterPermanent,
    pub(crate) backoff_base: Duration,
    pub(crate) backoff_cap: Duration,
    pub(crate) gateway: GatewayUrl,
    pub(crate) gateway_timeout: Duration,
}

/// Everything that is wrong with the environment.
#[derive(Debug)]
pub(crate) struct Faults(Vec<String>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the environment is not as it must be ({} found): {}",
            self.0.len(),
            self.0.join("; ")
        )
    }
}

impl std::error::Error for Faults {}

impl Settings {
    pub(crate) fn from_env() -> Result<Self, Faults> {
        Self::read(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Faults> {
        let mut reader = Reader {
            lookup,
            faults: Vec::new(),
        };
        reader.required(
            "AWS_LAMBDA_RUNTIME_API",
            "Lambda sets it; on your own machine, `make watch` does",
            |_| Ok(()),
        );
        let table = reader.required(
            "IDEMPOTENCY_TABLE_NAME",
            "the DynamoDB table that remembers outcomes",
            |text| Ok(text.to_owned()),
        );
        let function = (reader.lookup)("AWS_LAMBDA_FUNCTION_NAME").unwrap_or_default();
        let layout = reader.optional("IDEMPOTENCY_LAYOUT", "native", |text| match text {
            "native" => Ok(Layout::native()),
            "powertools" => Ok(Layout::powertools()),
            _ => Err("must be `native` or `powertools`".to_owned()),
        });
        let layout = reader.amended("IDEMPOTENCY_ATTRIBUTES", layout, renamed);
        let layout = reader.amended("IDEMPOTENCY_SORT_KEY", layout, |layout, text| {
            let partition = format!("idempotency#{function}");
            let (name, partition) = text.split_once('=').unwrap_or((text, &partition));
            let layout = layout.sort_key(name, partition);
            layout.map_err(|error| error.to_string())
        });
        let namespace = reader.optional("IDEMPOTENCY_NAMESPACE", &function, |text| {
            Namespace::new(text).map_err(|error| error.to_string())
        });
        let key = reader.optional("IDEMPOTENCY_KEY", "message-id", |text| {
            text.parse::<KeySource>().map_err(|error| error.to_string())
        });
        let fingerprint = reader.optional("IDEMPOTENCY_FINGERPRINT", "body", |text| {
            text.parse::<FingerprintSource>()
                .map_err(|error| error.to_string())
        });
        let retention = reader.optional("IDEMPOTENCY_RETENTION", "20d", positive);
        let after_failure =
            reader.optional("IDEMPOTENCY_AFTER_FAILURE", "retry", |text| match text {
                "retry" => Ok(AfterFailure::Retry),
                "replay" => Ok(AfterFailure::Replay),
                _ => Err("must be `retry` or `replay`".to_owned()),
            });
        let lease_margin = reader.optional("IDEMPOTENCY_LEASE_MARGIN", "1s", duration);
        let lease_fallback = reader.optional("IDEMPOTENCY_LEASE_FALLBACK", "5m", positive);
        let concurrency = reader.optional("CONSUMER_CONCURRENCY", "10", |text| {
            text.parse()
                .map_err(|_| "must be a whole number from 1".to_owned())
        });
        let conflict_wait = reader.optional("CONSUMER_CONFLICT_WAIT", "0s", duration);
        let reserve = reader.optional("CONSUMER_DEADLINE_RESERVE", "500ms", positive);
        let prime = reader.optional("CONSUMER_PRIME", "on", on_or_off);
        let visibility = reader.optional("CONSUMER_VISIBILITY", "on", on_or_off);
        let dead_letter = reader.optional("CONSUMER_DEAD_LETTER", "off", |text| {
            let dead_letter = on_or_off(text)?;
            if dead_letter && visibility == Some(false) {
                return Err("`on` needs CONSUMER_VISIBILITY=on, which calls SQS too".to_owned());
            }
            Ok(dead_letter)
        });
        let fail_when_store_unavailable =
            reader.optional("CONSUMER_FAIL_WHEN_STORE_UNAVAILABLE", "on", on_or_off);
        let fifo_after_permanent =
            reader.optional("CONSUMER_FIFO_AFTER_PERMANENT", "continue", |text| {
                let parsed = text.parse::<FifoAfterPermanent>();
                parsed.map_err(|error| error.to_string())
            });
        let backoff_base = reader.optional("CONSUMER_BACKOFF_BASE", "10s", backoff);
        let backoff_cap = reader.optional("CONSUMER_BACKOFF_CAP", "15m", backoff);
        let gateway = reader.required(
            "PAYMENT_GATEWAY_URL",
            "where to charge, or `sandbox` to charge nothing",
            gateway_url,
        );
        let gateway_timeout = reader.optional("PAYMENT_GATEWAY_TIMEOUT", "5s", positive);

        let settings = (|| {
            Some(Self {
                table: table?,
                layout: layout?,
                namespace: namespace?,
                key: key?,
                fingerprint: fingerprint?,
                retention: retention?,
                after_failure: after_failure?,
                lease_margin: lease_margin?,
                lease_fallback: lease_fallback?,
                concurrency: concurrency?,
                conflict_wait: conflict_wait?,
                reserve: reserve?,
                prime: prime?,
                visibility: visibility?,
                dead_letter: dead_letter?,
                fail_when_store_unavailable: fail_when_store_unavailable?,
                fifo_after_permanent: fifo_after_permanent?,
                backoff_base: backoff_base?,
                backoff_cap: backoff_cap?,
                gateway: gateway?,
                gateway_timeout: gateway_timeout?,
            })
        })();
        match settings {
            Some(settings) if reader.faults.is_empty() => Ok(settings),
            _ => Err(Faults(reader.faults)),
        }
    }
}

/// Reads one variable after the other, and notes what is wrong with each.
struct Reader<L> {
    lookup: L,
    faults: Vec<String>,
}

impl<L: Fn(&str) -> Option<String>> Reader<L> {
    /// A variable that is set to nothing counts as not set: that is what an empty parameter of a
    /// template makes of it.
    fn value(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    fn required<T>(
        &mut self,
        name: &str,
        meaning: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let Some(value) = self.value(name) else {
            self.faults.push(format!("{name} is not set ({meaning})"));
            return None;
        };
        self.parse(name, &value, parse)
    }

    fn optional<T>(
        &mut self,
        name: &str,
        default: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.value(name).unwrap_or_else(|| default.to_owned());
        self.parse(name, &value, parse)
    }

    /// What a variable makes of `base`, if it is set.
    fn amended<T: Clone>(
        &mut self,
        name: &str,
        base: Option<T>,
        amend: impl Fn(T, &str) -> Result<T, String>,
    ) -> Option<T> {
        match (self.value(name), base) {
            (Some(value), Some(base)) => self.parse(name, &value, |text| amend(base.clone(), text)),
            (_, base) => base,
        }
    }

    fn parse<T>(
        &mut self,
        name: &str,
        value: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        parse(value)
            .map_err(|fault| self.faults.push(format!("{name}: {fault}")))
            .ok()
    }
}

/// `id=PK,expires_at=ttl`: native names, and what they are called instead.
fn renamed(layout: Layout, text: &str) -> Result<Layout, String> {
    let pair = |pair: &str| {
        let (field, name) = pair
            .split_once('=')
            .ok_or_else(|| format!("`{pair}` is not of the form id=PK"))?;
        let field = field.parse::<Field>().map_err(|error| error.to_string())?;
        Ok((field, name.to_owned()))
    };
    let names = text
        .split(',')
        .map(pair)
        .collect::<Result<Vec<_>, String>>()?;
    layout.rename(names).map_err(|error| error.to_string())
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("`{text}` is not a duration such as 500ms, 30s, 5m or 24h"))
}

fn positive(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|span| {
        if span.is_zero() {
            Err("must be more than 0".to_owned())
        } else {
            Ok(span)
        }
    })
}

/// As long as SQS can hide a message.
fn backoff(text: &str) -> Result<Duration, String> {
    positive(text).and_then(|span| {
        if span > Visibility::LONGEST_BACKOFF {
            Err("must be at most 11h 30m: SQS hides a message for no longer than 12 hours from its receive".to_owned())
        } else {
            Ok(span)
        }
    })
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("must be `on` or `off`".to_owned()),
    }
}

/// The value is not quoted back: it may hold credentials.
fn gateway_url(text: &str) -> Result<GatewayUrl, String> {
    if text == "sandbox" {
        return Ok(GatewayUrl::Sandbox);
    }
    let url = Url::parse(text).map_err(|error| {
        format!("must be `sandbox` or an https:// URL, and can't be read as one ({error})")
    })?;
    let loopback = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    match url.scheme() {
        "https" => {}
        "http" if loopback => {}
        _ => {
            return Err(
                "must be `sandbox` or an https:// URL (http:// only to this machine)".to_owned(),
            );
        }
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must hold no user and no password".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("must have no query and no fragment: `/charges` is added to it".to_owned());
    }
    Ok(GatewayUrl::Http(url))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, Faults> {
        Settings::read(|name| {
            variables
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    const REQUIRED: [(&str, &str); 4] = [
        ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001"),
        ("AWS_LAMBDA_FUNCTION_NAME", "payments"),
        ("IDEMPOTENCY_TABLE_NAME", "idempotency"),
        ("PAYMENT_GATEWAY_URL", "sandbox"),
    ];

    #[test]
    fn defaults_match_readme() {
        let settings = read(&REQUIRED).unwrap();
        assert_eq!(settings.namespace.as_str(), "payments");
        assert_eq!(settings.layout, Layout::native());
        assert_eq!(settings.key, KeySource::MessageId);
        assert_eq!(settings.fingerprint, FingerprintSource::Body);
        assert_eq!(settings.after_failure, AfterFailure::Retry);
        assert_eq!(settings.retention, Duration::from_secs(20 * 86_400));
        assert_eq!(settings.lease_margin, Duration::from_secs(1));
        assert_eq!(settings.lease_fallback, Duration::from_secs(300));
        assert_eq!(settings.concurrency.get(), 10);
        assert_eq!(settings.conflict_wait, Duration::ZERO);
        assert_eq!(settings.reserve, Duration::from_millis(500));
        assert!(settings.prime);
        assert!(settings.visibility);
        assert!(!settings.dead_letter);
        assert!(settings.fail_when_store_unavailable);
        assert_eq!(settings.fifo_after_permanent, FifoAfterPermanent::Continue);
        assert_eq!(settings.backoff_base, Duration::from_secs(10));
        assert_eq!(settings.backoff_cap, Duration::from_secs(15 * 60));
        assert_eq!(settings.gateway, GatewayUrl::Sandbox);
        assert_eq!(settings.gateway_timeout, Duration::from_secs(5));
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let wrong = [
            ("IDEMPOTENCY_RETENTION", "a day"),
            ("IDEMPOTENCY_LAYOUT", "python"),
            ("IDEMPOTENCY_KEY", "orderId"),
            ("IDEMPOTENCY_FINGERPRINT", "yes"),
            ("IDEMPOTENCY_AFTER_FAILURE", "strict"),
            ("CONSUMER_CONCURRENCY", "0"),
            ("CONSUMER_DEADLINE_RESERVE", "0s"),
            ("CONSUMER_PRIME", "yes"),
            ("CONSUMER_VISIBILITY", "yes"),
            ("CONSUMER_DEAD_LETTER", "yes"),
            ("CONSUMER_FAIL_WHEN_STORE_UNAVAILABLE", "no"),
            ("CONSUMER_FIFO_AFTER_PERMANENT", "on"),
            ("CONSUMER_BACKOFF_BASE", "0s"),
            ("CONSUMER_BACKOFF_CAP", "12h"),
            ("PAYMENT_GATEWAY_URL", "http://gateway.example"),
        ];
        let told = read(&wrong).unwrap_err().to_string();
        for (name, _) in wrong {
            assert!(told.contains(name), "{name} is missing in: {told}");
        }
        for name in [
            "AWS_LAMBDA_RUNTIME_API",
            "IDEMPOTENCY_TABLE_NAME",
            "IDEMPOTENCY_NAMESPACE",
        ] {
            assert!(told.contains(name), "{name} is missing in: {told}");
        }
        assert!(told.contains("(18 found)"), "{told}");
    }

    #[test]
    fn dead_lettering_needs_calls_to_sqs() {
        let dead_letter = ("CONSUMER_DEAD_LETTER", "on");
        let settings = read(&[&[dead_letter], &REQUIRED[..]].concat()).unwrap();
        assert!(settings.dead_letter);
        let off = ("CONSUMER_VISIBILITY", "off");
        let told = read(&[&[dead_letter, off], &REQUIRED[..]].concat()).unwrap_err();
        let told = told.to_string();
        assert!(
            told.contains("CONSUMER_DEAD_LETTER: `on` needs CONSUMER_VISIBILITY=on"),
            "{told}"
        );
    }

    #[test]
    fn fifo_after_permanent_is_continue_or_stop() {
        for (text, parsed) in [
            ("continue", FifoAfterPermanent::Continue),
            ("stop", FifoAfterPermanent::Stop),
        ] {
            let variables = [&[("CONSUMER_FIFO_AFTER_PERMANENT", text)], &REQUIRED[..]];
            let settings = read(&variables.concat()).unwrap();
            assert_eq!(settings.fifo_after_permanent, parsed);
        }
    }

    #[test]
    fn layout_combines_preset_names_and_sort_key() {
        let layout = |variables: &[(&str, &str)]| {
            let settings = read(&[variables, &REQUIRED].concat());
            settings.map(|settings| settings.layout)
        };
        let powertools = ("IDEMPOTENCY_LAYOUT", "powertools");
        let attributes = ("IDEMPOTENCY_ATTRIBUTES", "id=PK,expires_at=ttl");
        assert_eq!(layout(&[powertools]).unwrap(), Layout::powertools());
        let names = [(Field::Id, "PK"), (Field::ExpiresAt, "ttl")];
        let names = Layout::powertools().rename(names).unwrap();
        for (sort_key, partition) in [("SK", "idempotency#payments"), ("SK=all", "all")] {
            assert_eq!(
                layout(&[powertools, attributes, ("IDEMPOTENCY_SORT_KEY", sort_key)]).unwrap(),
                names.clone().sort_key("SK", partition).unwrap()
            );
        }
        for wrong in ["PK", "key=PK", "id=status", "id="] {
            assert!(
                layout(&[("IDEMPOTENCY_ATTRIBUTES", wrong)]).is_err(),
                "{wrong}"
            );
        }
        for wrong in ["status", "=all", "SK="] {
            assert!(
                layout(&[("IDEMPOTENCY_SORT_KEY", wrong)]).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn gateway_needs_https_or_loopback() {
        for url in [
            "https://gateway.example",
            "https://gateway.example/v1/",
            "http://127.0.0.1:8080",
        ] {
            assert!(gateway_url(url).is_ok(), "{url}");
        }
        for url in [
            "gateway.example",
            "ftp://gateway.example",
            "http://127.0.0.1.example",
            "https://g/?key=SECRET",
            "https://",
            "https://user:SECRET@gateway.example",
        ] {
            let told = gateway_url(url).unwrap_err();
            assert!(!told.contains("SECRET"), "{told}");
        }
    }
}

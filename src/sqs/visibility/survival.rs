//! How long an outage messages survive: a simulation of receives with the template's values.
//!
//! `cargo test --lib survival -- --nocapture` prints the numbers.

use std::{fs, path::Path, time::Duration};

use super::delay::{Backoff, Receive, Rule};
use crate::{once::Outcome, protocol::Timestamp, sqs::processed::Processed};

const MESSAGES: usize = 100_000;
const SEED: u64 = 10;

/// The defaults of template.yaml's parameters.
struct Template {
    max_receive_count: u32,
    backoff: Backoff,
}

impl Template {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("template.yaml");
        let text = fs::read_to_string(path).unwrap();
        let default = |parameter: &str| {
            let (_, rest) = text.split_once(&format!("\n  {parameter}:\n")).unwrap();
            let mut lines = rest.lines();
            lines
                .find_map(|line| line.strip_prefix("    Default: "))
                .unwrap()
        };
        let duration = |parameter| humantime::parse_duration(default(parameter)).unwrap();
        Self {
            max_receive_count: default("MaxReceiveCount").parse().unwrap(),
            backoff: Backoff {
                base: duration("ConsumerBackoffBase"),
                cap: duration("ConsumerBackoffCap"),
            },
        }
    }
}

/// The outage that each of many messages survives, the shortest first. An outage begins right
/// before the first receive, and every receive during it fails; the message survives if the outage
/// is over at its last receive. Time spent in the queue and in the handler is left out: it only
/// helps.
fn outages(template: &Template) -> Vec<Duration> {
    fastrand::seed(SEED);
    let rule = Rule {
        now: Timestamp::default(),
        backoff: template.backoff,
        jitter: |most| fastrand::u64(..=most),
    };
    let failed = Processed::from(Outcome::RetryableFailure("busy".into()));
    let survived = |_| {
        let receives = 1..template.max_receive_count;
        let waits = receives.map(|count| rule.seconds(&failed, Receive::of_standard_queue(count)));
        Duration::from_secs(waits.map(|wait| u64::from(wait.unwrap())).sum())
    };
    let mut outages: Vec<_> = (0..MESSAGES).map(survived).collect();
    outages.sort_unstable();
    outages
}

#[test]
fn outage_of_10_minutes_loses_under_1_percent() {
    let template = Template::read();
    let outages = outages(&template);
    let survived_by = |percent: usize| outages[MESSAGES * (100 - percent) / 100];
    println!(
        "with {} receives and a back-off from {:?} to {:?}",
        template.max_receive_count, template.backoff.base, template.backoff.cap
    );
    println!("every message survives an outage of {:?}", outages[0]);
    for percent in [99, 90, 50] {
        let outage = survived_by(percent).as_secs_f64() / 60.0;
        println!("{percent} % survive an outage of {outage:.1} minutes");
    }
    assert!(survived_by(99) >= Duration::from_secs(600));
}

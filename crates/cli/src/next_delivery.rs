//! [`NextDelivery`]: what a record means for the next delivery of its key.

use std::time::Duration;

use sqs_once::{
    internal::{
        Standing, StoredRecord, open_too_long, standing,
        table::{CONSUMER_CALL_KEY_LIFETIME, CONSUMER_CRASH_ISOLATION, Setting},
    },
    protocol::{Claim, CrashWaits, Decision, Owner, Record, Rejection, Timestamp, decide},
};

use crate::{
    aws,
    doctor::account::{Account, Function},
    output::Error,
};

/// The default margin of a lease. No variable sets another.
const LEASE_MARGIN: Duration = Duration::from_secs(1);

/// The settings of a consumer that decide what its next delivery does, from a deployed function or the defaults.
#[derive(Default)]
pub(crate) struct Rules(Function);

impl Rules {
    /// Reads the settings of a deployed function.
    pub(crate) async fn of_function(name: &str) -> Result<Self, Error> {
        let account = Account::new(aws::config().await?);
        account.function(name.to_owned()).await.map(Self)
    }

    fn call_key_lifetime(&self) -> Option<Duration> {
        let setting = &CONSUMER_CALL_KEY_LIFETIME;
        self.0.is_on(setting.name).then(|| self.0.span(setting))
    }

    /// Returns whether the record's call key may expire before the end of an invocation that begins now.
    fn may_expire(&self, record: &Record, now: Timestamp) -> bool {
        let end = now + self.0.timeout + LEASE_MARGIN;
        open_too_long(record, self.call_key_lifetime(), end).is_some()
    }

    fn crash_waits(&self) -> CrashWaits {
        if self.0.is_on(CONSUMER_CRASH_ISOLATION.name) {
            CrashWaits::default()
        } else {
            CrashWaits::off()
        }
    }

    /// Says which settings these are, and where they come from.
    pub(crate) fn text(&self) -> String {
        let value = |setting: &Setting| {
            let value = self.0.variable(setting.name).unwrap_or(setting.default);
            format!("{} {value}", setting.name)
        };
        let whose = match &*self.0.name {
            "" => "the defaults; --function reads those of a function".to_owned(),
            name => format!("those of function {name}"),
        };
        let lifetime = value(&CONSUMER_CALL_KEY_LIFETIME);
        format!("{whose}: {lifetime}, {}", value(&CONSUMER_CRASH_ISOLATION))
    }
}

/// Tells what a message would do if it were sent now, judging by the record under its key. Ignores the fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextDelivery {
    /// The handler runs.
    Runs,
    /// The handler runs, and sees a prior attempt that may have had its effect. If the handler has a lookup, the quarantine
    /// must end first. The record does not say how long the quarantine lasts.
    RunsWithPriorAttempt,
    /// The handler does not run, because its process died too often while it ran alone.
    Crashed,
    /// The handler does not run, because the called system may have forgotten an earlier attempt's call key. If the handler
    /// has a lookup, the lookup decides instead, but the settings don't say whether it has one.
    TooOld,
    /// Another worker holds the lease. The message returns to the queue until the lease ends.
    Waits,
    /// The operation is completed. The message is acknowledged, and the handler does not run.
    Duplicate,
    /// The message fails again with the stored error, and the handler does not run.
    StoredFailure,
    /// The record is unreadable.
    Unknown,
}

impl NextDelivery {
    /// Returns what the next delivery does, given the record.
    pub(crate) fn by(stored: &StoredRecord, rules: &Rules, now: Timestamp) -> Self {
        match &stored.record {
            Ok(record) => Self::of(record, rules, now),
            Err(_) => Self::Unknown,
        }
    }

    fn of(record: &Record, rules: &Rules, now: Timestamp) -> Self {
        let claim = Claim::new(Owner::fresh(), "", now, now, record.expires_at);
        match decide(Some(record), &claim) {
            Decision::First | Decision::Mine => Self::Runs,
            Decision::Over => match standing(Some(record), &rules.crash_waits()) {
                Standing::Crashed { .. } => Self::Crashed,
                _ if rules.may_expire(record, now) => Self::TooOld,
                _ if record.first_claimed_at.is_some() => Self::RunsWithPriorAttempt,
                _ => Self::Runs,
            },
            Decision::Rejected(rejection) => match rejection {
                Rejection::Duplicate { .. } | Rejection::KeyReused => Self::Duplicate,
                Rejection::FailedBefore(_) => Self::StoredFailure,
                Rejection::Conflict { .. } | Rejection::PayloadConflict { .. } => Self::Waits,
            },
        }
    }

    /// Returns one word, for JSON and tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::RunsWithPriorAttempt => "runs_with_prior_attempt",
            Self::Crashed => "crashed",
            Self::TooOld => "too_old",
            Self::Waits => "waits",
            Self::Duplicate => "duplicate",
            Self::StoredFailure => "stored_failure",
            Self::Unknown => "unknown",
        }
    }

    /// Returns a sentence that says what a message does if it arrives now.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Runs => "the handler runs",
            Self::RunsWithPriorAttempt => {
                "the handler runs; an earlier attempt may have had its effect, and the handler gets its data \
                 (a lookup first waits for its quarantine)"
            }
            Self::Crashed => {
                "fails as `crashed`; the handler does not run, because its process died alone too often"
            }
            Self::TooOld => {
                "fails permanently as \"too old to repeat\", unless a lookup decides: an earlier attempt may have had \
                 its effect, and the called system may have forgotten the call key"
            }
            Self::Waits => "returns to the queue until the lease ends",
            Self::Duplicate => "acknowledged as a duplicate; the handler does not run",
            Self::StoredFailure => "finds the stored failure; the handler does not run",
            Self::Unknown => "unknown: the record is unreadable",
        }
    }
}

#[cfg(test)]
mod tests {
    use sqs_once::protocol::{AttemptEnd, Effect, End, StoredResult};

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const LATER: Timestamp = Timestamp::from_millis(1_800_000_001_001);

    fn of(record: &Record, now: Timestamp) -> NextDelivery {
        NextDelivery::of(record, &Rules::default(), now)
    }

    fn claimed() -> Record {
        let lease_until = NOW + Duration::from_secs(1);
        let claim = Claim::new(Owner::fresh(), "m-1", NOW, lease_until, 1_800_000_002);
        Record::claimed(&claim, 1, None, None)
    }

    #[test]
    fn verdict_follows_the_rules_of_claims() {
        let claimed = claimed();
        assert_eq!(of(&claimed, NOW), NextDelivery::Waits);
        assert_eq!(of(&claimed, LATER), NextDelivery::RunsWithPriorAttempt);
        let undone = claimed.ended(None, &End::Undone { began: true }, 2, NOW);
        assert_eq!(of(&undone, LATER), NextDelivery::Runs);
        let result = StoredResult::Json("1".into());
        let expires_at = 1_800_000_002;
        let completed = End::Completed { result, expires_at };
        let completed = claimed.ended(None, &completed, 2, NOW);
        assert_eq!(of(&completed, LATER), NextDelivery::Duplicate);
        let past_retention = Timestamp::from_millis(1_800_000_003_000);
        assert_eq!(of(&completed, past_retention), NextDelivery::Runs);
    }

    #[test]
    fn message_after_failure_runs() {
        let failed = |effect| {
            let end = End::Failed {
                error: "declined".into(),
                effect,
                sent_at: Some(NOW),
                expires_at: 1_800_000_002,
            };
            claimed().ended(None, &end, 2, NOW)
        };
        let charged = failed(Effect::Possible);
        assert_eq!(of(&charged, LATER), NextDelivery::RunsWithPriorAttempt);
        assert_eq!(of(&charged, NOW), NextDelivery::StoredFailure);
        let declined = failed(Effect::Declined);
        assert_eq!(of(&declined, LATER), NextDelivery::Runs);
    }

    #[test]
    fn message_whose_process_died_alone_too_often_is_crashed() {
        let mut died = claimed();
        died.exclusive_attempts = 3;
        assert_eq!(of(&died, LATER), NextDelivery::RunsWithPriorAttempt);
        died.exclusive_attempts = 4;
        assert_eq!(of(&died, LATER), NextDelivery::Crashed);
    }

    #[test]
    fn message_behind_an_old_attempt_is_too_old_to_repeat() {
        let hours = |hours: u64| NOW + Duration::from_secs(hours * 3600);
        let mut open = claimed().ended(None, &End::Open(AttemptEnd::Retryable), 2, NOW);
        open.expires_at = 1_900_000_000;
        assert_eq!(of(&open, hours(19)), NextDelivery::RunsWithPriorAttempt);
        assert_eq!(of(&open, hours(21)), NextDelivery::TooOld);
        let with = |lifetime: &str, at| {
            let variables = [(CONSUMER_CALL_KEY_LIFETIME.name, lifetime)];
            let rules = Rules(Function::with(variables));
            NextDelivery::of(&open, &rules, at)
        };
        assert_eq!(with("30m", hours(1)), NextDelivery::TooOld);
        assert_eq!(with(" 2d ", hours(21)), NextDelivery::RunsWithPriorAttempt);
        assert_eq!(with("off", hours(900)), NextDelivery::RunsWithPriorAttempt);
        let mut died = open;
        (died.last_end, died.exclusive_attempts) = (None, 4);
        assert_eq!(of(&died, hours(21)), NextDelivery::Crashed);
    }
}

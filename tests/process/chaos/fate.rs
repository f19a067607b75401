//! Fate of a worker in the middle of an invocation: killed, or frozen and perhaps thawed long after
//! Lambda has given it up.

use std::{
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;
use support::runtime_api::Answer;
use tokio::time::{Instant, sleep, sleep_until};

use crate::chaos::{
    environment::Environment,
    ledger::{Death, Invocation, Ledger, Worker},
    pace::{FUNCTION_TIMEOUT, Pace},
    plan::Seed,
};

/// Time in which an undisturbed batch is claimed, charged and recorded.
const BUSIEST: Duration = Duration::from_millis(40);

/// Promise 7: the time that a batch may lose on dead connections.
pub(crate) const AFTER_REST: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
pub(crate) enum Fate {
    Spared,
    Killed(When),
    /// Frozen until Lambda gives it up.
    Frozen(When),
}

#[derive(Clone, Copy)]
pub(crate) enum When {
    /// So long after the start of the invocation, on a machine with nothing else to do.
    After(Duration),
    /// Between a charge and its record, on a machine of any speed.
    Charging,
}

impl Fate {
    /// A third of the workers are frozen.
    pub(crate) fn of(seed: Seed, worker: Worker, invocation: Invocation) -> Self {
        let mut dice = seed.dice(("fate", worker, invocation));
        // A third at any time: in the SDK's retries, late writes, the gateway's timeout, the
        // cut-off before the deadline, the visibility change. Few invocations take that long. A
        // worker that responds before meets its fate in another invocation.
        let anytime = dice.u32(..3) == 0;
        let latest = if anytime { FUNCTION_TIMEOUT } else { BUSIEST };
        let when = When::After(latest.mul_f64(dice.f64()));
        match worker % 6 {
            0 => Self::Killed(When::Charging),
            2 => Self::Frozen(When::Charging),
            5 => Self::Frozen(when),
            _ => Self::Killed(when),
        }
    }

    /// Waits for the fate, and returns the death that it is.
    async fn comes(self, worker: Worker, pace: Pace, ledger: &Ledger) -> Death {
        let (when, death) = match self {
            Self::Spared => return std::future::pending().await,
            Self::Killed(when) => (when, Death::Killed),
            Self::Frozen(when) => (when, Death::FrozenUntilTimeout),
        };
        when.comes(worker, pace, ledger).await;
        death
    }

    /// True for half of the frozen workers: thawed after Lambda has given them up, as by a machine
    /// that was suspended.
    pub(crate) fn is_thawed(worker: Worker) -> bool {
        worker % 6 == 2
    }
}

impl When {
    async fn comes(self, worker: Worker, pace: Pace, ledger: &Ledger) {
        match self {
            When::After(time) => sleep(pace.of(time)).await,
            When::Charging => ledger.charge_by(worker).await,
        }
    }
}

/// Invokes the process and applies its fate, unless the response comes first. Returns `None` for
/// the response of a process that died first.
pub(crate) async fn survive(
    environment: &Environment,
    event: Value,
    rested: bool,
    fate: Fate,
    ledger: &Ledger,
) -> (Option<Answer>, Option<Death>) {
    let pace = environment.pace;
    // A batch after a rest takes two seconds longer.
    let longer = if rested {
        pace.of(AFTER_REST)
    } else {
        Duration::ZERO
    };
    let time = pace.function_timeout() + longer;
    let timeout = Instant::now() + time;
    let deadline = SystemTime::now() + time;
    let deadline = deadline.duration_since(UNIX_EPOCH).unwrap().as_millis();
    let deadline = deadline.try_into().unwrap();
    // `Lambda` kills a process whose response is late. A process that is thawed later must stay
    // alive, so this function ends its invocation.
    let patience = 2 * time;
    let invocation = environment.lambda.invoke_until(event, deadline, patience);
    tokio::pin!(invocation);
    let timed_out = || {
        if environment.is_frozen() {
            Death::FrozenUntilTimeout
        } else {
            Death::TimedOut
        }
    };
    let death = tokio::select! {
        answer = &mut invocation => return ended(answer),
        () = sleep_until(timeout) => return (None, Some(timed_out())),
        death = fate.comes(environment.worker, pace, ledger) => death,
        death = ledger.doom_of(environment.worker) => death,
    };
    if death != Death::FrozenUntilTimeout {
        return (None, Some(death));
    }
    environment.freeze();
    tokio::select! {
        answer = invocation => match ended(answer) {
            // The process responded one moment before it was frozen.
            (answer, None) => (answer, Some(Death::Killed)),
            ended => ended,
        },
        () = sleep_until(timeout) => (None, Some(Death::FrozenUntilTimeout)),
    }
}

fn ended(answer: Answer) -> (Option<Answer>, Option<Death>) {
    match answer {
        Answer::TimedOut => (None, Some(Death::TimedOut)),
        Answer::Exited => (None, Some(Death::Crashed)),
        Answer::Response(_) | Answer::Error(_) => (Some(answer), None),
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let mut kill = Command::new("kill");
    let kill = kill.args([name, &pid.to_string()]).status().unwrap();
    assert!(kill.success(), "{name}");
}

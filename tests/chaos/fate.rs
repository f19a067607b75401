//! Fate of a worker in the middle of an invocation: killed, or frozen and perhaps thawed long after
//! Lambda has given it up.

use std::{
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    ledger::{Death, Event, Ledger, Worker},
    plan::Seed,
    support::runtime_api::{Answer, Lambda},
};

/// Timeout after which Lambda kills the function.
pub(crate) const FUNCTION_TIMEOUT: Duration = Duration::from_secs(2);

/// Time in which an undisturbed batch is claimed, charged and recorded.
const BUSIEST: Duration = Duration::from_millis(40);

#[derive(Clone, Copy)]
pub(crate) enum Fate {
    Spared,
    Killed(Duration),
    /// Frozen until Lambda kills it.
    Frozen(Duration),
    /// Frozen, given up by Lambda, and thawed: a machine that was suspended.
    Thawed(Duration),
}

impl Fate {
    /// A third are frozen, and every other one of those is thawed.
    pub(crate) fn of(seed: Seed, worker: Worker, invocation: u32) -> Self {
        let mut dice = seed.dice(("fate", worker, invocation));
        // A third at any time: in the SDK's retries, late writes, the gateway's timeout, the
        // cut-off before the deadline, the visibility change. Few invocations take that long. A
        // worker that responds before meets its fate in another invocation.
        let anytime = dice.u32(..3) == 0;
        let latest = if anytime { FUNCTION_TIMEOUT } else { BUSIEST };
        let when = latest.mul_f64(dice.f64());
        match worker % 6 {
            2 => Self::Thawed(when),
            5 => Self::Frozen(when),
            _ => Self::Killed(when),
        }
    }
}

/// Invokes the process and applies its fate, unless the response comes first. Returns `None` for
/// the response of a process that died first.
pub(crate) async fn survive(
    lambda: &Lambda,
    event: Value,
    fate: Fate,
    (worker, ledger): (Worker, &Ledger),
) -> (Option<Answer>, Option<Death>) {
    let timeout = Instant::now() + FUNCTION_TIMEOUT;
    let deadline = SystemTime::now() + FUNCTION_TIMEOUT;
    let deadline = deadline.duration_since(UNIX_EPOCH).unwrap().as_millis();
    let patience = match fate {
        // The process is not killed at the deadline it was given.
        Fate::Thawed(_) => 2 * FUNCTION_TIMEOUT,
        _ => FUNCTION_TIMEOUT,
    };
    let invocation = lambda.invoke_until(event, deadline.try_into().unwrap(), patience);
    tokio::pin!(invocation);
    let early = match fate {
        Fate::Spared => None,
        Fate::Killed(when) | Fate::Frozen(when) | Fate::Thawed(when) => tokio::select! {
            answer = &mut invocation => Some(answer),
            () = sleep(when) => None,
        },
    };
    let answer = match (early, fate) {
        (Some(answer), _) => answer,
        (None, Fate::Killed(_)) => return (None, Some(Death::Killed)),
        (None, Fate::Frozen(_) | Fate::Thawed(_)) => {
            signal(lambda.pid(), "-STOP");
            ledger.note(Event::Frozen { worker });
            return tokio::select! {
                answer = invocation => match answer {
                    Answer::TimedOut => (None, Some(Death::FrozenUntilTimeout)),
                    // One moment before.
                    answer => (Some(answer), Some(Death::Killed)),
                },
                () = sleep_until(timeout) => (None, Some(Death::FrozenUntilTimeout)),
            };
        }
        (None, Fate::Spared) => invocation.await,
    };
    let death = match answer {
        Answer::TimedOut => Some(Death::TimedOut),
        Answer::Exited => Some(Death::Crashed),
        Answer::Response(_) | Answer::Error(_) => None,
    };
    (Some(answer), death)
}

pub(crate) fn signal(pid: u32, name: &str) {
    let mut kill = Command::new("kill");
    let kill = kill.args([name, &pid.to_string()]).status().unwrap();
    assert!(kill.success(), "{name}");
}

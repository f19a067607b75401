//! [`shrink`]: makes a failing world smaller, as long as it still fails the same check.

use std::time::Duration;

use crate::{
    Run,
    plan::{Gateway, KeyFrom, MOST_IN_FLIGHT, Plan, RECORDS_KEPT, RETENTION, Rates, Wrapping},
    run,
};

/// Runs at most, because a large world takes a while.
const MOST: usize = 200;

/// Returns a smaller world that fails the first check of `failed`.
pub fn shrink(failed: Run, flaw: Option<&'static str>) -> Run {
    let check = failed.verdict.violations.first().map(|first| first.check);
    let (mut smallest, mut runs) = (failed, 0);
    loop {
        let fails = |plan: Plan, runs: &mut usize| {
            *runs += 1;
            let run = run(plan, flaw);
            let found = run
                .verdict
                .violations
                .iter()
                .find(|one| Some(one.check) == check);
            found.is_some().then_some(run)
        };
        let mut smaller = smaller(&smallest.plan).into_iter();
        match smaller.find_map(|plan| (runs < MOST).then(|| fails(plan, &mut runs))?) {
            Some(run) => smallest = run,
            None => return smallest,
        }
    }
}

/// Returns plans that are smaller in one respect, the largest steps first.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut without = |change: &dyn Fn(&mut Plan)| {
        let mut smaller = plan.clone();
        change(&mut smaller);
        plans.push(smaller);
    };
    let mut part = plan.messages.len() / 2;
    while part > 0 {
        for from in (0..plan.messages.len()).step_by(part) {
            without(&|plan| {
                let to = plan.messages.len().min(from + part);
                plan.messages.drain(from..to);
            });
        }
        part /= 2;
    }
    for n in 0..plan.outages.len() {
        without(&|plan| {
            plan.outages.remove(n);
        });
    }
    for n in 0..plan.operator.len() {
        without(&|plan| {
            plan.operator.remove(n);
        });
    }
    for rate in RATES {
        if *rate(&mut plan.rates.clone()) > 0.0 {
            without(&|plan| *rate(&mut plan.rates) = 0.0);
        }
    }
    if plan.environments > 1 {
        without(&|plan| plan.environments = 1);
    }
    if plan.invocations > 1 {
        without(&|plan| plan.invocations = 1);
    }
    if !plan.window.is_zero() {
        without(&|plan| plan.window = Duration::ZERO);
    }
    if plan.gateway.patience.is_none() {
        without(&|plan| plan.gateway.patience = Gateway::default().patience);
    }
    if plan.in_flight < MOST_IN_FLIGHT {
        without(&|plan| plan.in_flight = MOST_IN_FLIGHT);
    }
    if plan.retention < RETENTION {
        without(&|plan| plan.retention = RETENTION);
    }
    if plan.records_kept < RECORDS_KEPT {
        without(&|plan| plan.records_kept = RECORDS_KEPT);
    }
    if plan.releases.len() > 1 {
        without(&|plan| plan.releases.truncate(1));
    }
    if plan.releases.iter().any(|release| release.batches_writes) {
        without(&|plan| (plan.releases.iter_mut()).for_each(|of| of.batches_writes = false));
    }
    if plan.wrapping != Wrapping::Bare {
        without(&|plan| plan.wrapping = Wrapping::Bare);
    }
    if plan.key != KeyFrom::Body {
        without(&|plan| plan.key = KeyFrom::Body);
    }
    if plan.bodies_in_s3 {
        without(&|plan| plan.bodies_in_s3 = false);
    }
    if plan.outputs_in_s3 {
        without(&|plan| plan.outputs_in_s3 = false);
    }
    if plan.layer.is_some() {
        without(&|plan| plan.layer = None);
    }
    if plan.stops_groups {
        without(&|plan| plan.stops_groups = false);
    }
    if !plan.gateway.work.is_zero() {
        without(&|plan| plan.gateway.work = Duration::ZERO);
    }
    if plan.releases.iter().any(|release| release.memory.is_some()) {
        without(&|plan| (plan.releases.iter_mut()).for_each(|of| of.memory = None));
    }
    if plan.changes(|release| release.fingerprint) {
        let first = plan.releases[0].fingerprint;
        without(&|plan| (plan.releases.iter_mut()).for_each(|of| of.fingerprint = first));
    }
    if plan.outbox.is_some() {
        without(&|plan| plan.outbox = None);
    }
    if plan.skew_ms > 0 {
        without(&|plan| plan.skew_ms = 0);
    }
    plans
}

type Rate = fn(&mut Rates) -> &mut f64;

const RATES: [Rate; 16] = [
    |rates| &mut rates.request_lost,
    |rates| &mut rates.answer_lost,
    |rates| &mut rates.doubled,
    |rates| &mut rates.late,
    |rates| &mut rates.throttled,
    |rates| &mut rates.server_error,
    |rates| &mut rates.busy,
    |rates| &mut rates.sqs_refused,
    |rates| &mut rates.s3_refused,
    |rates| &mut rates.denied,
    |rates| &mut rates.clock_stepped,
    |rates| &mut rates.killed,
    |rates| &mut rates.frozen,
    |rates| &mut rates.throttled_invocation,
    |rates| &mut rates.delivered_twice,
    |rates| &mut rates.deletion_lost,
];

//! The simulation with fixed seeds.

mod stories;
mod twins;

use std::sync::Mutex;

use simulation::{
    outage::{BATCHES, OUTAGES, plans, survive},
    plan::{FUNCTION_TIMEOUTS, MANAGED_INSTANCES, Plan, Timeouts, of_template},
    run, silence_handlers,
    survey::{in_parallel, survey},
};
use support::template::Template;

/// Worlds of the survey.
const SEEDS: u64 = 1000;

#[test]
fn worlds_of_fixed_seeds_keep_promises() {
    silence_handlers();
    let survey = survey(0..SEEDS, |seed| run(Plan::draw(seed), None), |_| ());
    println!("{survey}");
    let found = &survey.violations;
    assert!(found.is_empty(), "make simulate SEED=...: {found:#?}");
    assert_eq!(survey.idle(), [""; 0], "never exercised");
    assert_eq!(survey.strangers(), [("", ""); 0], "never met");
    assert!(survey.receives >= 200_000, "{survey}");
    assert!(survey.receives_at_the_wire >= 30_000, "{survey}");
}

#[test]
fn same_seed_has_same_story() {
    silence_handlers();
    for seed in 0..20 {
        let [one, other] = [(); 2].map(|()| run(Plan::draw(seed), None).events);
        assert!(one == other, "SEED={seed}");
    }
}

/// Every message survives an outage of twelve hours.
#[test]
fn outages_of_half_a_day_dead_letter_nothing() {
    let ends = |plan: &Plan| [30, 900].contains(&plan.timeouts.function.as_secs());
    let of = |services| plans(services, BATCHES[1]).filter(ends);
    let plans = Mutex::new(OUTAGES.into_iter().flat_map(of));
    in_parallel(&plans, |plan| {
        let survival = survive(plan);
        let found = survival.violations.first();
        assert!(
            survival.is_kept(),
            "{:?}, {:?}: {found:#?}",
            survival.of,
            survival.timeouts
        );
        assert!(survival.most_receives > 1);
    });
}

/// The oracle's bound is no excuse: with few receives, messages end in the dead-letter queue.
#[test]
fn outage_with_eight_receives_dead_letters_messages() {
    silence_handlers();
    let mut plan = plans(OUTAGES[0], BATCHES[0]).next().unwrap();
    plan.timeouts.max_receives = 8;
    let survival = survive(plan);
    assert!(!survival.is_kept());
    assert!(survival.dead > 100, "{survival}");
}

#[test]
fn timeouts_are_those_of_the_template() {
    let template = Template::with(&[]);
    let admitted = template.parameter("FunctionTimeout")["AllowedValues"].as_array();
    let admitted = admitted.unwrap().iter().map(|text| text.as_str().unwrap());
    assert_eq!(
        admitted.collect::<Vec<_>>(),
        FUNCTION_TIMEOUTS.map(|of| of.to_string())
    );
    for function in FUNCTION_TIMEOUTS {
        let template = Template::with(&[("FunctionTimeout", &function.to_string())]);
        let property = |path: &str| template.property(path);
        let timeouts = of_template(function);
        assert_eq!(property("Consumer/Timeout"), function.to_string());
        assert_eq!(
            property("OrdersQueue/VisibilityTimeout"),
            timeouts.visibility.as_secs().to_string()
        );
        assert_eq!(
            property("OrdersQueue/RedrivePolicy/maxReceiveCount"),
            timeouts.max_receives.to_string()
        );
        assert_eq!(
            property("Consumer/Environment/Variables/CONSUMER_BACKOFF_CAP"),
            format!("{}m", timeouts.cap.as_secs() / 60)
        );
    }
    let Timeouts {
        function,
        visibility,
        max_receives,
        cap,
        ..
    } = MANAGED_INSTANCES;
    let row = format!(
        "| [{} s](#lambda-managed-instances) | {} s | {max_receives} | {} min |",
        function.as_secs(),
        visibility.as_secs(),
        cap.as_secs() / 60,
    );
    assert!(include_str!("../../docs/operations.md").contains(&row));
}

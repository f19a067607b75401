//! The simulation with fixed seeds.

use simulation::{
    plan::{Plan, Service},
    run,
};

/// Promises 1, 2, 3, 5, 6 and 7.
#[test]
fn worlds_of_fixed_seeds_keep_promises() {
    for seed in 0..20 {
        let run = run(Plan::draw(seed), None);
        let found = &run.verdict.violations;
        assert!(found.is_empty(), "SEED={seed}: {found:#?}\n{}", run.story());
    }
}

#[test]
fn same_seed_has_same_story() {
    for seed in 0..5 {
        let [one, other] = [(); 2].map(|()| run(Plan::draw(seed), None).events);
        assert!(one == other, "SEED={seed}");
    }
}

/// Every message survives an outage of twelve hours, with each function timeout of the template. Promise 7.
#[test]
fn outages_of_half_a_day_dead_letter_nothing() {
    for of in [Service::Gateway, Service::Table, Service::Sqs] {
        for plan in Plan::outages_of_half_a_day(of) {
            let timeout = plan.timeouts.function;
            let run = run(plan, None);
            let found = &run.verdict.violations;
            assert!(
                found.is_empty(),
                "{of:?}, {timeout:?}: {found:#?}\n{}",
                run.story()
            );
        }
    }
}

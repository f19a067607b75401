//! Flaws of the product, and the world in which the oracle finds each. `FLAW=all simulate` prints this table.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use simulation::{
    flaws::{self, Flaw},
    plan::Plan,
    run, silence_handlers,
};

use crate::SEEDS;

/// The flaw, the first seed that finds it, and the check that fails.
const FOUND: [(&str, u64, &str); 85] = [
    (
        "a body that S3 refuses is invalid",
        10,
        "P7 no dead letter without a cause",
    ),
    (
        "a change drops the keys of another",
        328,
        "an item keeps its keys",
    ),
    (
        "a claim does not know its own record",
        5,
        "P7 no worker waits for its own claim",
    ),
    (
        "a claim forgets the failures",
        360,
        "P2 message sent before a failure is never claimed",
    ),
    (
        "a commit leaves out its events",
        1,
        "events commit with their record",
    ),
    ("a commit leaves out its record", 1, "metrics: completions"),
    (
        "a commit leaves out its writes",
        1,
        "P4 a write commits with its record",
    ),
    (
        "a completed key is claimed",
        0,
        "P2 completed is never claimed",
    ),
    (
        "a completion is sent once",
        5,
        "a result is sent until the end",
    ),
    (
        "a conflict does not wait",
        5,
        "P7 no dead letter without a cause",
    ),
    (
        "a copy is not confirmed",
        8,
        "P5 acknowledged only when recorded",
    ),
    (
        "a copy leaves out what a redrive added",
        2,
        "a copy has its message's attributes",
    ),
    (
        "a copy names another's reason",
        70,
        "a dead letter names its reason",
    ),
    (
        "a cut-off in a layer is an open attempt",
        177,
        "P3 told of open attempts only",
    ),
    (
        "a decline keeps the call key",
        62,
        "P3 only a decline changes the call key",
    ),
    (
        "a decline leaves attempts open",
        62,
        "P3 told of open attempts only",
    ),
    (
        "a duplicate has the first call key",
        85,
        "on_duplicate gets its operation's call key",
    ),
    (
        "a duplicate is a failure",
        0,
        "metrics: messages and failures",
    ),
    (
        "a duplicate is not replayed in a turn",
        1138,
        "on_duplicate is called once",
    ),
    (
        "a duplicate of another queue is not told",
        9,
        "metrics: duplicates of another queue",
    ),
    (
        "a failed event is given up at once",
        7,
        "a dead event has a cause",
    ),
    (
        "a failed message is claimed again",
        2,
        "P2 message sent before a failure is never claimed",
    ),
    (
        "a failure answers every payload",
        79,
        "P7 no dead letter without a cause",
    ),
    (
        "a failure has no time",
        2,
        "P2 message sent before a failure is never claimed",
    ),
    (
        "a fifth payload makes a failure forgotten",
        50,
        "P2 message sent before a failure is never claimed",
    ),
    (
        "a group continues after a failure",
        7,
        "order of a group's events",
    ),
    ("a group does not stop", 2, "order of a group"),
    (
        "a group goes on behind another payload",
        80,
        "a group waits for another payload",
    ),
    (
        "a group goes on behind an unrecorded failure",
        8,
        "order of a group",
    ),
    ("a group has no order", 2, "order of a group"),
    ("a lease ends at once", 12, "P1 one handler at a time"),
    ("a live lease is taken over", 5, "P1 one live claim"),
    (
        "a lookup without an answer finds nothing",
        283,
        "charged once, by looking up",
    ),
    (
        "a lookup without an answer finds the effect",
        30,
        "a completed operation was charged",
    ),
    (
        "a message that is given up is not recorded",
        5,
        "order of a group",
    ),
    (
        "a panic is a permanent failure",
        7,
        "P7 no dead letter without a cause",
    ),
    (
        "a record is kept for ever",
        30,
        "a record is forgotten in its time",
    ),
    ("a record is not kept", 339, "P5 recorded before its copy"),
    (
        "a redriven decline is not recorded",
        268,
        "P5 recorded before its copy",
    ),
    (
        "a retryable failure had no effect",
        0,
        "P3 told of earlier attempts",
    ),
    (
        "a second copy has the first one's id",
        2,
        "a second copy keeps the deduplication id",
    ),
    ("a stopped group goes on", 34, "a stopped group waits"),
    (
        "a success does not close the circuit",
        150,
        "a success closes the circuit",
    ),
    (
        "a success is forgotten",
        0,
        "P3 charged again only with a cause",
    ),
    (
        "a suspect waits for suspects",
        53,
        "P7 a suspect runs in its turn",
    ),
    ("a suspect does not rest", 5, "P7 a suspect rests"),
    (
        "a throttled event is given up",
        646,
        "a dead event has a cause",
    ),
    (
        "a throttled statement was applied",
        500,
        "P3 charged again only with a cause",
    ),
    (
        "a turn ends at once",
        4,
        "P6 suspect is claimed in its turn",
    ),
    (
        "a turn is of one batch",
        34,
        "P6 suspect is claimed in its turn",
    ),
    (
        "a write without an answer was applied",
        332,
        "metrics: completions",
    ),
    (
        "an attempt alone counts twice",
        5,
        "P7 no dead letter without a cause",
    ),
    (
        "an attempt is too old after an hour",
        61,
        "P7 no dead letter without a cause",
    ),
    (
        "an envelope has no attributes",
        0,
        "P7 no dead letter without a cause",
    ),
    (
        "an expired record is history",
        173,
        "P3 only a decline changes the call key",
    ),
    ("an event is not confirmed", 7, "order of a group's events"),
    (
        "an inbox commits over any record",
        3,
        "P4 a write is applied once",
    ),
    ("an item forgets its keys", 8, "an item keeps its keys"),
    (
        "an open attempt of another payload is taken over",
        57,
        "P3 another payload does not take over",
    ),
    ("an output is lost", 0, "an output is of the charge"),
    (
        "an undone claim hides earlier attempts",
        30,
        "P3 told of earlier attempts",
    ),
    (
        "an undone claim is an open attempt",
        0,
        "P3 told of open attempts only",
    ),
    (
        "an unreadable message is completed",
        0,
        "a completed operation was charged",
    ),
    (
        "an update does not ask for its key",
        15,
        "P4 a write is applied once",
    ),
    (
        "another payload is not told",
        522,
        "P3 told of another payload",
    ),
    (
        "attempts alone are not counted",
        5,
        "P6 attempt alone is counted in its claim",
    ),
    (
        "each key is a message id",
        0,
        "a handler gets its message's key",
    ),
    (
        "fingerprints of two schemes are compared",
        5,
        "P7 no dead letter without a cause",
    ),
    (
        "memory limits no handlers",
        261,
        "handlers at a time are bounded",
    ),
    (
        "no attempt is too old",
        104,
        "a call key is not used beyond its lifetime",
    ),
    (
        "no message is a suspect",
        5,
        "P6 attempt alone is counted in its claim",
    ),
    (
        "nobody waits for a late request",
        546,
        "charged once, by looking up",
    ),
    ("nothing is looked up", 30, "charged once, by looking up"),
    (
        "only the first part of a key function counts",
        7,
        "a handler gets its message's key",
    ),
    (
        "the answers behind the tenth are swapped",
        500,
        "P3 charged again only with a cause",
    ),
    (
        "the bodies of a call are swapped",
        7,
        "an event is sent as it was published",
    ),
    ("the deadline is a second late", 4, "P7 answer in time"),
    (
        "the first claim's time is moved to the last",
        2,
        "P3 told of the earliest open attempt",
    ),
    ("the handler is not told", 0, "P3 told of earlier attempts"),
    (
        "the keys of an item are not read",
        8,
        "P4 a write is applied once",
    ),
    (
        "the progress is of one invocation",
        24,
        "an event is repeated only with a cause",
    ),
    (
        "the progress is one event ahead",
        24,
        "order of a group's events",
    ),
    (
        "the response names the last failure",
        14,
        "order of a group's events",
    ),
    (
        "the response omits a message",
        0,
        "metrics: messages and failures",
    ),
    ("waits do not grow", 73, "P7 no dead letter without a cause"),
];

#[test]
fn each_flaw_is_found_by_its_seed() {
    silence_handlers();
    let missed = FOUND.into_iter().filter_map(|(flaw, seed, check)| {
        // Without a flaw, it is sound: another test has seen the first ones.
        let is_sound = || run(Plan::draw(seed), None).verdict.violations.is_empty();
        assert!(seed < SEEDS || is_sound(), "SEED={seed}");
        assert!(seed < 2 * SEEDS, "SEED={seed}");
        let found = run(Plan::draw(seed), Some(flaw)).verdict.violations;
        let checks: BTreeSet<_> = found.iter().map(|found| found.check).collect();
        (!checks.contains(check)).then(|| format!("{flaw}, SEED={seed}: {checks:?}"))
    });
    let missed: Vec<_> = missed.collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn each_flaw_of_the_product_is_listed() {
    let product = flaws::in_product();
    for flaw in &product {
        println!("{}:{}: {}", flaw.file, flaw.line, flaw.name);
    }
    let listed: BTreeSet<_> = FOUND.iter().map(|(flaw, ..)| *flaw).collect();
    assert_eq!(
        product
            .iter()
            .map(|flaw| &*flaw.name)
            .collect::<BTreeSet<_>>(),
        listed
    );
    assert_eq!(product.len(), listed.len(), "a name stands twice");
}

#[test]
fn each_flaw_stands_on_its_page_with_a_test() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/flaws.md");
    let page = fs::read_to_string(path).unwrap();
    let worlds: BTreeMap<_, _> = FOUND
        .map(|(flaw, seed, check)| (flaw, (seed, check)))
        .into();
    for Flaw { name, file, .. } in flaws::in_product() {
        let (seed, check) = worlds[&*name];
        let row = format!("| {name} | `{file}` | {seed}: {check} | ");
        let test = page.lines().find_map(|line| line.strip_prefix(&row));
        let is_tested = test.is_some_and(|test| test.contains('`'));
        assert!(
            is_tested,
            "{row}: run `make flaws`, with SEARCH=new for a new flaw"
        );
    }
}

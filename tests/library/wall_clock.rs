//! A wall clock that a test moves forward.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use sqs_once::protocol::Timestamp;

/// Milliseconds by which the wall clock of a test is ahead, by the name of its thread: each test has a
/// runtime of one thread.
static AHEAD: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

fn test_name() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

pub fn clock() -> Timestamp {
    let ahead = AHEAD.lock().unwrap().get(&test_name()).copied();
    Timestamp::now() + Duration::from_millis(ahead.unwrap_or_default())
}

pub fn advance(by: Duration) {
    let by = u64::try_from(by.as_millis()).unwrap();
    *AHEAD.lock().unwrap().entry(test_name()).or_default() += by;
}

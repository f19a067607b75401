//! Log lines of the test's own process.

use std::{cell::RefCell, io, sync::Once};

use serde_json::Value;
use tracing::Level;
use tracing_subscriber::{
    Layer as _, filter::dynamic_filter_fn, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

thread_local! {
    /// Lines logged on this thread, by the one test that runs on it. `None` if that test reads no log.
    static LOG: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Keeps the lines of this test, from INFO on. A subscriber for one thread would race with the others for the
/// enabled callsites.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let lines = tracing_subscriber::fmt::layer().json().with_writer(|| Log);
        let of_test = dynamic_filter_fn(|metadata, _| {
            *metadata.level() <= Level::INFO && LOG.with_borrow(Option::is_some)
        });
        tracing_subscriber::registry()
            .with(lines.with_filter(of_test))
            .init();
    });
    LOG.replace(Some(Vec::new()));
}

/// Lines since the last call.
pub fn lines() -> Vec<Value> {
    let bytes = LOG.replace(Some(Vec::new())).unwrap_or_default();
    let lines = bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

/// Lines since the last call with this message.
pub fn lines_of(message: &str) -> Vec<Value> {
    let mut lines = lines();
    lines.retain(|line| line["fields"]["message"] == message);
    lines
}

/// Lines since the last call whose message contains `words`.
pub fn lines_containing(words: &str) -> Vec<Value> {
    let mut lines = lines();
    lines.retain(|line| {
        let message = line["fields"]["message"].as_str();
        message.is_some_and(|message| message.contains(words))
    });
    lines
}

struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.get_or_insert_default().extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

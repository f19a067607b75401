//! Log lines of the test's own process.

use std::{cell::RefCell, io, sync::Once};

use serde_json::Value;

thread_local! {
    /// Lines logged on this thread, by the one test that runs on it.
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Logs every level of every test. A subscriber for one thread would race with the others for the
/// enabled callsites.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let lines = tracing_subscriber::fmt().json().with_writer(|| Log);
        tracing::subscriber::set_global_default(lines.finish()).unwrap();
    });
    LOG.take();
}

/// Lines since the last call.
pub fn lines() -> Vec<Value> {
    let bytes = LOG.take();
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
        LOG.with_borrow_mut(|log| log.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

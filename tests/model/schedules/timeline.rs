//! Time line for people: when, who, what, and the record after it.

use std::fmt;

use crate::schedules::clock::{since_start, wall};

/// Written only when a schedule is replayed: a search has no time for it.
#[derive(Clone, Debug, Default)]
pub struct Timeline(Option<Vec<String>>);

impl Timeline {
    pub fn written() -> Self {
        Self(Some(Vec::new()))
    }

    pub fn is_written(&self) -> bool {
        self.0.is_some()
    }

    pub fn line(&mut self, who: &str, what: &str, record: &str) {
        if let Some(lines) = &mut self.0 {
            let at = since_start(wall());
            lines.push(format!("{at:>9} s  {who:<9} {what:<52} | {record}"));
        }
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>11}  {:<9} {:<52} | the record after it",
            "clock", "who", "what"
        )?;
        for line in self.0.iter().flatten() {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

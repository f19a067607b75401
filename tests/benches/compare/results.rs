//! All measurements, and the medians over their rounds.

use std::collections::BTreeMap;

use crate::{
    numbers::batch_of,
    process::{CutOff, Failed, Run, Start, milliseconds},
};

pub(crate) type Measure = fn(&Run) -> f64;

type Name = &'static str;

pub(crate) struct Results {
    pub(crate) rounds: usize,
    /// By latency and messages in a batch.
    pub(crate) runs: BTreeMap<(Name, u64, usize), Vec<Run>>,
    /// By memory of the function in MB, and messages in a batch.
    pub(crate) limited: BTreeMap<(Name, u64, usize), Vec<Run>>,
    /// By latency.
    pub(crate) starts: BTreeMap<(Name, u64), Vec<Start>>,
    pub(crate) cut_offs: Vec<CutOff>,
    /// Per message, by messages in a batch.
    pub(crate) instructions: BTreeMap<(Name, usize), f64>,
    /// Everything that was left out, with the reason.
    pub(crate) missing: Vec<String>,
}

impl Results {
    pub(crate) fn new(rounds: usize, missing: Vec<String>) -> Self {
        Self {
            rounds,
            runs: BTreeMap::new(),
            limited: BTreeMap::new(),
            starts: BTreeMap::new(),
            cut_offs: Vec::new(),
            instructions: BTreeMap::new(),
            missing,
        }
    }

    /// The measurement, or a note of the failure.
    pub(crate) fn succeeded<T>(
        &mut self,
        measured: Result<T, Failed>,
        name: Name,
        messages: usize,
    ) -> Option<T> {
        measured
            .map_err(|failed| {
                let note = format!("{name}, {}: {failed}", batch_of(messages));
                if !self.missing.contains(&note) {
                    self.missing.push(note);
                }
            })
            .ok()
    }

    pub(crate) fn of(
        &self,
        name: Name,
        latency: u64,
        messages: usize,
        measure: Measure,
    ) -> Option<f64> {
        median(
            self.runs
                .get(&(name, latency, messages))?
                .iter()
                .map(measure),
        )
    }

    pub(crate) fn limited(
        &self,
        name: Name,
        memory_mb: u64,
        messages: usize,
        measure: Measure,
    ) -> Option<f64> {
        let runs = self.limited.get(&(name, memory_mb, messages))?;
        median(runs.iter().map(measure))
    }

    pub(crate) fn init_ms(&self, name: Name, latency: u64) -> Option<f64> {
        let starts = self.starts.get(&(name, latency))?.iter();
        median(starts.map(|start| milliseconds(start.init)))
    }

    /// The first message.
    pub(crate) fn first_ms(&self, name: Name, latency: u64) -> Option<f64> {
        let starts = self.starts.get(&(name, latency))?.iter();
        median(starts.map(|start| milliseconds(start.first)))
    }

    pub(crate) fn instructions(&self, name: Name, messages: usize) -> Option<f64> {
        self.instructions.get(&(name, messages)).copied()
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    Some(match values.len() % 2 {
        0 => f64::midpoint(*values.get(middle.checked_sub(1)?)?, values[middle]),
        _ => values[middle],
    })
}

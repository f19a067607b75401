//! The journal of a redrive: records which messages were sent, so that none is sent twice.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::output::Error;

/// A line of the journal. The first line names the queues.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Queues {
        from: String,
        to: String,
    },
    /// About to be sent.
    Send {
        message: String,
    },
    /// SQS confirmed the new message.
    Sent {
        message: String,
        new: String,
    },
    /// SQS rejected the new message, so nothing was sent.
    Refused {
        message: String,
    },
    /// SQS confirmed the deletion from the dead-letter queue.
    Deleted {
        message: String,
    },
}

/// The last step of a message that the journal contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is no response from SQS, so the message may have been sent.
    Send,
    Sent,
    Deleted,
}

/// The journal file. Only one process at a time has it open.
pub(crate) struct Journal {
    file: File,
    steps: HashMap<String, Step>,
}

impl Journal {
    /// Opens or creates the journal of a redrive between two queues.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or written, belongs to other queues, or is open elsewhere.
    pub(crate) fn open(path: &Path, from: &str, to: &str) -> Result<Self, Error> {
        let fault = |error: &dyn std::fmt::Display| {
            Error::usage(format!("journal {}: {error}", path.display()))
        };
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .write(true)
            .truncate(false)
            .open(path)
            .map_err(|error| fault(&error))?;
        file.try_lock()
            .map_err(|_| fault(&"another redrive has it open"))?;
        let mut text = String::new();
        file.read_to_string(&mut text)
            .map_err(|error| fault(&error))?;
        // A crash can leave half a line. Its step was not yet taken, or we treat it as not confirmed.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let (from, to) = (from.to_owned(), to.to_owned());
        let queues = Line::Queues { from, to };
        let mut journal = Self {
            file,
            steps: HashMap::new(),
        };
        for (index, line) in text[..whole].lines().enumerate() {
            let line: Line = serde_json::from_str(line)
                .map_err(|_| fault(&format!("line {} is no entry of a journal", index + 1)))?;
            match (index, line) {
                (0, first) if first != queues => {
                    return Err(fault(&"it belongs to a redrive between other queues"));
                }
                (_, line) => journal.apply(line),
            }
        }
        // Change the file only now that it is a journal.
        let is_journal = whole > 0 || json(&queues)?.starts_with(&text);
        if !is_journal {
            return Err(fault(&"line 1 is no entry of a journal"));
        }
        journal
            .file
            .set_len(whole as u64)
            .and_then(|()| journal.file.seek(SeekFrom::End(0)))
            .map_err(|error| fault(&error))?;
        if whole == 0 {
            journal.append(queues)?;
        }
        Ok(journal)
    }

    pub(crate) fn step(&self, message: &str) -> Option<Step> {
        self.steps.get(message).copied()
    }

    pub(crate) fn send(&mut self, message: &str) -> Result<(), Error> {
        let message = message.to_owned();
        self.append(Line::Send { message })
    }

    pub(crate) fn sent(&mut self, message: &str, new: &str) -> Result<(), Error> {
        let (message, new) = (message.to_owned(), new.to_owned());
        self.append(Line::Sent { message, new })
    }

    pub(crate) fn refused(&mut self, message: &str) -> Result<(), Error> {
        let message = message.to_owned();
        self.append(Line::Refused { message })
    }

    pub(crate) fn deleted(&mut self, message: &str) -> Result<(), Error> {
        let message = message.to_owned();
        self.append(Line::Deleted { message })
    }

    fn append(&mut self, line: Line) -> Result<(), Error> {
        let mut text = json(&line)?;
        text.push('\n');
        self.file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data())
            .map_err(|error| not_written(&error))?;
        self.apply(line);
        Ok(())
    }

    fn apply(&mut self, line: Line) {
        match line {
            Line::Queues { .. } => {}
            Line::Send { message } => drop(self.steps.insert(message, Step::Send)),
            Line::Sent { message, .. } => drop(self.steps.insert(message, Step::Sent)),
            Line::Refused { message } => drop(self.steps.remove(&message)),
            Line::Deleted { message } => drop(self.steps.insert(message, Step::Deleted)),
        }
    }
}

fn json(line: &Line) -> Result<String, Error> {
    serde_json::to_string(line).map_err(|error| not_written(&error))
}

fn not_written(error: &dyn std::fmt::Display) -> Error {
    Error::negative(format!("could not write the journal: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let _absent = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn journal_remembers_steps_and_drops_half_a_line() {
        let path = path("journal");
        let mut journal = Journal::open(&path, "dead", "orders").unwrap();
        for message in ["a", "b", "c", "d"] {
            journal.send(message).unwrap();
        }
        journal.sent("b", "new").unwrap();
        journal.sent("c", "new").unwrap();
        journal.deleted("c").unwrap();
        journal.refused("d").unwrap();
        drop(journal);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"sent\":{\"mess").unwrap();
        drop(file);

        let mut journal = Journal::open(&path, "dead", "orders").unwrap();
        let steps = ["a", "b", "c", "d"].map(|message| journal.step(message));
        let wanted = [
            Some(Step::Send),
            Some(Step::Sent),
            Some(Step::Deleted),
            None,
        ];
        assert_eq!(steps, wanted);
        journal.sent("a", "new").unwrap();
        drop(journal);
        let journal = Journal::open(&path, "dead", "orders").unwrap();
        assert_eq!(journal.step("a"), Some(Step::Sent));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn other_file_is_refused_and_left_as_it_is() {
        let path = path("journal-foreign");
        for text in ["{\"orders\":[1,2]}", "one\ntwo", "\n{\"queues\":"] {
            std::fs::write(&path, text).unwrap();
            let error = Journal::open(&path, "dead", "orders").err().unwrap();
            assert!(error.to_string().contains("line 1 is no entry"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        // Half of the first line, after a crash.
        std::fs::write(&path, "{\"queues\":{\"from\":\"de").unwrap();
        drop(Journal::open(&path, "dead", "orders").unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\"queues\":{\"from\":\"dead\",\"to\":\"orders\"}}\n");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn journal_of_other_queues_or_open_elsewhere_is_refused() {
        let path = path("journal-refused");
        let open = Journal::open(&path, "dead", "orders").unwrap();
        let error = Journal::open(&path, "dead", "orders").err().unwrap();
        assert!(error.to_string().contains("has it open"), "{error}");
        drop(open);
        let error = Journal::open(&path, "dead", "others").err().unwrap();
        assert!(error.to_string().contains("other queues"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }
}

//! [`Action`]: the next thing that may happen.

use std::fmt;

use crate::processes::state::Receive;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A new process, or an idle one, receives a batch.
    Receive {
        process: Option<usize>,
        messages: Vec<usize>,
        ahead: u64,
    },
    /// A message asks the circuit of its process.
    Ask(Receive),
    /// A request arrives, and its worker gets the answer, if it still waits for it. With `stays`, a copy of the
    /// request arrives later.
    Arrives {
        number: usize,
        of: Receive,
        what: &'static str,
        stays: bool,
    },
    /// A worker waits in vain. It sends the request again, or gives up.
    NoAnswer { of: Receive, lot: Lot, again: bool },
    /// A handler is to start.
    Starts(Receive),
    /// A handler ends.
    Ends(Receive, HandlerAnswer),
    /// A handler, or its look-up, ends its process. The requests on the way are lost, but one may be late.
    Kills(Receive, Option<Receive>),
    /// A handler sends its effect to the called system. False: it never happens.
    Sends(Receive, bool),
    /// An effect on its way happens: that of the operation with this place.
    Happens(usize, usize),
    /// The look-up answers.
    LooksUp(Receive, LookUp),
    /// A process answers SQS for its batch.
    Answers(usize),
    /// A process is ended from outside. The requests on the way are lost, but one may be late.
    Crashes(usize, Option<Receive>),
    /// Time passes.
    Until(u64),
    /// DynamoDB deletes an expired record.
    Deletes(usize),
}

/// The fate of a request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lot {
    Lost,
    /// It arrives at any time after that, if at all.
    Late,
    /// It arrives, and the answer is lost.
    Arrived,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookUp {
    Found,
    NotFound,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerAnswer {
    Success,
    Permanent,
    Retryable,
    NoEffect,
    CutOff,
}

/// For counterexamples.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Receive {
                messages, ahead, ..
            } => {
                let names: Vec<_> = messages
                    .iter()
                    .map(|message| format!("m{message}"))
                    .collect();
                write!(f, "a process receives {}", names.join(", "))?;
                if *ahead > 0 {
                    write!(f, ", its clock {ahead} s ahead")
                } else {
                    Ok(())
                }
            }
            Self::Ask(of) => write!(f, "{of} asks the circuit"),
            Self::Arrives {
                of,
                stays: false,
                what,
                ..
            } => write!(f, "{of}: {what} arrives"),
            Self::Arrives { of, what, .. } => {
                write!(f, "{of}: {what} arrives, and a copy will arrive later")
            }
            Self::NoAnswer { of, lot, again } => {
                let how = match lot {
                    Lot::Lost => "the request is lost",
                    Lot::Late => "the request is late",
                    Lot::Arrived => "the request arrives, the answer is lost",
                };
                let then = if *again { "sends it again" } else { "gives up" };
                write!(f, "{of}: {how}, and the worker {then}")
            }
            Self::Starts(of) => write!(f, "{of}: the handler is to start"),
            Self::Ends(of, answer) => write!(f, "{of}: the handler ends: {answer:?}"),
            Self::Kills(of, late) => {
                write!(f, "{of} ends its process{}", late_request(late))
            }
            Self::Sends(of, true) => write!(f, "{of}: the handler sends its effect"),
            Self::Sends(of, false) => {
                write!(f, "{of}: the handler sends its effect, which never happens")
            }
            Self::Happens(..) => f.write_str("an effect happens"),
            Self::LooksUp(of, answer) => write!(f, "{of}: the look-up answers {answer:?}"),
            Self::Answers(_) => f.write_str("a process answers SQS"),
            Self::Crashes(_, late) => {
                write!(f, "a process is ended from outside{}", late_request(late))
            }
            Self::Until(at) => write!(f, "time passes until {at} s"),
            Self::Deletes(_) => f.write_str("DynamoDB deletes an expired record"),
        }
    }
}

fn late_request(late: &Option<Receive>) -> String {
    late.map_or(String::new(), |of| format!("; {of}: the request is late"))
}

//! Answers to the statements of a group.

use std::sync::Arc;

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata as _, SdkError},
    operation::batch_execute_statement::{BatchExecuteStatementError, BatchExecuteStatementOutput},
    types::{
        BatchStatementError, BatchStatementErrorCodeEnum as Code, BatchStatementResponse,
        ConsumedCapacity,
    },
};

use crate::{
    explain::{explain, kind},
    item::Item,
};
use sqs_once_core::protocol::Unavailability;

/// The answer to a statement.
pub(super) enum Answer {
    Applied,
    /// The condition check failed because of this item.
    Refused(Item),
    /// The condition check failed, and no item came with the answer: there is none, or an emulator left it out.
    RefusedWithoutItem,
    /// Not applied. The ordinary request may be.
    NotApplied,
    /// The statement failed for this reason. If it got no answer, it may have been applied.
    Failed(Unavailability, Arc<str>),
}

/// The reason why a process sends no more groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EndOfGroups {
    /// The role may not send statements.
    Denied,
    /// The answer has a form that DynamoDB is not known to send.
    UnknownAnswer(Arc<str>),
}

/// Answers to the statements of a group, in their order.
pub(super) struct Answers {
    pub(super) answers: Vec<Answer>,
    /// Set if this group is the last.
    pub(super) end: Option<EndOfGroups>,
    /// Each statement's share of the group's write units.
    pub(super) units: f64,
}

impl Answers {
    /// Reads the responses to this number of statements. All are unknown if there are fewer or more
    /// responses than statements.
    pub(super) fn of(output: BatchExecuteStatementOutput, statements: usize) -> Self {
        // DynamoDB reports one sum for each table, refused statements included.
        let units: f64 = output
            .consumed_capacity()
            .iter()
            .filter_map(ConsumedCapacity::capacity_units)
            .sum();
        let responses = output.responses.unwrap_or_default();
        if responses.len() != statements {
            let why = format!("{} responses to {statements} statements", responses.len());
            return Self {
                end: Some(EndOfGroups::UnknownAnswer(why.into())),
                ..Self::unanswered("the answer could not be read", statements)
            };
        }
        let mut end = None;
        let answers = responses.into_iter().map(|response| {
            let (answer, ends) = Answer::of(response);
            end = end.take().or(ends);
            answer
        });
        Self {
            answers: answers.collect(),
            end,
            units: units / statements as f64,
        }
    }

    /// Interprets the failure of a whole group.
    pub(super) fn of_failure(
        error: &SdkError<BatchExecuteStatementError>,
        statements: usize,
    ) -> Self {
        let why: Arc<str> = explain(error, "dynamodb:PartiQLInsert and PartiQLUpdate").into();
        if error.code() == Some("AccessDeniedException") {
            return Self {
                end: Some(EndOfGroups::Denied),
                ..Self::all(statements, || Answer::NotApplied)
            };
        }
        Self::all(statements, || match kind(error) {
            Unavailability::Denied | Unavailability::Invalid => Answer::NotApplied,
            kind => Answer::Failed(kind, Arc::clone(&why)),
        })
    }

    /// The answers of a group that got none.
    pub(super) fn unanswered(why: &str, statements: usize) -> Self {
        let why: Arc<str> = why.into();
        Self::all(statements, || {
            Answer::Failed(Unavailability::Unanswered, Arc::clone(&why))
        })
    }

    fn all(statements: usize, answer: impl Fn() -> Answer) -> Self {
        Self {
            answers: (0..statements).map(|_| answer()).collect(),
            end: None,
            units: 0.0,
        }
    }
}

impl Answer {
    /// Reads the response to one statement, and whether it shows that this group should be the last.
    fn of(response: BatchStatementResponse) -> (Self, Option<EndOfGroups>) {
        let Some(BatchStatementError { code, item, .. }) = response.error else {
            return (Self::Applied, None);
        };
        let why: Arc<str> = code.as_ref().map_or("no code", Code::as_str).into();
        let answer = match (code, item) {
            (Some(Code::AccessDenied), _) => {
                return (Self::NotApplied, Some(EndOfGroups::Denied));
            }
            (Some(Code::ConditionalCheckFailed), Some(item)) if !item.is_empty() => {
                Self::Refused(item)
            }
            (Some(Code::ConditionalCheckFailed), _) => Self::RefusedWithoutItem,
            (
                Some(
                    Code::ProvisionedThroughputExceeded
                    | Code::RequestLimitExceeded
                    | Code::ThrottlingError
                    | Code::TransactionConflict,
                ),
                _,
            ) => Self::Failed(Unavailability::Contended, why),
            (
                Some(
                    // An `INSERT` found an item.
                    Code::DuplicateItem
                    | Code::ItemCollectionSizeLimitExceeded
                    | Code::ResourceNotFound
                    | Code::ValidationError,
                ),
                _,
            ) => Self::NotApplied,
            (Some(Code::InternalServerError), _) => Self::Failed(Unavailability::Unanswered, why),
            // No code, and codes that are unknown today.
            _ => {
                let end = EndOfGroups::UnknownAnswer(format!("the error code {why}").into());
                return (Self::Failed(Unavailability::Unanswered, why), Some(end));
            }
        };
        (answer, None)
    }
}

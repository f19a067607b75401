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
    /// An `INSERT` found an item.
    Duplicate,
    /// This role may not send the statement.
    Denied,
    /// DynamoDB rejected the statement, and may accept the ordinary request.
    NotApplied,
    /// The statement failed for this reason. If it got no answer, it may have been applied.
    Failed(Unavailability, Arc<str>),
}

/// Answers to the statements of a group, in their order.
pub(super) struct Answers {
    pub(super) answers: Vec<Answer>,
    /// Each statement's share of the group's write units.
    pub(super) units: f64,
}

impl Answers {
    /// Reads the responses to this number of statements. All are unknown if there are fewer or more
    /// responses than statements.
    pub(super) fn of(output: BatchExecuteStatementOutput, statements: usize) -> Self {
        // DynamoDB reports one sum for each table, refused statements included.
        let units = output.consumed_capacity().iter();
        let units: f64 = units.filter_map(ConsumedCapacity::capacity_units).sum();
        let responses = output.responses.unwrap_or_default();
        if responses.len() != statements {
            tracing::warn!(
                statements,
                responses = responses.len(),
                "a group of writes got another number of responses than statements: each write is repeated alone"
            );
            return Self::unanswered("the answer could not be read", statements);
        }
        Self {
            answers: responses.into_iter().map(Answer::of).collect(),
            units: units / statements as f64,
        }
    }

    /// Interprets the failure of a whole group.
    pub(super) fn of_failure(
        error: &SdkError<BatchExecuteStatementError>,
        statements: usize,
    ) -> Self {
        let why: Arc<str> = explain(error, "dynamodb:PartiQLInsert and PartiQLUpdate").into();
        Self::all(statements, || match kind(error) {
            _ if error.code() == Some("AccessDeniedException") => Answer::Denied,
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
            units: 0.0,
        }
    }
}

impl Answer {
    fn of(response: BatchStatementResponse) -> Self {
        let Some(BatchStatementError { code, item, .. }) = response.error else {
            return Self::Applied;
        };
        let why = || code.as_ref().map_or("no code", Code::as_str).into();
        match (&code, item) {
            (Some(Code::DuplicateItem), _) => Self::Duplicate,
            (Some(Code::AccessDenied), _) => Self::Denied,
            (Some(Code::ConditionalCheckFailed), Some(item)) if !item.is_empty() => {
                Self::Refused(item)
            }
            (
                Some(
                    Code::ProvisionedThroughputExceeded
                    | Code::RequestLimitExceeded
                    | Code::ThrottlingError
                    | Code::TransactionConflict,
                ),
                _,
            ) => Self::Failed(Unavailability::Contended, why()),
            (
                Some(
                    Code::ConditionalCheckFailed
                    | Code::ItemCollectionSizeLimitExceeded
                    | Code::ResourceNotFound
                    | Code::ValidationError,
                ),
                _,
            ) => Self::NotApplied,
            // InternalServerError, no code, and codes that are unknown today.
            _ => Self::Failed(Unavailability::Unanswered, why()),
        }
    }
}

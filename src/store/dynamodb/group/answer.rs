//! Answers to the statements of a group.

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata as _, SdkError},
    operation::batch_execute_statement::{BatchExecuteStatementError, BatchExecuteStatementOutput},
    types::{
        BatchStatementError, BatchStatementErrorCodeEnum as Code, BatchStatementResponse,
        ConsumedCapacity,
    },
};

use crate::{
    dynamodb::{explain::kind, item::Item},
    protocol::Unavailability,
};

/// The answer to a statement.
pub(super) enum Answer {
    Applied,
    /// The condition check failed because of this item.
    Refused(Item),
    /// An `INSERT` found an item.
    Duplicate,
    /// This role may not send the statement.
    Denied,
    NotApplied,
    /// The statement may have been applied.
    Unknown,
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
            return Self::all(statements, || Answer::Unknown);
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
        Self::all(statements, || match kind(error) {
            _ if error.code() == Some("AccessDeniedException") => Answer::Denied,
            Unavailability::Contended | Unavailability::Rejected => Answer::NotApplied,
            Unavailability::Unanswered => Answer::Unknown,
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
        match (code, item) {
            (Some(Code::DuplicateItem), _) => Self::Duplicate,
            (Some(Code::AccessDenied), _) => Self::Denied,
            (Some(Code::ConditionalCheckFailed), Some(item)) if !item.is_empty() => {
                Self::Refused(item)
            }
            (
                Some(
                    Code::ConditionalCheckFailed
                    | Code::ItemCollectionSizeLimitExceeded
                    | Code::ProvisionedThroughputExceeded
                    | Code::RequestLimitExceeded
                    | Code::ResourceNotFound
                    | Code::ThrottlingError
                    | Code::TransactionConflict
                    | Code::ValidationError,
                ),
                _,
            ) => Self::NotApplied,
            // InternalServerError, no code, and codes that are unknown today.
            _ => Self::Unknown,
        }
    }
}

//! [`BatchResponse`]: the responses to the statements of a batch.

use std::sync::Arc;

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata as _, SdkError},
    operation::batch_execute_statement::{BatchExecuteStatementError, BatchExecuteStatementOutput},
    types::{BatchStatementError, BatchStatementErrorCodeEnum as Code, BatchStatementResponse},
};

use crate::{
    dynamo::{
        explain::{explain, kind},
        item::Item,
    },
    protocol::RequestErrorKind,
};

/// The response to a statement.
pub(super) enum StatementResponse {
    Applied,
    /// The condition check failed because of this item.
    ConditionFailed(Item),
    /// The condition check failed, and the response has no item: there is none, or an emulator left it out.
    ConditionFailedWithoutItem,
    /// Not applied, but the ordinary request may succeed.
    NotApplied,
    /// The statement failed for this reason. If it got no response, it may have been applied.
    Failed(RequestErrorKind, Arc<str>),
}

/// Why a process stops batching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BatchingEnd {
    /// The role may not send statements.
    Denied,
    /// The response has a form that DynamoDB is not known to send.
    UnknownAnswer(Arc<str>),
}

/// The responses to the statements of a batch, in their order.
pub(super) struct BatchResponse {
    pub(super) answers: Vec<StatementResponse>,
    /// Set if this batch must be the last.
    pub(super) end: Option<BatchingEnd>,
}

impl BatchResponse {
    /// Reads the responses to this number of statements. If there are fewer or more responses than
    /// statements, all are unknown.
    pub(super) fn of(output: BatchExecuteStatementOutput, statements: usize) -> Self {
        let responses = output.responses.unwrap_or_default();
        if responses.len() != statements {
            let why = format!("{} responses to {statements} statements", responses.len());
            return Self {
                end: Some(BatchingEnd::UnknownAnswer(why.into())),
                ..Self::unanswered("the answer could not be read", statements)
            };
        }
        let mut end = None;
        let answers = responses.into_iter().map(|response| {
            let (answer, ends) = StatementResponse::of(response);
            end = end.take().or(ends);
            answer
        });
        Self {
            answers: answers.collect(),
            end,
        }
    }

    /// Interprets the failure of a whole batch.
    pub(super) fn of_failure(
        error: &SdkError<BatchExecuteStatementError>,
        statements: usize,
    ) -> Self {
        let why: Arc<str> = explain(error, "dynamodb:PartiQLInsert and PartiQLUpdate").into();
        if error.code() == Some("AccessDeniedException") {
            return Self {
                end: Some(BatchingEnd::Denied),
                ..Self::all(statements, || StatementResponse::NotApplied)
            };
        }
        Self::all(statements, || match kind(error) {
            RequestErrorKind::Denied | RequestErrorKind::Invalid => StatementResponse::NotApplied,
            kind => StatementResponse::Failed(kind, Arc::clone(&why)),
        })
    }

    /// Returns the results of a batch that got no response.
    pub(super) fn unanswered(why: &str, statements: usize) -> Self {
        let why: Arc<str> = why.into();
        Self::all(statements, || {
            StatementResponse::Failed(RequestErrorKind::Unanswered, Arc::clone(&why))
        })
    }

    fn all(statements: usize, answer: impl Fn() -> StatementResponse) -> Self {
        Self {
            answers: (0..statements).map(|_| answer()).collect(),
            end: None,
        }
    }
}

impl StatementResponse {
    /// Reads the response to one statement. Also returns whether it shows that this batch must be the last.
    fn of(response: BatchStatementResponse) -> (Self, Option<BatchingEnd>) {
        let Some(BatchStatementError { code, item, .. }) = response.error else {
            return (Self::Applied, None);
        };
        let why: Arc<str> = code.as_ref().map_or("no code", Code::as_str).into();
        let answer = match (code, item) {
            (Some(Code::AccessDenied), _) => {
                return (Self::NotApplied, Some(BatchingEnd::Denied));
            }
            (Some(Code::ConditionalCheckFailed), Some(item)) if !item.is_empty() => {
                Self::ConditionFailed(item)
            }
            (Some(Code::ConditionalCheckFailed), _) => Self::ConditionFailedWithoutItem,
            (
                Some(
                    Code::ProvisionedThroughputExceeded
                    | Code::RequestLimitExceeded
                    | Code::ThrottlingError
                    | Code::TransactionConflict,
                ),
                _,
            ) => Self::Failed(RequestErrorKind::Contended, why),
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
            (Some(Code::InternalServerError), _) => Self::Failed(RequestErrorKind::Unanswered, why),
            // No code, or one that is unknown today.
            _ => {
                let end = BatchingEnd::UnknownAnswer(format!("the error code {why}").into());
                return (Self::Failed(RequestErrorKind::Unanswered, why), Some(end));
            }
        };
        (answer, None)
    }
}

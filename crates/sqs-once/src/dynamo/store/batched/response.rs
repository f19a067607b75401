//! [`BatchResponse`]: the responses to the statements of a batch.

use std::sync::Arc;

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata as _, SdkError},
    operation::batch_execute_statement::{BatchExecuteStatementError, BatchExecuteStatementOutput},
    types::{BatchStatementError, BatchStatementErrorCodeEnum as Code, BatchStatementResponse},
};

use super::state::BatchingEnd;
use crate::{
    aws::explain::refused_signature,
    dynamo::{
        explain::{explain, kind},
        item::Item,
        store::Slot,
    },
    flawed::flawed,
    protocol::RequestErrorKind,
};

pub(super) enum BatchResult {
    Applied,
    /// The condition check failed on this item.
    ConditionFailed(Item),
    /// An `INSERT` found an item. A read must follow, because the response doesn't contain the item.
    Duplicate,
    /// The statement was not sent or not applied. The caller sends the ordinary request, in this slot if there is one. A
    /// failed condition check without an item is treated in the same way: there is no record, or an emulator left it out.
    Ordinary(Option<Slot>),
    /// DynamoDB refused the statement with this error. The caller sends the ordinary request. If DynamoDB accepts that one, the
    /// caller reports the refusal ([`Batcher::refused`](super::queue::Batcher::refused)).
    Refused(Arc<str>),
    /// The call failed for this reason. Without a response, it may have been applied.
    Failed(RequestErrorKind, Arc<str>),
}

/// The responses to the statements of a batch, in the same order.
pub(super) struct BatchResponse {
    pub(super) answers: Vec<BatchResult>,
    /// Set if batching must end.
    pub(super) end: Option<BatchingEnd>,
}

impl BatchResponse {
    /// Reads the responses to this number of statements. If the numbers differ, none of the responses can be
    /// trusted.
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
            let (answer, ends) = BatchResult::of(response);
            end = end.take().or(ends);
            answer
        });
        let mut answers: Vec<_> = answers.collect();
        if flawed("the answers behind the tenth are swapped") {
            let behind = answers.len().min(10);
            answers[behind..].reverse();
        }
        Self { answers, end }
    }

    /// Interprets an error that failed the whole batch.
    pub(super) fn of_failure(
        error: &SdkError<BatchExecuteStatementError>,
        statements: usize,
    ) -> Self {
        let why: Arc<str> = explain(error, "dynamodb:PartiQLInsert and PartiQLUpdate").into();
        if error.code() == Some("AccessDeniedException") {
            return Self {
                end: Some(BatchingEnd::Denied),
                ..Self::all(statements, || BatchResult::Ordinary(None))
            };
        }
        let kind = kind(error);
        let mut all = Self::all(statements, || match kind {
            RequestErrorKind::Denied | RequestErrorKind::Invalid => BatchResult::Ordinary(None),
            kind => BatchResult::Failed(kind, Arc::clone(&why)),
        });
        let is_refused = match kind {
            RequestErrorKind::Invalid => true,
            RequestErrorKind::Denied => !error.code().is_some_and(can_pass),
            RequestErrorKind::Contended | RequestErrorKind::Unanswered => false,
        };
        // Only one statement reports the refusal, so that the batch counts once.
        if is_refused && let Some(first) = all.answers.first_mut() {
            *first = BatchResult::Refused(why);
        }
        all
    }

    /// Returns the results of a batch that got no response.
    pub(super) fn unanswered(why: &str, statements: usize) -> Self {
        let why: Arc<str> = why.into();
        Self::all(statements, || {
            BatchResult::Failed(RequestErrorKind::Unanswered, Arc::clone(&why))
        })
    }

    fn all(statements: usize, answer: impl Fn() -> BatchResult) -> Self {
        Self {
            answers: (0..statements).map(|_| answer()).collect(),
            end: None,
        }
    }
}

/// Returns whether DynamoDB may later accept a batch that it denied with this code, once the credentials, the clock or the
/// table are as they should be.
fn can_pass(code: &str) -> bool {
    const CODES: [&str; 4] = [
        "AccessDeniedException",
        "ExpiredTokenException",
        "ResourceNotFoundException",
        "UnrecognizedClientException",
    ];
    CODES.contains(&code) || refused_signature(code).is_some()
}

impl BatchResult {
    pub(super) const fn is_unanswered(&self) -> bool {
        matches!(self, Self::Failed(RequestErrorKind::Unanswered, _))
    }

    /// Returns whether DynamoDB accepted the statement, even if its condition failed.
    pub(super) const fn is_accepted(&self) -> bool {
        matches!(
            self,
            Self::Applied | Self::ConditionFailed(_) | Self::Duplicate
        )
    }

    /// Reads the response to one statement. Also returns why batching must end, if it must.
    fn of(response: BatchStatementResponse) -> (Self, Option<BatchingEnd>) {
        let Some(BatchStatementError { code, item, .. }) = response.error else {
            return (Self::Applied, None);
        };
        let why: Arc<str> = code.as_ref().map_or("no code", Code::as_str).into();
        let answer = match (code, item) {
            (Some(Code::AccessDenied), _) => {
                return (Self::Ordinary(None), Some(BatchingEnd::Denied));
            }
            (Some(Code::ConditionalCheckFailed), Some(item)) if !item.is_empty() => {
                Self::ConditionFailed(item)
            }
            (Some(Code::DuplicateItem), _) => Self::Duplicate,
            (Some(Code::ThrottlingError), _) if flawed("a throttled statement was applied") => {
                Self::Applied
            }
            (
                Some(
                    Code::ProvisionedThroughputExceeded
                    | Code::RequestLimitExceeded
                    | Code::ThrottlingError
                    | Code::TransactionConflict,
                ),
                _,
            ) => Self::Failed(RequestErrorKind::Contended, why),
            (Some(Code::ConditionalCheckFailed | Code::ResourceNotFound), _) => {
                Self::Ordinary(None)
            }
            (Some(Code::ItemCollectionSizeLimitExceeded | Code::ValidationError), _) => {
                Self::Refused(why)
            }
            (Some(Code::InternalServerError), _) => Self::Failed(RequestErrorKind::Unanswered, why),
            // There is no code, or one that we don't know.
            _ => {
                let end = BatchingEnd::UnknownAnswer(format!("the error code {why}").into());
                return (Self::Failed(RequestErrorKind::Unanswered, why), Some(end));
            }
        };
        (answer, None)
    }
}

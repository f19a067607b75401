//! Explains requests that got no response, for the crates that call AWS.

use std::{error::Error, iter::successors};

/// No response came in time on an open connection.
#[derive(Debug, thiserror::Error)]
#[error("no answer in time")]
pub(crate) struct NoResponse;

/// Where a request ended if the service did not respond, as the AWS SDK's `SdkError` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The time was up.
    Timeout,
    /// The connector failed.
    NotSent,
    /// The request could not be built.
    NotBuilt,
    /// The response could not be read.
    Unreadable,
}

impl Unanswered {
    /// Explains the error and says what to do. `is_credentials` recognizes the SDK's error for missing
    /// credentials, which this crate does not know. The text leaves out the request.
    #[must_use]
    pub(crate) fn explain(
        self,
        error: &(dyn Error + 'static),
        is_credentials: impl Fn(&(dyn Error + 'static)) -> bool,
    ) -> String {
        let advice = match self {
            Self::Timeout => return NoResponse.to_string(),
            Self::NotSent if sources(error).any(|e| e.is::<NoResponse>()) => {
                return NoResponse.to_string();
            }
            Self::NotSent if sources(error).any(is_credentials) => {
                "no AWS credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; a deployed function needs a role"
            }
            Self::NotSent => "could not connect; check the endpoint, the region and the network",
            Self::NotBuilt => "could not build the request",
            Self::Unreadable => return "the answer could not be read".to_owned(),
        };
        // A connector's errors contain addresses and causes, but no bodies.
        let cause = error.source().map_or_else(String::new, causes);
        format!("{advice} ({cause})")
    }
}

/// Returns an error and its causes in one line.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<_> = sources(error).map(ToString::to_string).collect();
    let joined = texts.join(": ");
    let words: Vec<_> = joined.split_whitespace().collect();
    words.join(" ")
}

/// Returns an error, its source, the source of that, and so on.
fn sources<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| error.source())
}

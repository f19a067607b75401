//! [`Field`]: the attributes of a record.

use std::str::FromStr;

use crate::InvalidValue;

/// Declares [`Field`] with its native names.
macro_rules! fields {
    ($($(#[$doc:meta])* $field:ident $name:literal)+) => {
        /// An attribute of a record. Its native name is the name in
        /// [`Layout::native`](super::Layout::native).
        ///
        /// ```
        /// use sqs_once::store::Field;
        ///
        /// assert_eq!("lease_until".parse(), Ok(Field::LeaseUntil));
        /// assert_eq!(Field::LeaseUntil.native_name(), "lease_until");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Field { $($(#[$doc])* $field,)+ }

        impl FromStr for Field {
            type Err = InvalidValue;

            fn from_str(name: &str) -> Result<Self, InvalidValue> {
                match name {
                    $($name => Ok(Self::$field),)+
                    _ => Err(InvalidValue::new(format!("a record has no attribute `{name}`"))),
                }
            }
        }

        impl Field {
            pub(super) const ALL: [Self; [$($name),+].len()] = [$(Self::$field),+];

            /// Returns the attribute name in [`Layout::native`](super::Layout::native).
            #[must_use]
            pub const fn native_name(self) -> &'static str {
                match self { $(Self::$field => $name,)+ }
            }
        }
    };
}

fields! {
    /// Partition key: the [`Key`](crate::protocol::Key), or a fixed text if there is a sort key.
    Id "id"
    /// Status word.
    Status "status"
    /// Token of the current or last claim.
    Owner "owner"
    /// End of the lease, in epoch milliseconds. Afterwards another claim can take over.
    LeaseUntil "lease_until"
    /// End of the retention, in epoch seconds. The table's TTL attribute.
    ExpiresAt "expires_at"
    /// Fingerprint of the payload, and its scheme: which part was hashed, and how.
    Fingerprint "fingerprint"
    /// Message of the current or last claim.
    MessageId "message_id"
    /// Number of claims since the record was created. Absent is 1.
    Attempts "attempts"
    /// Claim time of the earliest open attempt, in epoch milliseconds.
    FirstClaimedAt "first_claimed_at"
    /// End of the last attempt: `retryable`, `panic`, `deadline` or `no_effect`.
    LastEnd "last_end"
    /// Attempts in a row that ran alone and have no recorded end.
    ExclusiveAttempts "exclusive_attempts"
    /// The handler's output as JSON.
    Result "result"
    /// Object in S3 that holds the output, as JSON.
    ResultInS3 "result_in_s3"
    /// Why the output was not stored.
    ResultOmitted "result_omitted"
    /// Grows with each content that a worker writes.
    Version "version"
    /// The permanent failures, one for each payload, as JSON.
    Failures "failures"
    /// 1 if an open attempt may have had a payload other than the record's.
    OpenOther "open_other"
    /// How often the called system declined.
    Generation "generation"
    /// Name of the queue of the current or last claim.
    Source "source"
    /// Time of the record's last change, in epoch milliseconds.
    UpdatedAt "updated_at"
}

impl AsRef<str> for Field {
    fn as_ref(&self) -> &str {
        self.native_name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_is_found_by_native_name() {
        for field in Field::ALL {
            assert_eq!(field.native_name().parse(), Ok(field));
        }
        assert!("pk".parse::<Field>().is_err());
    }
}

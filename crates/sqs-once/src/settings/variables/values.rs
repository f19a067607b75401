//! [`Values`]: a consumer's settings, read from its variables.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

#[allow(clippy::wildcard_imports, reason = "a constant for each row")]
use super::table::*;
use super::{SettingsError, Variables};
use crate::{
    protocol::isolation::CrashWaits,
    settings::parse::{
        backoff, bucket, buckets, bytes, concurrency, duration, isolation, lifetime, of_s3,
        on_or_off, positive, text,
    },
    sqs::Options,
};

/// Defines [`Values`].
macro_rules! values {
    ($(
        $name:ident $([options.$option:ident = $into:expr])? $(($field:ident: $type:ty = $parse:expr))?: $reader:ident, $default:literal $(, $note:literal)?;
        $meaning:literal
    )+) => {
        /// A consumer's settings: a field for each row that has one, and the options that the others set.
        #[derive(Debug)]
        #[cfg_attr(not(feature = "s3"), allow(dead_code, reason = "nothing reads S3"))]
        pub(crate) struct Values {
            pub(crate) options: Options,
            $($(pub(crate) $field: $type,)?)+
        }

        impl Values {
            /// Reads every setting before it returns the first error. The other errors stay in the list.
            pub(crate) fn read(variables: &mut Variables) -> Result<Self, SettingsError> {
                $(
                    $(let $option = variables.setting(&$name, $into);)?
                    $(let $field: Result<$type, _> = variables.setting(&$name, $parse);)?
                )+
                let options = Options { $($($option: $option?,)?)+ ..Options::default() };
                Ok(Self { options, $($($field: $field?,)?)+ })
            }
        }
    };
}

rows!(values);

//! [`Callback`]: a function of the application.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

/// A function of the application. Clones share the function, and compare as equal.
pub struct Callback<F: ?Sized>(pub(super) Arc<F>);

impl<F: ?Sized> Callback<F> {
    /// Calls the function. Returns `None` if it panics. The panic hook logs the panic.
    pub(super) fn call<T>(&self, call: impl FnOnce(&F) -> T) -> Option<T> {
        catch_unwind(AssertUnwindSafe(|| call(&self.0))).ok()
    }
}

impl<F: ?Sized> Clone for Callback<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: ?Sized> fmt::Debug for Callback<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Callback")
    }
}

impl<F: ?Sized> PartialEq for Callback<F> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<F: ?Sized> Eq for Callback<F> {}

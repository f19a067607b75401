//! A store that loses requests and responses on purpose.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;

use sqs_once::{
    protocol::{Key, Record, RequestErrorKind, Swap},
    store::{MemoryStore, RequestContext, Store, StoreError, Swapped},
};

/// Fate of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// The request never arrives; the caller gets an error.
    RequestLost,
    /// The request is applied; the caller gets an error.
    AnswerLost,
    /// The request is applied, its response is lost, and the SDK sends it again: the caller gets
    /// the second response.
    SentTwice,
    /// The request is not applied: throttled, or in conflict with a transaction.
    Contended,
    /// The request is not applied: as without permission.
    Denied,
    /// The request is not applied, and never will be.
    Invalid,
    /// The request is not sent: the record would be too large.
    TooLarge,
    /// The response has an invalid record.
    Unreadable,
    /// The response arrives after this time.
    Late(Duration),
    /// The request never arrives, and no response comes.
    Silence,
}

/// Requests of this name meet this fate until then.
type FateUntil = (&'static str, Fate, Instant);

/// A [`MemoryStore`] behind a bad line. Requests meet their fates in turn; later requests are
/// answered.
#[derive(Clone, Debug, Default)]
pub struct Lossy {
    pub store: MemoryStore,
    until: Arc<Mutex<Option<FateUntil>>>,
    /// Requests of this name always meet this fate.
    always: Arc<Mutex<Option<(&'static str, Fate)>>>,
    fates: Arc<Mutex<VecDeque<Fate>>>,
    sent: Arc<Mutex<Vec<&'static str>>>,
    claims: Arc<Mutex<Vec<Swap>>>,
}

impl Lossy {
    pub fn fates(fates: impl IntoIterator<Item = Fate>) -> Self {
        Self {
            fates: Arc::new(Mutex::new(fates.into_iter().collect())),
            ..Self::default()
        }
    }

    /// Ends all injected faults.
    pub fn answer(&self) {
        self.fates.lock().unwrap().clear();
    }

    /// Throttles these requests until then.
    pub fn throttle(&self, request: &'static str, until: Instant) {
        *self.until.lock().unwrap() = Some((request, Fate::Contended, until));
    }

    /// Denies these requests until then.
    pub fn deny(&self, request: &'static str, until: Instant) {
        *self.until.lock().unwrap() = Some((request, Fate::Denied, until));
    }

    /// Requests of this name meet this fate from now on.
    pub fn meets_always(&self, request: &'static str, fate: Fate) {
        *self.always.lock().unwrap() = Some((request, fate));
    }

    /// Requests so far, by name.
    pub fn sent(&self) -> Vec<&'static str> {
        self.sent.lock().unwrap().clone()
    }

    /// Claims so far.
    pub fn claims(&self) -> Vec<Swap> {
        self.claims.lock().unwrap().clone()
    }

    fn fate(&self, request: &'static str) -> Fate {
        self.sent.lock().unwrap().push(request);
        if let Some((name, fate, until)) = *self.until.lock().unwrap()
            && name == request
            && Instant::now() < until
        {
            return fate;
        }
        if let Some((always, fate)) = *self.always.lock().unwrap()
            && always == request
        {
            return fate;
        }
        self.fates
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or(Fate::Answered)
    }

    async fn meet<T, F>(
        &self,
        action: &'static str,
        key: &str,
        send: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let failed = |kind| StoreError::Unavailable {
            kind,
            action,
            key: key.into(),
            store: "a bad line".into(),
            reason: "lost".into(),
            source: Box::new(io::Error::from(io::ErrorKind::TimedOut)),
        };
        let lost = || failed(RequestErrorKind::Unanswered);
        match self.fate(action) {
            Fate::Answered => send().await,
            Fate::RequestLost => Err(lost()),
            Fate::AnswerLost => send().await.and(Err(lost())),
            Fate::Contended => Err(failed(RequestErrorKind::Contended)),
            Fate::Denied => Err(failed(RequestErrorKind::Denied)),
            Fate::Invalid => Err(failed(RequestErrorKind::Invalid)),
            Fate::TooLarge => Err(StoreError::ItemTooLarge {
                key: key.into(),
                bytes: 2,
                limit: 1,
            }),
            Fate::Unreadable => Err(StoreError::Unreadable {
                key: key.into(),
                store: "a bad line".into(),
                reason: "no status".into(),
            }),
            Fate::SentTwice => {
                send().await?;
                send().await
            }
            Fate::Late(delay) => {
                tokio::time::sleep(delay).await;
                send().await
            }
            Fate::Silence => std::future::pending().await,
        }
    }
}

impl Store for Lossy {
    type With = ();

    async fn get(&self, key: &Key, context: &RequestContext) -> Result<Option<Record>, StoreError> {
        self.meet("read", key.as_str(), || self.store.get(key, context))
            .await
    }

    async fn swap(
        &self,
        swap: &Swap,
        (): &(),
        context: &RequestContext,
    ) -> Result<Swapped, StoreError> {
        let action = swap.to.action();
        if action == "claim" {
            self.claims.lock().unwrap().push(swap.clone());
        }
        self.meet(action, swap.key.as_str(), || {
            self.store.swap(swap, &(), context)
        })
        .await
    }
}

//! The cases that every [`Store`] must pass.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test suite, which fails by panicking"
)]

use std::time::Duration;

use super::{RequestContext, Store, StoreError, Swapped, SwappedIn};
use crate::protocol::{
    AttemptEnd, Expect, Fingerprint, Key, MAX_RESULT_BYTES, Namespace, Owner, Record,
    RecordedFailure, ResultPointer, Stamp, State, StoredResult, Swap, Timestamp,
};

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_123);

fn key(name: &str) -> Key {
    Key::new(&Namespace::new("conformance").unwrap(), [name]).unwrap()
}

fn owner(name: &str) -> Owner {
    Owner::from_stored(name.to_owned())
}

/// Returns a record with few attributes.
fn sparse(version: u64) -> Record {
    Record {
        stamp: Stamp {
            owner: owner("o-1"),
            version,
        },
        state: State::Failed,
        expires_at: NOW.as_secs() + 3600,
        fingerprint: None,
        message_id: "m-1".into(),
        source: None,
        attempts: 1,
        first_claimed_at: None,
        last_end: None,
        exclusive_attempts: 0,
        failures: Vec::new(),
        generation: 0,
        open_other: false,
        updated_at: NOW,
    }
}

/// Returns a record with every attribute that a record in progress may have.
fn full(version: u64) -> Record {
    Record {
        state: State::InProgress {
            lease_until: NOW + Duration::from_secs(30),
        },
        fingerprint: Some(Fingerprint::of(b"amount: 1").with_scheme("body".to_owned())),
        source: Some("orders".into()),
        attempts: 7,
        first_claimed_at: Some(NOW),
        last_end: Some(AttemptEnd::Panic),
        exclusive_attempts: 2,
        failures: vec![RecordedFailure {
            at: NOW,
            error: "the card has expired".into(),
            fingerprint: Some(Fingerprint::of(b"2").with_scheme("body:/a:b".to_owned())),
            message_id: "m-0".into(),
        }],
        generation: 3,
        open_other: true,
        updated_at: NOW + Duration::from_secs(1),
        ..sparse(version)
    }
}

fn completed(version: u64, result: StoredResult) -> Record {
    Record {
        state: State::Completed { result },
        ..sparse(version)
    }
}

async fn swap<S: Store>(store: &S, key: &Key, expect: Expect, to: &Record) -> SwappedIn<S> {
    let swap = Swap {
        key: key.clone(),
        expect,
        to: to.clone(),
    };
    store
        .swap(&swap, &S::With::default(), &RequestContext::default())
        .await
        .unwrap()
}

async fn get<S: Store>(store: &S, key: &Key) -> Option<Record> {
    store.get(key, &RequestContext::default()).await.unwrap()
}

/// Runs every case. The store must not have records of these keys yet.
///
/// # Panics
///
/// Panics if the store breaks a promise.
pub async fn all<S: Store>(store: &S) {
    eprintln!("conformance: absent");
    let over_nothing = key("absent");
    assert_eq!(get(store, &over_nothing).await, None);
    for stale in [sparse(1), full(1)] {
        let refused = swap(store, &over_nothing, Expect::Unchanged(stale), &full(2)).await;
        assert_eq!(refused, Swapped::Found(None));
    }
    let first = full(1);
    let applied = swap(store, &over_nothing, Expect::Absent, &first).await;
    assert_eq!(applied, Swapped::Applied);
    assert_eq!(get(store, &over_nothing).await, Some(first.clone()));
    // A late copy, and another first claim.
    for late in [first.clone(), sparse(1)] {
        let refused = swap(store, &over_nothing, Expect::Absent, &late).await;
        assert_eq!(refused, Swapped::Found(Some(first.clone())));
    }

    eprintln!("conformance: unchanged");
    let key_of = key("unchanged");
    let text = StoredResult::Json("{\"id\": \"ch_1\"}".into());
    let pointer = ResultPointer::new("outputs", &key_of, &owner("o-1"), b"[1,2]");
    let in_s3 = StoredResult::InS3(Box::new(pointer));
    let omitted = StoredResult::Omitted("too large".into());
    let contents = [
        sparse(1),
        full(2),
        sparse(3),
        completed(4, text),
        completed(5, in_s3),
        completed(6, omitted),
        full(7),
        Record {
            stamp: Stamp {
                owner: owner("o-2"),
                version: 8,
            },
            ..full(8)
        },
        sparse(9),
    ];
    let mut expect = Expect::Absent;
    let mut earlier: Vec<Swap> = Vec::new();
    for content in &contents {
        let applied = swap(store, &key_of, expect.clone(), content).await;
        assert_eq!(applied, Swapped::Applied, "{content:?}");
        assert_eq!(get(store, &key_of).await.as_ref(), Some(content));
        earlier.push(Swap {
            key: key_of.clone(),
            expect,
            to: content.clone(),
        });
        // A late copy of any swap so far, including this one, finds the record.
        for late in &earlier {
            let found = store
                .swap(late, &S::With::default(), &RequestContext::default())
                .await
                .unwrap();
            assert_eq!(found, Swapped::Found(Some(content.clone())), "{late:?}");
        }
        expect = Expect::Unchanged(content.clone());
    }

    eprintln!("conformance: stamps");
    let key_of = key("stamps");
    let record = full(5);
    let _ = swap(store, &key_of, Expect::Absent, &record).await;
    for (name, version) in [("o-1", 4), ("o-1", 6), ("o-2", 5)] {
        let mut stale = record.clone();
        (stale.stamp.owner, stale.stamp.version) = (owner(name), version);
        let refused = swap(store, &key_of, Expect::Unchanged(stale), &sparse(9)).await;
        assert_eq!(
            refused,
            Swapped::Found(Some(record.clone())),
            "{name} {version}"
        );
    }

    eprintln!("conformance: release");
    // An operator's release keeps the stamp, so the worker's next write still succeeds, and ends the lease or sets it again.
    for (name, end) in [("release-1", sparse(6)), ("release-2", full(6))] {
        let key_of = key(name);
        let _ = swap(store, &key_of, Expect::Absent, &record).await;
        let released = Record {
            state: State::InProgress { lease_until: NOW },
            ..record.clone()
        };
        let applied = swap(store, &key_of, Expect::Unchanged(record.clone()), &released).await;
        assert_eq!(applied, Swapped::Applied);
        let applied = swap(store, &key_of, Expect::Unchanged(record.clone()), &end).await;
        assert_eq!(applied, Swapped::Applied);
        assert_eq!(get(store, &key_of).await, Some(end));
    }

    eprintln!("conformance: keys and sizes");
    let names = [
        "a",
        "A",
        "a b",
        "ä",
        "a\\b",
        "a'b",
        "a\"b",
        "a#b",
        &"x".repeat(3000),
    ];
    for (n, name) in names.iter().enumerate() {
        let record = sparse(n as u64 + 1);
        let applied = swap(store, &key(name), Expect::Absent, &record).await;
        assert_eq!(applied, Swapped::Applied, "{name}");
    }
    for (n, name) in names.iter().enumerate() {
        let read = get(store, &key(name)).await;
        assert_eq!(read, Some(sparse(n as u64 + 1)), "{name}");
    }
    let key_of = key("size");
    let largest = completed(1, StoredResult::Json("1".repeat(MAX_RESULT_BYTES)));
    let applied = swap(store, &key_of, Expect::Absent, &largest).await;
    assert_eq!(applied, Swapped::Applied);
    let expired = Record {
        expires_at: 1,
        ..sparse(2)
    };
    let applied = swap(store, &key_of, Expect::Unchanged(largest), &expired).await;
    assert_eq!(applied, Swapped::Applied);
    // A record past its retention is still a record.
    assert_eq!(get(store, &key_of).await, Some(expired));
}

/// Checks that a claim leaves room for a result, for stores that limit the size of an item.
///
/// # Panics
///
/// Panics if the store accepts a claim that leaves no room.
pub async fn claim_leaves_room_for_a_result<S: Store>(store: &S) {
    let swap = Swap {
        key: key("room"),
        expect: Expect::Absent,
        to: Record {
            message_id: "m".repeat(8 * 1024),
            ..full(1)
        },
    };
    let refused = store
        .swap(&swap, &S::With::default(), &RequestContext::default())
        .await;
    assert!(
        matches!(refused, Err(StoreError::ItemTooLarge { .. })),
        "{refused:?}"
    );
}

/// Checks that the writes that commit with a record are applied together with it, once, or not at all. `with` makes
/// something that the store applies, and `applied` counts how many times it did. `refused` makes something that the store
/// refuses.
///
/// # Panics
///
/// Panics if the store breaks a promise.
pub async fn all_or_nothing<S: Store>(
    store: &S,
    with: impl Fn() -> S::With,
    refused: impl Fn() -> S::With,
    applied: impl AsyncFn() -> usize,
) {
    let context = RequestContext::default();
    let key = key("all-or-nothing");
    let over = |expect, to: &Record| Swap {
        key: key.clone(),
        expect,
        to: to.clone(),
    };
    // Each content has its own version.
    let first = sparse(1);
    let (claim, beside) = (over(Expect::Absent, &first), with());
    let answer = store.swap(&claim, &beside, &context).await.unwrap();
    assert_eq!(answer, Swapped::Applied);
    assert_eq!(get(store, &key).await, Some(first.clone()));
    assert_eq!(applied().await, 1);

    eprintln!("conformance: a late copy changes nothing");
    let is_late = |answer: &SwappedIn<S>, record: &Record| {
        *answer == Swapped::Applied || *answer == Swapped::Found(Some(record.clone()))
    };
    let answer = store.swap(&claim, &beside, &context).await.unwrap();
    assert!(is_late(&answer, &first), "{answer:?}");
    assert_eq!(applied().await, 1);

    eprintln!("conformance: the record decides first");
    for (version, beside) in [(2, with()), (3, refused())] {
        let stale = over(Expect::Unchanged(sparse(7)), &full(version));
        let answer = store.swap(&stale, &beside, &context).await.unwrap();
        assert_eq!(answer, Swapped::Found(Some(first.clone())));
    }
    assert_eq!(applied().await, 1);

    eprintln!("conformance: what is refused leaves the record");
    let end = over(Expect::Unchanged(first.clone()), &full(4));
    let answer = store.swap(&end, &refused(), &context).await.unwrap();
    assert!(matches!(answer, Swapped::Refused(_)), "{answer:?}");
    assert_eq!(get(store, &key).await, Some(first.clone()));
    assert_eq!(applied().await, 1);

    eprintln!("conformance: the next content is applied");
    let last = full(5);
    let next = over(Expect::Unchanged(first), &last);
    let answer = store.swap(&next, &with(), &context).await.unwrap();
    assert_eq!(answer, Swapped::Applied);
    assert_eq!(applied().await, 2);
    let answer = store.swap(&claim, &beside, &context).await.unwrap();
    assert!(is_late(&answer, &last), "{answer:?}");
    assert_eq!(get(store, &key).await, Some(last));
    assert_eq!(applied().await, 2);
}

/// Checks that exactly one of several concurrent swaps is applied.
///
/// # Panics
///
/// Panics if none or more than one is applied.
pub async fn one_of_several_is_applied<S: Store>(store: &S) {
    for over in [None, Some(full(1))] {
        let key_of = key(if over.is_some() {
            "several-2"
        } else {
            "several-1"
        });
        let expect = match over {
            None => Expect::Absent,
            Some(record) => {
                let _ = swap(store, &key_of, Expect::Absent, &record).await;
                Expect::Unchanged(record)
            }
        };
        let attempts = (0..10).map(|n| {
            let mut to = full(2);
            to.stamp.owner = owner(&format!("o-{n}"));
            let (expect, key_of) = (expect.clone(), &key_of);
            async move { swap(store, key_of, expect, &to).await }
        });
        let answers = futures_util::future::join_all(attempts).await;
        let applied = answers.iter().filter(|answer| **answer == Swapped::Applied);
        assert_eq!(applied.count(), 1);
    }
}

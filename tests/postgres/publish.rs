//! Events commit with the record, or not at all, and in the order of the commits.

use std::sync::Arc;

use futures_util::future::join_all;
use sqlx::{Executor, raw_sql};
use sqs_once::{Attempt, Event, Failure, Outcome};
use sqs_once_postgres::{InTransaction, Transaction};
use support::PATIENCE;
use support::world::{World, ample, increment, key, operation, publishes};
use tokio::{join, time::timeout};

#[track_caller]
fn assert_completed(outcome: &Outcome) {
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
}

async fn publish(world: &World, id: &str, groups: &[&str]) -> Outcome {
    let mode = world.mode();
    mode.run(operation(id, ample()), publishes(id, groups))
        .await
}

#[tokio::test]
async fn events_commit_with_the_record() {
    let world = World::start().await;
    assert_completed(&publish(&world, "o-1", &["b", "a", "b"]).await);
    let event = |n, group: &str| {
        let id = format!("{}#{n:02}", key("o-1"));
        (id, group.to_owned(), "\"o-1\"".to_owned())
    };
    let events = [event(0, "b"), event(1, "a"), event(2, "b")];
    assert_eq!(world.events().await, events);
    let again = publish(&world, "o-1", &["b"]).await;
    assert!(matches!(again, Outcome::Duplicate(_)), "{again:?}");
    assert_eq!(world.events().await, events, "a duplicate published");
}

/// The server has room for a limited number of locks.
#[tokio::test]
async fn answer_takes_no_lock_without_groups_and_256_at_most() {
    let world = World::start().await;
    let count = "CREATE TABLE locks (n bigint); \
        CREATE FUNCTION count_locks() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN \
            INSERT INTO locks SELECT count(*) FROM pg_locks \
            WHERE locktype = ''advisory'' AND pid = pg_backend_pid(); RETURN NULL; END'; \
        CREATE TRIGGER counts AFTER INSERT ON sqs_once_outbox EXECUTE FUNCTION count_locks()";
    raw_sql(count).execute(&world.pool).await.unwrap();
    let many: Vec<_> = (0..900).map(|group| group.to_string()).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    for groups in [&[][..], &["a", "b", "a"], &many] {
        let publishes = async |attempt: Attempt| {
            let event = || Event::new("placed", &1);
            let done = Transaction::of(&attempt)?.done(());
            let done = (0..3).map(|_| event()).fold(done, InTransaction::publish);
            let grouped = groups.iter().map(|group| event().group(*group));
            Ok(grouped.fold(done, InTransaction::publish))
        };
        let operation = operation(&format!("o-{}", groups.len()), ample());
        assert_completed(&world.mode().run(operation, publishes).await);
    }
    let locks = sqlx::query_scalar("SELECT n FROM locks ORDER BY n");
    let locks: Vec<i64> = locks.fetch_all(&world.pool).await.unwrap();
    assert_eq!(locks[..2], [0, 2]);
    assert!((200..=256).contains(&locks[2]), "{locks:?}");
    assert_eq!(world.events().await.len(), 3 + 6 + 903);
}

#[tokio::test]
async fn answer_beyond_a_limit_is_permanent_failure() {
    let world = World::start().await;
    let placed = || Event::new("placed", &1);
    for (id, events, fault) in [
        ("more", vec![placed(); 1001], "the answer has 1001 events"),
        (
            "name",
            vec![placed(), Event::new("order placed", &1)],
            "event 1: the name must have",
        ),
    ] {
        let publishes = async |attempt: Attempt| {
            let mut tx = Transaction::of(&attempt)?;
            increment(&mut tx, id).await?;
            Ok(events.into_iter().fold(tx.done(()), InTransaction::publish))
        };
        let outcome = world.mode().run(operation(id, ample()), publishes).await;
        let Outcome::PermanentFailure(why) = &outcome else {
            panic!("{outcome:?}");
        };
        assert!(why.starts_with(fault), "{why}");
        assert_eq!(world.status(id).await.as_deref(), Some("FAILED"));
        assert_eq!((world.effect(id).await, world.events().await), (0, vec![]));
    }
}

/// Commits of one group wait for each other, so that the first number commits first.
#[tokio::test]
async fn group_has_the_order_of_its_commits() {
    let world = World::start().await;
    // The commit of `first` waits for a lock that the test holds.
    raw_sql(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN LOCK TABLE gate; RETURN NULL; END'; \
         CREATE TABLE gate (); \
         CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON things DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW WHEN (NEW.id = 'first') EXECUTE FUNCTION wait()",
    )
    .execute(&world.pool)
    .await
    .unwrap();
    let mut gate = world.pool.begin().await.unwrap();
    gate.execute("LOCK TABLE gate").await.unwrap();
    let (first, second, ()) = join!(
        publish(&world, "first", &["g"]),
        async {
            world.waiting(1).await;
            publish(&world, "second", &["f", "g"]).await
        },
        async {
            let both_wait = timeout(PATIENCE, world.waiting(2)).await;
            both_wait.expect("the second commit waits for the first");
            // Another group does not wait.
            assert_completed(&publish(&world, "other", &["h"]).await);
            assert_eq!(world.events().await.len(), 1);
            gate.commit().await.unwrap();
        }
    );
    assert_completed(&first);
    assert_completed(&second);
    let events = world.events().await.into_iter();
    let of_group = events.filter(|(_, group, _)| group == "g");
    let bodies: Vec<_> = of_group.map(|(.., body)| body).collect();
    assert_eq!(bodies, ["\"first\"", "\"second\""]);
}

#[tokio::test]
async fn answers_with_same_groups_do_not_deadlock() {
    let world = Arc::new(World::start().await);
    let groups = ["a", "b", "c", "d", "e", "f"];
    let answers = (0..60).map(|n: usize| {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            let mut groups = groups;
            groups.rotate_left(n % 6);
            publish(&world, &format!("o-{n}"), &groups).await
        })
    });
    for outcome in join_all(answers).await {
        assert_completed(&outcome.unwrap());
    }
    // Each answer was committed as a whole: no other came between in a group.
    let events = world.events().await;
    let of = |group: &str| -> Vec<String> {
        let of_group = events.iter().filter(|(_, of, _)| of == group);
        of_group.map(|(.., body)| body.clone()).collect()
    };
    assert_eq!(events.len(), 60 * groups.len());
    for group in groups {
        assert_eq!(of(group), of("a"), "{group}");
    }
}

#[tokio::test]
async fn handler_without_events_needs_no_outbox() {
    let world = World::start().await;
    world.run_sql("DROP TABLE sqs_once_outbox").await;
    assert_completed(&world.deliver("o-1").await);
    let fails = async |_| Err::<InTransaction<()>, _>(Failure::permanent("declined"));
    let outcome = world.mode().run(operation("o-2", ample()), fails).await;
    assert!(
        matches!(outcome, Outcome::PermanentFailure(_)),
        "{outcome:?}"
    );
}

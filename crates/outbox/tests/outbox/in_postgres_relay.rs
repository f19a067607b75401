//! The relay of the outbox in PostgreSQL: what rows and transactions add to the relay of a stream. Both send in the same
//! rounds, so `relay.rs` has the answers of a target, and `end_to_end.rs` crashes.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use aws_config::{SdkConfig, retry::RetryConfig, timeout::TimeoutConfig};
use lambda_runtime::{Context, LambdaEvent, Service as _};
use serde_json::{Value, json, value::to_raw_value};
use sqlx::raw_sql;
use sqs_once::{Attempt, Deadline, Event, Outcome, protocol::Timestamp};
use sqs_once_outbox::{PostgresRelay, Relay, Relayed};
use sqs_once_postgres::{InTransaction, PostgresStore, Transaction, relay::oldest};
use support::world::{SECOND, World, ample, operation, publishes, short};
use support::{
    PATIENCE,
    postgres::one,
    sqs::{Sqs, SqsBehaviour},
    stopwatch::Stopwatch,
};
use tokio::{
    select,
    time::{sleep, timeout},
};

const SHIPPING: &str = "https://sqs.example/1/shipping.fifo";
const DEAD: &str = "https://sqs.example/1/dead";

/// Without retries, so that each call meets the next behaviour.
fn config(sqs: &Sqs) -> SdkConfig {
    let config = support::sdk_config(sqs.endpoint()).to_builder();
    config.retry_config(RetryConfig::disabled()).build()
}

/// Sends events with the name `placed` to `shipping.fifo`.
fn sender(sqs: &Sqs) -> Relay {
    let targets = format!("placed={SHIPPING}").parse().unwrap();
    Relay::new(&config(sqs), targets, DEAD).unwrap()
}

fn relay(world: &World, sqs: &Sqs) -> PostgresRelay {
    PostgresRelay::new(sender(sqs), PostgresStore::new(world.pool.clone()))
}

async fn publish(world: &World, id: &str, groups: &[&str]) {
    let mode = world.mode();
    let run = mode.run(operation(id, ample()), publishes(id, groups));
    let outcome = run.await;
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
}

async fn send(relay: &PostgresRelay) -> Relayed {
    relay.send_due(ample()).await.unwrap()
}

/// Sends until `time` is up.
async fn send_within(relay: &PostgresRelay, time: Duration) -> Relayed {
    let deadline = Deadline::after(Timestamp::now(), time, time / 4);
    relay.send_due(deadline).await.unwrap()
}

/// Sent, dead-lettered and failed events.
fn numbers(relayed: Relayed) -> [u64; 3] {
    [relayed.sent, relayed.dead_lettered, relayed.failed]
}

/// Makes failed groups due, as time does.
async fn wait_for_next_attempt(world: &World) {
    world
        .run_sql("UPDATE sqs_once_outbox SET next_attempt_at = 0")
        .await;
}

/// Does `work` while each call to the target takes 0.1 seconds.
async fn with_slow_target<T>(sqs: &Sqs, work: impl Future<Output = T>) -> T {
    sqs.turn(SqsBehaviour::Held);
    let answers = async {
        loop {
            sleep(SECOND / 10).await;
            sqs.turn(SqsBehaviour::Held);
        }
    };
    select! {
        done = work => done,
        () = answers => unreachable!(),
    }
}

/// Bodies that were sent in a group, with repetitions.
fn bodies(sqs: &Sqs, group: &str) -> Vec<String> {
    let sent = sqs.each_sent_to(SHIPPING).into_iter();
    let of_group = sent.filter(|entry| entry["MessageGroupId"] == group);
    let body = |entry: Value| entry["MessageBody"].as_str().unwrap().replace('"', "");
    of_group.map(body).collect()
}

#[tokio::test]
async fn event_is_sent_with_its_id_and_group() {
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    publish(&world, "o-1", &["c-1"]).await;
    assert_eq!(numbers(send(&relay(&world, &sqs)).await), [1, 0, 0]);
    let [sent] = &sqs.each_sent_to(SHIPPING)[..] else {
        panic!("{:?}", sqs.each_sent_to(SHIPPING));
    };
    assert_eq!(sent["MessageBody"], "\"o-1\"");
    assert_eq!(sent["MessageGroupId"], "c-1");
    assert_eq!(sent["MessageDeduplicationId"], "tests#o-1#00");
    let id = &sent["MessageAttributes"]["idempotencyKey"]["StringValue"];
    assert_eq!(id, "tests#o-1#00");
    assert_eq!(world.events().await, []);
    assert_eq!(numbers(send(&relay(&world, &sqs)).await), [0, 0, 0]);
}

#[tokio::test]
async fn failed_event_stops_its_group_alone() {
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let relay = relay(&world, &sqs);
    sqs.turn_for("SendMessageBatch", SqsBehaviour::FailingFirst);
    for (id, group) in [("1", "a"), ("2", "b"), ("3", "a")] {
        publish(&world, id, &[group]).await;
    }
    assert_eq!(numbers(send(&relay).await), [1, 0, 2]);
    assert_eq!(
        (bodies(&sqs, "a"), bodies(&sqs, "b")),
        (vec![], vec!["2".into()])
    );
    sqs.turn_for("SendMessageBatch", SqsBehaviour::Willing);
    assert_eq!(
        numbers(send(&relay).await),
        [0, 0, 0],
        "before its next attempt"
    );
    wait_for_next_attempt(&world).await;
    assert_eq!(numbers(send(&relay).await), [2, 0, 0]);
    assert_eq!(bodies(&sqs, "a"), ["1", "3"]);
}

#[tokio::test]
async fn pause_of_failing_group_doubles_to_five_minutes() {
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Denying).await;
    publish(&world, "o-1", &["a"]).await;
    let mut pauses = Vec::new();
    for _ in 0..9 {
        send(&relay(&world, &sqs)).await;
        let pause = "SELECT (next_attempt_at / 1000.0 - extract(epoch FROM clock_timestamp()))::float8 \
            FROM sqs_once_outbox";
        let pause: f64 = sqlx::query_scalar(pause)
            .fetch_one(&world.pool)
            .await
            .unwrap();
        pauses.push(pause);
        wait_for_next_attempt(&world).await;
    }
    let expected = [5., 10., 20., 40., 80., 160., 300., 300., 300.];
    for (pause, expected) in pauses.iter().zip(expected) {
        assert!(
            (expected - 5.0..expected + 0.01).contains(pause),
            "{pauses:?}"
        );
    }
}

#[tokio::test]
async fn refused_event_is_dead_lettered_alone() {
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    publish(&world, "1", &["a"]).await;
    let unknown = async |attempt: Attempt| {
        let done = Transaction::of(&attempt)?.done(());
        Ok(done.publish(Event::new("unknown", &"2").group("a")))
    };
    let outcome = world.mode().run(operation("2", ample()), unknown).await;
    assert!(outcome.is_success(), "{outcome:?}");
    publish(&world, "3", &["a"]).await;
    assert_eq!(numbers(send(&relay(&world, &sqs)).await), [2, 1, 0]);
    assert_eq!(bodies(&sqs, "a"), ["1", "3"]);
    let [dead] = &sqs.each_sent_to(DEAD)[..] else {
        panic!("{:?}", sqs.each_sent_to(DEAD));
    };
    let attribute = |name: &str| &dead["MessageAttributes"][name]["StringValue"];
    let reason = attribute("SqsOnceReason");
    assert_eq!(attribute("eventGroup"), "a");
    assert_eq!(
        (reason, &dead["MessageBody"]),
        (&json!("NoTarget"), &json!("\"2\""))
    );
    assert_eq!(world.events().await, []);
}

#[tokio::test]
async fn relay_ends_before_its_deadline() {
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Hanging).await;
    publish(&world, "1", &["a"]).await;
    let started = Stopwatch::start();
    let relayed = send_within(&relay(&world, &sqs), 2 * SECOND).await;
    assert_eq!(numbers(relayed), [0, 0, 1]);
    assert!(started.elapsed() < 2 * SECOND, "{:?}", started.elapsed());
    world.open_transactions(0).await;
}

/// A call that the deadline cuts off would count as a failed attempt of its group.
#[tokio::test]
async fn relay_cuts_off_no_call_of_a_slow_target() {
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    publish(&world, "1", &["a"; 100]).await;
    let relay = relay(&world, &sqs);
    let deadline = Deadline::after(Timestamp::now(), 2 * SECOND, SECOND / 2);
    let deadline = deadline.min_time_to_start(SECOND * 2 / 5);
    let relayed = with_slow_target(&sqs, relay.send_due(deadline));
    let relayed = relayed.await.unwrap();
    assert!((1..100).contains(&relayed.sent), "{relayed:?}");
    assert_eq!(relayed.failed, 0, "{relayed:?}");
    assert_eq!(bodies(&sqs, "a").len() as u64, relayed.sent);
}

/// Copies each event into the table `history`, where it stays.
async fn keep_history(world: &World) {
    let history = "CREATE TABLE history AS SELECT sequence, group_id, body FROM sqs_once_outbox; \
        CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN \
            INSERT INTO history VALUES (NEW.sequence, NEW.group_id, NEW.body); RETURN NULL; END'; \
        CREATE TRIGGER keeps AFTER INSERT ON sqs_once_outbox FOR EACH ROW EXECUTE FUNCTION keep()";
    raw_sql(history).execute(&world.pool).await.unwrap();
}

async fn history(world: &World, group: &str) -> Vec<String> {
    let bodies =
        "SELECT replace(body, '\"', '') FROM history WHERE group_id = $1 ORDER BY sequence";
    let bodies = sqlx::query_scalar(bodies).bind(group.to_owned());
    bodies.fetch_all(&world.pool).await.unwrap()
}

/// Workers publish, and relays send meanwhile. No fault occurs, so each event is sent once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rival_relays_send_each_event_once_in_order() {
    const GROUPS: [&str; 4] = ["a", "b", "c", "d"];
    let world = Arc::new(World::start().await);
    let sqs = Arc::new(Sqs::start(SqsBehaviour::Willing).await);
    keep_history(&world).await;
    let has_ended = Arc::new(AtomicBool::new(false));
    let workers = (0..4).map(|worker| {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            for n in (0..120).skip(worker).step_by(4) {
                publish(&world, &n.to_string(), &[GROUPS[n % 3], GROUPS[3]]).await;
            }
        })
    });
    // The isolation of a relay does not depend on the default.
    let options = world.options.clone();
    let options = options.options([("default_transaction_isolation", "serializable")]);
    let relays = (0..2).map(|_| {
        let store = PostgresStore::new(one(options.clone()));
        let relay = PostgresRelay::new(sender(&sqs), store);
        let has_ended = Arc::clone(&has_ended);
        tokio::spawn(async move {
            while !has_ended.load(Relaxed) {
                send(&relay).await;
            }
        })
    });
    let (workers, relays): (Vec<_>, Vec<_>) = (workers.collect(), relays.collect());
    for worker in workers {
        worker.await.unwrap();
    }
    has_ended.store(true, Relaxed);
    for relay in relays {
        relay.await.unwrap();
    }
    send(&relay(&world, &sqs)).await;
    for group in GROUPS {
        let history = history(&world, group).await;
        assert!(history.len() >= 40, "{group}");
        assert_eq!(bodies(&sqs, group), history, "{group}");
    }
    assert_eq!(world.events().await, []);
}

/// A process that is frozen keeps its connections and sends nothing.
#[tokio::test]
async fn frozen_relay_loses_lock_after_deadline() {
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Silent).await;
    publish(&world, "1", &["a"]).await;
    let frozen = relay(&world, &sqs);
    let started = Instant::now();
    let mut run = pin!(send_within(&frozen, SECOND));
    select! {
        relayed = &mut run => panic!("{relayed:?}"),
        () = sqs.called("SendMessageBatch", 1) => {}
    }
    // From here on the future is not polled.
    sqs.turn(SqsBehaviour::Willing);
    let next = async { while send(&relay(&world, &sqs)).await.sent == 0 {} };
    timeout(PATIENCE, next).await.unwrap();
    assert!(started.elapsed() > SECOND, "{:?}", started.elapsed());
    assert_eq!(bodies(&sqs, "a"), ["1", "1"]);
}

#[tokio::test]
async fn failing_group_delays_no_other() {
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let relay = relay(&world, &sqs);
    // More failing groups than one transaction takes, each with the oldest events.
    sqs.turn_for("SendMessageBatch", SqsBehaviour::Denying);
    for n in 0..3 {
        let failing: Vec<_> = (0..50)
            .map(|group| format!("failing-{n}-{group}"))
            .collect();
        let failing: Vec<_> = failing.iter().map(String::as_str).collect();
        publish(&world, &format!("failing-{n}"), &failing).await;
    }
    assert_eq!(numbers(send(&relay).await), [0, 0, 150]);
    sqs.turn_for("SendMessageBatch", SqsBehaviour::Willing);
    publish(&world, "1", &["a"]).await;
    assert_eq!(numbers(send(&relay).await), [1, 0, 0]);
    wait_for_next_attempt(&world).await;
    assert_eq!(numbers(send(&relay).await), [150, 0, 0]);
}

/// Each transaction with a silent target takes the time of a call.
#[tokio::test]
async fn silent_target_holds_up_one_transaction() {
    const STUCK: &str = "https://sqs.example/1/stuck.fifo";
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    sqs.turn_for(STUCK, SqsBehaviour::Hanging);
    // Events of three transactions, each with the oldest events.
    for n in 0..6 {
        let stuck = async |attempt: Attempt| {
            let event = |group| Event::new("stuck", &1).group(format!("{n}-{group}"));
            let done = Transaction::of(&attempt)?.done(());
            Ok((0..50).map(event).fold(done, InTransaction::publish))
        };
        let id = format!("stuck-{n}");
        let outcome = world.mode().run(operation(&id, ample()), stuck).await;
        assert!(outcome.is_success(), "{outcome:?}");
    }
    publish(&world, "1", &["a"]).await;
    let timeouts = TimeoutConfig::builder().operation_timeout(2 * SECOND);
    let config = config(&sqs).to_builder().timeout_config(timeouts.build());
    let targets = format!("stuck={STUCK},placed={SHIPPING}").parse().unwrap();
    let relay = Relay::new(&config.build(), targets, DEAD).unwrap();
    let relay = PostgresRelay::new(relay, PostgresStore::new(world.pool.clone()));
    assert_eq!(numbers(send(&relay).await), [1, 0, 300]);
    let calls = sqs.calls("SendMessageBatch");
    let of_stuck = calls.iter().filter(|call| call.body["QueueUrl"] == STUCK);
    assert_eq!(
        of_stuck.count(),
        10,
        "one transaction, ten events in a call"
    );
}

#[tokio::test]
async fn long_group_delays_no_other() {
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    for id in ["long-1", "long-2"] {
        publish(&world, id, &["long"; 1000]).await;
    }
    publish(&world, "1", &["a"]).await;
    let relay = relay(&world, &sqs);
    select! {
        relayed = send(&relay) => panic!("{relayed:?}"),
        () = sqs.called("SendMessageBatch", 20) => {}
    }
    assert_eq!(bodies(&sqs, "a"), ["1"]);
}

/// One look at all groups reads every row of the table.
#[tokio::test]
async fn long_group_is_sent_in_few_transactions() {
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    publish(&world, "long", &["long"; 1000]).await;
    // Statistics of one group make the planner expect that each row is the first of its group.
    world.run_sql("ANALYZE sqs_once_outbox").await;
    let pool = one(world.options.clone());
    let relay = PostgresRelay::new(sender(&sqs), PostgresStore::new(pool.clone()));
    assert_eq!(numbers(send(&relay).await), [1000, 0, 0]);
    // The session reports its numbers when it ends.
    pool.close().await;
    let numbers = "SELECT n_tup_del, seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables \
        WHERE relid = 'sqs_once_outbox'::regclass";
    let rows_read = async {
        loop {
            let numbers = sqlx::query_as::<_, (i64, i64)>(numbers);
            match numbers.fetch_one(&world.pool).await.unwrap() {
                (1000, rows_read) => return rows_read,
                _ => sleep(SECOND / 100).await,
            }
        }
    };
    let rows_read = timeout(PATIENCE, rows_read).await.unwrap();
    assert!(rows_read < 15 * 1000, "{rows_read}");
}

/// Bodies of 8 MB fill a transaction.
#[tokio::test]
async fn large_events_are_sent_in_several_transactions() {
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let body = "x".repeat(250 * 1024);
    for id in ["1", "2"] {
        let publishes = async |attempt: Attempt| {
            let done = Transaction::of(&attempt)?.done(());
            let event = |n| Event::new("placed", &body).group(format!("{n}"));
            Ok((0..40).map(event).fold(done, InTransaction::publish))
        };
        let outcome = world.mode().run(operation(id, ample()), publishes).await;
        assert!(outcome.is_success(), "{outcome:?}");
    }
    assert_eq!(numbers(send(&relay(&world, &sqs)).await), [80, 0, 0]);
}

#[tokio::test]
async fn unreachable_database_is_an_error() {
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let pool = one("postgres://orders@127.0.0.1:1/orders".parse().unwrap());
    let relay = PostgresRelay::new(sender(&sqs), PostgresStore::new(pool));
    let error = relay.send_due(short()).await.unwrap_err();
    assert!(
        error.to_string().contains("no connection in time"),
        "{error}"
    );
}

#[tokio::test]
async fn schedule_is_answered_with_numbers() {
    let world = World::start().await;
    let sqs = Sqs::start(SqsBehaviour::Willing).await;
    let mut relay = relay(&world, &sqs);
    let mut invoke = async || {
        let mut context = Context::default();
        context.deadline = (Timestamp::now() + PATIENCE).as_millis();
        let event = json!({ "source": "aws.events", "detail-type": "Scheduled Event" });
        let event = to_raw_value(&event).unwrap();
        relay.call(LambdaEvent::new(event, context)).await
    };
    for id in ["1", "2"] {
        publish(&world, id, &["a"]).await;
    }
    let answer = serde_json::to_value(invoke().await.unwrap()).unwrap();
    assert_eq!(answer, json!({ "sent": 2, "deadLettered": 0, "failed": 0 }));
    assert_eq!(bodies(&sqs, "a"), ["1", "2"]);

    // For the metric, a group that is not due waits all the same.
    publish(&world, "3", &["a"]).await;
    world
        .run_sql("UPDATE sqs_once_outbox SET published_at = 1000, next_attempt_at = 1e15")
        .await;
    assert_eq!(numbers(invoke().await.unwrap()), [0, 0, 0]);
    let mut connection = world.pool.acquire().await.unwrap();
    let waiting = oldest(&mut connection).await.unwrap();
    assert_eq!(waiting, Some(Timestamp::from_millis(1000)));

    world
        .run_sql("ALTER TABLE sqs_once_outbox RENAME TO lost")
        .await;
    let error = invoke().await.unwrap_err().to_string();
    assert!(error.contains("42P01"), "{error}");
}

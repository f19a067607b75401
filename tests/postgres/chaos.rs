//! Processes of the example `place_order_postgres` that are killed and frozen while they sell a stock,
//! with a server that crashes. `CHAOS_POSTGRES_ORDERS` is the number of orders, and `CHAOS_SEED` fixes the fates of the
//! workers and the order of the messages, but not the scheduler of the machine.

use std::{
    env,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use fastrand::Rng;
use serde_json::{Value, json};
use sqlx::raw_sql;
use sqs_once::{Settings, telemetry};
use support::world::{SECOND, World};
use support::{
    PATIENCE,
    event::{batch, failed, received},
    postgres::Server,
    runtime_api::{Answer, Lambda},
    seed,
};
use tokio::{
    process::Command,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{example::TABLES, place_order_postgres::consumer};

const WORKERS: usize = 3;
const BATCH: usize = 10;
/// Timeout of the function.
const TIME: Duration = SECOND;
/// Times that the server crashes.
const CRASHES: usize = 3;

/// A message in the queue.
#[derive(Clone)]
struct Sent {
    id: String,
    order: usize,
    receives: u32,
}

struct Chaos {
    world: World,
    url: String,
    queue: Mutex<Vec<Sent>>,
    messages: usize,
    acknowledged: AtomicUsize,
    killed: AtomicUsize,
    frozen: AtomicUsize,
    /// How long the last whole invocation took.
    usual: Mutex<Duration>,
}

/// Fate of an invocation, so long after its start.
#[derive(Clone, Copy)]
enum Fate {
    Lives,
    Killed(Duration),
    Frozen(Duration),
}

/// The process of a worker: this test binary, run again.
#[tokio::test]
#[ignore = "the process of a worker, which the test of chaos starts"]
async fn worker() {
    telemetry::init();
    let consumer = consumer(Settings::from_env()).await.unwrap();
    sqs_once::run(consumer).await.unwrap();
}

impl Chaos {
    async fn start(server: &Server, orders: usize, random: &mut Rng) -> Self {
        let world = World::on(server).await;
        raw_sql(TABLES).execute(&world.pool).await.unwrap();
        let stock = sqlx::query("UPDATE stock SET quantity = $1 WHERE product = 'cup'");
        let stock = stock.bind(i64::try_from(orders / 3).unwrap());
        stock.execute(&world.pool).await.unwrap();
        // A third of the orders is sent twice.
        let sent = (0..orders + orders / 3).map(|n| Sent {
            id: format!("m-{n}"),
            order: n % orders,
            receives: 0,
        });
        let mut queue: Vec<_> = sent.collect();
        random.shuffle(&mut queue);
        Self {
            url: support::world::url(server, &world),
            world,
            messages: queue.len(),
            queue: Mutex::new(queue),
            acknowledged: AtomicUsize::new(0),
            killed: AtomicUsize::new(0),
            frozen: AtomicUsize::new(0),
            usual: Mutex::new(Duration::from_millis(20)),
        }
    }

    async fn environment(&self) -> Lambda {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "chaos::worker", "--ignored", "--nocapture"]);
        let variables = [
            ("DATABASE_URL", self.url.as_str()),
            ("CONSUMER_VISIBILITY", "off"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut lambda = Lambda::spawn_command(command, variables.to_vec()).await;
        lambda.ready().await;
        lambda
    }

    /// The fate of the next invocation: random, but a run without a freeze or a kill would prove nothing.
    fn fate(&self, random: &mut Rng) -> Fate {
        let after = self.usual.lock().unwrap().mul_f64(random.f64());
        match random.u32(0..10) {
            _ if self.frozen.load(SeqCst) == 0 => Fate::Frozen(after),
            _ if self.killed.load(SeqCst) == 0 => Fate::Killed(after),
            0 => Fate::Frozen(after),
            1 | 2 => Fate::Killed(after),
            _ => Fate::Lives,
        }
    }

    fn is_done(&self) -> bool {
        self.acknowledged.load(SeqCst) == self.messages
    }

    fn receive(&self, random: &mut Rng) -> Vec<Sent> {
        let mut queue = self.queue.lock().unwrap();
        let first = queue.len() - queue.len().min(random.usize(1..=BATCH));
        let mut messages = queue.split_off(first);
        messages
            .iter_mut()
            .for_each(|message| message.receives += 1);
        messages
    }

    /// Returns messages to any place of the queue.
    fn put_back(&self, messages: Vec<Sent>, random: &mut Rng) {
        let mut queue = self.queue.lock().unwrap();
        for message in messages {
            let place = random.usize(0..=queue.len());
            queue.insert(place, message);
        }
    }

    async fn work(&self, mut random: Rng) {
        let mut environment = None;
        while !self.is_done() {
            let messages = self.receive(&mut random);
            if messages.is_empty() {
                // The other workers have the rest.
                sleep(Duration::from_millis(10)).await;
                continue;
            }
            let lambda = match environment.take() {
                Some(lambda) => lambda,
                None => self.environment().await,
            };
            let fate = self.fate(&mut random);
            let (lambda, returned) = self.invoke(lambda, &messages, fate).await;
            environment = lambda;
            self.acknowledged
                .fetch_add(messages.len() - returned.len(), SeqCst);
            self.put_back(returned, &mut random);
        }
    }

    /// Invokes a worker. Returns the environment if it lives, and the messages that return to the queue.
    async fn invoke(
        &self,
        lambda: Lambda,
        messages: &[Sent],
        fate: Fate,
    ) -> (Option<Lambda>, Vec<Sent>) {
        let event = batch(messages.iter().map(|message| {
            let order = format!("o-{}", message.order);
            let body = json!({"orderId": order, "customerId": "c", "products": {"cup": 1}});
            received(&message.id, &body, message.receives)
        }));
        let all = messages.to_vec();
        let answer = match fate {
            Fate::Lives => {
                let started = Instant::now();
                let answer = lambda.invoke(event, TIME).await;
                *self.usual.lock().unwrap() = started.elapsed();
                answer
            }
            Fate::Killed(after) => {
                let Ok(answer) = timeout(after, lambda.invoke(event, TIME)).await else {
                    self.killed.fetch_add(1, SeqCst);
                    lambda.kill().await;
                    return (None, all);
                };
                answer
            }
            Fate::Frozen(after) => {
                let Ok(answer) = timeout(after, lambda.invoke(event, TIME)).await else {
                    self.frozen.fetch_add(1, SeqCst);
                    lambda.signal("-STOP").await;
                    // The process keeps its connections, thaws after its deadline, and is killed.
                    tokio::spawn(async move {
                        sleep(3 * SECOND).await;
                        lambda.signal("-CONT").await;
                        sleep(SECOND / 10).await;
                        lambda.kill().await;
                    });
                    return (None, all);
                };
                answer
            }
        };
        match answer {
            Answer::Response(response) => {
                let failed = failed(&response);
                let returned = all.into_iter().filter(|sent| failed.contains(&sent.id));
                (Some(lambda), returned.collect())
            }
            // PostgreSQL was not available.
            Answer::Error(_) => (Some(lambda), all),
            Answer::Exited | Answer::TimedOut => (None, all),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_is_exact_after_crashes_of_all() {
    let orders = env::var("CHAOS_POSTGRES_ORDERS").map_or(300, |orders| orders.parse().unwrap());
    let mut random = Rng::with_seed(seed::or(1));
    let server = Arc::new(Server::start());
    let chaos = Arc::new(Chaos::start(&server, orders, &mut random).await);
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (chaos, random) = (Arc::clone(&chaos), random.fork());
            tokio::spawn(async move { chaos.work(random).await })
        })
        .collect();
    let limit = 3 * PATIENCE + SECOND / 20 * u32::try_from(orders).unwrap();
    let done = timeout(limit, crash_and_wait(&chaos, &server, workers)).await;
    let left = chaos.messages - chaos.acknowledged.load(SeqCst);
    assert!(done.is_ok(), "{left} messages are left after {limit:?}");
    let (killed, frozen) = (chaos.killed.load(SeqCst), chaos.frozen.load(SeqCst));
    eprintln!(
        "{orders} orders, {killed} workers killed, {frozen} frozen, {CRASHES} crashes of the server"
    );
    assert!(killed > 0 && frozen > 0);
    chaos.audit(orders).await;
}

/// Crashes the server at equal intervals of acknowledged messages, and waits for the workers.
async fn crash_and_wait(chaos: &Chaos, server: &Arc<Server>, workers: Vec<JoinHandle<()>>) {
    for crash in 1..=CRASHES {
        let due = chaos.messages * crash / (CRASHES + 1);
        while chaos.acknowledged.load(SeqCst) < due {
            sleep(Duration::from_millis(5)).await;
        }
        let server = Arc::clone(server);
        tokio::task::spawn_blocking(move || server.crash())
            .await
            .unwrap();
    }
    for worker in workers {
        worker.await.unwrap();
    }
}

impl Chaos {
    /// Each order is recorded once, and the stock agrees with the orders.
    async fn audit(&self, orders: usize) {
        let number = async |sql: &'static str| -> usize {
            let number: i64 = sqlx::query_scalar(sql)
                .fetch_one(&self.world.pool)
                .await
                .unwrap();
            usize::try_from(number).unwrap()
        };
        assert_eq!(
            number("SELECT count(*) FROM sqs_once_records WHERE status = 'COMPLETED'").await,
            orders
        );
        assert_eq!(
            number("SELECT count(*) FROM sqs_once_records").await,
            orders
        );
        assert_eq!(
            number("SELECT quantity FROM stock WHERE product = 'cup'").await,
            0
        );
        let sold = orders / 3;
        assert_eq!(number("SELECT count(*) FROM orders").await, sold);
        assert_eq!(number("SELECT count(*) FROM order_lines").await, sold);
        assert_eq!(
            number("SELECT count(DISTINCT order_id) FROM order_lines").await,
            sold
        );
        let placed =
            "SELECT result FROM sqs_once_records r JOIN orders o ON r.id = 'orders#' || o.order_id";
        let placed: Vec<String> = sqlx::query_scalar(placed)
            .fetch_all(&self.world.pool)
            .await
            .unwrap();
        assert_eq!(placed.len(), sold);
        for result in placed {
            let result: Value = serde_json::from_str(&result).unwrap();
            assert_eq!(result["status"], "placed");
        }
    }
}

//! Orders at a gateway without idempotency keys, by processes of the sample's release build (with the shorter
//! waits of `tests/adjusted`) that are killed before, in and after their calls. Answers get lost, and requests arrive up to five seconds late.
//! The sample looks up each order that may have been charged, so no order is charged twice. The same
//! run without the look-up is the control.
//!
//! `RECONCILE_ORDERS` sets the number of orders, as in `make reconcile`.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path, State},
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::post,
};
use reqwest::Url;
use serde_json::{Value, json};
use support::{
    dynamo::{Dynamo, text},
    event::{batch, failed, received},
    faults::cut,
    runtime_api::{Answer, Env, Lambda, NAMESPACE, of_message, program},
};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

const TABLE: &str = "idempotency";
/// Long enough that a busy machine does not end processes that nobody killed.
const FUNCTION_TIMEOUT: Duration = Duration::from_secs(5);
const GATEWAY_TIMEOUT: &str = "500ms";
/// The latest arrival of a request, and a quarantine with time to spare for a busy machine.
const LATEST: Duration = Duration::from_secs(5);
const QUARANTINE: &str = "10s";
/// Time until a failed message is delivered again.
const BACKOFF: Duration = Duration::from_secs(2);
const WORKERS: usize = 4;
/// One in so many invocations is killed, until there were enough kills.
const KILLED_OF: u32 = 2;
/// A message that was killed so often is spared. After four deaths alone it would end as `crashed`.
const KILLS_OF_A_MESSAGE: u32 = 2;
/// Far more than any message needs.
const MOST_RECEIVES: u32 = 500;

/// When a process is killed, seen from its calls of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kill {
    BeforeCalls,
    InCall,
    /// Right after the gateway ended a call: the response may be neither read nor recorded.
    AfterCall,
}

impl Kill {
    const ALL: [Self; 3] = [Self::BeforeCalls, Self::InCall, Self::AfterCall];
}

/// The gateway: charges a card for each request.
struct Gateway {
    seed: u64,
    state: Mutex<GatewayState>,
    /// Wakes those who wait for the begin or end of a call.
    called: Notify,
}

#[derive(Default)]
struct GatewayState {
    charges: HashMap<String, Vec<u64>>,
    /// Requests of each order.
    requests: HashMap<String, u32>,
    /// Calls of each worker in its invocation: open, and ended.
    calls: HashMap<u32, (usize, usize)>,
    on_their_way: JoinSet<()>,
    lost_answers: usize,
    late: usize,
    look_ups: usize,
}

impl Gateway {
    async fn start(seed: u64) -> (Arc<Self>, String) {
        let gateway = Arc::new(Self {
            seed,
            state: Mutex::default(),
            called: Notify::new(),
        });
        let app = Router::new()
            .route("/{worker}/charges", post(charge).get(list))
            .with_state(Arc::clone(&gateway));
        (gateway, format!("http://{}", support::serve(app).await))
    }

    fn state(&self) -> MutexGuard<'_, GatewayState> {
        self.state.lock().unwrap()
    }

    fn charge(&self, order: &str) {
        let charges = &mut self.state().charges;
        charges.entry(order.to_owned()).or_default().push(1);
    }

    fn dice(&self, order: &str, nth: u32) -> fastrand::Rng {
        use std::hash::{DefaultHasher, Hash as _, Hasher as _};
        let mut hasher = DefaultHasher::new();
        (self.seed, order, nth).hash(&mut hasher);
        fastrand::Rng::with_seed(hasher.finish())
    }

    /// Returns the calls of this worker's invocation: open, and ended.
    fn calls(&self, worker: u32) -> (usize, usize) {
        self.state().calls.get(&worker).copied().unwrap_or_default()
    }

    fn begin_invocation(&self, worker: u32) {
        self.state().calls.remove(&worker);
    }

    /// Waits until the calls of this worker's invocation are as `wanted`: open, and ended.
    async fn until(&self, worker: u32, wanted: impl Fn(usize, usize) -> bool) {
        loop {
            let changed = self.called.notified();
            let (open, ended) = self.calls(worker);
            if wanted(open, ended) {
                return;
            }
            changed.await;
        }
    }
}

/// An open call. It ends with its response, or when the caller hangs up.
struct Call(Arc<Gateway>, u32);

impl Call {
    fn begin(gateway: &Arc<Gateway>, worker: u32) -> Self {
        gateway.state().calls.entry(worker).or_default().0 += 1;
        gateway.called.notify_waiters();
        Self(Arc::clone(gateway), worker)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.0.state();
        let (open, ended) = state.calls.entry(self.1).or_default();
        // The call may be of an earlier invocation.
        *open = open.saturating_sub(1);
        *ended += 1;
        self.0.called.notify_waiters();
    }
}

async fn charge(
    State(gateway): State<Arc<Gateway>>,
    Path(worker): Path<u32>,
    body: Bytes,
) -> Response {
    let _call = Call::begin(&gateway, worker);
    let body: Value = serde_json::from_slice(&body).unwrap();
    let order = body["orderId"].as_str().unwrap().to_owned();
    let nth = {
        let mut state = gateway.state();
        let nth = state.requests.entry(order.clone()).or_default();
        *nth += 1;
        *nth
    };
    let mut dice = gateway.dice(&order, nth);
    let (is_late, is_lost) = (dice.u32(..100) < 3, dice.u32(..100) < 2);
    let work = if is_late {
        LATEST.mul_f64(dice.f64())
    } else {
        Duration::from_millis(dice.u64(1..25))
    };
    let charged = Arc::new(Notify::new());
    {
        let mut state = gateway.state();
        state.late += usize::from(is_late);
        state.lost_answers += usize::from(is_lost && !is_late);
        let (gateway, charged) = (Arc::clone(&gateway), Arc::clone(&charged));
        // The charge happens, whatever becomes of its caller.
        state.on_their_way.spawn(async move {
            sleep(work).await;
            gateway.charge(&order);
            charged.notify_one();
        });
    }
    charged.notified().await;
    if is_lost {
        return cut();
    }
    // The caller can be killed between the charge and the response.
    sleep(Duration::from_millis(dice.u64(..10))).await;
    (
        StatusCode::CREATED,
        Json(json!({"amount": 9.5, "currency": "EUR"})),
    )
        .into_response()
}

/// The charges of an order. The response to one look-up in fifty is 503.
async fn list(State(gateway): State<Arc<Gateway>>, Path(worker): Path<u32>, uri: Uri) -> Response {
    let _call = Call::begin(&gateway, worker);
    let url = Url::parse(&format!("http://gateway{uri}")).unwrap();
    let (name, order) = url.query_pairs().next().unwrap();
    assert_eq!(name, "orderId");
    let mut state = gateway.state();
    state.look_ups += 1;
    let nth = u32::try_from(state.look_ups).unwrap();
    let charges = state.charges.get(&*order).map_or(0, Vec::len);
    drop(state);
    if gateway.dice(&order, nth + 1_000_000).u32(..50) == 0 {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let charge = json!({"amount": 9.5, "currency": "EUR"});
    Json(vec![charge; charges]).into_response()
}

/// A message, and when it is delivered next.
#[derive(Clone, Copy)]
struct Waiting {
    at: Instant,
    n: usize,
    receives: u32,
    kills: u32,
}

/// The queue, the workers' processes, and what was counted.
struct Run {
    look_up: bool,
    gateway: Arc<Gateway>,
    gateway_url: String,
    dynamo: Dynamo,
    queue: Mutex<Vec<Waiting>>,
    /// Messages that are neither in the queue nor acknowledged.
    in_flight: AtomicU32,
    most_kills: usize,
    kills: Mutex<BTreeMap<Kill, usize>>,
    reconciled: AtomicU32,
    workers: AtomicU32,
}

/// Every character that means something in a URL.
fn order_id(n: usize) -> String {
    format!("o/{n}&a=b#c%20 +é")
}

impl Run {
    async fn new(look_up: bool, orders: usize, seed: u64) -> Self {
        let dynamo = Dynamo::start().await;
        dynamo.create_table(TABLE).await;
        let (gateway, gateway_url) = Gateway::start(seed).await;
        let now = Instant::now();
        let message = |n| Waiting {
            at: now,
            n,
            receives: 0,
            kills: 0,
        };
        Self {
            look_up,
            gateway,
            gateway_url,
            dynamo,
            queue: Mutex::new((0..orders).map(message).collect()),
            in_flight: AtomicU32::new(0),
            most_kills: orders / 15,
            kills: Mutex::default(),
            reconciled: AtomicU32::new(0),
            workers: AtomicU32::new(0),
        }
    }

    fn env(&self, worker: u32) -> Env {
        let gateway = format!("{}/{worker}", self.gateway_url);
        let reconcile = if self.look_up { "on" } else { "off" };
        let settings = [
            ("AWS_ENDPOINT_URL_DYNAMODB", self.dynamo.endpoint()),
            ("IDEMPOTENCY_TABLE_NAME", TABLE),
            ("IDEMPOTENCY_NAMESPACE", NAMESPACE),
            ("IDEMPOTENCY_KEY", "body:/orderId"),
            ("CONSUMER_VISIBILITY", "off"),
            ("PAYMENT_GATEWAY_URL", &gateway),
            ("PAYMENT_GATEWAY_TIMEOUT", GATEWAY_TIMEOUT),
            ("PAYMENT_GATEWAY_RECONCILE", reconcile),
            ("PAYMENT_GATEWAY_RECONCILE_AFTER", QUARANTINE),
            ("TEST_LEASE_MARGIN", "100ms"),
            ("TEST_DEADLINE_RESERVE", "500ms"),
            ("TEST_CRASH_WAIT", "3s"),
        ];
        let owned = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        owned.to_vec()
    }

    /// Takes up to ten messages that are due, or says when the next one is. `None`: all are acknowledged.
    fn receive(&self) -> Option<Result<Vec<Waiting>, Instant>> {
        let mut queue = self.queue.lock().unwrap();
        let now = Instant::now();
        queue.sort_by_key(|message| message.at);
        let due = queue
            .iter()
            .take(10)
            .take_while(|message| message.at <= now);
        let due = due.count();
        if due > 0 {
            self.in_flight.fetch_add(due.try_into().unwrap(), SeqCst);
            return Some(Ok(queue.drain(..due).collect()));
        }
        match queue.first() {
            Some(next) => Some(Err(next.at)),
            None if self.in_flight.load(SeqCst) > 0 => Some(Err(now + BACKOFF / 10)),
            None => None,
        }
    }

    async fn work(&self, mut dice: fastrand::Rng) {
        let mut process: Option<(u32, Lambda)> = None;
        while let Some(received) = self.receive() {
            let messages = match received {
                Ok(messages) => messages,
                Err(next) => {
                    sleep_until(next).await;
                    continue;
                }
            };
            let (worker, lambda) = match process.take() {
                Some(running) => running,
                None => {
                    let worker = self.workers.fetch_add(1, SeqCst);
                    let binary = program("adjusted");
                    (
                        worker,
                        Lambda::start_binary(&binary, self.env(worker)).await,
                    )
                }
            };
            let is_spared = messages.iter().any(|m| m.kills >= KILLS_OF_A_MESSAGE);
            let kills = self.kills.lock().unwrap().values().sum::<usize>();
            let is_killed = kills < self.most_kills && !is_spared && dice.u32(..KILLED_OF) == 0;
            let events = batch(messages.iter().map(|message| {
                let order =
                    json!({"orderId": order_id(message.n), "amount": 9.5, "currency": "EUR"});
                received_again(message, &order)
            }));
            let invocation = lambda.invoke(events, FUNCTION_TIMEOUT);
            self.gateway.begin_invocation(worker);
            let kill = is_killed.then(|| dice.choice(Kill::ALL).unwrap());
            let pause = Duration::from_millis(dice.u64(..3));
            let fate = async {
                let gateway = &self.gateway;
                match kill {
                    None => std::future::pending().await,
                    Some(Kill::BeforeCalls) => sleep(pause).await,
                    Some(Kill::InCall) => gateway.until(worker, |open, _| open > 0).await,
                    Some(Kill::AfterCall) => gateway.until(worker, |_, ended| ended > 0).await,
                }
            };
            let answer = tokio::select! {
                answer = invocation => Some(answer),
                () = fate => None,
            };
            let is_answered = matches!(answer, Some(Answer::Response(_) | Answer::Error(_)));
            let all = || {
                messages
                    .iter()
                    .map(|message| message_id(message.n))
                    .collect()
            };
            let failed = match answer {
                Some(answer @ Answer::Response(_)) => failed(&answer.response()),
                // On a busy machine, the table may not respond in time to any message of a batch.
                Some(Answer::Error(_)) => all(),
                died => {
                    if let (None, Some(planned)) = (died, kill) {
                        let is_called = self.gateway.calls(worker) != (0, 0);
                        let kill = match planned {
                            Kill::BeforeCalls if is_called => Kill::InCall,
                            planned => planned,
                        };
                        *self.kills.lock().unwrap().entry(kill).or_default() += 1;
                    }
                    let exit = lambda.kill().await;
                    self.count(&exit.output);
                    all()
                }
            };
            if is_answered {
                process = Some((worker, lambda));
            }
            let died = u32::from(process.is_none());
            let acknowledged = messages.len() - failed.len();
            for message in messages {
                if failed.contains(&message_id(message.n)) {
                    self.returns(message, died);
                }
            }
            self.in_flight
                .fetch_sub(acknowledged.try_into().unwrap(), SeqCst);
        }
        if let Some((_, lambda)) = process {
            let exit = lambda.kill().await;
            self.count(&exit.output);
        }
    }

    fn returns(&self, message: Waiting, kills: u32) {
        let receives = message.receives + 1;
        let order = order_id(message.n);
        assert!(
            receives < MOST_RECEIVES,
            "{order} was received {receives} times"
        );
        self.queue.lock().unwrap().push(Waiting {
            at: Instant::now() + BACKOFF,
            receives,
            kills: message.kills + kills,
            ..message
        });
        self.in_flight.fetch_sub(1, SeqCst);
    }

    fn count(&self, output: &[String]) {
        let lines = output
            .iter()
            .filter_map(|line| serde_json::from_str(line).ok());
        let reconciled =
            lines.filter(|line: &Value| of_message(line) && line["outcome"] == "reconciled");
        let reconciled = u32::try_from(reconciled.count()).unwrap();
        self.reconciled.fetch_add(reconciled, SeqCst);
    }

    /// Runs until every message is acknowledged and every charge has arrived.
    async fn finish(self, orders: usize) -> Report {
        let workers = (0..WORKERS as u64).map(|n| self.work(fastrand::Rng::with_seed(n)));
        futures_util::future::join_all(workers).await;
        let mut late = std::mem::take(&mut self.gateway.state().on_their_way);
        while late.join_next().await.is_some() {}
        let records = self.dynamo.records(TABLE).await;
        let completed = records
            .iter()
            .filter(|record| text(record, "status") == "COMPLETED");
        let state = self.gateway.state();
        let times = |n| state.charges.get(&order_id(n)).map_or(0, Vec::len);
        Report {
            orders,
            kills: self.kills.lock().unwrap().clone(),
            lost_answers: state.lost_answers,
            late: state.late,
            look_ups: state.look_ups,
            reconciled: self.reconciled.load(SeqCst),
            completed: completed.count(),
            lost: (0..orders).filter(|n| times(*n) == 0).count(),
            twice: (0..orders).filter(|n| times(*n) > 1).count(),
        }
    }
}

fn message_id(n: usize) -> String {
    format!("m-{n}")
}

fn received_again(message: &Waiting, order: &Value) -> Value {
    received(&message_id(message.n), order, message.receives + 1)
}

struct Report {
    orders: usize,
    kills: BTreeMap<Kill, usize>,
    lost_answers: usize,
    late: usize,
    look_ups: usize,
    reconciled: u32,
    completed: usize,
    lost: usize,
    twice: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} orders, kills {:?}, {} lost answers, {} late requests, {} look-ups, {} reconciled: \
             {} completed, {} charged twice, {} lost",
            self.orders,
            self.kills,
            self.lost_answers,
            self.late,
            self.look_ups,
            self.reconciled,
            self.completed,
            self.twice,
            self.lost
        )
    }
}

fn orders() -> usize {
    let given = std::env::var("RECONCILE_ORDERS").ok();
    given.map_or(300, |orders| orders.parse().expect("a number of orders"))
}

async fn run(look_up: bool) -> Report {
    let orders = orders();
    let report = Run::new(look_up, orders, 1).await.finish(orders).await;
    println!("{report}");
    // A run without these events would prove nothing.
    for kill in Kill::ALL {
        assert!(report.kills.contains_key(&kill), "{kill:?}: {report}");
    }
    assert!(report.late > 0 && report.lost_answers > 0, "{report}");
    let kills = report.kills.values().sum::<usize>();
    assert!(kills >= orders / 30, "{report}");
    assert_eq!((report.completed, report.lost), (orders, 0), "{report}");
    report
}

/// Promises 2, 3 and 5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_without_keys_charges_each_order_once() {
    let report = run(true).await;
    assert_eq!(report.twice, 0, "{report}");
    assert!(report.reconciled > 0, "{report}");
}

/// The control: without the look-up, the same gateway charges some orders twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_without_keys_and_look_up_charges_twice() {
    let report = run(false).await;
    assert!(report.twice > 0, "{report}");
    assert_eq!(report.reconciled, 0, "{report}");
}

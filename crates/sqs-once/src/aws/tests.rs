//! Thaws and slow tables: the real SDK talks to a server whose connections die while this process is idle.

use std::{
    cell::Cell,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Instant,
};

use aws_sdk_dynamodb::{
    Client,
    config::{Credentials, Region, SharedCredentialsProvider},
};
use futures_util::future::join_all;

use super::*;

use crate::{
    Attempt, Deadline, Once, Operation,
    dynamo::store::{Batched, DynamoStore},
    handler::Delivery,
    protocol::{Key, Namespace},
    settings::any_store::AnyStore,
};

thread_local! {
    static CLOCK: Cell<Timestamp> = const { Cell::new(Timestamp::from_millis(1_800_000_000_000)) };
}

fn now() -> Timestamp {
    CLOCK.get()
}

/// How the connections of a server die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Closed,
    Silent,
}

/// A server that applies every request. It runs on separate threads, so that its connections die even while
/// the client's thread sleeps.
#[derive(Default)]
struct Server {
    /// Requests that arrived on live connections.
    requests: AtomicUsize,
    /// Requests that arrived on dead connections.
    lost: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    connections: Vec<TcpStream>,
    /// Connections up to this number are silent.
    silent: usize,
    delay: Duration,
    /// Requests wait until this many have arrived.
    gather: usize,
}

impl Server {
    fn start() -> (Arc<Self>, SocketAddr) {
        let server = Arc::new(Self::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Arc::clone(&server);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let mut state = serving.state.lock().unwrap();
                let number = state.connections.len();
                state.connections.push(stream.try_clone().unwrap());
                drop(state);
                let server = Arc::clone(&serving);
                thread::spawn(move || server.serve(number, stream));
            }
        });
        (server, address)
    }

    fn serve(&self, number: usize, mut stream: TcpStream) {
        while let Some(request) = read_request(&mut stream) {
            let state = self.state.lock().unwrap();
            if number < state.silent {
                drop(state);
                self.lost.fetch_add(1, SeqCst);
                continue;
            }
            let arrived = self.requests.fetch_add(1, SeqCst) + 1;
            self.changed.notify_all();
            let (delay, gather) = (state.delay, state.gather);
            let gathered = self.changed.wait_while(state, |_| {
                arrived <= gather && self.requests.load(SeqCst) < gather
            });
            drop(gathered.unwrap());
            thread::sleep(delay);
            let statements = request.matches("\"Statement\"").count();
            let body = match statements {
                0 => "{}".to_owned(),
                n => format!("{{\"Responses\":[{}]}}", vec!["{}"; n].join(",")),
            };
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\n";
            let length = body.len();
            let answer = format!("{head}content-length: {length}\r\n\r\n{body}");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    /// Kills all current connections. Blocks the client's thread, as a freeze does.
    fn kill(&self, death: Death) {
        let mut state = self.state.lock().unwrap();
        match death {
            Death::Silent => state.silent = state.connections.len(),
            Death::Closed => {
                for connection in &state.connections {
                    // The client may have closed it already.
                    let _ = connection.shutdown(std::net::Shutdown::Both);
                }
            }
        }
        drop(state);
        thread::sleep(Duration::from_millis(20));
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    fn connections(&self) -> usize {
        self.state.lock().unwrap().connections.len()
    }
}

/// Reads one request with its body. `None` if the connection has ended.
fn read_request(stream: &mut TcpStream) -> Option<String> {
    let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.trim().parse::<usize>().unwrap())
            });
            if body.len() >= length.unwrap_or(0) {
                return Some(text);
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(n) => read.extend_from_slice(&buffer[..n]),
        }
    }
}

/// Returns the same as [`config`], but without TLS and with this test's clock.
fn sdk_config(address: SocketAddr, limit: Duration) -> SdkConfig {
    let connector = SharedHttpConnector::new(Connector::builder().build_http());
    let watched = SharedHttpConnector::new(Watched::new(connector, limit, now));
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("eu-central-1"))
        .credentials_provider(SharedCredentialsProvider::new(Credentials::new(
            "test", "test", None, None, "tests",
        )))
        .endpoint_url(format!("http://{address}"))
        .timeout_config(timeouts())
        .retry_config(retries())
        .http_client(http_client_fn(move |_, _| watched.clone()))
        .build()
}

/// Sends this many requests at once, each on a different connection.
async fn open(client: &Client, server: &Server, connections: usize) {
    server.set(|state| state.gather = connections);
    let reads = (0..connections).map(|_| {
        let get = client.get_item().table_name("records");
        let id = aws_sdk_dynamodb::types::AttributeValue::S("id".into());
        get.key("id", id).send()
    });
    for read in join_all(reads).await {
        read.unwrap();
    }
    server.set(|state| state.gather = 0);
    assert_eq!(server.connections(), connections);
    server.requests.store(0, SeqCst);
}

/// Runs ten messages. Returns the names of the outcomes that are not `completed`.
async fn batch(once: &Once<impl crate::store::Store>, round: usize) -> Vec<&'static str> {
    let deadline = Deadline::after(now(), Duration::from_secs(30), Duration::from_secs(1));
    let runs = (0..10).map(async |n| {
        let id = format!("{round}-{n}");
        let key = Key::new(&Namespace::new("test").unwrap(), [&*id]).unwrap();
        let operation = Operation::new(key, None, Delivery::new(id), deadline);
        once.run(operation, async |_: Attempt| Ok(())).await.name()
    });
    let mut names = join_all(runs).await;
    names.retain(|name| *name != "completed");
    names
}

fn pass(time: Duration) {
    CLOCK.set(now() + time);
}

#[tokio::test]
async fn batch_after_a_thaw_fails_no_message() {
    for (connections, death, grouping) in [
        (10, Death::Closed, false),
        (10, Death::Closed, true),
        (10, Death::Silent, false),
        (10, Death::Silent, true),
        (100, Death::Closed, false),
        (100, Death::Closed, true),
        (100, Death::Silent, false),
        (100, Death::Silent, true),
    ] {
        let case = format!("{connections} {death:?}, grouping {grouping}");
        let (server, address) = Server::start();
        let client = Client::new(&sdk_config(address, RESTED_TIMEOUT));
        open(&client, &server, connections).await;
        pass(Duration::from_secs(3600));
        server.kill(death);

        let store = DynamoStore::new(client, "records");
        let store = if grouping {
            AnyStore::Batched(Batched::new(store))
        } else {
            AnyStore::DynamoDb(store)
        };
        let once = Once::new(store).clock(now);
        let started = Instant::now();
        assert_eq!(batch(&once, 0).await, [""; 0], "{case}");
        let took = started.elapsed();
        assert!(took < Duration::from_secs(3), "{case}: {took:?}");
        // At most one dead connection for each message, or one if a batched write carries them all.
        let lost = server.lost.load(SeqCst);
        let most = if grouping { 1 } else { 10 };
        assert!(lost <= most, "{case}: {lost} lost");
        if death == Death::Silent {
            assert_eq!(lost, most, "{case}");
            assert!(took > RESTED_TIMEOUT, "{case}: {took:?}");
        }
        let sent = server.requests.load(SeqCst);
        assert_eq!(sent, if grouping { 2 } else { 20 }, "{case}");
    }
}

#[tokio::test]
async fn one_message_after_a_thaw_uses_one_dead_connection() {
    for death in [Death::Closed, Death::Silent] {
        let (server, address) = Server::start();
        let client = Client::new(&sdk_config(address, RESTED_TIMEOUT));
        open(&client, &server, 10).await;
        pass(Duration::from_secs(5));
        server.kill(death);
        let once = Once::new(DynamoStore::new(client, "records")).clock(now);
        let key = Key::new(&Namespace::new("test").unwrap(), ["a"]).unwrap();
        let deadline = Deadline::after(now(), Duration::from_secs(30), Duration::from_secs(1));
        let operation = Operation::new(key, None, Delivery::new("a"), deadline);
        let outcome = once.run(operation, async |_: Attempt| Ok(())).await;
        assert_eq!(outcome.name(), "completed", "{death:?}");
        assert_eq!(server.connections(), 11, "{death:?}");
        assert!(server.lost.load(SeqCst) <= 1, "{death:?}");
    }
}

/// The SDK retries a call to SQS.
#[tokio::test]
async fn call_to_sqs_after_a_thaw_is_answered() {
    for death in [Death::Closed, Death::Silent] {
        let (server, address) = Server::start();
        let config = sdk_config(address, RESTED_TIMEOUT);
        open(&Client::new(&config), &server, 10).await;
        pass(Duration::from_secs(5));
        server.kill(death);
        let started = Instant::now();
        let queue = aws_sdk_sqs::Client::new(&config).get_queue_url();
        let _url = queue.queue_name("orders").send().await.unwrap();
        let took = started.elapsed();
        assert!(took < Duration::from_secs(3), "{death:?}: {took:?}");
        assert_eq!(server.requests.load(SeqCst), 1, "{death:?}");
        assert_eq!(server.connections(), 11, "{death:?}");
    }
}

/// Runs ten batches, back to back, on a table that is slower than the limit for a rested connection. All times are a fifth of the
/// real ones.
#[tokio::test]
async fn slow_table_gets_two_requests_a_message() {
    let (server, address) = Server::start();
    let client = Client::new(&sdk_config(address, RESTED_TIMEOUT / 5));
    open(&client, &server, 10).await;
    pass(Duration::from_secs(3600));
    server.set(|state| state.delay = Duration::from_millis(1200 / 5));
    let once = Once::new(DynamoStore::new(client, "records")).clock(now);
    let mut sent = Vec::new();
    for round in 0..10 {
        assert_eq!(batch(&once, round).await, [""; 0], "round {round}");
        sent.push(server.requests.swap(0, SeqCst));
        pass(Duration::from_secs(3));
    }
    // The claims of the first batch are on rested connections.
    assert_eq!(sent[0], 30);
    assert_eq!(sent[1..], [20; 9]);
    let average = sent.iter().sum::<usize>() as f64 / 100.0;
    assert!(average <= 2.4, "{average}");
}

#[tokio::test]
async fn rested_connection_that_lives_is_used() {
    let (server, address) = Server::start();
    let client = Client::new(&sdk_config(address, RESTED_TIMEOUT));
    open(&client, &server, 10).await;
    pass(Duration::from_secs(3600));
    let once = Once::new(DynamoStore::new(client, "records")).clock(now);
    assert_eq!(batch(&once, 0).await, [""; 0]);
    assert_eq!(server.requests.load(SeqCst), 20);
    assert_eq!(server.connections(), 10);
}

/// The SDK's defaults limit only the time to connect, and their client uses connections from before a freeze.
#[test]
fn configuration_of_defaults_gets_limits_and_client() {
    let defaults = SdkConfig::builder()
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(Duration::from_millis(3100))
                .build(),
        )
        .retry_config(RetryConfig::standard());
    let completed = super::completed(defaults.build());
    assert_eq!(completed.timeout_config(), Some(&timeouts()));
    assert_eq!(completed.retry_config(), Some(&retries()));
    assert!(completed.http_client().is_some());

    let second = Duration::from_secs(1);
    let limits = TimeoutConfig::builder()
        .connect_timeout(second)
        .read_timeout(4 * second)
        .operation_attempt_timeout(9 * second)
        .build();
    let own = SdkConfig::builder()
        .timeout_config(limits.clone())
        .retry_config(RetryConfig::disabled())
        .build();
    let completed = super::completed(own);
    assert_eq!(completed.timeout_config(), Some(&limits));
    assert_eq!(completed.retry_config(), Some(&RetryConfig::disabled()));
}

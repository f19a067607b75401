//! A Lambda of the test's own: the Runtime API (version 2018-06-01) over HTTP, and the release
//! binary as the process behind it.
//!
//! As in the real Lambda, a process that dies takes its invocations with it, and a process without
//! a response by the deadline is killed. Start another [`Lambda`] for a new execution environment
//! after the old one.

use std::{
    collections::HashMap,
    env::consts,
    fs,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path as UrlPath, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use super::{PATIENCE, prerequisite::missing};

pub const FUNCTION_NAME: &str = "charge-orders";
/// The namespace of consumers under test.
pub const NAMESPACE: &str = "payments";

/// Lambda's own limit of a payload.
const PAYLOAD_LIMIT: usize = 6 * 1024 * 1024;

/// X-Ray header of a function that does not trace.
const UNSAMPLED: &str = "Root=1-6a5e47a3-5c1f0e5d9ab74c8e21d03f65;Sampled=0";

/// Environment variables of the function.
pub type Env = Vec<(String, String)>;

/// How an invocation ended.
#[derive(Debug)]
pub enum Answer {
    /// The function returned this.
    Response(Value),
    /// The function returned an error: the whole batch returns to the queue.
    Error(Value),
    /// The process ended first.
    Exited,
    /// The deadline came first, and the process was killed.
    TimedOut,
}

impl Answer {
    #[track_caller]
    pub fn response(self) -> Value {
        match self {
            Answer::Response(value) => value,
            other => panic!("no response but {other:?}"),
        }
    }

    #[track_caller]
    pub fn error(self) -> Value {
        match self {
            Answer::Error(value) => value,
            other => panic!("no function-level error but {other:?}"),
        }
    }
}

/// How the process ended, and its whole output.
#[derive(Debug)]
pub struct Exit {
    pub status: ExitStatus,
    pub output: Vec<String>,
}

/// One execution environment. Killed on drop.
pub struct Lambda {
    api: Arc<Api>,
    pid: u32,
    spawned: Instant,
    output: watch::Receiver<Vec<String>>,
    exited: watch::Receiver<Option<ExitStatus>>,
    kill: mpsc::Sender<()>,
}

struct Api {
    invoke: mpsc::UnboundedSender<Invocation>,
    invocations: tokio::sync::Mutex<mpsc::UnboundedReceiver<Invocation>>,
    running: Mutex<Running>,
    /// Time of each request for the next invocation.
    polls: watch::Sender<Vec<Instant>>,
}

#[derive(Default)]
struct Running {
    answers: HashMap<String, oneshot::Sender<Answer>>,
    most: usize,
}

struct Invocation {
    event: Bytes,
    deadline_ms: u64,
    answer: oneshot::Sender<Answer>,
}

impl Lambda {
    /// Starts the consumer and waits until its init phase has ended.
    pub async fn start(env: Env) -> Self {
        Self::start_binary(&consumer(), env).await
    }

    pub async fn start_binary(binary: &Path, env: Env) -> Self {
        let mut lambda = Self::spawn(binary, env).await;
        lambda.ready().await;
        lambda
    }

    /// Starts `binary` without waiting for its init phase.
    pub async fn spawn(binary: &Path, env: Env) -> Self {
        Self::spawn_command(Command::new(binary), env).await
    }

    /// As [`Lambda::spawn`], with arguments.
    pub async fn spawn_command(mut command: Command, env: Env) -> Self {
        let (invoke, invocations) = mpsc::unbounded_channel();
        let api = Arc::new(Api {
            invoke,
            invocations: tokio::sync::Mutex::new(invocations),
            running: Mutex::default(),
            polls: watch::Sender::new(Vec::new()),
        });
        let (exit, exited) = watch::channel(None);
        let mut ended = exited.clone();
        let ended = async move {
            let _ = ended.wait_for(Option::is_some).await;
        };
        let address = super::serve_until(routes(api.clone()), ended).await;

        let spawned = Instant::now();
        let program = command.as_std().get_program().to_owned();
        let mut child = command
            .env_clear()
            .envs(lambda_env(&address.to_string()))
            .envs(env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));

        let (lines, output) = watch::channel(Vec::new());
        let lines = Arc::new(lines);
        let stdout = tokio::spawn(collect(child.stdout.take().unwrap(), lines.clone()));
        let stderr = tokio::spawn(collect(child.stderr.take().unwrap(), lines));
        let (kill, killed) = mpsc::channel(1);
        let pid = child.id().unwrap();
        tokio::spawn({
            let api = api.clone();
            async move {
                let status = wait(child, killed).await;
                // A reader of the exit status finds the output complete.
                stdout.await.unwrap();
                stderr.await.unwrap();
                api.end().await;
                exit.send_replace(Some(status));
            }
        });
        Self {
            api,
            pid,
            spawned,
            output,
            exited,
            kill,
        }
    }

    /// Waits for the first request for an invocation, which ends the init phase. Returns the time
    /// since the start of the process.
    pub async fn ready(&mut self) -> Duration {
        let first = tokio::select! {
            polls = self.polls(1) => polls[0],
            exit = self.exit() => panic!("the function did not start: {exit:#?}"),
        };
        first.duration_since(self.spawned)
    }

    /// Waits until the function has asked for an invocation `n` times in its life.
    pub async fn polls(&self, n: usize) -> Vec<Instant> {
        let mut polls = self.api.polls.subscribe();
        let enough = timeout(PATIENCE, polls.wait_for(|polls| polls.len() >= n)).await;
        enough
            .unwrap_or_else(|_| panic!("no request number {n} for an invocation"))
            .unwrap()
            .clone()
    }

    /// Runs one invocation with so much time until its deadline. Several may be outstanding.
    pub async fn invoke(&self, event: Value, time: Duration) -> Answer {
        self.invoke_bytes(event.to_string(), time).await
    }

    /// As [`Lambda::invoke`], with a payload that need not be an event, or even text.
    pub async fn invoke_bytes(&self, event: impl Into<Bytes>, time: Duration) -> Answer {
        let deadline = SystemTime::now() + time;
        let deadline = deadline.duration_since(UNIX_EPOCH).unwrap();
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap();
        self.hand_over(event.into(), deadline_ms, time).await
    }

    /// As [`Lambda::invoke`], with a deadline in the header that need not be the true one.
    pub async fn invoke_until(&self, event: Value, deadline_ms: u64, time: Duration) -> Answer {
        self.hand_over(event.to_string().into(), deadline_ms, time)
            .await
    }

    async fn hand_over(&self, event: Bytes, deadline_ms: u64, time: Duration) -> Answer {
        let (answer, answered) = oneshot::channel();
        let invocation = Invocation {
            event,
            deadline_ms,
            answer,
        };
        // Refused once the process has ended, which drops the sender of the response.
        let _ = self.api.invoke.send(invocation);
        match timeout(time, answered).await {
            Ok(answer) => answer.unwrap_or(Answer::Exited),
            Err(_) => {
                let _ = self.kill.try_send(());
                Answer::TimedOut
            }
        }
    }

    /// Maximum number of concurrent invocations so far.
    pub fn most_at_once(&self) -> usize {
        self.api.running.lock().unwrap().most
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends the process a signal, such as `-STOP`.
    pub async fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        let sent = kill.args([name, &self.pid.to_string()]).status().await;
        assert!(sent.unwrap().success(), "{name}");
    }

    /// What Linux says of the process's memory under this name, in bytes. `None` on other systems.
    pub fn memory(&self, name: &str) -> Option<usize> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let mut lines = status.lines().filter_map(|line| line.split_once(':'));
        let (_, size) = lines.find(|(of, _)| *of == name)?;
        let kib: usize = size.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib * 1024)
    }

    pub fn output(&self) -> Vec<String> {
        self.output.borrow().clone()
    }

    /// The log lines for which `wanted` holds, once there are `n`; a line may reach the test after
    /// the response it precedes.
    pub async fn logged(&self, n: usize, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let select = |lines: &Vec<String>| -> Vec<Value> {
            let lines = lines
                .iter()
                .filter_map(|line| serde_json::from_str(line).ok());
            lines.filter(&wanted).collect()
        };
        let mut output = self.output.clone();
        let enough = output.wait_for(|lines| select(lines).len() >= n);
        match timeout(PATIENCE, enough).await {
            Ok(Ok(lines)) => select(&lines),
            _ => panic!("fewer than {n} such lines in {:#?}", self.output()),
        }
    }

    /// SIGKILL, as when the sandbox is removed in the middle of an invocation.
    pub async fn kill(&self) -> Exit {
        let _ = self.kill.try_send(());
        self.exit().await
    }

    /// Waits until the process has ended.
    pub async fn exit(&self) -> Exit {
        let mut exited = self.exited.clone();
        let status = timeout(PATIENCE, exited.wait_for(Option::is_some)).await;
        let status = status.unwrap_or_else(|_| panic!("still running: {:#?}", self.output()));
        Exit {
            status: status.unwrap().unwrap(),
            output: self.output(),
        }
    }
}

impl Api {
    /// The process is gone, so running and waiting invocations end.
    async fn end(&self) {
        let mut invocations = self.invocations.lock().await;
        invocations.close();
        while invocations.recv().await.is_some() {}
        self.running.lock().unwrap().answers.clear();
    }

    fn answer(&self, id: &str, answer: Answer) -> Response {
        match self.running.lock().unwrap().answers.remove(id) {
            Some(invocation) => {
                // The caller no longer waits after the deadline.
                let _ = invocation.send(answer);
                (StatusCode::ACCEPTED, r#"{"status":"OK"}"#).into_response()
            }
            None => (StatusCode::FORBIDDEN, r#"{"errorType":"InvalidRequestID"}"#).into_response(),
        }
    }
}

fn routes(api: Arc<Api>) -> Router {
    let paths = Router::new()
        .route("/invocation/next", get(next))
        .route("/invocation/{id}/response", post(response))
        .route("/invocation/{id}/error", post(error))
        .route("/init/error", post(|| async { StatusCode::ACCEPTED }));
    Router::new()
        .nest("/2018-06-01/runtime", paths)
        .layer(DefaultBodyLimit::max(PAYLOAD_LIMIT))
        .with_state(api)
}

async fn next(State(api): State<Arc<Api>>) -> Response {
    let now = Instant::now();
    api.polls.send_modify(|polls| polls.push(now));
    let Some(invocation) = api.invocations.lock().await.recv().await else {
        return StatusCode::GONE.into_response();
    };

    let id = uuid::Uuid::new_v4().to_string();
    let arn = format!(
        "arn:aws:lambda:{}:123456789012:function:{FUNCTION_NAME}",
        super::REGION
    );
    let headers = [
        ("content-type", "application/json".to_owned()),
        ("lambda-runtime-aws-request-id", id.clone()),
        (
            "lambda-runtime-deadline-ms",
            invocation.deadline_ms.to_string(),
        ),
        ("lambda-runtime-invoked-function-arn", arn),
        ("lambda-runtime-trace-id", UNSAMPLED.to_owned()),
    ];
    let mut running = api.running.lock().unwrap();
    running.answers.insert(id, invocation.answer);
    running.most = running.most.max(running.answers.len());
    (headers, invocation.event).into_response()
}

async fn response(
    State(api): State<Arc<Api>>,
    UrlPath(id): UrlPath<String>,
    body: Bytes,
) -> Response {
    api.answer(&id, Answer::Response(json(&body)))
}

async fn error(State(api): State<Arc<Api>>, UrlPath(id): UrlPath<String>, body: Bytes) -> Response {
    api.answer(&id, Answer::Error(json(&body)))
}

/// A response that is not JSON is kept as a string, so that the test fails on it.
fn json(body: &[u8]) -> Value {
    serde_json::from_slice(body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(body).into_owned()))
}

async fn wait(mut child: Child, mut killed: mpsc::Receiver<()>) -> ExitStatus {
    tokio::select! {
        status = child.wait() => return status.unwrap(),
        // On request, or because the `Lambda` was dropped.
        _ = killed.recv() => {}
    }
    child.kill().await.unwrap();
    child.wait().await.unwrap()
}

async fn collect(pipe: impl AsyncRead + Unpin, lines: Arc<watch::Sender<Vec<String>>>) {
    let mut pipe = BufReader::new(pipe).lines();
    while let Some(line) = pipe.next_line().await.unwrap() {
        lines.send_modify(|lines| lines.push(line));
    }
}

/// Variables that Lambda sets for every function.
fn lambda_env(runtime_api: &str) -> Env {
    let env = [
        ("AWS_LAMBDA_RUNTIME_API", runtime_api),
        ("AWS_LAMBDA_FUNCTION_NAME", FUNCTION_NAME),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128"),
        ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST"),
        ("AWS_LAMBDA_LOG_GROUP_NAME", "/aws/lambda/charge-orders"),
        ("AWS_LAMBDA_LOG_STREAM_NAME", "2026/01/01/[$LATEST]0"),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand"),
        ("AWS_REGION", super::REGION),
        ("AWS_DEFAULT_REGION", super::REGION),
        ("AWS_ACCESS_KEY_ID", super::ACCESS_KEY),
        ("AWS_SECRET_ACCESS_KEY", super::ACCESS_KEY),
        ("TZ", ":UTC"),
    ];
    env.map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
}

/// The consumer as it ships: `CONSUMER_BIN`, or the last release build.
#[track_caller]
pub fn consumer() -> PathBuf {
    let named = std::env::var_os("CONSUMER_BIN").map(PathBuf::from);
    named.unwrap_or_else(|| program("consumer"))
}

/// True for the one log line of each message.
pub fn of_message(line: &Value) -> bool {
    line["message"] == "message processed"
}

/// The warning that the outcome of an earlier attempt is unknown.
pub fn of_takeover(line: &Value) -> bool {
    says(line, "takeover: ")
}

/// The line of each batch.
pub fn of_batch(line: &Value) -> bool {
    line["message"] == "batch processed"
}

/// True for a line whose message contains `words`.
pub fn says(line: &Value, words: &str) -> bool {
    let message = line["message"].as_str();
    message.is_some_and(|message| message.contains(words))
}

/// A release build: of the consumer, or of a program of `tests/programs`.
///
/// # Panics
///
/// If there is none, or one that may be older than its sources.
#[track_caller]
pub fn program(name: &str) -> PathBuf {
    let build = release_build(name);
    if let Err(reason) = build.is_current() {
        missing(&format!("{name}: {reason} (`make programs`)"));
    }
    build.binary
}

struct Build {
    binary: PathBuf,
    /// Cargo's list: "binary: source source ...".
    sources: PathBuf,
}

impl Build {
    /// The reason if the binary is not that of its sources.
    fn is_current(&self) -> Result<(), String> {
        let changed = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
        let built = changed(&self.binary).ok_or("there is no release build")?;
        let list = fs::read_to_string(&self.sources).unwrap_or_default();
        let (_, list) = list.split_once(": ").ok_or_else(|| {
            let path = self.sources.display();
            format!("{path} lists no sources, so that the release build may be old")
        })?;
        let list = list.trim_end().replace("\\ ", "\0");
        for source in list.split(' ').map(|source| source.replace('\0', " ")) {
            if changed(Path::new(&source)).is_none_or(|changed| changed > built) {
                return Err(format!("{source} is newer than the release build, or gone"));
            }
        }
        Ok(())
    }
}

/// The place where `make programs` builds for this machine: with cargo-lambda on Linux.
fn release_build(name: &str) -> Build {
    // This test is <target>/<profile>/deps/<test>.
    let this = std::env::current_exe().unwrap();
    let target = this.ancestors().nth(3).unwrap();
    let sources = format!("{name}.d");
    if consts::OS == "linux" {
        let host = format!("{}-unknown-linux-gnu", consts::ARCH);
        Build {
            binary: target.join("lambda").join(name).join("bootstrap"),
            sources: target.join(host).join("release").join(sources),
        }
    } else {
        let release = target.join("release");
        Build {
            binary: release.join(name),
            sources: release.join(sources),
        }
    }
}

//! One process of a candidate: started, driven through the Runtime API, and measured.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};
use support::{
    event,
    runtime_api::{Answer, Lambda},
    stub::{Counts, Stub},
    throttle::{self, Throttle, cpu_time},
};

use crate::candidates::Candidate;

/// Each invocation's time until its deadline.
const DEADLINE: Duration = Duration::from_secs(60);
/// Not measured: up to so many batches open connections and fill pools and caches.
const WARM_UP: usize = 5;
/// Messages of a warm-up batch at most. A larger batch is measured with the connections it opens.
const WARM_UP_MESSAGES: usize = 100;

const MIB: f64 = 1024.0 * 1024.0;

/// The batches for one process.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// Messages in a batch.
    pub(crate) messages: usize,
    /// Number of batches at most.
    pub(crate) batches: usize,
    /// No further batch after this time, of the warm-up either.
    pub(crate) time: Duration,
}

/// Measurements of a process at its start.
pub(crate) struct Start {
    pub(crate) init: Duration,
    /// The first batch, of one message.
    pub(crate) first: Duration,
}

/// Measurements of a process after its warm-up.
pub(crate) struct Run {
    /// Sorted.
    warm: Vec<Duration>,
    cpu: Duration,
    messages: usize,
    pub(crate) peak_memory_mib: f64,
    /// Of the process's life.
    pub(crate) connections: f64,
    requests: u64,
    bytes: u64,
}

/// The response to a batch with too little time for it.
pub(crate) struct CutOff {
    /// Memory of the function whose share of a vCPU was imitated, in MB.
    pub(crate) memory: Option<u64>,
    pub(crate) response: Duration,
}

/// A batch that did not succeed, in words.
pub(crate) type Failed = String;

pub(crate) async fn start(candidate: &Candidate, stub: &Stub) -> Result<Start, Failed> {
    let mut function = Function::spawn(candidate, stub, 1, &[]).await;
    let init = function.lambda.ready().await;
    let first = function.batch(1).await?;
    function.lambda.kill().await;
    Ok(Start { init, first })
}

/// Runs warm-up and `load`, if `throttled` with the CPU of a function with so much memory.
pub(crate) async fn run(
    candidate: &Candidate,
    stub: &Stub,
    load: Load,
    throttled: Option<u64>,
) -> Result<Run, Failed> {
    let memory = throttled.map(|memory| ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory.to_string()));
    let mut function = Function::spawn(candidate, stub, load.messages, memory.as_slice()).await;
    function.lambda.ready().await;
    let pid = function.lambda.pid();
    // Init has the CPU of a whole vCPU, as in Lambda.
    let throttle = throttled.map(|memory| Throttle::start(pid, throttle::share(memory)));
    let warm_up = match load.messages {
        few @ ..=WARM_UP_MESSAGES => few,
        _ => 10,
    };
    let begin = Instant::now();
    for number in 0..WARM_UP {
        if number == 0 || begin.elapsed() < load.time {
            function.batch(warm_up).await?;
        }
    }

    let (cpu, sent, before) = (cpu_time(pid), function.sent, stub.counts());
    let mut warm = Vec::with_capacity(load.batches);
    let begin = Instant::now();
    while warm.is_empty() || (warm.len() < load.batches && begin.elapsed() < load.time) {
        warm.push(function.batch(load.messages).await?);
    }
    warm.sort();
    let Counts {
        requests,
        bytes,
        connections,
    } = stub.counts();
    let run = Run {
        warm,
        cpu: cpu_time(pid) - cpu,
        messages: function.sent - sent,
        peak_memory_mib: peak_memory_mib(pid),
        connections: connections as f64,
        requests: requests - before.requests,
        bytes: bytes - before.bytes,
    };
    drop(throttle);
    // The next process starts after the end of this one.
    function.lambda.kill().await;
    Ok(run)
}

/// Runs one batch of `messages` with `time` until the deadline, if `throttled` with the CPU of a function
/// with so much memory.
pub(crate) async fn cut_off(
    candidate: &Candidate,
    stub: &Stub,
    messages: usize,
    time: Duration,
    throttled: Option<u64>,
) -> Result<CutOff, Failed> {
    let memory = throttled.map(|memory| ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory.to_string()));
    let mut function = Function::spawn(candidate, stub, messages, memory.as_slice()).await;
    function.lambda.ready().await;
    let pid = function.lambda.pid();
    let throttle = throttled.map(|memory| Throttle::start(pid, throttle::share(memory)));
    let (response, _failed) = function.invoke(messages, time).await?;
    drop(throttle);
    function.lambda.kill().await;
    Ok(CutOff {
        memory: throttled,
        response,
    })
}

pub(crate) struct Function {
    pub(crate) lambda: Lambda,
    sent: usize,
}

impl Function {
    /// Starts a process that will get batches of so many messages.
    pub(crate) async fn spawn(
        candidate: &Candidate,
        stub: &Stub,
        messages: usize,
        more_env: &[(&str, String)],
    ) -> Self {
        let mut env = candidate.env(&stub.endpoint, messages);
        env.extend(
            more_env
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone())),
        );
        Self::of(Lambda::spawn_command(candidate.command(), env).await)
    }

    pub(crate) fn of(lambda: Lambda) -> Self {
        Self { lambda, sent: 0 }
    }

    /// One batch of new orders, all of which must succeed: a failure would be measured as speed.
    pub(crate) async fn batch(&mut self, messages: usize) -> Result<Duration, Failed> {
        match self.invoke(messages, DEADLINE).await? {
            (time, 0) => Ok(time),
            (_, failed) => Err(format!("{failed} of {messages} messages failed")),
        }
    }

    /// One batch of new orders: the time of the response, and the number of failed messages.
    async fn invoke(
        &mut self,
        messages: usize,
        time: Duration,
    ) -> Result<(Duration, usize), Failed> {
        let orders = self.sent..self.sent + messages;
        self.sent += messages;
        let records =
            orders.map(|n| event::record(&format!("m-{n}"), &event::order(&format!("o-{n}"))));
        let batch = event::batch(records).to_string();
        let start = Instant::now();
        match self.lambda.invoke_bytes(batch, time).await {
            Answer::Response(response) => Ok((start.elapsed(), event::failed(&response).len())),
            Answer::Error(error) => {
                let error = error["errorMessage"].as_str().unwrap_or_default();
                let cause = error.rsplit(": ").next().unwrap_or_default();
                Err(format!("all {messages} messages failed: {cause}"))
            }
            Answer::Exited => Err(format!("the process ended: {:?}", self.lambda.output())),
            Answer::TimedOut => Err(format!("no response within {time:?}")),
        }
    }
}

fn peak_memory_mib(pid: u32) -> f64 {
    let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"));
    let status = status.unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<f64>().unwrap() * 1024.0 / MIB
}

impl Run {
    pub(crate) fn p50_ms(&self) -> f64 {
        self.percentile_ms(50)
    }

    pub(crate) fn p99_ms(&self) -> f64 {
        self.percentile_ms(99)
    }

    fn percentile_ms(&self, percent: usize) -> f64 {
        let rank = (self.warm.len() * percent).div_ceil(100).max(1);
        milliseconds(self.warm[rank - 1])
    }

    /// Milliseconds per 1000 messages.
    pub(crate) fn cpu_ms(&self) -> f64 {
        milliseconds(self.cpu) * 1000.0 / self.messages as f64
    }

    pub(crate) fn requests_per_message(&self) -> f64 {
        self.requests as f64 / self.messages as f64
    }

    pub(crate) fn bytes_per_request(&self) -> f64 {
        self.bytes as f64 / self.requests as f64
    }
}

pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

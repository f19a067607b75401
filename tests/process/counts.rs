//! What a new message costs the release build: requests, their bytes, and instructions. None depends on how busy the machine
//! is. Times are in `make bench`.

use std::{ops::Range, path::Path};

use serde_json::{Value, json};
use support::{
    callgrind,
    event::{batch, order, record},
    runtime_api::{Env, Lambda, consumer},
    stage::{TIME, env},
    stub::Stub,
};

/// What a message may cost in batches of one size.
struct Limit {
    messages: usize,
    requests: f64,
    /// Of the requests' bodies.
    bytes: f64,
    /// Measured on x86-64 with rustc 1.95, plus a tenth.
    instructions: f64,
    /// The batches whose number differs between two runs.
    counted: [usize; 2],
}

const LIMITS: [Limit; 3] = [
    Limit {
        messages: 1,
        requests: 2.0,
        bytes: 1_550.0,
        instructions: 1_545_000.0,
        counted: [5, 25],
    },
    Limit {
        messages: 10,
        requests: 0.2,
        bytes: 1_130.0,
        instructions: 445_000.0,
        counted: [2, 8],
    },
    Limit {
        messages: 100,
        requests: 0.08,
        bytes: 1_130.0,
        instructions: 385_000.0,
        counted: [2, 4],
    },
];

fn settings(stub: &Stub) -> Env {
    // The template's memory, with which 100 messages run at a time.
    let memory = ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256");
    env(&stub.endpoint, "sandbox", &[memory])
}

/// Runs the batches with these numbers, each of new orders.
async fn run(lambda: &Lambda, messages: usize, batches: Range<usize>) {
    for number in batches {
        let orders = number * messages..(number + 1) * messages;
        let orders = orders.map(|n| record(&format!("m-{n}"), &order(&format!("o-{n}"))));
        let response: Value = lambda.invoke(batch(orders), 6 * TIME).await.response();
        assert_eq!(response, json!({"batchItemFailures": []}));
    }
}

#[tokio::test]
async fn requests_and_bytes_of_a_message_have_limits() {
    let stub = Stub::start().await;
    for Limit {
        messages,
        requests,
        bytes,
        ..
    } in LIMITS
    {
        let lambda = Lambda::start(settings(&stub)).await;
        // The least of ten batches: on a busy machine one may be sent in more requests.
        let (mut least_requests, mut least_bytes) = (u64::MAX, u64::MAX);
        for number in 0..10 {
            stub.reset(0);
            run(&lambda, messages, number..number + 1).await;
            let seen = stub.counts();
            least_requests = least_requests.min(seen.requests);
            least_bytes = least_bytes.min(seen.bytes);
        }
        let seen = least_requests as f64 / messages as f64;
        assert!(
            seen <= requests,
            "batch of {messages}: {seen} requests a message"
        );
        let seen = least_bytes as f64 / messages as f64;
        assert!(
            seen <= bytes,
            "batch of {messages}: {seen:.0} bytes a message"
        );
    }
}

#[tokio::test]
#[ignore = "needs valgrind, and x86-64 for the limits"]
async fn instructions_of_a_message_have_limits() {
    let stub = Stub::start().await;
    for Limit {
        messages,
        instructions,
        counted,
        ..
    } in LIMITS
    {
        let mut seen = [0; 2];
        for (seen, batches) in seen.iter_mut().zip(counted) {
            let lambda =
                callgrind::start(&consumer(), settings(&stub), Path::new("/dev/null")).await;
            run(&lambda, messages, 0..batches).await;
            *seen = callgrind::end(lambda, batches).await;
        }
        let [few, many] = counted;
        let seen = (seen[1] - seen[0]) as f64 / (messages * (many - few)) as f64;
        println!("batch of {messages}: {seen:.0} instructions a message");
        assert!(
            seen <= instructions,
            "batch of {messages}: {seen:.0} instructions a message"
        );
    }
}

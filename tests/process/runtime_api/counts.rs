//! Limits of what the release build spends on a new message: requests, their bytes, and instructions. A busy machine doesn't
//! change these counts. `make bench` measures times.

use std::{ops::Range, path::Path};

use support::{callgrind, stub::Stub};

use super::*;

/// The limits for a message in batches of one size.
struct Limit {
    messages: u32,
    requests: f64,
    /// Of the requests' bodies.
    bytes: f64,
    /// Measured on x86-64 with rustc 1.95, plus a tenth.
    instructions: f64,
    /// How many batches each of two runs has. The difference is counted, without start and end of the process.
    counted: [u32; 2],
}

const LIMITS: [Limit; 3] = [
    Limit {
        messages: 1,
        requests: 2.0,
        bytes: 1_400.0,
        instructions: 1_480_000.0,
        counted: [5, 25],
    },
    Limit {
        messages: 10,
        requests: 0.2,
        bytes: 960.0,
        instructions: 402_000.0,
        counted: [2, 8],
    },
    Limit {
        messages: 100,
        requests: 0.08,
        bytes: 960.0,
        instructions: 334_000.0,
        counted: [2, 4],
    },
];

fn settings(stub: &Stub) -> Env {
    // The template's memory, with which 100 messages run at a time.
    let memory = ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256");
    env(&stub.endpoint, "sandbox", &[memory])
}

/// Runs the batches with these numbers, each of new orders.
async fn run(lambda: &Lambda, messages: u32, batches: Range<u32>) {
    for number in batches {
        let event = orders(number * messages + 1..=(number + 1) * messages);
        let response = lambda.invoke(event, 6 * TIME).await.response();
        assert_eq!(response, json!({"batchItemFailures": []}));
    }
}

#[tokio::test]
async fn requests_and_bytes_of_a_message_have_limits() {
    let stub = Stub::start().await;
    for limit in LIMITS {
        let messages = limit.messages;
        let lambda = Lambda::start(settings(&stub)).await;
        // The least of ten batches: on a busy machine one may be sent in more requests.
        let (mut requests, mut bytes) = (u64::MAX, u64::MAX);
        for number in 0..10 {
            stub.reset(0);
            run(&lambda, messages, number..number + 1).await;
            let seen = stub.counts();
            (requests, bytes) = (requests.min(seen.requests), bytes.min(seen.bytes));
        }
        check("requests", requests, messages, limit.requests);
        check("bytes", bytes, messages, limit.bytes);
    }
}

#[tokio::test]
#[ignore = "needs valgrind, and x86-64 for the limits"]
async fn instructions_of_a_message_have_limits() {
    let stub = Stub::start().await;
    for limit in LIMITS {
        let messages = limit.messages;
        let mut seen = [0; 2];
        for (seen, batches) in seen.iter_mut().zip(limit.counted) {
            let profile = Path::new("/dev/null");
            let lambda = callgrind::start(&consumer(), settings(&stub), profile).await;
            run(&lambda, messages, 0..batches).await;
            *seen = callgrind::end(lambda, batches as usize).await;
        }
        let [few, many] = limit.counted;
        let messages_more = messages * (many - few);
        check(
            "instructions",
            seen[1] - seen[0],
            messages_more,
            limit.instructions,
        );
    }
}

/// Checks the count of one thing that these messages cost together.
#[track_caller]
fn check(what: &str, count: u64, messages: u32, limit: f64) {
    let seen = count as f64 / f64::from(messages);
    println!("{seen} {what} a message; the limit is {limit}");
    assert!(
        seen <= limit,
        "{seen} {what} a message, of {messages}; the limit is {limit}"
    );
}

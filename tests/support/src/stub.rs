//! A stub of DynamoDB that accepts every write, and counts requests, bytes and connections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Router, http::header::CONTENT_TYPE, serve::ListenerExt};

pub struct Stub {
    pub endpoint: String,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    latency_ms: AtomicU64,
    requests: AtomicU64,
    bytes: AtomicU64,
    connections: AtomicU64,
}

/// Counts since the last reset.
#[derive(Clone, Copy)]
pub struct Counts {
    pub requests: u64,
    /// Of the requests' bodies.
    pub bytes: u64,
    pub connections: u64,
}

impl Stub {
    pub async fn start() -> Self {
        let seen = Arc::new(Seen::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let listener = listener.tap_io({
            let seen = seen.clone();
            move |stream| {
                stream.set_nodelay(true).unwrap();
                seen.connections.fetch_add(1, Relaxed);
            }
        });
        let answer = {
            let seen = seen.clone();
            async move |body: String| {
                seen.requests.fetch_add(1, Relaxed);
                seen.bytes.fetch_add(body.len() as u64, Relaxed);
                let latency = seen.latency_ms.load(Relaxed);
                if latency > 0 {
                    tokio::time::sleep(Duration::from_millis(latency)).await;
                }
                (
                    [(CONTENT_TYPE, "application/x-amz-json-1.0")],
                    accept(&body),
                )
            }
        };
        let app = Router::new().fallback(answer);
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { endpoint, seen }
    }

    /// Sets the delay of every answer, and all counts to 0.
    pub fn reset(&self, latency_ms: u64) {
        self.seen.latency_ms.store(latency_ms, Relaxed);
        for count in [
            &self.seen.requests,
            &self.seen.bytes,
            &self.seen.connections,
        ] {
            count.store(0, Relaxed);
        }
    }

    pub fn counts(&self) -> Counts {
        Counts {
            requests: self.seen.requests.load(Relaxed),
            bytes: self.seen.bytes.load(Relaxed),
            connections: self.seen.connections.load(Relaxed),
        }
    }
}

/// The response to an accepted request: for a `BatchExecuteStatement` one answer per statement.
fn accept(body: &str) -> String {
    // Inside a string of the JSON, a quotation mark follows a backslash.
    match body.matches(r#""Statement":"#).count() {
        0 => "{}".to_owned(),
        statements => {
            let answers = [r#"{"TableName":"orders"}"#].repeat(statements);
            format!(r#"{{"Responses":[{}]}}"#, answers.join(","))
        }
    }
}

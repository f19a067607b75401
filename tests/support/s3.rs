//! An S3 that gives the answers that no emulator gives, and remembers its requests.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{Response, StatusCode, Uri},
};
use futures_util::{StreamExt as _, stream};

/// The bucket of every object.
pub const BUCKET: &str = "order-bodies";

/// Answer to every request for one object.
#[derive(Clone, Debug)]
pub enum S3Answer {
    Object(Bytes),
    /// The object, after this time.
    Late(Duration, Bytes),
    /// Status and error code.
    Error(u16, &'static str),
    /// No answer.
    Silence,
    /// The head of an answer with this length, one byte, and then nothing.
    Stall(usize),
    /// Bytes without length and without end.
    Endless,
}

pub struct S3 {
    desk: Arc<S3State>,
    endpoint: String,
}

#[derive(Default)]
struct S3State {
    answers: Mutex<HashMap<String, S3Answer>>,
    requests: Mutex<Vec<String>>,
}

impl S3 {
    pub async fn start() -> Self {
        let desk = Arc::new(S3State::default());
        let app = Router::new().fallback(answer).with_state(desk.clone());
        let endpoint = format!("http://{}", super::serve(app).await);
        Self { desk, endpoint }
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Sets the answer for an object of [`BUCKET`].
    pub fn put(&self, key: &str, answer: S3Answer) {
        let path = format!("/{BUCKET}/{key}");
        self.desk.answers.lock().unwrap().insert(path, answer);
    }

    /// Stores an object in [`BUCKET`].
    pub fn put_object(&self, key: &str, body: &(impl ToString + ?Sized)) {
        self.put(key, S3Answer::Object(body.to_string().into()));
    }

    /// Paths of the requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.desk.requests.lock().unwrap().clone()
    }
}

/// The body of a message whose content is in [`BUCKET`], as the Java client writes it.
pub fn pointer(key: &str) -> String {
    pointer_to(BUCKET, key)
}

/// The same, for any bucket.
pub fn pointer_to(bucket: &str, key: &str) -> String {
    let class = "software.amazon.payloadoffloading.PayloadS3Pointer";
    format!(r#"["{class}",{{"s3BucketName":"{bucket}","s3Key":"{key}"}}]"#)
}

async fn answer(State(desk): State<Arc<S3State>>, uri: Uri) -> Response<Body> {
    let path = uri.path().to_owned();
    desk.requests.lock().unwrap().push(path.clone());
    let chosen = desk.answers.lock().unwrap().get(&path).cloned();
    let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"{"))]);
    match chosen.unwrap_or(S3Answer::Error(404, "NoSuchKey")) {
        S3Answer::Object(body) => Response::new(body.into()),
        S3Answer::Late(pause, body) => {
            tokio::time::sleep(pause).await;
            Response::new(body.into())
        }
        S3Answer::Error(status, code) => {
            let said = format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
                 <Error><Code>{code}</Code><Message>said {path}</Message><Key>{path}</Key></Error>"
            );
            let mut response = Response::new(said.into());
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            response
        }
        S3Answer::Silence => std::future::pending().await,
        S3Answer::Stall(length) => Response::builder()
            .header("content-length", length)
            .body(Body::from_stream(first.chain(stream::pending())))
            .unwrap(),
        S3Answer::Endless => {
            let more = stream::repeat_with(|| Ok(Bytes::from(vec![b' '; 64 << 10])));
            Response::new(Body::from_stream(first.chain(more)))
        }
    }
}

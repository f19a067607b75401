//! An S3 that gives the answers that no emulator gives, and remembers its requests.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_config::{SdkConfig, retry::RetryConfig, timeout::TimeoutConfig};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, Method, Response, StatusCode, Uri},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures_util::{StreamExt as _, stream};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;

/// The bucket of every object.
pub const BUCKET: &str = "order-bodies";

/// Short timeouts and retries without pause.
pub fn impatient(endpoint: &str) -> SdkConfig {
    let retries = RetryConfig::standard().with_max_attempts(2);
    let timeouts = TimeoutConfig::builder().operation_attempt_timeout(Duration::from_millis(300));
    let config = super::sdk_config(endpoint).to_builder();
    config
        .retry_config(retries.with_initial_backoff(Duration::from_millis(1)))
        .timeout_config(timeouts.build())
        .build()
}

/// A client of the emulator.
pub fn client(config: &SdkConfig) -> aws_sdk_s3::Client {
    let config = aws_sdk_s3::config::Builder::from(config).force_path_style(true);
    aws_sdk_s3::Client::from_conf(config.build())
}

/// Creates a bucket of the emulator, unless an earlier run left it there.
pub async fn create_bucket(s3: &aws_sdk_s3::Client, bucket: &str) {
    use aws_sdk_s3::types::{BucketLocationConstraint, CreateBucketConfiguration};
    let place = CreateBucketConfiguration::builder()
        .location_constraint(BucketLocationConstraint::EuCentral1)
        .build();
    let create = s3.create_bucket().bucket(bucket);
    let _exists = create.create_bucket_configuration(place).send().await;
}

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

/// Fate of every object that is put.
#[derive(Clone, Copy, Debug, Default)]
pub enum S3Put {
    #[default]
    Stored,
    /// The request is lost: nothing is stored, and no answer comes.
    Lost,
    /// The object is stored, and no answer comes.
    Unanswered,
    /// The object is stored after [`S3::release`], and no answer comes.
    Late,
    /// Status and error code. Nothing is stored.
    Error(u16, &'static str),
    /// A 200 of another server. Nothing is stored.
    Foreign,
}

pub struct S3 {
    desk: Arc<S3State>,
    endpoint: String,
}

#[derive(Default)]
struct S3State {
    answers: Mutex<HashMap<String, S3Answer>>,
    requests: Mutex<Vec<String>>,
    put: Mutex<S3Put>,
    /// Paths of objects that were put.
    puts: Mutex<Vec<String>>,
    put_ended: Notify,
    released: Notify,
    late_stored: Notify,
}

impl S3State {
    fn store(&self, path: String, object: S3Answer) {
        self.answers.lock().unwrap().insert(path, object);
    }
}

impl S3 {
    pub async fn start() -> Self {
        let desk = Arc::new(S3State::default());
        let app = Router::new().fallback(answer).with_state(desk.clone());
        let app = app.layer(DefaultBodyLimit::disable());
        let endpoint = format!("http://{}", super::serve(app).await);
        Self { desk, endpoint }
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Sets the answer for an object of [`BUCKET`].
    pub fn put(&self, key: &str, answer: S3Answer) {
        let path = format!("/{BUCKET}/{key}");
        self.desk.store(path, answer);
    }

    /// Stores an object in [`BUCKET`].
    pub fn put_object(&self, key: &str, body: &(impl ToString + ?Sized)) {
        self.put(key, S3Answer::Object(body.to_string().into()));
    }

    /// Decides the fate of objects that are put from now on.
    pub fn on_put(&self, put: S3Put) {
        *self.desk.put.lock().unwrap() = put;
    }

    /// Waits for the next request to put an object.
    pub async fn next_put(&self) {
        self.desk.put_ended.notified().await;
    }

    /// Stores the object that is late, and waits for it.
    pub async fn release(&self) {
        self.desk.released.notify_one();
        self.desk.late_stored.notified().await;
    }

    /// Names of objects that were put, with each try.
    pub fn puts(&self) -> Vec<String> {
        let puts = self.desk.puts.lock().unwrap();
        let prefix = format!("/{BUCKET}/");
        puts.iter().map(|path| path.replace(&prefix, "")).collect()
    }

    /// Names of the objects of [`BUCKET`].
    pub fn objects(&self) -> Vec<String> {
        let answers = self.desk.answers.lock().unwrap();
        let prefix = format!("/{BUCKET}/");
        answers
            .keys()
            .map(|path| path.replace(&prefix, ""))
            .collect()
    }

    /// Paths of the reads so far.
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

async fn answer(
    State(desk): State<Arc<S3State>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let path = uri.path().to_owned();
    if method == Method::PUT {
        return answer_put(desk, path, &headers, body).await;
    }
    desk.requests.lock().unwrap().push(path.clone());
    let chosen = desk.answers.lock().unwrap().get(&path).cloned();
    let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"{"))]);
    match chosen.unwrap_or(S3Answer::Error(404, "NoSuchKey")) {
        S3Answer::Object(body) => Response::new(body.into()),
        S3Answer::Late(pause, body) => {
            tokio::time::sleep(pause).await;
            Response::new(body.into())
        }
        S3Answer::Error(status, code) => error(status, code, &path),
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

async fn answer_put(
    desk: Arc<S3State>,
    path: String,
    headers: &HeaderMap,
    body: Bytes,
) -> Response<Body> {
    desk.puts.lock().unwrap().push(path.clone());
    let checksum = BASE64_STANDARD.encode(Sha256::digest(&body));
    if headers.get("x-amz-checksum-sha256").unwrap() != checksum.as_str() {
        return error(400, "BadDigest", &path);
    }
    let put = *desk.put.lock().unwrap();
    let stored = S3Answer::Object(body);
    match put {
        S3Put::Stored | S3Put::Unanswered => desk.store(path.clone(), stored),
        S3Put::Late => {
            let (desk, path) = (desk.clone(), path.clone());
            // The end of the connection does not stop S3.
            tokio::spawn(async move {
                desk.released.notified().await;
                desk.store(path, stored);
                desk.late_stored.notify_one();
            });
        }
        S3Put::Lost | S3Put::Error(..) | S3Put::Foreign => {}
    }
    desk.put_ended.notify_one();
    match put {
        S3Put::Stored => {
            let answer = Response::builder().header("etag", "\"0\"");
            answer.body(Body::empty()).unwrap()
        }
        S3Put::Lost | S3Put::Unanswered | S3Put::Late => std::future::pending().await,
        S3Put::Error(status, code) => error(status, code, &path),
        S3Put::Foreign => Response::new("log in".into()),
    }
}

fn error(status: u16, code: &str, path: &str) -> Response<Body> {
    let said = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <Error><Code>{code}</Code><Message>said {path}</Message><Key>{path}</Key></Error>"
    );
    let mut response = Response::new(said.into());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

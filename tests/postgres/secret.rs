//! Passwords in Secrets Manager: the first read, rotations, and secrets that give no password.

use std::sync::{Arc, Mutex};

use aws_config::SdkConfig;
use aws_sdk_secretsmanager::Client;
use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use futures_util::future::{join, join_all};
use serde_json::{Value, json};
use sqlx::{
    AssertSqlSafe, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions, PgSslMode},
    raw_sql,
};
use sqs_once::{Attempt, Failure, Once, Outcome, Settings};
use sqs_once_postgres::{InTransaction, PostgresMode, PostgresStore, Transaction};
use support::world::url;
use support::world::{World, ample, increment, increments, operation};
use support::{
    PATIENCE,
    consumer::{process, within},
    log,
    postgres::SERVER,
    s3::impatient,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    join,
    net::TcpListener,
    sync::Notify,
    time::timeout,
};

use super::{example::TABLES, place_order_postgres::consumer};

const ARN: &str = "arn:aws:secretsmanager:eu-west-3:123456789012:secret:orders-AbCdEf";

#[derive(Clone, Debug)]
enum Answer {
    Secret(String),
    /// The secret as it was at the start of the read, whose answer waits.
    Held(String),
    Binary,
    Error(&'static str),
    Silence,
}

/// Secrets Manager with one secret.
struct Vault {
    answer: Mutex<Answer>,
    /// The header `Authorization` of each read.
    reads: Mutex<Vec<String>>,
    is_held: Notify,
    released: Notify,
}

impl Vault {
    async fn start(answer: Answer) -> (Arc<Self>, SdkConfig) {
        let vault = Arc::new(Self {
            answer: Mutex::new(answer),
            reads: Mutex::default(),
            is_held: Notify::new(),
            released: Notify::new(),
        });
        let app = Router::new().fallback(read).with_state(vault.clone());
        let endpoint = format!("http://{}", support::serve(app).await);
        (vault, impatient(&endpoint))
    }

    fn store(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    fn reads(&self) -> usize {
        self.reads.lock().unwrap().len()
    }
}

async fn read(State(vault): State<Arc<Vault>>, headers: HeaderMap, body: String) -> Response {
    assert_eq!(headers["x-amz-target"], "secretsmanager.GetSecretValue");
    let request: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(request, json!({"SecretId": ARN}));
    let signature = headers["authorization"].to_str().unwrap().to_owned();
    vault.reads.lock().unwrap().push(signature);
    let answer = vault.answer.lock().unwrap().clone();
    let secret = |text| json!({"ARN": ARN, "SecretString": text}).to_string();
    match answer {
        Answer::Secret(text) => secret(text),
        Answer::Held(text) => {
            vault.is_held.notify_one();
            vault.released.notified().await;
            secret(text)
        }
        Answer::Binary => json!({"ARN": ARN, "SecretBinary": "czNjcjN0"}).to_string(),
        Answer::Error(code) => {
            let error = json!({"__type": code, "Message": "refused"});
            return (StatusCode::BAD_REQUEST, error.to_string()).into_response();
        }
        Answer::Silence => std::future::pending().await,
    }
    .into_response()
}

/// A role of the database that needs its password.
struct Role {
    name: String,
    admin: PgPool,
    options: PgConnectOptions,
}

impl Role {
    async fn new(world: &World, password: &str) -> Self {
        let schema = world.options.get_application_name().unwrap();
        let role = Self {
            name: format!("login_{schema}"),
            admin: world.pool.clone(),
            options: world.options.clone(),
        };
        // local/postgres.py asks its members for passwords.
        role.run_sql(
            "DO $$ BEGIN CREATE ROLE with_password; \
             EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
                .into(),
        )
        .await;
        let name = &role.name;
        role.run_sql(format!(
            "CREATE ROLE {name} LOGIN PASSWORD '{password}' IN ROLE with_password; \
             GRANT USAGE ON SCHEMA {schema} TO {name}; \
             GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {name}"
        ))
        .await;
        role
    }

    async fn change_password(&self, password: &str) {
        let name = &self.name;
        self.run_sql(format!("ALTER ROLE {name} PASSWORD '{password}'"))
            .await;
    }

    async fn run_sql(&self, sql: String) {
        raw_sql(AssertSqlSafe(sql))
            .execute(&self.admin)
            .await
            .unwrap();
    }

    /// The secret as RDS stores it.
    fn secret(&self, password: &str) -> Answer {
        Answer::Secret(self.json(password))
    }

    fn json(&self, password: &str) -> String {
        json!({"username": self.name, "password": password, "engine": "postgres"}).to_string()
    }

    /// A new pool, of this user.
    fn pool(&self, user: &str) -> PgPool {
        let pool = PgPoolOptions::new().max_connections(10);
        pool.connect_lazy_with(self.options.clone().username(user))
    }

    fn mode(&self, config: &SdkConfig) -> PostgresMode {
        PostgresMode::new(self.pool(&self.name)).secret(Client::new(config), ARN)
    }
}

#[track_caller]
fn assert_completed(outcome: &Outcome) {
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
}

async fn deliver(mode: &PostgresMode, id: &str) -> Outcome {
    mode.run(operation(id, ample()), increments(id)).await
}

#[tokio::test]
async fn first_connection_reads_the_secret() {
    let world = World::start().await;
    let role = Role::new(&world, "s3cr3t").await;
    for (user, secret) in [
        ("nobody", role.secret("s3cr3t")),
        (&role.name, Answer::Secret("s3cr3t".to_owned())),
    ] {
        let (vault, config) = Vault::start(secret).await;
        let client = Client::new(&config);
        let mode = PostgresMode::new(role.pool(user)).secret(client.clone(), ARN);
        assert_eq!(vault.reads(), 0);
        let messages = (0..3).map(|n| deliver(&mode, ["a", "b", "c"][n]));
        join_all(messages).await;
        assert_completed(&deliver(&mode, user).await);
        assert_eq!(vault.reads(), 1);

        let store = PostgresStore::new(role.pool(user)).secret(client, ARN);
        let id = &format!("claim of {user}");
        let once = Once::new(store);
        let claimed = once.run(operation(id, ample()), async |_| Ok(1)).await;
        assert_completed(&claimed);
        assert_eq!(vault.reads(), 2);
    }
}

#[tokio::test]
async fn rotation_fails_no_message() {
    log::start();
    let world = World::start().await;
    let role = Role::new(&world, "s3cr3t-1").await;
    let (vault, config) = Vault::start(role.secret("s3cr3t-1")).await;
    let mode = role.mode(&config);
    let (running, go_on) = (Notify::new(), Notify::new());
    let old_connection = async |attempt: Attempt| -> Result<InTransaction<()>, _> {
        let mut tx = Transaction::of(&attempt)?;
        increment(&mut tx, "o-0").await?;
        running.notify_one();
        go_on.notified().await;
        Ok(tx.done(()))
    };
    let rotation = async {
        running.notified().await;
        role.change_password("s3cr3t-2").await;
        vault.store(role.secret("s3cr3t-2"));
        let ids = ["o-1", "o-2", "o-3", "o-4"];
        let outcomes = join_all(ids.map(|id| deliver(&mode, id))).await;
        go_on.notify_one();
        outcomes
    };
    let old = mode.run(operation("o-0", ample()), old_connection);
    let (old, new) = join!(old, rotation);
    assert_completed(&old);
    new.iter().for_each(assert_completed);
    assert_eq!(vault.reads(), 2);

    let logged = log::lines();
    let again = |line: &&Value| line.to_string().contains("reading the secret again");
    assert_eq!(logged.iter().filter(again).count(), 1, "{logged:?}");
    let logged = format!("{logged:?} {mode:?}");
    assert!(!logged.contains("s3cr3t"), "{logged}");
}

/// The effect is a call elsewhere. Its completion must not be lost because the database has the next
/// password already, and the secret has not.
#[tokio::test]
async fn completion_waits_for_the_next_password() {
    let world = World::start().await;
    let role = Role::new(&world, "s3cr3t-1").await;
    let (vault, config) = Vault::start(role.secret("s3cr3t-1")).await;
    let store = PostgresStore::new(role.pool(&role.name)).secret(Client::new(&config), ARN);
    let once = Once::new(store);
    let charge = async |_: Attempt| -> Result<(), Failure> {
        role.change_password("s3cr3t-2").await;
        world.close_idle_connections().await;
        Ok(())
    };
    let next_secret = async {
        while vault.reads() < 2 {
            tokio::task::yield_now().await;
        }
        vault.store(role.secret("s3cr3t-2"));
    };
    let (outcome, ()) = join!(once.run(operation("o-1", ample()), charge), next_secret);
    assert_completed(&outcome);
    assert_eq!(world.status("o-1").await.as_deref(), Some("COMPLETED"));
}

#[tokio::test]
async fn early_read_fails_no_other_message() {
    let world = World::start().await;
    let role = Role::new(&world, "s3cr3t-1").await;
    let (vault, config) = Vault::start(role.secret("s3cr3t-1")).await;
    let mode = role.mode(&config);
    assert_completed(&deliver(&mode, "o-0").await);
    role.change_password("s3cr3t-2").await;
    world.close_idle_connections().await;
    vault.store(Answer::Held(role.json("s3cr3t-1")));
    let second = async {
        vault.is_held.notified().await;
        let rotation = async {
            vault.store(role.secret("s3cr3t-2"));
            vault.released.notify_one();
        };
        join!(deliver(&mode, "o-2"), rotation).0
    };
    let both = join(deliver(&mode, "o-1"), second);
    let (first, second) = timeout(PATIENCE, both).await.unwrap();
    assert!(matches!(first, Outcome::StoreUnavailable(_)), "{first:?}");
    assert_completed(&second);
    assert_eq!(vault.reads(), 3);
}

#[tokio::test]
async fn refused_password_is_read_again_rarely() {
    log::start();
    let world = World::start().await;
    let role = Role::new(&world, "s3cr3t-2").await;
    let (vault, config) = Vault::start(role.secret("s3cr3t-1")).await;
    let mode = role.mode(&config);
    let ids = ["o-1", "o-2", "o-3", "o-4", "o-5", "o-6", "o-7", "o-8"];
    for outcome in join_all(ids.map(|id| deliver(&mode, id))).await {
        let Outcome::StoreUnavailable(error) = outcome else {
            panic!("{outcome:?}")
        };
        let error = format!("{error:?} {error}");
        assert!(error.contains("28P01"), "{error}");
        assert!(!error.contains("s3cr3t"), "{error}");
    }
    // The first one, and one after the refusals of all messages.
    assert!((2..=3).contains(&vault.reads()), "{}", vault.reads());

    // The rotation ends: the secret follows the database.
    vault.store(role.secret("s3cr3t-2"));
    assert_completed(&deliver(&mode, "o-1").await);
    let logged = format!("{:?}", log::lines());
    assert!(!logged.contains("s3cr3t"), "{logged}");
}

#[tokio::test]
async fn secret_without_password_is_explained() {
    let world = World::start().await;
    let role = Role::new(&world, "s3cr3t").await;
    for (answer, cause) in [
        (
            Answer::Error("AccessDeniedException"),
            "grant the role secretsmanager:GetSecretValue",
        ),
        (
            Answer::Error("ResourceNotFoundException"),
            "there is no such secret",
        ),
        (
            Answer::Error("DecryptionFailure"),
            "DecryptionFailure: refused",
        ),
        (Answer::Binary, "binary"),
        (Answer::Secret(String::new()), "empty"),
        (
            Answer::Secret(r#"{"user": "s3cr3t"}"#.to_owned()),
            "without the text `password`",
        ),
        (Answer::Silence, "no answer in time"),
    ] {
        let (vault, config) = Vault::start(answer.clone()).await;
        let mode = role.mode(&config);
        let Outcome::StoreUnavailable(error) = deliver(&mode, "o-1").await else {
            panic!("{answer:?}")
        };
        assert!(!error.may_have_been_applied());
        let error = error.to_string();
        assert!(error.contains(cause), "{error}");
        assert!(!error.contains("s3cr3t"), "{error}");
        if matches!(answer, Answer::Error("AccessDeniedException")) {
            vault.store(role.secret("s3cr3t"));
            assert_completed(&deliver(&mode, "o-0").await);
        }
    }
}

fn settings(world: &World, config: SdkConfig) -> Settings {
    let url = url(&SERVER, world);
    Settings::from_vars([
        ("IDEMPOTENCY_POSTGRES_URL", url.as_str()),
        ("IDEMPOTENCY_POSTGRES_AUTH", ARN),
        ("AWS_LAMBDA_RUNTIME_API", "unused"),
        ("CONSUMER_VISIBILITY", "off"),
    ])
    .sdk_config(config)
}

#[tokio::test]
async fn arn_in_settings_is_read_at_start() {
    let world = World::start().await;
    raw_sql(TABLES).execute(&world.pool).await.unwrap();
    let role = Role::new(&world, "s3cr3t").await;
    let (vault, config) = Vault::start(role.secret("s3cr3t")).await;
    let consumer = Arc::new(consumer(settings(&world, config)).await.unwrap());
    let signatures = vault.reads.lock().unwrap().clone();
    assert_eq!(signatures.len(), 1);
    let region_of_arn = "/eu-west-3/secretsmanager/";
    assert!(signatures[0].contains(region_of_arn), "{signatures:?}");

    let event = include_str!("../../events/place-order.json");
    let event = serde_json::from_str(event).unwrap();
    assert_eq!(process(&consumer, event, within(PATIENCE)).await, [""; 0]);
    assert_eq!(vault.reads(), 1);
    let sessions = sqlx::query_scalar("SELECT count(*) FROM pg_stat_activity WHERE usename = $1");
    let sessions: i64 = sessions
        .bind(&role.name)
        .fetch_one(&world.pool)
        .await
        .unwrap();
    assert!(sessions > 0);
}

#[tokio::test]
async fn denied_secret_is_logged_at_start() {
    log::start();
    let world = World::start().await;
    let denied = Answer::Error("AccessDeniedException");
    let (_, config) = Vault::start(denied).await;
    assert!(consumer(settings(&world, config)).await.is_ok());
    let lines = log::lines_containing("could not prepare the tables");
    let error = lines[0]["fields"]["error"].as_str().unwrap();
    assert!(error.contains("secretsmanager:GetSecretValue"), "{error}");
}

/// A server that asks for a password and refuses it, and the passwords that it saw (*PostgreSQL
/// documentation*, "Message Formats").
async fn refusing() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let passwords = seen.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let length = client.read_u32().await.unwrap() as usize;
            client.read_exact(&mut vec![0; length - 4]).await.unwrap();
            // AuthenticationCleartextPassword
            client.write_all(b"R\0\0\0\x08\0\0\0\x03").await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), b'p');
            let length = client.read_u32().await.unwrap() as usize;
            let mut password = vec![0; length - 4];
            client.read_exact(&mut password).await.unwrap();
            password.pop();
            passwords
                .lock()
                .unwrap()
                .push(String::from_utf8(password).unwrap());
            let error = b"SFATAL\0VFATAL\0C28000\0MPAM authentication failed\0\0";
            client.write_all(b"E").await.unwrap();
            let length = u32::try_from(error.len() + 4).unwrap();
            client.write_u32(length).await.unwrap();
            client.write_all(error).await.unwrap();
        }
    });
    (port, seen)
}

#[tokio::test]
async fn refused_token_is_signed_anew_once() {
    let (port, passwords) = refusing().await;
    let options = PgConnectOptions::new_without_pgpass()
        .host("127.0.0.1")
        .port(port)
        .username("orders")
        .ssl_mode(PgSslMode::Disable);
    let config = impatient("http://127.0.0.1:1");
    let region = config.region().unwrap().clone();
    let credentials = config.credentials_provider().unwrap();
    let mode = PostgresMode::new(sqs_once_postgres::pool(options, 1)).iam(region, credentials);
    let outcome = mode.run(operation("o-1", ample()), increments("o-1")).await;
    let Outcome::StoreUnavailable(error) = outcome else {
        panic!("{outcome:?}")
    };
    let error = error.to_string();
    assert!(error.contains("28000"), "{error}");
    let passwords = passwords.lock().unwrap();
    assert_eq!(passwords.len(), 2, "one login, and one with a new token");
    assert!(
        passwords
            .iter()
            .all(|token| token.contains("X-Amz-Signature="))
    );
}

//! Short-lived passwords, as the examples get them: a secret that is rotated, and tokens of IAM.

use std::{
    collections::BTreeSet,
    error::Error,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use aws_config::SdkConfig;
use aws_credential_types::Credentials;
use aws_sdk_secretsmanager::Client;
use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use futures_util::future::{BoxFuture, join_all};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgPool, postgres::PgConnectOptions, raw_sql};
use sqs_once::{Attempt, Failure, Once, Outcome};
use sqs_once_postgres::{InTransaction, PostgresMode, PostgresStore, Transaction};
use support::world::{World, ample, increment, increments, operation};
use support::{log, postgres::one, s3::impatient};
use tokio::{join, sync::Notify};

use super::{
    rds_iam::{token, with_token},
    rds_secret::with_secret,
};

type BoxError = Box<dyn Error + Send + Sync>;

const ARN: &str = "arn:aws:secretsmanager:eu-west-3:123456789012:secret:orders-AbCdEf";

#[derive(Clone, Debug)]
enum Answer {
    Secret(String),
    Binary,
    Error(&'static str),
}

/// Secrets Manager with one secret.
struct Vault {
    answer: Mutex<Answer>,
    reads: AtomicUsize,
}

impl Vault {
    async fn start(answer: Answer) -> (Arc<Self>, SdkConfig) {
        let vault = Arc::new(Self {
            answer: Mutex::new(answer),
            reads: AtomicUsize::new(0),
        });
        let app = Router::new().fallback(read).with_state(vault.clone());
        let endpoint = format!("http://{}", support::serve(app).await);
        (vault, impatient(&endpoint))
    }

    fn store(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    fn reads(&self) -> usize {
        self.reads.load(Relaxed)
    }
}

async fn read(State(vault): State<Arc<Vault>>, headers: HeaderMap, body: String) -> Response {
    assert_eq!(headers["x-amz-target"], "secretsmanager.GetSecretValue");
    let request: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(request, json!({"SecretId": ARN}));
    vault.reads.fetch_add(1, Relaxed);
    let answer = vault.answer.lock().unwrap().clone();
    let secret = |text| json!({"ARN": ARN, "SecretString": text}).to_string();
    match answer {
        Answer::Secret(text) => secret(text),
        Answer::Binary => json!({"ARN": ARN, "SecretBinary": "czNjcjN0"}).to_string(),
        Answer::Error(code) => {
            let error = json!({"__type": code, "Message": "refused"});
            return (StatusCode::BAD_REQUEST, error.to_string()).into_response();
        }
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
        // tools/postgres.py asks its members for passwords.
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

    /// A new pool, of a user that the server rejects.
    fn pool(&self) -> PgPool {
        support::postgres::pool(self.options.clone().username("nobody"), 10)
    }

    /// The password in the vault, as the example reads it.
    fn password(
        &self,
        config: &SdkConfig,
    ) -> impl Fn(PgConnectOptions) -> BoxFuture<'static, Result<PgConnectOptions, BoxError>> + use<>
    {
        let client = Client::new(config);
        move |options| Box::pin(with_secret(client.clone(), ARN.to_owned(), options))
    }

    fn mode(&self, config: &SdkConfig) -> PostgresMode {
        PostgresMode::new(self.pool()).password(self.password(config))
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
    let again = |line: &&Value| line.to_string().contains("asking for the next password");
    assert_eq!(logged.iter().filter(again).count(), 2, "{logged:?}");
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
    let store = PostgresStore::new(role.pool()).password(role.password(&config));
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
async fn secret_without_password_is_explained() {
    let world = World::start().await;
    let role = Role::new(&world, "s3cr3t").await;
    for (answer, cause) in [
        (
            Answer::Error("AccessDeniedException"),
            "AccessDeniedException",
        ),
        (Answer::Binary, "binary"),
        (
            Answer::Secret(r#"{"user": "s3cr3t"}"#.to_owned()),
            "no `username` and `password`",
        ),
    ] {
        let (vault, config) = Vault::start(answer).await;
        let mode = role.mode(&config);
        let Outcome::StoreUnavailable(error) = deliver(&mode, "o-1").await else {
            panic!("{cause}")
        };
        assert!(!error.may_have_been_applied());
        let error = error.to_string();
        assert!(error.contains(cause), "{error}");
        assert!(!error.contains("s3cr3t"), "{error}");
        vault.store(role.secret("s3cr3t"));
        assert_completed(&deliver(&mode, cause).await);
    }
}

#[tokio::test]
async fn rejected_login_is_tried_once_with_a_token() {
    let world = World::start().await;
    let pool = one(world.options.clone().username("nobody"));
    let config = impatient("http://127.0.0.1:1");
    let asked = Arc::<AtomicUsize>::default();
    let mode = PostgresMode::new(pool.clone()).password({
        let asked = Arc::clone(&asked);
        move |options| {
            asked.fetch_add(1, Relaxed);
            with_token(config.clone(), options)
        }
    });
    let Outcome::StoreUnavailable(error) = deliver(&mode, "o-1").await else {
        panic!("a login without a role")
    };
    let error = error.to_string();
    assert!(error.contains("28000"), "{error}");
    assert_eq!(asked.load(Relaxed), 1);
    let url = pool.connect_options().to_url_lossy();
    assert!(
        url.password().unwrap().contains("X%2DAmz%2DSignature"),
        "{url}"
    );
}

#[test]
fn token_is_that_of_botocore() {
    // The result of botocore's `generate_db_auth_token` for the same credentials and time.
    let expected = "db.example:5432/?Action=connect&DBUser=orders%2B1\
        &X-Amz-Algorithm=AWS4-HMAC-SHA256\
        &X-Amz-Credential=AKIDEXAMPLE%2F20261122%2Feu-central-1%2Frds-db%2Faws4_request\
        &X-Amz-Date=20261122T111842Z&X-Amz-SignedHeaders=host&X-Amz-Expires=900\
        &X-Amz-Security-Token=token%2F%2Fwith%2Bsigns%3D%3D\
        &X-Amz-Signature=4ec6c299c5e9790beaa8064e5b59cfdc26f66f2a16b56351c348b8ac63094c48";
    let session = Some("token//with+signs==".to_owned());
    let credentials = Credentials::new("AKIDEXAMPLE", "secret/key+1", session, None, "tests");
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_346_322_000);
    let options = PgConnectOptions::new_without_pgpass()
        .host("db.example")
        .port(5432)
        .username("orders+1");
    let token = token(&options, "eu-central-1", credentials, now).unwrap();
    let parts =
        |token: &str| -> BTreeSet<String> { token.split(['?', '&']).map(str::to_owned).collect() };
    assert_eq!(parts(&token), parts(expected));
}

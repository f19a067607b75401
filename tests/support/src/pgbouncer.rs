//! PgBouncer in front of a PostgreSQL server, on a free port of 127.0.0.1.

use std::{
    env,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use super::{postgres::root, prerequisite::missing};

/// A pooler that runs until this is dropped: `tools/pgbouncer.py` stops it at the end of its input.
pub struct PgBouncer {
    pub port: u16,
    process: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl PgBouncer {
    /// A pooler in transaction mode, whose sessions on the server at `port` have this user.
    pub fn start(port: u16, user: &str, settings: &[&str]) -> Self {
        let python = root().join(".venv/bin/python");
        let python = env::var_os("POSTGRES_PYTHON").map_or(python, PathBuf::from);
        let mut process = Command::new(python)
            .arg(root().join("tools/pgbouncer.py"))
            .args([port.to_string(), format!("user={user}")])
            .args(settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut answers = BufReader::new(process.stdout.take().unwrap());
        answers.read_line(&mut line).unwrap();
        let Some(ready_at) = line.strip_prefix("ready ") else {
            let _status = process.wait();
            missing(
                "PgBouncer did not start, see the message of tools/pgbouncer.py \
                 (on Debian, `make .venv/pgbouncer` installs it; elsewhere, install `pgbouncer`)",
            );
        };
        let port = ready_at.trim().parse().unwrap();
        let log = Arc::<Mutex<Vec<_>>>::default();
        thread::spawn({
            let lines = Arc::clone(&log);
            move || {
                for line in answers.lines().map_while(Result::ok) {
                    lines.lock().unwrap().push(line);
                }
            }
        });
        Self { port, process, log }
    }

    /// The lines of its log that say why it closed sessions on the server.
    pub fn closed_sessions(&self) -> Vec<String> {
        let log = self.log.lock().unwrap();
        let of_server = |line: &&String| line.contains(" S-") && line.contains(" closing because");
        log.iter().filter(of_server).cloned().collect()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _status = self.process.wait();
    }
}

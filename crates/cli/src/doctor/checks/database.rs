//! Checks of a PostgreSQL database: its connections, its tables, and the privileges of a function's user.

#![cfg_attr(
    not(feature = "postgres"),
    allow(dead_code, reason = "without the feature, no database is read")
)]

use std::time::Duration;

use serde::Deserialize;
use sqs_once_core::settings::table::IDEMPOTENCY_POSTGRES_CONNECTIONS;

use super::{Check, Findings};
use crate::{
    doctor::facts::{Consumer, Deployed, Records, Relay, Source},
    output::in_words,
};

/// Age of the oldest event at which the template's alarm `EventsDelayed` fires.
const MAX_AGE: Duration = Duration::from_secs(300);
/// The most concurrent invocations of one provisioned poller (*AWS Lambda Developer Guide*, "Configuring scaling
/// behavior for SQS event source mappings").
const INVOCATIONS_OF_POLLER: i32 = 10;

/// The database that `IDEMPOTENCY_POSTGRES_URL` names.
#[derive(Clone, Copy)]
pub(super) struct Address<'a> {
    pub(super) user: &'a str,
    host: &'a str,
    database: &'a str,
    parameters: &'a str,
}

impl<'a> Address<'a> {
    /// Reads the address. Parts that the URL does not name are empty.
    pub(super) fn of(function: &'a Deployed) -> Self {
        let url = function
            .variable("IDEMPOTENCY_POSTGRES_URL")
            .unwrap_or_default();
        let (_, rest) = url.split_once("://").unwrap_or_default();
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (server, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, host) = server.rsplit_once('@').unwrap_or(("", server));
        let (user, _) = login.split_once(':').unwrap_or((login, ""));
        Self {
            user,
            host,
            database,
            parameters,
        }
    }
}

/// A function, and what it needs from its database.
pub(crate) struct Client {
    function: String,
    pub(crate) user: String,
    database: String,
    /// True if a pooler limits the connections to the server.
    has_pooler: bool,
    /// True if RDS Proxy would reject the login because of the URL.
    is_refused_by_proxy: bool,
    /// True if the user may be the one in a secret.
    has_secret: bool,
    /// The most connections of all environments together. `None` without a limit.
    connections: Option<u32>,
    is_consumer: bool,
    sends_events: bool,
}

impl Client {
    /// Creates the client of a consumer. `None` for records in DynamoDB.
    pub(crate) fn consumer(consumer: &Consumer) -> Option<Self> {
        let Records::Postgres { reserved } = consumer.records else {
            return None;
        };
        let mut queues = Some(0);
        for mapping in consumer.mappings.iter().filter(|mapping| mapping.enabled) {
            let maximum = match mapping.maximum_pollers {
                Some(pollers) => Some(pollers.saturating_mul(INVOCATIONS_OF_POLLER)),
                None => mapping.maximum_concurrency,
            };
            let of_queue = maximum.and_then(|maximum| u32::try_from(maximum).ok());
            queues = queues.zip(of_queue).map(|(all, one)| all + one);
        }
        let environments = queues.into_iter().chain(reserved).min();
        let number = |name| consumer.function.variable(name)?.parse::<u32>().ok();
        let each = number(IDEMPOTENCY_POSTGRES_CONNECTIONS.name)
            .or(IDEMPOTENCY_POSTGRES_CONNECTIONS.default.parse().ok())
            .unwrap_or(1);
        Some(Self {
            connections: environments.map(|environments| environments.saturating_mul(each)),
            is_consumer: true,
            ..Self::of(&consumer.function)
        })
    }

    /// Creates the client of a relay. `None` for events in DynamoDB. The schedule starts one environment at a
    /// time.
    pub(crate) fn relay(relay: &Relay) -> Option<Self> {
        let Source::Postgres { .. } = relay.source else {
            return None;
        };
        let each = relay
            .function
            .variable(IDEMPOTENCY_POSTGRES_CONNECTIONS.name);
        Some(Self {
            connections: Some(each.and_then(|each| each.parse().ok()).unwrap_or(1)),
            ..Self::of(&relay.function)
        })
    }

    fn of(function: &Deployed) -> Self {
        let Address {
            user,
            host,
            database,
            parameters,
        } = Address::of(function);
        let auth = function
            .variable("IDEMPOTENCY_POSTGRES_AUTH")
            .unwrap_or_default();
        let is_rds_proxy = host.contains(".proxy-");
        let is_for_poolers = parameters
            .split('&')
            .any(|of| of == "statement-cache-capacity=0");
        Self {
            function: function.name.clone(),
            user: user.to_owned(),
            has_pooler: is_rds_proxy || is_for_poolers,
            is_refused_by_proxy: is_rds_proxy && !is_for_poolers,
            // PostgreSQL's default.
            database: if database.is_empty() { user } else { database }.to_owned(),
            has_secret: auth.starts_with("arn:"),
            connections: None,
            is_consumer: false,
            sends_events: function.variable("OUTBOX_TARGETS").is_some(),
        }
    }

    /// Checks what the function's settings tell.
    pub(crate) fn check(&self, findings: &mut Findings) {
        findings.about(format!("function {}", self.function));
        if self.connections.is_none() && !self.has_pooler {
            findings.add(
                Check::PostgresConnections,
                "nothing limits the environments of the function, and each opens connections to the database",
                "under load they use up max_connections: messages, and other clients of the server, fail with 53300",
                "set MaximumConcurrency of the event source, or ReservedConcurrentExecutions of the function, or use a pooler",
            );
        }
        if self.is_refused_by_proxy {
            findings.add(
                Check::PostgresConnections,
                "the URL names RDS Proxy, and lacks statement-cache-capacity=0",
                "every login has startup parameters that RDS Proxy refuses: messages and events wait",
                "add ?statement-cache-capacity=0 to IDEMPOTENCY_POSTGRES_URL (docs/effects-in-postgresql.md#poolers)",
            );
        }
    }

    /// Reports that the database was not read.
    pub(crate) fn was_not_read(&self, reason: &str, findings: &mut Findings) {
        findings.about(format!("function {}", self.function));
        let database = &self.database;
        findings.skip(format!(
            "connections, tables, privileges and oldest event in the database {database}: {reason}"
        ));
    }

    /// Checks tables and privileges in the database. Returns whether it is the function's database.
    pub(crate) fn check_in(&self, server: &Server, findings: &mut Findings) -> bool {
        if server.database != self.database {
            let reason = format!("--postgres names the database {}", server.database);
            self.was_not_read(&reason, findings);
            return false;
        }
        findings.about(format!("function {}", self.function));
        if self.is_consumer {
            self.table("sqs_once_records", &server.records, findings);
            if server.records.is_current == Some(false) {
                findings.add(
                    Check::PostgresTables,
                    "the table sqs_once_records lacks columns of this version",
                    "a consumer that may not add them fails every message",
                    "as the owner of the table, run `sqs_once_postgres::migrate`, or crates/postgres/src/tables.sql",
                );
            }
        }
        if !self.is_consumer || self.sends_events {
            self.table("sqs_once_outbox", &server.outbox, findings);
        }
        self.privileges(server, findings);
        true
    }

    fn table(&self, name: &str, table: &TableInPostgres, findings: &mut Findings) {
        if table.name.is_some() {
            return;
        }
        let fix = format!(
            "as a user with CREATE on the schema, run `sqs_once_postgres::migrate`, or crates/postgres/src/tables.sql; the user {} finds tables by its search path",
            self.user
        );
        match &table.elsewhere {
            Some(found) => findings.add(
                Check::PostgresTables,
                format!("the search path finds no table {name}, but the database has {found}"),
                "the function does not replace the table by an empty one: every message fails, and no event is sent",
                "correct the search path, or the name of the table",
            ),
            None => findings.add(
                Check::PostgresTables,
                format!("the database has no table {name}"),
                "unless the function can create its tables at start, every message fails, and no event is sent",
                fix,
            ),
        }
    }

    fn privileges(&self, server: &Server, findings: &mut Findings) {
        let user = &self.user;
        if !server.has_user {
            if self.has_secret || user.is_empty() {
                findings.skip("privileges: the URL does not name the database user");
                return;
            }
            findings.add(
                Check::PostgresPrivileges,
                format!("the database has no user {user}"),
                "every login is rejected: messages and events wait",
                format!("CREATE USER {user}, with the privileges of docs/effects-in-postgresql.md#privileges"),
            );
            return;
        }
        let mut wanted = Vec::new();
        if self.is_consumer {
            wanted.push((
                &server.records,
                "sqs_once_records",
                &["SELECT", "INSERT", "UPDATE", "DELETE"][..],
            ));
        }
        match (self.is_consumer, self.sends_events) {
            (true, true) => wanted.push((
                &server.outbox,
                "sqs_once_outbox",
                &["SELECT", "INSERT", "UPDATE", "DELETE"][..],
            )),
            (false, _) => wanted.push((
                &server.outbox,
                "sqs_once_outbox",
                &["SELECT", "UPDATE", "DELETE"][..],
            )),
            (true, false) => {}
        }
        for (table, name, wanted) in wanted {
            let has = |privilege: &str| table.privileges.iter().any(|has| has == privilege);
            let missing: Vec<_> = wanted.iter().copied().filter(|of| !has(of)).collect();
            if table.name.is_some() && !missing.is_empty() {
                let missing = missing.join(", ");
                findings.add(
                    Check::PostgresPrivileges,
                    format!("the user {user} lacks {missing} on {name}"),
                    "messages fail with 42501, or events are not sent",
                    format!("GRANT {missing} ON {name} TO {user}"),
                );
            }
        }
    }
}

/// The response of `PostgresStore::examine`.
#[derive(Debug, Deserialize)]
pub(crate) struct Server {
    database: String,
    /// How many connections ordinary users can have.
    connections: i64,
    has_user: bool,
    records: TableInPostgres,
    outbox: TableInPostgres,
}

#[derive(Debug, Deserialize)]
struct TableInPostgres {
    /// `None` if the search path finds no such table.
    name: Option<String>,
    /// Such tables in any schema.
    elsewhere: Option<String>,
    /// `None` without a table.
    is_current: Option<bool>,
    privileges: Vec<String>,
}

/// Checks the connections of all functions of the stack that use the database, and the oldest event.
pub(crate) fn check_server(
    clients: &[&Client],
    server: &Server,
    oldest: Result<Option<Duration>, String>,
    findings: &mut Findings,
) {
    findings.about(format!("database {}", server.database));
    let direct = clients.iter().filter(|client| !client.has_pooler);
    let total: u32 = direct.filter_map(|client| client.connections).sum();
    if i64::from(total) > server.connections {
        findings.add(
            Check::PostgresConnections,
            format!(
                "the functions of the stack open up to {total} connections, and the server takes {} of ordinary users",
                server.connections
            ),
            "under load messages, and other clients of the server, fail with 53300",
            "lower MaximumConcurrency or IDEMPOTENCY_POSTGRES_CONNECTIONS, or use a pooler",
        );
    }
    if clients.iter().any(|client| client.has_pooler) {
        findings.skip("connections behind a pooler, which limits those of the server");
    }
    match oldest {
        Ok(Some(age)) if age > MAX_AGE => findings.add(
            Check::OldestEvent,
            format!(
                "the oldest event of the outbox was published {} ago",
                in_words(age)
            ),
            "the consumers of the events wait; nothing deletes an event that was not sent",
            "find the reason in the relay's log: docs/outbox.md#operation",
        ),
        Ok(_) => {}
        Err(reason) => findings.skip(format!("the oldest event: {reason}")),
    }
}

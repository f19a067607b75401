//! A world behind PgBouncer in transaction mode.

use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, PgPool, postgres::PgConnectOptions, raw_sql,
};
use sqs_once_postgres::PostgresMode;

use super::{
    pgbouncer::PgBouncer,
    postgres::{SERVER, Server, pool},
    world::World,
};

/// A world whose workers connect through a pooler.
pub struct Pooled {
    pub world: World,
    pub pooler: PgBouncer,
    /// The way through the pooler, as its documentation here says: without kept statements.
    pub options: PgConnectOptions,
}

impl Pooled {
    pub async fn start(settings: &[&str]) -> Self {
        Self::before(&SERVER, settings).await
    }

    pub async fn before(server: &Server, settings: &[&str]) -> Self {
        let world = World::on(server).await;
        let schema = world.options.get_application_name().unwrap();
        let user = format!("pooled_{schema}");
        let create = format!(
            "CREATE ROLE {user} SUPERUSER LOGIN; ALTER ROLE {user} SET search_path = {schema}"
        );
        raw_sql(AssertSqlSafe(create))
            .execute(&world.pool)
            .await
            .unwrap();
        let pooler = PgBouncer::start(server.options().get_port(), &user, settings);
        let options = server.options().username(&user).port(pooler.port);
        let options = options.application_name(schema).statement_cache_capacity(0);
        Self {
            world,
            pooler,
            options,
        }
    }

    pub fn pool(&self, connections: u32) -> PgPool {
        pool(self.options.clone(), connections)
    }

    pub fn mode(&self, connections: u32) -> PostgresMode {
        PostgresMode::new(self.pool(connections))
    }

    /// A client that does nothing for the pooler.
    pub async fn plain_client(&self) -> PgConnection {
        let options = self.options.clone().statement_cache_capacity(100);
        let options = options.extra_float_digits(None);
        PgConnection::connect_with(&options).await.unwrap()
    }

    pub async fn insert_things(&self) {
        let things = "INSERT INTO things VALUES ('more', 0), ('less', 0)";
        self.world.run_sql(things).await;
    }
}

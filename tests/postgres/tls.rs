//! TLS in front of the server, with good and bad certificates.

use std::{future::pending, pin::pin, sync::Arc};

use futures_util::future::join_all;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sqlx::postgres::PgSslMode;
use sqs_once::{Deadline, Once, Outcome, protocol::Timestamp};
use sqs_once_postgres::{PostgresMode, PostgresStore};
use support::postgres::{SERVER, one};
use support::world::{SECOND, World, increments, operation};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    select,
    sync::Notify,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

use super::failover::warm_up;

/// A certificate authority, as PEM, and the TLS of a server that it has signed for `localhost`.
fn signed() -> (String, TlsAcceptor) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = authority.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(authority, key);

    let server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = server.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    (pem, TlsAcceptor::from(Arc::new(config)))
}

/// Accepts TLS, as [`serve_until`] does for ever.
async fn serve(tls: TlsAcceptor) -> u16 {
    serve_until(tls, Arc::default()).await
}

/// Accepts TLS as PostgreSQL does: after a request of eight bytes and the answer `S` (*PostgreSQL
/// documentation*, "SSL Session Encryption"). Returns the port. Once told, the open connections stay open, and are
/// silent: the server's host is gone.
async fn serve_until(tls: TlsAcceptor, silence: Arc<Notify>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (tls, silence) = (tls.clone(), silence.clone());
            tokio::spawn(async move {
                let mut silent = pin!(silence.notified());
                // Told of the next notification, also before it waits.
                silent.as_mut().enable();
                client.read_exact(&mut [0; 8]).await?;
                client.write_all(b"S").await?;
                let mut client = tls.accept(client).await?;
                let server = ("127.0.0.1", SERVER.options().get_port());
                let mut server = TcpStream::connect(server).await?;
                select! {
                    copied = copy_bidirectional(&mut client, &mut server) => copied.map(|_| ()),
                    () = silent => {
                        drop(server);
                        pending().await
                    }
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn certificate_and_host_are_verified() {
    let (authority, tls) = signed();
    let (other_authority, _) = signed();
    let port = serve(tls).await;
    for (host, authority, is_accepted) in [
        ("localhost", Some(&authority), true),
        ("127.0.0.1", Some(&authority), false),
        ("localhost", Some(&other_authority), false),
        ("localhost", None, false),
    ] {
        let url = format!("postgres://postgres@{host}:{port}/postgres?sslmode=verify-full");
        let mut options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
        if let Some(authority) = authority {
            options = options.ssl_root_cert_from_pem(authority.clone().into_bytes());
        }
        let answer = sqlx::query("SELECT 1").execute(&one(options)).await;
        assert_eq!(answer.is_ok(), is_accepted, "{host}: {answer:?}");
        if let Err(error) = answer {
            let error = error.to_string();
            assert!(error.contains("certificate"), "{error}");
        }
    }
}

/// As after a freeze, or a failover without a word from the old host.
#[tokio::test]
async fn silent_connections_cost_no_message() {
    for connections in [1, 5, 10] {
        let world = World::start().await;
        let (authority, tls) = signed();
        let silence = Arc::new(Notify::new());
        let port = serve_until(tls, silence.clone()).await;
        let options = world.options.clone().host("localhost").port(port);
        let options = options.ssl_mode(PgSslMode::VerifyFull);
        let pool = support::postgres::pool(
            options.ssl_root_cert_from_pem(authority.into_bytes()),
            connections,
        );
        for round in 0..2 {
            warm_up(&pool, connections as usize).await;
            silence.notify_waiters();
            let deadline = Deadline::after(Timestamp::now(), 7 * SECOND, SECOND);
            let (mode, once) = (
                PostgresMode::new(pool.clone()),
                Once::new(PostgresStore::new(pool.clone())),
            );
            let messages = (0..connections).map(async |number| {
                let id = format!("{round}-{number}");
                let operation = operation(&id, deadline);
                if round == 0 {
                    mode.run(operation, increments(&id)).await
                } else {
                    once.run(operation, async |_| Ok(1)).await
                }
            });
            for outcome in join_all(messages).await {
                assert!(
                    matches!(outcome, Outcome::Completed(_)),
                    "{connections} connections: {outcome:?}"
                );
            }
        }
    }
}

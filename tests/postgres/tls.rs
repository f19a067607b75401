//! TLS in front of the server, with good and bad certificates.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sqs_once::postgres;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

use super::support::postgres::SERVER;

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

/// Accepts TLS as PostgreSQL does: after a request of eight bytes and the answer `S` (*PostgreSQL
/// documentation*, "SSL Session Encryption"). Returns the port.
async fn serve(tls: TlsAcceptor) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                client.read_exact(&mut [0; 8]).await?;
                client.write_all(b"S").await?;
                let mut client = tls.accept(client).await?;
                let server = ("127.0.0.1", SERVER.options().get_port());
                let mut server = TcpStream::connect(server).await?;
                copy_bidirectional(&mut client, &mut server).await
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
        let answer = sqlx::query("SELECT 1")
            .execute(&postgres::pool(options, 1))
            .await;
        assert_eq!(answer.is_ok(), is_accepted, "{host}: {answer:?}");
        if let Err(error) = answer {
            let error = error.to_string();
            assert!(error.contains("certificate"), "{error}");
        }
    }
}

//! A line that loses one answer.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]
#![allow(unreachable_pub, reason = "as in the other support modules")]

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

/// An endpoint before another, of which the first request arrives there, and its answer does not
/// come back: the connection is cut instead.
pub async fn loses_the_first_answer(endpoint: &str) -> String {
    let upstream = endpoint.strip_prefix("http://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let line = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut lost = false;
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(&upstream).await.unwrap();
            if std::mem::replace(&mut lost, true) {
                tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
                continue;
            }
            let (mut requests, _) = client.split();
            let (mut answers, mut to_server) = server.split();
            tokio::select! {
                answered = answers.read_u8() => { answered.unwrap(); }
                closed = copy(&mut requests, &mut to_server) => panic!("no request: {closed:?}"),
            }
            to_server.shutdown().await.unwrap();
        }
    });
    line
}

//! A proxy in front of PostgreSQL that delays each response. It runs on a separate thread.

use std::{thread, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    time::{Instant, sleep_until},
};

pub(crate) struct SlowWire {
    pub(crate) port: u16,
}

impl SlowWire {
    /// The thread runs as long as the process.
    pub(crate) fn start(server: u16, delay: Duration) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(accept(listener, server, delay));
        });
        Self { port }
    }
}

async fn accept(listener: std::net::TcpListener, server: u16, delay: Duration) {
    let listener = TcpListener::from_std(listener).unwrap();
    while let Ok((client, _)) = listener.accept().await {
        let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let (mut from_client, to_client) = client.into_split();
        let (from_server, mut to_server) = server.into_split();
        tokio::spawn(async move {
            let _closed = copy(&mut from_client, &mut to_server).await;
            to_server.shutdown().await
        });
        tokio::spawn(later(from_server, to_client, delay));
    }
}

/// Copies, and delays each piece by the same time.
async fn later(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) {
    let (send, mut pieces) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((due, piece)) = pieces.recv().await {
            sleep_until(due).await;
            if to.write_all(&piece).await.is_err() {
                break;
            }
        }
    });
    loop {
        let mut piece = vec![0; 16 * 1024];
        match from.read(&mut piece).await {
            Ok(length @ 1..) => {
                piece.truncate(length);
                if send.send((Instant::now() + delay, piece)).is_err() {
                    break;
                }
            }
            _ => break,
        }
    }
}

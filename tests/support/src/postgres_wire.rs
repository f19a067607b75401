//! A proxy in front of PostgreSQL that cuts, holds and records requests.
//!
//! A request ends with a simple query (`Q`) or with `Sync`, and its answer with `ReadyForQuery`
//! (*PostgreSQL documentation*, "Message Formats").

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Notify, mpsc},
};

/// Fate of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The server does not get the request. Both sides of the connection are closed.
    Before,
    /// The server executes the request. Both sides are closed without an answer.
    After,
    /// The server executes the request. The answer never arrives, and the connection stays open.
    Silence,
}

#[derive(Debug, Default)]
struct Script {
    /// The request that meets a fault, counted from 0, and its fate.
    cut: Option<(usize, Cut)>,
    requests: Vec<String>,
}

#[derive(Clone)]
pub struct Wire {
    pub address: SocketAddr,
    script: Arc<Mutex<Script>>,
    met: Arc<Notify>,
    accepted: Arc<AtomicUsize>,
}

impl Wire {
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let wire = Self {
            address: listener.local_addr().unwrap(),
            script: Arc::default(),
            met: Arc::default(),
            accepted: Arc::default(),
        };
        let proxy = wire.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let proxy = proxy.clone();
                proxy.accepted.fetch_add(1, Relaxed);
                tokio::spawn(async move {
                    let server = TcpStream::connect(server).await.unwrap();
                    let _closed = proxy.serve(client, server).await;
                });
            }
        });
        wire
    }

    /// Lets the request with this number meet a fault, counted from now on.
    pub fn cut(&self, request: usize, cut: Cut) {
        *self.script.lock().unwrap() = Script {
            cut: Some((request, cut)),
            requests: Vec::new(),
        };
    }

    /// Ends the fault. Returns the requests since it was set.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.script.lock().unwrap()).requests
    }

    /// Number of connections since the start.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Relaxed)
    }

    /// Returns when a request has met its fault.
    pub async fn met(&self) {
        self.met.notified().await;
    }

    async fn serve(&self, client: TcpStream, server: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let startup = packet(&mut from_client).await?;
        to_server.write_all(&startup).await?;
        answer(&mut from_server, Some(&mut to_client)).await?;
        let (send, mut requests) = mpsc::unbounded_channel();
        // Ends when the client closes its side.
        let mut reader = tokio::spawn(async move {
            while let Ok(request) = request(&mut from_client).await {
                send.send(request).ok();
            }
        });
        while let Some((name, request)) = requests.recv().await {
            let fate = self.fate(name);
            if fate == Some(Cut::Before) {
                self.met.notify_one();
                break;
            }
            to_server.write_all(&request).await?;
            let forward = fate.is_none().then_some(&mut to_client);
            tokio::select! {
                answered = answer(&mut from_server, forward) => answered?,
                _ = &mut reader => break,
            }
            if let Some(fate) = fate {
                self.met.notify_one();
                if fate == Cut::Silence {
                    reader.await?;
                }
                break;
            }
        }
        Ok(())
    }

    /// Records a request, and returns its fate. Pings of the pool are not counted: they come at any
    /// time.
    fn fate(&self, name: String) -> Option<Cut> {
        if name == "ping" {
            return None;
        }
        let mut script = self.script.lock().unwrap();
        let number = script.requests.len();
        script.requests.push(name);
        let cut = script.cut.filter(|(cut, _)| *cut == number);
        cut.map(|(_, cut)| cut)
    }
}

/// A packet with its length in front, as at the start of a connection.
async fn packet(from: &mut OwnedReadHalf) -> io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.resize(length as usize, 0);
    from.read_exact(&mut bytes[4..]).await?;
    Ok(bytes)
}

/// One request, and its name.
async fn request(from: &mut OwnedReadHalf) -> io::Result<(String, Vec<u8>)> {
    let mut name = "ping".to_owned();
    let mut bytes = Vec::new();
    loop {
        let kind = from.read_u8().await?;
        let message = packet(from).await?;
        bytes.push(kind);
        bytes.extend_from_slice(&message);
        let sql = |bytes: &[u8]| {
            let sql = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            let sql = String::from_utf8_lossy(sql);
            sql.split([' ', ';']).next().unwrap_or_default().to_owned()
        };
        match kind {
            b'Q' => return Ok((sql(&message[4..]), bytes)),
            b'P' => name = "prepare".into(),
            b'B' => name = "execute".into(),
            b'S' => return Ok((name, bytes)),
            b'X' => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {}
        }
    }
}

/// Reads an answer up to `ReadyForQuery`, and forwards it.
async fn answer(from: &mut OwnedReadHalf, mut to: Option<&mut OwnedWriteHalf>) -> io::Result<()> {
    loop {
        let kind = from.read_u8().await?;
        let message = packet(from).await?;
        if let Some(to) = &mut to {
            to.write_all(&[&[kind], message.as_slice()].concat())
                .await?;
        }
        if kind == b'Z' {
            return Ok(());
        }
    }
}

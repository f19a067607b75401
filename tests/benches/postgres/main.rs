//! Messages a second of [`PostgresMode`](sqs_once_postgres::PostgresMode) beside a plain sqlx loop of the same
//! statements, round trips of a message, and events a second of the relay. Writes `figures.csv` beside this file.
//!
//! Consumer and loop take turns over several rounds, in this process, on one thread. The server is a real
//! one on this machine. Another thread delays its answers. `BENCH_ROUNDS=1` is a quick look, which
//! writes nothing.

#![recursion_limit = "256"]
#![allow(
    clippy::unwrap_used,
    reason = "a bench that cannot set up its surroundings has nothing better to do than panic"
)]

mod messages;
mod plain_loop;
mod relay;
mod slow_wire;

#[path = "../compare/numbers.rs"]
mod numbers;

use std::{fs, path::Path, time::Duration};

use messages::{Candidate, Load};
use numbers::{batch_of, digits};
use slow_wire::SlowWire;
use support::world::World;

const BATCHES: [usize; 3] = [1, 10, 100];
const CONNECTIONS: [u32; 3] = [1, 5, 10];
/// Time by which the wire delays each answer. Without a delay, the disk of the server decides.
const DELAY: Duration = Duration::from_millis(1);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // `cargo bench` passes arguments for libtest, which this is not.
    let rounds = std::env::var("BENCH_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    let time = Duration::from_millis(if rounds == 1 { 300 } else { 1500 });
    let world = World::start().await;

    let mut figures = rates(&world, rounds, time).await;
    figures.push(messages::round_trips(&world).await);
    figures.extend(relay::measure(&world).await);
    let mut data = String::from("figure,value\n");
    for (figure, value) in figures {
        data += &format!("\"{figure}\",{}\n", digits(Some(value)));
    }
    println!("{data}");
    if rounds > 1 {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/benches/postgres/figures.csv");
        fs::write(file, data).unwrap();
    }
}

/// A figure with its name.
pub(crate) type Figure = (String, f64);

/// Messages a second of both candidates.
async fn rates(world: &World, rounds: usize, time: Duration) -> Vec<Figure> {
    let wire = SlowWire::start(world.options.get_port(), DELAY);
    let delayed = world.options.clone().port(wire.port);
    let round_trip = messages::round_trip(&delayed).await;
    let milliseconds = round_trip.as_secs_f64() * 1e3;
    let mut figures = vec![("round trip of the slow wire, ms".to_owned(), milliseconds)];
    for messages in BATCHES {
        for connections in CONNECTIONS {
            let load = Load {
                messages,
                connections,
                time,
            };
            let mut rates = [Vec::new(), Vec::new()];
            for round in 0..rounds {
                let turns = match round % 2 {
                    0 => Candidate::ALL,
                    _ => [Candidate::ALL[1], Candidate::ALL[0]],
                };
                for candidate in turns {
                    eprint!("\rbatch {messages}, {connections} connections, {candidate:?}      ");
                    world.run_sql("TRUNCATE sqs_once_records, things").await;
                    rates[candidate as usize].push(candidate.rate(&delayed, load).await);
                }
            }
            for (candidate, rates) in Candidate::ALL.into_iter().zip(rates) {
                let (batch, name) = (batch_of(messages), candidate.name());
                let figure =
                    format!("messages a second, {batch}, connections {connections}, {name}");
                figures.push((figure, median(rates)));
            }
        }
    }
    eprintln!();
    figures
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

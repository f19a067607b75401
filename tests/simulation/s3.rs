//! [`Objects`]: buckets in S3, and the SDK's client of them over a connector in memory.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use aws_config::SdkConfig;
use sqs_once::protocol::ResultPointer;

use crate::{
    ledger::Event,
    plan::Service,
    sdk::{Answer, Request, service},
    world::{Member, World},
};

/// The bucket of the bodies.
pub const BODIES: &str = "bodies";

/// The objects of all buckets, by path.
#[derive(Debug, Default)]
pub struct Objects(Mutex<BTreeMap<String, Vec<u8>>>);

impl Objects {
    pub fn put(&self, path: String, object: Vec<u8>) {
        let mut objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        objects.insert(path, object);
    }

    /// Returns the object that a record names.
    pub fn output(&self, pointer: &ResultPointer) -> Option<String> {
        let object = self.get(&format!("/{}/{}", pointer.bucket, pointer.key))?;
        String::from_utf8(object).ok()
    }

    fn get(&self, path: &str) -> Option<Vec<u8>> {
        let objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        objects.get(path).cloned()
    }
}

/// Returns the configuration of clients through which a process calls S3.
pub fn config(world: &Arc<World>, member: &Member) -> SdkConfig {
    service(world, member, |worker| Event::S3Fault { worker }, serve)
}

fn serve(world: &World, request: &Request) -> Answer {
    if world.is_out(Service::Credentials) {
        return error(400, "ExpiredToken");
    }
    if world.is_out(Service::S3) || world.strikes(world.plan.rates.s3_refused) {
        return error(503, "SlowDown");
    }
    match &*request.method {
        "PUT" => {
            world
                .objects
                .put(request.path.clone(), request.body.clone());
            (200, Vec::new())
        }
        "GET" => match world.objects.get(&request.path) {
            Some(object) => (200, object),
            None => error(404, "NoSuchKey"),
        },
        other => unreachable!("the consumer sends no {other} to S3"),
    }
}

fn error(status: u16, code: &str) -> Answer {
    let body = format!("<Error><Code>{code}</Code><Message>simulated</Message></Error>");
    (status, body.into_bytes())
}

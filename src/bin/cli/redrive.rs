//! stub
use crate::output::{End, Error, Format};
use clap::Args;
/// stub
#[derive(Args, Debug)]
pub(crate) struct Redrive {}
impl Redrive {
    pub(crate) async fn run(self, _: Format) -> Result<End, Error> {
        Ok(End::Done)
    }
}

//! The table: a request arrives, and changes a record or not.

use std::sync::Arc;

use sqs_once::{
    protocol::{
        AttemptEnd, ClaimRequest, FencingToken, Record, Settlement, State as Status, Timestamp,
    },
    store::{ClaimResponse, SettleResponse},
};

use crate::processes::{
    promises::Promise,
    rules::Rules,
    state::{AttemptFacts, Facts, InFlight, Receive, Request, State, second},
};

pub enum Response {
    Claim(ClaimResponse),
    Settle(SettleResponse),
}

impl State {
    /// A request arrives at the table.
    pub fn apply(&mut self, rules: Rules, arriving: &InFlight) -> Response {
        let receive = arriving.receive;
        match &*arriving.request {
            Request::Claim(claim) => {
                // No worker may know of this claim.
                let is_late = !arriving.awaited;
                let operation = &self.operations[self.operation(receive)];
                let has_ended = operation.facts.ended.contains(&receive) && !arriving.is_copy;
                // A failed record has no lease that refuses a late claim of another message.
                let status = operation.record.as_ref().map(|record| record.state.clone());
                let has_failed = status == Some(Status::Failed);
                let response = self.apply_claim(rules, receive, claim, is_late);
                let is_applied = matches!(response, ClaimResponse::Applied { .. });
                let again = is_applied && has_ended && !has_failed;
                self.break_if(again, Promise::EndedClaimStaysEnded);
                Response::Claim(response)
            }
            Request::Settle {
                fence,
                settlement,
                now,
                attempt,
            } => {
                let settled = self.apply_settlement(rules, receive, (fence, settlement, *now));
                if matches!(settled, SettleResponse::Applied) {
                    self.record_facts(receive, settlement, *now, *attempt);
                }
                Response::Settle(settled)
            }
        }
    }

    fn apply_claim(
        &mut self,
        rules: Rules,
        receive: Receive,
        claim: &ClaimRequest,
        is_late: bool,
    ) -> ClaimResponse {
        let operation = self.operation(receive);
        let found = self.operations[operation].record.clone();
        let record = found.as_deref();
        if let Some(record) = record.filter(|_| !rules.may_claim(found.as_deref(), claim)) {
            return ClaimResponse::ConditionFailed(record.clone());
        }
        let replaced = record
            .filter(|record| !record.is_expired(claim.now))
            .cloned();
        if record.is_some() && replaced.is_none() {
            // Nothing is promised beyond the retention.
            self.forget(operation);
        }
        let was_completed = matches!(
            replaced.as_ref().map(|record| &record.state),
            Some(Status::Completed { .. })
        );
        self.break_if(was_completed, Promise::ResultIsKept);
        let claimed = rules.claimed(claim, replaced.as_ref());
        self.operations[operation].record = Some(Arc::new(claimed));
        self.messages[receive.message].may_be_suspect |= is_late;
        ClaimResponse::Applied { replaced }
    }

    fn apply_settlement(
        &mut self,
        rules: Rules,
        receive: Receive,
        (fence, settlement, now): (&FencingToken, &Settlement, Timestamp),
    ) -> SettleResponse {
        let operation = self.operation(receive);
        let found = self.operations[operation].record.clone();
        let record = found.as_deref();
        let Some(record) = record.filter(|_| rules.may_settle(record, fence, settlement)) else {
            return SettleResponse::ConditionFailed(record.cloned());
        };
        let was_completed = matches!(record.state, Status::Completed { .. });
        self.break_if(was_completed, Promise::ResultIsKept);
        let settled: Option<Record> = rules.settled(settlement, record, now);
        self.operations[operation].record = settled.map(Arc::new);
        SettleResponse::Applied
    }

    /// A settlement was applied.
    fn record_facts(
        &mut self,
        receive: Receive,
        settlement: &Settlement,
        now: Timestamp,
        attempt: AttemptFacts,
    ) {
        let operation = self.operation(receive);
        let copies = self.network.iter().any(|request| {
            let is_claim = matches!(*request.request, Request::Claim(_));
            is_claim && request.receive == receive && !request.is_copy
        });
        let facts = &mut self.operations[operation].facts;
        if copies && !matches!(settlement, Settlement::Renew { .. }) {
            facts.ended.push(receive);
        }
        match settlement {
            Settlement::Complete { .. } => facts.completed = Some(receive),
            Settlement::Fail { .. } => {
                facts
                    .failed
                    .extend(attempt.reason.map(|reason| (receive.message, reason)));
            }
            Settlement::Release { .. } | Settlement::Restore(_) | Settlement::Renew { .. } => {}
        }
        match settlement {
            Settlement::Renew { .. } => facts.alone_since = Some(second(now)),
            Settlement::Release {
                last_end: None | Some(AttemptEnd::NotStarted),
            } => {}
            // Whatever went before, this attempt did not end its process.
            Settlement::Restore(_) if attempt.began => {
                facts.unended.retain(|unended| *unended != receive);
                facts.ended_alone();
            }
            Settlement::Restore(_) if attempt.alone => {
                facts.alone.retain(|alone| *alone != receive);
                facts.alone_since = None;
            }
            Settlement::Restore(_) => {}
            _ => {
                facts.unended.clear();
                facts.ended_alone();
            }
        }
    }

    /// The record of an operation is gone, and with it all promises about it.
    pub fn forget(&mut self, operation: usize) {
        self.operations[operation].facts = Facts::default();
    }
}

impl Facts {
    fn ended_alone(&mut self) {
        self.alone.clear();
        (self.alone_since, self.kills_alone) = (None, 0);
    }
}

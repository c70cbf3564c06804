//! The control endpoint, for tests of a program in another process.
//!
//! `GET /control/state`, `GET /control/journal`, `POST /control/faults` (a [`Rule`]), `DELETE /control/faults`,
//! `POST /control/settings`, `POST /control/groups/ID` (an [`Action`]).

use std::sync::Arc;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    cloud::{Outcome, StockCheck},
    emulator::{Emulator, count_json},
    fault::Rule,
    http::{HttpRequest, HttpResponse},
    rate::Buckets,
};

/// A group that exists.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupSummary {
    /// Of the cloud.
    pub id: String,
    /// From the request.
    pub name: String,
    /// As the API spells it.
    pub status: String,
    /// In order.
    pub tags: Vec<(String, String)>,
    /// Where it runs.
    pub v_switch: String,
    /// Seconds that are billed.
    pub billed_seconds: f64,
}

/// What happens to a group.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub(crate) enum Action {
    Reclaim,
    Vanish,
    Event { reason: String, message: String },
    Exit { container: String, code: i32 },
    Log { container: String, line: String },
}

/// What can be changed while the emulator runs.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Changes {
    scheduling_ms: Option<i64>,
    pulling_ms: Option<i64>,
    stopping_ms: Option<i64>,
    restart_ms: Option<i64>,
    lag_ms: Option<i64>,
    max_cpu: Option<f64>,
    sold_out: Option<Vec<String>>,
    stock_check_at_schedule: Option<bool>,
    denied: Option<Vec<String>>,
    overdrawn: Option<bool>,
    limits_rates: Option<bool>,
}

/// The groups that exist.
pub(crate) fn groups(emulator: &Arc<Emulator>) -> Vec<GroupSummary> {
    emulator.with_cloud(|cloud| {
        let now = cloud.now();
        let existing = cloud.groups().filter(|(_, group)| !group.is_gone);
        existing
            .map(|(_, group)| GroupSummary {
                id: group.id.clone(),
                name: group.name().to_owned(),
                status: group.status.name().to_owned(),
                tags: group.tags.clone(),
                v_switch: group.v_switch.clone(),
                billed_seconds: group.bill().seconds(now),
            })
            .collect()
    })
}

/// Does something to a group. Says whether there is such a group and container.
pub(crate) fn act(emulator: &Arc<Emulator>, id: &str, action: Action) -> bool {
    emulator.with_cloud(|cloud| {
        let Ok((number, group)) = cloud.find(id) else { return false };
        let find = |name: &str| group.container(name).map(|(index, container)| (index, container.run));
        match action {
            Action::Reclaim => cloud.reclaim(number),
            Action::Vanish => cloud.gone(number),
            Action::Event { reason, message } => {
                let now = cloud.now();
                if let Some(group) = cloud.group_mut(number) {
                    group.push_event(now, &reason, &message);
                }
            }
            Action::Exit { container, code } => {
                let Some((index, run)) = find(&container) else { return false };
                cloud.exited(number, index, run, Outcome::exit(code));
            }
            Action::Log { container, line } => {
                let Some((index, run)) = find(&container) else { return false };
                let now = cloud.now();
                if let Some(container) = cloud.container_of_run(number, index, run) {
                    container.append_log(now, line);
                }
            }
        }
        true
    })
}

/// Answers a request of the control endpoint.
pub(crate) fn answer(emulator: &Arc<Emulator>, request: &HttpRequest) -> HttpResponse {
    let path = request.path.trim_start_matches("/control/");
    let answer = match (request.method.as_str(), path) {
        ("GET", "state") => Ok(state(emulator)),
        ("GET", "journal") => Ok(Value::Array(emulator.journal.entries())),
        ("POST", "faults") => parse::<Rule>(request).map(|rule| {
            emulator.add_fault(rule);
            json!({})
        }),
        ("DELETE", "faults") => {
            emulator.faults.lock().clear();
            Ok(json!({}))
        }
        ("POST", "settings") => parse::<Changes>(request).map(|changes| {
            apply(emulator, changes);
            json!({})
        }),
        ("POST", path) if path.starts_with("groups/") => {
            let id = path.trim_start_matches("groups/");
            parse::<Action>(request).and_then(|action| {
                if act(emulator, id, action) { Ok(json!({})) } else { Err(format!("no such group: {id}")) }
            })
        }
        (method, path) => Err(format!("no such control: {method} {path}")),
    };
    match answer {
        Ok(body) => HttpResponse::json(200, &body),
        Err(error) => HttpResponse::json(400, &json!({"error": error})),
    }
}

fn parse<T: for<'a> Deserialize<'a>>(request: &HttpRequest) -> Result<T, String> {
    serde_json::from_slice(&request.body).map_err(|error| error.to_string())
}

fn state(emulator: &Arc<Emulator>) -> Value {
    let now = emulator.clock.now();
    let bills: Vec<Value> = emulator
        .bills()
        .iter()
        .map(|bill| {
            json!({"id": bill.id, "name": bill.name, "seconds": bill.seconds(now), "isOpen": bill.to.is_none()})
        })
        .collect();
    json!({
        "groups": groups(emulator),
        "calls": count_json(&emulator.counts.lock()),
        "bills": bills,
    })
}

fn apply(emulator: &Arc<Emulator>, changes: Changes) {
    emulator.with_cloud(|cloud| {
        let settings = &mut cloud.settings;
        let timing = &mut settings.timing;
        for (target, milliseconds) in [
            (&mut timing.scheduling, changes.scheduling_ms),
            (&mut timing.pulling, changes.pulling_ms),
            (&mut timing.stopping, changes.stopping_ms),
            (&mut timing.restart, changes.restart_ms),
            (&mut timing.lag, changes.lag_ms),
        ] {
            if let Some(milliseconds) = milliseconds {
                *target = SignedDuration::from_millis(milliseconds);
            }
        }
        settings.max_cpu = changes.max_cpu.unwrap_or(settings.max_cpu);
        if let Some(sold_out) = changes.sold_out {
            settings.sold_out = sold_out.into_iter().collect();
        }
        if let Some(at_schedule) = changes.stock_check_at_schedule {
            settings.stock_check = if at_schedule { StockCheck::AtSchedule } else { StockCheck::AtCreate };
        }
    });
    let mut account = emulator.account.lock();
    if let Some(denied) = changes.denied {
        account.denied = denied.into_iter().collect();
    }
    account.is_overdrawn = changes.overdrawn.unwrap_or(account.is_overdrawn);
    if let Some(limits_rates) = changes.limits_rates {
        *emulator.buckets.lock() = limits_rates.then(Buckets::of_vendor);
    }
}

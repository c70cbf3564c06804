//! The table and the JSON of groups.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use vk_provider::inventory::{Group, Price};

use super::pod_check::PodFate;
use crate::cli::output::table;

/// A group with what is known about its pod.
#[derive(Debug)]
pub(super) struct Row<'a> {
    /// The provider.
    pub(super) provider: &'a str,
    /// The group.
    pub(super) group: &'a Group,
    /// What is known about its pod.
    pub(super) fate: PodFate,
}

/// The sum of groups with the same currency.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Total {
    groups: usize,
    per_hour: f64,
    cost: f64,
}

// === impl Row ===

impl Row<'_> {
    /// Whether it is paid for and its pod does not exist.
    pub(super) fn is_orphaned(&self) -> bool {
        self.fate == PodFate::Missing && self.group.end.is_none()
    }

    /// By node and pod, orphans last.
    pub(super) fn order(&self) -> impl Ord + use<> {
        let pod = self.group.pod.as_ref().map(|pod| (pod.namespace.to_string(), pod.name.to_string()));
        (self.group.node.clone(), self.fate == PodFate::Missing, pod, self.group.id.clone())
    }

    fn cells(&self, now: Timestamp) -> [String; 9] {
        let unknown = || "-".to_owned();
        let group = self.group;
        let pod = match (&self.fate, &group.pod) {
            (PodFate::Missing, _) => "(none)".to_owned(),
            (_, Some(pod)) => format!("{}/{}", pod.namespace, pod.name),
            (_, None) => unknown(),
        };
        let cost = group.cost(now).zip(group.price.as_ref());
        let price = group.price.as_ref().filter(|_| group.end.is_none());
        [
            group.node.clone().unwrap_or_else(unknown),
            pod,
            group.id.clone(),
            group.state.clone(),
            group.size.as_ref().map_or_else(unknown, ToString::to_string),
            price.map_or_else(unknown, ToString::to_string),
            group.begin.map_or_else(unknown, |begin| age(now.duration_since(begin).as_secs())),
            cost.map_or_else(unknown, |(cost, Price { currency, .. })| format!("{cost:.2} {currency}")),
            self.remarks(),
        ]
    }

    fn remarks(&self) -> String {
        let pod = match self.fate {
            PodFate::Missing if self.group.end.is_none() => Some("orphaned: pod does not exist"),
            PodFate::Missing => Some("ended; pod does not exist"),
            _ => None,
        };
        let remarks: Vec<&str> = pod.into_iter().chain(self.group.remark.as_deref()).collect();
        remarks.join("; ")
    }
}

/// The table, with totals below.
pub(super) fn text(rows: &[Row<'_>], now: Timestamp) -> String {
    let head = ["NODE", "POD", "GROUP", "STATE", "SIZE", "PRICE/H", "AGE", "COST", ""];
    let cells: Vec<[String; 9]> = rows.iter().map(|row| row.cells(now)).collect();
    let mut lines = vec![table(head, &cells)];
    if !rows.is_empty() {
        lines.extend(["\n".to_owned(), total_line("total", rows.iter(), now)]);
    }
    if rows.iter().any(Row::is_orphaned) {
        lines.push(total_line("orphaned", rows.iter().filter(|row| row.is_orphaned()), now));
    }
    lines.concat()
}

/// `total: 2 groups, 0.3672 USD/h, 53.27 USD`.
fn total_line<'a>(label: &str, rows: impl Iterator<Item = &'a Row<'a>>, now: Timestamp) -> String {
    let rows: Vec<&Row<'_>> = rows.collect();
    let mut parts = vec![format!("{} {}", rows.len(), if rows.len() == 1 { "group" } else { "groups" })];
    let totals = totals(rows.iter().copied(), now);
    for (currency, total) in &totals {
        parts.push(format!("{:.4} {currency}/h, {:.2} {currency}", total.per_hour, total.cost));
    }
    let priced: usize = totals.values().map(|total| total.groups).sum();
    if priced < rows.len() {
        parts.push(format!("{} without a price", rows.len() - priced));
    }
    format!("{label}: {}\n", parts.join(", "))
}

/// The sums by currency.
fn totals<'a>(rows: impl Iterator<Item = &'a Row<'a>>, now: Timestamp) -> BTreeMap<&'a str, Total> {
    let mut totals: BTreeMap<&str, Total> = BTreeMap::new();
    for row in rows {
        let Some(price) = &row.group.price else { continue };
        let total = totals.entry(&price.currency).or_default();
        total.groups += 1;
        total.per_hour += if row.group.end.is_none() { price.per_hour } else { 0.0 };
        total.cost += row.group.cost(now).unwrap_or_default();
    }
    totals
}

/// The JSON: groups, and the sums by currency.
pub(super) fn json(rows: &[Row<'_>], now: Timestamp) -> Value {
    let groups: Vec<Value> = rows.iter().map(|row| group_json(row, now)).collect();
    let totals: Vec<Value> = totals(rows.iter(), now)
        .into_iter()
        .map(|(currency, total)| {
            json!({"currency": currency, "groups": total.groups, "perHour": total.per_hour, "cost": total.cost})
        })
        .collect();
    json!({"groups": groups, "totals": totals})
}

fn group_json(row: &Row<'_>, now: Timestamp) -> Value {
    let group = row.group;
    let pod = group
        .pod
        .as_ref()
        .map(|pod| json!({"namespace": &*pod.namespace, "name": &*pod.name, "uid": &*pod.uid}));
    let exists = match &row.fate {
        PodFate::Exists => Some(true),
        PodFate::Missing => Some(false),
        PodFate::Unknown(_) => None,
    };
    let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
    json!({
        "id": group.id,
        "name": group.name,
        "provider": row.provider,
        "cluster": group.cluster,
        "node": group.node,
        "pod": pod,
        "podExists": exists,
        "orphaned": row.is_orphaned(),
        "state": group.state,
        "size": group.size,
        "price": group.price,
        "begin": time(group.begin),
        "end": time(group.end),
        "paidSeconds": group.paid_seconds(now),
        "cost": group.cost(now),
        "remark": group.remark,
    })
}

/// An age as kubectl writes it: `3h12m`, `9d`.
fn age(seconds: i64) -> String {
    let pair = |large: i64, unit: char, small: i64, smaller: char| {
        if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small}{smaller}") }
    };
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => pair(minutes, 'm', seconds % 60, 's'),
        () if hours < 3 => format!("{minutes}m"),
        () if hours < 8 => pair(hours, 'h', minutes % 60, 'm'),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => pair(days, 'd', hours % 24, 'h'),
        () if days < 730 => format!("{days}d"),
        () if days < 8 * 365 => pair(days / 365, 'y', days % 365, 'd'),
        () => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests;

//! The text and the JSON of explanations.

use serde_json::{Map, Value, json};
use vk_provider::{
    Explanation, Quantity,
    explanation::{BackendAnswer, FieldPolicy, FieldResult, FileUsage, PriceEstimate, SizeChoice},
    requests::ResourceList,
};

use super::manifest::Workload;
use crate::cli::output::table;

/// One workload on one provider.
#[derive(Debug)]
pub(super) struct Explained<'a> {
    /// The workload.
    pub(super) workload: &'a Workload,
    /// The provider.
    pub(super) provider: &'a str,
    /// What becomes of its pods.
    pub(super) explanation: Explanation,
    /// Whether the backend should be asked.
    pub(super) asked: bool,
}

// === impl Explained ===

impl Explained<'_> {
    /// The text; with `all` also fields that need no attention.
    pub(super) fn text(&self, all: bool) -> String {
        let Self { workload, provider, explanation, .. } = self;
        let what = if workload.kind == "Pod" { "" } else { ": pods" };
        let place = explanation.place.as_deref().map(|place| format!(" ({place})")).unwrap_or_default();
        let (kind, namespace, name) = (&workload.kind, &workload.namespace, &workload.name);
        let head = format!("{kind} {namespace}/{name}{what} on {provider}{place}\n\n");
        let lines = self.lines().into_iter().map(|(label, line)| format!("  {label:<8}  {line}\n"));
        let shown = |row: &&FieldResult| all || row.warning || row.policy != FieldPolicy::Native;
        let row = |row: &FieldResult| [row.field.clone(), row.policy.to_string(), one_line(&row.result)];
        let rows: Vec<[String; 3]> = explanation.fields.iter().filter(shown).map(row).collect();
        let fields =
            if rows.is_empty() { String::new() } else { table(["FIELD", "POLICY", "RESULT"], &rows) };
        let separator = (!rows.is_empty()).then(|| "\n".to_owned());
        let fields = fields.lines().map(|line| format!("  {line}\n"));
        [head].into_iter().chain(lines).chain(separator).chain(fields).collect()
    }

    /// The lines above the table.
    fn lines(&self) -> Vec<(&'static str, String)> {
        let Explanation { size, price, files, not_read, backend, .. } = &self.explanation;
        let mut lines = vec![("runs", self.runs())];
        lines.extend(size.as_ref().map(|size| ("size", size_line(size))));
        lines.extend(price.as_ref().map(|price| ("price", price_line(price))));
        lines.extend(files.as_ref().map(|files| ("files", files_line(files))));
        if !not_read.is_empty() {
            let names: Vec<String> = not_read.iter().map(ToString::to_string).collect();
            lines.push(("not read", format!("{}: sizes not counted", names.join(", "))));
        }
        let provider = self.provider;
        let asked = match backend {
            Some(BackendAnswer::Accepted(answer)) => {
                Some(format!("{provider} accepts it: {}", one_line(answer)))
            }
            Some(BackendAnswer::Refused(why)) => Some(format!("{provider} refuses it: {}", one_line(why))),
            Some(BackendAnswer::Failed(why)) => Some(format!("no answer: {}", one_line(why))),
            None => self.asked.then(|| format!("{provider} offers no dry run")),
        };
        lines.extend(asked.map(|asked| ("asked", asked)));
        lines
    }

    fn runs(&self) -> String {
        let Self { provider, explanation, .. } = self;
        if !explanation.runs() {
            let mut fields: Vec<&str> = explanation.refused().map(|row| row.field.as_str()).collect();
            fields.dedup();
            return match fields.len() {
                0 => format!("no: {provider} refuses it"),
                _ => format!("no: {}", fields.join(", ")),
            };
        }
        let warnings = match explanation.warnings().count() {
            0 => String::new(),
            1 => ", with 1 warning".to_owned(),
            count => format!(", with {count} warnings"),
        };
        let unchanged = if explanation.unchanged {
            format!(": {provider} passes pods through unchanged")
        } else {
            String::new()
        };
        format!("yes{warnings}{unchanged}")
    }

    /// The JSON, always with all fields.
    pub(super) fn json(&self) -> Value {
        let Self { workload, provider, explanation, .. } = self;
        let mut object = Map::new();
        let mut set = |key: &str, value: Value| object.insert(key.to_owned(), value);
        set("kind", workload.kind.clone().into());
        set("namespace", workload.namespace.clone().into());
        set("name", workload.name.clone().into());
        set("provider", (*provider).into());
        if let Some(place) = &explanation.place {
            set("place", place.clone().into());
        }
        set("runs", explanation.runs().into());
        set("unchanged", explanation.unchanged.into());
        set("warnings", explanation.warnings().count().into());
        set("refused", explanation.refused().count().into());
        if let Some(size) = &explanation.size {
            set(
                "size",
                json!({"requested": size.requested, "init": size.init, "given": size.given, "reason": size.reason}),
            );
        }
        match &explanation.price {
            Some(PriceEstimate::Known { price, source }) => {
                set(
                    "price",
                    json!({"perHour": price.per_hour, "currency": price.currency, "source": source}),
                );
            }
            Some(PriceEstimate::Unknown(why)) => {
                set("price", json!({"unknown": why}));
            }
            None => {}
        }
        if let Some(files) = &explanation.files {
            set("files", json!(files));
        }
        set("notRead", json!(explanation.not_read));
        if let Some(answer) = &explanation.backend {
            let (outcome, message) = match answer {
                BackendAnswer::Accepted(message) => ("accepted", message),
                BackendAnswer::Refused(message) => ("refused", message),
                BackendAnswer::Failed(message) => ("failed", message),
            };
            set("asked", json!({"outcome": outcome, "message": message}));
        }
        set("fields", json!(explanation.fields));
        Value::Object(object)
    }
}

fn size_line(size: &SizeChoice) -> String {
    let init = size.init.as_ref().map(|init| format!(" (init {})", amounts(init, ""))).unwrap_or_default();
    let mut parts = vec![format!("requests {}{init}", amounts(&size.requested, " cpu"))];
    if let Some(given) = &size.given {
        let kind = given.instance_type.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
        parts.push(format!("gets {} cpu, {}{kind}", cpus(given.cpu), given.memory));
    }
    parts.push(one_line(&size.reason));
    parts.retain(|part| !part.is_empty());
    parts.join("    ")
}

/// CPUs, memory, then other resources.
fn amounts(list: &ResourceList, unit: &str) -> String {
    if list.is_empty() {
        return "nothing".to_owned();
    }
    let cpu = list.get("cpu").map(|amount| format!("{}{unit}", cpus(*amount)));
    let memory = list.get("memory").map(ToString::to_string);
    let others = list.iter().filter(|(name, _)| !matches!(name.as_str(), "cpu" | "memory"));
    let others = others.map(|(name, amount)| format!("{amount} {name}"));
    cpu.into_iter().chain(memory).chain(others).collect::<Vec<_>>().join(", ")
}

/// CPUs as a decimal number: `1.5`, not `1500m`.
fn cpus(amount: Quantity) -> String {
    let milli = amount.to_milli();
    let text = format!("{}.{:03}", milli / 1_000, (milli % 1_000).abs());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn price_line(price: &PriceEstimate) -> String {
    match price {
        PriceEstimate::Known { price, source } => {
            format!("{:.4} {}/h per pod ({})", price.per_hour, price.currency, one_line(source))
        }
        PriceEstimate::Unknown(why) => format!("unknown: {}", one_line(why)),
    }
}

fn files_line(files: &FileUsage) -> String {
    let volumes =
        if files.volumes == 1 { "1 volume".to_owned() } else { format!("{} volumes", files.volumes) };
    let limit = files.limit.map(|limit| format!(" of {}", kilobytes(limit))).unwrap_or_default();
    format!("{volumes}, {}{limit}", kilobytes(files.bytes))
}

/// A size in KB of 1024 bytes, as the limits of clouds are written.
fn kilobytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10).div_ceil(1_024);
    if tenths.is_multiple_of(10) {
        format!("{} KB", tenths / 10)
    } else {
        format!("{}.{} KB", tenths / 10, tenths % 10)
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;

//! Metrics in the text format of Prometheus: of our processes, and of API servers.

use std::{collections::BTreeMap, fmt};

use anyhow::Context as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The requests that API servers have answered.
const REQUESTS: &str = "apiserver_request_total";
/// Verbs of these metrics that change objects.
const WRITES: [&str; 6] = ["POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"];

/// Samples of metrics.
#[derive(Debug, Default)]
pub(super) struct Samples(Vec<Sample>);

#[derive(Debug)]
pub(super) struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// The successful writes to an API server by verb, resource and subresource, such as `PATCH pods/status`.
#[derive(Clone, Debug, Default)]
pub(super) struct Writes(BTreeMap<String, f64>);

// === impl Samples ===

impl Samples {
    /// Reads the metrics of a process on this machine, without TLS.
    pub(super) async fn of_process(port: u16) -> anyhow::Result<Self> {
        let body = get_plain(port, "/metrics").await?.context("the process does not serve metrics")?;
        Ok(Self::parse(&body))
    }

    pub(super) fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(Sample::parse).collect())
    }

    /// The sum of the samples of a metric that have these labels.
    pub(super) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &&Sample| {
            sample.name == name && labels.iter().all(|(key, value)| sample.label(key) == *value)
        };
        // The sum of nothing is -0.
        0.0 + self.0.iter().filter(has).map(|sample| sample.value).sum::<f64>()
    }
}

impl Sample {
    /// Parses `name{key="value",...} 1.5`; comments are none.
    fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        if line.starts_with('#') {
            return None;
        }
        let end = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(end);
        let mut labels = BTreeMap::new();
        if let Some(all) = rest.strip_prefix('{') {
            rest = all;
            while !rest.starts_with('}') {
                let (key, behind) = rest.trim_start_matches(',').split_once("=\"")?;
                let (value, behind) = parse_value(behind)?;
                labels.insert(key.to_owned(), value);
                rest = behind;
            }
            rest = &rest[1..];
        }
        let value = rest.split_whitespace().next()?.parse().ok()?;
        Some(Self { name: name.to_owned(), labels, value })
    }

    fn label(&self, key: &str) -> &str {
        self.labels.get(key).map_or("", String::as_str)
    }
}

/// The value of a label up to its quotation mark, and what is behind that.
fn parse_value(text: &str) -> Option<(String, &str)> {
    let (mut value, mut letters) = (String::new(), text.char_indices());
    loop {
        match letters.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(match letters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            (_, letter) => value.push(letter),
        }
    }
}

impl fmt::Display for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<_> = self
            .0
            .iter()
            .filter(|(_, count)| **count > 0.0)
            .map(|(what, count)| format!("{count} {what}"))
            .collect();
        f.write_str(&shown.join(", "))
    }
}

/// The body of a response without TLS, if its status is 200.
pub(super) async fn get_plain(port: u16, path: &str) -> anyhow::Result<Option<String>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8(answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the response is not HTTP")?;
    let is_good = head.split(' ').nth(1) == Some("200");
    Ok(is_good.then(|| body.to_owned()))
}

// === impl Writes ===

impl Writes {
    /// All writes since the API server was started.
    pub(super) async fn of(client: &kube::Client) -> anyhow::Result<Self> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = client.request_text(request).await.context("read the metrics of the API server")?;
        Ok(Self::from_samples(&Samples::parse(&text)))
    }

    fn from_samples(samples: &Samples) -> Self {
        let mut all = BTreeMap::new();
        for sample in samples.0.iter().filter(|sample| sample.name == REQUESTS) {
            let (verb, code) = (sample.label("verb"), sample.label("code"));
            if !WRITES.contains(&verb) || !code.starts_with('2') || !sample.label("dry_run").is_empty() {
                continue;
            }
            let mut what = format!("{verb} {}", sample.label("resource"));
            if !sample.label("subresource").is_empty() {
                what = format!("{what}/{}", sample.label("subresource"));
            }
            *all.entry(what).or_default() += sample.value;
        }
        Self(all)
    }

    /// The writes since an earlier reading to these resources and their subresources, but for these (such as `POST pods/binding`).
    pub(super) fn since(&self, earlier: &Self, resources: &[&str], but_for: &[&str]) -> Self {
        let counts = |what: &str| {
            let resource = what.split([' ', '/']).nth(1).unwrap_or_default();
            resources.contains(&resource) && !but_for.contains(&what)
        };
        let new = |what: &str, count: &f64| count - earlier.0.get(what).copied().unwrap_or_default();
        let counted = self.0.iter().filter(|(what, _)| counts(what));
        Self(counted.map(|(what, count)| (what.clone(), new(what, count))).collect())
    }

    pub(super) fn sum(&self) -> f64 {
        0.0 + self.0.values().sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP apiserver_request_total Counter
apiserver_request_total{code="200",dry_run="",resource="pods",subresource="status",verb="PATCH"} 5
apiserver_request_total{code="201",dry_run="",resource="pods",subresource="",verb="POST"} 3
apiserver_request_total{code="201",dry_run="",resource="pods",subresource="binding",verb="POST"} 3
apiserver_request_total{code="201",dry_run="All",resource="pods",subresource="",verb="POST"} 7
apiserver_request_total{code="409",dry_run="",resource="pods",subresource="status",verb="PATCH"} 9
apiserver_request_total{code="200",dry_run="",resource="pods",subresource="",verb="LIST"} 8
apiserver_request_total{code="201",dry_run="",resource="events",subresource="",verb="POST"} 4
up 1
with{text="a \"b\", {c}"} 2e3 1700000000
"#;

    #[test]
    fn samples_are_found_by_name_and_labels() {
        let samples = Samples::parse(TEXT);
        assert!((samples.sum("up", &[]) - 1.0).abs() < 1e-9);
        assert!((samples.sum("with", &[("text", "a \"b\", {c}")]) - 2000.0).abs() < 1e-9);
        let patches = samples.sum(REQUESTS, &[("verb", "PATCH"), ("code", "200")]);
        assert!((patches - 5.0).abs() < 1e-9);
        assert!(samples.sum("with", &[("text", "other")]).abs() < 1e-9);
    }

    #[test]
    fn writes_are_those_that_changed_something_and_are_not_of_others() {
        let now = Writes::from_samples(&Samples::parse(TEXT));
        let none = Writes::default();
        assert!((now.since(&none, &["pods"], &[]).sum() - 11.0).abs() < 1e-9, "{now:?}");
        assert!((now.since(&none, &["pods"], &["POST pods", "POST pods/binding"]).sum() - 5.0).abs() < 1e-9);
        assert!((now.since(&none, &["events"], &[]).sum() - 4.0).abs() < 1e-9);
        assert!(now.since(&now, &["pods", "events"], &[]).sum().abs() < 1e-9);
    }
}

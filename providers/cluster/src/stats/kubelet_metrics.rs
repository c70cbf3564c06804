//! Parses `/metrics/resource` of a kubelet.

use std::collections::HashMap;

use jiff::Timestamp;

use super::{
    UsageSamples,
    cpu_counter::{Cpu, UsageSample},
};

const CPU: &str = "container_cpu_usage_seconds_total";
const MEMORY: &str = "container_memory_working_set_bytes";

/// A line of the text format.
struct MetricLine<'a> {
    name: &'a str,
    labels: HashMap<&'a str, String>,
    value: f64,
    at: Option<Timestamp>,
}

/// The samples of all containers. Malformed lines are skipped.
pub(super) fn parse(text: &str, now: Timestamp) -> UsageSamples {
    let mut samples = UsageSamples::new();
    for line in text.lines() {
        if !line.starts_with(CPU) && !line.starts_with(MEMORY) {
            continue;
        }
        let Some(mut parsed) = parse_line(line) else { continue };
        let mut label = |name: &str| parsed.labels.remove(name);
        let (Some(namespace), Some(pod), Some(container)) =
            (label("namespace"), label("pod"), label("container"))
        else {
            continue;
        };
        let at = parsed.at.unwrap_or(now);
        let containers = samples.entry((namespace, pod)).or_default();
        let container_sample =
            containers.entry(container).or_insert(UsageSample { at, cpu: None, memory: None });
        match parsed.name {
            CPU => {
                // Rates are computed from counters, so their timestamp counts.
                container_sample.at = at;
                container_sample.cpu = whole(parsed.value * 1e9).map(Cpu::Total);
            }
            MEMORY => container_sample.memory = whole(parsed.value),
            _ => {}
        }
    }
    samples
}

/// `name{label="value",...} number [milliseconds]`
fn parse_line(line: &str) -> Option<MetricLine<'_>> {
    let (name, mut rest) = line.split_once('{')?;
    let mut labels = HashMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(end) = rest.strip_prefix('}') {
            rest = end;
            break;
        }
        let (key, quoted) = rest.split_once("=\"")?;
        let (value, end) = unquoted(quoted)?;
        labels.insert(key.trim(), value);
        rest = end;
    }
    let mut words = rest.split_whitespace();
    let value = words.next()?.parse().ok()?;
    let at = words.next().and_then(|word| Timestamp::from_millisecond(word.parse().ok()?).ok());
    Some(MetricLine { name: name.trim(), labels, value, at })
}

/// The text up to the closing quote, and the rest.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((place, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[place + 1..])),
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked, and a cast saturates")]
fn whole(value: f64) -> Option<u64> {
    (value.is_finite() && value >= 0.0).then_some(value.round() as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = r#"# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="main",namespace="shop",pod="web"} 1.5 1767225600000
container_cpu_usage_seconds_total{container="side",namespace="shop",pod="web"} 2.5e-05
container_memory_working_set_bytes{container="main",namespace="shop",pod="web"} 1.4e+07 1767225600001
node_cpu_usage_seconds_total 3112.4 1767225600000
pod_cpu_usage_seconds_total{namespace="shop",pod="web"} 1.6 1767225600000
container_cpu_usage_seconds_total{container="odd\"}\\ name",namespace="shop",pod="odd"} NaN
container_cpu_usage_seconds_total{container="cut
resource_scrape_error 0
"#;

    #[test]
    fn container_metrics_are_parsed_and_other_lines_skipped() {
        let now = Timestamp::from_second(9).unwrap();
        let samples = parse(TEXT, now);
        let web = &samples[&("shop".to_owned(), "web".to_owned())];
        let at = Timestamp::from_second(1_767_225_600).unwrap();
        let main = UsageSample { at, cpu: Some(Cpu::Total(1_500_000_000)), memory: Some(14_000_000) };
        assert_eq!(web["main"], main);
        assert_eq!(web["side"], UsageSample { at: now, cpu: Some(Cpu::Total(25_000)), memory: None });
        let odd = &samples[&("shop".to_owned(), "odd".to_owned())];
        assert_eq!(odd["odd\"}\\ name"].cpu, None);
        assert_eq!(samples.len(), 2);
    }

    proptest! {
        #[test]
        fn any_text_can_be_parsed(text: String) {
            parse(&format!("{CPU}{text}"), Timestamp::UNIX_EPOCH);
            parse(&format!("{CPU}{{{text}}} 1"), Timestamp::UNIX_EPOCH);
        }
    }
}

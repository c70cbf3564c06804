//! What the process writes to standard error.

use std::{collections::HashSet, fmt, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use vk_testing::ControlPlane;

use super::{becomes_ready, run};

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn every_line_is_a_json_object_without_a_key_twice() {
    let cluster = ControlPlane::shared().await;
    let mut process = run(cluster, &["--nodename", "logged", "--log-level", "debug"]).start();
    becomes_ready(cluster, "logged").await;
    let outcome = process.stop(Duration::from_secs(10)).await;
    assert!(outcome.stderr.ends_with('\n'), "{outcome:?}");
    let mut about_the_node = 0;
    for line in outcome.stderr.lines() {
        serde_json::from_str::<Unique>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let event: Value = serde_json::from_str(line).unwrap();
        for key in ["timestamp", "level", "target"] {
            assert!(event[key].is_string(), "{key} in {line}");
        }
        about_the_node += usize::from(event["span"]["node"] == "logged");
    }
    assert!(outcome.stderr.contains("\"message\":\"connected\""), "{outcome:?}");
    assert!(about_the_node > 0, "{outcome:?}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn text_can_be_asked_for() {
    let cluster = ControlPlane::shared().await;
    let mut process = run(cluster, &["--nodename", "plainly-logged", "--log-format", "text"]).start();
    becomes_ready(cluster, "plainly-logged").await;
    let outcome = process.stop(Duration::from_secs(10)).await;
    assert!(outcome.stderr.contains(" INFO ") && outcome.stderr.contains("connected"), "{outcome:?}");
    for line in outcome.stderr.lines() {
        assert!(serde_json::from_str::<Value>(line).is_err() && !line.contains('\u{1b}'), "{line:?}");
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_quiet_process_writes_nothing() {
    let cluster = ControlPlane::shared().await;
    let mut process = run(cluster, &["--nodename", "quiet", "--log-level", "warn"]).start();
    becomes_ready(cluster, "quiet").await;
    process.stop(Duration::from_secs(10)).await.ok();
}

/// JSON in which no object has a key twice: readers disagree on which one counts.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without a key twice")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            map.next_value::<Self>()?;
            if let Some(key) = seen.replace(key) {
                return Err(A::Error::custom(format!("{key} twice")));
            }
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self, A::Error> {
        while seq.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
}

//! The scripted lifecycle of pods, from the configuration and from annotations of a pod.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use vk_provider::{Error, Quantity, Result, config::nearest, duration, error::Kind};

use crate::{fault, quantity};

/// Prefix of the annotations that script a pod.
pub const ANNOTATION_PREFIX: &str = "mock.virtual-kubelet.io/";

const ANNOTATIONS: [&str; 13] = [
    "start-delay",
    "ready-delay",
    "run-for",
    "exit-code",
    "stop-delay",
    "restart-backoff",
    "init-run-for",
    "init-exit-code",
    "keep-ended",
    "vanish-after",
    "cpu",
    "memory",
    "fail-create",
];

/// The lifecycle of pods. By default, a pod starts and becomes ready immediately, runs until it is stopped, and then ends
/// immediately with code 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Lifecycle {
    /// From the pod's creation to the start of its first container.
    #[serde(with = "duration")]
    pub start_delay: Duration,
    /// From a container's start until it is ready.
    #[serde(with = "duration")]
    pub ready_delay: Duration,
    /// How long a regular container runs; `None` for until it is stopped.
    #[serde(with = "duration::option")]
    pub run_for: Option<Duration>,
    /// Exit code of a regular container that ends without being stopped.
    pub exit_code: i32,
    /// From the request to stop until a container has ended. If the grace period is shorter, it is killed with code 137.
    #[serde(with = "duration")]
    pub stop_delay: Duration,
    /// Back-off before the first restart of a container; doubles with each restart, up to five minutes.
    #[serde(with = "duration")]
    pub restart_backoff: Duration,
    /// How long an init container runs.
    #[serde(with = "duration")]
    pub init_run_for: Duration,
    /// Exit code of an init container.
    pub init_exit_code: i32,
    /// How long the status of a deleted pod can be read after its end, unless it is deleted again.
    #[serde(with = "duration")]
    pub keep_ended: Duration,
    /// From the pod's creation until it disappears as if the backend had lost it; `None` for never.
    #[serde(with = "duration::option")]
    pub vanish_after: Option<Duration>,
    /// CPU usage of each running container; `None` for small values that differ between containers. A change applies from
    /// then on.
    #[serde(with = "quantity")]
    pub cpu: Option<Quantity>,
    /// Memory usage of each running container.
    #[serde(with = "quantity")]
    pub memory: Option<Quantity>,
}

// === impl Lifecycle ===

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            start_delay: Duration::ZERO,
            ready_delay: Duration::ZERO,
            run_for: None,
            exit_code: 0,
            stop_delay: Duration::ZERO,
            // As in a kubelet.
            restart_backoff: Duration::from_secs(10),
            init_run_for: Duration::ZERO,
            init_exit_code: 0,
            keep_ended: Duration::from_secs(10),
            vanish_after: None,
            cpu: None,
            memory: None,
        }
    }
}

/// The script of one pod.
#[derive(Clone, Debug)]
pub(crate) struct PodScript {
    pub(crate) life: Arc<Lifecycle>,
    /// The error of its creation, if it is to fail.
    pub(crate) fail_create: Option<(Kind, String)>,
}

// === impl PodScript ===

impl PodScript {
    /// The lifecycle of the node with the pod's annotations applied. Pods without annotations share one value.
    pub(crate) fn of(pod: &Pod, life: &Arc<Lifecycle>) -> Result<Self> {
        let mut script = Self { life: Arc::clone(life), fail_create: None };
        for (name, value) in pod.metadata.annotations.iter().flatten() {
            if let Some(key) = name.strip_prefix(ANNOTATION_PREFIX) {
                script
                    .set(key, value)
                    .map_err(|error| Error::invalid(format!("annotation {name}: {error}")))?;
            }
        }
        Ok(script)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        if key == "fail-create" {
            self.fail_create = Some(failure(value)?);
            return Ok(());
        }
        let life = Arc::make_mut(&mut self.life);
        match key {
            "start-delay" => life.start_delay = duration(value)?,
            "ready-delay" => life.ready_delay = duration(value)?,
            "run-for" => life.run_for = Some(duration(value)?),
            "exit-code" => life.exit_code = exit_code(value)?,
            "stop-delay" => life.stop_delay = duration(value)?,
            "restart-backoff" => life.restart_backoff = duration(value)?,
            "init-run-for" => life.init_run_for = duration(value)?,
            "init-exit-code" => life.init_exit_code = exit_code(value)?,
            "keep-ended" => life.keep_ended = duration(value)?,
            "vanish-after" => life.vanish_after = Some(duration(value)?),
            "cpu" => life.cpu = Some(quantity::parse(value)?),
            "memory" => life.memory = Some(quantity::parse(value)?),
            _ => {
                let guess = nearest(key, ANNOTATIONS).unwrap_or("start-delay");
                return Err(format!("unknown annotation; did you mean {ANNOTATION_PREFIX}{guess}?"));
            }
        }
        Ok(())
    }
}

fn duration(value: &str) -> Result<Duration, String> {
    duration::parse(value).map_err(|error| error.to_string())
}

fn exit_code(value: &str) -> Result<i32, String> {
    let code: Option<u8> = value.trim().parse().ok();
    code.map(i32::from).ok_or_else(|| format!("{value:?} is not an exit code: write a number from 0 to 255"))
}

/// `Kind: message`, or the kind alone.
fn failure(value: &str) -> Result<(Kind, String), String> {
    let (kind, message) = value.split_once(':').unwrap_or((value, ""));
    let message = match message.trim() {
        "" => "creation fails as its annotation says",
        message => message,
    };
    Ok((fault::parse_kind(kind.trim())?, message.to_owned()))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn pod(key: &str, value: &str) -> Pod {
        let annotations = [(format!("{ANNOTATION_PREFIX}{key}"), value.to_owned())];
        let metadata = ObjectMeta { annotations: Some(annotations.into()), ..ObjectMeta::default() };
        Pod { metadata, ..Pod::default() }
    }

    #[test]
    fn annotations_affect_only_their_pod() {
        let node = Arc::new(Lifecycle { stop_delay: Duration::from_secs(3), ..Lifecycle::default() });
        let script = PodScript::of(&pod("run-for", "1.5s"), &node).unwrap();
        assert_eq!(script.life.run_for, Some(Duration::from_millis(1500)));
        assert_eq!(script.life.stop_delay, Duration::from_secs(3));
        assert_eq!(node.run_for, None);
        assert!(Arc::ptr_eq(&PodScript::of(&Pod::default(), &node).unwrap().life, &node));
    }

    #[test]
    fn an_invalid_annotation_is_reported_with_its_value() {
        let life = Arc::new(Lifecycle::default());
        for (key, value) in [
            ("start-delay", "soon"),
            ("exit-code", "many"),
            ("exit-code", "256"),
            ("vanish-after", "-1s"),
            ("fail-create", "Nonsense: no"),
            ("cpu", "much"),
            ("memory", "-1Gi"),
        ] {
            let error = PodScript::of(&pod(key, value), &life).unwrap_err();
            assert_eq!(*error.kind(), Kind::Invalid);
            assert!(error.message().contains(key), "{error}");
            assert!(error.message().contains(value.split(':').next().unwrap()), "{error}");
        }
        let error = PodScript::of(&pod("run-four", "1s"), &life).unwrap_err();
        assert!(error.message().contains("did you mean mock.virtual-kubelet.io/run-for?"), "{error}");
    }

    #[test]
    fn every_annotation_is_parsed() {
        let life = Arc::new(Lifecycle::default());
        for key in ANNOTATIONS {
            let value = match key {
                "exit-code" | "init-exit-code" => "3",
                "fail-create" => "Invalid: not today",
                "cpu" | "memory" => "2",
                _ => "2s",
            };
            PodScript::of(&pod(key, value), &life).unwrap();
        }
        let script = PodScript::of(&pod("fail-create", "Exhausted: full"), &life).unwrap();
        assert_eq!(script.fail_create, Some((Kind::Exhausted, "full".into())));
    }
}

//! Lifecycle hooks: postStart and preStop.
//!
//! The output of a hook may contain secrets. As in a kubelet, it is shown only in the container state after a failed postStart hook, never
//! in events.

use std::{net::IpAddr, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use k8s_openapi::api::core::v1::{Container, ContainerPort, HTTPGetAction, Lifecycle, LifecycleHandler};
use tokio::time::{Instant, sleep, timeout};
use vk_provider::{EventKind, PodEvent, PodRef};

use crate::{
    backend::{ExecOutput, full_message},
    probe::{EventRecorder, HttpClient, HttpGet, Prober},
    snapshot::{self, annotation},
};

/// The timeout of commands without one: long, and short enough to be expressed in nanoseconds.
pub const NO_TIMEOUT: Duration = Duration::from_hours(365 * 24);

/// The waiting reason of a container whose postStart hook failed.
pub const POST_START_ERROR: &str = "PostStartHookError";

/// The container whose hook is run.
#[derive(Clone)]
pub struct HookCall {
    /// The pod.
    pub pod: PodRef,
    /// The container's spec: its name, ports and hooks are used.
    pub container: Container,
    /// The runtime's id.
    pub id: String,
    /// The pod's address.
    pub ip: Option<IpAddr>,
    /// Records events.
    pub record: EventRecorder,
}

/// A hook that has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HookFailure {
    /// The message for the container state. It may contain the output of the hook and must not be used in events.
    pub message: String,
}

/// The result of a preStop hook.
#[must_use = "a hook that is not finished is cancelled when this is dropped"]
pub struct PreStop {
    /// The time it took, in whole seconds.
    pub took: Duration,
    /// The rest of a hook that outlasted the grace period. As in a kubelet it continues while the container is stopped, so await it beside
    /// the stop. Dropping it cancels the hook.
    pub unfinished: Option<BoxFuture<'static, ()>>,
}

/// Runs the postStart hook if there is one, without a timeout. A failure is recorded as an event.
pub async fn post_start(prober: &Prober, call: &HookCall) -> Result<(), HookFailure> {
    let Some(handler) = call.lifecycle().and_then(|lifecycle| lifecycle.post_start.as_ref()) else {
        return Ok(());
    };
    let ran = Box::pin(run(prober, call, handler)).await;
    if let Err(failure) = &ran {
        call.warn(Some(&call.container.name), "FailedPostStartHook", "PostStartHook failed".to_owned());
        tracing::debug!(pod = %call.pod, container = call.container.name, "postStart hook failed: {failure}");
    }
    ran
}

/// Runs the preStop hook if there is one, for the grace period at most. A failure is recorded as an event.
pub async fn pre_stop(prober: &Arc<Prober>, call: &HookCall, grace: Duration) -> PreStop {
    let Some(handler) = call.lifecycle().and_then(|lifecycle| lifecycle.pre_stop.clone()) else {
        return PreStop { took: Duration::ZERO, unfinished: None };
    };
    let (prober, call) = (prober.clone(), call.clone());
    let mut hook = async move {
        if let Err(failure) = run(&prober, &call, &handler).await {
            call.warn(Some(&call.container.name), "FailedPreStopHook", "PreStopHook failed".to_owned());
            tracing::debug!(pod = %call.pod, container = call.container.name, "preStop hook failed: {failure}");
        }
    }
    .boxed();
    let begun = Instant::now();
    let unfinished = match timeout(grace, &mut hook).await {
        Ok(()) => None,
        Err(_) => Some(hook),
    };
    PreStop { took: Duration::from_secs(begun.elapsed().as_secs()), unfinished }
}

/// The part of a container's spec that its preStop hook needs, from its annotations, for a pod that is no longer known. `None` if it has no
/// such hook.
pub fn spec_from_annotations(container: &snapshot::Container) -> Option<Container> {
    let pre_stop = container.annotations.get(annotation::PRE_STOP)?;
    let pre_stop: LifecycleHandler = serde_json::from_str(pre_stop)
        .inspect_err(|error| {
            tracing::warn!(
                container = container.id,
                "cannot parse the preStop hook in the annotations; it is not run: {error}"
            );
        })
        .ok()?;
    let ports: Option<Vec<ContainerPort>> =
        container.annotations.get(annotation::PORTS).and_then(|ports| serde_json::from_str(ports).ok());
    Some(Container {
        name: container.name.clone(),
        ports,
        lifecycle: Some(Lifecycle { pre_stop: Some(pre_stop), ..Lifecycle::default() }),
        ..Container::default()
    })
}

/// Runs a hook.
async fn run(prober: &Prober, call: &HookCall, handler: &LifecycleHandler) -> Result<(), HookFailure> {
    let PodRef { namespace, name, uid } = &call.pod;
    let whose =
        format!("for Container {:?} in Pod {:?}", call.container.name, format!("{name}_{namespace}({uid})"));
    if let Some(action) = &handler.exec {
        let command = action.command.as_deref().unwrap_or_default();
        let (error, output) = match prober.backend.run(&call.id, command, NO_TIMEOUT).await {
            Ok(ExecOutput::Exited { code: 0, .. }) => return Ok(()),
            Ok(ExecOutput::Exited { code, output }) => {
                let output = String::from_utf8_lossy(&output).into_owned();
                (format!("command '{}' exited with {code}: {output}", command.join(" ")), output)
            }
            Ok(ExecOutput::TimedOut { message }) => (message, String::new()),
            Err(error) => (full_message(&error), String::new()),
        };
        let command = command.join(" ");
        return Err(HookFailure {
            message: format!(
                "Exec lifecycle hook ([{command}]) {whose} failed - error: {error}, message: {output:?}"
            ),
        });
    }
    if let Some(action) = &handler.http_get {
        return http_get(prober, call, action).await.map_err(|why| HookFailure {
            message: format!(
                "HTTP lifecycle hook ({}) {whose} failed - error: {why}",
                action.path.as_deref().unwrap_or_default()
            ),
        });
    }
    if let Some(action) = &handler.sleep {
        sleep(Duration::from_secs(u64::try_from(action.seconds).unwrap_or(0))).await;
        return Ok(());
    }
    Err(HookFailure {
        message: "Cannot run handler: invalid handler: it has no exec, httpGet or sleep".to_owned(),
    })
}

/// Sends the HTTP request of a hook. Any response is a success.
async fn http_get(prober: &Prober, call: &HookCall, action: &HTTPGetAction) -> Result<(), String> {
    let host = match action.host.as_deref().filter(|host| !host.is_empty()) {
        Some(host) => host.to_owned(),
        None => call.ip.ok_or("failed to find networking container: the pod has no IP address")?.to_string(),
    };
    let get = HttpGet::new(action, &call.container, &host, "lifecycle")?;
    let Err(why) = prober.http.request(&get).await else { return Ok(()) };
    if !HttpClient::is_plain_http(&why) {
        return Err(why);
    }
    // Old kubelets ignored the scheme and never used TLS, and some pods depend on that.
    if prober.http.request(&get.without_tls()).await.is_err() {
        return Err(why);
    }
    let place = get.authority();
    call.warn(
        None,
        "LifecycleHTTPFallback",
        format!("request to HTTPS lifecycle hook {place} got HTTP response, retry with HTTP succeeded"),
    );
    Ok(())
}

// === impl HookCall ===

impl HookCall {
    fn lifecycle(&self) -> Option<&Lifecycle> {
        self.container.lifecycle.as_ref()
    }

    fn warn(&self, container: Option<&str>, reason: &str, message: String) {
        (self.record)(PodEvent {
            pod: self.pod.clone(),
            container: container.map(str::to_owned),
            kind: EventKind::Warning,
            reason: reason.to_owned(),
            message,
        });
    }
}

#[cfg(test)]
mod tests;

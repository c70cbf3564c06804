//! Lifecycle hooks: postStart and preStop.
//!
//! What a hook says may be secret: it is shown where a kubelet shows it, which is the container's state after a postStart hook has
//! failed, and never in events.

use std::{net::IpAddr, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use k8s_openapi::api::core::v1::{Container, ContainerPort, HTTPGetAction, Lifecycle, LifecycleHandler};
use tokio::time::{Instant, sleep, timeout};
use vk_provider::{EventKind, PodEvent, PodRef};

use crate::{
    backend::{Ran, told},
    probe::{Get, Prober, Tell, Web},
    snapshot::{self, annotation},
};

/// The limit for commands that have none: long, and short enough to be counted in nanoseconds by everybody.
pub const NO_LIMIT: Duration = Duration::from_hours(365 * 24);

/// Why a container waits whose postStart hook has failed.
pub const POST_START_ERROR: &str = "PostStartHookError";

/// The container whose hook is run.
#[derive(Clone)]
pub struct Call {
    /// The pod.
    pub pod: PodRef,
    /// The container's spec: its name, its ports and its hooks are looked at.
    pub container: Container,
    /// The runtime's id.
    pub id: String,
    /// The pod's address.
    pub ip: Option<IpAddr>,
    /// Where events go.
    pub tell: Tell,
}

/// A hook that has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HookFailure {
    /// A sentence for the container's state. May hold what the hook wrote, and so does not belong into events.
    pub message: String,
}

/// What came of a preStop hook.
#[must_use = "a hook that is not finished is cancelled when this is dropped"]
pub struct PreStop {
    /// How much of the grace it took, in whole seconds.
    pub took: Duration,
    /// The rest of a hook that outlasted the grace. A kubelet lets it run while the container is stopped, which tells its failure
    /// then; so this is to be awaited beside the stop. Dropping it cancels the hook.
    pub unfinished: Option<BoxFuture<'static, ()>>,
}

/// Runs the postStart hook where there is one; it may take as long as it likes. Its failure is told as an event.
pub async fn post_start(prober: &Prober, call: &Call) -> Result<(), HookFailure> {
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

/// Runs the preStop hook where there is one, for as long as the grace lasts. Its failure is told as an event.
pub async fn pre_stop(prober: &Arc<Prober>, call: &Call, grace: Duration) -> PreStop {
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

/// What a container's annotations remember of its spec for the preStop hook, when the pod itself is not known any more. `None`
/// where it has no such hook.
pub fn remembered(container: &snapshot::Container) -> Option<Container> {
    let pre_stop = container.annotations.get(annotation::PRE_STOP)?;
    let pre_stop: LifecycleHandler = serde_json::from_str(pre_stop)
        .inspect_err(|error| {
            tracing::warn!(
                container = container.id,
                "the preStop hook on the runtime cannot be read, and is not run: {error}"
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

/// Runs a hook to its end.
async fn run(prober: &Prober, call: &Call, handler: &LifecycleHandler) -> Result<(), HookFailure> {
    let PodRef { namespace, name, uid } = &call.pod;
    let whose =
        format!("for Container {:?} in Pod {:?}", call.container.name, format!("{name}_{namespace}({uid})"));
    if let Some(action) = &handler.exec {
        let command = action.command.as_deref().unwrap_or_default();
        let (error, output) = match prober.backend.run(&call.id, command, NO_LIMIT).await {
            Ok(Ran::Ended { code: 0, .. }) => return Ok(()),
            Ok(Ran::Ended { code, output }) => {
                let output = String::from_utf8_lossy(&output).into_owned();
                (format!("command '{}' exited with {code}: {output}", command.join(" ")), output)
            }
            Ok(Ran::TimedOut { message }) => (message, String::new()),
            Err(error) => (told(&error), String::new()),
        };
        let command = command.join(" ");
        return Err(HookFailure {
            message: format!(
                "Exec lifecycle hook ([{command}]) {whose} failed - error: {error}, message: {output:?}"
            ),
        });
    }
    if let Some(action) = &handler.http_get {
        return ask(prober, call, action).await.map_err(|why| HookFailure {
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

/// Asks by HTTP. Whatever is answered is good.
async fn ask(prober: &Prober, call: &Call, action: &HTTPGetAction) -> Result<(), String> {
    let host = match action.host.as_deref().filter(|host| !host.is_empty()) {
        Some(host) => host.to_owned(),
        None => call.ip.ok_or("failed to find networking container: the pod has no IP address")?.to_string(),
    };
    let get = Get::new(action, &call.container, &host, "lifecycle")?;
    let Err(why) = prober.web.ask(&get).await else { return Ok(()) };
    if !Web::is_plain(&why) {
        return Err(why);
    }
    // Kubelets once asked without TLS whatever the scheme was, and there are pods that have come to need it.
    if prober.web.ask(&get.without_tls()).await.is_err() {
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

// === impl Call ===

impl Call {
    fn lifecycle(&self) -> Option<&Lifecycle> {
        self.container.lifecycle.as_ref()
    }

    fn warn(&self, container: Option<&str>, reason: &str, message: String) {
        (self.tell)(PodEvent {
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

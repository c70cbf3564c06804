//! Implements the engine's [`ContainerBackend`] with calls of the Container Runtime Interface.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
    time::Duration,
};

use async_trait::async_trait;
use futures::stream::BoxStream;
use vk_pod_engine::{
    ContainerBackend,
    backend::{ContainerConfig, ExecOutput, FsUsage, Image, Listing, PodUsage, RuntimeInfo, SandboxConfig},
    snapshot::{Container, Sandbox, label},
};
use vk_provider::{
    Error, Result,
    ability::{AttachOptions, ExecOptions, Forward, Started},
    duration::GoString,
    error::Kind,
    resolve::PullCredentials,
};

use super::{Cri, events};
use crate::{convert, error, proto};

/// Calls the runtime service or the image service, by default with the timeout of calls.
macro_rules! call {
    ($cri:expr, $service:ident . $name:ident ($request:expr)) => {
        call!($cri, $service.$name($request), Some($cri.limits.call))
    };
    ($cri:expr, $service:ident . $name:ident ($request:expr), $limit:expr) => {{
        let mut client = $cri.$service.clone();
        $cri.call($limit, $request, |request| async move { client.$name(request).await }).await
    }};
}

#[async_trait]
impl ContainerBackend for Cri {
    async fn runtime(&self) -> Result<RuntimeInfo> {
        let version = self.version().await?;
        let status = call!(self, runtime.status(proto::StatusRequest { verbose: false }))?;
        // containerd 1.6 and older do not implement it.
        let config = match call!(self, runtime.runtime_config(proto::RuntimeConfigRequest {})) {
            Ok(config) => Some(config),
            Err(failure) if failure.is_unimplemented() => None,
            Err(failure) => return Err(failure.into()),
        };
        let mut runtime = convert::runtime(version, status, config);
        if runtime.cgroup_driver.is_none() {
            runtime.cgroup_driver = self.configured_cgroup_driver().await;
        }
        Ok(runtime)
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<String> {
        let request = proto::RunPodSandboxRequest {
            config: Some(convert::sandbox_config(config)),
            runtime_handler: config.handler.clone(),
        };
        // A kubelet also doubles this timeout, because network plugins may be slow.
        let limit = self.limits.call.saturating_mul(2);
        let answer = call!(self, runtime.run_pod_sandbox(request), Some(limit))?;
        non_empty("RunPodSandbox", "id", answer.pod_sandbox_id)
    }

    async fn stop_sandbox(&self, id: &str) -> Result<()> {
        let request = proto::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        ignore_not_found(call!(self, runtime.stop_pod_sandbox(request)))
    }

    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        let request = proto::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        ignore_not_found(call!(self, runtime.remove_pod_sandbox(request)))
    }

    async fn sandbox(&self, id: &str) -> Result<Sandbox> {
        let request = proto::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned() };
        let answer = call!(self, runtime.pod_sandbox_status(request))?;
        convert::sandbox(answer.status.ok_or_else(|| error::missing_field("PodSandboxStatus", "status"))?)
    }

    async fn create_container(
        &self,
        sandbox: &str,
        container: &ContainerConfig,
        config: &SandboxConfig,
    ) -> Result<String> {
        let request = proto::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(convert::container_config(container)?),
            sandbox_config: Some(convert::sandbox_config(config)),
        };
        let answer = call!(self, runtime.create_container(request))?;
        let id = non_empty("CreateContainer", "id", answer.container_id)?;
        self.sandboxes.lock().insert(id.clone(), sandbox.to_owned());
        Ok(id)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        let request = proto::StartContainerRequest { container_id: id.to_owned() };
        call!(self, runtime.start_container(request))?;
        Ok(())
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = proto::StopContainerRequest { container_id: id.to_owned(), timeout };
        let limit = self.limits.call.saturating_add(grace);
        ignore_not_found(call!(self, runtime.stop_container(request), Some(limit)))
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        let request = proto::RemoveContainerRequest { container_id: id.to_owned() };
        ignore_not_found(call!(self, runtime.remove_container(request)))
    }

    async fn container(&self, id: &str) -> Result<Container> {
        let request = proto::ContainerStatusRequest { container_id: id.to_owned() };
        let answer = call!(self, runtime.container_status(request))?;
        let status = answer.status.ok_or_else(|| error::missing_field("ContainerStatus", "status"))?;
        convert::container(status, self.sandbox_of(id).await?)
    }

    async fn list(&self, labels: &BTreeMap<String, String>) -> Result<Listing> {
        let filter = proto::PodSandboxFilter { label_selector: labels.clone() };
        let sandboxes =
            call!(self, runtime.list_pod_sandbox(proto::ListPodSandboxRequest { filter: Some(filter) }))?;
        let filter = proto::ContainerFilter { label_selector: labels.clone(), ..Default::default() };
        let containers =
            call!(self, runtime.list_containers(proto::ListContainersRequest { filter: Some(filter) }))?;
        let listing = convert::listing(sandboxes.items, containers.containers);
        let containers = listing.containers.iter();
        let found = containers.map(|container| (container.id.clone(), container.sandbox.clone()));
        let mut sandboxes = self.sandboxes.lock();
        // The list of one pod does not replace the entries of others.
        if !labels.contains_key(label::POD_UID) {
            sandboxes.clear();
        }
        sandboxes.extend(found);
        drop(sandboxes);
        Ok(listing)
    }

    /// A limit of zero means no limit, as in the interface.
    async fn run(&self, container: &str, command: &[String], limit: Duration) -> Result<ExecOutput> {
        let request = proto::ExecSyncRequest {
            container_id: container.to_owned(),
            cmd: command.to_vec(),
            timeout: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        };
        let within = (!limit.is_zero()).then(|| self.limits.call.saturating_add(limit));
        match call!(self, runtime.exec_sync(request), within) {
            // CRI-O returns this for a command that timed out too, with code -1. A kubelet accepts it.
            Ok(answer) => {
                let output = [answer.stdout, answer.stderr].concat();
                Ok(ExecOutput::Exited { code: answer.exit_code, output })
            }
            Err(failure) if failure.is_timeout() => {
                let command = convert::go_quoted(&command.join(" "));
                let message = format!("command timed out: {command} timed out after {}", GoString(limit));
                Ok(ExecOutput::TimedOut { message })
            }
            Err(failure) => Err(failure.into()),
        }
    }

    async fn exec(&self, container: &str, command: &[String], options: &ExecOptions) -> Result<Started> {
        let request = proto::ExecRequest {
            container_id: container.to_owned(),
            cmd: command.to_vec(),
            tty: options.tty,
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr,
        };
        let answer = call!(self, runtime.exec(request))?;
        non_empty("Exec", "URL", answer.url).map(Started::Url)
    }

    async fn attach(&self, container: &str, options: &AttachOptions) -> Result<Started> {
        let request = proto::AttachRequest {
            container_id: container.to_owned(),
            stdin: options.stdin,
            tty: options.tty,
            stdout: options.stdout,
            stderr: options.stderr,
        };
        let answer = call!(self, runtime.attach(request))?;
        non_empty("Attach", "URL", answer.url).map(Started::Url)
    }

    async fn port_forward(&self, sandbox: &str, port: u16) -> Result<Forward> {
        let request =
            proto::PortForwardRequest { pod_sandbox_id: sandbox.to_owned(), port: vec![i32::from(port)] };
        let answer = call!(self, runtime.port_forward(request))?;
        non_empty("PortForward", "URL", answer.url).map(Forward::Url)
    }

    async fn reopen_log(&self, container: &str) -> Result<()> {
        let request = proto::ReopenContainerLogRequest { container_id: container.to_owned() };
        call!(self, runtime.reopen_container_log(request))?;
        Ok(())
    }

    async fn image(&self, image: &str, handler: &str) -> Result<Option<Image>> {
        let spec = proto::ImageSpec {
            image: image.to_owned(),
            runtime_handler: handler.to_owned(),
            ..proto::ImageSpec::default()
        };
        let request = proto::ImageStatusRequest { image: Some(spec) };
        // For an unknown image, most runtimes return no image and some NotFound.
        match call!(self, images.image_status(request)).map_err(Error::from) {
            Ok(answer) => Ok(answer.image.filter(|image| !image.id.is_empty()).map(convert::image)),
            Err(error) if *error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn images(&self) -> Result<Vec<Image>> {
        let answer = call!(self, images.list_images(proto::ListImagesRequest {}))?;
        Ok(answer.images.into_iter().map(convert::image).collect())
    }

    async fn pull(
        &self,
        image: &str,
        credentials: Option<&PullCredentials>,
        sandbox: &SandboxConfig,
    ) -> Result<String> {
        let spec = proto::ImageSpec {
            image: image.to_owned(),
            annotations: sandbox.annotations.clone(),
            ..proto::ImageSpec::default()
        };
        let request = proto::PullImageRequest {
            image: Some(spec),
            auth: credentials.map(convert::auth),
            sandbox_config: Some(convert::sandbox_config(sandbox)),
        };
        let answer = call!(self, images.pull_image(request), self.limits.pull)?;
        Ok(answer.image_ref)
    }

    async fn remove_image(&self, image: &str) -> Result<()> {
        let spec = proto::ImageSpec { image: image.to_owned(), ..proto::ImageSpec::default() };
        ignore_not_found(call!(self, images.remove_image(proto::RemoveImageRequest { image: Some(spec) })))
    }

    async fn used_images(&self) -> Result<BTreeSet<String>> {
        let answer = call!(self, runtime.list_containers(proto::ListContainersRequest { filter: None }))?;
        let mut used = BTreeSet::new();
        for container in answer.containers {
            let request = proto::ContainerStatusRequest { container_id: container.id };
            used.extend([container.image_ref, container.image_id]);
            used.extend(container.image.map(convert::image_names).into_iter().flatten());
            // Only the status names mounted images; and some runtimes leave out names in one of the two responses.
            let answer = call!(self, runtime.container_status(request))?;
            let status = answer.status.ok_or_else(|| error::missing_field("ContainerStatus", "status"))?;
            used.extend([status.image_ref, status.image_id]);
            let mounted = status.mounts.into_iter().filter_map(|mount| mount.image);
            used.extend(status.image.into_iter().chain(mounted).flat_map(convert::image_names));
        }
        used.remove("");
        Ok(used)
    }

    async fn image_fs(&self) -> Result<Vec<FsUsage>> {
        let answer = call!(self, images.image_fs_info(proto::ImageFsInfoRequest {}))?;
        Ok(answer.image_filesystems.into_iter().map(convert::fs).collect())
    }

    async fn usage(&self, labels: &BTreeMap<String, String>) -> Result<Vec<PodUsage>> {
        let filter = proto::PodSandboxStatsFilter { label_selector: labels.clone() };
        let request = proto::ListPodSandboxStatsRequest { filter: Some(filter) };
        let sandboxes = call!(
            self,
            runtime.list_pod_sandbox(proto::ListPodSandboxRequest {
                filter: Some(proto::PodSandboxFilter { label_selector: labels.clone() }),
            })
        )?;
        let mut stats = match call!(self, runtime.list_pod_sandbox_stats(request)) {
            Ok(answer) => convert::pod_stats(answer.stats, &sandboxes.items),
            Err(failure) if failure.is_unimplemented() => {
                let filter = proto::ContainerStatsFilter { label_selector: labels.clone() };
                let request = proto::ListContainerStatsRequest { filter: Some(filter) };
                let answer = call!(self, runtime.list_container_stats(request))?;
                convert::container_stats(answer.stats, &sandboxes.items)
            }
            Err(failure) => return Err(failure.into()),
        };
        self.cpu_rates.lock().fill_in_rates(&mut stats);
        Ok(stats)
    }

    fn events(&self) -> Option<BoxStream<'static, String>> {
        (!self.has_no_events.load(Ordering::Relaxed)).then(|| events::stream(self.clone()))
    }
}

impl Cri {
    /// The sandbox of a container. It never changes, so the last list is good enough.
    async fn sandbox_of(&self, container: &str) -> Result<String> {
        if let Some(home) = self.sandboxes.lock().get(container) {
            return Ok(home.clone());
        }
        let filter = proto::ContainerFilter { id: container.to_owned(), ..Default::default() };
        let request = proto::ListContainersRequest { filter: Some(filter) };
        let answer = call!(self, runtime.list_containers(request))?;
        // Some runtimes accept a prefix of an id.
        let found = answer.containers.into_iter().find(|found| found.id.starts_with(container));
        let found = found.ok_or_else(|| Error::not_found(format!("container {container} is in no list")))?;
        Ok(found.pod_sandbox_id)
    }
}

/// A mandatory field of a response.
fn non_empty(call: &str, what: &str, text: String) -> Result<String> {
    if text.is_empty() { Err(error::missing_field(call, what)) } else { Ok(text) }
}

/// Stopping and removing are idempotent: an object that does not exist is success.
fn ignore_not_found<A>(outcome: Result<A, super::CallError>) -> Result<()> {
    match outcome.map_err(Error::from) {
        Ok(_) => Ok(()),
        Err(error) if *error.kind() == Kind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

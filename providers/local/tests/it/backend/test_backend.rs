//! A backend for a test, which leaves nothing behind.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use vk_pod_engine::{
    ContainerBackend,
    backend::{
        ContainerConfig, ContainerSecurity, Namespaces, Resources, SandboxConfig, SandboxSecurity, Share,
    },
    snapshot::{Container, ContainerState, label},
};
use vk_provider::PodRef;
use vk_provider_local::{
    backend::{LocalBackend, LocalBackendSettings},
    cgroup::{HostCgroups, MOUNT_POINT},
    image::{self, Store},
    isolation::Isolation,
    network::{Network, NetworkSettings},
    shim::Program,
};
use vk_testing::{eventually, host};

/// The image of these tests.
pub(crate) const IMAGE: &str = host::image::BUSYBOX;
/// Timeout for everything.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// The directory, cgroup and network of a test's backend.
pub(crate) struct TestBackend {
    folder: tempfile::TempDir,
    cgroup: String,
    boot: Option<String>,
    network: Option<Network>,
    level: Isolation,
}

impl TestBackend {
    /// With real containers and a pod network.
    pub(crate) async fn new() -> Self {
        let mut test_backend = Self::bare(Isolation::Oci);
        let settings =
            NetworkSettings { dir: test_backend.root().join("local/network"), subnet: None, nat: true };
        let network = Network::open(settings).await.expect("create the bridge");
        test_backend.network = Some(network);
        test_backend
    }

    pub(crate) fn bare(level: Isolation) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::Builder::new().prefix("vk-local-").tempdir().expect("create a directory");
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let cgroup = format!("/vk-test-{}-{number}", std::process::id());
        Self { folder, cgroup, boot: None, network: None, level }
    }

    /// The node's directory.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("node")
    }

    pub(crate) fn cgroup(&self) -> &str {
        &self.cgroup
    }

    /// Simulates a reboot.
    pub(crate) fn reboot(&mut self) {
        self.boot = Some("another".to_owned());
    }

    pub(crate) fn store(&self) -> Arc<Store> {
        let store = Store::open(&self.folder.path().join("images"), image::Settings::default())
            .expect("open the store");
        if store.image(IMAGE).expect("read the index").is_none() {
            let archive = host::Image::save(&self.folder.path().join("made"), &host::Image::standard());
            store.import(fs::File::open(archive).expect("open the archive"), &[]).expect("import images");
        }
        store
    }

    pub(crate) fn settings(&self) -> LocalBackendSettings {
        let program = Program { path: env!("CARGO_BIN_EXE_vk-local-shim").into(), args: vec![] };
        let mut settings = LocalBackendSettings::new(self.root(), program, self.level, self.store());
        settings.network.clone_from(&self.network);
        settings.node_ips = vec!["192.0.2.1".parse().expect("parse an address")];
        settings.cgroup_root.clone_from(&self.cgroup);
        settings.boot_id.clone_from(&self.boot);
        if self.level == Isolation::Oci {
            settings.cgroups = Some(HostCgroups::detect(MOUNT_POINT).expect("detect cgroups"));
        }
        settings
    }

    pub(crate) async fn open(&self) -> LocalBackend {
        LocalBackend::open(self.settings()).await.expect("open the backend")
    }

    pub(crate) fn sandbox(&self, name: &str) -> SandboxConfig {
        let pod = PodRef::new("default", name, format!("uid-{name}"));
        let labels = BTreeMap::from([
            (label::POD_NAME.to_owned(), name.to_owned()),
            (label::POD_UID.to_owned(), pod.uid.to_string()),
        ]);
        let namespaces = Namespaces { pid: Share::Container, ..Namespaces::default() };
        SandboxConfig {
            cgroup_parent: format!("{}/pod{}", self.cgroup, pod.uid),
            pod,
            attempt: 0,
            handler: String::new(),
            hostname: name.to_owned(),
            log_directory: self.folder.path().join("logs").join(name).to_string_lossy().into_owned(),
            dns: None,
            ports: vec![],
            labels,
            annotations: BTreeMap::new(),
            sysctls: BTreeMap::new(),
            security: SandboxSecurity { namespaces, ..SandboxSecurity::default() },
            overhead: None,
            resources: None,
        }
    }

    /// Everything that is left of this test: mounts, cgroups, processes and directories.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let folder = self.folder.path().to_string_lossy().into_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read the mounts");
        let mut left: Vec<String> = mounts
            .lines()
            .filter(|line| line.contains(&folder))
            .map(|line| format!("mount {line}"))
            .collect();
        if self.level == Isolation::Oci
            && HostCgroups::detect(MOUNT_POINT).expect("detect cgroups").exists(&self.cgroup)
        {
            left.push(format!("cgroup {}", self.cgroup));
        }
        for entry in fs::read_dir("/proc").expect("list processes").flatten() {
            let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            if line.contains(&folder) {
                left.push(format!("process {}: {line}", entry.file_name().display()));
            }
        }
        for part in ["sandboxes", "containers"] {
            let entries = fs::read_dir(self.root().join("local").join(part)).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        left
    }
}

impl Drop for TestBackend {
    /// Removes everything, even if the test failed.
    fn drop(&mut self) {
        for line in self.leftovers().iter().filter_map(|line| line.strip_prefix("process ")) {
            let pid = line.split(':').next().and_then(|pid| pid.parse().ok());
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        if self.level == Isolation::Oci
            && let Ok(cgroups) = HostCgroups::detect(MOUNT_POINT)
        {
            let _ = cgroups.kill(&self.cgroup);
            let _ = cgroups.remove(&self.cgroup);
        }
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let folder = self.folder.path();
        let targets: Vec<&str> = table.lines().filter_map(|line| line.split(' ').nth(4)).collect();
        for target in targets.iter().rev().filter(|target| Path::new(target).starts_with(folder)) {
            let _ = rustix::mount::unmount(*target, rustix::mount::UnmountFlags::DETACH);
        }
        if let Some(network) = self.network.take() {
            // The test's runtime may be shutting down.
            let done = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                if let Ok(runtime) = runtime {
                    runtime.block_on(async {
                        let _ = network.reconcile(&std::collections::BTreeSet::new()).await;
                        let _ = network.close().await;
                    });
                }
            });
            let _ = done.join();
        }
    }
}

pub(crate) fn container(name: &str, script: &str) -> ContainerConfig {
    ContainerConfig {
        name: name.to_owned(),
        attempt: 0,
        image: IMAGE.to_owned(),
        user_image: IMAGE.to_owned(),
        command: vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()],
        args: vec![],
        working_dir: String::new(),
        env: vec![("GREETING".to_owned(), "hello".to_owned())],
        mounts: vec![],
        devices: vec![],
        labels: BTreeMap::from([(label::CONTAINER_NAME.to_owned(), name.to_owned())]),
        annotations: BTreeMap::new(),
        log_path: format!("{name}/0.log"),
        stdin: false,
        stdin_once: false,
        tty: false,
        resources: Resources {
            cpu_shares: 102,
            cpu_period: 100_000,
            oom_score_adj: 1000,
            ..Resources::default()
        },
        security: ContainerSecurity {
            namespaces: Namespaces { pid: Share::Container, ..Namespaces::default() },
            ..ContainerSecurity::default()
        },
        stop_signal: None,
    }
}

/// Creates and starts a container; returns its id.
pub(crate) async fn start(
    backend: &LocalBackend,
    sandbox: &str,
    container: &ContainerConfig,
    config: &SandboxConfig,
) -> String {
    let id = backend.create_container(sandbox, container, config).await.expect("create the container");
    backend.start_container(&id).await.expect("start the container");
    id
}

/// Waits until a container has exited.
pub(crate) async fn wait_for_exit(backend: &LocalBackend, id: &str) -> Container {
    eventually("the container has exited", SOON, || async {
        let container = backend.container(id).await.map_err(|error| error.report())?;
        if container.state == ContainerState::Exited {
            Ok(container)
        } else {
            Err(format!("{:?}", container.state))
        }
    })
    .await
}

/// The output of a container.
pub(crate) fn log(container: &Container) -> String {
    let text = fs::read_to_string(&container.log_path).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The output of a script in a new container.
pub(crate) async fn script_output(
    backend: &LocalBackend,
    sandbox: &str,
    config: &SandboxConfig,
    script: &str,
) -> String {
    let container = container(&format!("script-{}", script.len()), script);
    let id = start(backend, sandbox, &container, config).await;
    let container = wait_for_exit(backend, &id).await;
    let text = log(&container);
    backend.remove_container(&id).await.expect("remove the container");
    text
}

//! The directory of a container: its root filesystem, its OCI bundle and its record.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use oci_spec::runtime::LinuxSeccomp;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use vk_files::RootDir;
use vk_pod_engine::{
    backend::{ContainerConfig, Mount, Seccomp, Share},
    snapshot::SandboxState,
};
use vk_provider::{Error, Result, error::Kind};

use super::{
    super::{
        Inner,
        container_store::LocalSandbox,
        error, events, process,
        record::{ContainerRecord, RECORD},
        rootfs, signal,
    },
    no_image,
};
use crate::{
    files,
    image::StoredImage,
    namespace::Kind as Namespace,
    shim::{self, ContainerProcess, ShimLaunch, State},
    spec::{self, DeviceNode, PodPaths, SpecInput, seccomp, user::ProcessIdentity},
};

impl Inner {
    /// Creates the directory of a new container. The record is written last; it makes the container exist. Command line
    /// and environment are returned: they may contain Secrets, and no file has them.
    pub(super) fn write_container(
        &self,
        id: &str,
        sandbox: &LocalSandbox,
        mut config: ContainerConfig,
        directory: &Path,
    ) -> Result<(ContainerRecord, ContainerProcess)> {
        if self.sandbox_state(sandbox) != SandboxState::Ready {
            let message = format!("sandbox container {:?} is not running", sandbox.record.id);
            return Err(error::cri_error(Kind::Internal, message));
        }
        files::create_private_dir(directory)
            .map_err(|error| error::path_error("failed to make", directory, &error))?;
        let log = Path::new(&sandbox.record.config.log_directory).join(&config.log_path);
        if let Some(folder) = log.parent() {
            fs::create_dir_all(folder)
                .map_err(|error| error::path_error("failed to make", folder, &error))?;
        }
        let mut launch = ShimLaunch {
            isolation: self.settings.isolation,
            pod_uid: sandbox.record.config.pod.uid.to_string(),
            events: self.directory.join(events::SOCKET),
            log,
            tty: config.tty,
            stdin: config.stdin,
            stdin_once: config.stdin_once,
            oom_score_adj: Some(config.resources.oom_score_adj).filter(|_| !self.is_plain()),
            cgroup: sandbox.record.cgroup.as_ref().map(|pod| format!("{pod}/{id}")),
            own_cgroup: sandbox.record.cgroup.as_ref().map(|_| self.shims_cgroup()),
            no_new_privs: config.security.no_new_privileges && self.is_plain(),
            cwd: None,
        };
        let stored = self.image_of(&config)?;
        let image_config = stored.as_ref().and_then(|stored| stored.config.config().as_ref());
        if let Some(stored) = &stored {
            self.settings.images.hold(&stored.id, directory).map_err(Error::from)?;
        }
        let (identity, process) = if self.is_plain() {
            process::check_container(&config)
                .map_err(|reason| error::cri_error(Kind::Unsupported, reason))?;
            let flat = stored.as_ref().map(|stored| self.settings.images.flat_image(stored)).transpose();
            let flat = flat.map_err(Error::from)?;
            let (process, cwd) = process::launch(&config, image_config, flat.as_deref(), directory)?;
            launch.cwd = Some(cwd);
            (None, process)
        } else {
            let stored = stored.as_ref().ok_or_else(|| no_image(&config.image))?;
            let (identity, process) = self.write_bundle(sandbox, &config, stored, &launch, directory)?;
            (Some(identity), process)
        };
        let stop_signal = match spec::stop_signal(&config, image_config) {
            None => signal::TERM,
            Some(name) => signal::parse(&name).ok_or_else(|| {
                Error::invalid(format!("failed to parse stop signal {name:?}: no such signal on this host"))
            })?,
        };
        let (image, image_ref, image_id, mut images) = image_names(&config, stored.as_ref());
        for mount in config.mounts.iter().filter_map(|mount| mount.image.as_ref()) {
            let mounted = self.settings.images.image(mount).map_err(Error::from)?;
            images.extend(
                mounted
                    .into_iter()
                    .flat_map(|stored| [vec![stored.id], stored.tags, stored.digests].concat()),
            );
            images.push(mount.clone());
        }
        config.env.clear();
        config.command.clear();
        config.args.clear();
        let record = ContainerRecord {
            id: id.to_owned(),
            sandbox: sandbox.record.id.clone(),
            created: self.settings.clock.now(),
            boot: self.boot.clone(),
            config,
            image,
            image_ref,
            image_id,
            images,
            identity,
            stop_signal,
            launch,
        };
        let path = directory.join(RECORD);
        files::write_json(&path, &record)
            .map_err(|error| error::path_error("failed to write", &path, &error))?;
        Ok((record, process))
    }

    /// The image of a container; `None` is the host itself, if the operator allows that.
    fn image_of(&self, config: &ContainerConfig) -> Result<Option<StoredImage>> {
        if self.is_host(&config.image) {
            return Ok(None);
        }
        let found = self.settings.images.image(&config.image).map_err(Error::from)?;
        found.map(Some).ok_or_else(|| no_image(&config.image))
    }

    /// Creates the root filesystem and the OCI bundle. Returns the user that the process runs as, and what the bundle
    /// must not contain.
    fn write_bundle(
        &self,
        sandbox: &LocalSandbox,
        config: &ContainerConfig,
        stored: &StoredImage,
        launch: &ShimLaunch,
        directory: &Path,
    ) -> Result<(ProcessIdentity, ContainerProcess)> {
        let image_config = stored.config.config().as_ref();
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| error::path_error("failed to make", &path, &error)
        };
        let root = directory.join("rootfs");
        let (upper, work) = (directory.join("upper"), directory.join("work"));
        for path in [&root, &upper, &work] {
            fs::create_dir(path).map_err(failed(path))?;
        }
        // The root directory of an overlay has the mode of the upper directory.
        fs::set_permissions(&upper, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .map_err(failed(&upper))?;
        rootfs::overlay(&stored.layers, Some((&upper, &work)), &root, self.host_features.unified)
            .map_err(|error| error::path_error("failed to mount the image's layers at", &root, &error))?;
        let images = self.mount_images(config, directory)?;
        create_mount_sources(config)?;
        let user = image_config.and_then(|image_config| image_config.user().clone()).unwrap_or_default();
        let id = directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let described = |error: &Error| {
            error::with_context(
                &format!("failed to generate container {id:?} spec: failed to generate spec"),
                error,
            )
        };
        let identity =
            ProcessIdentity::find(&root, &config.security, &user).map_err(|error| described(&error))?;
        create_working_directory(&root, config, &spec::working_directory(config, image_config))?;
        let devices = config
            .devices
            .iter()
            .map(|device| {
                let node = DeviceNode::at(Path::new(&device.host_path), Path::new(&device.container_path))?;
                Ok((node, device.permissions.clone()))
            })
            .collect::<Result<Vec<_>>>()?;
        let paths = self.pod_paths(sandbox, config, root)?;
        let seccomp = self.seccomp(config)?;
        let apparmor =
            spec::apparmor::select_profile(config, &self.host_features).map_err(|error| described(&error))?;
        let input = SpecInput {
            container: config,
            sandbox: &sandbox.record.config,
            image: image_config,
            identity: &identity,
            paths: &paths,
            images: &images,
            devices: &devices,
            seccomp: seccomp.as_ref(),
            apparmor: apparmor.as_deref(),
            host: &self.host_features,
            cgroup: launch.cgroup.as_deref().unwrap_or_default(),
            pids_limit: self.settings.pids_limit,
            node_hostname: &self.hostname,
        };
        let mut spec = spec::build(&input).map_err(|error| described(&error))?;
        let process = ContainerProcess::take_from(&mut spec);
        let path = directory.join("config.json");
        files::write_json(&path, &spec).map_err(failed(&path))?;
        Ok((identity, process))
    }

    fn seccomp(&self, config: &ContainerConfig) -> Result<Option<LinuxSeccomp>> {
        if config.security.privileged {
            return Ok(None);
        }
        let granted: BTreeSet<String> = spec::granted_capabilities(config, &self.host_features);
        match &config.security.seccomp {
            Seccomp::Unconfined => Ok(None),
            Seccomp::RuntimeDefault => seccomp::default_profile(&granted).map(Some),
            Seccomp::Localhost(path) => seccomp::read_profile(Path::new(path), &granted).map(Some),
        }
    }

    fn pod_paths(
        &self,
        sandbox: &LocalSandbox,
        config: &ContainerConfig,
        rootfs: PathBuf,
    ) -> Result<PodPaths> {
        let at = |kind: Namespace| {
            let pinned = sandbox.record.pins.iter().any(|name| name == kind.file());
            pinned.then(|| kind.path(&sandbox.directory))
        };
        let gone = || {
            let message = format!("sandbox container {:?} is not running", sandbox.record.id);
            error::cri_error(Kind::Internal, message)
        };
        let pid = match &config.security.namespaces.pid {
            Share::Container | Share::Node => None,
            Share::Pod => Some(shim::pause_process_pid(&sandbox.directory).ok_or_else(gone)?),
            Share::Target(target) => {
                let refused =
                    |why: &str| error::cri_error(Kind::Internal, format!("invalid target container: {why}"));
                let entry = self.store.lock().container(target);
                let entry = entry.map_err(|_| refused(&format!("container {target:?} not found")))?;
                if entry.record.sandbox != sandbox.record.id {
                    return Err(refused("it is in another sandbox"));
                }
                match entry.shim.state() {
                    Ok(State::Running { pid, .. }) => Some(pid),
                    _ => return Err(refused(&format!("container {target:?} is not running"))),
                }
            }
        };
        let shm = sandbox.directory.join("shm");
        Ok(PodPaths {
            rootfs,
            network: at(Namespace::Net),
            ipc: at(Namespace::Ipc),
            uts: at(Namespace::Uts),
            pid: pid.map(|pid| PathBuf::from(format!("/proc/{pid}/ns/pid"))),
            shm: shm.exists().then_some(shm),
            resolv_conf: Some(sandbox.directory.join("resolv.conf")),
            hostname: Some(sandbox.directory.join("hostname")),
        })
    }

    /// Mounts the image volumes, each in a directory of its own.
    fn mount_images(&self, config: &ContainerConfig, directory: &Path) -> Result<BTreeMap<String, PathBuf>> {
        let mut paths = BTreeMap::new();
        let wanted = config.mounts.iter().filter_map(|mount| Some((mount, mount.image.as_ref()?)));
        for (number, (mount, image)) in wanted.enumerate() {
            let stored =
                self.settings.images.image(image).map_err(Error::from)?.ok_or_else(|| no_image(image))?;
            let place = directory.join("images").join(number.to_string());
            files::create_private_dir(&place)
                .map_err(|error| error::path_error("failed to make", &place, &error))?;
            self.settings.images.hold(&stored.id, directory).map_err(Error::from)?;
            let image_root = match stored.layers.as_slice() {
                // An overlay needs at least two layers.
                [only] => only.clone(),
                [] => place,
                layers => {
                    rootfs::overlay(layers, None, &place, true).map_err(|error| {
                        error::path_error("failed to mount the image's layers at", &place, &error)
                    })?;
                    place
                }
            };
            paths.insert(mount.container_path.clone(), sub_path(&image_root, mount, image)?);
        }
        Ok(paths)
    }
}

/// The sub path of an image volume. It must exist in the image.
fn sub_path(image_root: &Path, mount: &Mount, image: &str) -> Result<PathBuf> {
    if mount.image_sub_path.is_empty() {
        return Ok(image_root.to_owned());
    }
    let handle = RootDir::open(image_root).and_then(|root| root.handle(&mount.image_sub_path));
    let path = handle.ok().and_then(|handle| {
        let handle = std::os::fd::AsRawFd::as_raw_fd(&handle.as_fd());
        fs::read_link(format!("/proc/self/fd/{handle}")).ok()
    });
    path.ok_or_else(|| {
        let message = format!("failed to mount image {image:?}: it has no {:?}", mount.image_sub_path);
        error::cri_error(Kind::Internal, message)
    })
}

/// Creates missing host paths of mounts, as containerd does.
fn create_mount_sources(config: &ContainerConfig) -> Result<()> {
    for mount in
        config.mounts.iter().filter(|mount| mount.image.is_none() && mount.host_path.starts_with('/'))
    {
        let path = Path::new(&mount.host_path);
        match fs::metadata(path) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(path)
                    .map_err(|error| error::path_error("failed to mkdir", path, &error))?;
            }
            Err(error) => return Err(error::path_error("failed to stat", path, &error)),
        }
    }
    Ok(())
}

/// Creates the working directory, in the volume that is mounted there if there is one.
fn create_working_directory(rootfs: &Path, config: &ContainerConfig, path: &str) -> Result<()> {
    let over = config.mounts.iter().filter(|mount| Path::new(path).starts_with(&mount.container_path));
    let over = over.max_by_key(|mount| mount.container_path.len());
    let (root, below) = match over {
        Some(mount) if mount.read_only || mount.image.is_some() => return Ok(()),
        Some(mount) => {
            let below = Path::new(path).strip_prefix(&mount.container_path).unwrap_or_else(|_| Path::new(""));
            (Path::new(&mount.host_path), below.to_string_lossy().into_owned())
        }
        None => (rootfs, path.trim_start_matches('/').to_owned()),
    };
    if below.is_empty() || is_directory_inside(root, &below) {
        return Ok(());
    }
    let made = RootDir::open(root).and_then(|root| root.create_dirs(&below, 0o755));
    made.map(drop).map_err(|error| {
        error::cri_error(Kind::Internal, format!("failed to create the working directory {path:?}: {error}"))
    })
}

/// Whether the directory exists, following only links that stay inside the root.
fn is_directory_inside(root: &Path, path: &str) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(root) = rustix::fs::open(root, flags, Mode::empty()) else { return false };
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root.as_fd(), path, flags, Mode::empty(), inside).is_ok()
}

/// The image's name, its name with digest, its id, and all of its names.
fn image_names(
    config: &ContainerConfig,
    stored: Option<&StoredImage>,
) -> (String, String, String, Vec<String>) {
    let Some(stored) = stored else {
        return (
            config.image.clone(),
            config.image.clone(),
            config.image.clone(),
            vec![config.image.clone()],
        );
    };
    let asked = if config.user_image.is_empty() { &config.image } else { &config.user_image };
    let name = stored.tags.first().unwrap_or(asked).clone();
    let reference = stored.digests.first().unwrap_or(&stored.id).clone();
    let mut all = vec![stored.id.clone(), config.image.clone(), config.user_image.clone()];
    all.extend(stored.tags.iter().chain(&stored.digests).cloned());
    all.retain(|name| !name.is_empty());
    (name, reference, stored.id.clone(), all)
}

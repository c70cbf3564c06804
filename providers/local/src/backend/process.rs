//! Pods as plain processes, for hosts where this user cannot run containers.
//!
//! The program comes from the image, whose layers are flattened into one directory; everything else is the host's.
//! Nothing is mounted: environment variables hold the paths of the volumes. A pod that asks for something unsupported
//! is rejected with a reason.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use oci_spec::image;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use vk_pod_engine::backend::{ContainerConfig, SandboxConfig, Seccomp, Share};
use vk_provider::{Result, error::Kind};

use super::error;
use crate::{files, procfs, shim::ContainerProcess, spec};

const LEVEL_TEXT: &str = "this node runs pods as plain processes (level \"process\")";
/// Clock ticks per second that the kernel reports to user space; the same on every machine.
const TICKS: i64 = 100;
/// Tolerated difference between the start times of a process and its container: the boot time is only known to a
/// second.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(3);
/// How long killed processes may take to exit.
const KILL_ATTEMPTS: u32 = 400;
const KILL_POLL: Duration = Duration::from_millis(5);

/// Rejects a pod that needs something this level does not support.
pub(super) fn check_sandbox(config: &SandboxConfig) -> Result<(), String> {
    let refused = |what: &str, remedy: &str| Err(format!("{what} is not supported: {LEVEL_TEXT}; {remedy}"));
    if let Some(port) = config.ports.first() {
        let what = format!("hostPort {}", port.host_port);
        return refused(&what, "let the container listen on that port: pods use the host's network");
    }
    if let Some(name) = config.sysctls.keys().next() {
        return refused(&format!("sysctl {name}"), "leave it out");
    }
    if config.security.namespaces.pid == Share::Pod {
        return refused("shareProcessNamespace", "leave it out: pods already share the host's processes");
    }
    Ok(())
}

/// Rejects a container that needs something this level does not support.
pub(super) fn check_container(config: &ContainerConfig) -> Result<(), String> {
    let refused = |what: &str| {
        Err(format!(
            "{what} of container {:?} is not supported: {LEVEL_TEXT}; leave it out, or run this pod on a node with level \"oci\"",
            config.name
        ))
    };
    let security = &config.security;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    if security.privileged {
        return refused("privileged");
    }
    // User 0 is accepted: images without a user mean root, and run as this user here.
    if security.user.is_some_and(|user| user != 0 && user != i64::from(uid)) {
        return refused("runAsUser");
    }
    if security.group.is_some_and(|group| group != i64::from(gid)) {
        return refused("runAsGroup");
    }
    if security.supplemental_groups.iter().any(|group| *group != i64::from(gid)) {
        return refused("fsGroup or supplementalGroups");
    }
    if let Some(name) = security.capabilities.add.first() {
        return refused(&format!("capability {name}"));
    }
    if security.read_only_root {
        return refused("readOnlyRootFilesystem");
    }
    if security.seccomp != Seccomp::Unconfined {
        return refused("seccompProfile");
    }
    if security.apparmor.as_deref().is_some_and(|profile| profile != "unconfined") {
        return refused("appArmorProfile");
    }
    if security.selinux.is_some() {
        return refused("seLinuxOptions");
    }
    if matches!(security.namespaces.pid, Share::Target(_)) {
        return refused("targetContainerName");
    }
    if !config.devices.is_empty() {
        return refused("devices");
    }
    if let Some(mount) = config.mounts.iter().find(|mount| mount.image.is_some()) {
        return refused(&format!("image volume at {}", mount.container_path));
    }
    if config.resources.memory_limit != 0 || config.resources.cpu_quota != 0 {
        tracing::warn!(
            container = config.name,
            "CPU and memory limits are not enforced at level \"process\""
        );
    }
    Ok(())
}

/// The process of a container and its working directory: a program of the image flattened in `flat`, or of the host if
/// there is no image.
pub(super) fn launch(
    config: &ContainerConfig,
    image: Option<&image::Config>,
    flat: Option<&Path>,
    directory: &Path,
) -> Result<(ContainerProcess, PathBuf)> {
    let mut argv = spec::arguments(config, image)?;
    let scratch = directory.join("work");
    files::create_private_dir(&scratch)
        .map_err(|error| error::path_error("failed to make", &scratch, &error))?;
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut env: Vec<(String, String)> = spec::environment(config, image, hostname.trim())
        .into_iter()
        .filter_map(|entry| entry.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())))
        .collect();
    let path = env.iter_mut().find(|(name, _)| name == "PATH");
    let folders = path.as_ref().map(|(_, value)| value.clone()).unwrap_or_default();
    let cwd = spec::working_directory(config, image);
    let mut start = scratch;
    if let Some(flat) = flat {
        if let Some((_, value)) = path {
            *value = image_path_variable(flat, &folders);
        }
        if let Some(program) = find(flat, &argv[0], &folders) {
            argv[0] = linked_program(&program, &argv[0], directory)?.to_string_lossy().into_owned();
        }
        if cwd != "/"
            && let Some(inside) = resolve_inside(flat, &cwd).filter(|path| path.is_dir())
        {
            start = inside;
        }
    } else if cwd != "/" {
        start = cwd.into();
    }
    env.extend(mount_variables(config));
    let env = env.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    Ok((ContainerProcess { args: argv, env }, start))
}

/// Environment variables with the paths of the mounts: `VK_MOUNT_0` and so on hold the host paths, `VK_MOUNT_PATH_0`
/// and so on the container paths, and `VK_VOLUME_ETC_WEB` holds the host path of `/etc/web`.
fn mount_variables(config: &ContainerConfig) -> Vec<(String, String)> {
    let mut env = Vec::new();
    for (number, mount) in config.mounts.iter().enumerate() {
        let name: String = mount
            .container_path
            .trim_matches('/')
            .chars()
            .map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' })
            .collect();
        env.push((format!("VK_MOUNT_{number}"), mount.host_path.clone()));
        env.push((format!("VK_MOUNT_PATH_{number}"), mount.container_path.clone()));
        env.push((format!("VK_VOLUME_{name}"), mount.host_path.clone()));
    }
    env
}

/// A PATH with the image's directories, followed by the same directories of the host.
fn image_path_variable(flat: &Path, folders: &str) -> String {
    let inner = folders.split(':').filter(|folder| folder.starts_with('/'));
    let inner: Vec<String> = inner.map(|folder| format!("{}{folder}", flat.display())).collect();
    [inner.join(":"), folders.to_owned()].join(":")
}

/// Finds a program in the image, by its path or in PATH.
fn find(flat: &Path, program: &str, folders: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return resolve_inside(flat, program);
    }
    let mut candidates = folders.split(':').map(|folder| format!("{folder}/{program}"));
    candidates.find_map(|candidate| resolve_inside(flat, &candidate))
}

/// Resolves a path in a directory as if that were the root; links cannot leave it.
fn resolve_inside(flat: &Path, path: &str) -> Option<PathBuf> {
    let root =
        rustix::fs::open(flat, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat2(root.as_fd(), path, flags, Mode::empty(), resolve).ok()?;
    fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).ok()
}

/// The program under the name it was called by, which matters to multi-call programs such as busybox.
fn linked_program(program: &Path, called: &str, directory: &Path) -> Result<PathBuf> {
    let name = Path::new(called).file_name().unwrap_or(program.as_os_str());
    if program.file_name() == Some(name) {
        return Ok(program.to_owned());
    }
    let folder = directory.join("program");
    files::create_private_dir(&folder)
        .map_err(|error| error::path_error("failed to make", &folder, &error))?;
    let link = folder.join(name);
    std::os::unix::fs::symlink(program, &link).map_err(|error| {
        error::cri_error(Kind::Internal, format!("failed to link {}: {error}", link.display()))
    })?;
    Ok(link)
}

/// Kills the processes of a session, after the shim of the container is gone. `ticks` is the start time of the session
/// leader in the kernel's clock, which identifies it; without it, the start time of the container has to do.
pub(super) fn kill_session(leader: i32, started: Option<Timestamp>, ticks: Option<u64>) -> io::Result<()> {
    // The PID may have been reused by a process that started after the container.
    let later =
        |start_time: Timestamp| started.is_none_or(|started| start_time.duration_since(started) > TOLERANCE);
    let another = match ticks {
        Some(ticks) => procfs::start_ticks(leader).is_some_and(|now| now != ticks),
        None => start_time(leader).is_some_and(later),
    };
    if another {
        return Ok(());
    }
    kill_all(&format!("of session {leader}"), || procfs::session_members(leader))
}

/// Kills processes of a container that left its session, found by their environment.
pub(super) fn kill_marked_processes(id: &str) -> io::Result<()> {
    kill_all(&format!("of container {id}"), || procfs::container_processes(id))
}

/// Sends SIGKILL until no process is left.
fn kill_all(what: &str, members: impl Fn() -> Vec<i32>) -> io::Result<()> {
    for _ in 0..KILL_ATTEMPTS {
        let members = members();
        if members.is_empty() {
            return Ok(());
        }
        for pid in members.into_iter().filter_map(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        std::thread::sleep(KILL_POLL);
    }
    Err(io::Error::other(format!("processes {what} do not exit after SIGKILL")))
}

/// Start time of a process, to a few hundredths of a second; `None` if it does not exist.
fn start_time(pid: i32) -> Option<Timestamp> {
    let ticks = i64::try_from(procfs::start_ticks(pid)?).ok()?;
    let host = fs::read_to_string("/proc/stat").ok()?;
    let boot_time = host.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse::<i64>().ok()?;
    Timestamp::from_millisecond(boot_time * 1000 + ticks * (1000 / TICKS)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_started_after_the_container_is_not_killed() {
        use std::os::unix::process::CommandExt;
        let mut other = std::process::Command::new("sleep");
        let mut other = other.arg("60").process_group(0).spawn().unwrap();
        let pid = other.id().cast_signed();
        let start_time = start_time(pid).unwrap();
        let ticks = procfs::start_ticks(pid).unwrap();
        kill_session(pid, Some(start_time - SignedDuration::from_mins(1)), None).unwrap();
        kill_session(pid, None, None).unwrap();
        kill_session(pid, Some(start_time), Some(ticks + 1)).unwrap();
        assert!(other.try_wait().unwrap().is_none(), "it must keep running");
        other.kill().unwrap();
        other.wait().unwrap();
        kill_session(pid, Some(start_time), Some(ticks)).unwrap();
    }

    #[test]
    fn a_session_leader_is_identified_by_its_start_ticks_even_if_the_clock_was_changed() {
        let mut leader = std::process::Command::new("setsid").args(["sleep", "60"]).spawn().unwrap();
        let pid = leader.id().cast_signed();
        let ticks = procfs::start_ticks(pid).unwrap();
        let deadline = std::time::Duration::from_secs(10);
        // `setsid` needs a moment to create the session.
        for _ in 0..deadline.as_millis() / KILL_POLL.as_millis() {
            if procfs::session_members(pid) == [pid] {
                break;
            }
            std::thread::sleep(KILL_POLL);
        }
        // As if the clock had been set back by a year after the start.
        let wrong = start_time(pid).unwrap() - SignedDuration::from_hours(24 * 365);
        kill_session(pid, Some(wrong), Some(ticks)).unwrap();
        let status = leader.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }
}

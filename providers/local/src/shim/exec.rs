//! `exec`: starts a command in a running container, with the same restrictions as the container's program.
//!
//! libcontainer could do this too, but it does not apply the container's seccomp filter to the command. So the sequence
//! is ours, and uses libcontainer for the single steps.
//!
//! Until the command is executed, our own binary runs among the container's processes. They cannot trace it, because it
//! is not dumpable. A process that can trace it nevertheless finds nothing of the host in `/proc`: the helper has left
//! the host's mount namespace before, and its binary is on a read-only mount.

use std::{
    convert::Infallible,
    env,
    fs::File,
    io,
    os::fd::{AsFd as _, OwnedFd},
    process::{Command, ExitCode},
};

use libcontainer::{
    apparmor, capabilities,
    oci_spec::runtime::{LinuxSeccomp, Process, Spec},
    seccomp,
    syscall::{Syscall, syscall::SyscallType},
};
use rustix::{
    fs::{Gid, Mode, Uid},
    io::{read, retry_on_intr, write},
    pipe::{PipeFlags, pipe_with},
    process::{DumpableBehavior, set_dumpable_behavior, umask},
    thread::{
        LinkNameSpaceType, move_into_link_name_space, set_keep_capabilities, set_no_new_privs,
        set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};

use super::{
    ContainerProcess, ShimLaunch,
    console::ProcessStdio,
    create::{self, BUNDLE, adjust_oom, run_helper, send_report},
    executor,
    protocol::{HelperReport, HelperRequest},
};
use crate::{cgroup::HostCgroups, isolation::Isolation, sys};
use vk_provider::go_text::io_error;

/// Entry point of `exec`.
pub(super) fn run() -> ExitCode {
    run_helper(|order, launch, report| match launch.isolation {
        Isolation::Process => create::process(order, launch, report),
        Isolation::Oci => oci(order, launch, report),
    })
}

fn oci(order: &HelperRequest, launch: &ShimLaunch, report: &OwnedFd) -> Result<(), String> {
    let spec = Spec::load(BUNDLE).map_err(|error| format!("read {BUNDLE}: {error}"))?;
    let process = spec.process().as_ref().ok_or("config.json has no process")?;
    let filter = spec.linux().as_ref().and_then(|linux| linux.seccomp().as_ref());
    let args = order.command.clone().unwrap_or_default();
    let console = ProcessStdio::take(order).map_err(|error| error.to_string())?;
    console.give_to(process.user().uid());
    adjust_oom(launch, report);
    let namespaces = Namespaces::of(order.init).map_err(failed("find the container's namespaces"))?;
    if let Some(path) = &launch.cgroup {
        HostCgroups::mounted().and_then(|cgroups| cgroups.join(path)).map_err(|error| error.to_string())?;
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("hide from the container"))?;
    // The PID namespace comes last: once the container's processes see this process, it no longer has the host's files.
    for (namespace, kind) in &namespaces.rest {
        move_into_link_name_space(namespace.as_fd(), Some(*kind))
            .map_err(failed("join the container's namespaces"))?;
    }
    if let Some(pid) = &namespaces.pid {
        move_into_link_name_space(pid.as_fd(), Some(LinkNameSpaceType::ProcessID))
            .map_err(failed("join the container's PID namespace"))?;
    }
    drop(namespaces);
    let (ready_read, mut ready_write) = pipe_with(PipeFlags::CLOEXEC)
        .map(|(ready_read, ready_write)| (ready_read, Some(ready_write)))
        .map_err(failed("start a process in the container"))?;
    // The process in the container's PID namespace; the supervisor becomes its parent when we exit.
    let child = sys::process::fork_child(|| {
        drop(ready_write.take());
        // A process whose PID was not reported could not be killed.
        if !matches!(retry_on_intr(|| read(&ready_read, &mut [0; 1])), Ok(1)) {
            return;
        }
        drop(ready_read);
        let Err(message) = enter(console, process, filter, &order.process, &args);
        send_report(report, &HelperReport::Error(message));
    });
    send_report(report, &HelperReport::Pid(child.map_err(failed("start a process in the container"))?));
    if let Some(ready_write) = ready_write {
        retry_on_intr(|| write(&ready_write, b"g")).map_err(failed("start a process in the container"))?;
    }
    Ok(())
}

/// Sets up the new process and executes the command.
fn enter(
    console: ProcessStdio,
    process: &Process,
    filter: Option<&LinuxSeccomp>,
    container: &ContainerProcess,
    args: &[String],
) -> Result<Infallible, String> {
    let kernel = SyscallType::Linux.create_syscall();
    let user = process.user();
    console.enter(Some(user.uid())).map_err(failed("set up stdio"))?;
    for limit in process.rlimits().iter().flatten() {
        kernel.set_rlimit(limit).map_err(|error| format!("set a resource limit: {error}"))?;
    }
    umask(Mode::from_raw_mode(user.umask().unwrap_or(0o022)));
    if let Some(profile) = process.apparmor_profile() {
        apparmor::apply_profile(profile).map_err(|error| format!("apply AppArmor profile: {error}"))?;
    }
    if process.no_new_privileges() == Some(true) {
        set_no_new_privs(true).map_err(failed("set no_new_privs"))?;
    }
    // Tried as root first, because the user may lack access to a parent directory; then as the user, for filesystems
    // that root cannot access.
    let there = env::set_current_dir(process.cwd()).is_ok();
    become_user(process)?;
    if !there {
        env::set_current_dir(process.cwd()).map_err(|error| {
            let cwd = process.cwd().display();
            format!("chdir to cwd (\"{cwd}\") set in config.json failed: {}", io_error(&error))
        })?;
    }
    kernel.close_range(0).map_err(|error| format!("close descriptors: {error}"))?;

    // Without `no_new_privs` setting a filter needs CAP_SYS_ADMIN, so it comes before capabilities are dropped.
    let early = process.no_new_privileges() != Some(true);
    let confine = |now: bool| match filter {
        Some(filter) if now => seccomp::initialize_seccomp(filter)
            .map(drop)
            .map_err(|error| format!("set seccomp filter: {error}")),
        _ => Ok(()),
    };
    let program = executor::lookup(args, container.variable("PATH").unwrap_or(executor::PATH))?;
    let home = executor::passwd_home(container, user.uid());
    // Changing the user keeps capabilities permitted, but not effective.
    capabilities::reset_effective(&*kernel).map_err(|error| format!("reset capabilities: {error}"))?;
    confine(early)?;
    drop_capabilities(process, &*kernel)?;
    confine(!early)?;
    let mut command = Command::new(&program);
    command.env_clear().envs(container.variables()).envs(home.map(|home| ("HOME", home)));
    executor::run(command, &program, args)
}

/// Changes to the container's user, keeping capabilities permitted for the next steps.
fn become_user(process: &Process) -> Result<(), String> {
    let user = process.user();
    let (uid, gid) = (Uid::from_raw(user.uid()), Gid::from_raw(user.gid()));
    let groups: Vec<Gid> = user.additional_gids().iter().flatten().map(|gid| Gid::from_raw(*gid)).collect();
    set_keep_capabilities(true).map_err(failed("keep capabilities"))?;
    set_thread_groups(&groups).map_err(failed("set groups"))?;
    set_thread_res_gid(gid, gid, gid).map_err(failed("set group"))?;
    set_thread_res_uid(uid, uid, uid).map_err(failed("set user"))?;
    set_keep_capabilities(false).map_err(failed("reset the keep-capabilities flag"))
}

fn drop_capabilities(process: &Process, kernel: &dyn Syscall) -> Result<(), String> {
    match process.capabilities() {
        Some(wanted) => capabilities::drop_privileges(wanted, kernel)
            .map_err(|error| format!("drop capabilities: {error}")),
        None => Ok(()),
    }
}

fn failed<E: std::fmt::Display>(doing: &str) -> impl Fn(E) -> String {
    move |error| format!("{doing}: {error}")
}

/// The namespaces of the container that differ from ours.
struct Namespaces {
    pid: Option<File>,
    /// In the order of joining: the mount namespace is last, because the others are opened through `/proc`.
    rest: Vec<(File, LinkNameSpaceType)>,
}

impl Namespaces {
    fn of(init: i32) -> io::Result<Self> {
        let open = |name: &str| -> io::Result<Option<File>> {
            let (theirs, ours) = (format!("/proc/{init}/ns/{name}"), format!("/proc/self/ns/{name}"));
            if std::fs::read_link(&theirs)? == std::fs::read_link(&ours)? {
                return Ok(None);
            }
            File::open(theirs).map(Some)
        };
        let kinds = [
            ("ipc", LinkNameSpaceType::InterProcessCommunication),
            ("uts", LinkNameSpaceType::HostNameAndNISDomainName),
            ("net", LinkNameSpaceType::Network),
            ("cgroup", LinkNameSpaceType::ControlGroup),
            ("mnt", LinkNameSpaceType::Mount),
        ];
        let mut rest = Vec::new();
        for (name, kind) in kinds {
            rest.extend(open(name)?.map(|file| (file, kind)));
        }
        Ok(Self { pid: open("pid")?, rest })
    }
}

//! `pause`: process 1 of a pod with a shared PID namespace. It reaps orphans, and the kernel kills everything in the
//! namespace when it exits.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Write as _},
    os::{fd::AsFd as _, unix::process::CommandExt as _},
    path::{Path, PathBuf},
    process::{self, ExitCode, Stdio},
};

use nix::sys::signal::{SigSet, Signal};
use rustix::{
    fs::{Gid, Uid},
    mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, mount_remount, unmount},
    process::{DumpableBehavior, WaitOptions, chdir, pivot_root, set_dumpable_behavior, setsid, wait},
    stdio::{dup2_stderr, dup2_stdout},
    thread::{
        UnshareFlags, move_into_link_name_space, set_no_new_privs, set_thread_groups, set_thread_res_gid,
        set_thread_res_uid,
    },
};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::{OOM_SCORE_ADJ, Program, on_read_only_mount, print_error, state};
use crate::{cgroup::HostCgroups, files, sys};

const LOCK: &str = "pause.lock";
const FILE: &str = "pause.json";
const READY: &str = "ready";
/// An unprivileged user.
const NOBODY: u32 = 65534;

#[derive(Debug, Serialize, Deserialize)]
struct PauseRecord {
    pid: i32,
}

/// Starts process 1 of a new PID namespace, in the other namespaces given by their files. Returns its PID on the host;
/// the namespace is `/proc/PID/ns/pid`. An existing one is reused. `own_cgroup` is as in
/// [`ShimLaunch`](super::ShimLaunch): like a shim, it outlives the process that starts it.
pub async fn start_pause_process(
    program: &Program,
    dir: &Path,
    own_cgroup: &str,
    join: &[PathBuf],
) -> io::Result<i32> {
    if let Some(pid) = pause_process_pid(dir) {
        return Ok(pid);
    }
    let output = Command::new(&program.path)
        .arg0("virtual-kubelet-shim")
        .args(&program.args)
        .arg("pause")
        .arg(dir)
        .arg(own_cgroup)
        .args(join)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .await?;
    let complaints = String::from_utf8_lossy(&output.stderr);
    let pid = pause_process_pid(dir)
        .ok_or_else(|| io::Error::other(format!("start the pause process: {}", complaints.trim())))?;
    if !complaints.trim().is_empty() {
        tracing::warn!(error = complaints.trim(), pid, "a pause process is not fully set up");
    }
    Ok(pid)
}

/// The PID of the pause process, while it lives.
pub fn pause_process_pid(dir: &Path) -> Option<i32> {
    let alive = state::is_locked(&dir.join(LOCK)).unwrap_or(false);
    let paused: PauseRecord = alive.then(|| files::read_json(&dir.join(FILE)).ok().flatten()).flatten()?;
    Some(paused.pid)
}

/// Entry point of `pause`: starts the pause process and exits.
pub(super) fn run(dir: &Path, program: &Program, args: &[String]) -> ExitCode {
    let start = || -> io::Result<()> {
        let [own_cgroup, join @ ..] = args else { return Err(io::Error::other("no cgroup was given")) };
        // In the cgroup of a service it would be stopped with it, and all processes of the pod with this one.
        if let Err(error) = HostCgroups::mounted().and_then(|cgroups| cgroups.enter(own_cgroup)) {
            print_error(format_args!("the pause process stays in its parent's cgroup: {error}"));
        }
        // An unprivileged process keeps its score.
        let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
        let (program, _binary) = on_read_only_mount(program.clone());
        for namespace in join {
            let file = File::open(namespace)
                .map_err(|error| io::Error::new(error.kind(), format!("open {namespace}: {error}")))?;
            move_into_link_name_space(file.as_fd(), None)?;
        }
        sys::process::unshare(UnshareFlags::NEWPID)?;
        let mut child = process::Command::new(&program.path)
            .arg0("pause")
            .args(&program.args)
            .arg("paused")
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line.trim() == READY { Ok(()) } else { Err(io::Error::other("it exited at once")) }
    };
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

/// The pause process itself.
pub(super) fn run_init(dir: &Path) -> ExitCode {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT] {
        signals.add(signal);
    }
    let prepared = || -> io::Result<Option<(File, File)>> {
        sys::fd::close_inherited()?;
        setsid()?;
        sys::process::join_new_session_keyring();
        signals.thread_block()?;
        let Some(lock) = state::try_lock(&dir.join(LOCK))? else { return Ok(None) };
        // `/proc` still shows the host's PIDs: in the new namespace we are process 1.
        let pid = fs::read_link("/proc/self")?.to_str().and_then(|pid| pid.parse().ok());
        let pid = pid.ok_or_else(|| io::Error::other("read the own PID from /proc/self"))?;
        files::write_json(&dir.join(FILE), &PauseRecord { pid })?;
        let null = File::options().write(true).open("/dev/null")?;
        drop_privileges(dir)?;
        Ok(Some((lock, null)))
    };
    let (_lock, null) = match prepared() {
        Ok(Some(prepared)) => prepared,
        Ok(None) => {
            print_error(format_args!("another pause process is running"));
            return ExitCode::FAILURE;
        }
        Err(error) => {
            print_error(format_args!("{error}"));
            return ExitCode::FAILURE;
        }
    };
    let _ = writeln!(io::stdout(), "{READY}");
    // The caller waits for the end of our output.
    let _ = dup2_stdout(&null);
    let _ = dup2_stderr(&null);
    loop {
        match signals.wait() {
            Ok(Signal::SIGCHLD) => while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {},
            Ok(_) => return ExitCode::SUCCESS,
            Err(_) => {}
        }
    }
}

/// Gives up the host's files and all privileges: the pod's containers see this process.
fn drop_privileges(dir: &Path) -> io::Result<()> {
    sys::process::unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", dir, "tmpfs", flags, c"size=4k,mode=755")?;
    chdir(dir)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")?;
    mount_remount("/", MountFlags::RDONLY | flags, "")?;
    set_no_new_privs(true)?;
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

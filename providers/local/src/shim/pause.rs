//! `pause`: the first process of a pod whose containers share their processes. It reaps whom nobody else reaps, and everything in the
//! pod's namespace ends with it.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{self, ExitCode, Stdio},
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, setns, unshare},
    sys::signal::{SigSet, Signal},
    unistd::{Gid, Uid, chdir, pivot_root, setgroups, setresgid, setresuid, setsid},
};
use rustix::{
    process::{DumpableBehavior, WaitOptions, set_dumpable_behavior, wait},
    stdio::{dup2_stderr, dup2_stdout},
    thread::set_no_new_privs,
};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::{
    Program, state,
    verb::{complain, protected},
};
use crate::sys;

const LOCK: &str = "pause.lock";
const FILE: &str = "pause.json";
const READY: &str = "ready";
/// Nobody in particular, without any right.
const NOBODY: u32 = 65534;

#[derive(Debug, Serialize, Deserialize)]
struct Paused {
    pid: i32,
}

/// Starts the first process of a new namespace of processes, in the other namespaces that are named by their files. Its number on this
/// machine; the namespace is `/proc/PID/ns/pid`. One that is there already is taken.
pub async fn pause(program: &Program, dir: &Path, join: &[PathBuf]) -> io::Result<i32> {
    if let Some(pid) = paused(dir) {
        return Ok(pid);
    }
    let output = Command::new(&program.path)
        .arg0("virtual-kubelet-shim")
        .args(&program.args)
        .arg("pause")
        .arg(dir)
        .args(join)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .await?;
    paused(dir).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        io::Error::other(format!("start the first process of the pod: {}", said.trim()))
    })
}

/// The number of the process, while it lives.
pub fn paused(dir: &Path) -> Option<i32> {
    let alive = state::held(&dir.join(LOCK)).unwrap_or(false);
    let paused: Paused = alive.then(|| state::load(&dir.join(FILE)).ok().flatten()).flatten()?;
    Some(paused.pid)
}

/// The process `pause`: starts the other one and ends.
pub(super) fn run(dir: &Path, program: &Program, join: &[String]) -> ExitCode {
    let start = || -> io::Result<()> {
        let (program, _binary) = protected(program.clone());
        for namespace in join {
            let file = File::open(namespace)
                .map_err(|error| io::Error::new(error.kind(), format!("open {namespace}: {error}")))?;
            setns(file, CloneFlags::empty())?;
        }
        unshare(CloneFlags::CLONE_NEWPID)?;
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
        if line.trim() == READY { Ok(()) } else { Err(io::Error::other("it ended at once")) }
    };
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

/// The process that stays.
pub(super) fn rest(dir: &Path) -> ExitCode {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT] {
        signals.add(signal);
    }
    let settled = || -> io::Result<Option<(File, File)>> {
        sys::fd::close_all()?;
        setsid()?;
        sys::process::leave_keyring();
        signals.thread_block()?;
        let Some(lock) = state::take(&dir.join(LOCK))? else { return Ok(None) };
        // The machine's own view of processes is still there: in the pod's we are number 1.
        let pid = fs::read_link("/proc/self")?.to_str().and_then(|pid| pid.parse().ok());
        let pid = pid.ok_or_else(|| io::Error::other("no number of our own"))?;
        state::save(&dir.join(FILE), &Paused { pid })?;
        let null = File::options().write(true).open("/dev/null")?;
        leave(dir)?;
        Ok(Some((lock, null)))
    };
    let (_lock, null) = match settled() {
        Ok(Some(settled)) => settled,
        Ok(None) => {
            complain(format_args!("another one is there"));
            return ExitCode::FAILURE;
        }
        Err(error) => {
            complain(format_args!("{error}"));
            return ExitCode::FAILURE;
        }
    };
    let _ = writeln!(io::stdout(), "{READY}");
    // Whoever started us waits for the end of what we say.
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

/// Leaves the machine's files and every right: the pod's containers see this process, and through it only what it has.
fn leave(dir: &Path) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), dir, Some("tmpfs"), flags, Some("size=4k,mode=755"))?;
    chdir(dir)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    chdir("/")?;
    mount(none, "/", none, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | flags, none)?;
    set_no_new_privs(true)?;
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

//! A container directory for tests of the shim.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use oci_spec::runtime::{
    LinuxBuilder, LinuxMemoryBuilder, LinuxNamespaceBuilder, LinuxNamespaceType, LinuxPidsBuilder,
    LinuxResourcesBuilder, MountBuilder, ProcessBuilder, RootBuilder, Spec, SpecBuilder, UserBuilder,
    get_default_mounts,
};
use tempfile::TempDir;
use tokio::time::Instant;
use vk_provider_local::{
    cgroup::HostCgroups,
    isolation::Isolation,
    shim::{ContainerExit, ContainerProcess, Program, Shim, ShimLaunch, StartError, State},
};
use vk_testing::eventually;

pub(super) const SOON: Duration = Duration::from_secs(30);

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A container that has not been started. Everything is removed on drop.
pub(super) struct Bundle {
    pub(super) folder: TempDir,
    pub(super) launch: ShimLaunch,
    /// The program at level `process`; otherwise the spec has it.
    pub(super) process: ContainerProcess,
    pub(super) spec: Spec,
    pub(super) shim: Shim,
}

pub(super) fn program() -> Program {
    Program { path: env!("CARGO_BIN_EXE_vk-local-shim").into(), args: Vec::new() }
}

impl Bundle {
    fn new(level: Isolation) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // As long as a real id, so that paths have realistic lengths.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:0>64}", format!("{:x}{number:04x}", std::process::id()));
        let dir = folder.path().join("containers").join(&id);
        fs::create_dir_all(&dir).unwrap();
        let launch = ShimLaunch {
            isolation: level,
            pod_uid: "4bfa3ae4-9f0d-4c0a-8d5b-0d6d3d9d1a11".to_owned(),
            events: folder.path().join("events.sock"),
            log: folder.path().join("0.log"),
            tty: false,
            stdin: false,
            stdin_once: false,
            oom_score_adj: None,
            cgroup: None,
            own_cgroup: None,
            no_new_privs: false,
            cwd: None,
        };
        let process = ContainerProcess::default();
        Self { folder, launch, process, spec: Spec::default(), shim: Shim::at(dir) }
    }

    /// A shell script as a plain process.
    pub(super) fn process(script: &str) -> Self {
        let mut bundle = Self::new(Isolation::Process);
        bundle.process = ContainerProcess {
            args: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            env: vec!["PATH=/usr/bin:/bin".to_owned(), "GREETING=hello".to_owned()],
        };
        bundle.launch.cwd = Some(bundle.folder.path().to_owned());
        bundle
    }

    /// A shell script in a busybox container.
    pub(super) fn container(script: &str) -> Self {
        Self::of(&["sh", "-c", script])
    }

    /// A command in a busybox container.
    pub(super) fn of(command: &[&str]) -> Self {
        let mut bundle = Self::new(Isolation::Oci);
        furnish(&bundle.shim.dir().join("rootfs"));
        let id = bundle.shim.dir().file_name().unwrap().to_str().unwrap().to_owned();
        let path = format!("/vk-test-shim-{}", id.trim_start_matches('0'));
        bundle.launch.cgroup = Some(path.clone());
        let user = UserBuilder::default().uid(0_u32).gid(0_u32).build().unwrap();
        let process = ProcessBuilder::default()
            .terminal(false)
            .user(user)
            .args(command.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
            .env(vec!["PATH=/bin".to_owned(), "GREETING=hello".to_owned()])
            .cwd("/")
            .build()
            .unwrap();
        let kinds = [
            LinuxNamespaceType::Pid,
            LinuxNamespaceType::Mount,
            LinuxNamespaceType::Ipc,
            LinuxNamespaceType::Uts,
            LinuxNamespaceType::Network,
        ];
        let namespaces: Vec<_> =
            kinds.iter().map(|kind| LinuxNamespaceBuilder::default().typ(*kind).build().unwrap()).collect();
        let mut linux = LinuxBuilder::default().namespaces(namespaces).cgroups_path(path).build().unwrap();
        linux.set_resources(None).set_seccomp(None);
        let mounts: Vec<_> = get_default_mounts()
            .into_iter()
            .filter(|mount| mount.destination() != Path::new("/sys/fs/cgroup"))
            .collect();
        bundle.spec = SpecBuilder::default()
            .root(RootBuilder::default().path("rootfs").readonly(false).build().unwrap())
            .process(process)
            .linux(linux)
            .mounts(mounts)
            .build()
            .unwrap();
        bundle
    }

    pub(super) fn tty(mut self) -> Self {
        self.launch.tty = true;
        if let Some(process) = self.spec.process_mut() {
            process.set_terminal(Some(true));
        }
        self
    }

    pub(super) fn stdin(mut self, once: bool) -> Self {
        (self.launch.stdin, self.launch.stdin_once) = (true, once);
        self
    }

    pub(super) fn user(mut self, uid: u32) -> Self {
        let user = UserBuilder::default().uid(uid).gid(uid).build().unwrap();
        self.spec.process_mut().as_mut().unwrap().set_user(user);
        self
    }

    /// Limits memory (bytes) and the number of processes.
    pub(super) fn limits(mut self, memory: Option<i64>, pids: Option<i64>) -> Self {
        let mut resources = LinuxResourcesBuilder::default();
        if let Some(bytes) = memory {
            resources =
                resources.memory(LinuxMemoryBuilder::default().limit(bytes).swap(bytes).build().unwrap());
        }
        if let Some(count) = pids {
            resources = resources.pids(LinuxPidsBuilder::default().limit(count).build().unwrap());
        }
        let linux = self.spec.linux_mut().as_mut().unwrap();
        linux.set_resources(Some(resources.build().unwrap()));
        self
    }

    pub(super) fn mount(mut self, from: &Path, to: &str) -> Self {
        let options = vec!["rbind".to_owned(), "rw".to_owned()];
        let mount = MountBuilder::default().destination(to).source(from).typ("bind").options(options);
        let mut mounts = self.spec.mounts().clone().unwrap_or_default();
        mounts.push(mount.build().unwrap());
        self.spec.set_mounts(Some(mounts));
        self
    }

    pub(super) async fn start(&self) -> Result<(), StartError> {
        let mut process = self.process.clone();
        if self.launch.isolation == Isolation::Oci {
            let mut spec = self.spec.clone();
            process = ContainerProcess::take_from(&mut spec);
            // An earlier start may just read it.
            let [new, path] = ["config.json.new", "config.json"].map(|name| self.shim.dir().join(name));
            spec.save(&new).unwrap();
            std::fs::rename(new, path).unwrap();
        }
        self.shim.start(&program(), &self.launch, &process).await
    }

    /// Starts it and waits for its exit.
    pub(super) async fn run_to_exit(&self) -> ContainerExit {
        self.start().await.unwrap();
        self.wait_for_exit().await
    }

    pub(super) async fn wait_for_exit(&self) -> ContainerExit {
        match self.shim.wait(Instant::now() + SOON).await.unwrap() {
            State::Exited(exit) => exit,
            other => panic!("not exited: {other:?}; {}", self.shim_errors()),
        }
    }

    pub(super) fn pid(&self) -> i32 {
        match self.shim.state().unwrap() {
            State::Running { pid, .. } => pid,
            other => panic!("not running: {other:?}; {}", self.shim_errors()),
        }
    }

    /// The lines of the log, without time and stream.
    pub(super) fn log_lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.launch.log).unwrap_or_default();
        text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned()).collect()
    }

    pub(super) async fn wait_for_log(&self, wanted: &str) {
        eventually(wanted, SOON, async || {
            let lines = self.log_lines();
            if lines.iter().any(|line| line.contains(wanted)) { Ok(()) } else { Err(format!("{lines:?}")) }
        })
        .await;
    }

    pub(super) fn shim_errors(&self) -> String {
        fs::read_to_string(self.shim.dir().join("shim.err")).unwrap_or_default()
    }

    /// The PID of a helper of this container, by its subcommand.
    pub(super) fn helper(&self, verb: &str) -> Option<i32> {
        let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.into_iter().find(|pid| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let here = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
            line.split('\0').any(|word| word == verb) && here == self.shim.dir()
        })
    }

    /// Until the returned value is dropped, helpers hang at their first step.
    pub(super) fn stuck(&self) -> Stuck {
        let launch = self.shim.dir().join("launch.json");
        let aside = launch.with_extension("aside");
        fs::rename(&launch, &aside).unwrap();
        nix::unistd::mkfifo(&launch, nix::sys::stat::Mode::S_IRWXU).unwrap();
        Stuck { launch, aside }
    }

    /// The PID of the supervisor, found by its command line.
    pub(super) fn supervisor(&self) -> i32 {
        let dir = self.shim.dir().to_str().unwrap().to_owned();
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        processes
            .into_iter()
            .find(|pid| {
                let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                line.contains("supervise") && line.contains(&dir)
            })
            .expect("find the supervisor")
    }
}

/// While this exists, helpers of a container hang.
pub(super) struct Stuck {
    launch: PathBuf,
    aside: PathBuf,
}

impl Drop for Stuck {
    fn drop(&mut self) {
        let _ = fs::rename(&self.aside, &self.launch);
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let state = self.shim.state();
        if let Ok(State::Running { pid, .. } | State::Lost { pid: Some(pid), .. }) = state {
            signal(pid, nix::libc::SIGKILL);
        }
        if let Some(path) = &self.launch.cgroup {
            let _ = HostCgroups::mounted().unwrap().kill(path);
            let _ = HostCgroups::mounted().unwrap().remove(path);
        }
        // A supervisor writes into the directory until it exits.
        for _ in 0..400 {
            if !matches!(self.shim.state(), Ok(State::Running { .. })) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let own = self.launch.own_cgroup.iter();
        if let Some(top) = own.flat_map(|path| path.split('/')).find(|part| !part.is_empty()) {
            let _ = HostCgroups::mounted().unwrap().remove(top);
        }
    }
}

/// Sends a signal; the process may have exited.
pub(super) fn signal(pid: i32, number: i32) {
    let signal = nix::sys::signal::Signal::try_from(number).unwrap();
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
}

/// Whether a process exists and is not a zombie.
pub(super) fn alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

pub(super) async fn wait_for_death(pid: i32) {
    eventually("the process exits", SOON, async || if alive(pid) { Err("still alive") } else { Ok(()) })
        .await;
}

/// Creates a root filesystem with busybox and links for all its applets.
fn furnish(root: &Path) {
    for name in ["bin", "proc", "tmp", "dev", "etc", "sys", "v"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    let busybox: PathBuf = root.join("bin/busybox");
    // Copied by another process: if a concurrent test forks while we have the file open for writing, executing it fails
    // with ETXTBSY.
    let copied = Command::new("cp").arg("/bin/busybox").arg(&busybox).status();
    assert!(copied.is_ok_and(|status| status.success()), "busybox-static is not installed");
    let list = Command::new("/bin/busybox").arg("--list").output().unwrap();
    for applet in String::from_utf8_lossy(&list.stdout).lines().filter(|&applet| applet != "busybox") {
        symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1000::/srv/web:/bin/sh\n")
        .unwrap();
}

//! A directory with everything that a supervisor wants to find.

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
    level::Level,
    shim::{Exit, Launch, ProcessLaunch, Program, Shim, StartError, State, cgroup},
};
use vk_testing::eventually;

pub(super) const SOON: Duration = Duration::from_secs(30);

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A container that is not started yet. Whatever is left of it goes with it.
pub(super) struct Bundle {
    pub(super) folder: TempDir,
    pub(super) launch: Launch,
    pub(super) spec: Spec,
    pub(super) shim: Shim,
}

pub(super) fn program() -> Program {
    Program { path: env!("CARGO_BIN_EXE_vk-local-shim").into(), args: Vec::new() }
}

impl Bundle {
    fn new(level: Level) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // An id as long as real ones, so that paths are as long as they get.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:0>64}", format!("{:x}{number:04x}", std::process::id()));
        let dir = folder.path().join("containers").join(&id);
        fs::create_dir_all(&dir).unwrap();
        let launch = Launch {
            level,
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
            process: None,
        };
        Self { folder, launch, spec: Spec::default(), shim: Shim::at(dir) }
    }

    /// A shell script as a plain process.
    pub(super) fn process(script: &str) -> Self {
        let mut bundle = Self::new(Level::Process);
        bundle.launch.process = Some(ProcessLaunch {
            argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            env: vec![
                ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
                ("GREETING".to_owned(), "hello".to_owned()),
            ],
            cwd: bundle.folder.path().to_owned(),
        });
        bundle
    }

    /// A shell script in a container of busybox.
    pub(super) fn container(script: &str) -> Self {
        Self::of(&["sh", "-c", script])
    }

    /// A command in a container of busybox.
    pub(super) fn of(command: &[&str]) -> Self {
        let mut bundle = Self::new(Level::Oci);
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

    /// Bytes of memory, and a number of processes.
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
        if self.launch.level == Level::Oci {
            self.spec.save(self.shim.dir().join("config.json")).unwrap();
        }
        self.shim.start(&program(), &self.launch).await
    }

    /// Starts it, waits until it has ended, and tells how.
    pub(super) async fn ran(&self) -> Exit {
        self.start().await.unwrap();
        self.ended().await
    }

    pub(super) async fn ended(&self) -> Exit {
        match self.shim.wait(Instant::now() + SOON).await.unwrap() {
            State::Exited(exit) => exit,
            other => panic!("not ended: {other:?}; {}", self.complaints()),
        }
    }

    pub(super) fn pid(&self) -> i32 {
        match self.shim.state().unwrap() {
            State::Running { pid, .. } => pid,
            other => panic!("not running: {other:?}; {}", self.complaints()),
        }
    }

    /// The contents of the log's lines.
    pub(super) fn logged(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.launch.log).unwrap_or_default();
        text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned()).collect()
    }

    pub(super) async fn logs(&self, wanted: &str) {
        eventually(wanted, SOON, async || {
            let lines = self.logged();
            if lines.iter().any(|line| line.contains(wanted)) { Ok(()) } else { Err(format!("{lines:?}")) }
        })
        .await;
    }

    pub(super) fn complaints(&self) -> String {
        fs::read_to_string(self.shim.dir().join("shim.err")).unwrap_or_default()
    }

    /// A helper of this container that has this verb.
    pub(super) fn helper(&self, verb: &str) -> Option<i32> {
        let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.into_iter().find(|pid| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let here = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
            line.split('\0').any(|word| word == verb) && here == self.shim.dir()
        })
    }

    /// Until this is dropped, helpers hang at their first step.
    pub(super) fn stuck(&self) -> Stuck {
        let launch = self.shim.dir().join("launch.json");
        let aside = launch.with_extension("aside");
        fs::rename(&launch, &aside).unwrap();
        nix::unistd::mkfifo(&launch, nix::sys::stat::Mode::S_IRWXU).unwrap();
        Stuck { launch, aside }
    }

    /// The supervisor of this container, by what it was started with.
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
            .expect("a supervisor")
    }
}

/// Helpers of a container hang.
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
            let _ = cgroup::kill(path);
            let _ = cgroup::remove(path);
        }
        // A supervisor writes into the folder until its end.
        for _ in 0..400 {
            if !matches!(self.shim.state(), Ok(State::Running { .. })) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let own = self.launch.own_cgroup.iter();
        if let Some(top) = own.flat_map(|path| path.split('/')).find(|part| !part.is_empty()) {
            let _ = cgroup::remove(top);
        }
    }
}

/// Sends a signal; one that has ended does not mind.
pub(super) fn signal(pid: i32, number: i32) {
    let signal = nix::sys::signal::Signal::try_from(number).unwrap();
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
}

/// Whether a process is there and not only waiting to be reaped.
pub(super) fn alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

pub(super) async fn dies(pid: i32) {
    eventually("the process ends", SOON, async || if alive(pid) { Err("it lives") } else { Ok(()) }).await;
}

/// A root file system with busybox under all its names.
fn furnish(root: &Path) {
    for name in ["bin", "proc", "tmp", "dev", "etc", "sys", "v"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    let busybox: PathBuf = root.join("bin/busybox");
    // By another process: a file that this one has open to write cannot be run while some other test starts a process, which has it too.
    let copied = Command::new("cp").arg("/bin/busybox").arg(&busybox).status();
    assert!(copied.is_ok_and(|status| status.success()), "busybox-static is installed");
    let list = Command::new("/bin/busybox").arg("--list").output().unwrap();
    for applet in String::from_utf8_lossy(&list.stdout).lines().filter(|&applet| applet != "busybox") {
        symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1000::/srv/web:/bin/sh\n")
        .unwrap();
}

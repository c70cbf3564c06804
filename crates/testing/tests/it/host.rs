//! A container runtime of a test's own, and that nothing is left of it.

use std::{collections::BTreeSet, path::Path, time::Duration};

use vk_testing::{
    eventually,
    host::{BareHost, Containerd, Host as _, HostResources, Image, Registry, containerd, image::BUSYBOX},
};

const SOON: Duration = Duration::from_secs(30);

/// Everything that a runtime may leave on a machine.
fn traces(of: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    found.extend(mounts.lines().filter(|line| line.contains("vk-peer-")).map(str::to_owned));
    for link in std::fs::read_dir("/sys/class/net").unwrap().flatten() {
        found.insert(link.path().display().to_string());
    }
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        for group in std::fs::read_dir(hierarchy.path()).into_iter().flatten().flatten() {
            found.insert(group.path().display().to_string());
        }
    }
    for file in std::fs::read_dir(std::env::temp_dir()).unwrap().flatten() {
        found.insert(file.path().display().to_string());
    }
    for program in ["iptables-save", "ip6tables-save"] {
        let output = std::process::Command::new(program).args(["-t", "nat"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        found.extend(text.lines().filter(|line| line.contains("CNI-")).map(str::to_owned));
    }
    // Of other tests that run at the same time is said nothing.
    found.retain(|trace| trace.contains(of));
    found
}

fn ctr(containerd: &Containerd, args: &[&str]) -> String {
    let output = containerd.ctr(args);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[tokio::test]
#[ignore = "needs root and containerd: make test"]
async fn nothing_is_left_of_a_runtime_and_of_what_ran_on_it() {
    let machine = HostResources::any();
    let number = machine.number().to_string();
    let shared = machine.shared();
    let containerd = Containerd::start(machine, containerd::Options::default()).await;
    assert!(containerd.version().starts_with("1.6."), "{}", containerd.version());
    let name = format!("/{}/sleeper", containerd.resources().cgroup());
    ctr(&containerd, &["run", "--detach", "--cgroup", &name, BUSYBOX, "sleeper"]);
    assert!(ctr(&containerd, &["tasks", "ls"]).contains("RUNNING"));
    // What the test's own process mounts there is seen inside.
    let inside = shared.join("volume");
    std::fs::create_dir(&inside).unwrap();
    let mount = |args: &[&str]| std::process::Command::new("mount").args(args).status().unwrap();
    assert!(mount(&["-t", "tmpfs", "tmpfs", inside.to_str().unwrap()]).success());
    std::fs::write(inside.join("file"), "seen").unwrap();
    let seen = containerd.command(Path::new("cat")).arg(inside.join("file")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "seen");
    assert!(traces(&format!("vk-peer-{number}")).len() > 5);
    // As the plugin for host ports leaves it when pods are killed with their runtime.
    let rule = |args: &str| {
        let args = args.split(' ').map(|word| word.replace('_', " "));
        std::process::Command::new("iptables").args(["-w", "-t", "nat"]).args(args).output().unwrap()
    };
    rule("-N CNI-HOSTPORT-DNAT");
    rule(&format!("-N CNI-DN-{number}"));
    let comment = format!("dnat_name:_\"vkpeer{number}\"_id:_\"1\"");
    let jump = rule(&format!("-A CNI-HOSTPORT-DNAT -m comment --comment {comment} -j CNI-DN-{number}"));
    assert!(jump.status.success(), "{jump:?}");
    assert!(!traces(&format!("CNI-DN-{number}")).is_empty());
    drop(containerd);
    eventually("nothing is left", SOON, || async {
        let mut left = traces(&format!("vk-peer-{number}"));
        left.extend(traces(&format!("vkpeer{number}")));
        left.extend(traces(&format!("CNI-DN-{number}")));
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn what_a_killed_run_left_is_removed_also_under_another_number() {
    let used = HostResources::any();
    // Those that `any` does not choose are free here.
    let number = 199;
    let left = std::env::temp_dir().join(format!("vk-peer-{number}"));
    let lock = left.with_extension("lock");
    std::fs::create_dir_all(left.join("shared")).unwrap();
    std::fs::write(&lock, "").unwrap();
    let other = HostResources::any();
    // Another run may be doing it at the same time.
    eventually("it is removed", SOON, || async {
        if left.exists() || lock.exists() { Err("it exists") } else { Ok(()) }
    })
    .await;
    assert!(used.folder().exists() && used.number() != other.number());
}

#[tokio::test]
#[ignore = "needs root and containerd: make test"]
async fn containers_go_on_while_their_runtime_is_killed_and_comes_back() {
    let mut containerd = Containerd::start(HostResources::any(), containerd::Options::default()).await;
    let group = format!("/{}/sleeper", containerd.resources().cgroup());
    ctr(&containerd, &["run", "--detach", "--cgroup", &group, BUSYBOX, "sleeper"]);
    let running = ctr(&containerd, &["tasks", "ls"]);
    containerd.kill();
    assert!(!containerd.ctr(&["--connect-timeout", "1s", "version"]).status.success());
    containerd.restart().await;
    assert_eq!(ctr(&containerd, &["tasks", "ls"]), running);
    containerd.pause();
    assert!(!containerd.ctr(&["--timeout", "1s", "version"]).status.success());
    containerd.resume();
    ctr(&containerd, &["version"]);
}

#[tokio::test]
#[ignore = "needs root and containerd: make test"]
async fn two_runtimes_live_beside_each_other() {
    let one = Containerd::start(HostResources::any(), containerd::Options::default()).await;
    let images = vec![Image::new("vk.test/other:1").entry_point(&["/bin/true"])];
    let options = containerd::Options { images, ..containerd::Options::default() };
    let other = Containerd::start(HostResources::any(), options).await;
    assert_ne!(one.socket(), other.socket());
    assert!(!ctr(&one, &["images", "ls"]).contains("vk.test/other:1"));
    assert!(ctr(&other, &["images", "ls"]).contains("vk.test/other:1"));
}

#[tokio::test]
#[ignore = "needs root and containerd: make test"]
async fn a_registry_gives_images_to_those_who_know_the_password() {
    let machine = HostResources::any();
    let images = [
        Image::standard().remove(0).named("vk.test/private:1"),
        Image::new("vk.test/foreign:1").architecture("s390x"),
    ];
    let registry = Registry::start(&machine, &images).await;
    let containerd = Containerd::start(machine, containerd::Options::default()).await;
    let name = format!("{}/private:1", registry.address());
    let user = format!("{}:{}", Registry::USER, Registry::PASSWORD);
    assert!(!containerd.ctr(&["images", "pull", "--plain-http", &name]).status.success());
    ctr(&containerd, &["images", "pull", "--plain-http", "--user", &user, &name]);
    let foreign = format!("{}/foreign:1", registry.address());
    let refused = containerd.ctr(&["images", "pull", "--plain-http", "--user", &user, &foreign]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("platform"), "{refused:?}");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn pods_cannot_take_the_room_for_processes_that_others_need() {
    let machine = HostResources::any();
    let limits = ["pids/@/pids.max", "@/pids.max"].map(|path| path.replace('@', &machine.cgroup()));
    let limit = limits.iter().find_map(|path| std::fs::read_to_string(format!("/sys/fs/cgroup/{path}")).ok());
    let limit: u32 =
        limit.unwrap().trim().parse().expect("a number: without a limit one fork bomb takes all");
    let all: u32 = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap().trim().parse().unwrap();
    assert!(limit <= all / 8, "{limit} of {all}");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn after_a_reboot_nothing_begins_before_the_namespaces_are_made() {
    let mut host = BareHost::start(HostResources::any()).await;
    // Mounted last.
    let whole = |host: &BareHost| {
        let mounts = std::fs::read_to_string(format!("/proc/{}/mounts", host.init_pid())).unwrap();
        mounts.contains("/proc/sys/kernel/keys/root_maxbytes")
    };
    assert!(whole(&host));
    let before = host.init_pid();
    host.reboot().await;
    assert_ne!(host.init_pid(), before);
    assert!(whole(&host), "the namespaces are used while they are made");
}

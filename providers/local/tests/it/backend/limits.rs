//! Limits and usage.

use vk_pod_engine::{ContainerBackend, backend::Seccomp};

use super::test_backend::{SOON, TestBackend, container, log, script_output, start, wait_for_exit};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn limits_are_enforced_and_usage_grows() {
    let test_backend = TestBackend::new().await;
    let mut settings = test_backend.settings();
    settings.pids_limit = Some(64);
    let cgroups = settings.cgroups.clone().unwrap();
    let backend = vk_provider_local::backend::LocalBackend::open(settings).await.unwrap();
    let config = test_backend.sandbox("limits");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let mut busy = container("busy", "while :; do :; done");
    busy.resources.memory_limit = 64 << 20;
    busy.resources.cpu_quota = 50_000;
    let id = start(&backend, &sandbox, &busy, &config).await;
    let path = format!("{}/{id}", config.cgroup_parent);
    assert!(cgroups.exists(&path) && cgroups.usage(&path).unwrap().processes > Some(0));
    if !cgroups.is_unified() {
        let of = |file: &str| {
            std::fs::read_to_string(format!("/sys/fs/cgroup/{}", file.replace('@', &path))).unwrap()
        };
        assert_eq!(of("memory@/memory.limit_in_bytes").trim(), (64 << 20).to_string());
        assert_eq!(of("cpu@/cpu.cfs_quota_us").trim(), "50000");
        assert_eq!(of("pids@/pids.max").trim(), "64");
    }
    let total = || async {
        let pods = backend.usage(&config.labels).await.unwrap();
        let used = pods[0].containers.first().and_then(|container| container.cpu);
        used.map_or(0, |cpu| cpu.total_nanos)
    };
    let before = total().await;
    vk_testing::eventually("usage grows", SOON, || async {
        let now = total().await;
        if now > before + 10_000_000 { Ok(()) } else { Err(format!("{before} {now}")) }
    })
    .await;
    let pods = backend.usage(&config.labels).await.unwrap();
    let memory = pods[0].containers[0].memory.unwrap();
    assert!(memory.working_set > 0 && memory.available.unwrap() < 64 << 20);
    assert!(pods[0].cpu.is_some() && pods[0].memory.is_some());
    assert_eq!(pods[0].interfaces[0].name, "eth0");
    backend.remove_sandbox(&sandbox).await.unwrap();
    assert!(!cgroups.exists(&config.cgroup_parent));
    backend.close().await.unwrap();
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_request_for_usage_walks_no_files_and_a_later_one_has_what_was_measured_meanwhile() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("files");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let script = "head -c 300000 /dev/zero > /data; echo up; while :; do sleep 1; done";
    let id = start(&backend, &sandbox, &container("main", script), &config).await;
    vk_testing::eventually("it has written its files", SOON, || async {
        let text = log(&backend.container(&id).await.unwrap());
        if text == "up\n" { Ok(()) } else { Err(text) }
    })
    .await;
    let layer = || async {
        let pods = backend.usage(&config.labels).await.unwrap();
        pods[0].containers[0].writable_layer.clone()
    };
    assert_eq!(layer().await, None, "the first request does not wait for it");
    let layer = vk_testing::eventually("it is measured", SOON, || async { layer().await.ok_or("not yet") });
    assert!(layer.await.used_bytes >= 300_000);
    backend.remove_sandbox(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_container_cannot_raise_its_own_limits() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("lift");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let script = "for f in /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max /proc/sysrq-trigger; do \
                  echo max 2>/dev/null > $f && echo wrote $f; done; umount /sys/fs/cgroup 2>/dev/null && echo unmounted; true";
    let text = script_output(&backend, &sandbox, &config, script).await;
    assert!(!text.contains("wrote") && !text.contains("unmounted"), "{text}");
    backend.remove_sandbox(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn an_oom_kill_is_reported_as_the_reason() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("oom");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let mut greedy = container("greedy", "exec tail /dev/zero");
    greedy.resources.memory_limit = 16 << 20;
    let id = start(&backend, &sandbox, &greedy, &config).await;
    let over = wait_for_exit(&backend, &id).await;
    assert_eq!((over.exit_code, over.reason.as_str()), (137, "OOMKilled"));
    backend.remove_sandbox(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn the_default_seccomp_profile_is_enforced() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("seccomp");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let mut held = container("held", "grep Seccomp: /proc/self/status; unshare -U true 2>&1; echo $?");
    held.security.seccomp = Seccomp::RuntimeDefault;
    let id = start(&backend, &sandbox, &held, &config).await;
    let over = wait_for_exit(&backend, &id).await;
    let text = log(&over);
    assert!(text.starts_with("Seccomp:\t2\n"), "{text}");
    assert!(text.contains("not permitted") && text.ends_with("1\n"), "{text}");
    backend.remove_sandbox(&sandbox).await.unwrap();
}

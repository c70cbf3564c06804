//! The client against a real containerd.

use std::{collections::BTreeMap, time::Duration};

use vk_pod_engine::{
    ContainerBackend as _,
    backend::{ExecOutput, full_message},
    snapshot::{ContainerState, SandboxState, label},
};
use vk_provider::{
    ability::{ExecOptions, Started},
    error::Kind,
};
use vk_provider_cri::Cri;
use vk_testing::{eventually, host::Host as _};

use super::containerd;
use crate::requests::{container_config, sandbox_config};

const IMAGE: &str = "vk.test/busybox:1";
const SOON: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs containerd, as root: make test"]
async fn a_container_lives_from_its_creation_to_its_removal() {
    let containerd = containerd().await;
    let cri = Cri::connect(containerd.socket()).await.unwrap();
    let runtime = cri.runtime().await.unwrap();
    assert_eq!((runtime.name.as_str(), runtime.ready.ok, runtime.network.ok), ("containerd", true, true));
    let mine: BTreeMap<String, String> = [(label::NODE.to_owned(), "here".to_owned())].into();

    let mut pod = sandbox_config();
    pod.log_directory = containerd.resources().folder().join("logs").display().to_string();
    pod.cgroup_parent = format!("/{}", containerd.resources().cgroup());
    pod.labels.clone_from(&mine);
    std::fs::create_dir_all(format!("{}/main", pod.log_directory)).unwrap();
    let id = cri.run_sandbox(&pod).await.unwrap();
    let sandbox = cri.sandbox(&id).await.unwrap();
    assert_eq!(sandbox.state, SandboxState::Ready);
    assert_eq!(sandbox.ips.len(), 2, "an address of each family: {sandbox:?}");
    assert!(!sandbox.host_network);

    let image = cri.image(IMAGE, "").await.unwrap().unwrap();
    assert_eq!(cri.image("vk.test/none:1", "").await.unwrap(), None);
    let mut config = container_config();
    config.image.clone_from(&image.id);
    config.user_image = IMAGE.to_owned();
    config.command = vec!["/stay".to_owned()];
    config.stop_signal = None;
    config.labels.clone_from(&mine);
    let name = cri.create_container(&id, &config, &pod).await.unwrap();
    assert_eq!(cri.container(&name).await.unwrap().state, ContainerState::Created);
    cri.start_container(&name).await.unwrap();
    let container = cri.container(&name).await.unwrap();
    assert_eq!((container.state, container.attempt, &container.sandbox), (ContainerState::Running, 2, &id));
    assert_eq!(container.log_path, format!("{}/main/2.log", pod.log_directory));

    let listing = cri.list(&mine).await.unwrap();
    assert_eq!((listing.sandboxes.len(), listing.containers.len()), (1, 1));
    let others = cri.list(&[(label::NODE.to_owned(), "elsewhere".to_owned())].into()).await.unwrap();
    assert!(others.sandboxes.is_empty() && others.containers.is_empty());

    let run = |script: &str, limit| {
        let command = ["sh", "-c", script].map(str::to_owned);
        let (cri, name) = (cri.clone(), name.clone());
        async move { cri.run(&name, &command, Duration::from_secs(limit)).await.unwrap() }
    };
    assert_eq!(
        run("echo out; echo err >&2; exit 3", 10).await,
        ExecOutput::Exited { code: 3, output: b"out\nerr\n".to_vec() }
    );
    assert_eq!(
        run("echo $KEY", 10).await,
        ExecOutput::Exited { code: 0, output: "värde\n".as_bytes().to_vec() }
    );
    let late = run("sleep 30", 1).await;
    let message = "command timed out: \"sh -c sleep 30\" timed out after 1s".to_owned();
    assert_eq!(late, ExecOutput::TimedOut { message });
    let options = ExecOptions { stdout: true, ..ExecOptions::default() };
    let started = cri.exec(&name, &["true".to_owned()], &options).await.unwrap();
    assert!(matches!(started, Started::Url(url) if url.starts_with("http://127.0.0.1:")));

    let usage = eventually("usage is measured", SOON, || async {
        let all = cri.usage(&mine).await.map_err(|error| error.report())?;
        let cores = all.first().and_then(|pod| pod.containers.first()?.cpu?.nano_cores);
        if cores.is_some() { Ok(all) } else { Err(format!("{all:?}")) }
    })
    .await;
    assert_eq!(
        usage[0].interfaces.first().map(|interface| interface.name.as_str()),
        Some("eth0"),
        "{usage:?}"
    );
    assert!(usage[0].containers[0].memory.is_some_and(|memory| memory.working_set > 0));
    assert!(!cri.image_fs().await.unwrap().is_empty());

    for _ in 0..2 {
        cri.stop_container(&name, Duration::from_secs(5)).await.unwrap();
    }
    let ended = cri.container(&name).await.unwrap();
    assert_eq!(
        (ended.state, ended.exit_code, ended.reason.as_str()),
        (ContainerState::Exited, 0, "Completed")
    );
    for _ in 0..2 {
        cri.remove_container(&name).await.unwrap();
        cri.stop_sandbox(&id).await.unwrap();
    }
    for _ in 0..2 {
        cri.remove_sandbox(&id).await.unwrap();
    }
    for error in [cri.container(&name).await.unwrap_err(), cri.sandbox(&id).await.unwrap_err()] {
        assert_eq!(*error.kind(), Kind::NotFound, "{}", full_message(&error));
        assert!(
            full_message(&error).starts_with("rpc error: code = NotFound desc = "),
            "{}",
            full_message(&error)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs containerd, as root: make test"]
async fn a_real_runtime_that_goes_and_comes_back_is_used_again() {
    let mut containerd = containerd().await;
    let cri = Cri::connect(containerd.socket()).await.unwrap();
    containerd.kill();
    let error = cri.runtime().await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable, "{}", full_message(&error));
    containerd.restart().await;
    eventually("the runtime is used again", SOON, || async {
        let runtime = cri.runtime().await.map_err(|error| error.report())?;
        if runtime.ready.ok { Ok(()) } else { Err(format!("{runtime:?}")) }
    })
    .await;
}
